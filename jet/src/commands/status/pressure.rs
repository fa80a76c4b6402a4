//! Rows of `jet status` about pressure on the pool: the escape actions so far, and the state of congestion
//! actuators.

use crate::text;
use jet_control::status::{ActuatorStatus, EscapeMemoryStatus, EscapeStatus};

/// Returns rows on the escape actions so far, and on the escape memory.
pub(super) fn escape(escape: &EscapeStatus, slab_bytes: u64) -> Vec<(&'static str, String)> {
    if !escape.enabled {
        return vec![("escape", "off (escape.enabled = false)".to_owned())];
    }
    let mut actions = format!(
        "{} slabs replaced, {} copied, {} spilled to memory, {} signals to senders; {} times in danger",
        escape.replaced.total, escape.copied.total, escape.spills.total, escape.signals, escape.danger,
    );
    match escape.suspended {
        0 => {}
        1 => actions.push_str("; 1 application suspended now"),
        many => actions.push_str(&format!("; {many} applications suspended now")),
    }
    if escape.stalled_ms > 0 {
        let ms = escape.stalled_ms;
        actions
            .push_str(&format!("; {ms} ms in which it did not get to look, not held against applications"));
    }
    let mut rows = vec![("escape", actions)];
    let copied = &escape.copied;
    let copies: Vec<String> = [
        (u64::from(copied.in_flight), "under way"),
        (copied.pinned, "in vain: the application was reading"),
        (copied.failed, "not begun: no memory, or nobody to copy"),
    ]
    .into_iter()
    .filter(|&(count, _)| count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    if !copies.is_empty() {
        rows.push(("  copies", copies.join("; ")));
    }
    rows.push(("  memory", memory(&escape.memory, slab_bytes)));
    rows
}

fn memory(memory: &EscapeMemoryStatus, slab_bytes: u64) -> String {
    let bytes = |slabs: u32| text::bytes(u64::from(slabs) * slab_bytes);
    let mut out = format!(
        "{} in use, {} at most so far, of {}",
        bytes(memory.used),
        bytes(memory.used_max),
        bytes(memory.slabs)
    );
    if memory.ready < memory.slabs {
        out.push_str(&format!(" ({} ready)", bytes(memory.ready)));
    }
    if let Some(error) = &memory.error {
        out.push_str("; ");
        out.push_str(error);
    }
    out
}

/// Returns a row for each congestion actuator: its state, its values or why it does not work, and how often
/// it acted.
pub(super) fn congestion(actuators: &[ActuatorStatus]) -> Vec<(&'static str, String)> {
    if actuators.is_empty() {
        return vec![("congestion", "no actuators".to_owned())];
    }
    let lines = actuators.iter().map(|actuator| {
        let ActuatorStatus { name, state, detail, lowered, restored, failed } = actuator;
        let mut line = format!("{name} {state}");
        if !detail.is_empty() {
            line.push_str(&format!(": {detail}"));
        }
        if lowered + restored + failed > 0 {
            line.push_str(&format!(" (lowered {lowered}, restored {restored}, failed {failed} times)"));
        }
        line
    });
    ["congestion"].into_iter().chain(std::iter::repeat("")).zip(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status::page::rows_of;
    use jet_control::status::{ActuatorState, CopiedStatus, EscapedStatus};

    #[test]
    fn escape_says_what_it_did_and_the_memory_that_it_takes() {
        let memory = EscapeMemoryStatus { slabs: 8448, ready: 8448, ..Default::default() };
        let quiet = EscapeStatus { enabled: true, memory, ..Default::default() };
        let none = "0 slabs replaced, 0 copied, 0 spilled to memory, 0 signals to senders; 0 times in danger";
        assert_eq!(
            rows_of(escape(&quiet, 4096)),
            [format!("escape|{none}"), "  memory|0 B in use, 0 B at most so far, of 33.0 MiB".to_owned()]
        );
        let busy = EscapeStatus {
            enabled: true,
            suspended: 1,
            danger: 2,
            signals: 40,
            stalled_ms: 12,
            replaced: EscapedStatus { now: 1, total: 77 },
            copied: CopiedStatus { total: 99, in_flight: 3, pinned: 5, failed: 6, ..Default::default() },
            spills: EscapedStatus { now: 0, total: 64 },
            memory: EscapeMemoryStatus {
                slabs: 8448,
                ready: 256,
                used: 256,
                used_max: 512,
                error: Some("no more".to_owned()),
                ..Default::default()
            },
            ..Default::default()
        };
        assert_eq!(
            rows_of(escape(&busy, 4096)),
            [
                "escape|77 slabs replaced, 99 copied, 64 spilled to memory, 40 signals to senders; 2 times \
                 in danger; 1 application suspended now; 12 ms in which it did not get to look, not held \
                 against applications",
                "  copies|3 under way; 5 in vain: the application was reading; 6 not begun: no memory, or \
                 nobody to copy",
                "  memory|1.00 MiB in use, 2.00 MiB at most so far, of 33.0 MiB (1.00 MiB ready); no more",
            ]
        );
        assert_eq!(rows_of(escape(&EscapeStatus::default(), 4096)), ["escape|off (escape.enabled = false)"]);
    }

    #[test]
    fn each_actuator_has_a_row() {
        let actuator =
            |name: &str, state, detail: &str, [lowered, restored, failed]: [u64; 3]| ActuatorStatus {
                name: name.to_owned(),
                state,
                detail: detail.to_owned(),
                lowered,
                restored,
                failed,
            };
        let actuators = [
            actuator("soft", ActuatorState::Ready, "a message", [0, 0, 0]),
            actuator("roce_np", ActuatorState::Lowered, "cnps 50 -> 0", [3, 2, 1]),
            actuator("pcie_cong", ActuatorState::Unsupported, "", [0, 0, 0]),
        ];
        assert_eq!(
            rows_of(congestion(&actuators)),
            [
                "congestion|soft ready: a message",
                "|roce_np lowered: cnps 50 -> 0 (lowered 3, restored 2, failed 1 times)",
                "|pcie_cong unsupported",
            ]
        );
        assert_eq!(rows_of(congestion(&[])), ["congestion|no actuators"]);
    }
}
