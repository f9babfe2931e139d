//! What a tensor is worth by its deadline as a picture: a panel an element type, with a curve for the upper halves first and one
//! for whole elements.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use uroce_laboratory::sim::layers::{LayersCell, Quality};

use super::picture::{GREY, INK, style};
use super::svg;
use crate::Failure;

// All in pixels.
const LEFT: i32 = 64;
const TOP: i32 = 140;
const PANEL: (i32, i32) = (236, 180);
const BESIDE: i32 = 44;
const BOTTOM: i32 = 62;
const RIGHT: i32 = 28;

/// Apart in brightness, too: with the upper halves first, and with whole elements.
const CURVES: [(bool, &str, RGBColor); 2] =
    [(true, "upper halves first", RGBColor(8, 63, 112)), (false, "whole elements", RGBColor(217, 119, 6))];

/// Draws all cells into an SVG file.
///
/// # Errors
/// When there are none, or the file cannot be written.
pub(super) fn draw(file: &Path, cells: &[(LayersCell, Quality)]) -> Result<(), Failure> {
    let ms = |cell: &LayersCell| cell.deadline.as_millis() as i32;
    let deadlines = || cells.iter().map(|(cell, _)| ms(cell));
    let (Some(least), Some(most)) = (deadlines().min(), deadlines().max()) else {
        return Err("there is no tensor to draw".into());
    };
    let mut elements = Vec::new();
    for (cell, _) in cells {
        if !elements.contains(&cell.element) {
            elements.push(cell.element);
        }
    }
    // Three panels are as wide as the title.
    let width = LEFT + 3 * (PANEL.0 + BESIDE) - BESIDE + RIGHT;
    let height = TOP + PANEL.1 + BOTTOM;
    let mut drawn = String::new();
    let root = SVGBackend::with_string(&mut drawn, (width as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let write = |text: String, at: (i32, i32), style: TextStyle<'static>| root.draw(&Text::new(text, at, style));
    let title = "What a tensor of a KV cache is worth at its deadline";
    write(title.to_owned(), (24, 34), style(23.0, true, &INK, HPos::Left))?;
    let subtitle =
        "L2 norm of the error over that of the tensor; 300 Mb/s, 100 ms, 1 % lost, in virtual time: uroce sim layers";
    write(subtitle.to_owned(), (24, 60), style(14.0, false, &GREY, HPos::Left))?;
    for (number, (_, name, ink)) in CURVES.into_iter().enumerate() {
        let x = LEFT + number as i32 * 200;
        root.draw(&PathElement::new([(x, 86), (x + 18, 86)], ink.stroke_width(3)))?;
        write(name.to_owned(), (x + 24, 86), style(13.0, false, &INK, HPos::Left))?;
    }
    let y = |error: f64| TOP + ((1.0 - error.clamp(0.0, 1.0)) * f64::from(PANEL.1)) as i32;
    for (column, element) in elements.into_iter().enumerate() {
        let left = LEFT + column as i32 * (PANEL.0 + BESIDE);
        let x = |ms: i32| left + (ms - least) * PANEL.0 / (most - least).max(1);
        write(element.name().to_owned(), (left, TOP - 18), style(16.0, true, &INK, HPos::Left))?;
        for error in [0.0, 0.5, 1.0] {
            root.draw(&PathElement::new([(left, y(error)), (left + PANEL.0, y(error))], GREY.mix(0.35)))?;
            write(format!("{error}"), (left - 6, y(error)), style(13.0, false, &GREY, HPos::Right))?;
        }
        for at in [least, i32::midpoint(least, most), most] {
            write(format!("{at} ms"), (x(at), TOP + PANEL.1 + 14), style(13.0, false, &GREY, HPos::Center))?;
        }
        for (is_layered, _, ink) in CURVES {
            let curve = cells.iter().filter(|(cell, _)| (cell.element, cell.layered) == (element, is_layered));
            let points: Vec<(i32, i32)> = curve.map(|(cell, quality)| (x(ms(cell)), y(quality.relative_l2))).collect();
            root.draw(&PathElement::new(points, ink.stroke_width(3)))?;
        }
    }
    let axis = "deadline, from the request on".to_owned();
    write(axis, (width - RIGHT, height - 18), style(14.0, false, &GREY, HPos::Right))?;
    root.present()?;
    drop(root);
    let description = "For each type of element, the error by the deadline. With the upper halves first it falls to a twentieth or \
                       less when whole elements still lack half of the tensor; for bfloat16, whose upper byte says little, it does \
                       not.";
    Ok(svg::write(file, &drawn, title, description)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uroce_laboratory::sim::layers::Element;

    use super::*;

    #[test]
    fn every_element_has_two_curves() {
        let mut cells = Vec::new();
        for element in [Element::Float16, Element::Float32] {
            for (layered, deadline_ms) in [(true, 120), (true, 400), (false, 120), (false, 400)] {
                let cell = LayersCell { element, layered, deadline: Duration::from_millis(deadline_ms) };
                cells.push((cell, Quality { exact: 0.5, coarse: 0.5, relative_l2: 0.3, relative_max: 0.4 }));
            }
        }
        let file = std::env::temp_dir().join(format!("uroce-layers-picture-{}.svg", std::process::id()));
        draw(&file, &cells).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for words in ["float16", "float32", "120 ms", "260 ms", "400 ms", "upper halves first", "whole elements"] {
            assert!(text.contains(words), "no {words}");
        }
        // Each twice in panels and once in the key.
        for (_, _, RGBColor(red, green, blue)) in CURVES {
            let ink = format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\"");
            let lines = text.lines().filter(|line| line.starts_with("<polyline") && line.contains(&ink));
            assert_eq!(lines.count(), 3, "{ink}");
        }
        assert!(draw(&file, &[]).is_err());
    }
}
