//! Drained: at the end nothing is left of what was under way.

use super::{Checker, Look};
use jet_escape::Pressure;

/// What must be nothing at the end.
#[derive(Debug)]
pub struct Drained;

impl Checker for Drained {
    fn name(&self) -> &'static str {
        "drained"
    }

    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        if !look.is_settled {
            return Ok(());
        }
        let stats = look.stats;
        let escape = &stats.escape;
        let left = [
            ("messages", stats.messages),
            ("slabs of escape memory", escape.memory_used),
            ("slabs that stand in for stragglers", escape.replaced_now),
            ("copies", escape.copied_now + escape.copies_in_flight),
            ("checks", stats.checks_in_flight),
            ("slabs that took escape memory", escape.spilled_now),
            ("suspended sessions", escape.suspended_sessions),
        ];
        if let Some(peer) = look.peers.iter().find(|peer| peer.unfinished + peer.requests > 0) {
            return Err(format!("messages of a sender are left: {peer:?}"));
        }
        if let Some(session) = look.sessions.iter().find(|session| session.requests + session.backlog > 0) {
            return Err(format!("messages of a session are left: {session:?}"));
        }
        match left.iter().find(|(_, count)| *count > 0) {
            Some((what, count)) => Err(format!("{count} {what} are left")),
            None if stats.pressure != Pressure::Ok => Err(format!("the pressure is {:?}", stats.pressure)),
            None => Ok(()),
        }
    }
}
