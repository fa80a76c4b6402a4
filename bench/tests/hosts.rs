//! Measuring between hosts: `receive` counts what `load` and `probe` say that they sent, and each error says
//! what to start.

use jet_test_support::daemon;
use jet_test_support::folder::Folder;
use jet_test_support::process::Process;
use jet_test_support::waiting::until;
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::{Command, Output};

const BENCH: &str = env!("CARGO_BIN_EXE_jet-bench");

/// A daemon on a port of loopback.
struct Daemon {
    process: Process,
    address: String,
    /// The last field, so that processes which are dropped can still write their output.
    folder: Folder,
}

impl Daemon {
    fn start() -> Self {
        let folder = Folder::new();
        let control = folder.join("jetd.sock");
        let command =
            daemon::command(BENCH, &["role", "daemon"], &control, &["tcp:127.0.0.1:0"], &[] as &[&str]);
        let process = folder.start("daemon", command);
        let status = daemon::wait_answer(&process, &control);
        let address = status.listen[0].clone();
        Self { process, address, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("jetd.sock")
    }

    fn bench(&self, name: &str, more: &[&str]) -> Command {
        let mut command = Command::new(BENCH);
        command.args([name, "--json", "--samples", "1", "--to", &self.address, "--app", "store"]).args(more);
        command
    }

    /// Starts the receiving application and waits until it has registered.
    fn receiver(&self) -> Receiver {
        let mut command = Command::new(BENCH);
        command.args(["receive", "--json", "--app", "store", "--read", "--control-socket"]);
        command.arg(self.socket());
        let process = self.folder.start("receive", command);
        until("the receiver to register", || {
            assert!(process.is_running(), "no receiver: {}", process.stderr_text());
            process.stderr_text().contains("receiving as store").then_some(())
        });
        Receiver(process)
    }
}

/// The receiving application, a process of its own.
struct Receiver(Process);

impl Receiver {
    /// Ends the application by a signal, and returns its rows.
    fn end(mut self, signal: Signal) -> Vec<serde_json::Value> {
        self.0.signal(signal);
        assert_eq!(self.0.wait().code(), Some(0), "{}", self.0.stderr_text());
        rows(&printed(&self.0))
    }
}

fn printed(process: &Process) -> String {
    String::from_utf8(process.printed_bytes()).unwrap()
}

fn rows(out: &str) -> Vec<serde_json::Value> {
    let lines = out.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.filter(|line: &serde_json::Value| line.get("metric").is_some()).collect()
}

fn rows_of(output: &Output) -> Vec<serde_json::Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    rows(std::str::from_utf8(&output.stdout).unwrap())
}

/// Returns the value of the only row of a metric.
fn value(rows: &[serde_json::Value], metric: &str, unit: &str) -> f64 {
    let found: Vec<_> = rows.iter().filter(|row| row["metric"] == metric && row["unit"] == unit).collect();
    assert_eq!(found.len(), 1, "'{metric}' in {unit}: {rows:#?}");
    found[0]["value"].as_f64().unwrap_or_else(|| panic!("'{metric}' has no value: {rows:#?}"))
}

#[test]
fn both_ends_of_a_sweep_count_the_same() {
    let daemon = Daemon::start();
    let receiver = daemon.receiver();
    let sweep = ["--bytes", "100,65536", "--depth", "1,8", "--runtime", "0.2", "--warm-up", "0.05"];
    let output = daemon.bench("load", &sweep).output().unwrap();
    let sent = rows_of(&output);
    let came = receiver.end(Signal::TERM);
    let mut total = 0.0;
    let cells = [(100, 1), (100, 8), (65_536, 1), (65_536, 8)];
    for (run, (bytes, depth)) in cells.iter().enumerate() {
        let name = format!("{bytes} B, {depth} at once");
        let consumed = value(&sent, &format!("{name}: messages consumed"), "messages");
        assert!(consumed >= 1.0, "{name}");
        let exact = sent.iter().filter(|row| row["kind"] == "exact" && row["holds"] == true).count();
        assert_eq!(exact, 2 * cells.len(), "what --check=exact looks at: {sent:#?}");
        assert_eq!(value(&sent, &format!("{name}: messages without an end"), "messages"), 0.0);
        let run = run + 1;
        assert_eq!(value(&came, &format!("run {run}: messages"), "messages"), consumed, "{name}");
        let arrived = value(&came, &format!("run {run}: bytes"), "bytes");
        assert_eq!(arrived, consumed * f64::from(*bytes), "{name}");
        total += arrived;
        // Both figures must fit each other, since they are of the same messages.
        let (rate, gb) = (value(&sent, &name, "1/s"), value(&sent, &name, "GB/s"));
        assert!((rate * f64::from(*bytes) / 1e9 / gb - 1.0).abs() < 1e-9, "{name}");
        let latency = |what| value(&sent, &format!("{name}, {what}"), "us");
        let latencies = [latency("p50"), latency("p99"), latency("p99.9"), latency("max")];
        assert!(latencies[0] > 0.0 && latencies.is_sorted(), "{name}: {latencies:?}");
        assert!(value(&sent, &format!("{name}, processor time of the sender"), "ns/B") > 0.0);
        for end in ["application", "daemon"] {
            assert!(value(&came, &format!("run {run}, processor time of the {end}"), "ns/B") > 0.0, "{end}");
        }
    }
    let warm_up = value(&came, "of no run (warm-up, other senders): bytes", "bytes");
    assert!(warm_up > 0.0);
    assert_eq!(value(&came, "in all: bytes", "bytes"), total + warm_up);
    assert!(String::from_utf8_lossy(&output.stderr).contains("run 4 of 4: 65536 B, 8 at once: "));
}

#[test]
fn an_open_loop_sends_what_is_due_and_says_what_could_not_be_kept() {
    let daemon = Daemon::start();
    let receiver = daemon.receiver();
    let open = ["--arrivals", "constant", "--runtime", "0.5", "--warm-up", "0"];
    let due = rows_of(
        &daemon.bench("load", &[&open[..], &["--rate", "100", "--bytes", "64"]].concat()).output().unwrap(),
    );
    let name = "64 B, 100/s evenly, 32 at once";
    // Due at 10, 20 ... 490 ms. A machine that stands still at the end loses the last ones.
    let few = value(&due, &format!("{name}: messages consumed"), "messages");
    assert!((1.0..=49.0).contains(&few), "{few}");
    // No machine keeps a thousand million messages a second.
    let output =
        daemon.bench("load", &[&open[..], &["--rate", "1e9", "--bytes", "65536"]].concat()).output().unwrap();
    let much = rows_of(&output);
    let name = "65536 B, 1000000000/s evenly, 32 at once";
    let kept = much.iter().find(|row| row["metric"] == format!("{name}: of the offered load kept")).unwrap();
    assert_eq!((&kept["holds"], kept["value"].as_f64().unwrap() < 99.0), (&false.into(), true), "{kept}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the offered load could not be kept"));
    // The messages were due in the first moments and had to wait: latency counts from a message's due time.
    let late = value(&much, &format!("{name}: went after its time, p99"), "us");
    assert!(value(&much, &format!("{name}, max"), "us") >= late, "{late}");
    let consumed = value(&much, &format!("{name}: messages consumed"), "messages");
    let came = receiver.end(Signal::INT);
    assert_eq!(value(&came, "run 1: messages", "messages"), few);
    assert_eq!(value(&came, "run 1 (2): messages", "messages"), consumed);
    assert_eq!(value(&came, "in all: messages", "messages"), few + consumed);
}

#[test]
fn a_probe_takes_the_way_to_this_host_away() {
    let (daemon, near) = (Daemon::start(), Daemon::start());
    let (receiver, beside) = (daemon.receiver(), near.receiver());
    let more = ["--runtime", "0.2", "--warm-up", "0", "--loopback", &near.address];
    let rows = rows_of(&daemon.bench("probe", &more).output().unwrap());
    let name = "64 B, one at a time";
    let consumed = value(&rows, &format!("{name}: messages consumed"), "messages");
    assert!(consumed >= 1.0);
    let (far, near) = (
        value(&rows, &format!("{name}, max"), "us"),
        value(&rows, &format!("{name} to this host, max"), "us"),
    );
    let difference = value(&rows, &format!("{name}, less that to this host, max"), "us");
    // Equal up to the histogram's three digits.
    assert!(difference < far * 1.001 && near > 0.0, "{far} - {near}: {difference}");
    for receiver in [receiver, beside] {
        assert_eq!(value(&receiver.end(Signal::TERM), "run 1: messages", "messages"), consumed);
    }
}

#[test]
fn what_is_missing_is_said_with_what_to_start() {
    let mut daemon = Daemon::start();
    for name in ["load", "probe"] {
        let output = daemon.bench(name, &["--runtime", "1"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("no application 'store' is registered with the daemon at tcp:127.0.0.1:"),
            "{said}"
        );
        assert!(said.contains("jet-bench receive --app store"), "{said}");
        assert!(output.stdout.is_empty());
    }
    let Receiver(mut receiver) = daemon.receiver();
    daemon.process.kill();
    // The application learns that its daemon is gone.
    let (status, said) = (receiver.wait(), receiver.stderr_text());
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("the daemon is gone") && said.contains("0 messages had come, 0 bytes"), "{said}");
    let output = Command::new(BENCH).args(["load", "--to", &daemon.address]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cannot connect") && said.contains(&daemon.address), "{said}");
}

#[test]
fn a_load_whose_daemon_goes_ends_and_says_so() {
    let mut daemon = Daemon::start();
    let _receiver = daemon.receiver();
    let load = daemon.bench("load", &["--bytes", "64", "--runtime", "600"]);
    let mut load = daemon.folder.start("load", load);
    until("something to come", || {
        assert!(load.is_running(), "{}", load.stderr_text());
        let status = daemon::try_status(&daemon.socket())?;
        (status.messages.small > 0).then_some(())
    });
    daemon.process.kill();
    let (status, said) = (load.wait(), load.stderr_text());
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("the connection to {} was lost", daemon.address)), "{said}");
    assert!(load.printed_bytes().is_empty(), "figures of a connection that was lost are none");
}

#[test]
fn an_interrupted_load_prints_what_was_measured_so_far() {
    let daemon = Daemon::start();
    let receiver = daemon.receiver();
    let more = ["--bytes", "64,4096", "--runtime", "600", "--warm-up", "0"];
    let mut load = daemon.folder.start("load", daemon.bench("load", &more));
    // A line of progress comes every few seconds. After it something has been measured.
    until("progress to be told", || {
        assert!(load.is_running(), "{}", load.stderr_text());
        load.stderr_text().contains(" s of 600, ").then_some(())
    });
    load.signal(Signal::INT);
    assert_eq!(load.wait().code(), Some(130), "{}", load.stderr_text());
    let out = printed(&load);
    let sent = rows(&out);
    let consumed = value(&sent, "64 B, 32 at once: messages consumed", "messages");
    assert_eq!(value(&sent, "64 B, 32 at once: messages without an end", "messages"), 0.0);
    assert!(!out.contains("4096 B"), "what did not begin has no rows");
    assert_eq!(value(&receiver.end(Signal::TERM), "run 1: messages", "messages"), consumed);
}
