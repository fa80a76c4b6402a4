//! Measures what TLS costs: a handshake in which both ends prove their keys, and records, beside the bare
//! cipher and beside `openssl speed`.
//!
//! All is in one thread and in memory: no socket and no wake-up is in these figures. Data is copied into a
//! record before it is sealed, as it is for a socket, and is opened where it lies.

use crate::allocations;
use crate::report::{Bound, Row, RunSize, pairwise};
use jet_identity::SecretKey;
use jet_tls::{Endpoint, HEADER_BYTES, Handshake, Opened, PLAIN_BYTES_MAX, Records, SEALED_BYTES_MAX};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::error::Error;
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of a message, as most of Jet's large ones have.
const MESSAGE_BYTES: usize = 256 << 10;
/// Records of such a message.
const RECORDS: usize = MESSAGE_BYTES / PLAIN_BYTES_MAX;
/// Part of OpenSSL's speed that a record has to have.
const SHARE_OF_OPENSSL: f64 = 0.8;
/// Seconds that `openssl speed` takes for one figure.
const OPENSSL_SECONDS: u32 = 1;

/// Speeds of one turn, in GB/s.
#[derive(Default)]
struct Speeds {
    sealed: Vec<f64>,
    opened: Vec<f64>,
    bare_sealed: Vec<f64>,
    bare_opened: Vec<f64>,
    openssl_sealed: Vec<f64>,
    openssl_opened: Vec<f64>,
}

/// Runs the benchmark `tls`.
///
/// # Errors
/// A handshake or a record that fails, or OpenSSL's program where it is there and says something else.
pub fn run(run_size: RunSize) -> Result<Vec<Row>, Box<dyn Error>> {
    let messages = run_size.of(8_000, 100);
    let handshakes = run_size.of(500, 5);
    let with_openssl =
        Command::new("openssl").arg("version").output().is_ok_and(|said| said.status.success());
    if !with_openssl {
        tracing::warn!("there is no program openssl, so no row beside it; install it for these rows");
    }
    let (client, server) = (Endpoint::new(SecretKey::generate()?), Endpoint::new(SecretKey::generate()?));
    let mut pair = connect(&client, &server)?;
    let mut buffers = Buffers::new();
    let (mut speeds, mut handshake_us, mut allocated) = (Speeds::default(), Vec::new(), Vec::new());
    for _ in 0..run_size.samples {
        handshake_us.push(handshakes_us(&client, &server, handshakes)?);
        let before = allocations::count();
        let (sealed, opened) = speeds_of_records(&mut pair, &mut buffers, messages)?;
        #[allow(clippy::cast_precision_loss)] // few
        allocated.push((allocations::count() - before) as f64);
        speeds.sealed.push(sealed);
        speeds.opened.push(opened);
        let (sealed, opened) = speeds_of_cipher(messages)?;
        speeds.bare_sealed.push(sealed);
        speeds.bare_opened.push(opened);
        if with_openssl {
            speeds.openssl_sealed.push(openssl_speed(&[])?);
            speeds.openssl_opened.push(openssl_speed(&["-decrypt"])?);
        }
    }
    Ok(rows(&speeds, handshake_us, allocated))
}

fn rows(speeds: &Speeds, handshake_us: Vec<f64>, allocated: Vec<f64>) -> Vec<Row> {
    let timed = |metric: &str, unit, samples, bound| Row::new("tls", metric, unit, samples, bound);
    let mut rows = vec![
        timed("handshake with both proofs, both ends' processor time", "us", handshake_us, Bound::None),
        timed("256 KiB sealed", "GB/s", speeds.sealed.clone(), Bound::None),
        timed("256 KiB opened", "GB/s", speeds.opened.clone(), Bound::None),
    ];
    for (what, records, bare, openssl) in [
        ("sealed", &speeds.sealed, &speeds.bare_sealed, &speeds.openssl_sealed),
        ("opened", &speeds.opened, &speeds.bare_opened, &speeds.openssl_opened),
    ] {
        let metric = format!("256 KiB {what} / the cipher alone");
        rows.push(timed(&metric, "ratio", pairwise(records, bare), Bound::None));
        if !openssl.is_empty() {
            let metric = format!("256 KiB {what} / openssl speed");
            let bound = Bound::AtLeast(SHARE_OF_OPENSSL);
            rows.push(timed(&metric, "ratio", pairwise(records, openssl), bound));
        }
    }
    rows.push(Row::exact("tls", "allocations while records pass", "", allocated, Bound::Exactly(0.0)));
    rows
}

fn connect(client: &Endpoint, server: &Endpoint) -> Result<(Records, Records), Box<dyn Error>> {
    let (mut client, mut server) = (client.connect()?, server.accept()?);
    pass(&mut client, &mut server)?;
    pass(&mut server, &mut client)?;
    pass(&mut client, &mut server)?;
    Ok((client.finish()?.records, server.finish()?.records))
}

fn pass(from: &mut Handshake, to: &mut Handshake) -> Result<(), Box<dyn Error>> {
    to.read(&from.take_outgoing())?;
    Ok(())
}

/// Microseconds that both ends need for a handshake, on average.
fn handshakes_us(client: &Endpoint, server: &Endpoint, count: u32) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..count {
        black_box(connect(client, server)?);
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

/// A message, and the memory that its records are sealed in.
struct Buffers {
    message: Vec<u8>,
    records: Vec<u8>,
}

impl Buffers {
    fn new() -> Self {
        Self { message: vec![7; MESSAGE_BYTES], records: vec![0; RECORDS * SEALED_BYTES_MAX] }
    }
}

/// Speeds with which one end seals messages, and the other one opens them.
fn speeds_of_records(
    pair: &mut (Records, Records),
    buffers: &mut Buffers,
    messages: usize,
) -> Result<(f64, f64), Box<dyn Error>> {
    let (client, server) = pair;
    let Buffers { message, records } = buffers;
    let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..messages {
        let start = Instant::now();
        let mut sealed_bytes = [0; RECORDS];
        for ((data, memory), bytes) in
            message.chunks(PLAIN_BYTES_MAX).zip(records.chunks_mut(SEALED_BYTES_MAX)).zip(&mut sealed_bytes)
        {
            memory[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
            *bytes = client.seal(memory, data.len())?;
        }
        sealing += start.elapsed();
        let start = Instant::now();
        for (memory, bytes) in records.chunks_mut(SEALED_BYTES_MAX).zip(sealed_bytes) {
            let mut rest = &mut memory[..bytes];
            // Now and then a record behind the data changes the key.
            while let Some((header, behind)) = rest.split_first_chunk_mut() {
                let (body, after) = behind.split_at_mut(Records::body_bytes(*header)?);
                if let Opened::Data(bytes) = server.open(*header, body)? {
                    black_box(&body[..bytes]);
                }
                rest = after;
            }
        }
        opening += start.elapsed();
    }
    Ok((gb_per_s(messages, sealing), gb_per_s(messages, opening)))
}

/// Speeds of the cipher alone, in pieces as records have them, where they lie.
fn speeds_of_cipher(messages: usize) -> Result<(f64, f64), Box<dyn Error>> {
    let key = UnboundKey::new(&AES_128_GCM, &[3; 16]).map_err(|_| "AES-128-GCM takes no key")?;
    let key = LessSafeKey::new(key);
    let mut memory = vec![7u8; MESSAGE_BYTES];
    let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
    let mut number = 0u64;
    for _ in 0..messages {
        let mut tags = Vec::with_capacity(RECORDS);
        let nonce = |number: u64| {
            let mut nonce = [0; 12];
            nonce[4..].copy_from_slice(&number.to_be_bytes());
            Nonce::assume_unique_for_key(nonce)
        };
        let start = Instant::now();
        for (at, piece) in (number..).zip(memory.chunks_mut(PLAIN_BYTES_MAX)) {
            let tag = key.seal_in_place_separate_tag(nonce(at), Aad::from([0; HEADER_BYTES]), piece);
            tags.push(tag.map_err(|_| "AES-128-GCM does not seal")?);
        }
        sealing += start.elapsed();
        let start = Instant::now();
        for ((at, piece), tag) in (number..).zip(memory.chunks_mut(PLAIN_BYTES_MAX)).zip(tags) {
            let opened =
                key.open_in_place_separate_tag(nonce(at), Aad::from([0; HEADER_BYTES]), tag, piece, 0..);
            black_box(opened.map_err(|_| "AES-128-GCM does not open what it sealed")?);
        }
        opening += start.elapsed();
        number += RECORDS as u64;
    }
    Ok((gb_per_s(messages, sealing), gb_per_s(messages, opening)))
}

#[allow(clippy::cast_precision_loss)] // below 2^53
fn gb_per_s(messages: usize, took: Duration) -> f64 {
    (messages * MESSAGE_BYTES) as f64 / took.as_secs_f64() / 1e9
}

/// Speed that OpenSSL's own program measures for 256 KiB, in GB/s.
fn openssl_speed(options: &[&str]) -> Result<f64, Box<dyn Error>> {
    let output = Command::new("openssl")
        .args(["speed", "-evp", "aes-128-gcm", "-bytes", &MESSAGE_BYTES.to_string()])
        .args(["-seconds", &OPENSSL_SECONDS.to_string()])
        .args(options)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    // The last line has the cipher's name, and thousands of bytes a second.
    let figure = said.lines().last().and_then(|line| line.split_whitespace().last()?.strip_suffix('k'));
    match figure.and_then(|figure| figure.parse::<f64>().ok()) {
        Some(thousands) if output.status.success() => Ok(thousands / 1e6),
        _ => {
            Err(format!("openssl speed says no speed: {said}{}", String::from_utf8_lossy(&output.stderr))
                .into())
        }
    }
}
