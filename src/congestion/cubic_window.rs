use crate::time::{Duration, Instant};

/// The window of TCP's CUBIC in congestion avoidance, in packets (RFC 9438, sections 4.2 to 4.7).
#[derive(Clone, Copy, Debug)]
pub struct CubicWindow {
    window: f64,
    /// W_max: the window at the last loss, as remembered.
    most: f64,
    /// The window of the epoch's beginning, what Reno would have, and K, the seconds until W_max is reached again.
    began: f64,
    reno: f64,
    k: f64,
    began_at: Option<Instant>,
}

/// C, in packets a second³.
const C: f64 = 0.4;

/// α_cubic: as much as Reno gains with β_cubic.
const ALPHA: f64 = 3.0 * (1.0 - CubicWindow::BETA) / (1.0 + CubicWindow::BETA);

impl CubicWindow {
    /// β_cubic: what a loss leaves of the window.
    pub const BETA: f64 = 0.7;

    /// The least window after a loss, in packets.
    pub const LEAST: f64 = 2.0;

    /// Length of TCP's packets, in bytes: a frame of Ethernet with a segment.
    pub const SEGMENT: f64 = 1514.0;

    /// A window of so many packets that has lost nothing yet.
    pub fn new(window: f64) -> CubicWindow {
        CubicWindow { window, most: 0.0, began: window, reno: window, k: 0.0, began_at: None }
    }

    /// The window, at least two packets after a loss.
    pub fn packets(&self) -> f64 {
        self.window
    }

    /// Makes it another one, of which nothing is remembered but W_max.
    pub fn set(&mut self, packets: f64) {
        (self.window, self.began_at) = (packets, None);
    }

    /// Takes a loss that leaves so many packets. Less than at the last one means that another flow needs room (fast
    /// convergence).
    pub fn lose(&mut self, left: f64) {
        self.most = if self.window < self.most { self.window * (1.0 + CubicWindow::BETA) / 2.0 } else { self.window };
        self.set(left.max(CubicWindow::LEAST));
    }

    /// Takes so many packets that arrived by `now`, after a round trip of this length.
    pub fn grow(&mut self, packets: f64, round_trip: Duration, now: Instant) {
        let began_at = *self.began_at.get_or_insert_with(|| {
            (self.began, self.reno) = (self.window, self.window);
            self.k = ((self.most - self.window).max(0.0) / C).cbrt();
            now
        });
        let origin = self.most.max(self.began);
        let after = |seconds: f64| C * (seconds - self.k).powi(3) + origin;
        let elapsed = (now - began_at).as_secs_f64();
        let target = after(elapsed + round_trip.as_secs_f64()).clamp(self.window, 1.5 * self.window);
        let alpha = if self.reno < self.most { ALPHA } else { 1.0 };
        self.reno += alpha * packets / self.window;
        if after(elapsed) < self.reno {
            self.window = self.window.max(self.reno);
        } else {
            self.window += (target - self.window) / self.window * packets;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window of the RFC's figure 1: W(t) = C (t − K)³ + W_max, flat at W_max, and steep after it.
    #[test]
    fn it_is_flat_where_it_lost_something_and_steep_beyond() {
        let (mut window, round_trip) = (CubicWindow::new(1000.0), Duration::from_millis(100));
        window.lose(700.0);
        let k = (300.0_f64 / 0.4).cbrt();
        for round in 0..150_u64 {
            window.grow(window.packets(), round_trip, Instant::from_ns(round * 100_000_000));
            let expected = 0.4 * (0.1 * (round + 1) as f64 - k).powi(3) + 1000.0;
            assert!((window.packets() / expected - 1.0).abs() < 0.02, "{round}: {window:?}, not {expected}");
        }
    }

    #[test]
    fn it_grows_as_reno_where_that_is_faster() {
        let (mut window, round_trip) = (CubicWindow::new(20.0), Duration::from_millis(1));
        window.lose(14.0);
        (0..10).for_each(|round| window.grow(window.packets(), round_trip, Instant::from_ns(round * 1_000_000)));
        assert!((window.packets() - 14.0 - 10.0 * ALPHA).abs() < 0.1, "{window:?}");
    }

    #[test]
    fn a_smaller_window_than_at_the_last_loss_gives_way() {
        let mut window = CubicWindow::new(1000.0);
        window.lose(700.0);
        assert_eq!((window.packets(), window.most), (700.0, 1000.0));
        window.lose(490.0);
        assert_eq!((window.packets(), window.most), (490.0, 700.0 * 0.85));
        window.lose(1.0);
        assert_eq!(window.packets(), CubicWindow::LEAST);
    }
}
