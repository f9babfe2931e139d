/// The confidence of a result: a count above the bound has a probability of one in ten thousand.
const CONFIDENCE: f64 = 0.9999;

/// The largest plausible count when `expected` are expected: a Poisson variable of that mean exceeds it with a
/// probability of at most 0.01 %. Zero when none is expected.
pub(super) fn bound(expected: f64) -> u64 {
    if expected <= 0.0 {
        return 0;
    }
    let (mut log_term, mut sum, mut count) = (-expected, (-expected).exp(), 0_u64);
    while sum < CONFIDENCE {
        count += 1;
        log_term += expected.ln() - (count as f64).ln();
        sum += log_term.exp();
        if count as f64 > expected && log_term < -40.0 {
            // The terms are too small to change the sum, which rounding keeps below one.
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are from tables of the Poisson distribution.
    #[test]
    fn bounds_are_those_of_the_distribution() {
        assert_eq!(bound(0.0), 0);
        assert_eq!(bound(1e-5), 0, "one event would be a surprise of one in a hundred thousand");
        assert_eq!(bound(2e-4), 1);
        // P(X ≤ 5 | 1) = 0.999406, P(X ≤ 6 | 1) = 0.999917.
        assert_eq!(bound(1.0), 6);
        // P(X ≤ 22 | 10) = 0.999704, P(X ≤ 23 | 10) = 0.999880, P(X ≤ 24 | 10) = 0.999953.
        assert_eq!(bound(10.0), 24);
        // It is near the normal distribution, whose 99.99 % quantile is 3.72 standard deviations.
        let many = bound(10_000.0) as f64;
        assert!((many - 10_372.0).abs() < 10.0, "{many}");
    }
}
