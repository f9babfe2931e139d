//! The table of losses and round trips as a picture: a square a cell, the darker the more of the ideal it reaches.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;

use super::svg::{self, INK_ON_SQUARES};
use crate::Failure;

/// A cell of the table, from the line that a run printed of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Square {
    op: String,
    recovery: String,
    loss_model: String,
    loss: f64,
    round_trip_ms: u64,
    /// Goodput as a share of the ideal; 0 for a queue pair that gave up.
    fraction: f64,
}

/// What is drawn side by side, and one below the other: what lines say, and what the picture calls it.
const OPERATIONS: [(&str, &str); 3] = [("write", "WRITE"), ("read", "READ"), ("send", "SEND")];
const RECOVERIES: [(&str, &str); 3] =
    [("selective", "selective repeat"), ("plain", "from a plain peer"), ("go-back-n", "go-back-N")];
const LOSS_MODELS: [(&str, &str); 2] = [("uniform", "single losses"), ("burst", "bursts of eight")];

// All in pixels.
const SQUARE: (i32, i32) = (62, 30);
/// Between two panels, side by side.
const GAP: i32 = 72;
/// Left of the first panel: what the rows are.
const LEFT: i32 = 226;
const TOP: i32 = 118;
/// From one row of panels to the next, beside the squares: round trips, and some room.
const BELOW: i32 = 26;
/// Between one recovery and the next.
const BETWEEN: i32 = 16;
const BOTTOM: i32 = 84;
const RIGHT: i32 = 28;
/// Each colour that the scale shows.
const SCALE_STEP: i32 = 4;

pub(crate) const INK: RGBColor = RGBColor(31, 41, 55);
pub(crate) const GREY: RGBColor = RGBColor(107, 114, 128);
pub(super) const NOTHING: RGBColor = RGBColor(243, 244, 246);

/// The scale: light for nothing, dark for all. One hue, so that it is as good in print and for those who see few colours.
const SCALE: [RGBColor; 5] = [
    RGBColor(239, 246, 250),
    RGBColor(186, 218, 232),
    RGBColor(103, 174, 205),
    RGBColor(36, 120, 168),
    RGBColor(8, 63, 112),
];

impl Square {
    /// Reads a line of `uroce sim loss-rtt --json`.
    ///
    /// # Errors
    /// What is missing, or that the line is of a run that went wrong; in words.
    pub(super) fn of(line: &Value) -> Result<Square, String> {
        let text = |key: &str| line[key].as_str().map(str::to_owned).ok_or_else(|| format!("no {key} in {line}"));
        let number = |key: &str| line[key].as_f64().ok_or_else(|| format!("no {key} in {line}"));
        let gave_up = line["gave_up"] == true;
        Ok(Square {
            op: text("op")?,
            recovery: text("recovery")?,
            loss_model: text("loss_model")?,
            loss: number("loss")?,
            round_trip_ms: number("rtt_ms")? as u64,
            fraction: if gave_up { 0.0 } else { number("fraction")? },
        })
    }
}

/// Sorted, each once.
fn values<T: PartialOrd + Copy>(squares: &[Square], of: impl Fn(&Square) -> T) -> Vec<T> {
    let mut all: Vec<T> = squares.iter().map(of).collect();
    all.sort_by(|a, b| a.partial_cmp(b).expect("lines have numbers"));
    all.dedup();
    all
}

/// The colour of a share.
pub(super) fn colour(fraction: f64) -> RGBColor {
    let steps = (SCALE.len() - 1) as f64;
    let at = fraction.clamp(0.0, 1.0) * steps;
    let low = (at as usize).min(SCALE.len() - 2);
    let (from, to, part) = (SCALE[low], SCALE[low + 1], at - low as f64);
    let mix = |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * part).round() as u8;
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

/// Percent, as in the table of docs/PERFORMANCE.md.
fn percent(fraction: f64) -> String {
    match fraction * 100.0 {
        0.0 => "0".to_owned(),
        percent if percent < 0.05 => "< 0.1".to_owned(),
        percent => format!("{percent:.1}"),
    }
}

pub(crate) fn style(size: f64, bold: bool, ink: &RGBColor, horizontal: HPos) -> TextStyle<'static> {
    let weight = if bold { FontStyle::Bold } else { FontStyle::Normal };
    FontDesc::new(FontFamily::SansSerif, size, weight).color(ink).pos(Pos::new(horizontal, VPos::Center))
}

/// Draws all cells into an SVG file.
///
/// # Errors
/// When there are none, or the file cannot be written.
pub(super) fn draw(file: &Path, squares: &[Square]) -> Result<(), Failure> {
    if squares.is_empty() {
        return Err("there is no cell to draw".into());
    }
    let (losses, round_trips) = (values(squares, |s| s.loss), values(squares, |s| s.round_trip_ms));
    let has = |op: &str, recovery: &str, model: &str| {
        squares.iter().any(|s| (s.op.as_str(), s.recovery.as_str(), s.loss_model.as_str()) == (op, recovery, model))
    };
    let rows: Vec<_> = RECOVERIES
        .iter()
        .flat_map(|recovery| LOSS_MODELS.iter().map(move |model| (*recovery, *model)))
        .filter(|((recovery, _), (model, _))| OPERATIONS.iter().any(|(op, _)| has(op, recovery, model)))
        .collect();
    let columns: Vec<_> = OPERATIONS.iter().filter(|(op, _)| squares.iter().any(|square| square.op == *op)).collect();
    let panel = (SQUARE.0 * round_trips.len() as i32, SQUARE.1 * losses.len() as i32);
    let width = LEFT + columns.len() as i32 * (panel.0 + GAP) - GAP + RIGHT;
    let height = TOP + rows.len() as i32 * (panel.1 + BELOW) + BETWEEN + BOTTOM;
    let mut drawn = String::new();
    let root = SVGBackend::with_string(&mut drawn, (width as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let write = |text: String, at: (i32, i32), style: TextStyle<'static>| root.draw(&Text::new(text, at, style));

    let title = "What is left of 10 Gb/s, by loss and round trip";
    write(title.to_owned(), (24, 34), style(23.0, true, &INK, HPos::Left))?;
    let subtitle = "Percent of rate × payload share × (1 − loss) that one queue pair delivers, path MTU 4096, in virtual time: \
                    uroce sim loss-rtt";
    write(subtitle.to_owned(), (24, 62), style(14.0, false, &GREY, HPos::Left))?;
    let left = |column: usize| LEFT + column as i32 * (panel.0 + GAP);
    for (column, (_, title)) in columns.iter().enumerate() {
        let at = (left(column) + panel.0 / 2, TOP - 20);
        write((*title).to_owned(), at, style(16.0, true, &INK, HPos::Center))?;
    }
    let mut top = TOP;
    for (row, ((recovery, recovery_name), (model, model_name))) in rows.iter().enumerate() {
        if row > 0 && rows[row - 1].0 != rows[row].0 {
            top += BETWEEN;
        }
        let middle = top + panel.1 / 2;
        write((*recovery_name).to_owned(), (24, middle - 11), style(16.0, true, &INK, HPos::Left))?;
        write((*model_name).to_owned(), (24, middle + 11), style(14.0, false, &GREY, HPos::Left))?;
        for (column, (op, _)) in columns.iter().enumerate() {
            for (line, loss) in losses.iter().enumerate() {
                let y = top + line as i32 * SQUARE.1;
                let label = format!("{} %", super::in_percent(*loss));
                write(label, (left(column) - 8, y + SQUARE.1 / 2), style(14.0, false, &GREY, HPos::Right))?;
                for (place, round_trip) in round_trips.iter().enumerate() {
                    let x = left(column) + place as i32 * SQUARE.0;
                    let found = squares.iter().find(|s| {
                        (s.op.as_str(), s.recovery.as_str(), s.loss_model.as_str()) == (*op, *recovery, *model)
                            && (s.loss, s.round_trip_ms) == (*loss, *round_trip)
                    });
                    // A white line between squares.
                    let area = [(x + 1, y + 1), (x + SQUARE.0 - 1, y + SQUARE.1 - 1)];
                    let fill = found.map_or(NOTHING, |square| colour(square.fraction));
                    root.draw(&Rectangle::new(area, fill.filled()))?;
                    if let Some(square) = found {
                        let ink = if square.fraction > 0.55 { WHITE } else { INK_ON_SQUARES };
                        let at = (x + SQUARE.0 / 2, y + SQUARE.1 / 2);
                        write(percent(square.fraction), at, style(14.0, false, &ink, HPos::Center))?;
                    }
                }
            }
            for (place, round_trip) in round_trips.iter().enumerate() {
                let at = (left(column) + place as i32 * SQUARE.0 + SQUARE.0 / 2, top + panel.1 + 10);
                write(format!("{round_trip} ms"), at, style(14.0, false, &GREY, HPos::Center))?;
            }
        }
        top += panel.1 + BELOW;
    }

    let (bar, y) = (panel.0, top + 26);
    for share in (0..bar).step_by(SCALE_STEP as usize) {
        let x = LEFT + share;
        let fill = colour(f64::from(share) / f64::from(bar - SCALE_STEP));
        root.draw(&Rectangle::new([(x, y), ((x + SCALE_STEP).min(LEFT + bar), y + 12)], fill.filled()))?;
    }
    for tick in [0, 25, 50, 75, 100] {
        let x = LEFT + bar * tick / 100;
        root.draw(&PathElement::new([(x, y + 12), (x, y + 17)], GREY))?;
        write(tick.to_string(), (x, y + 26), style(14.0, false, &GREY, HPos::Center))?;
    }
    write("percent of the ideal".to_owned(), (LEFT + bar + 24, y + 6), style(14.0, false, &GREY, HPos::Left))?;
    let axes = "rows: frames lost, each way;  columns: round trip".to_owned();
    write(axes, (width - RIGHT, y + 6), style(14.0, false, &GREY, HPos::Right))?;
    let above =
        "The ideal is of the mean loss: with fewer losses than that, a run reaches a little more than 100.".to_owned();
    write(above, (width - RIGHT, y + 28), style(14.0, false, &GREY, HPos::Right))?;
    root.present()?;
    drop(root);
    let description = "A square for each operation, recovery, loss model, loss and round trip. It says how many percent of the \
                       ideal goodput are reached, and is the darker the more they are.";
    Ok(svg::write(file, &drawn, title, description)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_become_squares_and_what_gave_up_is_nothing() {
        let line = json!({"op": "write", "recovery": "selective", "loss": 0.01, "loss_model": "burst", "rtt_ms": 40,
                          "fraction": 0.994});
        let square = Square::of(&line).unwrap();
        assert_eq!((square.loss, square.round_trip_ms, square.fraction), (0.01, 40, 0.994));
        let mut line = line;
        line.as_object_mut().unwrap().remove("fraction");
        assert!(Square::of(&line).unwrap_err().contains("fraction"));
        line["gave_up"] = true.into();
        assert_eq!(Square::of(&line).unwrap().fraction, 0.0);
    }

    #[test]
    fn colours_go_from_light_to_dark() {
        let brightness = |fraction| {
            let RGBColor(red, green, blue) = colour(fraction);
            u32::from(red) + u32::from(green) + u32::from(blue)
        };
        let all: Vec<u32> = (0..=100).map(|percent| brightness(f64::from(percent) / 100.0)).collect();
        assert!(all.windows(2).all(|pair| pair[0] >= pair[1]) && all[0] > 2 * all[100], "{all:?}");
        assert_eq!((colour(-1.0), colour(2.0)), (SCALE[0], SCALE[4]));
    }

    #[test]
    fn every_cell_is_in_the_picture() {
        let mut squares = Vec::new();
        for (number, (op, loss)) in
            OPERATIONS.iter().flat_map(|(op, _)| [0.0001, 0.05].map(|loss| (*op, loss))).enumerate()
        {
            let fraction = 0.101 + number as f64 / 10.0;
            let line = json!({"op": op, "recovery": "go-back-n", "loss": loss, "loss_model": "uniform", "rtt_ms": 10,
                              "fraction": fraction});
            squares.push(Square::of(&line).unwrap());
        }
        let file = std::env::temp_dir().join(format!("uroce-picture-{}.svg", std::process::id()));
        draw(&file, &squares).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for words in ["10.1", "20.1", "30.1", "40.1", "50.1", "60.1", "WRITE", "READ", "SEND", "go-back-N", "0.01 %"] {
            assert!(text.contains(words), "no {words}");
        }
        assert!(!text.contains("selective repeat") && draw(&file, &[]).is_err());
    }
}
