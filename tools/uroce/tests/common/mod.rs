//! What several tests share.

#![allow(dead_code, reason = "every test uses some of it")]

pub mod captures;
pub mod compiled;
pub mod programs;
