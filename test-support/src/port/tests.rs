//! Tests of reserved ports, and of ports that are in use.

use super::{Port, probe};
use std::net::TcpListener;

#[test]
fn one_port_is_taken_once() {
    let port = Port::take();
    assert_ne!(Port::take().number(), port.number());
}

#[test]
fn where_somebody_listens_is_no_free_port_and_a_look_at_it_keeps_nobody_away() {
    let port = Port::take();
    let look = probe(port.number()).expect("free");
    let listener = TcpListener::bind(("127.0.0.1", port.number())).expect("the look is in nobody's way");
    assert!(probe(port.number()).is_err());
    drop((look, listener));
    assert!(probe(port.number()).is_ok());
}
