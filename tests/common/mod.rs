//! What several tests share.

#![allow(dead_code)] // each test uses a part of it

pub mod hosts;
pub mod privileges;
