//! A sender, the daemon and an application as three processes, beside the bare limits of the machine.
//!
//! Over `shm:` the limit is one memcpy of the bytes into a ring of the pool's size and one read of them there, by one
//! thread; over `tcp:` it is a loop that reads a loopback socket into such a ring. Messages go 32 at a time.
//!
//! It cannot see a network, an RNIC's DMA, or cores of one's own for each process: three processes share what there is.

#[cfg(feature = "verbs")]
use crate::consumer::Consumer;
use crate::report::{Bound, Row, median};
use crate::rig::{APP, Rig, read_all};
use jet_client::send::{AckStatus, Completion, SendBuffer, Sender, SenderOptions};
use jet_wire::SLAB_BYTES;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Bytes of a large message.
pub const LARGE_BYTES: usize = 256 << 10;
/// Large messages under way at once.
pub const DEPTH: usize = 32;
const POOL_BYTES: usize = 12 << 20;
/// Bytes of one sample.
const SAMPLE_BYTES: usize = 2 << 30;
const SMALL_MESSAGES: u64 = 2_000_000;
const SMALL_BYTES: usize = 64;

/// Runs the benchmark over the fabrics named.
///
/// # Errors
/// What the rig or the system says.
pub fn run(samples: u32, fabrics: &[&str], settings: &[String]) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for &fabric in fabrics {
        match fabric {
            "tcp" => tcp(samples, settings, &mut rows)?,
            _ => shm(samples, settings, &mut rows)?,
        }
    }
    Ok(rows)
}

fn shm(samples: u32, settings: &[String], rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let rig = Rig::start("shm", true, settings)?;
    let mut load = Load::connect(&rig)?;
    load.large(SAMPLE_BYTES / 8)?;
    load.small(SMALL_MESSAGES / 8, SMALL_BYTES)?;
    let (mut limit, mut large, mut small) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..samples {
        limit.push(copy_and_read());
        large.push(load.large(SAMPLE_BYTES)?);
        small.push(load.small(SMALL_MESSAGES, SMALL_BYTES)?);
    }
    let ratios = large.iter().map(|rate| rate / median(&limit)).collect();
    rows.push(Row::new("e2e", "shm: memcpy and read, one thread", "GB/s", limit, Bound::None));
    rows.push(Row::new("e2e", "shm: 256 KiB messages, read by the application", "GB/s", large, Bound::None));
    rows.push(Row::new(
        "e2e",
        "shm: 256 KiB messages / memcpy and read",
        "ratio",
        ratios,
        Bound::AtLeast(0.7),
    ));
    rows.push(Row::new("e2e", "shm: 64 B messages", "1/s", small, Bound::AtLeast(1e6)));
    pool_rows(&rig, "shm", rows)
}

fn tcp(samples: u32, settings: &[String], rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    // As the bare loop does not read the bytes it received, neither does the application; and once with both reading.
    for read in [false, true] {
        let rig = Rig::start("tcp", read, settings)?;
        let mut load = Load::connect(&rig)?;
        load.large(SAMPLE_BYTES / 16)?;
        let (mut limit, mut large) = (Vec::new(), Vec::new());
        for _ in 0..samples {
            limit.push(socket_to_ring(read)?);
            large.push(load.large(SAMPLE_BYTES / 2)?);
        }
        let ratios = large.iter().map(|rate| rate / median(&limit)).collect();
        let (what, bound) = if read { (", read", Bound::None) } else { ("", Bound::AtLeast(0.9)) };
        rows.push(Row::new("e2e", &format!("tcp: socket to buffers{what}"), "GB/s", limit, Bound::None));
        rows.push(Row::new("e2e", &format!("tcp: 256 KiB messages{what}"), "GB/s", large, Bound::None));
        rows.push(Row::new("e2e", &format!("tcp: 256 KiB messages / socket{what}"), "ratio", ratios, bound));
        if !read {
            load.small(SMALL_MESSAGES / 16, SMALL_BYTES)?;
            let small = (0..samples)
                .map(|_| load.small(SMALL_MESSAGES / 4, SMALL_BYTES))
                .collect::<Result<_, _>>()?;
            rows.push(Row::new("e2e", "tcp: 64 B messages", "1/s", small, Bound::None));
            pool_rows(&rig, "tcp", rows)?;
        }
    }
    Ok(())
}

/// How much of the pool the load touched, and how many READs ran at once.
fn pool_rows(rig: &Rig, fabric: &str, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let status = rig.status()?;
    let high_water = status["pool"]["high_water"].as_f64().unwrap_or(f64::NAN) * 4096.0 / 1_048_576.0;
    let reads = status["reads"]["high_water"].as_f64().unwrap_or(f64::NAN);
    rows.push(Row::new(
        "e2e",
        &format!("{fabric}: pool high-water mark"),
        "MiB",
        vec![high_water],
        Bound::AtMost(12.0),
    ));
    rows.push(Row::exact(
        "e2e",
        &format!("{fabric}: READs at once, at most"),
        "READs",
        vec![reads],
        Bound::AtMost(32.0),
    ));
    Ok(())
}

/// A sender with its buffers.
pub struct Load {
    sender: Sender,
    buffers: Vec<SendBuffer>,
    /// What small messages are copied from: one place after the other, as programs do that have more than one message.
    small: Vec<u8>,
}

/// What a message takes one way, the medians of many.
#[cfg(feature = "verbs")]
pub struct OneWay {
    /// Until the sender's calls returned.
    pub submitted_ns: f64,
    /// Until the application has it.
    pub arrived_ns: f64,
}

impl Load {
    /// Connects to the rig.
    ///
    /// # Errors
    /// What the sender says.
    pub fn connect(rig: &Rig) -> Result<Self, Box<dyn Error>> {
        Self::shaped(rig, LARGE_BYTES, DEPTH, 1024, false)
    }

    /// Connects to the rig, to have so many large messages of so many bytes at once, and so many small ones; with
    /// checksums, or without.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn shaped(
        rig: &Rig,
        large_bytes: usize,
        large_max: usize,
        small_max: u32,
        crc: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let options =
            SenderOptions { in_flight_max: small_max, crc, ..SenderOptions::new(rig.address()?, APP) };
        let mut sender = Sender::connect(options)?;
        let mut buffers = Vec::with_capacity(large_max);
        for n in 0..large_max {
            let mut buffer = sender.buffer(large_bytes)?;
            buffer.fill(n.to_le_bytes()[0]);
            buffers.push(buffer);
        }
        Ok(Self { sender, buffers, small: vec![7; DEPTH * SLAB_BYTES] })
    }

    /// Sends so many bytes in large messages, as many at once as there are buffers; gives GB/s.
    ///
    /// # Errors
    /// What the sender says, or a message that was not consumed.
    pub fn large(&mut self, bytes: usize) -> Result<f64, Box<dyn Error>> {
        let message_bytes = self.buffers[0].len();
        let messages = bytes / message_bytes;
        let start = Instant::now();
        let (mut sent, mut done) = (0, 0);
        while done < messages {
            while sent < messages
                && let Some(buffer) = self.buffers.pop()
            {
                self.sender.send(0, b"", buffer, message_bytes, 0).map_err(|(error, _)| error)?;
                sent += 1;
            }
            let Some(completion) = self.sender.wait(None)? else { continue };
            self.buffers.extend(consumed(completion)?);
            done += 1;
        }
        Ok(per_second(messages * message_bytes, start) / 1e9)
    }

    /// Sends so many small messages, as many at once as the receiver's credit allows; gives messages a second.
    ///
    /// # Errors
    /// What the sender says, or a message that was not consumed.
    pub fn small(&mut self, messages: u64, bytes: usize) -> Result<f64, Box<dyn Error>> {
        let mut payloads = self.small.chunks_exact(bytes).take(DEPTH).cycle();
        let mut payload = payloads.next().expect("at least one");
        let start = Instant::now();
        let (mut sent, mut done) = (0, 0);
        while done < messages {
            while sent < messages {
                match self.sender.send_small(sent, b"", payload) {
                    Ok(_) => {
                        sent += 1;
                        payload = payloads.next().expect("a cycle");
                    }
                    Err(error) if error.is_would_block() => break,
                    Err(error) => return Err(error.into()),
                }
            }
            if let Some(completion) = self.sender.wait(None)? {
                consumed(completion)?;
                done += 1;
            }
            while let Some(completion) = self.sender.poll() {
                consumed(completion)?;
                done += 1;
            }
        }
        Ok(per_second(usize::try_from(messages)?, start))
    }

    /// Sends 64 B messages one after the other, each after the end of the one before, to an application of this thread's;
    /// gives how long each takes until it is submitted, and until the application has it.
    ///
    /// # Errors
    /// As [`Self::small`].
    #[cfg(feature = "verbs")]
    pub fn one_way(&mut self, messages: usize, app: &mut Consumer) -> Result<OneWay, Box<dyn Error>> {
        let (mut submitted, mut arrived) = (Vec::with_capacity(messages), Vec::with_capacity(messages));
        for tag in 0..messages as u64 {
            let start = Instant::now();
            self.sender.send_small(tag, b"", &[7; SMALL_BYTES])?;
            self.sender.flush();
            #[allow(clippy::cast_precision_loss)] // far below 2^53
            submitted.push(start.elapsed().as_nanos() as f64);
            let expected = app.taken().messages + 1;
            let mut end = None;
            while app.taken().messages < expected {
                app.step(start)?;
                // The sender's NIC is driven, too.
                end = end.or(self.sender.poll());
            }
            #[allow(clippy::cast_precision_loss)] // far below 2^53
            arrived.push(start.elapsed().as_nanos() as f64);
            while end.is_none() {
                // What was released is told with the next look.
                app.step(start)?;
                end = self.sender.poll();
            }
            end.map(consumed).transpose()?;
        }
        Ok(OneWay { submitted_ns: median(&submitted), arrived_ns: median(&arrived) })
    }
}

fn consumed(completion: Completion) -> Result<Option<SendBuffer>, Box<dyn Error>> {
    match completion.status {
        AckStatus::Consumed => Ok(completion.buffer),
        status => Err(format!("message {}: {status}", completion.ticket.0).into()),
    }
}

/// The bare limit on one host: each 256 KiB is copied into the next place of a ring of the pool's size and read there.
fn copy_and_read() -> f64 {
    let source = vec![1u8; DEPTH * LARGE_BYTES];
    let mut ring = vec![0u8; POOL_BYTES];
    let messages = SAMPLE_BYTES / LARGE_BYTES;
    let mut sum = 0u64;
    let start = Instant::now();
    for message in 0..messages {
        let from = message % DEPTH * LARGE_BYTES;
        let to = message % (POOL_BYTES / LARGE_BYTES) * LARGE_BYTES;
        let place = &mut ring[to..to + LARGE_BYTES];
        place.copy_from_slice(&source[from..from + LARGE_BYTES]);
        sum = sum.wrapping_add(read_all(std::hint::black_box(place)));
    }
    std::hint::black_box(sum);
    per_second(SAMPLE_BYTES, start) / 1e9
}

/// The bare limit over loopback: one thread writes 256 KiB at a time, one reads them into a ring of the pool's size.
fn socket_to_ring(read: bool) -> std::io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let bytes = SAMPLE_BYTES / 2;
    let writer = std::thread::spawn(move || -> std::io::Result<()> {
        let source = vec![1u8; DEPTH * LARGE_BYTES];
        let mut stream = TcpStream::connect(address)?;
        for message in 0..bytes / LARGE_BYTES {
            let from = message % DEPTH * LARGE_BYTES;
            stream.write_all(&source[from..from + LARGE_BYTES])?;
        }
        Ok(())
    });
    let (mut stream, _) = listener.accept()?;
    let mut ring = vec![0u8; POOL_BYTES];
    let mut sum = 0u64;
    let start = Instant::now();
    for message in 0..bytes / LARGE_BYTES {
        let to = message % (POOL_BYTES / LARGE_BYTES) * LARGE_BYTES;
        let place = &mut ring[to..to + LARGE_BYTES];
        stream.read_exact(place)?;
        if read {
            sum = sum.wrapping_add(read_all(place));
        }
    }
    std::hint::black_box(sum);
    let rate = per_second(bytes, start) / 1e9;
    writer.join().map_err(|_| std::io::Error::other("the writer panicked"))??;
    Ok(rate)
}

/// So much, in the time since then.
#[allow(clippy::cast_precision_loss)] // counts below 2^53
pub fn per_second(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}
