//! What a failing path does to goodput as a picture: a panel an operation, a line each way that the path may fail.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use uroce_laboratory::sim::TransferOperation;
use uroce_laboratory::sim::path_failure::{BEFORE_ROUND_TRIPS, BINS, DARK_ROUND_TRIPS, DarkDirection};

use super::picture::{GREY, INK, NOTHING, style};
use super::svg;
use crate::Failure;

/// What becomes of one transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub operation: TransferOperation,
    pub direction: DarkDirection,
    /// Goodput as a share of what all paths can carry, [`BINS`] times a round trip, from [`BEFORE_ROUND_TRIPS`] before the failure
    /// on.
    pub shares: &'a [f64],
}

/// What lines are called, and their colours: apart in brightness, too.
/// Widths, in pixels, differ: where lines lie on each other, the wider ones below are seen on both sides.
const DIRECTIONS: [(DarkDirection, &str, RGBColor, u32); 3] = [
    (DarkDirection::Both, "dark both ways", RGBColor(8, 63, 112), 2),
    (DarkDirection::Forward, "dark where data goes", RGBColor(217, 119, 6), 5),
    (DarkDirection::Return, "dark where acknowledges go", RGBColor(103, 174, 205), 8),
];

// All in pixels.
const LEFT: i32 = 112;
const TOP: i32 = 108;
const PANEL: (i32, i32) = (832, 128);
/// From one panel to the next, beside it.
const BELOW: i32 = 34;
const BOTTOM: i32 = 44;
const RIGHT: i32 = 28;

/// The least share that has a place in a panel: below 40 % nothing is to be seen.
const FLOOR: f64 = 0.4;
/// The greatest, a little above all: what was late arrives with the rest.
const CEILING: f64 = 1.05;

/// Draws all lines into an SVG file; `paths` is how many paths there are.
///
/// # Errors
/// When there are none, or the file cannot be written.
pub(super) fn draw(file: &Path, paths: u16, lines: &[Line<'_>]) -> Result<(), Failure> {
    let longest = lines.iter().map(|line| line.shares.len()).max().ok_or("there is no line to draw")?;
    let panels: Vec<TransferOperation> = TransferOperation::ALL
        .into_iter()
        .filter(|operation| lines.iter().any(|line| line.operation == *operation))
        .collect();
    let (width, height) = (LEFT + PANEL.0 + RIGHT, TOP + panels.len() as i32 * (PANEL.1 + BELOW) - BELOW + BOTTOM);
    let mut drawn = String::new();
    let root = SVGBackend::with_string(&mut drawn, (width as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let write = |text: String, at: (i32, i32), style: TextStyle<'static>| root.draw(&Text::new(text, at, style));

    let title = format!("One of {paths} paths goes dark");
    write(title.clone(), (24, 34), style(23.0, true, &INK, HPos::Left))?;
    let subtitle = "Goodput of one queue pair as a share of what all paths carry, by quarter of a round trip, in virtual time: \
                    uroce sim path-failure";
    write(subtitle.to_owned(), (24, 60), style(14.0, false, &GREY, HPos::Left))?;
    let mut key = LEFT;
    for (_, name, ink, wide) in DIRECTIONS {
        root.draw(&PathElement::new([(key, 82), (key + 18, 82)], ink.stroke_width(wide)))?;
        write(name.to_owned(), (key + 24, 82), style(13.0, false, &INK, HPos::Left))?;
        key += 220;
    }

    let round_trips = longest as f64 / f64::from(BINS) - f64::from(BEFORE_ROUND_TRIPS);
    let before = f64::from(BEFORE_ROUND_TRIPS);
    let x = |round_trip: f64| LEFT + ((round_trip + before) / (round_trips + before) * f64::from(PANEL.0)) as i32;
    for (row, operation) in panels.iter().enumerate() {
        let top = TOP + row as i32 * (PANEL.1 + BELOW);
        let y = |share: f64| {
            let share = share.clamp(FLOOR, CEILING);
            top + ((CEILING - share) / (CEILING - FLOOR) * f64::from(PANEL.1)) as i32
        };
        let dark = [(x(0.0), top), (x(f64::from(DARK_ROUND_TRIPS)), top + PANEL.1)];
        root.draw(&Rectangle::new(dark, NOTHING.filled()))?;
        write(operation.name().to_uppercase(), (24, top + PANEL.1 / 2), style(16.0, true, &INK, HPos::Left))?;
        // What all paths can carry, and what is left without one.
        for share in [FLOOR, 0.5, 1.0 - 1.0 / f64::from(paths), 1.0] {
            root.draw(&PathElement::new([(LEFT, y(share)), (LEFT + PANEL.0, y(share))], GREY.mix(0.35)))?;
            let label = format!("{} %", (share * 1000.0).round() / 10.0);
            write(label, (LEFT - 6, y(share)), style(13.0, false, &GREY, HPos::Right))?;
        }
        for (direction, _, ink, wide) in DIRECTIONS.iter().rev() {
            let ours = |line: &&Line<'_>| (line.operation, line.direction) == (*operation, *direction);
            for line in lines.iter().filter(ours) {
                // A step for each part of a round trip.
                let steps = line.shares.iter().enumerate().flat_map(|(bin, share)| {
                    let at = |bin: usize| x(bin as f64 / f64::from(BINS) - before);
                    [(at(bin), y(*share)), (at(bin + 1), y(*share))]
                });
                root.draw(&PathElement::new(steps.collect::<Vec<_>>(), ink.stroke_width(*wide)))?;
            }
        }
        for round_trip in (0..=round_trips as i32).step_by(10) {
            let at = (x(f64::from(round_trip)), top + PANEL.1 + 10);
            write(round_trip.to_string(), at, style(13.0, false, &GREY, HPos::Center))?;
        }
    }
    let axis = "round trips since the path went dark; grey: while it was".to_owned();
    write(axis, (width - RIGHT, height - 14), style(14.0, false, &GREY, HPos::Right))?;
    let floor = format!("up: share of what all paths carry, from {} % on", FLOOR * 100.0);
    write(floor, (24, height - 14), style(14.0, false, &GREY, HPos::Left))?;
    root.present()?;
    drop(root);
    let description = "For each operation, goodput over time: it falls when the path goes dark, comes back on the others within \
                       round trips, and is whole again when the path is.";
    Ok(svg::write(file, &drawn, &title, description)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_that_there_is_has_a_panel() {
        let shares = vec![0.9; 256];
        let line = |operation, direction| Line { operation, direction, shares: &shares };
        let lines =
            [line(TransferOperation::Write, DarkDirection::Both), line(TransferOperation::Read, DarkDirection::Return)];
        let file = std::env::temp_dir().join(format!("uroce-timeline-{}.svg", std::process::id()));
        draw(&file, 8, &lines).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for words in ["One of 8 paths", "WRITE", "READ", "87.5 %", "dark both ways"] {
            assert!(text.contains(words), "no {words}");
        }
        assert!(!text.contains("SEND") && draw(&file, 8, &[]).is_err());
    }
}
