//! Hands a sample of 64 bytes from one spinning process to another through iceoryx2: `iceoryx2-handoff
//! copy|loan`.
//!
//! The processes are arranged as in `jet-bench handoff`: two of one thread each, on the first two processors,
//! both polling. One process hands over a sample and the other answers, one sample at a time. The program
//! prints half a round trip in nanoseconds. Here the answer is a sample of its own.
//!
//! `copy` sends a value. `loan` takes memory from iceoryx2, writes the value there and sends that.

use core_affinity::CoreId;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

const ROUNDS: u64 = 200_000;
/// Round trips that go first and are not counted.
const WARM_UP: u64 = 2_000;
/// Seconds after which a run is given up. A run takes less than a second on two idle processors.
const SECONDS_MAX: u32 = 20;

/// The 64 bytes that are handed over.
#[derive(Clone, Copy, Debug, ZeroCopySend)]
#[repr(C)]
struct Payload {
    words: [u64; 8],
}

type Service = publish_subscribe::PortFactory<ipc::Service, Payload, ()>;

/// One process's ports: a publisher of what it hands over, and a subscriber to what the other process
/// answers.
struct End {
    publisher: Publisher<ipc::Service, Payload, ()>,
    subscriber: Subscriber<ipc::Service, Payload, ()>,
    loan: bool,
    // The ports live as long as their services' and node's handles.
    _there: Service,
    _back: Service,
    _node: Node<ipc::Service>,
}

impl End {
    /// Opens the services of both directions and waits until the other process has opened them, too.
    fn open(run: u32, near: bool, loan: bool) -> Result<Self, Box<dyn Error>> {
        let node = NodeBuilder::new().create::<ipc::Service>()?;
        let service = |way: &str| -> Result<Service, Box<dyn Error>> {
            let name = format!("jet-peers/{run}/{way}").as_str().try_into()?;
            // One publisher, one subscriber, one sample under way: the least that iceoryx2 can be asked for.
            let service = node
                .service_builder(&name)
                .publish_subscribe::<Payload>()
                .max_publishers(1)
                .max_subscribers(1)
                .max_nodes(2)
                .history_size(0)
                .subscriber_max_buffer_size(1)
                .enable_safe_overflow(true)
                .open_or_create()?;
            Ok(service)
        };
        let (there, back) = (service("there")?, service("back")?);
        let (out, into) = if near { (&there, &back) } else { (&back, &there) };
        let publisher = out.publisher_builder().create()?;
        let subscriber = into.subscriber_builder().create()?;
        for way in [&there, &back] {
            let ports = way.dynamic_config();
            while ports.number_of_publishers() == 0 || ports.number_of_subscribers() == 0 {
                std::hint::spin_loop();
            }
        }
        Ok(Self { publisher, subscriber, loan, _there: there, _back: back, _node: node })
    }

    fn send(&self, word: u64) -> Result<(), Box<dyn Error>> {
        if self.loan {
            let sample = self.publisher.loan_uninit()?.write_payload(Payload { words: [word; 8] });
            sample.send()?;
        } else {
            self.publisher.send_copy(Payload { words: [word; 8] })?;
        }
        Ok(())
    }

    fn receive(&self) -> Result<u64, Box<dyn Error>> {
        loop {
            if let Some(sample) = self.subscriber.receive()? {
                return Ok(sample.words[0]);
            }
            std::hint::spin_loop();
        }
    }
}

fn near(run: u32, loan: bool) -> Result<f64, Box<dyn Error>> {
    let end = End::open(run, true, loan)?;
    let rounds = |count: u64| -> Result<(), Box<dyn Error>> {
        for round in 0..count {
            end.send(round)?;
            let answer = end.receive()?;
            if answer != round {
                return Err(format!("the answer to {round} is {answer}").into());
            }
        }
        Ok(())
    };
    rounds(WARM_UP)?;
    let start = Instant::now();
    rounds(ROUNDS)?;
    Ok(start.elapsed().as_nanos() as f64 / ROUNDS as f64 / 2.0)
}

fn far(run: u32, loan: bool) -> Result<(), Box<dyn Error>> {
    let end = End::open(run, false, loan)?;
    for _ in 0..WARM_UP + ROUNDS {
        let word = end.receive()?;
        end.send(word)?;
    }
    Ok(())
}

fn run(cores: (CoreId, CoreId), loan: bool) -> Result<f64, Box<dyn Error>> {
    let run = std::process::id();
    // SAFETY: this process has one thread, and nothing of iceoryx2 is open yet.
    let child = unsafe { libc::fork() };
    // SAFETY: only sets this process's timer. If the other end is gone, the timer ends the run.
    unsafe { libc::alarm(SECONDS_MAX) };
    match child {
        -1 => return Err(std::io::Error::last_os_error().into()),
        0 => {
            core_affinity::set_for_current(cores.1);
            // SAFETY: only asks the kernel to end the child with its parent.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let ended =
                far(run, loan).inspect_err(|error| eprintln!("iceoryx2-handoff: the other end: {error}"));
            // SAFETY: ends the child without running the parent's destructors; its own have run in `far`.
            unsafe { libc::_exit(i32::from(ended.is_err())) }
        }
        _ => core_affinity::set_for_current(cores.0),
    };
    let one_way_ns = near(run, loan)?;
    let mut status = 0;
    // SAFETY: waits for our own child.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
        return Err("the other process did not end well".into());
    }
    Ok(one_way_ns)
}

fn main() -> ExitCode {
    let loan = match std::env::args().nth(1).as_deref() {
        Some("copy") => false,
        Some("loan") => true,
        _ => {
            eprintln!("usage: iceoryx2-handoff copy|loan");
            return ExitCode::from(2);
        }
    };
    set_log_level(LogLevel::Error);
    let [near, far, ..] = core_affinity::get_core_ids().unwrap_or_default()[..] else {
        eprintln!("iceoryx2-handoff: two spinning processes need two processors, and this one may use fewer");
        return ExitCode::from(2);
    };
    match run((near, far), loan) {
        Ok(one_way_ns) => {
            println!("{one_way_ns:.1}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("iceoryx2-handoff: {error}");
            ExitCode::FAILURE
        }
    }
}
