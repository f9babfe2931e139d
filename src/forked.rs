/// What is called belongs to the parent of this process: it was opened before fork(2), and works there only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was opened before fork(2), by this process's parent: open it again")]
pub struct Forked;
