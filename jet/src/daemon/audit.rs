//! The audit: a log line for each act that an operator may have to account for, with who did it.
//!
//! Each line has the field `audit` with the kind of act, and the fields `process` and `user`. These lines are
//! limited as all log lines are: of one user a few of each kind in ten seconds; the rest is counted.

use super::ConfigError;
use super::control::places::Source;
use super::rights::RegisterDenied;
use jet_wire::message::hello::APP_NAME_MAX;

/// Who did it.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    /// Number of the process, if it is known.
    pub process: Option<i32>,
    /// Number of its user.
    pub user: u32,
}

impl From<Source> for Who {
    fn from(source: Source) -> Self {
        Self { process: source.process, user: source.user }
    }
}

/// An application is registered.
pub fn registered(who: Who, application: &str, class: u8) {
    let Who { process, user } = who;
    tracing::info!(audit = "registered", application, process, user, class, "an application is registered");
}

/// A registration is refused because the rights do not allow it. `application` is a checked name.
pub fn register_denied(who: Who, application: &str, class: u8, denied: RegisterDenied) {
    let Who { process, user } = who;
    tracing::warn!(audit = "denied", application, process, user, class, "a registration is denied: {denied}");
}

/// A registration is refused for another reason. `application` may be no name: of what is longer than a name
/// can be, the rest is left out.
pub fn register_refused(who: Who, application: &str, reason: &str) {
    let Who { process, user } = who;
    let application =
        application.char_indices().nth(APP_NAME_MAX).map_or(application, |(end, _)| &application[..end]);
    tracing::warn!(audit = "refused", application, process, user, "a registration is refused: {reason}");
}

/// A request is refused that is for the admin socket.
pub fn request_denied(who: Who, request: &str) {
    let Who { process, user } = who;
    tracing::warn!(
        audit = "denied",
        process,
        user,
        "a request for {request} is denied: it came over the control socket, and is for the admin socket"
    );
}

/// Somebody asked for a drain.
pub fn drain(who: Who, deadline_ms: u64) {
    let Who { process, user } = who;
    tracing::info!(audit = "drain", process, user, "a drain is asked for, with {deadline_ms} ms left");
}

/// Somebody had the rights read again.
pub fn reload(who: Who, error: Option<&ConfigError>) {
    let Who { process, user } = who;
    match error {
        None => tracing::info!(audit = "reload", process, user, "the rights are read again"),
        Some(error) => tracing::warn!(
            audit = "reload",
            process,
            user,
            "the rights cannot be read again, and stay as they were: {error}"
        ),
    }
}
