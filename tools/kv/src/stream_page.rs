//! The page of streams: the time by the length of a chunk, with the chosen one, and the table behind it.

use comfy_table::{Table, presets};

use crate::page::{STYLE, WIDTH, keys, scaled};
use crate::profile::LINE_BPS;
use crate::stream::{CHUNKS, OUTSTANDING, ROUNDS};
use crate::streamed::{Streamed, length};
use crate::svg::{Anchor, Svg, escaped};

/// Where a panel begins and ends, its height, and what is below it, in pixels.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 860.0;
const HEIGHT: f64 = 120.0;

/// The greatest time that has a place in a panel, over the longer of compute and transfer.
const CEILING: f64 = 2.0;

/// The classes of prompts.
const CLASSES: [&str; 2] = ["transfer", "path"];

/// Tables of what was played.
pub fn stream_tables(all: &[Streamed]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header([
        "round trip, loss",
        "prompt",
        "chunk",
        "compute / transfer",
        "total",
        "bound",
        "beyond",
        "Mb/s measured",
    ]);
    table.add_rows(all.iter().map(Streamed::row));
    table.to_string()
}

/// What a line of progress says of a cell.
pub fn stream_summary(streamed: &Streamed) -> String {
    streamed.row().join(", ")
}

/// The page.
pub fn stream_page(all: &[Streamed]) -> String {
    let line = LINE_BPS / 1_000_000;
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Caches that leave while they are computed</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style>\n\
         <h1>Caches that leave while they are computed</h1>\n\
         <p>Over uroce through an emulated network of {line} Mb/s, with {OUTSTANDING} chunks on their way at most. The time until all \
         is acknowledged, over the longer of compute and transfer (of one message, once all is computed), by the length of a chunk: the median of {ROUNDS} streams. The tall \
         mark is the length that was chosen, by what a warm-up measured. All bytes were compared.</p>\n{}",
        scaled()
    );
    let played: Vec<&Streamed> = all.iter().filter(|streamed| streamed.median().is_some()).collect();
    let mut prompts: Vec<String> = Vec::new();
    let mut paths = Vec::new();
    for streamed in &played {
        if !prompts.contains(&name(streamed)) {
            prompts.push(name(streamed));
        }
        if !paths.contains(&streamed.path) {
            paths.push(streamed.path);
        }
    }
    let words: Vec<(&str, &str)> = CLASSES.into_iter().zip(prompts.iter().map(String::as_str)).collect();
    text += &keys(&words);
    for path in paths {
        let mut svg = Svg::new(WIDTH);
        frame(&mut svg);
        for (prompt, class) in prompts.iter().zip(CLASSES) {
            let of = |streamed: &&&Streamed| streamed.path == path && name(streamed) == *prompt;
            curve(&mut svg, class, &played.iter().filter(of).copied().collect::<Vec<_>>());
        }
        text += &format!("<h3>{path}</h3>\n{}", svg.finish("time of a stream by the length of its chunks"));
    }
    text + &format!("<h2>Table</h2>\n<pre>{}</pre>\n</html>\n", escaped(&stream_tables(all)))
}

fn name(streamed: &Streamed) -> String {
    format!("{} × {}", streamed.prompt.model.name, streamed.prompt.tokens)
}

/// Where a length is, between the shortest and the longest.
fn x(bytes: f64) -> f64 {
    let (low, high) = ((CHUNKS[0] as f64).log2(), (CHUNKS[CHUNKS.len() - 1] as f64).log2());
    LEFT + (RIGHT - LEFT) * ((bytes.log2() - low) / (high - low)).clamp(0.0, 1.0)
}

fn y(over: f64) -> f64 {
    8.0 + HEIGHT * (CEILING - over.clamp(1.0, CEILING)) / (CEILING - 1.0)
}

fn frame(svg: &mut Svg) {
    for over in [1.0, 1.5, CEILING] {
        svg.line("grid", [LEFT, y(over), RIGHT, y(over)]);
        svg.text("small", Anchor::End, [LEFT - 8.0, y(over) + 4.0], &over.to_string());
    }
    for bytes in CHUNKS {
        svg.text("small", Anchor::Middle, [x(bytes as f64), y(1.0) + 16.0], &length(bytes));
    }
}

fn curve(svg: &mut Svg, class: &str, streams: &[&Streamed]) {
    let over = |streamed: &Streamed| {
        let longer = streamed.number("compute_ms")?.max(streamed.transfer_ms?);
        Some([x(streamed.number("chunk_bytes")?), y(streamed.number("total_ms")? / longer)])
    };
    let mut points: Vec<[f64; 2]> = streams.iter().filter_map(|streamed| over(streamed)).collect();
    points.sort_by(|one, other| one[0].total_cmp(&other[0]));
    for pair in points.windows(2) {
        svg.line(&format!("curve {class}"), [pair[0][0], pair[0][1], pair[1][0], pair[1][1]]);
    }
    for streamed in streams {
        let Some([at, top]) = over(streamed) else { continue };
        // A dot, and a tall mark for the chosen one.
        let (wide, high) = if streamed.chunk.is_none() { (5.0, 20.0) } else { (6.0, 6.0) };
        svg.bar(class, [at - wide / 2.0, top - high / 2.0, wide, high], &streamed.row().join(", "));
    }
}
