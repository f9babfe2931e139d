//! `include/uroce_deadline.h`.

mod receiver;
mod sender;
