//! The page: pictures of what was played, and the tables behind them.

use uroce_laboratory::inference::H100;
use wan::of_sorted;

use crate::cells::Shows;
use crate::played::{FirstToken, Played};
use crate::profile::{LINE_BPS, Path, SLOWER, STANDS_FOR_BPS};
use crate::svg::{Anchor, Svg, escaped};
use crate::tables::{names, tables};

pub(crate) const STYLE: &str = "
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2126; --soft: #5b6670; --grid: #d9dee3;
  --uroce: #1769aa; --plain: #8fb8d8; --tcp: #b8860b; --compute: #7a869a; --transfer: #1769aa; --path: #b4531f; --step: #3f8f5b; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e6eaee; --soft: #9aa6b1; --grid: #323a42;
  --uroce: #5aa9e6; --plain: #34607f; --tcp: #e0b04a; --compute: #66727f; --transfer: #5aa9e6; --path: #e08a57; --step: #6cc08b; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; font-weight: 600; margin: 1.2rem 0 0; }
p { color: var(--soft); } svg { width: 100%; height: auto; } pre { overflow-x: auto; font-size: 12px; }
text { fill: var(--ink); font: 12px system-ui, sans-serif; } .small { fill: var(--soft); font-size: 11px; } .grid { stroke: var(--grid); }
.mark { stroke: var(--ink); stroke-width: 2; } .uroce { fill: var(--uroce); } .plain { fill: var(--plain); } .tcp { fill: var(--tcp); }
.curve { stroke-width: 2; } .curve.transfer { stroke: var(--transfer); } .curve.path { stroke: var(--path); }
.compute { fill: var(--compute); } .transfer { fill: var(--transfer); } .path { fill: var(--path); } .step { fill: var(--step); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.key.uroce { background: var(--uroce); } .key.plain { background: var(--plain); } .key.tcp { background: var(--tcp); }
.key.compute { background: var(--compute); } .key.transfer { background: var(--transfer); } .key.path { background: var(--path); } .key.step { background: var(--step); }
";

pub(crate) const WIDTH: f64 = 900.0;
/// Where names end and bars begin, and where bars end.
const LEFT: f64 = 300.0;
const RIGHT: f64 = 830.0;
const ROW: f64 = 20.0;

/// The page.
pub fn page(all: &[Played]) -> String {
    let line = LINE_BPS / 1_000_000;
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>KV caches between two sites</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style>\n<h1>KV caches between two sites</h1>\n\
         <p>NIXL's agents and Mooncake's engines, unmodified, over uroce and over TCP, through an emulated network of {line} Mb/s. \
         Times are round trips without queues, losses those of each way. All blocks that were said to have arrived were compared.</p>\n"
    );
    text += &bulk(all);
    text += &batches(all);
    text += &first_tokens(all);
    text += &time_lines(all);
    text + &format!("<h2>Tables</h2>\n<pre>{}</pre>\n</html>\n", escaped(&tables(all)))
}

/// What a key of colours says: classes and words.
pub(crate) fn keys(keys: &[(&str, &str)]) -> String {
    let spans = keys.iter().map(|(class, words)| format!("<span class=\"key {class}\"></span>{words}"));
    format!("<p>{}</p>\n", spans.collect::<String>())
}

fn class(played: &Played) -> &'static str {
    let name = names(played)[2].clone();
    if name == "uroce" {
        "uroce"
    } else if name.starts_with("uroce") {
        "plain"
    } else {
        "tcp"
    }
}

/// The paths of those that were played, each once.
fn paths(all: &[&Played]) -> Vec<Path> {
    let mut paths: Vec<Path> = Vec::new();
    for played in all {
        if !paths.contains(&played.path) {
            paths.push(played.path);
        }
    }
    paths
}

fn those(all: &[Played], shows: fn(&Shows) -> bool) -> Vec<&Played> {
    all.iter().filter(|played| shows(&played.play.shows) && played.outcome.failure.is_none()).collect()
}

/// A bar for each of some rows, with words behind it; its class, its name, its value and its mark.
struct Row {
    class: &'static str,
    name: String,
    value: f64,
    mark: Option<f64>,
    words: String,
}

fn bars(rows: &[Row], most: f64, unit: &str, title: &str) -> String {
    let mut svg = Svg::new(WIDTH);
    let place = |value: f64| LEFT + (RIGHT - LEFT) * (value / most).min(1.0);
    let bottom = ROW * rows.len() as f64 + 4.0;
    svg.scale(most, unit, [0.0, bottom], place);
    for (number, row) in rows.iter().enumerate() {
        let y = ROW * number as f64 + 3.0;
        svg.text("", Anchor::End, [LEFT - 8.0, y + 12.0], &row.name);
        svg.bar(row.class, [LEFT, y, place(row.value) - LEFT, ROW - 6.0], &format!("{}: {}", row.name, row.words));
        svg.text("small", Anchor::Start, [place(row.value) + 6.0, y + 11.0], &row.words);
        if let Some(mark) = row.mark.filter(|mark| *mark <= most) {
            svg.line("mark", [place(mark), y - 1.0, place(mark), y + ROW - 5.0]);
        }
    }
    svg.finish(title)
}

fn bulk(all: &[Played]) -> String {
    let played = those(all, |shows| *shows == Shows::Bulk);
    let mut text = "<h2>Bulk on a warm connection, in percent of the line</h2>\n<p>Payload over the rate of the line; headers \
                    and losses take their share of it. A mark is what UCX's limit on outstanding requests lets pass.</p>\n"
        .to_owned();
    text += &keys(&[("uroce", "uroce"), ("plain", "uroce otherwise"), ("tcp", "TCP")]);
    for path in paths(&played) {
        let percent = |bps: f64| 100.0 * bps / LINE_BPS as f64;
        let rows = played.iter().filter(|played| played.path == path).map(|played| {
            let [_, what, transport] = names(played);
            let value = played.goodput_bps().map_or(0.0, percent);
            let is_cut = played.outcome.ends.iter().any(|end| end["cut"] == true);
            Row {
                class: class(played),
                name: format!("{what}, {transport}, {} KiB", played.play.cell.block_bytes >> 10),
                value,
                mark: played.window_bps().map(percent),
                words: format!("{value:.1} %{}", if is_cut { ", cut" } else { "" }),
            }
        });
        let rows: Vec<Row> = rows.collect();
        text += &format!("<h3>{path}</h3>\n{}", bars(&rows, 100.0, " %", "goodput by transport"));
    }
    text
}

fn batches(all: &[Played]) -> String {
    let played = those(all, |shows| *shows == Shows::Batches);
    if played.is_empty() {
        return String::new();
    }
    let longest = |played: &&Played| of_sorted(&played.batches_ms(), 0.99).copied().unwrap_or(0.0);
    let most = played.iter().map(longest).fold(1.0, f64::max) * 1.1;
    let rows = played.iter().flat_map(|played| {
        let [path, what, transport] = names(played);
        let all = played.batches_ms();
        let ideals = played.ideal_ms().unwrap_or_default();
        [(0.5, "median", ideals[0]), (0.99, "99 %", ideals[1])].map(|(share, word, ideal)| {
            let value = of_sorted(&all, share).copied().unwrap_or(0.0);
            Row {
                class: class(played),
                name: format!("{path}, {what}, {transport}, {word}"),
                value,
                mark: Some(ideal),
                words: format!("{value:.0} ms, ideal {ideal:.0}"),
            }
        })
    });
    let rows: Vec<Row> = rows.collect();
    format!(
        "<h2>Batches of 2 MiB, one at a time</h2>\n<p>A mark is an ideal selective repeat, by a Monte Carlo of 20,000 batches.</p>\n{}",
        bars(&rows, most, " ms", "time of a batch")
    )
}

/// What a prompt's figures stand for.
pub(crate) fn scaled() -> String {
    format!(
        "<p>No accelerator is here: compute is that of {}'s data sheet by equations, and {SLOWER:.0} times slower, as this line is \
         than one of {:.0} Gb/s. Each layer leaves when it is computed.</p>\n",
        H100.name,
        STANDS_FOR_BPS / 1e9
    )
}

fn first_tokens(all: &[Played]) -> String {
    let played = those(all, |shows| matches!(shows, Shows::Prompt { .. }));
    let Some(first) = played.first() else { return String::new() };
    let of = |played: &Played| of_sorted(&played.first_tokens(), 0.5).copied();
    let most = played.iter().filter_map(|played| of(played)).map(|token| token.total_ms()).fold(1.0, f64::max) * 1.1;
    let place = |value: f64| LEFT + (RIGHT - LEFT) * value / most;
    let mut svg = Svg::new(WIDTH);
    svg.scale(most, " ms", [0.0, ROW * played.len() as f64 + 4.0], place);
    for (number, played) in played.iter().enumerate() {
        let (Some(token), Shows::Prompt { model, tokens }) = (of(played), &played.play.shows) else { continue };
        let y = ROW * number as f64 + 3.0;
        let name = format!("{} × {tokens}, {}", model.name, names(played)[2]);
        svg.text("", Anchor::End, [LEFT - 8.0, y + 12.0], &name);
        let FirstToken { path_ms, compute_ms, transfer_ms, step_ms } = token;
        let mut from = 0.0;
        let parts = [("path", path_ms), ("compute", compute_ms), ("transfer", transfer_ms), ("step", step_ms)];
        for (class, ms) in parts {
            let x = place(from);
            svg.bar(class, [x, y, place(from + ms) - x, ROW - 6.0], &format!("{class}: {ms:.0} ms"));
            from += ms;
        }
        svg.text("small", Anchor::Start, [place(from) + 6.0, y + 11.0], &format!("{from:.0} ms"));
    }
    let key = keys(&[
        ("path", "a round trip: the prompt, and the word that all is there"),
        ("compute", "prefill"),
        ("transfer", "transfer beyond it"),
        ("step", "first token"),
    ]);
    let svg = svg.finish("time to first token");
    format!("<h2>Time to first token, and where it went ({})</h2>\n{}{key}{svg}", first.path, scaled())
}

fn time_lines(all: &[Played]) -> String {
    let played = those(all, |shows| matches!(shows, Shows::Prompt { .. }));
    if played.is_empty() {
        return String::new();
    }
    let mut text =
        "<h2>Layer by layer</h2>\n<p>The last prompt of each. A row is a layer that keeps a cache.</p>\n".to_owned();
    text += &keys(&[("compute", "computed"), ("transfer", "on its way, until it is acknowledged")]);
    for played in played {
        let (Some(layers), Shows::Prompt { model, tokens }) = (played.layers().pop(), &played.play.shows) else {
            continue;
        };
        let most = layers.iter().map(|layer| layer[2]).fold(1.0, f64::max);
        let row = (120.0 / layers.len() as f64).clamp(4.0, 14.0);
        let (left, right) = (40.0, 860.0);
        let place = |value: f64| left + (right - left) * value / most;
        let mut svg = Svg::new(WIDTH);
        svg.scale(most, " ms", [0.0, row * layers.len() as f64 + 4.0], place);
        let mut before = 0.0;
        for (number, [computed, posted, done]) in layers.iter().copied().enumerate() {
            let y = row * number as f64;
            let height = row - 1.0;
            svg.bar("compute", [place(before), y, place(computed) - place(before), height], &format!("layer {number}"));
            svg.bar(
                "transfer",
                [place(posted), y, place(done) - place(posted), height],
                &format!("layer {number}: {posted:.0} to {done:.0} ms"),
            );
            before = computed;
        }
        let title = format!("{}, {tokens} tokens, over {} ({})", model.name, names(played)[2], played.path);
        text += &format!("<h3>{}</h3>\n{}", escaped(&title), svg.finish(&title));
    }
    text
}
