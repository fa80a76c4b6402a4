//! Fixture of one test: the mounted file system, and a picture of all groups for comparison.

use jet_cat::plan::Request;
use jet_cat::resctrl::{GroupName, Resctrl};
use jet_cat::reservation::{Reservation, ReserveError};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Runs a command on the host, which must succeed, and returns its output.
#[track_caller]
pub fn host(command: &str) -> String {
    let output = Command::new("bash").args(["-c", command]).output().expect("bash");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}: {said}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Takes a processor offline, or brings it back. In the guests each processor is the only one of its cache.
pub fn processor(number: u32, online: bool) {
    let online = u8::from(online);
    host(&format!("echo {online} > /sys/devices/system/cpu/cpu{number}/online"));
}

/// resctrl, mounted for one test, with a folder for journals. Dropping it unmounts resctrl, which undoes all
/// that is left.
pub struct Mounted {
    pub resctrl: Resctrl,
    pub journals: tempfile::TempDir,
}

/// State of all groups by name: schemata, mode and processors.
pub type Picture = BTreeMap<String, (String, String, String)>;

impl Mounted {
    pub fn new() -> Self {
        Self::with("rw")
    }

    pub fn with(options: &str) -> Self {
        assert!(
            std::fs::read_to_string("/proc/sys/kernel/hostname").is_ok_and(|name| name.trim() == "jet-guest"),
            "these tests change the cache of the machine: they run in the guest only (deploy/vm/check)"
        );
        let _ = Command::new("umount").arg("/sys/fs/resctrl").output();
        host(&format!("mount -t resctrl -o {options} resctrl /sys/fs/resctrl"));
        let resctrl = Resctrl::find().expect("just mounted");
        Self { resctrl, journals: tempfile::tempdir().expect("a folder") }
    }

    /// Mounts resctrl again, which makes the kernel forget everything.
    pub fn again(&self, options: &str) {
        host(&format!("umount /sys/fs/resctrl; mount -t resctrl -o {options} resctrl /sys/fs/resctrl"));
    }

    pub fn folder(&self) -> &Path {
        self.journals.path()
    }

    pub fn picture(&self) -> Picture {
        let mut names = self.resctrl.groups().expect("groups");
        names.push(GroupName::default_group());
        let of = |name: GroupName| {
            let group = self.resctrl.group(&name);
            let schemata = group.schemata().expect("a schemata").to_string();
            let mode = format!("{:?}", group.mode().expect("a mode"));
            let cpus = group.cpus().expect("processors").to_string();
            (name.to_string(), (schemata, mode, cpus))
        };
        names.into_iter().map(of).collect()
    }

    /// Returns the bytes of one way.
    pub fn way_bytes(&self) -> u64 {
        let found = jet_cat::reservation::holdings(&self.resctrl).expect("readable").expect("a cache");
        *found.way_bytes.values().next().expect("a domain")
    }

    /// Makes a request for a number of ways, with the default choices.
    pub fn request(&self, ways: u64) -> Request {
        Request::new(jet(), ways * self.way_bytes())
    }

    pub fn reserve(&self, request: &Request) -> Result<Reservation, ReserveError> {
        Reservation::make(&self.resctrl, request, self.folder(), &mut |_| {})
    }

    /// Makes another tool's group. Where monitoring ids are few, it waits until those of the previous test
    /// are free.
    pub fn make(&self, name: &GroupName) {
        while let Err(error) = self.resctrl.make(name) {
            assert!(error.is_draining(), "{error}");
            host("sleep 0.05");
        }
    }

    pub fn has_journal(&self) -> bool {
        self.folder().join("jet.json").exists()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("/sys/fs/resctrl").output();
    }
}

pub fn jet() -> GroupName {
    GroupName::new("jet").expect("a name")
}
