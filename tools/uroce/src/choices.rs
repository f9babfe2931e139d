//! What programs with queue pairs of their own let their users choose, and the checks against the device.

use uroce::verbs::{Context, PathMtu, QKey};

use crate::Failure;

/// The queue key of ibv_ud_pingpong and perftest.
pub const Q_KEY: QKey = QKey(0x1111_1111);

/// A path MTU, from a command line.
pub fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let bytes = text.parse().map_err(|_| format!("{text:?} is not a number of bytes"))?;
    PathMtu::from_bytes(bytes).ok_or_else(|| format!("{bytes} is not a path MTU: use 256, 512, 1024, 2048 or 4096"))
}

/// Refuses a path MTU that the device cannot carry.
pub fn check_mtu(context: &Context, wanted: PathMtu) -> Result<(), Failure> {
    let (device, active) = (&context.device().name, context.active_mtu());
    if wanted <= active {
        return Ok(());
    }
    let (active, wanted) = (active.bytes(), wanted.bytes());
    Err(format!(
        "{device} has an active MTU of {active}, less than -m {wanted}: use -m {active}, or raise its MTU with \
         `ip link set {device} mtu {}`",
        wanted + 80
    )
    .into())
}

/// The index of the GID to use: the one given with `flag`, else the device's default.
pub fn choose_gid(context: &Context, flag: &str, given: Option<usize>) -> Result<usize, Failure> {
    let gids = context.gids();
    match given {
        Some(index) if index < gids.len() => Ok(index),
        Some(index) => {
            let (device, count) = (&context.device().name, gids.len());
            Err(format!("{flag} {index}: {device} has {count} GIDs, see `uroce devices`").into())
        }
        None => Ok(context.device().default_gid_index()),
    }
}
