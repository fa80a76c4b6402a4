//! Orders for slow calls, and their outcomes: of handshakes, of endings and of surveys.

use super::VerbsNic;
use super::connections::Connection;
use super::set_up::{Order, Outcome};
use crate::nic::Qp;

impl VerbsNic {
    /// Has an order carried out, on this thread or on the set-up thread.
    pub(super) fn order(&mut self, order: Order) {
        if let Some(outcome) = self.set_up.order(order) {
            self.carried_out(outcome);
        }
    }

    /// Takes the outcomes of orders that the set-up thread has carried out.
    #[inline]
    pub(super) fn take_outcomes(&mut self) {
        while let Some(outcome) = self.set_up.take() {
            self.carried_out(outcome);
        }
    }

    fn carried_out(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Made { qp, id, result } => self.made(qp, id, result),
            Outcome::Accepted { qp, id, result } => self.accepted(qp, id, result),
            Outcome::HungUp { qp, id, pair } => {
                let connection = self.order_returned(qp);
                (connection.id, connection.pair) = (Some(id), Some(pair));
                self.hung_up(qp);
            }
            Outcome::Refused { qp: None } => {}
            Outcome::Surveyed { survey } => self.surveyed(survey),
            Outcome::Renewed { listening } => self.renewed(listening),
            Outcome::Refused { qp: Some(qp) } | Outcome::Gone { qp } => {
                self.order_returned(qp);
                self.gone(qp);
            }
        }
    }

    /// Returns the connection whose order was carried out, and notes that its QP and identifier are back.
    pub(super) fn order_returned(&mut self, qp: Qp) -> &mut Connection {
        let connection =
            self.connections.get_mut(qp).expect("a connection stays while an order has something of it");
        connection.has_order = false;
        if !std::mem::replace(&mut connection.is_timed, true) {
            self.timed.push(qp.index);
        }
        connection
    }

    /// Begins to end a connection whose end waited for its QP and identifier. `true` where it did.
    pub(super) fn ends_now(&mut self, qp: Qp) -> bool {
        let connection = self.connections.get_mut(qp).expect("it is back");
        if !std::mem::take(&mut connection.ends) {
            return false;
        }
        let reason = connection.reason.expect("who ends it says why");
        self.fail(qp, reason);
        true
    }
}
