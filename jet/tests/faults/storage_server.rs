//! Test of the storage server of `jet-client/examples`: the daemon, the server and its clients are killed at
//! random, and now and then the server is asked to end. Each write that was acknowledged is there, every
//! reply is right, and each write has its effect once.
//!
//! The clients check this by themselves, against logs of their own (`storage_client`). A client that finds
//! something wrong ends, which this test sees.

use crate::rig::{Rig, random_for};
use jet_client::exactly_once::SEQUENCE_SPAN;
use jet_test_support::process::Process;
use jet_test_support::random::Random;
use jet_test_support::waiting::until;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// Kills of a short test.
const KILLS: u64 = 30;
/// Blocks of each client: few, so that most are written again and again.
const BLOCKS: u64 = 512;
/// Messages that each client ends after the last kill. An earlier life may have sent as many beyond the
/// oldest message without an end. All of these have ends then, so it is known how many writes took effect.
const MORE: u64 = SEQUENCE_SPAN;

/// Returns how long the test kills at least: `JET_FAULTS_SPAN_S` seconds, if there is such a variable.
fn span() -> Duration {
    let text = std::env::var("JET_FAULTS_SPAN_S").ok();
    let seconds = text.map_or(0, |text| text.parse().expect("JET_FAULTS_SPAN_S is a number of seconds"));
    Duration::from_secs(seconds)
}

/// Returns the path of an example of `jet-client`. `cargo test --workspace` has built it; `cargo test -p jet`
/// has not, so it is built here where it is missing or older than its sources.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this binary has a path");
    let profile = own.ancestors().nth(2).expect("PROFILE/deps/NAME");
    let path = profile.join("examples").join(name);
    if !is_fresh(&path) {
        let target = profile.parent().expect("TARGET/PROFILE");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--quiet", "-p", "jet-client", "--example", name, "--target-dir"]);
        let profile = profile.file_name().filter(|&profile| profile != "debug");
        cargo.arg(target).args(profile.map(|_| "--release"));
        assert!(cargo.status().expect("cargo").success(), "{name} is built");
    }
    path
}

/// Whether a program is newer than the sources that cargo lists beside it.
fn is_fresh(program: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let (Ok(built), Ok(list)) = (changed(program), fs::read_to_string(program.with_extension("d"))) else {
        return false;
    };
    let is_older = |path: &str| changed(Path::new(path)).is_ok_and(|time: SystemTime| time <= built);
    list.lines().next().is_some_and(|line| line.split_whitespace().skip(1).all(is_older))
}

/// What a client has printed in its newest line.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    messages: u64,
    writes: u64,
    /// Replies of this life of the client that it checked.
    checked: u64,
    /// Of these, replies to messages whose ends it knew from an earlier life.
    again: u64,
}

struct Client {
    program: PathBuf,
    address: String,
    log: PathBuf,
    first: u64,
    process: Option<Process>,
    /// Counts of the lives that have ended.
    past: Counts,
}

impl Client {
    fn start(&mut self, rig: &Rig, more: &[&str]) {
        let mut command = Command::new(&self.program);
        command.args(["--to", &self.address, "--log"]).arg(&self.log).args(more);
        command.args(["--first", &self.first.to_string(), "--blocks", &BLOCKS.to_string()]);
        self.process = Some(rig.start_program("client", command));
    }

    fn counts(&self) -> Counts {
        let printed = self.process.as_ref().expect("it was started").printed_bytes();
        let text = String::from_utf8(printed).expect("text");
        // The last line may not be whole.
        let whole = text.rfind('\n').map_or(0, |end| end);
        let Some(line) = text[..whole].lines().last() else { return Counts::default() };
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [messages, writes, checked, again] = numbers[..] else { panic!("{line}") };
        Counts { messages, writes, checked, again }
    }

    fn kill(&mut self) {
        assert!(self.is_running(), "a client ended: {}", self.said());
        self.process.as_mut().expect("it runs").kill();
        self.leave();
    }

    /// Adds up what this life counted.
    fn leave(&mut self) {
        let Counts { messages, writes, checked, again } = self.counts();
        self.past.messages = self.past.messages.max(messages);
        self.past.writes = self.past.writes.max(writes);
        self.past.checked += checked;
        self.past.again += again;
    }

    fn is_running(&self) -> bool {
        self.process.as_ref().expect("it was started").is_running()
    }

    fn said(&self) -> String {
        self.process.as_ref().expect("it was started").stderr_text()
    }

    /// Waits until the client, which was asked to end, has ended and found everything right.
    fn finish(&mut self) -> String {
        let status = self.process.as_mut().expect("it was started").wait();
        assert!(status.success(), "a client: {status}: {}", self.said());
        let printed = self.process.as_ref().expect("it was started").printed_bytes();
        String::from_utf8(printed).expect("text")
    }
}

struct Scene {
    rig: Rig,
    /// Path of the server's program.
    program: PathBuf,
    server: Process,
    clients: Vec<Client>,
    random: Random,
    /// Times that a server's log began anew while the server ran, in lives that have ended.
    logs: usize,
}

impl Scene {
    fn begin() -> Self {
        let random = random_for("storage_server", 24);
        let rig = Rig::start(&["session.quarantine_ms=200"]);
        let (program, client) = (example("storage_server"), example("storage_client"));
        let clients_count = u64::try_from(rig.listens().len()).expect("few");
        let server = start_server(&rig, &program, clients_count * BLOCKS);
        let clients = (0..).zip(rig.listens()).map(|(number, address)| Client {
            program: client.clone(),
            address: address.clone(),
            log: rig.path(&format!("client-{number}.log")),
            first: number * BLOCKS,
            process: None,
            past: Counts::default(),
        });
        let mut scene = Self { clients: clients.collect(), rig, program, server, random, logs: 0 };
        for client in &mut scene.clients {
            client.start(&scene.rig, &["--report"]);
        }
        scene
    }

    /// Waits until each client has heard of more ends.
    fn wait_progress(&self) {
        let before: Vec<_> = self.clients.iter().map(|client| client.counts().checked).collect();
        until("every client to go on", || {
            assert!(self.server.is_running(), "the server ended: {}", self.server.stderr_text());
            for client in &self.clients {
                assert!(client.is_running(), "a client ended: {}", client.said());
            }
            let mut going = self.clients.iter().zip(&before);
            going.all(|(client, &before)| client.counts().checked > before).then_some(())
        });
    }

    /// Starts the server, after the one before has ended.
    fn start_server(&mut self) {
        let printed = String::from_utf8(self.server.printed_bytes()).expect("text");
        self.logs += printed.matches("the log begins anew").count();
        self.server = start_server(&self.rig, &self.program, self.clients.len() as u64 * BLOCKS);
    }

    fn stop_server(&mut self) {
        // It says so when it is there.
        until("the server to begin", || {
            assert!(self.server.is_running(), "the server ended: {}", self.server.stderr_text());
            (!self.server.printed_bytes().is_empty()).then_some(())
        });
        self.server.signal(Signal::TERM);
        let status = self.server.wait();
        assert!(status.success(), "{status}: {}", self.server.stderr_text());
    }

    fn kill_somebody(&mut self) {
        match self.random.below(8) {
            0..2 => {
                self.server.kill();
                self.start_server();
            }
            2 => {
                // Asked to end, it finishes what it has begun. What has not come whole by then comes again.
                self.stop_server();
                self.start_server();
            }
            3..5 => {
                self.rig.kill_daemon();
                self.rig.start_again();
            }
            _ => {
                let at = self.random.size_below(self.clients.len());
                self.clients[at].kill();
                self.clients[at].start(&self.rig, &["--report"]);
            }
        }
    }
}

/// Starts a server of a store of so many blocks: few, so that its log begins anew after few writes.
fn start_server(rig: &Rig, program: &Path, blocks: u64) -> Process {
    let mut command = Command::new(program);
    command.arg("--store").arg(rig.path("store")).arg("--control-socket").arg(rig.control());
    command.args(["--blocks", &blocks.to_string()]);
    rig.start_program("server", command)
}

#[test]
fn each_acknowledged_write_of_the_storage_server_is_there_whoever_is_killed() {
    if !has_io_uring() {
        return;
    }
    let mut scene = Scene::begin();
    let (began, span) = (Instant::now(), span());
    let mut kills = 0;
    while kills < KILLS || began.elapsed() < span {
        // Now and then somebody is killed while another one still begins anew.
        if scene.random.below(4) > 0 {
            scene.wait_progress();
        }
        std::thread::sleep(Duration::from_millis(scene.random.below(60)));
        scene.kill_somebody();
        kills += 1;
    }
    scene.wait_progress();
    let Scene { rig, clients, .. } = &mut scene;
    let mut all = Counts::default();
    for client in clients.iter_mut() {
        client.kill();
        let count = (client.past.messages + MORE).to_string();
        client.start(rig, &["--count", &count]);
    }
    for client in clients {
        client.finish();
        client.leave();
    }
    // What is verified comes from the disk, and not from what a server still knows.
    scene.server.kill();
    scene.rig.kill_daemon();
    scene.rig.start_again();
    scene.start_server();
    for client in &mut scene.clients {
        client.start(&scene.rig, &["--verify"]);
        let verified = client.finish();
        println!("{:?}; verified: {}", client.past, verified.trim_end());
        all.checked += client.past.checked;
        all.again += client.past.again;
    }
    println!("{kills} kills in {:?}; {all:?}", began.elapsed());
    assert!(all.again > 0, "no message came again after its effect: nothing was tried");
    assert!(scene.logs > 0, "no log began anew while its server ran");
    scene.stop_server();
}

/// Whether the kernel gives io_uring. Where `JET_TEST_IO_URING=1` says so, it must.
fn has_io_uring() -> bool {
    match io_uring::IoUring::new(2) {
        Ok(_) => true,
        Err(error) => {
            let wanted = std::env::var("JET_TEST_IO_URING").is_ok_and(|value| value == "1");
            assert!(!wanted, "JET_TEST_IO_URING=1, and the kernel gives no io_uring ({error})");
            eprintln!("nothing to see here: the kernel gives no io_uring ({error})");
            false
        }
    }
}
