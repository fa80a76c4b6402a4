//! Measuring between two hosts. `load` and `probe` send to a daemon that runs on another host; `receive` is
//! the application behind that daemon.
//!
//! A run is one size, depth and rate for a number of seconds. A run's messages carry the run's number in
//! their tag. The receiving end learns nothing else of the run, and counts its messages by that number.
//! docs/measuring.md says how to join the two counts.

pub mod load;
pub mod probe;
pub mod receive;
mod run;
mod runs;

use crate::send_loop::LoopError;
use jet::values::parse_span_or_seconds;
use jet_client::send::AckStatus;
use jet_fabric::Address;
use std::net::IpAddr;
use std::time::Duration;

/// Run number in the tags of messages that belong to no run. These messages are sent first, to fill caches
/// and to let rates settle.
const WARM_UP: u32 = 0;
/// Upper half of the tag of a run's messages, "jet-". This mark tells a run's messages from other senders'
/// messages, whose tags have other meanings.
const TAG_MARK: u32 = 0x6a65_742d;

/// Returns the tag of a run's messages.
fn tag_of(run: u32) -> u64 {
    u64::from(TAG_MARK) << 32 | u64::from(run)
}

/// Returns the number of the run that a message's tag names, if it names one.
fn run_of(tag: u64) -> Option<u32> {
    let run = u32::try_from(tag & u64::from(u32::MAX)).ok()?;
    (tag >> 32 == u64::from(TAG_MARK) && run != WARM_UP).then_some(run)
}

/// Receiver on another host to which messages are sent.
#[derive(clap::Args)]
struct Target {
    /// Where the daemon listens: tcp:host:port, rdma:host:port or shm:/path
    #[arg(long, value_name = "ADDR")]
    to: Address,
    /// The address of this host that an rdma: connection leaves from, and so its device
    #[arg(long, value_name = "IP")]
    from: Option<IpAddr>,
    /// Name of the application behind that daemon
    #[arg(long, value_name = "NAME", default_value = crate::rig::APP)]
    app: String,
}

/// Parses a span of time of a command line, which must be above zero.
fn span_above_zero(text: &str) -> Result<Duration, String> {
    let span = parse_span_or_seconds(text)?;
    if span.is_zero() { Err("write a span above zero, as 10 or 500ms".to_owned()) } else { Ok(span) }
}

/// Describes an error of a load or probe, and says what to start or to change on which host.
fn explained(error: LoopError, to: &Address, app: &str) -> String {
    let LoopError::Ended { status, .. } = error else { return format!("{to}: {error}") };
    match status {
        AckStatus::NoApp => format!(
            "no application '{app}' is registered with the daemon at {to}; start one on that host: jet-bench \
             receive --app {app} --control-socket SOCKET (the daemon's)"
        ),
        AckStatus::AppGone => {
            format!("the application '{app}' behind {to} ended before it had read all; start it again there")
        }
        AckStatus::PeerLost => format!("the connection to {to} was lost; does the jetd there still run?"),
        AckStatus::Draining => format!("the daemon at {to} is ending (it drains); start it again there"),
        _ => format!("{to}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_run_is_above_zero() {
        assert_eq!(span_above_zero("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(span_above_zero("2ms"), Ok(Duration::from_millis(2)));
        for bad in ["0", "0ms", "-1", "2 parsecs"] {
            assert!(span_above_zero(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_tag_names_its_run_and_others_none() {
        assert_eq!(run_of(tag_of(7)), Some(7));
        assert_eq!(run_of(tag_of(WARM_UP)), None);
        assert_eq!(run_of(7), None);
    }

    #[test]
    fn an_end_says_what_to_start() {
        let to: Address = "tcp:there:1".parse().unwrap();
        let said = |status| explained(LoopError::Ended { sequence: 1, status }, &to, "store");
        assert!(said(AckStatus::NoApp).contains("jet-bench receive --app store"));
        assert!(said(AckStatus::AppGone).contains("start it again"));
        assert!(said(AckStatus::Denied).contains("message 1"));
    }
}
