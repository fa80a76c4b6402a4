//! Tests with few records of messages and peers that are slow to hear their ends: no peer is cut off for
//! that.

use super::*;
use alloc::collections::BTreeSet;

/// A sender that hears its ends late.
struct Late {
    peer: PeerId,
    used: u64,
    sequence: u64,
}

impl Late {
    /// Lets a sender join for an application that is not there. Each message ends at once, and no two ends
    /// share a range, for their sequence numbers are not consecutive.
    fn new(bench: &mut Bench) -> Self {
        let hello = Hello {
            versions: Versions::SUPPORTED,
            features: 0,
            sender_id: 1,
            receive_entries: 1,
            app: name("nowhere"),
        };
        let joined =
            bench.receiver.handle_hello(bench.now_ns, &hello, SourceId(0), &mut bench.world).unwrap();
        bench.receiver.handle_connected(joined.peer, 4);
        bench.world.limits.insert(joined.peer.0, joined.welcome.credit_limit);
        bench.flush();
        Self { peer: joined.peer, used: 0, sequence: 0 }
    }

    /// Uses all its credit again and again while it hears at once, so that it is given much credit. Then it
    /// uses it once more while it hears nothing, as if behind READs.
    fn fall_behind(&mut self, bench: &mut Bench) {
        for _ in 0..16 {
            while self.send(bench) {}
            hear_only(bench, self.peer);
        }
        while self.send(bench) {}
    }

    fn send(&mut self, bench: &mut Bench) -> bool {
        if self.used >= bench.world.limits[&self.peer.0] || bench.world.posted.is_empty() {
            return false;
        }
        self.used += 1;
        self.sequence += 2;
        bench.small(self.peer, self.sequence, b"x");
        bench.flush();
        true
    }
}

fn hear(bench: &mut Bench) {
    while !bench.world.sent.is_empty() {
        for peer in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(peer));
        }
        bench.flush();
    }
}

#[test]
fn senders_that_hear_late_leave_half_of_the_records_and_are_not_cut_off() {
    let mut bench = Bench::new(Config { messages_max: 68, peers_max: 64, ..config() });
    let mut all = Vec::new();
    for _ in 0..40 {
        let mut late = Late::new(&mut bench);
        late.fall_behind(&mut bench);
        all.push(late);
    }
    let left = bench.receiver.messages.available();
    assert!(bench.receiver.too_many_ends_wait() && left >= 34, "{left} records are left");
    assert!(bench.world.byes.is_empty(), "cut off: {:?}", bench.world.byes);
    assert!(
        bench.receiver.srq.posted() as usize <= bench.receiver.messages.available(),
        "each entry has its record"
    );
    // The senders hear their ends, and send again.
    for _ in 0..100 {
        hear(&mut bench);
        for late in &mut all {
            late.send(&mut bench);
        }
        bench.wait(10_000_000);
    }
    hear(&mut bench);
    for late in &all {
        let ends: Vec<u64> =
            bench.world.ends.iter().filter(|end| end.0 == late.peer.0).map(|end| end.1).collect();
        let each: BTreeSet<u64> = ends.iter().copied().collect();
        assert_eq!((ends.len(), each.len() as u64), (each.len(), late.used), "each message has one end");
    }
    assert!(bench.world.byes.is_empty() && bench.whole());
}

/// Lets `senders` senders fall behind, none of which hears anything more.
fn let_ends_wait(bench: &mut Bench, senders: usize) {
    for _ in 0..senders {
        Late::new(bench).fall_behind(bench);
    }
    assert!(bench.receiver.too_many_ends_wait());
}

#[test]
fn time_in_which_nobody_looked_is_held_against_no_sender() {
    let mut bench = Bench::new(Config { messages_max: 68, peers_max: 64, ..config() });
    let_ends_wait(&mut bench, 40);
    // The host was paused: completions of the senders' NICs were not polled yet.
    bench.receiver.handle_stall(6_000_000_000);
    bench.wait(6_000_000_000);
    assert!(bench.world.byes.is_empty(), "{:?}", bench.world.byes);
    bench.wait(4_000_000_000);
    assert!(bench.world.byes.is_empty(), "{:?}", bench.world.byes);
    bench.wait(1_000_000_000);
    assert!(!bench.world.byes.is_empty(), "they had their time");
}

#[test]
fn who_hears_nothing_for_long_is_parted_with_when_others_want_its_records() {
    let mut bench = Bench::new(Config { messages_max: 68, peers_max: 64, ..config() });
    const UNRESPONSIVE: usize = 40;
    let_ends_wait(&mut bench, UNRESPONSIVE);
    let session = bench.open("disk");
    let honest = bench.join("disk");
    hear_only(&mut bench, honest);
    for _ in 0..1000 {
        bench.wait(10_000_000);
        hear_only(&mut bench, honest);
        assert!(bench.now_ns >= 5_000_000_000 || bench.world.byes.is_empty(), "after {} ns", bench.now_ns);
    }
    // Some of them were disconnected, which was enough, and no other peer was.
    let byes = &bench.world.byes;
    assert!(!byes.is_empty() && byes.len() < UNRESPONSIVE, "{byes:?}");
    let stats = bench.receiver.stats();
    assert_eq!((stats.unresponsive_peers, stats.peer_faults), (byes.len() as u64, 0));
    assert!(!bench.world.byes.contains(&honest.0));
    for &peer in &bench.world.byes.clone() {
        bench.receiver.handle_peer_lost(PeerId(peer));
    }
    bench.flush();
    for sequence in 1..100 {
        bench.small(honest, sequence, b"x");
        let (delivery, _) = bench.delivery(session).unwrap();
        bench.release(session, &delivery, true, 0);
        bench.flush();
        hear_only(&mut bench, honest);
    }
    assert_eq!(bench.world.ends.iter().filter(|end| end.0 == honest.0).count(), 99);
}

fn hear_only(bench: &mut Bench, peer: PeerId) {
    while let Some(position) = bench.world.sent.iter().position(|sent| *sent == peer.0) {
        bench.world.sent.remove(position);
        bench.receiver.handle_sent(peer);
        bench.flush();
    }
}

#[test]
fn sessions_that_keep_their_messages_leave_records_to_the_others() {
    // Four sessions may have 32 messages each, and there are 72 records.
    let mut bench = Bench::new(Config { messages_max: 72, peers_max: 8, ..config() });
    bench.receiver.handle_escape_memory(u32::MAX);
    let names = ["a", "b", "c"];
    let keepers: Vec<SessionId> = names.map(|app| bench.open(app)).to_vec();
    let honest = bench.open("honest");
    let mut senders: Vec<(PeerId, u64)> = names.map(|app| (bench.join(app), 0)).to_vec();
    let mine = bench.join("honest");
    let mut sequence = 0;
    for turn in 0..400 {
        for (peer, sent) in &mut senders {
            if *sent < bench.world.limits[&peer.0] && !bench.world.posted.is_empty() {
                *sent += 1;
                bench.small(*peer, *sent, b"x");
            }
        }
        bench.wait(1_000_000);
        while bench.world.memory.copying() > 0 {
            bench.copied(true);
        }
        // The applications leave unread what they get.
        hear(&mut bench);
        for (peer, keep) in core::mem::take(&mut bench.world.recalls) {
            let of = senders.iter_mut().find(|(sender, _)| sender.0 == peer);
            let mut own = (mine, sequence);
            let (_, sent) = of.unwrap_or(&mut own);
            *sent += 1;
            let keep = keep.max(*sent);
            bench.world.limits.insert(peer, keep);
            bench.arrive(PeerId(peer), &jet_wire::message::CreditReturn::encode(keep), &[]);
            if peer == mine.0 {
                sequence += 1;
            }
        }
        if turn < 200 {
            continue;
        }
        // The other sessions are at their limits by now: this one is still served.
        if sequence < bench.world.limits[&mine.0] && !bench.world.posted.is_empty() {
            sequence += 1;
            bench.small(mine, sequence, b"x");
            let (delivery, _) = bench.delivery(honest).expect("delivered at once");
            bench.release(honest, &delivery, true, 0);
        }
    }
    let mine_ended =
        bench.world.ends.iter().filter(|end| end.0 == mine.0 && end.2 == AckStatus::Consumed).count();
    assert!(
        mine_ended > 150,
        "{mine_ended} of 200, {} records are left",
        bench.receiver.messages.available()
    );
    assert!(
        keepers.iter().all(|keeper| bench.receiver.session_stats(*keeper).unwrap().delivered_messages > 8)
    );
    assert!(bench.world.byes.is_empty());
}

#[test]
fn those_that_wake_at_once_wait_for_records() {
    let mut bench = Bench::new(Config { messages_max: 68, peers_max: 64, ..config() });
    for _ in 0..7 {
        Late::new(&mut bench).fall_behind(&mut bench);
    }
    let left = bench.receiver.messages.available();
    assert!(left < 50, "{left} records are left");
    // More idle senders than there are records or posted entries, each with the one credit of an idle sender,
    // for an application that keeps its messages.
    let session = bench.open("keeper");
    let senders: Vec<PeerId> = (0..50).map(|_| bench.join("keeper")).collect();
    let mut waiting: VecDeque<PeerId> = senders.iter().copied().collect();
    while !bench.world.posted.is_empty()
        && let Some(peer) = waiting.pop_front()
    {
        bench.small(peer, 1, b"x");
        bench.flush();
        let left = bench.receiver.messages.available();
        assert!(bench.receiver.srq.posted() as usize <= left, "each entry has its record");
    }
    // The application releases its messages, and the senders can send again.
    for _ in 0..100 {
        while let Some((delivery, _)) = bench.delivery(session) {
            bench.release(session, &delivery, true, 0);
        }
        bench.flush();
        while !bench.world.posted.is_empty()
            && let Some(peer) = waiting.pop_front()
        {
            bench.small(peer, 1, b"x");
        }
    }
    hear(&mut bench);
    // The application keeps as much as it may, so some are asked to send again.
    let ends = bench.world.ends.iter().filter(|end| senders.contains(&PeerId(end.0)));
    let ends: Vec<_> = ends.map(|end| end.2).collect();
    let consumed = ends.iter().filter(|&&end| end == AckStatus::Consumed).count();
    let busy = ends.iter().filter(|&&end| end == AckStatus::Busy).count();
    assert!(consumed >= 34 && consumed + busy == 50, "{ends:?}");
    assert!(bench.world.byes.is_empty());
}
