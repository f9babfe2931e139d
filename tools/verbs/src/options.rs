//! What `uroce run` passes on in the environment.

use std::sync::OnceLock;

use uroce::link::xdp::{AttachMode, XdpOptions};
use uroce::path::PathPolicy;
use uroce::transport::RecoverySettings;
use uroce::verbs::{LinkKind, OpenOptions};

/// Whether devices shall have LIDs too (`UROCE_LIDS`).
pub(crate) fn has_lids() -> bool {
    static LIDS: OnceLock<bool> = OnceLock::new();
    *LIDS.get_or_init(|| std::env::var_os("UROCE_LIDS").is_some_and(|value| value != "0" && !value.is_empty()))
}

/// The interfaces of the only device that programs shall see (`UROCE_DEV`); none: all usable ones are devices.
pub(crate) fn interfaces() -> Vec<String> {
    let names = std::env::var("UROCE_DEV").unwrap_or_default();
    names.split(',').filter(|_| !names.is_empty()).map(str::to_owned).collect()
}

/// How devices are opened, by the `UROCE_*` variables.
pub(crate) fn from_environment() -> Result<OpenOptions, String> {
    let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let link = match value("UROCE_LINK").as_deref() {
        None => LinkKind::Auto,
        Some("xdp") => LinkKind::Xdp,
        Some("udp") => LinkKind::Udp,
        Some(other) => return Err(format!("UROCE_LINK is {other}; xdp and udp are known")),
    };
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
    let recovery = match value("UROCE_RECOVERY") {
        None => None,
        Some(name) => Some(name.parse().map_err(|error| format!("UROCE_RECOVERY: {error}"))?),
    };
    let rate = match value("UROCE_RATE") {
        None => None,
        Some(rate) => Some(rate.parse().map_err(|error| format!("UROCE_RATE: {error}"))?),
    };
    let paths =
        match value("UROCE_PATHS") {
            None => None,
            Some(text) => {
                let known = text.parse().ok().filter(|paths| (1..=RecoverySettings::MAX_PATHS).contains(paths));
                Some(known.ok_or_else(|| {
                    format!("UROCE_PATHS is {text}; 1 to {} are possible", RecoverySettings::MAX_PATHS)
                })?)
            }
        };
    let path_policy = match value("UROCE_PATH_POLICY") {
        None => PathPolicy::default(),
        Some(name) => name.parse().map_err(|error| format!("UROCE_PATH_POLICY: {error}"))?,
    };
    Ok(OpenOptions {
        paths,
        path_policy,
        is_picked: interfaces().is_empty(),
        rails: interfaces().into_iter().skip(1).collect(),
        recovery,
        rate,
        link,
        xdp: XdpOptions { mode, ..XdpOptions::default() },
        capture: value("UROCE_CAPTURE").map(Into::into),
        faults,
        path_mtu,
        ..OpenOptions::default()
    })
}
