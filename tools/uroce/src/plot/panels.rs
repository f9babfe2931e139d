use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use uroce::verbs::INTERVAL_REMARKS;

use super::Look;
use crate::Failure;
use crate::sim::picture::{GREY, INK, style};
use crate::sim::svg;

/// A panel: what it shows, its unit, and its lines.
struct Panel {
    what: &'static str,
    unit: String,
    lines: Vec<Line>,
}

/// A line: its name, and its points: seconds, and a value in the panel's unit.
struct Line {
    name: &'static str,
    points: Vec<(f64, f64)>,
}

// All in pixels.
const LEFT: i32 = 128;
const TOP: i32 = 84;
const PANEL: (i32, i32) = (780, 120);
const BELOW: i32 = 46;
const BOTTOM: i32 = 40;
const RIGHT: i32 = 28;

/// Apart in brightness, too.
const INKS: [RGBColor; 4] =
    [RGBColor(8, 63, 112), RGBColor(217, 119, 6), RGBColor(103, 174, 205), RGBColor(107, 114, 128)];

/// Units by factors of 1000, from the smallest on: of bits a second, of bytes, and of seconds.
const RATES: [(f64, &str); 3] = [(1e3, "kb/s"), (1e6, "Mb/s"), (1e9, "Gb/s")];
const BYTES: [(f64, &str); 3] = [(1e3, "kB"), (1e6, "MB"), (1e9, "GB")];
const TIMES: [(f64, &str); 3] = [(1e-6, "µs"), (1e-3, "ms"), (1.0, "s")];

/// What a line shows of an interval.
type Of = fn(&Look) -> Option<f64>;

/// The lines of a panel, in the largest of `units` in which the greatest value is 1 or more.
fn panel(what: &'static str, units: &[(f64, &'static str)], looks: &[Look], lines: &[(&'static str, Of)]) -> Panel {
    let all = || lines.iter().flat_map(|(_, of)| looks.iter().filter_map(of));
    let most = all().fold(0.0, f64::max);
    let (factor, unit) = units.iter().rfind(|(factor, _)| most >= *factor).unwrap_or(&units[0]);
    let line = |(name, of): &(&'static str, Of)| {
        let points = looks.iter().filter_map(|look| Some((look.elapsed_s, of(look)? / factor))).collect();
        Line { name, points }
    };
    Panel { what, unit: (*unit).to_owned(), lines: lines.iter().map(line).collect() }
}

/// The panels of a picture; the last one is there only if something happened.
fn panels(looks: &[Look]) -> Vec<Panel> {
    let mut panels = vec![
        panel(
            "rate",
            &RATES,
            looks,
            &[("sent", |look| Some(look.sent_bps)), ("received", |look| Some(look.received_bps))],
        ),
        panel(
            "window",
            &BYTES,
            looks,
            &[("window", |look| look.window_bytes), ("in flight", |look| look.in_flight_bytes)],
        ),
        panel(
            "round trip",
            &TIMES,
            looks,
            &[("smoothed", |look| look.round_trip_s), ("without queues", |look| look.shortest_s)],
        ),
    ];
    let lines: Vec<Line> = INTERVAL_REMARKS
        .iter()
        .enumerate()
        .map(|(index, (name, _))| {
            let points = looks.iter().map(|look| (look.elapsed_s, look.remarks[index] as f64)).collect();
            Line { name, points }
        })
        .filter(|line: &Line| line.points.iter().any(|(_, count)| *count > 0.0))
        .collect();
    if !lines.is_empty() {
        panels.push(Panel { what: "what else happened", unit: "times an interval".to_owned(), lines });
    }
    panels
}

/// The least round number that is no less than `value`, which is greater than 0.
fn ceiling(value: f64) -> f64 {
    let exponent = value.log10().floor() as i32;
    // Divided by a whole number, so that 0.3 is no 0.30000000000000004.
    let scaled = |times: f64| if exponent < 0 { times / 10f64.powi(-exponent) } else { times * 10f64.powi(exponent) };
    let round = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    round.into_iter().map(scaled).find(|round| *round >= value).unwrap_or(value)
}

/// Draws the looks into an SVG file.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn draw(file: &Path, looks: &[Look]) -> Result<(), Failure> {
    let panels = panels(looks);
    let end = looks.iter().map(|look| look.elapsed_s).fold(f64::MIN_POSITIVE, f64::max);
    let (width, height) = (LEFT + PANEL.0 + RIGHT, TOP + panels.len() as i32 * (PANEL.1 + BELOW) - BELOW + BOTTOM);
    let mut drawn = String::new();
    let root = SVGBackend::with_string(&mut drawn, (width as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let write = |text: String, at: (i32, i32), style: TextStyle<'static>| root.draw(&Text::new(text, at, style));
    let title = "What a program's device did, by interval";
    write(title.to_owned(), (24, 34), style(23.0, true, &INK, HPos::Left))?;
    let x = |at: f64| LEFT + (at / end * f64::from(PANEL.0)) as i32;
    for (row, Panel { what, unit, lines }) in panels.iter().enumerate() {
        let top = TOP + row as i32 * (PANEL.1 + BELOW);
        let most = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value).fold(0.0, f64::max);
        let most = if most > 0.0 { ceiling(most) } else { 1.0 };
        let y = |value: f64| top + ((1.0 - value / most) * f64::from(PANEL.1)) as i32;
        write(format!("{what}, {unit}"), (LEFT, top - 16), style(15.0, true, &INK, HPos::Left))?;
        let mut key = LEFT + PANEL.0;
        for (line, ink) in lines.iter().zip(INKS).rev() {
            key -= 34 + 8 * line.name.chars().count() as i32;
            root.draw(&PathElement::new([(key, top - 16), (key + 18, top - 16)], ink.stroke_width(3)))?;
            write(line.name.to_owned(), (key + 24, top - 16), style(13.0, false, &INK, HPos::Left))?;
        }
        for part in [0.0, 0.5, 1.0] {
            let value = part * most;
            root.draw(&PathElement::new([(LEFT, y(value)), (LEFT + PANEL.0, y(value))], GREY.mix(0.35)))?;
            write(format!("{value}"), (LEFT - 8, y(value)), style(13.0, false, &GREY, HPos::Right))?;
        }
        for (line, ink) in lines.iter().zip(INKS) {
            let points: Vec<(i32, i32)> = line.points.iter().map(|(at, value)| (x(*at), y(*value))).collect();
            match points[..] {
                // One point is no line.
                [point] => root.draw(&Circle::new(point, 3, ink.filled()))?,
                _ => root.draw(&PathElement::new(points, ink.stroke_width(2)))?,
            }
        }
        for part in 0..=4 {
            let at = end * f64::from(part) / 4.0;
            let place = (x(at), top + PANEL.1 + 14);
            write(format!("{:.1} s", at), place, style(13.0, false, &GREY, HPos::Center))?;
        }
    }
    root.present()?;
    drop(root);
    let description = "One below the other, by time: what was sent and received, the congestion window and what was in flight, \
                       the round trip, and what was retransmitted, not ready, marked or dropped.";
    Ok(svg::write(file, &drawn, title, description)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_have_their_units_and_what_did_not_happen_has_none() {
        let look = |second: f64, retransmitted| Look {
            elapsed_s: second,
            sent_bps: 480e6,
            received_bps: 3e6,
            window_bytes: Some(1.2e6),
            in_flight_bytes: Some(1.0e6),
            round_trip_s: Some(0.0205),
            shortest_s: None,
            remarks: [retransmitted, 0, 0, 0],
        };
        let calm = panels(&[look(1.0, 0), look(2.0, 0)]);
        let units: Vec<(&str, &str)> = calm.iter().map(|panel| (panel.what, panel.unit.as_str())).collect();
        assert_eq!(units, [("rate", "Mb/s"), ("window", "MB"), ("round trip", "ms")]);
        assert_eq!(calm[0].lines[0].points, [(1.0, 480.0), (2.0, 480.0)]);
        assert!(calm[2].lines[1].points.is_empty());
        let lossy = panels(&[look(1.0, 7)]);
        assert_eq!((lossy.len(), lossy[3].lines.len(), lossy[3].lines[0].name), (4, 1, "retransmitted"));

        let file = std::env::temp_dir().join(format!("uroce-plot-{}.svg", std::process::id()));
        draw(&file, &[look(1.0, 7), look(2.0, 0)]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for words in ["rate, Mb/s", "in flight", "retransmitted", "2.0 s", "500"] {
            assert!(text.contains(words), "no {words}");
        }
        assert_eq!([0.3, 1.0, 480.0, 7.0].map(ceiling), [0.3, 1.0, 500.0, 8.0]);
    }
}
