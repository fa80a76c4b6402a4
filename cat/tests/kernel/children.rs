//! Child processes: what this binary does when a test starts it again, to be killed or to run as another
//! user.
//!
//! They are in a module of their own, so that no test stage runs them as tests. Started without a test, they
//! fail instead of passing without effect.

use std::path::PathBuf;

/// Returns the folder in which the test that started this process keeps its journals.
fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("JET_CAT_FOLDER").expect("JET_CAT_FOLDER: started by no test"))
}

#[test]
#[ignore = "is run by other tests, and killed"]
fn reserves_and_dies() {
    crate::crashes::reserves_and_dies(&folder());
}

#[test]
#[ignore = "is run by another test, as another user"]
fn as_nobody() {
    crate::everywhere::as_nobody(&folder());
}

#[test]
#[ignore = "is run by another test, and killed"]
fn throttles_and_dies() {
    crate::adjusted::throttles_and_dies(&folder());
}

#[test]
#[ignore = "is run by another test, and killed"]
fn locks_and_dies() {
    crate::special::locked::locks_and_dies(&folder());
}

#[test]
#[ignore = "is run by another test, and killed"]
fn sets_and_dies() {
    crate::special::ddio::sets_and_dies(&folder());
}

#[test]
#[ignore = "is run by another test, and killed"]
fn repairs_and_dies() {
    crate::repair::repairs_and_dies(&folder());
}
