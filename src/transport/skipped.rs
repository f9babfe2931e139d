/// By how much a queue pair is moved on, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// The number of PSNs, less than 2^24.
    pub packets: u32,
    /// The number of messages, SENDs and WRITEs, that took them.
    pub messages: u32,
    /// The number of these messages that consumed a receive request.
    pub receives: u32,
}
