//! The class that threads are in.

use super::ThreadError;
use crate::resctrl::{AccessError, GroupName, Resctrl};
use std::fs;

/// A group as threads know it, whatever becomes of what is reserved for it.
#[derive(Clone, Debug)]
pub struct Class {
    resctrl: Resctrl,
    group: GroupName,
}

impl Class {
    pub(super) fn new(resctrl: &Resctrl, group: &GroupName) -> Self {
        Self { resctrl: resctrl.clone(), group: group.clone() }
    }

    /// The group.
    pub fn group(&self) -> &GroupName {
        &self.group
    }

    /// Moves a thread into the group, unless another tool has put it into one of its own.
    ///
    /// # Errors
    /// [`ThreadError`].
    pub fn add_thread(&self, thread: i32) -> Result<(), ThreadError> {
        if let Some(group) = self.other_group_of(thread) {
            return Err(ThreadError::Elsewhere { thread, group });
        }
        Ok(self.resctrl.group(&self.group).add_thread(thread)?)
    }

    /// The group of another tool that a thread is in; none where it is in the default group or in this one,
    /// or has ended.
    pub fn other_group_of(&self, thread: i32) -> Option<String> {
        // Kernels without that file cannot tell.
        let text = fs::read_to_string(format!("/proc/{thread}/cpu_resctrl_groups")).ok()?;
        let group = text.lines().find_map(|line| line.strip_prefix("res:"))?.trim_matches('/');
        (!group.is_empty() && group != self.group.to_string()).then(|| group.to_owned())
    }

    /// Moves a thread to the default group: only from there are threads taken.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn remove_thread(&self, thread: i32) -> Result<(), AccessError> {
        self.resctrl.group(&GroupName::default_group()).add_thread(thread)
    }

    /// Its threads.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn threads(&self) -> Result<Vec<i32>, AccessError> {
        self.resctrl.group(&self.group).threads()
    }
}
