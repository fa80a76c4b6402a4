//! Credit: how many SENDs each sender may have on the way, so that the SRQ is never overrun.
//!
//! Outstanding credit of active senders never exceeds what the SRQ share can have posted. A sender's credit
//! follows its rate: it doubles while the sender uses it up, halves while it does not, and what an idle
//! sender still has above one is called back. The one credit that an idle sender keeps lies outside the
//! budget: the entries of `srq_reserve_entries` stand for those that wake, and when more wake at once their
//! NICs wait (RNR) for a moment.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Credit of a sender that does nothing.
const CREDIT_FLOOR: u32 = 1;
/// Credit that a sender begins with, where there is any left.
const CREDIT_INITIAL: u32 = 8;
/// Ticks without a SEND after which unused credit is called back.
const IDLE_TICKS: u32 = 2;
/// Ticks after which a recall without an answer is given up: the sender's program does something else. Its
/// credit then counts as an idle sender's, outside the budget, until it wakes; else a few of them would
/// starve everybody.
const RECALL_TICKS: u32 = 10;

/// What there is to give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Credit that active senders may have altogether.
    pub usable: u64,
    /// An entry is posted.
    pub posted: bool,
}

/// Whether a sender can be asked for credit back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// There is no asking it yet.
    NotYet,
    /// It is on its way out.
    NoMore,
    /// It is connected; whether a SEND to it has a place now.
    Stands { may_hear: bool },
}

/// What comes of a tick without a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decay {
    /// Nothing.
    Stays,
    /// It has none, and is to be looked at.
    Asks,
    /// Its credit is called back down to this limit: it is to be told.
    Recalled { limit: u64 },
    /// It is idle from now on.
    Idle,
}

/// One sender's credit.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// SENDs that arrived.
    arrived: u64,
    /// SENDs that it may have made, all told.
    limit: u64,
    /// Credit that it should have: follows its rate.
    target: u32,
    /// Its outstanding credit counts in the budget (it sent lately).
    active: bool,
    /// A recall down to `recall_limit` is under way: no new credit until its answer.
    recalling: bool,
    /// It waits in a list of those without credit.
    hungry: bool,
    recall_limit: u64,
    /// Ticks since the recall went out.
    recall_ticks: u32,
    idle_ticks: u32,
    /// `arrived` at the last tick.
    arrived_at_tick: u64,
}

impl Account {
    #[inline]
    fn outstanding(&self) -> u64 {
        self.limit - self.arrived
    }
}

/// Every sender's credit.
#[derive(Debug)]
pub(crate) struct Credit {
    accounts: Box<[Account]>,
    /// Outstanding credit of active senders.
    outstanding: u64,
    /// The most of one sender.
    most: u32,
    /// Those whose credit counts in the budget.
    active: Vec<u32>,
    /// Those without credit: for want of room, and because their sessions get nothing new.
    hungry: Vec<u32>,
    suspended: Vec<u32>,
}

impl Credit {
    /// For so many senders, none of which has more than `most`.
    pub fn new(peers: u32, most: u32) -> Self {
        let list = || Vec::with_capacity(peers as usize);
        Self {
            accounts: vec![Account::default(); peers as usize].into_boxed_slice(),
            outstanding: 0,
            most,
            active: list(),
            hungry: list(),
            suspended: list(),
        }
    }

    #[inline]
    fn account_mut(&mut self, peer: u32) -> &mut Account {
        &mut self.accounts[peer as usize]
    }

    /// Outstanding credit of active senders.
    #[inline]
    pub fn total(&self) -> u64 {
        self.outstanding
    }

    /// Credit that a sender has and has not used.
    #[inline]
    pub fn outstanding(&self, peer: u32) -> u64 {
        self.accounts[peer as usize].outstanding()
    }

    /// SENDs that arrived from it.
    pub fn arrived(&self, peer: u32) -> u64 {
        self.accounts[peer as usize].arrived
    }

    /// The limit to tell it: while a recall is under way nothing above the recalled one, or an
    /// acknowledgement that crosses its answer would give back what it gave up.
    pub fn limit_to_tell(&self, peer: u32) -> u64 {
        let account = &self.accounts[peer as usize];
        if account.recalling { account.recall_limit } else { account.limit }
    }

    /// Its limit.
    pub fn limit(&self, peer: u32) -> u64 {
        self.accounts[peer as usize].limit
    }

    fn left(&self, room: Room) -> u64 {
        room.usable.saturating_sub(self.outstanding)
    }

    /// Opens the account of a sender that connects; it counts as active if it got more than the floor.
    pub fn open(&mut self, peer: u32, room: Room) -> u64 {
        let target = CREDIT_INITIAL.min(self.most);
        let first = u64::from(target).min(self.left(room));
        let active = first > u64::from(CREDIT_FLOOR);
        let limit = first.max(u64::from(CREDIT_FLOOR));
        *self.account_mut(peer) = Account { limit, target, active, ..Account::default() };
        if active {
            self.outstanding += limit;
            self.active.push(peer);
        }
        limit
    }

    /// A sender is gone.
    pub fn close(&mut self, peer: u32) {
        let account = core::mem::take(self.account_mut(peer));
        if account.active {
            self.outstanding -= account.outstanding();
        }
        for list in [&mut self.hungry, &mut self.suspended, &mut self.active] {
            list.retain(|&listed| listed != peer);
        }
    }

    /// One SEND of this sender arrived and used one credit. `false`: it had none.
    #[inline]
    pub fn use_one(&mut self, peer: u32) -> bool {
        let account = &mut self.accounts[peer as usize];
        if account.arrived >= account.limit {
            return false;
        }
        account.arrived += 1;
        if account.active {
            self.outstanding -= 1;
        } else {
            // It wakes: what it still has counts in the budget from now on.
            self.outstanding += account.outstanding();
            account.active = true;
            account.recall_ticks = 0;
            self.active.push(peer);
        }
        account.idle_ticks = 0;
        true
    }

    /// The answer to a recall. `false`: it claims what cannot be.
    pub fn returned(&mut self, peer: u32, limit: u64) -> bool {
        let account = &mut self.accounts[peer as usize];
        if !account.recalling || limit < account.arrived || limit > account.limit {
            return false;
        }
        account.recalling = false;
        self.outstanding -= account.limit - limit;
        account.limit = limit;
        true
    }

    /// A sender that used all its credit before the recall reached it has none left to answer with: that is
    /// the answer.
    #[inline]
    pub fn end_recall_if_used_up(&mut self, peer: u32) {
        let account = self.account_mut(peer);
        if account.recalling && account.outstanding() == 0 {
            account.recalling = false;
        }
    }

    /// Whether it is to have more. With exactly half left there is time: an acknowledgement is likely to come
    /// by and take credit along. A sender of one message after the other would else be sent both for each.
    #[inline]
    pub fn wants(&self, peer: u32) -> bool {
        let account = &self.accounts[peer as usize];
        let outstanding = account.outstanding();
        outstanding == 0 || outstanding * 2 < u64::from(account.target)
    }

    /// Nothing, until its session is no longer suspended.
    #[cold]
    pub fn refuse(&mut self, peer: u32) {
        let account = &mut self.accounts[peer as usize];
        if account.outstanding() == 0 && !core::mem::replace(&mut account.hungry, true) {
            self.suspended.push(peer);
        }
    }

    /// A session is no longer suspended: the senders that waited for that ask again.
    pub fn feed_suspended(&mut self) {
        self.hungry.append(&mut self.suspended);
    }

    /// Those that get nothing because their sessions are suspended.
    pub fn suspended(&self) -> &[u32] {
        &self.suspended
    }

    /// Gives the sender what it should have now, within the budget; how much that was.
    pub fn grant(&mut self, peer: u32, room: Room) -> u64 {
        let left = self.left(room);
        // What each active sender may have at most, so that none takes it all.
        let share = (room.usable / (self.active.len() as u64).max(1)).max(u64::from(CREDIT_FLOOR));
        let account = &mut self.accounts[peer as usize];
        if account.recalling {
            return 0;
        }
        let outstanding = account.outstanding();
        if account.active
            && outstanding * 2 < u64::from(account.target)
            && account.arrived > account.arrived_at_tick
        {
            account.target = (account.target * 2).min(self.most);
        }
        let wanted = u64::from(account.target).min(share).saturating_sub(outstanding);
        // Not each single one: a limit moves when it is worth a message, or rides on an acknowledgement.
        let mut grant = wanted.min(left);
        if outstanding == 0 && grant < u64::from(CREDIT_FLOOR) && room.posted {
            // Who sits on the SRQ share must not silence the others: each has what an idle sender has, and
            // while too many use it their NICs wait.
            grant = u64::from(CREDIT_FLOOR);
        }
        if grant > 0 {
            account.limit += grant;
            if account.active {
                self.outstanding += grant;
            }
        } else if outstanding == 0 && !core::mem::replace(&mut account.hungry, true) {
            self.hungry.push(peer);
        }
        grant
    }

    /// Whether senders wait for credit.
    #[inline]
    pub fn has_hungry(&self) -> bool {
        !self.hungry.is_empty()
    }

    /// A sender without credit, which asks again now that some may be left. What takes them is a stack: who
    /// comes out last here, the sender that waited longest, is served first.
    pub fn next_hungry(&mut self, room: Room) -> Option<u32> {
        if self.left(room) == 0 && !room.posted {
            return None;
        }
        let peer = self.hungry.pop()?;
        self.account_mut(peer).hungry = false;
        Some(peer)
    }

    /// The active sender at a position. Only they are looked at with time: what a thousand idle ones have
    /// does not change.
    pub fn active_at(&self, position: usize) -> Option<u32> {
        self.active.get(position).copied()
    }

    /// How many senders are active.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// A tick passed for the active sender at a position. Where it is [`Decay::Idle`] from now on another
    /// takes its position.
    pub fn decay(&mut self, position: usize, reach: Reach) -> Decay {
        let decay = self.decay_one(self.active[position], reach);
        if decay == Decay::Idle {
            let peer = self.active.swap_remove(position);
            let account = &mut self.accounts[peer as usize];
            account.active = false;
            self.outstanding -= account.outstanding();
        }
        decay
    }

    fn decay_one(&mut self, peer: u32, reach: Reach) -> Decay {
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
            return if account.recall_ticks < RECALL_TICKS { Decay::Stays } else { Decay::Idle };
        }
        let may_hear = match reach {
            // One that takes long to connect counts as one that does not answer.
            Reach::NotYet if account.idle_ticks < RECALL_TICKS => return Decay::Stays,
            Reach::NotYet => return Decay::Idle,
            Reach::NoMore => return Decay::Stays,
            Reach::Stands { may_hear } => may_hear,
        };
        if account.idle_ticks < IDLE_TICKS {
            return Decay::Stays;
        }
        if outstanding == 0 {
            return Decay::Asks;
        }
        if outstanding <= u64::from(CREDIT_FLOOR) {
            account.target = CREDIT_FLOOR;
            return Decay::Idle;
        }
        if !may_hear {
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
impl Credit {
    /// Credit that it should have.
    pub fn target(&self, peer: u32) -> u32 {
        self.accounts[peer as usize].target
    }
}
