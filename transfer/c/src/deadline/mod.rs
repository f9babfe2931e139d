//! `include/uroce_deadline.h`.

mod history;
mod receiver;
mod sender;
