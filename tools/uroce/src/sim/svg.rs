//! What plotters leaves out of its pictures: a title and a description, for those who hear them, and colours for dark pages.

use std::fs;
use std::io;
use std::path::Path;

/// Text on squares of the scale, which stay as they are on dark pages: nearly the ink of all other text.
pub(super) const INK_ON_SQUARES: plotters::style::RGBColor = plotters::style::RGBColor(30, 41, 55);

/// The colours of a dark page in place of ours: paper, ink, grey, areas; and the one line that is as dark as the page.
const DARK: &str = "rect[fill=\"#FFFFFF\"]{fill:#0d1117}\
text[fill=\"#1F2937\"]{fill:#e6edf3}\
text[fill=\"#6B7280\"]{fill:#9aa4b2}\
rect[fill=\"#F3F4F6\"]{fill:#21262d}\
polyline[stroke=\"#6B7280\"]{stroke:#9aa4b2}\
polyline[stroke=\"#083F70\"]{stroke:#8fb8ff}";

/// Writes a picture with title and description.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(file: &Path, picture: &str, title: &str, description: &str) -> io::Result<()> {
    let end = picture.find('>').map_or(0, |at| at + 1);
    let (start, rest) = picture.split_at(end);
    let start = start.replacen("<svg", "<svg role=\"img\" aria-labelledby=\"title description\"", 1);
    let style = format!("@media (prefers-color-scheme: dark){{{DARK}}}");
    let head = format!(
        "{start}\n<title id=\"title\">{title}</title>\n<desc id=\"description\">{description}</desc>\n<style>{style}</style>"
    );
    fs::write(file, head + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_title_and_dark_colours_before_all_that_is_drawn() {
        let file = std::env::temp_dir().join(format!("uroce-svg-{}.svg", std::process::id()));
        write(&file, "<svg width=\"1\">\n<rect/>\n</svg>\n", "What", "Which").unwrap();
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let order = ["<svg role", "<title id=\"title\">What<", "Which</desc>", "prefers-color-scheme: dark", "<rect/>"];
        let places: Vec<_> = order.iter().map(|words| text.find(words).unwrap()).collect();
        assert!(places.is_sorted() && text.ends_with("</svg>\n"), "{text}");
    }
}
