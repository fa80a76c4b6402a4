//! Reads what a daemon says of itself. A field that is not there is an error that names it: a row that is made of a field
//! which somebody renamed would else read 0, and hold.

use serde_json::Value;

/// A field that a daemon does not show, or shows as something else.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the daemon's status has no {wanted} at {pointer}")]
pub struct MissingField {
    pointer: String,
    wanted: &'static str,
}

/// A count at such a place, as in `/pool/free`.
///
/// # Errors
/// There is none.
pub fn count(status: &Value, pointer: &str) -> Result<u64, MissingField> {
    found(status, pointer, "count", Value::as_u64)
}

/// A count as the figure of a row.
///
/// # Errors
/// There is none.
#[allow(clippy::cast_precision_loss)] // far below 2^53
pub fn figure(status: &Value, pointer: &str) -> Result<f64, MissingField> {
    count(status, pointer).map(|count| count as f64)
}

/// A truth value.
///
/// # Errors
/// There is none.
pub fn flag(status: &Value, pointer: &str) -> Result<bool, MissingField> {
    found(status, pointer, "truth value", Value::as_bool)
}

/// A text.
///
/// # Errors
/// There is none.
pub fn text<'a>(status: &'a Value, pointer: &str) -> Result<&'a str, MissingField> {
    found(status, pointer, "text", Value::as_str)
}

/// What is told of the application of such a name.
///
/// # Errors
/// None is registered by it.
pub fn session<'a>(status: &'a Value, app: &str) -> Result<&'a Value, MissingField> {
    let sessions = found(status, "/sessions", "list", Value::as_array)?;
    let missing = || MissingField { pointer: format!("/sessions/{app}"), wanted: "application" };
    sessions.iter().find(|session| session["app"] == app).ok_or_else(missing)
}

/// The sum of all counts of an object but one.
///
/// # Errors
/// There is no object, the one is not in it, or something in it is no count.
pub fn sum_but(status: &Value, pointer: &str, but: &str) -> Result<u64, MissingField> {
    let object = found(status, pointer, "object", Value::as_object)?;
    let all: Result<u64, _> = object.keys().map(|key| count(status, &format!("{pointer}/{key}"))).sum();
    Ok(all? - count(status, &format!("{pointer}/{but}"))?)
}

fn found<'a, T>(
    status: &'a Value,
    pointer: &str,
    wanted: &'static str,
    read: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<T, MissingField> {
    let missing = || MissingField { pointer: pointer.to_owned(), wanted };
    status.pointer(pointer).and_then(read).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_there_or_something_else_is_named() {
        let status = json!({"pool": {"free": 3, "whole": true}, "listen": ["shm:/x"]});
        assert_eq!(count(&status, "/pool/free"), Ok(3));
        assert_eq!(flag(&status, "/pool/whole"), Ok(true));
        assert_eq!(text(&status, "/listen/0"), Ok("shm:/x"));
        let said = count(&status, "/pool/unused").unwrap_err().to_string();
        assert_eq!(said, "the daemon's status has no count at /pool/unused");
        assert!(count(&status, "/pool/whole").is_err());
        assert!(flag(&status, "/pool/free").is_err());
        assert!(text(&status, "/listen/1").is_err());
    }

    #[test]
    fn applications_are_found_by_their_names() {
        let status = json!({"sessions": [{"app": "a", "held_slabs": 1}, {"app": "b", "held_slabs": 2}]});
        assert_eq!(count(session(&status, "b").unwrap(), "/held_slabs"), Ok(2));
        assert!(session(&status, "c").is_err() && session(&json!({}), "a").is_err());
    }

    #[test]
    fn ends_are_summed_whatever_they_are_called() {
        let status = json!({"ends": {"consumed": 7, "busy": 2, "denied": 1}});
        assert_eq!(sum_but(&status, "/ends", "consumed"), Ok(3));
        assert!(sum_but(&status, "/ends", "eaten").is_err());
        assert!(sum_but(&status, "/end", "consumed").is_err());
    }
}
