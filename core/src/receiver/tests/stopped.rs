//! Applications that give nothing back, one after the other: each keeps what it got, and the others go on.

use super::*;

const MS: u64 = 1_000_000;
/// Bytes of a large message of those that go on: a fragment.
const LARGE: u64 = 256 << 10;

/// A receiver with default sizes, one application that goes on, and its sender.
struct Others {
    bench: Bench,
    good: SessionId,
    sender: PeerId,
    sequence: u64,
    /// SENDs of each peer so far.
    sent: BTreeMap<u32, u64>,
}

impl Others {
    fn new(config: Config) -> Self {
        let mut bench = Bench::new(config);
        bench.receiver.handle_escape_memory(u32::MAX);
        let good = bench.open("good");
        let sender = bench.join("good");
        Self { bench, good, sender, sequence: 0, sent: BTreeMap::new() }
    }

    fn may_send(&mut self, peer: PeerId) -> bool {
        let sent = self.sent.entry(peer.0).or_default();
        let may = *sent < self.bench.world.limits[&peer.0] && !self.bench.world.posted.is_empty();
        *sent += u64::from(may);
        may
    }

    /// Ends READs and copies, has the good application give back what it got, and lets time pass.
    fn turn(&mut self) {
        let bench = &mut self.bench;
        bench.flush();
        while !bench.world.reads.is_empty() {
            bench.read_done();
            while let Some((part, _)) = bench.delivery(self.good) {
                let last = part.flags & delivery_flags::LAST != 0;
                bench.release(self.good, &part, last, 0);
            }
            bench.flush();
        }
        while let Some((part, _)) = bench.delivery(self.good) {
            let last = part.flags & delivery_flags::LAST != 0;
            bench.release(self.good, &part, last, 0);
        }
        while bench.world.memory.copying() > 0 {
            bench.copied(true);
        }
        for peer in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(peer));
        }
        bench.flush();
        bench.wait(MS);
    }

    /// Sends the good application a large message and a small one. Panics unless both are consumed soon.
    fn goes_on(&mut self, beside: &str) {
        for large in [true, false] {
            let mut tries = 0;
            while !self.may_send(self.sender) {
                tries += 1;
                assert!(tries < 50, "no credit, or no entry, {beside}: {:?}", self.bench.receiver.stats());
                self.turn();
            }
            self.sequence += 1;
            let sequence = self.sequence;
            if large {
                self.bench.request(self.sender, sequence, LARGE, None);
            } else {
                self.bench.small(self.sender, sequence, b"x");
            }
            let mut turns = 0;
            let end = (self.sender.0, sequence, AckStatus::Consumed);
            while !self.bench.world.ends.contains(&end) {
                turns += 1;
                let stats = self.bench.receiver.stats();
                assert!(turns < 200, "large {large}: no end {beside}: {stats:?}");
                self.turn();
            }
        }
    }

    /// An application begins to which somebody sends large messages, and which gives nothing back.
    fn stopped(&mut self, number: usize, pins: bool, length: u64) {
        let name = alloc::format!("stopped-{number}");
        let (session, peer) = (self.bench.open(&name), self.bench.join(&name));
        if pins {
            let slots = (0..self.bench.receiver.config.session_slots).map(|slot| (session.0, slot));
            self.bench.world.memory.pinned.extend(slots);
        }
        for sequence in 1..=8 {
            if self.may_send(peer) {
                self.bench.request(peer, sequence, length, None);
            }
            self.turn();
        }
    }
}

#[test]
fn applications_that_stop_one_after_the_other_stop_nobody_else() {
    for (pins, length) in [(true, 16 << 20), (false, 16 << 20), (true, 8 << 10), (false, 1 << 20)] {
        let mut others = Others::new(Config::default());
        others.goes_on("alone");
        // With the good one these are as many as there may be.
        for number in 1..64 {
            others.stopped(number, pins, length);
            others.goes_on(&alloc::format!("beside {number} that stopped, pins {pins}, {length} bytes"));
        }
    }
}

#[test]
fn an_application_that_reads_nothing_holds_few_small_messages_however_often_its_senders_come() {
    // Slabs are short, or records are.
    let many_records = Config { messages_max: 1 << 17, ..Config::default() };
    let few_records = Config { messages_max: 4096, ..Config::default() };
    for (config, pins) in [(many_records, false), (many_records, true), (few_records, false)] {
        let mut others = Others::new(config);
        others.goes_on("alone");
        let hog = others.bench.open("hog");
        if pins {
            let slots = (0..others.bench.receiver.config.session_slots).map(|slot| (hog.0, slot));
            others.bench.world.memory.pinned.extend(slots);
        }
        // Each begins with the credit of a newcomer, uses it, and leaves.
        for life in 0..12_000 {
            let peer = others.bench.join("hog");
            others.sent.remove(&peer.0);
            let mut sequence = 0;
            while others.may_send(peer) {
                sequence += 1;
                others.bench.small(peer, sequence, b"x");
            }
            others.bench.receiver.handle_peer_lost(peer);
            others.turn();
            if life % 500 == 0 {
                others.goes_on(&alloc::format!("after {life} senders, pins {pins}"));
            }
        }
        let stats = others.bench.receiver.stats();
        assert!(stats.free_slabs + stats.posted_slabs >= config.pool_slabs / 8 - 64, "{stats:?}");
        assert!(stats.messages < config.messages_max * 3 / 4, "{stats:?}");
    }
}

#[test]
fn applications_that_die_with_what_they_got_leave_the_others_their_room() {
    let mut others = Others::new(Config::default());
    others.goes_on("alone");
    let mut most = 0;
    for life in 0..300 {
        let name = alloc::format!("dies-{}", life % 6);
        let (session, peer) = (others.bench.open(&name), others.bench.join(&name));
        others.sent.remove(&peer.0);
        for sequence in 1..=2 {
            if others.may_send(peer) {
                others.bench.request(peer, sequence, 2 << 20, None);
            }
        }
        // Twenty lives in a second, and each is in quarantine for one.
        (0..50).for_each(|_| others.turn());
        let Others { bench, .. } = &mut others;
        bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
        bench.receiver.handle_peer_lost(peer);
        others.turn();
        most = most.max(others.bench.receiver.stats().quarantined_slabs);
        if life % 10 == 0 {
            others.goes_on(&alloc::format!("after {life} lives"));
        }
    }
    assert!(most < 3072 / 2, "{most} slabs were in quarantine");
}
