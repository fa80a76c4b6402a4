//! Senders and conventional receivers, all in this process.

use super::arrivals::{Arrival, Poisson};
use super::buffers::Kind;
use super::conventional::{self, ConventionalArgs, Counting};
use super::touched::Touched;
use super::traffic::{self, Shape, Traffic};
use jet_client::receive::RegisterOptions;
use jet_client::send::SenderOptions;
use jet_fabric::Address;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

#[test]
fn all_receivers_and_their_senders_spin_as_long_as_jets() {
    let application = RegisterOptions::new("bench").spin_max;
    let sender = SenderOptions::new(Address::Shm("/nowhere".into()), "bench").spin_max;
    assert_eq!((conventional::APPLICATION_SPIN, traffic::SPIN), (application, sender));
    let reactor = jet::daemon::Config::default().reactor.spin_us_max;
    assert_eq!(conventional::NIC_SPIN, Duration::from_micros(reactor));
}

struct Rig {
    _directory: tempfile::TempDir,
    touched: Touched,
    counting: Arc<Counting>,
    traffic: Traffic,
}

/// Starts a receiver on threads of its own, which end with the process of the test, and its senders.
fn start(buffers: Kind, reads_max: Option<u32>, shape: Shape) -> Rig {
    let directory = tempfile::tempdir().unwrap();
    let touched = Touched::new().unwrap();
    let counting = Arc::new(Counting::default());
    let args = ConventionalArgs {
        listen: Address::Shm(directory.path().join("nic.sock")),
        connections: shape.connections,
        depth: shape.depth,
        message_bytes: shape.message_bytes,
        buffers,
        reads_max,
        core: None,
        touched: touched.path(),
    };
    let (listens, address) = sync_channel(1);
    let counts = Arc::clone(&counting);
    std::thread::spawn(move || {
        conventional::receive(&args, counts, |address| listens.send(address.clone()).unwrap()).unwrap();
    });
    let address = address.recv().unwrap();
    let traffic = Traffic::connect(&address, shape).unwrap();
    Rig { _directory: directory, touched, counting, traffic }
}

#[test]
fn all_that_is_offered_is_consumed_once_by_every_kind() {
    for message_bytes in [100, 5000, 300_000, 1 << 20] {
        for (buffers, reads_max) in [(Kind::Own, None), (Kind::Own, Some(3)), (Kind::Shared, None)] {
            let shape = Shape { connections: 4, depth: 8, message_bytes };
            let mut rig = start(buffers, reads_max, shape);
            let arrivals = Poisson::new(1, 2000.0, Duration::from_millis(50), shape.connections);
            let figures = rig.traffic.offer(arrivals.clone()).unwrap();
            let what = format!("{message_bytes} bytes, {buffers:?}, {reads_max:?}");
            assert_eq!(figures.messages, arrivals.count() as u64, "{what}");
            assert!(rig.traffic.run(Duration::from_millis(20)).unwrap().messages > 0, "{what}");
            assert!(rig.touched.bytes() >= message_bytes.min(4096), "{what}");
        }
    }
}

#[test]
fn no_more_reads_run_at_once_than_are_allowed() {
    let shape = Shape { connections: 8, depth: 16, message_bytes: 600_000 };
    let mut capped = start(Kind::Own, Some(5), shape);
    capped.traffic.run(Duration::from_millis(100)).unwrap();
    let most = capped.counting.take();
    assert!((1..=5).contains(&most.reads), "{most:?}");
    let mut own = start(Kind::Own, None, shape);
    own.traffic.run(Duration::from_millis(100)).unwrap();
    let most = own.counting.take();
    assert!(most.reads > 5, "{most:?}: nothing to hold back");
}

/// The senders are held up for 100 ms. In that time a hundred messages are due on one connection, which takes
/// one at a time.
#[test]
fn a_message_is_timed_from_when_it_was_to_arrive() {
    let shape = Shape { connections: 2, depth: 1, message_bytes: 4096 };
    let mut rig = start(Kind::Own, None, shape);
    let held_up = Duration::from_millis(100);
    // The clock starts when the first arrival is asked for: by then the turn's clock runs.
    let mut clock = None;
    let arrivals = (0..100u64).map(|at_ns| {
        let since = *clock.get_or_insert_with(Instant::now);
        while at_ns == 1 && since.elapsed() < held_up {
            std::hint::spin_loop();
        }
        Arrival { at_ns, connection: 0 }
    });
    let figures = rig.traffic.offer(arrivals).unwrap();
    assert_eq!(figures.messages, 100);
    // Up to the rounding of the histogram.
    assert!(figures.p50_us > 99_500.0, "{figures:?}");
    assert!(figures.late_p999_us > 99_500.0, "{figures:?}");
}
