//! Tests of processes that are ended by SIGKILL between any two steps.

use crate::mounted::{Mounted, jet};
use jet_cat::plan::Request;
use jet_cat::resctrl::Resctrl;
use jet_cat::reservation::{Reservation, Restored, Step, recover};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// All steps of a reservation with at most two losing groups. A child is told its step by the step's debug
/// text.
const STEPS: [Step; 7] =
    [Step::Journal, Step::Group, Step::Inode, Step::Loss(0), Step::Loss(1), Step::Own, Step::Exclusive];

fn word(step: Step) -> String {
    format!("{step:?}")
}

/// Runs a process that reserves two ways and kills itself after a step. Returns whether it reached that step;
/// otherwise it killed itself once everything was reserved.
fn crash_after(mounted: &Mounted, step: Option<Step>) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "children::reserves_and_dies", "--ignored", "--nocapture"]);
    child.env("JET_CAT_FOLDER", mounted.folder()).env("JET_CAT_STEP", step.map_or_else(String::new, word));
    let output = child.output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(9), "{said}");
    !said.contains("reserved everything")
}

/// Body of a child process, called from `children`: reserves cache and kills itself.
pub fn reserves_and_dies(folder: &Path) {
    let last = std::env::var("JET_CAT_STEP").unwrap();
    let die =
        || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    let resctrl = Resctrl::find().unwrap();
    let found = jet_cat::reservation::holdings(&resctrl).unwrap().unwrap();
    let mut request = Request::new(jet(), 2 * found.way_bytes.values().next().unwrap());
    // So that another tool's group that has all ways loses some, too.
    request.take_from_groups = true;
    let mut watch = |step| {
        if word(step) == last {
            die();
        }
    };
    let reservation = Reservation::make(&resctrl, &request, folder, &mut watch).unwrap();
    // A service's threads are in the group when it is killed.
    reservation.add_thread(rustix::thread::gettid().as_raw_pid()).unwrap();
    println!("reserved everything");
    die();
}

/// Runs a process that reserves cache and is killed. Its journal and everything that it set remain.
pub fn left_by_a_crash(mounted: &Mounted) {
    crash_after(mounted, None);
    assert!(mounted.has_journal());
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn after_an_end_between_any_two_steps_the_next_start_finds_everything_as_before() {
    let mounted = Mounted::new();
    mounted.make(&jet_cat::resctrl::GroupName::new("web").unwrap());
    let before = mounted.picture();
    for step in STEPS {
        let came_to_it = crash_after(&mounted, Some(step));
        // Where the kernel cannot make the group exclusive, this step does not exist.
        assert!(came_to_it || step == Step::Exclusive, "{step:?}");
        assert!(mounted.has_journal());
        let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
        let restored = left[0].restored.as_ref().unwrap_or_else(|error| panic!("{step:?}: {error}"));
        let expected = if step == Step::Journal { Restored::Already } else { Restored::Undone };
        assert_eq!(*restored, expected, "{step:?}");
        assert_eq!(mounted.picture(), before, "{step:?}");
        assert!(!mounted.has_journal());
        assert!(recover(&mounted.resctrl, mounted.folder()).unwrap().is_empty());
    }
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_hundred_starts_each_killed_somewhere_leave_nothing() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let mut random = fastrand::Rng::with_seed(1);
    for turn in 0..100 {
        // What the previous process left is put back by the start of this one.
        let step = STEPS.get(random.usize(..8)).copied();
        crash_after(&mounted, step);
        if turn % 10 == 9 {
            for left in recover(&mounted.resctrl, mounted.folder()).unwrap() {
                left.restored.unwrap();
            }
            assert_eq!(mounted.picture(), before, "turn {turn}, {step:?}");
        }
    }
    let reservation = mounted.reserve(&mounted.request(2)).unwrap();
    assert!(reservation.restore().is_ok());
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_crash_while_putting_back_is_put_back_by_the_next() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    left_by_a_crash(&mounted);
    // As if putting back had ended after its first step.
    mounted.resctrl.remove(&jet()).unwrap();
    assert_ne!(mounted.picture(), before);
    let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(matches!(left[0].restored, Ok(Restored::Undone)), "{left:?}");
    assert_eq!(mounted.picture(), before);
    // As if everything was put back, and only the journal not yet removed.
    left_by_a_crash(&mounted);
    let journal = std::fs::read(mounted.folder().join("jet.json")).unwrap();
    recover(&mounted.resctrl, mounted.folder()).unwrap();
    std::fs::write(mounted.folder().join("jet.json"), journal).unwrap();
    let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(matches!(left[0].restored, Ok(Restored::Already)), "{left:?}");
    assert_eq!(mounted.picture(), before);
}
