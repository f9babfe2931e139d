use crate::sim::random::Random;

/// Published distributions of the sizes of flows in data centres, as the simulations of HPCC use them: piecewise linear, from 0 on
/// (github.com/alibaba-edu/High-Precision-Congestion-Control, traffic_gen).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSizes {
    /// Web search: DCTCP, SIGCOMM 2010.
    WebSearch,
    /// Hadoop at Facebook: "Inside the Social Network's (Datacenter) Network", SIGCOMM 2015.
    FbHdp,
    /// Alibaba's distributed storage, 2019.
    AliStorage,
    /// Google's RPCs, 2008, at the powers of two.
    GoogleRpc,
}

/// Sizes in bytes, and the percentage of flows up to each.
type Points = &'static [(f64, f64)];

const WEB_SEARCH: Points = &[
    (10e3, 15.0),
    (20e3, 20.0),
    (30e3, 30.0),
    (50e3, 40.0),
    (80e3, 53.0),
    (200e3, 60.0),
    (1e6, 70.0),
    (2e6, 80.0),
    (5e6, 90.0),
    (10e6, 97.0),
    (30e6, 100.0),
];

const FB_HDP: Points = &[
    (100.0, 1.0),
    (200.0, 2.0),
    (300.0, 5.0),
    (350.0, 15.0),
    (400.0, 20.0),
    (500.0, 30.0),
    (600.0, 40.0),
    (700.0, 50.0),
    (1e3, 60.0),
    (2e3, 67.0),
    (7e3, 70.0),
    (30e3, 72.0),
    (50e3, 82.0),
    (80e3, 87.0),
    (120e3, 90.0),
    (300e3, 95.0),
    (1e6, 97.5),
    (2e6, 99.0),
    (10e6, 100.0),
];

const ALI_STORAGE: Points = &[
    (4e3, 22.93),
    (8e3, 69.21),
    (16e3, 80.61),
    (32e3, 90.47),
    (64e3, 93.53),
    (128e3, 96.77),
    (256e3, 97.53),
    (2e6, 100.0),
];

const GOOGLE_RPC: Points = &[
    (32.0, 9.73),
    (64.0, 15.53),
    (128.0, 35.16),
    (256.0, 49.79),
    (512.0, 78.49),
    (1024.0, 86.32),
    (2048.0, 90.89),
    (4096.0, 93.50),
    (8192.0, 96.43),
    (16_384.0, 98.47),
    (32_768.0, 99.04),
    (65_536.0, 99.33),
    (131_072.0, 99.71),
    (262_144.0, 99.85),
    (524_288.0, 99.95),
    (2_113_675.0, 99.99),
    (15_158_197.0, 100.0),
];

impl FlowSizes {
    /// All distributions.
    pub const ALL: [FlowSizes; 4] =
        [FlowSizes::WebSearch, FlowSizes::FbHdp, FlowSizes::AliStorage, FlowSizes::GoogleRpc];

    fn points(self) -> Points {
        match self {
            FlowSizes::WebSearch => WEB_SEARCH,
            FlowSizes::FbHdp => FB_HDP,
            FlowSizes::AliStorage => ALI_STORAGE,
            FlowSizes::GoogleRpc => GOOGLE_RPC,
        }
    }

    /// The lines between the points: the sizes at both ends, and the percentages.
    fn lines(self) -> impl Iterator<Item = [(f64, f64); 2]> {
        let points = self.points();
        std::iter::once((0.0, 0.0)).chain(points.iter().copied()).zip(points).map(|(from, to)| [from, *to])
    }

    /// The mean size, in bytes.
    pub fn mean_bytes(self) -> f64 {
        self.lines().map(|[(low, from), (high, to)]| (low + high) / 2.0 * (to - from) / 100.0).sum()
    }

    /// A size at random, in bytes; at least 1.
    pub fn draw(self, random: &mut Random) -> u64 {
        let percent = f64::from(random.u32()) / f64::from(u32::MAX) * 100.0;
        let line = self.lines().find(|[_, (_, to)]| percent <= *to);
        let size = line.map_or(0.0, |[(low, from), (high, to)]| low + (high - low) * (percent - from) / (to - from));
        (size as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_drawn_as_they_were_published() {
        for (sizes, bytes, percent) in [
            (FlowSizes::WebSearch, 1_000_000, 70.0),
            (FlowSizes::WebSearch, 55_000, 42.2),
            (FlowSizes::FbHdp, 700, 50.0),
            (FlowSizes::AliStorage, 8000, 69.2),
            (FlowSizes::GoogleRpc, 512, 78.5),
        ] {
            let mut random = Random::new(1, 2);
            let drawn: Vec<u64> = (0..100_000).map(|_| sizes.draw(&mut random)).collect();
            let below = drawn.iter().filter(|size| **size <= bytes).count() as f64 / 1000.0;
            assert!((below - percent).abs() < 0.6, "{sizes:?}: {below} % up to {bytes} bytes");
            let mean = drawn.iter().sum::<u64>() as f64 / 100_000.0;
            assert!((mean / sizes.mean_bytes() - 1.0).abs() < 0.05, "{sizes:?}: {mean} of {}", sizes.mean_bytes());
            assert!(drawn.iter().all(|size| *size > 0 && *size as f64 <= sizes.points().last().unwrap().0));
        }
    }
}
