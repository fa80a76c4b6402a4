//! Handle by which threads join or leave the group of a reservation.

use super::ThreadError;
use crate::resctrl::{AccessError, GroupName, Resctrl};
use std::fs;

/// Group of a reservation, which threads can join and leave. The handle stays usable whatever happens to the
/// reservation.
#[derive(Clone, Debug)]
pub struct Class {
    resctrl: Resctrl,
    group: GroupName,
}

impl Class {
    pub(super) fn new(resctrl: &Resctrl, group: &GroupName) -> Self {
        Self { resctrl: resctrl.clone(), group: group.clone() }
    }

    /// Returns the name of the group.
    pub fn group(&self) -> &GroupName {
        &self.group
    }

    /// Moves a thread into the group, unless the thread is in another tool's group.
    ///
    /// # Errors
    /// [`ThreadError`].
    pub fn add_thread(&self, thread: i32) -> Result<(), ThreadError> {
        if let Some(group) = self.other_group_of(thread) {
            return Err(ThreadError::Elsewhere { thread, group });
        }
        Ok(self.resctrl.group(&self.group).add_thread(thread)?)
    }

    /// Returns the name of another tool's group that the thread is in. Returns `None` where the thread is in
    /// the default group or in this one, has ended, or where the kernel cannot tell.
    pub fn other_group_of(&self, thread: i32) -> Option<String> {
        // Older kernels do not have this file.
        let text = fs::read_to_string(format!("/proc/{thread}/cpu_resctrl_groups")).ok()?;
        let group = text.lines().find_map(|line| line.strip_prefix("res:"))?.trim_matches('/');
        (!group.is_empty() && group != self.group.to_string()).then(|| group.to_owned())
    }

    /// Moves a thread to the default group. Another tool, or a later reservation, can take it from there.
    ///
    /// # Errors
    /// [`AccessError`], with the kernel's reason.
    pub fn remove_thread(&self, thread: i32) -> Result<(), AccessError> {
        self.resctrl.group(&GroupName::default_group()).add_thread(thread)
    }

    /// Reads the ids of the group's threads.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn threads(&self) -> Result<Vec<i32>, AccessError> {
        self.resctrl.group(&self.group).threads()
    }
}
