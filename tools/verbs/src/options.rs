//! What `uroce run` passes on in the environment.

use std::sync::OnceLock;

use uroce::verbs::OpenOptions;

/// Whether devices shall have LIDs too (`UROCE_LIDS`).
pub(crate) fn has_lids() -> bool {
    static LIDS: OnceLock<bool> = OnceLock::new();
    *LIDS.get_or_init(|| std::env::var_os("UROCE_LIDS").is_some_and(|value| value != "0" && !value.is_empty()))
}

/// The interfaces, or addresses, of the only device that programs shall see (`UROCE_DEV`); none: all usable interfaces are
/// devices.
pub(crate) fn interfaces() -> Vec<String> {
    let names = std::env::var("UROCE_DEV").unwrap_or_default();
    names.split(',').filter(|_| !names.is_empty()).map(str::to_owned).collect()
}

/// How the device of that name is opened, by the `UROCE_*` variables. Programs pick it from the list that they see, unless
/// somebody has named it for them.
pub(crate) fn of_device(name: &str) -> Result<OpenOptions, String> {
    let options = OpenOptions::from_env().map_err(|error| error.to_string())?;
    match options.device {
        Some(_) => Ok(options),
        None => Ok(options.device(name).picked(true)),
    }
}
