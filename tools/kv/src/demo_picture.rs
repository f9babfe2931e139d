//! The picture of the demonstration: three panels, each of bars, light or dark with the page that it stands in.

use crate::demo::{DEMO_SHARE, Demo, Fetched, REPAIR_PER_MILLE};
use crate::profile::LINE_BPS;
use crate::svg::{Anchor, Svg, escaped};
use crate::tokens::Beside;

/// Where names end and bars begin, and where bars end; the height of a row and of a panel's head; in pixels.
const WIDTH: f64 = 860.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 760.0;
const ROW: f64 = 20.0;
const HEAD: f64 = 34.0;

const STYLE: &str = "
:root { --paper: #ffffff; --ink: #1c2126; --soft: #5b6670; --grid: #d9dee3; --compute: #9aa6b1; --ours: #1769aa; --other: #b8860b; }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --soft: #9aa4b2; --grid: #323a42; --compute: #5b6670;
  --ours: #5aa9e6; --other: #e0b04a; } }
.paper { fill: var(--paper); } text { fill: var(--ink); font: 12px system-ui, sans-serif; } .small { fill: var(--soft); font-size: 11px; }
.head { font-size: 14px; font-weight: 600; } .grid { stroke: var(--grid); } .compute { fill: var(--compute); } .ours { fill: var(--ours); }
.other { fill: var(--other); }";

/// A bar of a panel: its length, and what is said behind it.
struct Bar {
    class: &'static str,
    name: String,
    to: f64,
    words: String,
}

/// The picture, as an SVG file.
pub fn demo_picture(demo: &Demo) -> String {
    let path = demo.plan.path;
    let mut svg = Svg::new(WIDTH);
    let mut y = 8.0;
    let title = format!("Over {path} and {} Mb/s, real frames, nobody tells a rate", LINE_BPS / 1_000_000);
    svg.text("small", Anchor::Start, [12.0, y + 10.0], &title);
    y += 18.0;
    y = panel(&mut svg, y, "Streaming: a KV cache leaves while it is computed", " ms", &streams(demo));
    y = panel(
        &mut svg,
        y,
        "Priority: 64-byte tokens beside a KV transfer at full rate, 90 of 100 within",
        " ms",
        &tokens(demo),
    );
    panel(&mut svg, y, "Deadlines: blocks of 8 MiB that are whole when time is up", " %", &fetched(demo));
    file(svg)
}

fn streams(demo: &Demo) -> Vec<Bar> {
    let bar = |class, name: &str, to| Bar { class, name: name.to_owned(), to, words: format!("{to:.0} ms") };
    let [compute, streamed, after] = [demo.streamed_ms("compute_ms"), demo.streamed_ms("total_ms"), demo.after_ms()];
    vec![
        bar("compute", "computed", compute),
        bar("ours", "there, in chunks", streamed),
        bar("other", "there, sent when all is computed", after),
    ]
}

fn tokens(demo: &Demo) -> Vec<Bar> {
    let bars = demo.tokens.iter().map(|played| {
        let (class, name) = match played.beside {
            Beside::Nothing => ("compute", "alone"),
            Beside::Bulk => ("ours", "urgent, beside bulk"),
            Beside::OneClass => ("other", "in one class with it"),
        };
        let p90 = played.quantile(DEMO_SHARE).as_secs_f64() * 1e3;
        let goodput = match played.beside {
            Beside::Nothing => String::new(),
            _ => format!("; the transfer has {:.0} Mb/s", played.goodput_bps / 1e6),
        };
        Bar { class, name: name.to_owned(), to: p90, words: format!("{p90:.1} ms{goodput}") }
    });
    bars.collect()
}

fn fetched(demo: &Demo) -> Vec<Bar> {
    let share = |fetched: &Fetched| 100.0 * fetched.whole as f64 / fetched.blocks as f64;
    let bars = demo.fetched[0].iter().zip(&demo.fetched[1]).map(|(plain, repaired)| Bar {
        class: "ours",
        name: format!("after {} ms", plain.deadline_ms),
        to: share(plain),
        words: format!(
            "{:.0} %; with {} % repair symbols {:.0} %",
            share(plain),
            REPAIR_PER_MILLE / 10,
            share(repaired)
        ),
    });
    bars.collect()
}

/// Draws a panel from `top` on; returns where the next one begins.
fn panel(svg: &mut Svg, top: f64, head: &str, unit: &str, bars: &[Bar]) -> f64 {
    // Words behind the longest bar have room, too.
    let most = bars.iter().map(|bar| bar.to).fold(f64::MIN_POSITIVE, f64::max);
    let place = |value: f64| LEFT + (RIGHT - 220.0 - LEFT) * (value / most);
    svg.text("head", Anchor::Start, [12.0, top + 18.0], head);
    let (first, bottom) = (top + HEAD, top + HEAD + ROW * bars.len() as f64);
    svg.scale(most, unit, [first - 4.0, bottom], place);
    for (number, bar) in bars.iter().enumerate() {
        let y = first + ROW * number as f64;
        svg.text("", Anchor::End, [LEFT - 8.0, y + 12.0], &bar.name);
        svg.bar(bar.class, [LEFT, y, place(bar.to) - LEFT, ROW - 6.0], &format!("{}: {}", bar.name, bar.words));
        svg.text("small", Anchor::Start, [place(bar.to) + 6.0, y + 11.0], &bar.words);
    }
    bottom + 26.0
}

/// A file of its own, with the style and a background.
fn file(svg: Svg) -> String {
    let title = "Streaming, priority and deadlines over one path";
    let body = svg.finish(title);
    let (head, rest) = body.split_once('>').unwrap_or_default();
    format!(
        "{head} xmlns=\"http://www.w3.org/2000/svg\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>{rest}",
        escaped(title)
    )
}
