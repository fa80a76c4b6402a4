//! Tests of waits with a limit.

use super::sender::{Behaviour, LONG, over_both};
use crate::send::{AckStatus, Sender, WaitError};
use std::time::{Duration, Instant};

#[test]
fn a_wait_whose_time_runs_out_says_not_yet_and_that_is_not_nothing() {
    over_both(&[Behaviour::Keep], |_, options| {
        let short = Duration::from_millis(5);
        let mut sender = Sender::connect(&options).unwrap();
        assert!(sender.wait_timeout(Duration::MAX).unwrap().is_none(), "nothing is in flight");
        sender.send_small(1, b"kept").unwrap();
        let begin = Instant::now();
        let error = sender.wait_timeout(short).expect_err("nothing ends");
        assert!(begin.elapsed() >= short, "{:?}", begin.elapsed());
        assert!(matches!(error, WaitError::NotYet) && error.is_not_yet(), "{error}");
        assert!(!WaitError::System(std::io::ErrorKind::Other.into()).is_not_yet());
        assert!(matches!(sender.wait_timeout(Duration::ZERO), Err(WaitError::NotYet)));
        // The next message ends, and the first still has none.
        let second = sender.send_small(2, b"consumed").unwrap();
        let end = sender.wait_timeout(LONG).unwrap().expect("two are in flight");
        assert_eq!((end.ticket, end.status), (second, AckStatus::Consumed));
        assert!(matches!(sender.drain_timeout(short), Err(WaitError::NotYet)));
        assert!(matches!(sender.close_timeout(short), Err(WaitError::NotYet)));
        assert_eq!(sender.stats().in_flight, 1);
    });
}

#[test]
fn waits_without_a_limit_end_when_everything_has() {
    over_both(&[], |_, options| {
        let mut sender = Sender::connect(&options).unwrap();
        for tag in 0..20 {
            sender.send_small(tag, b"bytes").unwrap();
        }
        let first = sender.wait().unwrap().expect("all are in flight");
        assert!(first.latency > Duration::ZERO);
        sender.drain().unwrap();
        assert_eq!(std::iter::from_fn(|| sender.poll()).count(), 19);
        assert!(sender.wait().unwrap().is_none());
        sender.close().unwrap();
        assert!(!sender.is_connected());
    });
}
