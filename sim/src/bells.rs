//! Doorbells between the receiver and applications: who was woken, and which sessions ended.

use crate::event::Life;
use jet_core::SessionEnd;
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Default)]
struct Rung {
    applications: Vec<Life>,
    ended: Vec<(Life, SessionEnd)>,
}

/// Doorbells; clones are handles of the same ones.
#[derive(Clone, Default)]
pub struct Bells(Rc<RefCell<Rung>>);

impl Bells {
    /// Wakes an application.
    pub fn wake_application(&self, life: Life) {
        self.0.borrow_mut().applications.push(life);
    }

    /// Reports the end of an application's session.
    pub fn end_session(&self, life: Life, end: SessionEnd) {
        self.0.borrow_mut().ended.push((life, end));
    }

    /// Takes an application that was woken.
    pub fn take_woken(&self) -> Option<Life> {
        self.0.borrow_mut().applications.pop()
    }

    /// Takes the end of a session.
    pub fn take_ended(&self) -> Option<(Life, SessionEnd)> {
        self.0.borrow_mut().ended.pop()
    }
}
