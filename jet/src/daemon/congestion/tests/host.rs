//! A fake host with a ConnectX, made of files and a script.

use crate::daemon::congestion::keeper::{ActuatorKeeper, Recovery, Rows};
use crate::daemon::congestion::tool_lock::ToolLock;
use crate::daemon::congestion::{
    ActuatorError, ActuatorKind, Congestion, CongestionConfig, CongestionControl, Mstcongestion, Setting,
    Support, journal_path, recover,
};
use jet_control::status::ActuatorStatus;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const INTERFACE: &str = "ens1f0";
pub const PCI: &str = "0000:3b:00.0";

/// Time limit of waiting, which only a broken test reaches.
const DEADLINE: Duration = Duration::from_secs(60);

/// Writes an executable script through another process. If this process had the file open for writing, a
/// child of another test could inherit the descriptor, and the script could not be started.
pub fn script(path: &Path, body: &str) {
    let mut shell = Command::new("sh");
    let mut shell = shell
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{body}\n").as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

pub struct Host {
    pub root: PathBuf,
    _directory: Option<tempfile::TempDir>,
}

impl Host {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let host = Self { root, _directory: Some(directory) };
        let np = host.roce_np("");
        fs::create_dir_all(np.join("enable")).unwrap();
        for priority in 0..8 {
            fs::write(np.join(format!("enable/{priority}")), "0\n").unwrap();
        }
        fs::write(np.join("min_time_between_cnps"), "4\n").unwrap();
        let device = host.root.join("sys/devices").join(PCI);
        fs::create_dir_all(&device).unwrap();
        std::os::unix::fs::symlink(device, host.root.join("sys/class/net").join(INTERFACE).join("device"))
            .unwrap();
        fs::create_dir_all(host.pci_device()).unwrap();
        fs::create_dir_all(host.cc_params().parent().unwrap()).unwrap();
        fs::write(host.cc_params(), "8\n").unwrap();
        fs::create_dir_all(host.root.join("run")).unwrap();
        host.set_tool("disabled", "dynamic");
        // The script takes one operation a run, like the real tool, and prints most errors on standard
        // output.
        let body = r#"
            cd "$(dirname "$0")"
            echo "$*" >> calls
            [ -e hang ] && exec sleep 1000
            [ -e fail ] && { echo "-E- Failed to perform the operation: register" >&2; exit 1; }
            [ "$1" = -d ] && [ "$2" = 0000:3b:00.0 ] || { echo "-E- Failed to open device: $2"; exit 1; }
            shift 2
            refusal="-E- Failed to perform the operation: Please choose one operation."
            [ $# -le 2 ] || { echo "$refusal"; exit 1; }
            case $1 in
                --query) printf 'Action: %s\nMode: %s\n' "$(cat action)" "$(cat mode)";;
                --action) [ -e deaf ] || echo "$2" > action; echo "-I- Action was set successfully.";;
                --mode) echo "$2" > mode; echo "-I- Mode was set successfully.";;
                *) exit 1;;
            esac
        "#;
        script(&host.tool(), body);
        host
    }

    /// Opens the host that another process has created.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), _directory: None }
    }

    pub fn roce_np(&self, knob: &str) -> PathBuf {
        self.root.join("sys/class/net").join(INTERFACE).join("ecn/roce_np").join(knob)
    }

    pub fn cc_params(&self) -> PathBuf {
        self.root.join("debug/mlx5").join(PCI).join("cc_params/np_min_time_between_cnps")
    }

    pub fn pci_device(&self) -> PathBuf {
        self.root.join("sys/bus/pci/devices").join(PCI)
    }

    pub fn tool(&self) -> PathBuf {
        self.root.join("run/mstcongestion")
    }

    pub fn set_tool(&self, action: &str, mode: &str) {
        fs::write(self.root.join("run/action"), format!("{action}\n")).unwrap();
        fs::write(self.root.join("run/mode"), format!("{mode}\n")).unwrap();
    }

    /// Makes the tool `hang`, `fail`, or be `deaf` to its action.
    pub fn make_tool(&self, how: &str) {
        fs::write(self.root.join("run").join(how), "").unwrap();
    }

    pub fn cure_tool(&self, how: &str) {
        fs::remove_file(self.root.join("run").join(how)).unwrap();
    }

    pub fn tool_state(&self) -> (String, String) {
        (value(&self.root.join("run/action")), value(&self.root.join("run/mode")))
    }

    pub fn control_socket(&self) -> PathBuf {
        self.root.join("run/jetd.sock")
    }

    pub fn journal(&self) -> PathBuf {
        journal_path(&self.control_socket())
    }

    pub fn config(&self, actuators: &[ActuatorKind]) -> CongestionConfig {
        let config = CongestionConfig {
            actuators: actuators.to_vec(),
            interface: Some(INTERFACE.into()),
            // So long that no hold ends by chance in tests that set no other time.
            hold_ms: 60_000,
            tool_timeout_ms: 30_000,
            priorities: vec![3],
            mstcongestion: self.tool(),
            sysfs: self.root.join("sys"),
            debugfs: self.root.join("debug"),
            ..CongestionConfig::default()
        };
        config.check().unwrap();
        config
    }

    pub fn keeper(&self, config: &CongestionConfig) -> (ActuatorKeeper, Recovery) {
        ActuatorKeeper::open(config, &self.control_socket(), Vec::new()).unwrap()
    }

    /// Opens a keeper of all three actuators, whose tool is killed soon while it hangs.
    pub fn impatient_keeper(&self) -> ActuatorKeeper {
        let config = self.config(&[ActuatorKind::RoceNp, ActuatorKind::CcParams]);
        let tool = Box::new(ToolByTurns::of(self, &config));
        ActuatorKeeper::open(&config, &self.control_socket(), vec![tool]).unwrap().0
    }

    pub fn control(&self, config: &CongestionConfig) -> CongestionControl {
        CongestionControl::start(config, &self.control_socket()).unwrap()
    }

    pub fn recover(&self, config: &CongestionConfig) -> Recovery {
        recover(config, &self.control_socket()).unwrap()
    }

    pub fn assert_untouched(&self) {
        assert_eq!(value(&self.roce_np("enable/3")), "0");
        assert_eq!(value(&self.roce_np("min_time_between_cnps")), "4");
        assert_eq!(value(&self.cc_params()), "8");
        assert_eq!(self.tool_state(), ("disabled".into(), "dynamic".into()));
    }

    pub fn assert_lowered(&self) {
        assert_eq!(value(&self.roce_np("enable/3")), "1");
        assert_eq!(value(&self.roce_np("min_time_between_cnps")), "0");
        assert_eq!(value(&self.cc_params()), "0");
        assert_eq!(self.tool_state(), ("mark".into(), "aggressive".into()));
    }
}

/// The tool with a short time limit while the test makes it hang, and a long one otherwise. On a busy machine
/// only a hanging tool is killed.
struct ToolByTurns {
    patient: Mstcongestion,
    impatient: Mstcongestion,
    hang: PathBuf,
}

impl ToolByTurns {
    fn of(host: &Host, config: &CongestionConfig) -> Self {
        let tool = |config: &CongestionConfig, lock: &str| {
            let lock = ToolLock::take(&host.root.join("run").join(lock), DEADLINE);
            Mstcongestion::new(config, lock.map_err(|error| error.to_string()))
        };
        Self {
            patient: tool(config, "patient.lock"),
            impatient: tool(&CongestionConfig { tool_timeout_ms: 100, ..config.clone() }, "impatient.lock"),
            hang: host.root.join("run/hang"),
        }
    }

    fn tool(&mut self) -> &mut Mstcongestion {
        if self.hang.exists() { &mut self.impatient } else { &mut self.patient }
    }
}

impl Congestion for ToolByTurns {
    fn name(&self) -> &'static str {
        self.patient.name()
    }

    fn what(&self) -> &'static str {
        self.patient.what()
    }

    fn probe(&mut self) -> Support {
        self.tool().probe()
    }

    fn plan(&mut self) -> Result<Vec<Setting>, ActuatorError> {
        self.tool().plan()
    }

    fn lower(&mut self, settings: &[Setting]) -> Result<(), ActuatorError> {
        self.tool().lower(settings)
    }

    fn restore(&mut self, settings: &[Setting]) -> Result<Vec<String>, ActuatorError> {
        self.tool().restore(settings)
    }
}

pub const THREE: [ActuatorKind; 3] =
    [ActuatorKind::Mstcongestion, ActuatorKind::RoceNp, ActuatorKind::CcParams];

pub fn value(path: &Path) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}

pub fn rows(keeper: &ActuatorKeeper) -> Vec<ActuatorStatus> {
    let rows = Rows::default();
    keeper.publish(&rows);
    rows.into_inner().unwrap()
}

pub fn row(rows: &[ActuatorStatus], name: &str) -> ActuatorStatus {
    rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name} in {rows:?}")).clone()
}

/// Waits until another thread or process has done something, and panics after [`DEADLINE`].
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}
