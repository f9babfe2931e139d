//! Errors as programs see them: numbers, and with `UROCE_TRACE` a line that says more.

use std::ffi::c_int;
use std::fmt;
use std::sync::OnceLock;

use uroce::verbs::{
    AccessError, AttachError, CreateError, ModifyError, MulticastError, PathError, PostError, SrqError,
};

use crate::slab::NotRemoved;

/// What a verb failed with: the number for the program, and why, for people.
pub(crate) struct Failure {
    pub errno: c_int,
    why: String,
}

impl Failure {
    pub(crate) fn new(errno: c_int, why: impl fmt::Display) -> Failure {
        Failure { errno, why: why.to_string() }
    }

    /// A pointer that is not one of ours, or not any more.
    pub(crate) fn handle(kind: &str) -> Failure {
        Failure::new(libc::EINVAL, format_args!("the {kind} is not valid: it was never created, or is destroyed"))
    }

    pub(crate) fn null(what: &str) -> Failure {
        Failure::new(libc::EINVAL, format_args!("{what} is NULL"))
    }

    pub(crate) fn not_offered(what: impl fmt::Display) -> Failure {
        Failure::new(libc::EOPNOTSUPP, format_args!("{what}: not offered"))
    }

    pub(crate) fn removal(kind: &str, error: NotRemoved) -> Failure {
        match error {
            NotRemoved::Stale => Failure::handle(kind),
            NotRemoved::Busy => Failure::new(libc::EBUSY, format_args!("others still use the {kind}")),
        }
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Failure {
        let errno = if matches!(error, PathError::Hop(_)) { libc::EHOSTUNREACH } else { libc::EINVAL };
        Failure::new(errno, error)
    }
}

impl From<ModifyError> for Failure {
    fn from(error: ModifyError) -> Failure {
        Failure::new(libc::EINVAL, error)
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Failure {
        let errno = match error {
            PostError::Full(_) => libc::ENOMEM,
            PostError::TooLong { .. } => libc::EMSGSIZE,
            PostError::Operation(_) => libc::EOPNOTSUPP,
            _ => libc::EINVAL,
        };
        Failure::new(errno, error)
    }
}

impl From<SrqError> for Failure {
    fn from(error: SrqError) -> Failure {
        let errno = match error {
            SrqError::Full(_) => libc::ENOMEM,
            SrqError::InUse(_) => libc::EBUSY,
            _ => libc::EINVAL,
        };
        Failure::new(errno, error)
    }
}

impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Failure {
        let errno = if matches!(error, CreateError::TooMany(_)) { libc::ENOMEM } else { libc::EINVAL };
        Failure::new(errno, error)
    }
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Failure {
        let errno = if matches!(error, AttachError::TooMany) { libc::ENOMEM } else { libc::EINVAL };
        Failure::new(errno, error)
    }
}

impl From<MulticastError> for Failure {
    fn from(error: MulticastError) -> Failure {
        match error {
            MulticastError::Attach(error) => error.into(),
            MulticastError::Join { ref error, .. } => {
                let errno = error.raw_os_error().unwrap_or(libc::EOPNOTSUPP);
                Failure::new(errno, error)
            }
        }
    }
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Failure {
        let errno = if matches!(error, AccessError::Denied { .. }) { libc::EBUSY } else { libc::EINVAL };
        Failure::new(errno, error)
    }
}

/// Whether `UROCE_TRACE` asks for a line a call.
pub(crate) fn is_tracing() -> bool {
    static TRACING: OnceLock<bool> = OnceLock::new();
    *TRACING.get_or_init(|| std::env::var_os("UROCE_TRACE").is_some_and(|value| value != "0" && !value.is_empty()))
}

/// Says what a call did, if asked to.
pub(crate) fn trace(verb: &str, result: &Result<String, &Failure>) {
    if is_tracing() {
        match result {
            Ok(text) => eprintln!("uroce: {verb}: {text}"),
            Err(failure) => eprintln!("uroce: {verb}: {} (errno {})", failure.why, failure.errno),
        }
    }
}

/// Says what a device has counted, if asked to. Counters that are zero are left out.
pub(crate) fn trace_counters(device: &str, counters: impl FnOnce() -> Vec<(&'static str, u64)>) {
    if is_tracing() {
        let counters = counters();
        let some = counters.iter().filter(|(_, count)| *count > 0);
        let words: Vec<String> = some.map(|(name, count)| format!("{name} {count}")).collect();
        eprintln!("uroce: {device}: {}", words.join(", "));
    }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// For verbs that return an error number: 0 or it. `errno` has it too.
pub(crate) fn number(verb: &str, result: Result<(), Failure>) -> c_int {
    match result {
        Ok(()) => {
            trace(verb, &Ok("done".to_owned()));
            0
        }
        Err(failure) => {
            trace(verb, &Err(&failure));
            set_errno(failure.errno);
            failure.errno
        }
    }
}

/// For verbs that return -1 with `errno`.
pub(crate) fn minus_one(verb: &str, result: Result<(), Failure>) -> c_int {
    if number(verb, result) == 0 { 0 } else { -1 }
}

/// For verbs that take an event: as [`minus_one`], except that there is none yet is no line in the trace. Programs that poll
/// ask thousands of times a second.
pub(crate) fn event_taken(verb: &str, result: Result<(), Failure>) -> c_int {
    match result {
        Err(failure) if failure.errno == libc::EAGAIN => {
            set_errno(libc::EAGAIN);
            -1
        }
        taken => minus_one(verb, taken),
    }
}

/// For verbs that return a pointer, or NULL with `errno`.
pub(crate) fn pointer<T>(verb: &str, result: Result<*mut T, Failure>) -> *mut T {
    match result {
        Ok(made) => {
            trace(verb, &Ok(format!("{made:p}")));
            made
        }
        Err(failure) => {
            trace(verb, &Err(&failure));
            set_errno(failure.errno);
            std::ptr::null_mut()
        }
    }
}
