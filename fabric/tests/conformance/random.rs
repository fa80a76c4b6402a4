//! Random traffic over several connections, compared with what was asked for.

use crate::harness::*;
use jet_fabric::nic::{Payload, PostError, Qp, Status};
use std::collections::HashMap;

/// QPs of a connection, and what each end has sent over it.
struct Pair {
    qps: [Qp; 2],
    sent: [Vec<Vec<u8>>; 2],
}

/// READ under way: where its bytes go, and where they come from.
struct Running {
    end: usize,
    qps: [Qp; 2],
    stretches: Vec<(usize, usize)>,
    from: usize,
}

const QUARTER: usize = READ_AREA / 4;

/// Returns the seed that the environment names, or a new one, and prints it.
pub fn seed() -> u64 {
    let seed =
        std::env::var("JET_CONFORMANCE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            u64::from(now.subsec_nanos())
        });
    println!("JET_CONFORMANCE_SEED={seed}");
    seed
}

pub fn random_traffic_arrives_as_it_was_sent(fabric: &dyn Fabric) {
    let mut numbers = fastrand::Rng::with_seed(seed());
    let mut world = World::new(fabric);
    let mut pairs: Vec<Pair> = (0..6).map(|_| new_pair(&mut world)).collect();
    let mut running: HashMap<(usize, u64), Running> = HashMap::new();
    for _ in 0..1500 {
        let (end, pair) = (numbers.usize(..2), numbers.usize(..pairs.len()));
        match numbers.usize(..100) {
            0 => end_pair(&mut world, &mut pairs, pair, end, &mut running),
            1..60 => send(&mut world, &mut pairs[pair], end, &mut numbers),
            _ => read(&mut world, &pairs[pair], end, &mut numbers, &mut running),
        }
        if numbers.usize(..3) > 0 {
            let end = numbers.usize(..2);
            world.ends[end].step();
            check_reads(&mut world, end, &mut running);
        }
    }
    world.settle();
    (0..2).for_each(|end| check_reads(&mut world, end, &mut running));
    assert!(running.is_empty());
    let sent = |to: usize| pairs.iter().map(|pair| pair.sent[1 - to].len()).sum::<usize>();
    let pair_qps: Vec<_> = pairs.iter().map(|pair| pair.qps).collect();
    world.until("every SEND of the connections that stand", |ends| {
        (0..2).all(|end| {
            let of_standing = |one: &&Received| pair_qps.iter().any(|qps| qps[end] == one.qp);
            ends[end].received.iter().filter(of_standing).count() == sent(end)
        })
    });
    for pair in &pairs {
        for end in 0..2 {
            check_received(&world.ends[end], pair, end, true);
        }
    }
}

fn new_pair(world: &mut World) -> Pair {
    let (client, server) = world.connect();
    Pair { qps: [server, client], sent: [Vec::new(), Vec::new()] }
}

fn send(world: &mut World, pair: &mut Pair, end: usize, numbers: &mut fastrand::Rng) {
    let (from, bytes) = (numbers.usize(..SOURCE_BYTES - SLAB), numbers.usize(..SLAB + 1));
    let bytes = if numbers.usize(..2) == 0 { bytes % 128 } else { bytes };
    let (inline, area) = (source_bytes(from, bytes), world.ends[end].source_area(from, bytes));
    let registered = numbers.usize(..2) == 0;
    let payload = if registered { Payload::Registered(area) } else { Payload::Inline(&inline) };
    let number = pair.sent[end].len() as u64;
    match world.ends[end].try_send(pair.qps[end], &header(number), payload) {
        Ok(_) => pair.sent[end].push(inline),
        Err(PostError::QueueFull) => {}
        Err(error) => panic!("SEND: {error}"),
    }
}

fn read(
    world: &mut World,
    pair: &Pair,
    end: usize,
    numbers: &mut fastrand::Rng,
    running: &mut HashMap<(usize, u64), Running>,
) {
    // Four READs at once have a quarter of the area each.
    let Some(quarter) = (0..4).find(|quarter| {
        !running.values().any(|one| one.end == end && one.stretches[0].0 / QUARTER == *quarter)
    }) else {
        return;
    };
    let pieces = 1 + numbers.usize(..world.ends[end].nic().limits().scatter_max.min(32) as usize);
    let mut at = quarter * QUARTER;
    let stretches: Vec<_> = (0..pieces)
        .map(|_| {
            let (gap, bytes) = (numbers.usize(..64), 1 + numbers.usize(..QUARTER / pieces - 64));
            at += gap + bytes;
            (at - bytes, bytes)
        })
        .collect();
    let bytes: usize = stretches.iter().map(|(_, bytes)| bytes).sum();
    let from = numbers.usize(..SOURCE_BYTES - bytes + 1);
    let (address, key) = world.ends[1 - end].source_address(from as u64);
    let scatter: Vec<_> =
        stretches.iter().map(|&(offset, bytes)| world.ends[end].read_area(offset, bytes)).collect();
    let qps = pair.qps;
    // The other end may offer these bytes before or after, or others that nobody reads.
    let hint = numbers.usize(..5);
    let offer = |world: &mut World, address| {
        let bytes = u32::try_from(bytes).unwrap();
        world.ends[1 - end].nic().offer(qps[1 - end], address, key, bytes);
    };
    match hint {
        0 => offer(world, address),
        1 => {
            // The offer arrives before the READ is posted, and perhaps the bytes do, too.
            offer(world, address);
            for at in [1 - end, end] {
                world.ends[at].step();
                check_reads(world, at, running);
            }
        }
        2 => offer(world, address.saturating_sub(1)),
        _ => {}
    }
    match world.ends[end].try_read(qps[end], address, key, &scatter) {
        Ok(id) => drop(running.insert((end, id), Running { end, qps, stretches, from })),
        Err(PostError::QueueFull) => {}
        Err(error) => panic!("READ: {error}"),
    }
    if hint == 3 {
        offer(world, address);
    }
}

fn check_reads(world: &mut World, end: usize, running: &mut HashMap<(usize, u64), Running>) {
    let ended: Vec<_> = running
        .keys()
        .filter(|(of, id)| *of == end && !world.ends[end].reads.contains_key(id))
        .copied()
        .collect();
    for key in ended {
        let Running { qps, stretches, mut from, .. } = running.remove(&key).unwrap();
        match world.ends[end].status(key.1) {
            Some(Status::Success) => {
                for (offset, bytes) in stretches {
                    let read = world.ends[end].area_bytes(offset, bytes);
                    assert!(read == source_bytes(from, bytes), "READ {} of end {end}", key.1);
                    from += bytes;
                }
            }
            Some(Status::Flushed) => {}
            status => {
                let reason = |at: usize| world.ends[at].ended.get(&qps[at]).copied();
                assert!(
                    status == Some(UNACKNOWLEDGED) && went_unheard(reason(end), reason(1 - end)),
                    "READ {} of end {end} ended {status:?}, its connection {:?}",
                    key.1,
                    reason(end)
                );
            }
        }
    }
}

/// Checks that an end received over a pair what the other end sent: all of it, or its beginning.
fn check_received(end: &End, pair: &Pair, at: usize, all: bool) {
    let arrived: Vec<_> = end.received.iter().filter(|one| one.qp == pair.qps[at]).collect();
    let sent = &pair.sent[1 - at];
    assert!(arrived.len() == sent.len() || !all && arrived.len() < sent.len(), "{} lost SENDs", end.name);
    for (number, (arrived, sent)) in arrived.iter().zip(sent).enumerate() {
        assert_eq!(number_of(arrived), number as u64, "{}: out of order", end.name);
        assert!(arrived.payload == *sent, "{}: SEND {number} changed on its way", end.name);
    }
}

/// Ends one connection in the middle of the traffic, and makes another.
fn end_pair(
    world: &mut World,
    pairs: &mut Vec<Pair>,
    which: usize,
    by: usize,
    running: &mut HashMap<(usize, u64), Running>,
) {
    let pair = pairs.swap_remove(which);
    world.ends[by].nic().disconnect(pair.qps[by]);
    world.until("the end of a connection", |ends| {
        (0..2).all(|end| ends[end].ended.contains_key(&pair.qps[end]))
    });
    for end in 0..2 {
        check_reads(world, end, running);
        check_received(&world.ends[end], &pair, end, false);
        world.ends[end].events.clear();
    }
    pairs.push(new_pair(world));
}
