//! One run at the sending host: decides when each message is sent, and counts the messages' ends.

use crate::schedule::Schedule;
use crate::send_loop::{Measurement, Messages, Next, nanoseconds};
use hdrhistogram::Histogram;
use jet::commands::Signals;
use jet_client::send::{Completion, Ticket};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Longest latency that a histogram can hold, a minute in nanoseconds; longer ones count as a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Time between two checks for signals and for progress. A check is a system call.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// Time between two log lines of a run's progress.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// Time without the end of any message after which the run is given up.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Time for which an interrupted run waits for the messages under way to end.
const GRACE: Duration = Duration::from_secs(2);

/// A run that is under way.
pub struct Run<'a> {
    start: Instant,
    span: Duration,
    schedule: Option<Schedule>,
    /// Number of messages that were taken from the schedule so far.
    scheduled: u64,
    /// Delay with which each message under way was sent, by sequence number.
    lateness: HashMap<u64, Duration>,
    latencies: Histogram<u64>,
    late: Histogram<u64>,
    messages: Messages,
    ended: u64,
    /// Messages that had ended when the run's time was up.
    ended_in_time: Option<u64>,
    /// Time of the last check for signals and for progress.
    checked: Instant,
    /// Number of messages that had ended at the last check.
    ended_seen: u64,
    /// Time of the last check that found more messages ended than the check before.
    progressed: Instant,
    /// Time at which progress was last logged.
    logged: Instant,
    signals: &'a Signals,
    /// Time of the signal that interrupted the run, and its number.
    interrupted: Option<(Instant, u8)>,
    name: &'a str,
}

/// Figures of a run.
pub struct Outcome {
    /// Number of messages that were consumed.
    pub consumed: u64,
    /// Time from the run's beginning to the end of its last message.
    pub span: Duration,
    /// Times from a message's due time, or from its submission in a closed loop, to its end, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// Delay with which each message of an open loop was sent after its due time, in nanoseconds.
    pub late: Histogram<u64>,
    /// Share of the offered load that an open loop kept, in percent, see [`kept_percent`].
    pub kept_percent: Option<f64>,
    /// Number of the signal that ended the run; `None`: the run was not interrupted.
    pub interrupted: Option<u8>,
}

impl<'a> Run<'a> {
    /// Begins a run of length `span` now. Messages are sent as fast as possible, or at the times of a
    /// schedule.
    pub fn begin(
        name: &'a str,
        span: Duration,
        schedule: Option<Schedule>,
        messages: &Messages,
        signals: &'a Signals,
    ) -> Self {
        let now = Instant::now();
        Self {
            start: now,
            span,
            schedule,
            scheduled: 0,
            lateness: HashMap::new(),
            latencies: histogram(),
            late: histogram(),
            messages: *messages,
            ended: 0,
            ended_in_time: None,
            checked: now,
            ended_seen: 0,
            progressed: now,
            logged: now,
            signals,
            interrupted: None,
            name,
        }
    }

    /// Finishes the run and returns its figures. Call this function after the last message's end, or when no
    /// end is waited for any more.
    pub fn finish(self) -> Outcome {
        let span = self.start.elapsed();
        let interrupted = self.interrupted.map(|(_, number)| number);
        // How much of the load an interrupted run would have kept is unknown.
        #[allow(clippy::cast_precision_loss)] // counts below 2^53
        let kept_percent = self.schedule.filter(|_| interrupted.is_none()).map(|schedule| {
            let due = self.scheduled + schedule.left_before(self.span);
            let ended = self.ended_in_time.unwrap_or(self.ended);
            let median = Duration::from_nanos(self.latencies.value_at_quantile(0.5));
            let in_flight = due as f64 * median.as_secs_f64() / self.span.as_secs_f64();
            kept_percent(due, ended, in_flight.min(self.messages.depth as f64))
        });
        Outcome {
            consumed: self.ended,
            span,
            latencies: self.latencies,
            late: self.late,
            kept_percent,
            interrupted,
        }
    }

    /// Checks for signals and logs the progress, each if the time for it has come.
    fn check_progress(&mut self, now: Instant) {
        if now.duration_since(self.checked) < CHECK_EVERY {
            return;
        }
        self.checked = now;
        if self.ended != self.ended_seen {
            (self.ended_seen, self.progressed) = (self.ended, now);
        }
        if self.interrupted.is_none()
            && let Some(number) = self.signals.take()
        {
            self.interrupted = Some((now, number));
            tracing::info!("ending with what was measured so far; once more to leave at once");
            self.signals.let_the_next_end();
        }
        if now.duration_since(self.logged) >= LOG_EVERY {
            self.logged = now;
            #[allow(clippy::cast_precision_loss)] // gigabytes
            let gigabytes = (self.ended * self.messages.bytes as u64) as f64 / 1e9;
            tracing::info!(
                "{}: {:.0} s of {}, {} messages, {gigabytes:.3} GB",
                self.name,
                now.duration_since(self.start).as_secs_f64(),
                self.span.as_secs_f64(),
                self.ended
            );
        }
    }
}

impl Measurement for Run<'_> {
    fn next(&mut self, sent: u64) -> Next {
        let now = Instant::now();
        self.check_progress(now);
        if now.duration_since(self.start) >= self.span {
            self.ended_in_time.get_or_insert(self.ended);
            return Next::Never;
        }
        if self.interrupted.is_some() {
            return Next::Never;
        }
        let Some(schedule) = &mut self.schedule else { return Next::Now };
        while self.scheduled < sent {
            schedule.advance();
            self.scheduled += 1;
        }
        let due = schedule.due();
        if due < self.span { Next::At(self.start + due) } else { Next::Never }
    }

    fn sent_late(&mut self, ticket: Ticket, late: Duration) {
        self.late.saturating_record(nanoseconds(late));
        self.lateness.insert(ticket.0, late);
    }

    fn consumed(&mut self, completion: &Completion) {
        let late = self.lateness.remove(&completion.ticket.0).map_or(0, nanoseconds);
        self.latencies.saturating_record(nanoseconds(completion.latency) + late);
        self.ended += 1;
    }

    fn gives_up(&mut self) -> bool {
        let now = Instant::now();
        let interrupted = self.interrupted.is_some_and(|(since, _)| now.duration_since(since) > GRACE);
        interrupted || now.duration_since(self.progressed) > STALL_LIMIT
    }
}

/// Returns an empty histogram for nanoseconds, exact to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("sound bounds")
}

/// Returns the share, in percent, of the messages due in a span that had ended at its end. Up to `in_flight`
/// messages in flight count as ended, because they had no time to end.
///
/// The caller takes `in_flight` from the median latency (Little's law), and from the most that may be in
/// flight. Where the receiver cannot keep up and everything due is in flight, the median is that of half the
/// backlog. Then half of the backlog counts as ended.
fn kept_percent(due: u64, ended: u64, in_flight: f64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // a share
    let (due, ended) = (due as f64, ended as f64);
    if due > 0.0 { ((ended + in_flight) / due * 100.0).min(100.0) } else { 100.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offered_load_is_kept_where_nothing_piles_up() {
        // 10,000/s at 1 ms: ten messages are in flight at the end of a second.
        assert!((kept_percent(10_000, 9_990, 10.0) - 100.0).abs() < 1e-9);
        // 10 % more than can be kept, with room for all. The median message waited for 45 ms, in which 450
        // messages go.
        assert!((kept_percent(10_000, 9_090, 450.0) - 95.4).abs() < 1e-9);
        // The same with room for 32.
        assert!((kept_percent(10_000, 9_090, 32.0) - 91.22).abs() < 1e-9);
        assert!((kept_percent(0, 0, 0.0) - 100.0).abs() < 1e-9);
    }
}
