//! Compares Jet's in-place messages with prost, rkyv and flatbuffers: encode and decode of the same three
//! records.
//!
//! Every contender writes into a buffer that it reuses, validates what it reads, and reads all fields. In
//! each round all contenders run, one after the other, a record at a time. Figures are medians over the
//! rounds; ratios are taken within a round.
//!
//! The wire is not measured. Encoding and decoding are timed apart, each in a loop over one value that is in
//! the level-one cache and whose branches are predicted. Between two hosts the bytes come from colder memory,
//! and a message's length has more influence. Making the structs that are encoded is not timed: prost's and
//! rkyv's own their strings and lists, which were allocated before. Dropping these structs is not timed
//! either. What decoding allocates and drops is included.

mod empty_loop;
mod in_place;
mod record;
mod with_flatbuffers;
mod with_prost;
mod with_rkyv;

use record::{Contender, Records};
use std::process::ExitCode;

const RECORDS: [(&str, Option<f64>); 3] = [
    ("fixed header, 23 bytes of numbers", Some(0.5)),
    ("header, name of 16 bytes, 4 extents", Some(0.5)),
    ("header, payload of 4 KiB", None),
];
const OPERATIONS: u32 = 200_000;
const USAGE: &str = "usage: jet-peers-serialization [--json] [--check] [--rounds N (9 or more)]";

struct Arguments {
    json: bool,
    check: bool,
    rounds: usize,
}

impl Arguments {
    fn parse() -> Option<Self> {
        let mut parsed = Self { json: false, check: false, rounds: 11 };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => parsed.json = true,
                "--check" => parsed.check = true,
                "--rounds" => {
                    parsed.rounds = arguments.next()?.parse().ok().filter(|rounds| *rounds >= 9)?;
                }
                _ => return None,
            }
        }
        Some(parsed)
    }
}

fn main() -> ExitCode {
    let Some(arguments) = Arguments::parse() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let records = Records::new();
    let mut all_hold = true;
    let mut by_record: [Vec<Contender>; 3] = Default::default();
    let ours = in_place::contenders(&records).into_iter();
    for (index, our) in ours.enumerate() {
        by_record[index].push(our);
    }
    let peers = with_prost::contenders(&records)
        .into_iter()
        .zip(with_rkyv::contenders(&records))
        .zip(with_flatbuffers::contenders(&records))
        .zip(empty_loop::contenders(&records));
    for (index, (((prost, rkyv), flatbuffers), empty_loop)) in peers.enumerate() {
        by_record[index].extend([prost, rkyv, flatbuffers, empty_loop]);
    }
    let mut samples = by_record.each_ref().map(|contenders| vec![Samples::default(); contenders.len()]);
    // The first round warms up and does not count.
    for round in 0..=arguments.rounds {
        for (contenders, samples) in by_record.iter_mut().zip(&mut samples) {
            for (contender, samples) in contenders.iter_mut().zip(samples) {
                let encode = (contender.encode)(OPERATIONS);
                let decode = (contender.decode)(OPERATIONS);
                if round > 0 {
                    samples.encode.push(encode);
                    samples.decode.push(decode);
                    samples.both.push(encode + decode);
                }
            }
        }
    }
    for (((record, bound), contenders), samples) in RECORDS.into_iter().zip(&by_record).zip(&samples) {
        all_hold &= report(record, bound, contenders, samples, arguments.json);
    }
    if arguments.check && !all_hold { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// One contender's nanoseconds to encode, to decode, and to do both; each round adds one sample to each list.
#[derive(Clone, Default)]
struct Samples {
    encode: Vec<f64>,
    decode: Vec<f64>,
    both: Vec<f64>,
}

/// Prints the figures of a record and returns whether its bound holds. The bound compares the first
/// contender, Jet, with the fastest of the others. The last contender, the empty loop, is left out of this
/// comparison.
fn report(
    record: &str,
    bound: Option<f64>,
    contenders: &[Contender],
    samples: &[Samples],
    json: bool,
) -> bool {
    if !json {
        println!("{record}\n{:16}{:>8}{:>12}{:>12}{:>12}", "", "bytes", "encode ns", "decode ns", "both ns");
    }
    for (contender, samples) in contenders.iter().zip(samples) {
        let Contender { name, bytes, .. } = contender;
        let Samples { encode, decode, both } = samples;
        if json {
            for (what, samples) in [("encode", encode), ("decode", decode), ("encode + decode", both)] {
                row(&format!("{record}: {name}, {what}"), "ns", samples, None, true);
            }
            row(&format!("{record}: {name}, length"), "bytes", &[*bytes as f64], None, true);
        } else {
            let (encode, decode, both) = (median(encode), median(decode), median(both));
            println!("  {name:14}{bytes:>8}{encode:>12.1}{decode:>12.1}{both:>12.1}");
        }
    }
    let (ours, peers) = (&samples[0].both, &samples[1..samples.len() - 1]);
    let fastest = (0..peers.len())
        .min_by(|a, b| median(&peers[*a].both).total_cmp(&median(&peers[*b].both)))
        .expect("there are peers");
    let ratios: Vec<f64> = ours.iter().zip(&peers[fastest].both).map(|(ours, peer)| ours / peer).collect();
    let (ratio, peer) = (median(&ratios), contenders[1 + fastest].name);
    let others: Vec<String> = (0..peers.len())
        .filter(|other| *other != fastest)
        .map(|other| {
            let ratios: Vec<f64> =
                ours.iter().zip(&peers[other].both).map(|(ours, peer)| ours / peer).collect();
            let metric = format!("in-place / {}", contenders[1 + other].name);
            if json {
                row(&format!("{record}: {metric}"), "ratio", &ratios, None, true);
            }
            format!("{metric}: {:.2}", median(&ratios))
        })
        .collect();
    let holds = bound.is_none_or(|bound| ratio <= bound);
    if json {
        row(&format!("{record}: in-place / {peer}, the fastest other"), "ratio", &ratios, bound, holds);
        return holds;
    }
    let (least, most) =
        ratios.iter().fold((f64::MAX, f64::MIN), |(a, b), &ratio| (a.min(ratio), b.max(ratio)));
    print!(
        "  in-place / {peer}, the fastest other: {ratio:.2} ({least:.2} to {most:.2} in {} rounds)",
        ratios.len()
    );
    match bound {
        Some(bound) => println!("; at most {bound}: {}", if holds { "holds" } else { "DOES NOT HOLD" }),
        None => println!("; shown, no bound"),
    }
    println!("  {}\n", others.join(", "));
    holds
}

/// Prints one metric as a row, in the form in which jet-bench prints rows.
fn row(metric: &str, unit: &str, samples: &[f64], bound: Option<f64>, holds: bool) {
    let bound = bound.map_or("null".to_owned(), |bound| format!("\"<= {bound}\""));
    let value = median(samples);
    println!(
        "{{\"bench\":\"serialization\",\"metric\":\"{metric}\",\"kind\":\"timed\",\"value\":{value},\
         \"unit\":\"{unit}\",\"bound\":{bound},\"holds\":{holds},\"samples\":{samples:?}}}"
    );
}

/// Returns the middle sample, or the mean of the two middle ones.
fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}
