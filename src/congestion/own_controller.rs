use super::{Controller, Rate};

/// A controller that is not of this crate.
#[derive(Clone, Copy)]
pub struct OwnController {
    /// Its name.
    pub name: &'static str,
    /// Whether it reacts when switches mark packets: without, they are not to be marked.
    pub reacts_to_marks: bool,
    /// Makes a controller without history, on a link of this rate.
    pub start: fn(Rate) -> Box<dyn Controller>,
}

impl std::fmt::Debug for OwnController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for OwnController {
    fn eq(&self, other: &OwnController) -> bool {
        self.name == other.name && std::ptr::fn_addr_eq(self.start, other.start)
    }
}

impl Eq for OwnController {}
