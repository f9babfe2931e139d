//! The loads that a site serves in time as a picture: a square a transport and model, the darker the more of the ideal.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use serde_json::Value;
use uroce_laboratory::inference::MODELS;
use uroce_laboratory::sim::kv::KvTransport;

use super::picture::{GREY, INK, NOTHING, colour, style};
use super::svg::{self, INK_ON_SQUARES};
use crate::Failure;

/// What a transport comes to with a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Square {
    rtt_ms: u64,
    loss: f64,
    bps: u64,
    transport: String,
    model: String,
    /// Prompts a second, and those of an ideal transport.
    per_s: f64,
    ideal_per_s: f64,
}

// All in pixels.
const SQUARE: (i32, i32) = (84, 26);
const LEFT: i32 = 262;
const TOP: i32 = 126;
const RIGHT: i32 = 28;
const BOTTOM: i32 = 40;
/// Between panels, side by side and one below the other.
const GAP: (i32, i32) = (36, 22);

impl Square {
    /// Of a line of `uroce sim kv --json`, if it is of a load of prompts of so many tokens whose layers leave at once.
    pub(super) fn of(line: &Value, tokens: usize) -> Option<Square> {
        let is_drawn = line["row"] == "load" && line["prompt_tokens"] == tokens && line["send"] == "layers";
        if !is_drawn {
            return None;
        }
        Some(Square {
            rtt_ms: line["rtt_ms"].as_u64()?,
            loss: line["loss"].as_f64()?,
            bps: line["line_bps"].as_u64()?,
            transport: line["transport"].as_str()?.to_owned(),
            model: line["model"].as_str()?.to_owned(),
            per_s: line["lambda_max"].as_f64()?,
            ideal_per_s: line["ideal_lambda_max"].as_f64()?,
        })
    }

    /// What is reached of the ideal.
    fn share(&self) -> f64 {
        self.per_s / self.ideal_per_s.max(f64::MIN_POSITIVE)
    }

    fn text(&self) -> String {
        match self.per_s {
            0.0 => "0".to_owned(),
            few if few < 0.01 => "< 0.01".to_owned(),
            few if few < 1.0 => format!("{few:.2}"),
            many => format!("{many:.1}"),
        }
    }
}

/// Each once, in the order in which they come.
fn once<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    all.for_each(|one| {
        if !found.contains(&one) {
            found.push(one);
        }
    });
    found
}

/// Draws all squares into an SVG file.
///
/// # Errors
/// When there are none, or the file cannot be written.
pub(super) fn draw(file: &Path, squares: &[Square]) -> Result<(), Failure> {
    if squares.is_empty() {
        return Err("there is no load of prompts of 32,768 tokens to draw: --only leaves none".into());
    }
    let (paths, lines) = (once(squares.iter().map(|s| (s.rtt_ms, s.loss))), once(squares.iter().map(|s| s.bps)));
    let models = MODELS.map(|model| model.name);
    let transports = KvTransport::ALL.map(KvTransport::name);
    let panel = (SQUARE.0 * models.len() as i32, SQUARE.1 * transports.len() as i32);
    let (width, height) = (
        LEFT + lines.len() as i32 * (panel.0 + GAP.0) - GAP.0 + RIGHT,
        TOP + paths.len() as i32 * (panel.1 + GAP.1) - GAP.1 + BOTTOM,
    );
    let mut drawn = String::new();
    let root = SVGBackend::with_string(&mut drawn, (width as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let write = |text: String, at: (i32, i32), style: TextStyle<'static>| root.draw(&Text::new(text, at, style));
    let title = "Prompts a second that a prefill site serves in time";
    write(title.to_owned(), (24, 34), style(23.0, true, &INK, HPos::Left))?;
    let subtitle = "32,768 tokens, layers leave when they are computed; 90 of 100 first tokens within twice the unloaded time. \
                    Dark: as many as over an ideal transport.";
    write(subtitle.to_owned(), (24, 60), style(14.0, false, &GREY, HPos::Left))?;
    for (column, bps) in lines.iter().enumerate() {
        let left = LEFT + column as i32 * (panel.0 + GAP.0);
        let name = format!("{} Gb/s", *bps as f64 / 1e9);
        write(name, (left + panel.0 / 2, TOP - 38), style(16.0, true, &INK, HPos::Center))?;
        for (place, model) in models.iter().enumerate() {
            // The family is enough.
            let short = model.split('-').next().unwrap_or(model).to_owned()
                + model.rsplit_once('-').map_or("", |(_, size)| size);
            let at = (left + place as i32 * SQUARE.0 + SQUARE.0 / 2, TOP - 14);
            write(short, at, style(13.0, false, &GREY, HPos::Center))?;
        }
        for (row, (path, transport)) in paths.iter().flat_map(|path| transports.map(|name| (path, name))).enumerate() {
            let top = TOP + row as i32 * SQUARE.1 + (row / transports.len()) as i32 * GAP.1;
            if column == 0 {
                write(transport.to_owned(), (LEFT - 10, top + SQUARE.1 / 2), style(14.0, false, &INK, HPos::Right))?;
            }
            if column == 0 && row % transports.len() == 0 {
                let loss = format!("{} % lost", super::in_percent(path.1));
                write(format!("{} ms", path.0), (24, top + 14), style(16.0, true, &INK, HPos::Left))?;
                write(loss, (24, top + 36), style(14.0, false, &GREY, HPos::Left))?;
            }
            for (place, model) in models.iter().enumerate() {
                let found = squares.iter().find(|s| {
                    ((s.rtt_ms, s.loss), s.bps, s.transport.as_str(), s.model.as_str())
                        == (*path, *bps, transport, *model)
                });
                let x = left + place as i32 * SQUARE.0;
                let area = [(x + 1, top + 1), (x + SQUARE.0 - 1, top + SQUARE.1 - 1)];
                let fill = found.map_or(NOTHING, |square| colour(square.share()));
                root.draw(&Rectangle::new(area, fill.filled()))?;
                if let Some(square) = found {
                    let ink = if square.share() > 0.55 { WHITE } else { INK_ON_SQUARES };
                    let at = (x + SQUARE.0 / 2, top + SQUARE.1 / 2);
                    write(square.text(), at, style(14.0, false, &ink, HPos::Center))?;
                }
            }
        }
    }
    let source = "In virtual time: uroce sim kv. Compute by equations of an H100's data sheet.".to_owned();
    write(source, (24, height - 16), style(13.0, false, &GREY, HPos::Left))?;
    root.present()?;
    drop(root);
    let description = "A square for each round trip, line, transport and model. It says how many prompts a second are served in \
                       time, and is the darker the more of those they are that an ideal transport serves.";
    Ok(svg::write(file, &drawn, title, description)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_loads_of_the_named_prompts_are_squares() {
        let mut line = json!({"row": "load", "prompt_tokens": 32768, "send": "layers", "rtt_ms": 30, "loss": 0.001,
                              "line_bps": 10_000_000_000_u64, "transport": "uroce", "model": MODELS[2].name,
                              "lambda_max": 0.375, "ideal_lambda_max": 0.75});
        let square = Square::of(&line, 32768).unwrap();
        assert_eq!((square.share(), square.text()), (0.5, "0.38".to_owned()));
        assert_eq!(Square::of(&line, 1024), None);
        let file = std::env::temp_dir().join(format!("uroce-kv-picture-{}.svg", std::process::id()));
        draw(&file, &[square]).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for words in ["0.38", "30 ms", "0.1 % lost", "10 Gb/s", "uroce-go-back-n", "Kimi48B"] {
            assert!(text.contains(words), "no {words}");
        }
        line["row"] = "link".into();
        assert!(Square::of(&line, 32768).is_none() && draw(&file, &[]).is_err());
    }
}
