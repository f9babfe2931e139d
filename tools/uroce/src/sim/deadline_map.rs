//! Where repair symbols are faster than selective repeat, as a picture: a square for each round trip and loss.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::picture::{GREY, INK, style};
use super::svg::{self, INK_ON_SQUARES};
use crate::Failure;

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub bursts: bool,
    pub round_trip_ms: u64,
    pub loss: f64,
    pub repair_per_mille: u16,
    pub p99_ms: f64,
}

// All in pixels.
const SQUARE: (i32, i32) = (104, 46);
const LEFT: i32 = 92;
const TOP: i32 = 122;
const GAP: i32 = 96;
const BOTTOM: i32 = 74;
const RIGHT: i32 = 28;

/// Faster by less than this is as fast.
const ALIKE: f64 = 1.02;

const CODING: RGBColor = RGBColor(103, 174, 205);
const LITTLE: RGBColor = RGBColor(186, 218, 232);
const REPEAT: RGBColor = RGBColor(243, 221, 187);

/// What is said of a square: which is faster, and by how much.
#[derive(Clone, Debug, PartialEq)]
struct Verdict {
    texts: [String; 2],
    fill: RGBColor,
}

/// Compares selective repeat with the fewest repair symbols that are as fast as any; `None` where one of them was not run.
fn verdict(places: &[Place]) -> Option<Verdict> {
    let repeat = places.iter().find(|place| place.repair_per_mille == 0)?;
    let coded = || places.iter().filter(|place| place.repair_per_mille > 0);
    let fastest = coded().min_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms))?.p99_ms;
    let coded = coded().filter(|place| place.p99_ms <= fastest * ALIKE).min_by_key(|place| place.repair_per_mille)?;
    let gain = repeat.p99_ms / coded.p99_ms;
    let (name, fill, factor) = match gain {
        _ if gain >= 1.5 => (format!("{} ‰", coded.repair_per_mille), CODING, gain),
        _ if gain >= ALIKE => (format!("{} ‰", coded.repair_per_mille), LITTLE, gain),
        _ if gain > 1.0 / ALIKE => ("alike".to_owned(), REPEAT, gain.max(1.0 / gain)),
        _ => ("repeat".to_owned(), REPEAT, 1.0 / gain),
    };
    Some(Verdict { texts: [name, format!("{:.0} ms, x {factor:.2}", repeat.p99_ms.min(coded.p99_ms))], fill })
}

fn sorted<T: PartialOrd + Copy>(places: &[Place], of: impl Fn(&Place) -> T) -> Vec<T> {
    let mut all: Vec<T> = places.iter().map(of).collect();
    all.sort_by(|a, b| a.partial_cmp(b).expect("they are numbers"));
    all.dedup();
    all
}

/// Draws all places into an SVG file.
///
/// # Errors
/// When there are none, or the file cannot be written.
pub(super) fn draw(file: &Path, places: &[Place]) -> Result<(), Failure> {
    if places.is_empty() {
        return Err("there is no cell to draw".into());
    }
    let (losses, round_trips) = (sorted(places, |p| p.loss), sorted(places, |p| p.round_trip_ms));
    let models: Vec<bool> =
        [false, true].into_iter().filter(|model| places.iter().any(|p| p.bursts == *model)).collect();
    let panel = (SQUARE.0 * round_trips.len() as i32, SQUARE.1 * losses.len() as i32);
    let width = (LEFT + models.len() as i32 * (panel.0 + GAP) - GAP + RIGHT).max(720);
    let height = TOP + panel.1 + BOTTOM;
    let mut drawn = String::new();
    let root = SVGBackend::with_string(&mut drawn, (width as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let write = |text: String, at: (i32, i32), style: TextStyle<'static>| root.draw(&Text::new(text, at, style));
    let title = "When repair symbols are faster than selective repeat";
    write(title.to_owned(), (24, 34), style(23.0, true, &INK, HPos::Left))?;
    let subtitle =
        "99 of 100 chunks of 1 MiB over 300 Mb/s, by loss and round trip, in virtual time: uroce sim deadline";
    write(subtitle.to_owned(), (24, 62), style(14.0, false, &GREY, HPos::Left))?;
    for (column, bursts) in models.iter().enumerate() {
        let left = LEFT + column as i32 * (panel.0 + GAP);
        let name = if *bursts { "bursts of eight" } else { "single losses" };
        write(name.to_owned(), (left + panel.0 / 2, TOP - 20), style(16.0, true, &INK, HPos::Center))?;
        for (line, loss) in losses.iter().enumerate() {
            let y = TOP + line as i32 * SQUARE.1;
            let label = format!("{} %", super::in_percent(*loss));
            write(label, (left - 8, y + SQUARE.1 / 2), style(14.0, false, &GREY, HPos::Right))?;
            for (place, round_trip) in round_trips.iter().enumerate() {
                let x = left + place as i32 * SQUARE.0;
                let here: Vec<Place> = places
                    .iter()
                    .filter(|p| (p.bursts, p.loss, p.round_trip_ms) == (*bursts, *loss, *round_trip))
                    .copied()
                    .collect();
                let Some(Verdict { texts, fill }) = verdict(&here) else { continue };
                let area = [(x + 1, y + 1), (x + SQUARE.0 - 1, y + SQUARE.1 - 1)];
                root.draw(&Rectangle::new(area, fill.filled()))?;
                for (text, (size, bold, down)) in texts.into_iter().zip([(14.0, true, -9), (12.0, false, 10)]) {
                    let at = (x + SQUARE.0 / 2, y + SQUARE.1 / 2 + down);
                    write(text, at, style(size, bold, &INK_ON_SQUARES, HPos::Center))?;
                }
            }
        }
        for (place, round_trip) in round_trips.iter().enumerate() {
            let at = (left + place as i32 * SQUARE.0 + SQUARE.0 / 2, TOP + panel.1 + 12);
            write(format!("{round_trip} ms"), at, style(14.0, false, &GREY, HPos::Center))?;
        }
    }
    let legend =
        "In each square: what is faster, its time, and how many times as long the other takes. N ‰: repair symbols";
    write(legend.to_owned(), (24, height - 24), style(14.0, false, &GREY, HPos::Left))?;
    root.present()?;
    drop(root);
    svg::write(file, &drawn, title, subtitle)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(repeat: f64, coded: &[(u16, f64)]) -> Vec<Place> {
        let place =
            |repair_per_mille, p99_ms| Place { bursts: false, round_trip_ms: 1, loss: 0.1, repair_per_mille, p99_ms };
        [place(0, repeat)].into_iter().chain(coded.iter().map(|(repair, ms)| place(*repair, *ms))).collect()
    }

    #[test]
    fn the_fastest_is_said_and_by_how_much() {
        let verdict = |repeat, coded: &[(u16, f64)]| verdict(&places(repeat, coded)).map(|verdict| verdict.texts);
        let texts = |name: &str, text: &str| Some([name.to_owned(), text.to_owned()]);
        assert_eq!(verdict(300.0, &[(30, 200.0), (60, 100.0)]), texts("60 ‰", "100 ms, x 3.00"));
        assert_eq!(verdict(100.0, &[(30, 120.0)]), texts("repeat", "100 ms, x 1.20"));
        assert_eq!(verdict(100.0, &[(30, 100.5)]), texts("alike", "100 ms, x 1.00"));
        assert_eq!(verdict(300.0, &[(30, 101.0), (60, 100.0)]), texts("30 ‰", "101 ms, x 2.97"));
        assert_eq!(verdict(100.0, &[]), None);
    }
}
