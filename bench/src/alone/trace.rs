//! Rows of when messages passed their hand-overs.

use super::stamps::{At, FIRST, Stamps};
use crate::report::{Bound, Row, median};

/// When the sender submitted a message, had posted it, and had its end.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub submitted: u64,
    pub posted: u64,
    pub ended: u64,
}

/// Returns when a message was at the two ends of an interval, by its number and its times at the sender.
type Ends<'a> = &'a dyn Fn(u64, &Times) -> (u64, u64);

/// Makes rows of the times between hand-overs, each the median of all messages.
fn interval_rows(fabric: &str, case: &str, times: &[Times], intervals: &[(&str, Ends<'_>)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (number, (what, ends)) in (1..).zip(intervals) {
        let span = |(message, times)| {
            let (from, to) = ends(message, times);
            #[allow(clippy::cast_precision_loss)] // below seconds
            let span = to.saturating_sub(from) as f64;
            span
        };
        let spans: Vec<f64> = (FIRST..).zip(times).map(span).collect();
        let metric = format!("{fabric}, {case}, {number}: {what}");
        rows.push(Row::new("alone", &metric, "ns", vec![median(&spans)], Bound::None));
    }
    rows
}

/// Makes the rows of messages to an application that is linked into the receiver.
pub(super) fn linked_rows(fabric: &str, stamps: &Stamps, times: &[Times]) -> Vec<Row> {
    let at = |message, at| stamps.read(message, at);
    interval_rows(
        fabric,
        "linked",
        times,
        &[
            ("the sender submits and posts it", &|_, t| (t.submitted, t.posted)),
            ("the receiver's turn begins", &|n, t| (t.posted, at(n, At::Turn))),
            ("the application has it", &|n, _| (at(n, At::Turn), at(n, At::Taken))),
            ("the application read it and gave it back", &|n, _| (at(n, At::Taken), at(n, At::GivenBack))),
            ("the receiver has sent its end", &|n, _| (at(n, At::GivenBack), at(n, At::Answered))),
            ("the sender has its end, since it was given back", &|n, t| (at(n, At::GivenBack), t.ended)),
        ],
    )
}

/// Makes the rows of messages between three processes.
pub(super) fn three_rows(fabric: &str, stamps: &Stamps, times: &[Times]) -> Vec<Row> {
    let at = |message, at| stamps.read(message, at);
    interval_rows(
        fabric,
        "three processes",
        times,
        &[
            ("the sender submits and posts it", &|_, t| (t.submitted, t.posted)),
            ("the application has it, through the daemon", &|n, t| (t.posted, at(n, At::Taken))),
            ("the application read it and gave it back", &|n, _| (at(n, At::Taken), at(n, At::GivenBack))),
            ("the sender has its end, through the daemon", &|n, t| (at(n, At::GivenBack), t.ended)),
        ],
    )
}
