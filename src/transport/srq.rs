/// The number of a shared receive queue, unique in its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Srq(pub u32);
