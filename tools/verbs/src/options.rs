//! What `uroce run` passes on in the environment.

use uroce::link::xdp::{AttachMode, XdpOptions};
use uroce::verbs::OpenOptions;

/// How devices are opened, by the `UROCE_*` variables.
pub(crate) fn from_environment() -> Result<OpenOptions, String> {
    let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match value("UROCE_LINK").as_deref() {
        None | Some("xdp") => {}
        Some(other) => return Err(format!("UROCE_LINK is {other}; xdp is known")),
    }
    let mode = match value("UROCE_XDP_MODE").as_deref() {
        None => None,
        Some("native") => Some(AttachMode::Native),
        Some("skb") => Some(AttachMode::Skb),
        Some(other) => return Err(format!("UROCE_XDP_MODE is {other}; native and skb are known")),
    };
    let faults = match value("UROCE_FAULT") {
        None => None,
        Some(list) => Some(list.parse().map_err(|error| format!("UROCE_FAULT: {error}"))?),
    };
    let path_mtu = match value("UROCE_MTU") {
        None => None,
        Some(text) => {
            let known = text.parse().ok().and_then(uroce::wire::PathMtu::from_bytes);
            Some(known.ok_or_else(|| format!("UROCE_MTU is {text}; a path MTU is 256, 512, 1024, 2048 or 4096"))?)
        }
    };
    Ok(OpenOptions {
        xdp: XdpOptions { mode, ..XdpOptions::default() },
        capture: value("UROCE_CAPTURE").map(Into::into),
        faults,
        path_mtu,
        ..OpenOptions::default()
    })
}
