//! Messages on the sockets of connections: whose are taken, and what follows from them. How much is taken is
//! in [`crate::soft::tables::socket_turns`].

use super::Shm;
use super::connection::End;
use crate::soft::deadlines::Wait;
use crate::soft::tables::Tables;
use crate::soft::tables::qps::QpState;
use crate::soft::tables::socket_turns::TURNS_EVERY;
use rustix::event::epoll::EventFlags;

const HUNG_UP: EventFlags = EventFlags::HUP.union(EventFlags::ERR);

impl Shm {
    /// Acts on a connection's socket that became ready.
    pub(super) fn check_socket(&mut self, tables: &mut Tables, index: u32, flags: EventFlags) {
        let Some(connection) = &mut self.connections[index as usize] else { return };
        if !connection.is_in_line() {
            self.listen_to(tables, index);
        } else if flags.intersects(HUNG_UP) {
            connection.hangs_up_in_line(tables);
            let state = tables.qps.get(connection.qp).map(|entry| entry.state);
            self.heard(tables, index, state, Ok(false));
        }
    }

    /// Gives turns to connections that stand in line.
    pub(super) fn give_turns(&mut self, tables: &mut Tables) {
        let now_ns = tables.deadlines.now_ns();
        while let Some(index) = tables.socket_turns.next(now_ns) {
            self.listen_to(tables, index);
        }
        if tables.socket_turns.has_line() {
            tables.deadlines.set(tables.place_of_turns(), Wait::Turn, TURNS_EVERY);
        }
    }

    /// Takes messages on a connection's socket, and acts on the outcome.
    pub(super) fn listen_to(&mut self, tables: &mut Tables, index: u32) {
        let Some(connection) = &mut self.connections[index as usize] else { return };
        let before = tables.qps.get(connection.qp).map(|entry| entry.state);
        let rang = connection.listen_to_peer(tables);
        self.heard(tables, index, before, rang);
    }

    /// Acts on what was heard on a connection that was in this state, and perhaps on its bell.
    fn heard(&mut self, tables: &mut Tables, index: u32, before: Option<QpState>, rang: Result<bool, End>) {
        let connection = self.connections[index as usize].as_deref_mut().expect("seen by the caller");
        let hung_up = connection.hung_up;
        // READs that waited for announcements go on.
        if !connection.awaits() && connection.reads.front().is_some() && !connection.reading {
            connection.reading = true;
            self.reading.push_back(index);
        }
        let after = tables.qps.get(connection.qp).expect("a connection's QP lives").state;
        match (rang, after) {
            (Err(end), _) => self.end(tables, index, end),
            // The peer refused the connection.
            (Ok(_), QpState::Ended) => self.end(tables, index, End::LOCAL),
            (Ok(rang), QpState::Connected | QpState::Closing) => {
                if rang || hung_up || before != Some(after) {
                    self.make_hot(index);
                }
            }
            (Ok(_), QpState::Handshake | QpState::Requested | QpState::Connecting) if hung_up => {
                let end = connection.end_by_peer();
                self.end(tables, index, end);
            }
            (Ok(_), QpState::Handshake | QpState::Requested | QpState::Connecting) => {}
        }
    }
}
