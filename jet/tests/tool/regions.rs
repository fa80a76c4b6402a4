//! Tests of `jet send` to a receiver that does not take all of its memory.

use crate::host::Host;
use jet::files::receiving::ReceiveReport;
use jet::files::sending::SendReport;
use jet_client::send::{SendBuffer, Sender, SenderOptions};
use jet_test_support::limits::limit;
use jet_test_support::process::Process;
use jet_test_support::tree::test_bytes;
use jet_test_support::waiting::until;
use rustix::process::Resource;
use std::fs;

/// Descriptors of the daemon. Half of them are for files of regions, and three quarters of those for one
/// process.
const DESCRIPTORS: u64 = 96;
/// Regions of the process that takes its share.
const SHARE: usize = 36;
const FILE_BYTES: usize = 160 << 20;

/// A sender that holds so many regions that few are left to `jet send`: enough to connect, and too few for
/// 128 pieces that wait to be read, in 32 regions. (A file is closed when its region is read.)
struct Crowd {
    sender: Sender,
    _held: Vec<SendBuffer>,
}

impl Crowd {
    fn come(host: &Host) -> Self {
        let address = host.address().parse().unwrap();
        let options = SenderOptions::new(address, "store").region_bytes(4096);
        let mut sender = Sender::connect(&options).expect("the daemon listens");
        let mut held: Vec<_> =
            (0..SHARE).map(|_| sender.buffer(4096).expect("few regions of its own")).collect();
        // Regions are taken in their order, and a message out of the last one once it was taken.
        let last = held.pop().expect("there are some");
        sender.send_small_buffer(1, last).expect("room for a message");
        let ended = until("the daemon to have them", || sender.poll());
        held.extend(ended.buffer);
        let mut crowd = Self { sender, _held: held };
        until("one sender", || {
            crowd.turn();
            host.status().filter(|status| status.peer_count == 1)
        });
        crowd
    }

    fn turn(&mut self) {
        assert!(self.sender.poll().is_none() && self.sender.is_connected());
    }
}

/// Starts a daemon of few descriptors, a slow receiver, and a sender of a file that finds too few regions.
fn start(host: &Host, retry_for: &str) -> ([Process; 3], Crowd) {
    let daemon = host.daemon_prepared(&[], |command| limit(command, Resource::Nofile, DESCRIPTORS));
    let recv = host.recv(&host.path("out"), &["--slow", "20ms", "--depth", "2"]);
    let crowd = Crowd::come(host);
    let file = host.path("file");
    fs::write(&file, test_bytes(1, FILE_BYTES)).unwrap();
    let options = ["--in-flight", "128", "--piece-bytes", "1048576", "--retry-for", retry_for];
    let send = host.send(&[&file], &options);
    ([daemon, recv, send], crowd)
}

const NOT_TAKEN: &str = "does not take a region of this sender's memory: the receiver reads as many regions \
     as it can, of all senders on this host together; stop some of them, or raise the descriptors of the \
     jetd there (ulimit -n, in a service LimitNOFILE)";

#[test]
fn memory_that_is_not_taken_while_files_are_sent_is_named_with_what_to_do() {
    let host = Host::on_shm();
    let ([_daemon, recv, mut send], mut crowd) = start(&host, "60");
    until("it to say what is not taken", || {
        crowd.turn();
        send.stderr_text().contains(NOT_TAKEN).then_some(())
    });
    // The other program ends, as was advised, and the file arrives.
    drop(crowd);
    assert!(send.wait().success(), "{}", send.stderr_text());
    let (sent, said) = (send.printed::<SendReport>(), send.stderr_text());
    assert_eq!((sent.files, sent.failed), (1, 0), "{sent:?}");
    assert_eq!(said.matches("does not take a region").count(), 1, "{said}");
    assert!(said.contains("trying again for 60 s"), "{said}");
    recv.stop::<ReceiveReport>();
    assert_eq!(fs::read(host.path("out").join("file")).unwrap(), test_bytes(1, FILE_BYTES));
}

#[test]
fn memory_that_is_not_taken_for_too_long_is_why_files_are_not_sent() {
    let host = Host::on_shm();
    let ([_daemon, _recv, mut send], mut crowd) = start(&host, "2");
    until("it to give up", || {
        crowd.turn();
        (!send.is_running()).then_some(())
    });
    assert_eq!(send.wait().code(), Some(1));
    let sent = send.printed::<SendReport>();
    let failure = &sent.failures[0].error;
    assert!(failure.contains("not made again in time") && failure.contains(NOT_TAKEN), "{failure}");
}
