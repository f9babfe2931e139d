//! What several tests share.

#![allow(dead_code)] // each test uses a part of it

pub mod crafted;
pub mod hosts;
pub mod many;
pub mod pair;
pub mod privileges;

/// Has each of these functions, which take a [`RecoveryMode`](uroce::transport::RecoveryMode), be two tests: with what is shipped, and
/// with go-back-N.
#[allow(unused_macros)]
macro_rules! in_both_modes {
    ($($test:ident)*) => {
        mod by_default {
            $(#[test] fn $test() { super::$test(uroce::transport::RecoveryMode::default()); })*
        }
        mod go_back_n {
            $(#[test] fn $test() { super::$test(uroce::transport::RecoveryMode::GoBackN); })*
        }
    };
}
