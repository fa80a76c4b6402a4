//! Names that stay their users' for a while after the last session with them has closed.
//!
//! An application that is started again finds its name free, and its senders do not meet somebody else under
//! it. Without this, whoever waits for a name could take it, and all that is sent to it, while the owner is
//! away. The rules:
//! * A name is kept for the user of the last session that had it, for a time from the configuration.
//! * Sessions of users that cannot be told apart keep no name.
//! * A session that was ended for what its application did, or for want of a right, leaves no name.
//! * As many names are kept as there may be sessions. Where there are more, the user with most kept names
//!   loses the one that it left first. So nobody pushes out the names of one that has left fewer.

use crate::effects::UserId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use jet_wire::message::hello::AppName;

#[derive(Clone, Copy, Debug)]
struct Kept {
    name: AppName,
    user: UserId,
    until_ns: u64,
}

/// The kept names, in the order in which they were left.
#[derive(Debug)]
pub(super) struct KeptNames {
    entries: Vec<Kept>,
    max: usize,
    span_ns: u64,
}

impl KeptNames {
    /// Makes a list of at most `max` names, each kept for `span_ns`.
    pub fn new(max: u32, span_ns: u64) -> Self {
        let max = max as usize;
        Self { entries: Vec::with_capacity(max), max, span_ns }
    }

    /// Keeps a name that has no session any more.
    pub fn keep(&mut self, now_ns: u64, name: AppName, user: UserId) {
        self.entries.retain(|kept| kept.until_ns > now_ns && kept.name != name);
        if self.span_ns == 0 {
            return;
        }
        if self.entries.len() == self.max {
            // The newcomer counts, too.
            let mut counts = BTreeMap::from([(user, 1_u32)]);
            for kept in &self.entries {
                *counts.entry(kept.user).or_default() += 1;
            }
            // Of several with most, the one that left its name first.
            let most = self.entries.iter().rev().max_by_key(|kept| counts[&kept.user]);
            let Some(most) = most.map(|kept| kept.user) else { return };
            if let Some(first) = self.entries.iter().position(|kept| kept.user == most) {
                self.entries.remove(first);
            }
        }
        self.entries.push(Kept { name, user, until_ns: now_ns.saturating_add(self.span_ns) });
    }

    /// Returns whether a session of this user may have the name.
    pub fn leaves(&self, now_ns: u64, name: AppName, user: Option<UserId>) -> bool {
        let kept = self.entries.iter().find(|kept| kept.name == name && kept.until_ns > now_ns);
        kept.is_none_or(|kept| Some(kept.user) == user)
    }

    /// Forgets a name that has a session again.
    pub fn forget(&mut self, name: AppName) {
        self.entries.retain(|kept| kept.name != name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    const SPAN_NS: u64 = 100;

    fn name(text: &str) -> AppName {
        AppName::new(text).unwrap()
    }

    fn leaves(kept: &KeptNames, now_ns: u64, text: &str, user: u32) -> bool {
        kept.leaves(now_ns, name(text), Some(UserId(user)))
    }

    #[test]
    fn a_name_is_its_users_until_its_time_is_over_or_it_has_a_session() {
        let mut kept = KeptNames::new(4, SPAN_NS);
        kept.keep(0, name("store"), UserId(1));
        assert!(leaves(&kept, 99, "store", 1));
        assert!(!leaves(&kept, 99, "store", 2) && !kept.leaves(99, name("store"), None));
        assert!(leaves(&kept, 100, "store", 2), "its time is over");
        assert!(leaves(&kept, 0, "other", 2), "nobody left it");
        kept.forget(name("store"));
        assert!(leaves(&kept, 1, "store", 2));
        // Left again by another user.
        kept.keep(1, name("store"), UserId(2));
        assert!(!leaves(&kept, 2, "store", 1) && leaves(&kept, 2, "store", 2));
    }

    #[test]
    fn who_leaves_many_names_pushes_out_its_own() {
        let mut kept = KeptNames::new(3, SPAN_NS);
        kept.keep(0, name("victim"), UserId(1));
        for number in 0..20u64 {
            kept.keep(number, name(&format!("squat-{number}")), UserId(2));
            assert!(!leaves(&kept, number, "victim", 2));
        }
        assert!(!leaves(&kept, 19, "squat-18", 1) && leaves(&kept, 19, "squat-17", 1));
    }

    #[test]
    fn who_has_left_fewer_names_loses_none() {
        let mut kept = KeptNames::new(4, SPAN_NS);
        for (number, user) in [1, 1, 1, 2, 2].into_iter().enumerate() {
            kept.keep(0, name(&format!("{user}-{number}")), UserId(user));
        }
        // Each has two then, and a newcomer comes beside them.
        assert!(leaves(&kept, 0, "1-0", 2) && !leaves(&kept, 0, "1-1", 2) && !leaves(&kept, 0, "2-3", 1));
        kept.keep(0, name("3-0"), UserId(3));
        assert!(!leaves(&kept, 0, "3-0", 1) && leaves(&kept, 0, "1-1", 2) && !leaves(&kept, 0, "1-2", 2));
    }

    #[test]
    fn nothing_is_kept_for_no_time() {
        let mut kept = KeptNames::new(3, 0);
        kept.keep(0, name("store"), UserId(1));
        assert!(leaves(&kept, 0, "store", 2));
    }
}
