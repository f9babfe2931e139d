//! What qperf prints.

/// The numbers that it printed, by test: `bw = 1.2 GB/sec`, `latency = 10 us`.
pub fn results(text: &str) -> Vec<(String, f64)> {
    let mut test = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(':') {
            test = name.to_owned();
        } else if let Some((_, value)) = line.split_once('=') {
            let number = value.split_whitespace().next().and_then(|word| word.parse().ok());
            found.push((test.clone(), number.unwrap_or_else(|| panic!("no number in {line:?}"))));
        }
    }
    found
}

/// What it says when a device wants GIDs, by test.
pub const REFUSALS: [(&str, &str); 3] = [
    ("rc_bw", "failed to modify QP to RTR: Invalid argument"),
    ("rc_lat", "failed to modify QP to RTR: Invalid argument"),
    ("ud_lat", "failed to create address handle: Invalid argument"),
];
