//! What the length of chunks does to a stream as a picture: a panel a path, a curve a prompt, and on it the chosen length.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use uroce_laboratory::sim::kv::{StreamCell, Streamed};

use super::picture::{GREY, INK, style};
use super::stream::length;
use super::svg;
use crate::Failure;

/// The streams of one prompt over one path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Curve {
    /// The round trip in milliseconds, and the share of frames lost.
    path: (u64, f64),
    prompt: String,
    /// Lengths of chunks in bytes, shortest first, the chosen one too, and the time over the longer of compute and transfer.
    times: Vec<(u64, f64)>,
    chosen: Option<(u64, f64)>,
}

// All in pixels.
const LEFT: i32 = 148;
const TOP: i32 = 112;
const PANEL: (i32, i32) = (700, 118);
const BELOW: i32 = 34;
const BOTTOM: i32 = 44;
const RIGHT: i32 = 28;

/// The greatest time that has a place in a panel, over the longer of compute and transfer.
const CEILING: f64 = 2.0;

/// Apart in brightness, too.
const INKS: [RGBColor; 3] = [RGBColor(8, 63, 112), RGBColor(217, 119, 6), RGBColor(103, 174, 205)];

impl Curve {
    /// The curves of streams, in the order in which they come.
    pub(super) fn all(streams: impl Iterator<Item = (StreamCell, Streamed)>) -> Vec<Curve> {
        let mut curves: Vec<Curve> = Vec::new();
        for (cell, streamed) in streams {
            let path = (cell.line.round_trip.as_millis() as u64, cell.line.loss);
            let prompt = format!("{} × {}", cell.workload.model.name, cell.workload.tokens);
            let over = streamed.total.div_duration_f64(streamed.compute.max(streamed.transfer));
            let point = (streamed.chunk_bytes, over);
            let at =
                curves.iter().position(|curve| (curve.path, &curve.prompt) == (path, &prompt)).unwrap_or_else(|| {
                    curves.push(Curve { path, prompt, times: Vec::new(), chosen: None });
                    curves.len() - 1
                });
            let Curve { times, chosen, .. } = &mut curves[at];
            if cell.chunk_bytes.is_none() {
                *chosen = Some(point);
            }
            // The chosen length is on the curve, too.
            let place = times.partition_point(|(bytes, _)| *bytes < point.0);
            if times.get(place).is_none_or(|(bytes, _)| *bytes != point.0) {
                times.insert(place, point);
            }
        }
        curves
    }
}

/// Draws all curves into an SVG file.
///
/// # Errors
/// When there are none, or the file cannot be written.
pub(super) fn draw(file: &Path, curves: &[Curve]) -> Result<(), Failure> {
    let lengths = || curves.iter().flat_map(|curve| &curve.times).map(|(bytes, _)| *bytes);
    let (Some(least), Some(most)) = (lengths().min(), lengths().max()) else {
        return Err("there is no stream to draw".into());
    };
    let (low, high) = (f64::from(least.ilog2()), f64::from(most.ilog2()).max(f64::from(least.ilog2()) + 1.0));
    let mut paths: Vec<(u64, f64)> = curves.iter().map(|curve| curve.path).collect();
    paths.dedup();
    let mut prompts: Vec<&str> = Vec::new();
    for curve in curves {
        if !prompts.contains(&curve.prompt.as_str()) {
            prompts.push(&curve.prompt);
        }
    }
    let (width, height) = (LEFT + PANEL.0 + RIGHT, TOP + paths.len() as i32 * (PANEL.1 + BELOW) - BELOW + BOTTOM);
    let mut drawn = String::new();
    let root = SVGBackend::with_string(&mut drawn, (width as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let write = |text: String, at: (i32, i32), style: TextStyle<'static>| root.draw(&Text::new(text, at, style));
    let title = "A KV cache that leaves while it is computed, by the length of its chunks";
    write(title.to_owned(), (24, 34), style(23.0, true, &INK, HPos::Left))?;
    let subtitle = "Time until all is acknowledged, over the longer of compute and transfer; 10 Gb/s, in virtual time: uroce sim stream";
    write(subtitle.to_owned(), (24, 60), style(14.0, false, &GREY, HPos::Left))?;
    for (number, prompt) in prompts.iter().enumerate() {
        let x = LEFT + number as i32 * 236;
        root.draw(&PathElement::new([(x, 86), (x + 18, 86)], INKS[number % INKS.len()].stroke_width(3)))?;
        write((*prompt).to_owned(), (x + 24, 86), style(13.0, false, &INK, HPos::Left))?;
    }
    let x = |bytes: u64| LEFT + ((f64::from(bytes.ilog2()) - low) / (high - low) * f64::from(PANEL.0)) as i32;
    for (row, path) in paths.iter().enumerate() {
        let top = TOP + row as i32 * (PANEL.1 + BELOW);
        let y = |over: f64| top + ((CEILING - over.clamp(1.0, CEILING)) / (CEILING - 1.0) * f64::from(PANEL.1)) as i32;
        write(format!("{} ms", path.0), (24, top + 22), style(16.0, true, &INK, HPos::Left))?;
        let loss = format!("{} % lost", super::in_percent(path.1));
        write(loss, (24, top + 44), style(14.0, false, &GREY, HPos::Left))?;
        for over in [1.0, 1.5, CEILING] {
            root.draw(&PathElement::new([(LEFT, y(over)), (LEFT + PANEL.0, y(over))], GREY.mix(0.35)))?;
            write(format!("{over}"), (LEFT - 6, y(over)), style(13.0, false, &GREY, HPos::Right))?;
        }
        for curve in curves.iter().filter(|curve| curve.path == *path) {
            let number = prompts.iter().position(|prompt| *prompt == curve.prompt).unwrap_or_default();
            let ink = INKS[number % INKS.len()];
            let points = curve.times.iter().map(|(bytes, over)| (x(*bytes), y(*over)));
            root.draw(&PathElement::new(points.collect::<Vec<_>>(), ink.stroke_width(3)))?;
            if let Some((bytes, over)) = curve.chosen {
                root.draw(&Circle::new((x(bytes), y(over)), 6, ink.filled()))?;
            }
        }
        for power in (low as u32..=high as u32).step_by(2) {
            let at = (x(1 << power), top + PANEL.1 + 12);
            write(length(1 << power), at, style(13.0, false, &GREY, HPos::Center))?;
        }
    }
    let axis = "length of a chunk; a dot is the chosen one, a line at the top has left the panel".to_owned();
    write(axis, (width - RIGHT, height - 14), style(14.0, false, &GREY, HPos::Right))?;
    root.present()?;
    drop(root);
    let description = "For each round trip and prompt, the time by the length of chunks: short ones leave the line idle, because few \
                       are on their way at once, and long ones leave late. A dot on each curve is the chosen length.";
    Ok(svg::write(file, &drawn, title, description)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_has_its_dot() {
        let curve = |rtt_ms, prompt: &str| Curve {
            path: (rtt_ms, 0.001),
            prompt: prompt.to_owned(),
            times: vec![(1 << 16, 3.0), (1 << 21, 1.05), (1 << 26, 1.6)],
            chosen: Some((1 << 21, 1.05)),
        };
        let file = std::env::temp_dir().join(format!("uroce-stream-picture-{}.svg", std::process::id()));
        draw(&file, &[curve(30, "one"), curve(30, "other"), curve(40, "one")]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for words in ["30 ms", "40 ms", "0.1 % lost", "one", "other", "64 KiB", "64 MiB"] {
            assert!(text.contains(words), "no {words}");
        }
        assert_eq!(text.matches("<circle").count(), 3);
        assert!(draw(&file, &[]).is_err());
    }
}
