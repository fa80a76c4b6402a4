//! The table (CSV) of the benchmark, with a line for every turn.

use super::traffic::{Shape, TurnFigures};
use super::turns::{Bare, Measured, Turn};
use std::fmt::Write as _;

/// First line of the table, the columns' names. A turn's line has an empty field where the turn has no such
/// figure, or the figure is not known on this machine.
const HEAD: &str = concat!(
    "receiver,message_bytes,connections,depth,antagonist_gb_per_s,round,place,load_percent,",
    "offered_gb_per_s,messages,gb_per_s,delivered,p50_us,p99_us,p99_9_us,late_p99_9_us,resident,touched_mib,",
    "misses_a_kib,reads_most,buffers_most_mib,others_us\n",
);

/// Returns the table: all turns of the receivers in their order, and the bare loop's turns after them.
pub fn csv(measured: &Measured) -> String {
    let mut text = String::from(HEAD);
    for turn in &measured.turns {
        line(&mut text, turn);
    }
    for Bare { round, shape, antagonist, ring, gigabytes_per_s } in &measured.bare {
        let Shape { connections, depth, message_bytes } = shape;
        let (name, antagonist) = (ring.key(), field(*antagonist, 3));
        writeln!(
            text,
            "{name},{message_bytes},{connections},{depth},{antagonist},{round},,,,,\
             {gigabytes_per_s:.3},,,,,,,,,,,"
        )
        .expect("text grows");
    }
    text
}

fn line(text: &mut String, turn: &Turn) {
    let Turn { round, place, receiver, shape, antagonist, offered, figures, touched_mib, others_us, .. } =
        turn;
    let Shape { connections, depth, message_bytes } = shape;
    let TurnFigures { messages, gigabytes_per_s, p50_us, p99_us, p999_us, late_p999_us, .. } = figures;
    let (name, antagonist) = (receiver.key(), field(*antagonist, 3));
    let percent = offered.map_or(String::new(), |offered| offered.percent.to_string());
    let rate = field(offered.map(|offered| offered.gigabytes_per_s), 3);
    let late = field(offered.map(|_| *late_p999_us), 1);
    let (resident, misses) = (field(turn.resident, 3), field(turn.misses, 2));
    let delivered = field(turn.delivered, 3);
    let reads = turn.most.map_or(String::new(), |most| most.reads.to_string());
    #[allow(clippy::cast_precision_loss)] // below 2^30
    let buffers = field(turn.most.map(|most| most.buffer_bytes as f64 / 1_048_576.0), 2);
    writeln!(
        text,
        "{name},{message_bytes},{connections},{depth},{antagonist},{round},{place},{percent},{rate},\
         {messages},{gigabytes_per_s:.3},{delivered},{p50_us:.1},{p99_us:.1},{p999_us:.1},{late},{resident},\
         {touched_mib:.2},{misses},{reads},{buffers},{others_us:.1}"
    )
    .expect("text grows");
}

fn field(value: Option<f64>, digits: usize) -> String {
    value.map_or(String::new(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::bare::Size;
    use crate::residency::conventional::Most;
    use crate::residency::receivers::Receiver;
    use crate::residency::turns::Offered;

    #[test]
    fn every_line_has_a_field_for_every_head() {
        let shape = Shape { connections: 32, depth: 16, message_bytes: 4096 };
        let figures = TurnFigures {
            messages: 7,
            elapsed: std::time::Duration::from_secs(1),
            gigabytes_per_s: 1.5,
            p50_us: 1.0,
            p99_us: 2.0,
            p999_us: 3.0,
            late_p999_us: 4.0,
        };
        let turn = |offered: Option<Offered>, most: Option<Most>| Turn {
            round: 1,
            place: 2,
            receiver: Receiver::Shared,
            shape,
            antagonist: offered.map(|_| 3.0),
            offered,
            figures,
            delivered: offered.map(|_| 1.0),
            resident: most.map(|_| 0.5),
            touched_mib: 12.0,
            misses: None,
            most,
            others_us: 0.0,
        };
        let offered = Offered { percent: 90, gigabytes_per_s: 1.4 };
        let most = Most { reads: 32, buffer_bytes: 8 << 20 };
        let ring = Size::Pool;
        let bare = Bare { round: 1, shape, antagonist: None, ring, gigabytes_per_s: 9.0 };
        let measured =
            Measured { turns: vec![turn(None, None), turn(Some(offered), Some(most))], bare: vec![bare] };
        let text = csv(&measured);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.len(), 4);
        for (at, name) in lines[0].iter().enumerate() {
            let of = |line: usize| lines[line].get(at).copied().unwrap_or("missing");
            let wanted = match *name {
                "receiver" => ["shared", "shared", "bare-pool"],
                "message_bytes" => ["4096"; 3],
                "connections" => ["32"; 3],
                "depth" => ["16"; 3],
                "round" => ["1"; 3],
                "place" => ["2", "2", ""],
                "antagonist_gb_per_s" => ["", "3.000", ""],
                "load_percent" => ["", "90", ""],
                "offered_gb_per_s" => ["", "1.400", ""],
                "messages" => ["7", "7", ""],
                "gb_per_s" => ["1.500", "1.500", "9.000"],
                "delivered" => ["", "1.000", ""],
                "p50_us" => ["1.0", "1.0", ""],
                "p99_us" => ["2.0", "2.0", ""],
                "p99_9_us" => ["3.0", "3.0", ""],
                "late_p99_9_us" => ["", "4.0", ""],
                "resident" => ["", "0.500", ""],
                "touched_mib" => ["12.00", "12.00", ""],
                "misses_a_kib" => [""; 3],
                "reads_most" => ["", "32", ""],
                "buffers_most_mib" => ["", "8.00", ""],
                "others_us" => ["0.0", "0.0", ""],
                unknown => panic!("{unknown}"),
            };
            assert_eq!([of(1), of(2), of(3)], wanted, "{name}");
        }
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
    }
}
