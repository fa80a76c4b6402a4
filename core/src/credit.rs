//! Credit: how many SENDs each sender may have on the way, so that the SRQ is never overrun. The SENDs that
//! take messages back need no credit: each sender has a few on the way, and they find the entries of the
//! reserve.
//!
//! The outstanding credit of active senders never exceeds what the SRQ share can have posted. A sender's
//! credit follows its rate: it doubles while the sender uses it up, and halves while it does not. From an
//! idle sender all credit above one is recalled. The one credit that an idle sender keeps lies outside the
//! budget. The entries of `srq_reserve_entries` serve idle senders that wake. When more wake at once, their
//! NICs wait (RNR) for a moment.
//!
//! A sender that has had no credit for long counts as an idle one, too. It takes nothing that it is sent, or
//! its application is slow. Many of these would otherwise leave the others one SEND at a time.
//!
//! Senders that have sent nothing yet have at most half of the budget together, of what it is when they get
//! it. Otherwise a crowd that connects and says nothing would leave the others one SEND at a time until its
//! credit lapses.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::planted;

/// Credit of an idle sender.
const CREDIT_FLOOR: u32 = 1;
/// Credit that a sender begins with, if so much is left.
const CREDIT_INITIAL: u32 = 8;
/// Ticks without a SEND after which unused credit is recalled.
const IDLE_TICKS: u32 = 2;
/// Ticks after which a recall without an answer is given up, because the sender's program does something
/// else. The sender's credit then counts as an idle sender's, outside the budget, until it sends again.
/// Otherwise a few such senders would take the budget from all others.
const RECALL_TICKS: u32 = 10;
/// Ticks that a sender has for its answer once it sends again, though it had not answered a recall before.
const RECALL_TICKS_AGAIN: u32 = 3;

/// The room that the SRQ has for credit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Credit that all active senders together may have.
    pub usable: u64,
    /// Whether any SRQ entry is posted.
    pub posted: bool,
}

/// State of a sender's connection, as it matters to a recall of the sender's credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reachability {
    /// The sender's connection is not established yet.
    NotYet,
    /// The sender's connection is ending.
    NoMore,
    /// The sender is connected. `may_send`: whether one more SEND to it is possible now.
    Established { may_send: bool },
}

/// Result of a tick for one sender: what becomes of its credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decay {
    /// Nothing is to be done for the sender.
    Stays,
    /// The sender has no credit. The next flush is to see whether it can get some.
    Asks,
    /// The sender's credit is recalled down to this limit, which is to be sent to the sender.
    Recalled { limit: u64 },
    /// The sender is idle from this tick on, or has had no credit for long. It counts in the budget no more.
    Idle,
    /// The sender did not answer. It counts as idle, with all the credit that it has.
    Lapsed,
}

/// The credit of one sender.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// SENDs that arrived from the sender.
    arrived: u64,
    /// SENDs that the sender may have made in total.
    limit: u64,
    /// Credit that the sender should have; it follows the rate of the sender's SENDs.
    target: u32,
    /// Whether the sender's outstanding credit counts in the budget, because it sent lately.
    active: bool,
    /// Whether the sender is gone.
    closed: bool,
    /// Whether a recall down to `recall_limit` is under way. The sender gets no new credit until it answers.
    recalling: bool,
    /// Whether the sender waits in a list of those without credit.
    without_credit: bool,
    recall_limit: u64,
    /// Ticks since the recall was sent.
    recall_ticks: u32,
    idle_ticks: u32,
    /// Value of `arrived` at the last tick.
    arrived_at_tick: u64,
}

impl Account {
    #[inline]
    fn outstanding(&self) -> u64 {
        self.limit - self.arrived
    }

    /// Whether the sender has credit in the budget, and has sent nothing yet.
    #[inline]
    fn is_new(&self) -> bool {
        self.active && self.arrived == 0
    }
}

/// The senders that have credit in the budget, and have sent nothing yet.
#[derive(Clone, Copy, Debug, Default)]
struct Newcomers {
    count: u64,
    outstanding: u64,
}

impl Newcomers {
    fn enter(&mut self, account: &Account) {
        self.count += 1;
        self.outstanding += account.outstanding();
    }

    /// The account is new no more: the sender is about to send, is idle from now on, or is gone. The call
    /// comes before a SEND is counted.
    fn leave(&mut self, account: &Account) {
        self.count -= 1;
        self.outstanding -= account.outstanding();
    }

    /// Returns what newcomers may still have of a budget: of half of it.
    fn left(&self, budget: u64) -> u64 {
        (budget / 2).saturating_sub(self.outstanding)
    }
}

/// The credit of all senders.
#[derive(Debug)]
pub(crate) struct Credit {
    accounts: Box<[Account]>,
    /// Outstanding credit of active senders.
    outstanding: u64,
    newcomers: Newcomers,
    /// Times that a sender's credit lapsed: see [`Decay::Lapsed`].
    lapses: u64,
    /// The most credit of one sender.
    most: u32,
    /// Active senders: those whose credit counts in the budget.
    active: Vec<u32>,
    /// Senders without credit because the room for credit was used up.
    without_credit: Vec<u32>,
    /// Senders without credit because their sessions withhold it.
    refused: Vec<u32>,
}

impl Credit {
    /// Creates accounts for `peers` senders, each of which has at most `most` credit.
    pub fn new(peers: u32, most: u32) -> Self {
        let list = || Vec::with_capacity(peers as usize);
        Self {
            accounts: vec![Account::default(); peers as usize].into_boxed_slice(),
            outstanding: 0,
            newcomers: Newcomers::default(),
            lapses: 0,
            most,
            active: list(),
            without_credit: list(),
            refused: list(),
        }
    }

    #[inline]
    fn account_mut(&mut self, peer: u32) -> &mut Account {
        &mut self.accounts[peer as usize]
    }

    /// Returns the outstanding credit of active senders.
    #[inline]
    pub fn total(&self) -> u64 {
        self.outstanding
    }

    /// Returns how many times a sender's credit lapsed because the sender did not answer.
    pub fn lapses(&self) -> u64 {
        self.lapses
    }

    /// Returns the credit that a sender has and has not used.
    #[inline]
    pub fn outstanding(&self, peer: u32) -> u64 {
        self.accounts[peer as usize].outstanding()
    }

    /// Returns the number of SENDs that arrived from the peer.
    pub fn arrived(&self, peer: u32) -> u64 {
        self.accounts[peer as usize].arrived
    }

    /// Returns the limit to tell the sender. While a recall is under way, that is the recalled limit. With
    /// the limit before the recall, an acknowledgement that crosses the sender's answer would give back what
    /// the sender gave up.
    pub fn limit_to_send(&self, peer: u32) -> u64 {
        let account = &self.accounts[peer as usize];
        if account.recalling { account.recall_limit } else { account.limit }
    }

    /// Returns the peer's limit: the SENDs that it may have made in total.
    pub fn limit(&self, peer: u32) -> u64 {
        self.accounts[peer as usize].limit
    }

    fn left(&self, room: Room) -> u64 {
        let outstanding = if planted!(CreditUnbounded) { 0 } else { self.outstanding };
        room.usable.saturating_sub(outstanding)
    }

    /// Opens the account of a sender that connects, and returns its limit. The sender counts as active if it
    /// got more than the one credit of an idle sender.
    pub fn open(&mut self, peer: u32, room: Room) -> u64 {
        let left = self.left(room).min(self.newcomers.left(room.usable));
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        // Who gets less than others gets more when it sends: as its target grows, like everybody's.
        let target = CREDIT_INITIAL.min(self.most).min(left).max(CREDIT_FLOOR);
        let active = target > CREDIT_FLOOR;
        let limit = u64::from(target);
        let account = Account { limit, target, active, ..Account::default() };
        debug_assert!(!self.accounts[peer as usize].active, "the account was closed");
        *self.account_mut(peer) = account;
        if active {
            self.outstanding += limit;
            self.newcomers.enter(&account);
            self.active.push(peer);
        }
        limit
    }

    /// Closes the accounts of senders that are gone.
    pub fn close(&mut self, peers: &[u32]) {
        for &peer in peers {
            let closed = Account { closed: true, ..Account::default() };
            let account = core::mem::replace(self.account_mut(peer), closed);
            if account.active {
                self.outstanding -= account.outstanding();
            }
            if account.is_new() {
                self.newcomers.leave(&account);
            }
        }
        for list in [&mut self.without_credit, &mut self.refused, &mut self.active] {
            list.retain(|&listed| !self.accounts[listed as usize].closed);
        }
    }

    /// Counts one SEND of this sender, which uses one credit. Returns `false` if the sender had none.
    #[inline]
    pub fn use_one(&mut self, peer: u32) -> bool {
        let account = &mut self.accounts[peer as usize];
        if account.arrived >= account.limit {
            return false;
        }
        if account.is_new() {
            self.newcomers.leave(account);
        }
        account.arrived += 1;
        if account.active {
            self.outstanding -= 1;
        } else {
            // The idle sender wakes: the credit that it still has counts in the budget again.
            self.outstanding += account.outstanding();
            account.active = true;
            account.recall_ticks = RECALL_TICKS - RECALL_TICKS_AGAIN;
            self.active.push(peer);
        }
        account.idle_ticks = 0;
        true
    }

    /// Applies a sender's answer to a recall. Returns `false` if the answer claims an impossible limit.
    pub fn returned(&mut self, peer: u32, limit: u64) -> bool {
        let account = &mut self.accounts[peer as usize];
        let is_possible = account.recalling && (account.arrived..=account.limit).contains(&limit);
        if !is_possible && !planted!(AnyCreditReturn) {
            return false;
        }
        account.recalling = false;
        self.outstanding -= account.limit - limit;
        account.limit = limit;
        true
    }

    /// Ends a recall if the sender used all its credit before it learned of the recall: then it has no credit
    /// left to answer with.
    #[inline]
    pub fn end_recall_if_used_up(&mut self, peer: u32) {
        let account = self.account_mut(peer);
        if account.recalling && account.outstanding() == 0 {
            account.recalling = false;
        }
    }

    /// Returns whether the sender is to have more credit. With exactly half left it can wait, for an
    /// acknowledgement is likely to carry credit along soon. If it did not wait, a sender of one message
    /// after the other would be sent an acknowledgement and a credit header for each message.
    #[inline]
    pub fn needs_credit(&self, peer: u32) -> bool {
        let account = &self.accounts[peer as usize];
        let outstanding = account.outstanding();
        outstanding == 0 || outstanding * 2 < u64::from(account.target)
    }

    /// Puts a sender without credit aside until its session no longer withholds credit.
    #[cold]
    pub fn refuse(&mut self, peer: u32) {
        let account = &mut self.accounts[peer as usize];
        if account.outstanding() == 0 && !core::mem::replace(&mut account.without_credit, true) {
            self.refused.push(peer);
        }
    }

    /// Lets senders that were refused credit for their sessions ask again.
    pub fn retry_refused(&mut self) {
        if !planted!(BarredForEver) {
            self.without_credit.append(&mut self.refused);
        }
    }

    /// Returns the senders that get no credit because their sessions withhold it.
    pub fn refused(&self) -> &[u32] {
        &self.refused
    }

    /// Gives the sender the credit that it should have now, within the budget, and no more than `most`.
    /// Returns how much that was.
    pub fn issue(&mut self, peer: u32, room: Room, most: u32) -> u64 {
        let mut left = self.left(room);
        // The most that each active sender may have, so that none takes it all. What newcomers have is not
        // shared out.
        let usable = room.usable.saturating_sub(self.newcomers.outstanding);
        let senders = self.active.len() as u64 - self.newcomers.count;
        let share = (usable / senders.max(1)).max(u64::from(CREDIT_FLOOR));
        let account = &mut self.accounts[peer as usize];
        // The credit that an idle sender has counts nowhere. More would count nowhere, too.
        if account.recalling || (!account.active && account.outstanding() > 0) {
            return 0;
        }
        let is_new = account.is_new();
        if is_new {
            left = left.min(self.newcomers.left(room.usable));
        }
        let outstanding = account.outstanding();
        if outstanding * 2 < u64::from(account.target) && account.arrived > account.arrived_at_tick {
            account.target = (account.target * 2).min(self.most);
        }
        let wanted = u64::from(account.target.min(most)).min(share).saturating_sub(outstanding);
        // Single credits are not sent one by one. The limit moves when it is worth a message, or rides on an
        // acknowledgement.
        let mut issued = wanted.min(left);
        if outstanding == 0 && issued < u64::from(CREDIT_FLOOR) && room.posted {
            // A session that holds most of the SRQ share must not keep other senders from sending. Each gets
            // what an idle sender has. While too many use it, their NICs wait.
            issued = u64::from(CREDIT_FLOOR);
        }
        if issued > 0 {
            if !core::mem::replace(&mut account.active, true) {
                account.idle_ticks = 0;
                self.active.push(peer);
            }
            account.limit += issued;
            self.outstanding += issued;
            if is_new {
                self.newcomers.outstanding += issued;
            }
        } else if outstanding == 0 && !core::mem::replace(&mut account.without_credit, true) {
            self.without_credit.push(peer);
        }
        issued
    }

    /// Returns whether senders wait for credit.
    #[inline]
    pub fn any_without_credit(&self) -> bool {
        !self.without_credit.is_empty()
    }

    /// Takes a sender from those without credit for lack of room. It asks again, since some room may be left
    /// now. The caller pushes the senders onto a stack. So the last one taken here is served first: the
    /// sender that waited longest.
    pub fn next_without_credit(&mut self, room: Room) -> Option<u32> {
        if self.left(room) == 0 && !room.posted {
            return None;
        }
        let peer = self.without_credit.pop()?;
        self.account_mut(peer).without_credit = false;
        Some(peer)
    }

    /// Returns the active sender at a position. Ticks concern active senders only: the credit of idle ones
    /// does not change, however many they are.
    pub fn active_at(&self, position: usize) -> Option<u32> {
        self.active.get(position).copied()
    }

    /// Returns the number of active senders.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Applies a tick to the active sender at a position. If the result is [`Decay::Idle`] or
    /// [`Decay::Lapsed`], another sender takes its position.
    pub fn decay(&mut self, position: usize, reachability: Reachability) -> Decay {
        let decay = self.decay_one(self.active[position], reachability);
        if matches!(decay, Decay::Idle | Decay::Lapsed) {
            self.lapses += u64::from(decay == Decay::Lapsed);
            let peer = self.active.swap_remove(position);
            let account = &mut self.accounts[peer as usize];
            if account.is_new() {
                self.newcomers.leave(account);
            }
            account.active = false;
            self.outstanding -= account.outstanding();
        }
        decay
    }

    fn decay_one(&mut self, peer: u32, reachability: Reachability) -> Decay {
        let account = self.account_mut(peer);
        let arrived = account.arrived - account.arrived_at_tick;
        account.arrived_at_tick = account.arrived;
        if arrived * 4 < u64::from(account.target) {
            account.target = (account.target / 2).max(CREDIT_FLOOR);
        }
        if arrived > 0 {
            account.idle_ticks = 0;
            return Decay::Stays;
        }
        account.idle_ticks = account.idle_ticks.saturating_add(1);
        let outstanding = account.outstanding();
        if account.recalling {
            account.recall_ticks = account.recall_ticks.saturating_add(1);
            return if account.recall_ticks < RECALL_TICKS { Decay::Stays } else { Decay::Lapsed };
        }
        let may_send = match reachability {
            // A sender that takes long to connect counts as one that does not answer. Who has no credit takes
            // nothing from the others.
            Reachability::NotYet if outstanding == 0 || account.idle_ticks < RECALL_TICKS => {
                return Decay::Stays;
            }
            Reachability::NotYet => return Decay::Lapsed,
            Reachability::NoMore => return Decay::Stays,
            Reachability::Established { may_send } => may_send,
        };
        if account.idle_ticks < IDLE_TICKS {
            return Decay::Stays;
        }
        if outstanding == 0 {
            // It could not get any: it hears nothing, or its session withholds it. The others share the
            // budget without it until it gets some.
            return if account.idle_ticks < RECALL_TICKS { Decay::Asks } else { Decay::Idle };
        }
        if outstanding <= u64::from(CREDIT_FLOOR) {
            account.target = CREDIT_FLOOR;
            return Decay::Idle;
        }
        if !may_send {
            return Decay::Stays;
        }
        // The answer itself is a SEND and uses one.
        account.recalling = true;
        account.target = CREDIT_FLOOR;
        account.recall_limit = account.arrived + 1 + u64::from(CREDIT_FLOOR);
        account.recall_ticks = 0;
        Decay::Recalled { limit: account.recall_limit }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
impl Credit {
    /// Returns the credit that the peer should have.
    pub fn target(&self, peer: u32) -> u32 {
        self.accounts[peer as usize].target
    }
}
