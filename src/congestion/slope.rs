/// The line through points of a window, in bytes, and a queue, in seconds (least squares).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slope {
    count: u32,
    first: Option<(f64, f64)>,
    /// Sums of distances from the first point: of both, of their squares, and of their products.
    sums: (f64, f64),
    squares: (f64, f64),
    products: f64,
}

/// Points that a line needs.
const LEAST_POINTS: u32 = 6;

/// The share of the queue's variance that a line explains at least.
const EXPLAINED: f64 = 0.9;

impl Slope {
    pub fn take(&mut self, window: f64, queue: f64) {
        let (first_window, first_queue) = *self.first.get_or_insert((window, queue));
        let (x, y) = (window - first_window, queue - first_queue);
        self.count += 1;
        self.sums = (self.sums.0 + x, self.sums.1 + y);
        self.squares = (self.squares.0 + x * x, self.squares.1 + y * y);
        self.products += x * y;
    }

    /// The bytes by which the window grew while the queue grew by a second; `None` when the points are no line.
    pub fn bytes_per_second(&self) -> Option<f64> {
        let count = f64::from(self.count);
        let of_window = self.squares.0 - self.sums.0 * self.sums.0 / count;
        let of_queue = self.squares.1 - self.sums.1 * self.sums.1 / count;
        let of_both = self.products - self.sums.0 * self.sums.1 / count;
        let is_line = of_both > 0.0 && of_both * of_both >= EXPLAINED * of_window * of_queue;
        (self.count >= LEAST_POINTS && is_line).then(|| of_window / of_both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slope(points: impl IntoIterator<Item = (f64, f64)>) -> Option<f64> {
        let mut slope = Slope::default();
        points.into_iter().for_each(|(window, queue)| slope.take(window, queue));
        slope.bytes_per_second()
    }

    #[test]
    fn points_of_a_line_tell_its_slope_and_a_few_do_not() {
        let line = |count: u32| (0..count).map(|x| (1e6 + f64::from(x) * 2e3, 3e-4 + f64::from(x) * 1e-6));
        let found = slope(line(6)).expect("a line");
        assert!((found / 2e9 - 1.0).abs() < 1e-6, "{found}: 2 KB in a microsecond");
        assert_eq!(slope(line(5)), None);
    }

    #[test]
    fn noise_and_a_queue_that_shrinks_are_no_line() {
        let noise = [3.0, 9.0, 1.0, 8.0, 2.0, 7.0, 4.0, 9.0];
        assert_eq!(slope(noise.iter().enumerate().map(|(x, y)| (1e6 + x as f64 * 1e3, y * 1e-4))), None);
        assert_eq!(slope((0..10).map(|x| (1e6 + f64::from(x) * 1e3, 1e-3 - f64::from(x) * 1e-5))), None);
    }
}
