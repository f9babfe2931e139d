/// What a queue pair is moved on by, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// PSNs, less than 2^24.
    pub packets: u32,
    /// Messages that took them: SENDs and WRITEs.
    pub messages: u32,
    /// Those among them that took a receive request.
    pub receives: u32,
}
