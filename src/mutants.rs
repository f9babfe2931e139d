//! Points at which the code can be made wrong on purpose, so that it shows whether anything notices: `cargo xtask mutants`.
//!
//! Each has a name that says the mistake, and is in use once. Without the feature `mutants` it is the constant `false`, and nothing
//! of it is left. With the feature one of them is on: the one that the environment variable `UROCE_MUTANT` names.

/// Whether this mistake is to be made. Chaos must find it, or the test `by` which it is found: what `cargo test` is told, and the name
/// of the test.
#[doc(hidden)]
#[cfg(not(feature = "mutants"))]
#[macro_export]
macro_rules! mutated {
    ($name:literal $(, by $test:literal)?) => {
        $crate::mutants::OFF
    };
}

/// Whether this mistake is to be made.
#[doc(hidden)]
#[cfg(feature = "mutants")]
#[macro_export]
macro_rules! mutated {
    ($name:literal $(, by $test:literal)?) => {{
        static POINT: $crate::mutants::Point = $crate::mutants::Point::new($name);
        POINT.is_on()
    }};
}

/// No mistake is made.
#[cfg(not(feature = "mutants"))]
pub const OFF: bool = false;

#[cfg(feature = "mutants")]
pub use on::{Point, reached};

#[cfg(feature = "mutants")]
mod on {
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::sync::{LazyLock, Mutex};

    /// The mistake that is made.
    static CHOSEN: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("UROCE_MUTANT").ok());

    /// The names of points that were come by.
    static REACHED: Mutex<Vec<&str>> = Mutex::new(Vec::new());

    const UNKNOWN: u8 = 0;
    const RIGHT: u8 = 1;
    const WRONG: u8 = 2;

    /// A place in the code where a mistake can be made.
    #[derive(Debug)]
    pub struct Point {
        name: &'static str,
        state: AtomicU8,
    }

    impl Point {
        /// A point.
        pub const fn new(name: &'static str) -> Point {
            Point { name, state: AtomicU8::new(UNKNOWN) }
        }

        /// Whether the mistake is made.
        pub fn is_on(&self) -> bool {
            match self.state.load(Ordering::Relaxed) {
                UNKNOWN => self.decide(),
                state => state == WRONG,
            }
        }

        #[cold]
        fn decide(&self) -> bool {
            let is_on = CHOSEN.as_deref() == Some(self.name);
            self.state.store(if is_on { WRONG } else { RIGHT }, Ordering::Relaxed);
            REACHED.lock().expect("nobody panics with it").push(self.name);
            is_on
        }
    }

    /// The names of all points that were come by so far, in their order.
    pub fn reached() -> Vec<&'static str> {
        let mut names = REACHED.lock().expect("nobody panics with it").clone();
        names.sort_unstable();
        names.dedup();
        names
    }
}
