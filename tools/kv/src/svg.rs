use std::fmt::Write;

/// A picture that grows downwards. Colours are classes of the page's style, so that it is light or dark with it.
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Where a text's place is of it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // named as SVG does
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// An empty one.
    pub fn new(width: f64) -> Svg {
        Svg { width, height: 0.0, body: String::new() }
    }

    /// Makes it as high as `bottom` at the least.
    pub fn grow(&mut self, bottom: f64) {
        self.height = self.height.max(bottom);
    }

    /// A filled box, `[x, y, width, height]`, with a text that shows when it is pointed at.
    pub fn bar(&mut self, class: &str, [x, y, width, height]: [f64; 4], title: &str) {
        let title = escaped(title);
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{title}</title></rect>",
            width.max(0.0)
        );
        self.grow(y + height);
    }

    /// A line between two points.
    pub fn line(&mut self, class: &str, [x1, y1, x2, y2]: [f64; 4]) {
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
        self.grow(y1.max(y2));
    }

    /// A text, whose baseline is at `y`.
    pub fn text(&mut self, class: &str, anchor: Anchor, [x, y]: [f64; 2], text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
        self.grow(y + 4.0);
    }

    /// A scale from 0 to `most` below `y`, with lines up to `top`; `place` tells where a value is.
    pub fn scale(&mut self, most: f64, unit: &str, [top, y]: [f64; 2], place: impl Fn(f64) -> f64) {
        let step = step(most);
        let count = (most / step + 1e-9) as usize;
        for number in 0..=count {
            let (value, x) = (number as f64 * step, place(number as f64 * step));
            self.line("grid", [x, top, x, y]);
            self.text("small", Anchor::Middle, [x, y + 14.0], &format!("{value}{unit}"));
        }
    }

    /// The element.
    pub fn finish(self, title: &str) -> String {
        let Svg { width, height, body } = self;
        let (height, title) = (height + 4.0, escaped(title));
        format!("<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\">\n{body}</svg>\n")
    }
}

/// A round step of which some four make `most`.
fn step(most: f64) -> f64 {
    let rough = (most / 4.0).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough).unwrap_or(rough)
}

/// Text between tags and in attributes.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_some_four() {
        assert_eq!([step(100.0), step(1000.0), step(7.0), step(0.9)], [50.0, 500.0, 2.0, 0.5]);
    }

    #[test]
    fn it_is_as_high_as_what_is_in_it() {
        let mut svg = Svg::new(100.0);
        svg.bar("a", [0.0, 10.0, -5.0, 20.0], "a \"<b>\"");
        let text = svg.finish("t");
        assert!(text.starts_with("<svg viewBox=\"0 0 100 34\"") && text.contains("width=\"0.0\""), "{text}");
        assert!(text.contains("a &quot;&lt;b&gt;&quot;"), "{text}");
    }
}
