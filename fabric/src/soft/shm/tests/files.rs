//! Tests of files that a peer sends and that do not close: they hold up neither the NIC nor its end.

use super::*;
use crate::soft::lingering::Lingering;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use std::io::IoSlice;
use std::mem::MaybeUninit;

/// Most files of one packet here, which are more than any message has.
const MANY: usize = 12;

/// Sends a packet with these files, which this end keeps no more.
fn send_files(socket: &OwnedFd, bytes: &[u8], files: Vec<OwnedFd>) {
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).unwrap();
}

/// Sends a control message with a file, which this end keeps no more.
fn send_with(socket: &OwnedFd, control: Control, file: OwnedFd) {
    assert!(send_control(socket, control, Some(file.as_fd())).unwrap());
}

fn until_closed(place: &mut Place, socket: &OwnedFd) {
    until("closed", || {
        place.host.turn();
        // Ends the pause that follows so many newcomers.
        place.host.now_ns += 100_000;
        matches!(receive(socket), Received::Closed)
    });
}

/// Runs what must not wait for the close of a file. The bound is half of the time that the close takes.
fn without_waiting(runs: impl FnOnce()) {
    let begin = Instant::now();
    runs();
    assert!(begin.elapsed() < Lingering::SPAN / 2, "{:?}", begin.elapsed());
}

#[test]
fn files_that_do_not_close_hold_up_no_turn() {
    without_waiting(|| {
        let mut place = Place::new(SoftOptions::default());
        let mut kept = Vec::new();
        let mut lingering = || {
            let (far, file) = Lingering::new();
            kept.push(far);
            file
        };
        // A request's file that is no link, alone and with another; a message that no newcomer may send; no
        // message at all, before and after a message without bytes.
        let socket = connect_to(&place.path).unwrap();
        send_with(&socket, connect_control(1), lingering());
        until_closed(&mut place, &socket);
        let socket = connect_to(&place.path).unwrap();
        send_with(&socket, Control::Register(1), lingering());
        until_closed(&mut place, &socket);
        for first in [&b"what?"[..], b""] {
            let socket = connect_to(&place.path).unwrap();
            send(&socket, first, SendFlags::empty()).unwrap();
            send_files(&socket, b"!", vec![lingering(), lingering()]);
            until_closed(&mut place, &socket);
        }
        // A region that is none, a file with a message that has none, and too many files.
        let (socket, _link, _) = place.raw_peer();
        send_with(&socket, Control::Register(1), lingering());
        until_closed(&mut place, &socket);
        let (socket, _link, _) = place.raw_peer();
        send_with(&socket, Control::Deregister(1), lingering());
        until_closed(&mut place, &socket);
        let (socket, _link, _) = place.raw_peer();
        send_files(&socket, b"many", (0..MANY).map(|_| lingering()).collect());
        until_closed(&mut place, &socket);
        // A connection that ends before its last message is read.
        let (socket, _link, qp) = place.raw_peer();
        send_with(&socket, Control::Register(1), lingering());
        place.host.nic.disconnect(qp);
        until_closed(&mut place, &socket);
        // Others come and go.
        let mut client = Host::new(SoftOptions::default());
        place.connect(&mut client);
        drop(place);
        // Without this, the files might have closed before.
        drop(kept);
    });
}

#[test]
fn the_end_waits_for_no_file() {
    without_waiting(|| {
        let mut place = Place::new(SoftOptions::default());
        let (_first, file) = Lingering::new();
        let (standing, _link, _) = place.raw_peer();
        send_with(&standing, Control::Register(1), file);
        // These are strangers for the NIC, and one is in the kernel's queue.
        let strangers: Vec<_> = (0..2).map(|_| connect_to(&place.path).unwrap()).collect();
        until("both wait", || {
            place.host.turn();
            place.host.nic.shm.strangers.count() == 2
        });
        let waiting = connect_to(&place.path).unwrap();
        let (_others, files): (Vec<_>, Vec<_>) = (0..3).map(|_| Lingering::new()).unzip();
        for (socket, file) in strangers.iter().chain([&waiting]).zip(files) {
            send_with(socket, connect_control(1), file);
        }
        drop(place);
        until("closed", || matches!(receive(&waiting), Received::Closed));
    });
}

#[test]
fn where_too_many_files_do_not_close_nobody_new_is_let_in_and_who_is_in_goes_on() {
    let mut place = Place::new(SoftOptions::default());
    let mut client = Host::new(SoftOptions::default());
    let (ours, _) = place.connect(&mut client);
    // All of this process: two of them are being closed, and the others wait.
    let mut kept = Vec::new();
    let stranger = connect_to(&place.path).unwrap();
    until("nobody may come", || {
        let socket = connect_to(&place.path).unwrap();
        let (far, file) = Lingering::new();
        kept.push(far);
        send_with(&socket, connect_control(1), file);
        until_closed(&mut place, &socket);
        until("sorted", || place.host.nic.tables.disposal.waiting() == 0);
        place.host.nic.tables.disposal.is_full()
    });
    // Neither does who was accepted before it has said its request.
    let link = Link::make().unwrap();
    assert!(send_control(&stranger, connect_control(1), Some(link.file().unwrap().as_fd())).unwrap());
    until_closed(&mut place, &stranger);
    let mut late = Host::new(SoftOptions::default());
    late.nic.connect(&Address::Shm(place.path.clone()), &nothing()).unwrap();
    // The time that passes ends each pause.
    for _ in 0..1000 {
        place.host.turn();
        place.host.now_ns += 1_000_000;
    }
    assert!(place.host.events.is_empty(), "{:?}", place.host.events);
    place.host.post_entries(0..1);
    client.send(ours, 1, Payload::None).unwrap();
    until("a SEND", || {
        client.turn();
        place.host.turn();
        !place.host.completions.is_empty()
    });
    drop(kept);
    until("the newcomer", || {
        place.host.turn();
        place.host.now_ns += 1_000_000;
        matches!(place.host.events[..], [Event::ConnectRequest { .. }])
    });
}
