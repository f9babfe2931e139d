//! What is worth a line to somebody who looks for a fault: events of the crate `tracing`, with the feature `tracing` only.
//!
//! They are about what happens seldom: a state that changes, a refusal, a retry, a path. No packet that is as it should be has any.

/// Tells it at that level (`debug`, say), with these values, each as people read it. Without the feature nothing is evaluated.
#[cfg(feature = "tracing")]
macro_rules! traced {
    ($level:ident, $what:literal, $($name:ident = $value:expr),+) => {
        tracing::$level!($($name = %$value,)+ $what)
    };
}

/// Tells nothing.
#[cfg(not(feature = "tracing"))]
macro_rules! traced {
    ($level:ident, $what:literal, $($name:ident = $value:expr),+) => {
        if false {
            $(let _ = &$value;)+
        }
    };
}
