//! How latencies are distributed, as lines of text, as JSON and as a picture.

use std::fmt;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use serde_json::{Value, json};

use crate::Failure;
use crate::sim::picture::{GREY, INK, style};

/// Counts of latencies, in bins each of which is as many times as wide as the one before: latencies spread over decades.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Where bins begin, in microseconds, and where the last one ends.
    edges: Vec<f64>,
    counts: Vec<u64>,
    /// The shares that are marked, and their latencies.
    marks: Vec<(&'static str, f64)>,
}

/// Bins of a histogram: lines on a terminal.
const BINS: usize = 24;

/// The characters of the longest bar.
const BAR: usize = 40;

/// The colour of the bars: readable on white and on black.
const FILL: RGBColor = RGBColor(47, 129, 190);

// All in pixels.
const SIZE: (i32, i32) = (960, 440);
const LEFT: i32 = 72;
const RIGHT: i32 = 32;
const TOP: i32 = 136;
const BOTTOM: i32 = 64;
/// The width of a letter of the marks, about.
const LETTER: i32 = 6;

/// What a browser with a dark page makes of the colours: rules that go before the attributes of shapes.
const DARK: &str = "@media (prefers-color-scheme: dark) { rect[fill=\"#FFFFFF\"] { fill: #14171c } \
                    text { fill: #d7dce2 } line, polyline { stroke: #8a939e } }";

impl Distribution {
    /// Of latencies in microseconds; `None` without any.
    pub fn of(samples: &[f64]) -> Option<Distribution> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        // Half a per mille wide at least: single values have a bin, too.
        let least = first.max(1e-3);
        let ratio = (last.max(least * 1.0005) / least).powf(1.0 / BINS as f64);
        let edges: Vec<f64> = (0..=BINS).map(|bin| least * ratio.powi(bin as i32)).collect();
        let mut counts = vec![0; BINS];
        for sample in &sorted {
            let bin = edges.partition_point(|edge| edge <= sample).saturating_sub(1);
            counts[bin.min(BINS - 1)] += 1;
        }
        let at = |share: f64| sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1];
        let marks = vec![("median", at(0.5)), ("99 %", at(0.99)), ("99.9 %", at(0.999))];
        Some(Distribution { edges, counts, marks })
    }

    /// Its bins, from the shortest latencies on.
    pub fn json(&self) -> Value {
        let bins = self.counts.iter().zip(self.edges.windows(2));
        bins.map(|(count, edges)| json!({"from_usec": edges[0], "to_usec": edges[1], "messages": count})).collect()
    }

    /// Draws it into an SVG file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn draw(&self, file: &Path, title: &str) -> Result<(), Failure> {
        let mut text = String::new();
        self.draw_shapes(&mut text, title)?;
        // plotters writes neither; readers of screens and of dark pages have them.
        let marks: Vec<String> = self.marks.iter().map(|(name, at)| format!("{name} {} µs", digits(*at))).collect();
        let messages: u64 = self.counts.iter().sum();
        let about = format!("<title>{title}</title><desc>{messages} messages: {}</desc>", marks.join(", "));
        let head = text.find('>').map_or(0, |at| at + 1);
        text.insert_str(head, &format!("\n{about}<style>{DARK}</style>"));
        std::fs::write(file, text)?;
        Ok(())
    }

    fn draw_shapes(&self, text: &mut String, title: &str) -> Result<(), Failure> {
        let root = SVGBackend::with_string(text, (SIZE.0 as u32, SIZE.1 as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let write = |text: String, at: (i32, i32), style: TextStyle<'static>| root.draw(&Text::new(text, at, style));
        write(title.to_owned(), (24, 34), style(23.0, true, &INK, HPos::Left))?;
        let messages: u64 = self.counts.iter().sum();
        write(
            format!("{messages} messages; lengths of bars are shares of them"),
            (24, 60),
            style(14.0, false, &GREY, HPos::Left),
        )?;

        let (bottom, right) = (SIZE.1 - BOTTOM, SIZE.0 - RIGHT);
        let (first, last) = (self.edges[0].ln(), self.edges[BINS].ln());
        let x = |at: f64| LEFT + ((at.ln() - first) / (last - first) * f64::from(right - LEFT)).round() as i32;
        let most = self.counts.iter().max().copied().unwrap_or(1).max(1);
        let y = |count: f64| bottom - (count / most as f64 * f64::from(bottom - TOP)).round() as i32;
        for part in [0.5, 1.0] {
            let (at, share) = (y(most as f64 * part), 100.0 * most as f64 * part / messages.max(1) as f64);
            root.draw(&PathElement::new([(LEFT, at), (right, at)], GREY.mix(0.35)))?;
            write(format!("{share:.1} %"), (LEFT - 8, at), style(12.0, false, &GREY, HPos::Right))?;
        }
        for (count, edges) in self.counts.iter().zip(self.edges.windows(2)).filter(|(count, _)| **count > 0) {
            // One message in a million is seen, too.
            let top = y(*count as f64).min(bottom - 1);
            root.draw(&Rectangle::new([(x(edges[0]) + 1, top), (x(edges[1]) - 1, bottom)], FILL.filled()))?;
        }
        root.draw(&PathElement::new([(LEFT, bottom), (right, bottom)], GREY))?;
        for at in round_numbers(self.edges[0], self.edges[BINS]) {
            root.draw(&PathElement::new([(x(at), bottom), (x(at), bottom + 5)], GREY))?;
            write(number(at), (x(at), bottom + 16), style(12.0, false, &GREY, HPos::Center))?;
        }
        write("µs, logarithmic".to_owned(), (right, SIZE.1 - 16), style(12.0, false, &GREY, HPos::Right))?;
        // Each on a line of its own: they may be close together.
        let rows: Vec<i32> = (0..self.marks.len() as i32).map(|row| TOP - 58 + row * 15).collect();
        for ((_, at), top) in self.marks.iter().zip(&rows) {
            root.draw(&PathElement::new([(x(*at), *top), (x(*at), bottom)], INK.mix(0.6)))?;
        }
        for ((name, at), top) in self.marks.iter().zip(&rows) {
            let label = format!("{name} {} µs", digits(*at));
            let width = label.chars().count() as i32 * LETTER;
            let is_left = x(*at) + width + 8 > right;
            let (place, side, from) = match is_left {
                true => (x(*at) - 5, HPos::Right, x(*at) - 5 - width),
                false => (x(*at) + 5, HPos::Left, x(*at) + 5),
            };
            // In front of the line of another mark.
            root.draw(&Rectangle::new([(from, top - 2), (from + width, top + 12)], WHITE.filled()))?;
            write(label, (place, top + 5), style(12.0, false, &INK, side))?;
        }
        root.present()?;
        Ok(())
    }
}

impl fmt::Display for Distribution {
    /// A line for each bin: from where to where, how many, which share came until there, and a bar.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (most, messages) = (self.counts.iter().max().copied().unwrap_or(1).max(1), self.counts.iter().sum::<u64>());
        writeln!(f, " {:>12} {:>12} {:>10} {:>9}", "from[usec]", "to[usec]", "#messages", "until")?;
        let mut until = 0;
        for (count, edges) in self.counts.iter().zip(self.edges.windows(2)) {
            until += count;
            let bar = (*count as usize * BAR).div_ceil(most as usize);
            let percent = 100.0 * until as f64 / messages.max(1) as f64;
            let line =
                format!(" {:>12.2} {:>12.2} {count:>10} {percent:>7.2} %  {}", edges[0], edges[1], "#".repeat(bar));
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// 1, 2 and 5 of each decade from one number to another; where that is less than three, all that there is of a tenth of it.
fn round_numbers(from: f64, to: f64) -> Vec<f64> {
    let decades = from.log10().floor() as i32..=to.log10().ceil() as i32;
    let of = |steps: &[f64]| -> Vec<f64> {
        let all = decades.clone().flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)));
        all.filter(|at| (from..=to).contains(at)).collect()
    };
    let few = of(&[1.0, 2.0, 5.0]);
    if few.len() >= 3 {
        return few;
    }
    let tenths: Vec<f64> = (10..100).map(|tenth| f64::from(tenth) / 10.0).collect();
    let many = of(&tenths);
    let stride = many.len().div_ceil(12).max(1);
    many.into_iter().step_by(stride).collect()
}

/// A number of the axis.
fn number(at: f64) -> String {
    ((at * 1e4).round() / 1e4).to_string()
}

/// A latency to three digits or so.
fn digits(at: f64) -> String {
    match at {
        ..10.0 => format!("{at:.2}"),
        10.0..100.0 => format!("{at:.1}"),
        _ => format!("{at:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_is_in_one_bin() {
        let samples: Vec<f64> = (1..=1000).map(f64::from).collect();
        let found = Distribution::of(&samples).unwrap();
        assert_eq!(found.counts.iter().sum::<u64>(), 1000);
        assert!(found.edges.is_sorted() && found.edges[0] == 1.0 && found.edges[BINS] > 999.9);
        assert_eq!(found.marks, [("median", 500.0), ("99 %", 990.0), ("99.9 %", 999.0)]);
        let text = found.to_string();
        assert_eq!(text.lines().count(), BINS + 1);
        let last = text.lines().last().unwrap();
        assert!(last.contains("100.00 %") && last.ends_with(&"#".repeat(BAR)), "{text}");
        assert_eq!(found.json().as_array().map(Vec::len), Some(BINS));
        assert_eq!(Distribution::of(&[]), None);
        for few in [&[0.0][..], &[5.0], &[5.0, 5.0, 5.0]] {
            assert_eq!(Distribution::of(few).unwrap().counts.iter().sum::<u64>(), few.len() as u64);
        }
    }

    #[test]
    fn the_axis_has_round_numbers() {
        assert_eq!(round_numbers(1.0, 10.0), [1.0, 2.0, 5.0, 10.0]);
        let narrow = round_numbers(31.0, 36.0);
        assert!((3..=12).contains(&narrow.len()) && narrow.iter().all(|at| (31.0..=36.0).contains(at)), "{narrow:?}");
    }

    #[test]
    fn the_picture_has_a_title_and_its_marks() {
        let file = std::env::temp_dir().join(format!("uroce-distribution-{}.svg", std::process::id()));
        let samples: Vec<f64> = (1..=1000).map(|at| 30.0 + f64::from(at % 37)).collect();
        Distribution::of(&samples).unwrap().draw(&file, "Latency of send-lat, 2 bytes").unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for words in ["<title>Latency of send-lat, 2 bytes</title>", "<desc>1000 messages: median 48.0", "99.9 %"] {
            assert!(text.contains(words), "no {words}: {text}");
        }
    }
}
