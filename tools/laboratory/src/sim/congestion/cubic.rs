use uroce::congestion::{
    CongestionControl, Controller, CubicWindow, Flight, LongestFrame, OwnController, Progress, Rate,
};
use uroce::time::{Duration, Instant};

/// CUBIC, as TCP has it (RFC 9438), so that flows of this stack meet one on a simulated link.
///
/// It is of the laboratory alone: nobody should send RDMA by it over a network that loses packets by chance. It has the
/// RFC's slow start without HyStart++, and Linux's pacing (`tcp_pacing_ss_ratio`, `tcp_pacing_ca_ratio`).
#[derive(Debug)]
struct Cubic {
    window: CubicWindow,
    /// Packets from which on growth is cubic.
    threshold: f64,
    packet: LongestFrame,
    /// Whether its packets are TCP's segments, whatever frames carry them.
    is_of_tcp: bool,
    /// Losses of packets that were sent before this are of the loss that is known.
    recovers_until: Instant,
    round_trip: Duration,
}

/// CUBIC as a controller of flows.
pub const CUBIC: CongestionControl = CongestionControl::Own(OwnController {
    name: "cubic",
    reacts_to_marks: false,
    start: |_| Box::new(Cubic::default()),
});

/// The same with windows of TCP's segments, of which a frame of path MTU 4096 carries three.
pub const TCP_CUBIC: CongestionControl = CongestionControl::Own(OwnController {
    name: "tcp-cubic",
    reacts_to_marks: false,
    start: |_| Box::new(Cubic { is_of_tcp: true, ..Cubic::default() }),
});

/// The window before anything is known, in packets (RFC 6928).
const FIRST_WINDOW: f64 = 10.0;

/// Pacing over the window in a round trip, in slow start and after it.
const SLOW_START_PACING: f64 = 2.0;
const PACING: f64 = 1.2;

impl Default for Cubic {
    fn default() -> Cubic {
        Cubic {
            window: CubicWindow::new(FIRST_WINDOW),
            threshold: f64::INFINITY,
            packet: LongestFrame::default(),
            is_of_tcp: false,
            recovers_until: Instant::ZERO,
            round_trip: Duration::ZERO,
        }
    }
}

impl Cubic {
    fn packet_bytes(&self) -> f64 {
        if self.is_of_tcp { CubicWindow::SEGMENT } else { self.packet.bytes() }
    }

    fn lose(&mut self, left: f64) {
        self.threshold = (self.window.packets() * CubicWindow::BETA).max(CubicWindow::LEAST);
        self.window.lose(left);
    }

    fn grow(&mut self, packets: f64, now: Instant) {
        let window = self.window.packets();
        if window < self.threshold {
            self.window.set(window + packets);
        } else {
            self.window.grow(packets, self.round_trip, now);
        }
    }
}

impl Controller for Cubic {
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant) {
        self.round_trip = flight.smoothed().unwrap_or_default();
        if progress.forgotten_bytes > 0 {
            self.lose(1.0);
            self.recovers_until = now;
        } else if progress.lost_bytes > 0 && now >= self.recovers_until {
            self.lose(self.window.packets() * CubicWindow::BETA);
            self.recovers_until = now + self.round_trip;
        }
        // A flow that does not use its window does not need a larger one.
        let used = flight.in_flight_bytes() + progress.delivered_bytes;
        if used as f64 > 0.5 * self.window.packets() * self.packet_bytes() {
            self.grow(progress.delivered_bytes as f64 / self.packet_bytes(), now);
        }
    }

    fn sent(&mut self, bytes: u64, _now: Instant) -> bool {
        self.packet.take(bytes);
        true
    }

    fn notified(&mut self, _flight: &Flight, _now: Instant) {}

    fn rate(&self) -> Option<Rate> {
        let gain = if self.window.packets() < self.threshold { SLOW_START_PACING } else { PACING };
        let bits = gain * self.window.packets() * self.packet_bytes() * 8.0 / self.round_trip.as_secs_f64();
        (!self.round_trip.is_zero()).then(|| Rate::from_bits(bits as u64))
    }

    fn window_bytes(&self) -> u64 {
        (self.window.packets() * self.packet_bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use uroce::congestion::Sample;

    use super::*;

    const PACKET: u64 = 4000;
    const ROUND_TRIP: Duration = Duration::from_millis(20);

    /// The packets that arrive in a round trip, and what is lost in it.
    fn pass(cubic: &mut Cubic, flight: &mut Flight, now: Instant, lost: u64) {
        let sent_at = Instant::from_ns(now.as_ns() - ROUND_TRIP.as_nanos() as u64);
        let sample = Sample { sent_at, round_trip: ROUND_TRIP, delay: Duration::ZERO, path: 0, is_marked: false };
        let delivered_bytes = cubic.window.packets() as u64 * PACKET;
        let progress =
            Progress { delivered_bytes, lost_bytes: lost * PACKET, sample: Some(sample), ..Progress::default() };
        flight.take(&progress, delivered_bytes, now);
        cubic.take(&progress, flight, now);
    }

    /// Figure 1 of the RFC's function: W(t) = C (t − K)³ + W_max, flat at W_max, and steep after it.
    #[test]
    fn the_window_follows_the_cubic_function_after_a_loss() {
        let (mut cubic, mut flight) = (Cubic::default(), Flight::default());
        cubic.packet.take(PACKET);
        let at = |round: u64| Instant::from_ns((round + 1) * ROUND_TRIP.as_nanos() as u64);
        (0..9).for_each(|round| pass(&mut cubic, &mut flight, at(round), 0));
        assert_eq!(cubic.window.packets(), 5120.0, "slow start doubles it");
        pass(&mut cubic, &mut flight, at(9), 10);
        let (most, k) = (5120.0_f64, (5120.0_f64 * 0.3 / 0.4).cbrt());
        assert!((cubic.window.packets() / (most * 0.7) - 1.0).abs() < 0.01, "{}", cubic.window.packets());
        for round in 10..1500 {
            pass(&mut cubic, &mut flight, at(round), 0);
            let seconds = (round - 9) as f64 * 0.02 + 0.02;
            let expected = 0.4 * (seconds - k).powi(3) + most;
            let window = cubic.window.packets();
            assert!((window / expected - 1.0).abs() < 0.03, "{round}: {window} instead of {expected}");
        }
        assert!(cubic.window.packets() > 1.1 * most, "{}", cubic.window.packets());
    }

    #[test]
    fn a_loss_counts_once_in_a_round_trip_and_a_smaller_window_gives_way() {
        let (mut cubic, mut flight) = (Cubic::default(), Flight::default());
        cubic.packet.take(PACKET);
        let mut at = (1..).map(|round| Instant::from_ns(round * ROUND_TRIP.as_nanos() as u64));
        (0..8).for_each(|_| pass(&mut cubic, &mut flight, at.next().unwrap(), 0));
        let now = at.next().unwrap();
        cubic.take(&Progress { lost_bytes: PACKET, ..Progress::default() }, &flight, now);
        cubic.take(&Progress { lost_bytes: PACKET, ..Progress::default() }, &flight, now + ROUND_TRIP / 2);
        assert_eq!((cubic.window.packets(), cubic.threshold), (2560.0 * 0.7, 2560.0 * 0.7));
        cubic.take(&Progress { lost_bytes: PACKET, ..Progress::default() }, &flight, now + ROUND_TRIP * 2);
        assert_eq!((cubic.window.packets(), cubic.threshold), (2560.0 * 0.7 * 0.7, 2560.0 * 0.7 * 0.7));
        cubic.take(&Progress { forgotten_bytes: PACKET, ..Progress::default() }, &flight, now + ROUND_TRIP * 3);
        assert_eq!((cubic.window.packets(), cubic.threshold), (2.0, 2560.0 * 0.7 * 0.7 * 0.7));
    }
}
