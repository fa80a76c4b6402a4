//! Test of a process that breaks one session after the other and keeps their slabs. It gets one session, and
//! the log names it.

use crate::children::Role;
use crate::hand_session::{HandSession, release};
use crate::rig::{Rig, random_for};
use crate::traffic::Traffic;
use jet_control::ErrorCode;
use jet_test_support::waiting::until;
use jet_wire::segment::{Release, release_kind};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Number of sessions that the process tries to register. A fragment for each would be more than the pool
/// has.
const ROUNDS: usize = 60;

/// Runs the child of [`Role::Faulty`]: registers, breaks the session and keeps it, [`ROUNDS`] times.
pub fn fault_again_and_again(mut report: File, control: &Path, app: &str) {
    let mut say = |line: &str| report.write_all(format!("{line}\n").as_bytes()).expect("the report");
    let mut kept = Vec::new();
    for _ in 0..ROUNDS {
        match HandSession::try_register(control, app) {
            Ok(mut session) => {
                say("registered");
                let mut end = session.end();
                let taken = until("a delivery", || end.deliveries.pop().expect("a sound ring"));
                let no_kind = release_kind::FINISH + 1;
                let bad = Release {
                    index: taken.slot,
                    generation: taken.slot_generation(),
                    first: 0,
                    count: 1,
                    kind: no_kind,
                    reserved: 0,
                    code: 0,
                };
                release(&session, &mut end, &[bad]);
                session.wait_ended();
                kept.push(session);
            }
            Err((ErrorCode::Quarantined, message)) => say(&format!("refused {message}")),
            Err(other) => panic!("{other:?}"),
        }
    }
    say("done");
    loop {
        // The process lives on until it is killed.
        std::thread::park();
    }
}

#[test]
fn a_process_that_breaks_session_after_session_does_not_take_the_pool() {
    let mut random = random_for("quarantine", 120);
    let mut rig = Rig::start(&["session.quarantine_ms=20"]);
    let good = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::new(&rig.addresses()[0], "store", random.fork());
    // Each of the faulty process's sessions would get messages from this sender.
    let mut sender = rig.child(Role::LargeSender, Some(&rig.addresses()[0]), "broken");
    let mut faulty = rig.application(Role::Faulty, "broken");
    faulty.wait_reported("done", 1);
    assert_eq!((faulty.reported("registered"), faulty.reported("refused")), (1, ROUNDS - 1));
    // The others are still served. The log names the process once, and what it keeps.
    traffic.round();
    let pid = faulty.process.id();
    let named = format!("(audit ended, application broken, process {pid}, ");
    let said = until("the log to name it", || {
        let said = rig.daemon().stderr_text();
        said.contains(&named).then_some(said)
    });
    assert_eq!(said.matches(&named).count(), 1, "{said}");
    assert!(said.contains("a session is ended") && said.contains("End that process"), "{said}");
    let status = rig.status();
    assert_eq!(status.rows.quarantined.len(), 1, "{status:#?}");
    assert_eq!(status.rows.quarantined[0].pid, Some(pid), "{status:#?}");
    assert!(status.rows.quarantined[0].held_bytes >= 4096, "{status:#?}");
    assert_eq!(status.rows.quarantined[0].app, "broken");
    assert!(status.rows.quarantined[0].holder_lives);
    // The process ends, and all slabs come back.
    faulty.process.kill();
    sender.process.kill();
    let status = rig.wait_whole();
    traffic.round();
    let left = rig.wait_status("nothing in quarantine", |status| status.rows.quarantined.is_empty());
    assert_eq!(left.faults.sessions, 1, "{status:#?}");
    assert_eq!((good.reported("registered"), good.reported("wrong")), (1, 0));
}
