//! The origin of figures: the machine, the commit, the build and the run's arguments. `--json` prints this
//! description as the first line.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::process::Command;
use std::time::SystemTime;

/// Arguments that are left out when two runs' settings are compared: they do not change what is measured, or
/// a run records them elsewhere. `true`: a value follows the argument.
const OTHER_ARGUMENTS: [(&str, bool); 5] =
    [("--json", false), ("--check", false), ("--baseline", true), ("--samples", true), ("--brief", false)];
/// Word that stands for a value that could not be found out.
const UNKNOWN: &str = "unknown";

/// One line of `--json` that describes a run. The line's only key, `run`, tells it from a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The run to which the rows after this line belong.
    pub run: Run,
}

/// Description of one run of this program, `jet-bench`: build, machine and arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// This program's version.
    pub version: String,
    /// Commit that the program was built from: as git said at the build, else as the build was told; else
    /// "unknown".
    pub commit: String,
    /// Whether the sources that the program was built from differ from the commit; null: unknown.
    pub dirty: Option<bool>,
    /// Commit that the checkout is at now, if that differs from the one that the program was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkout: Option<String>,
    /// Cargo's profile that the program was built with. Figures are to be quoted from "release" only.
    pub profile: String,
    /// The machine that the program ran on.
    pub machine: Machine,
    /// Arguments of the program, without the program's name.
    pub arguments: Vec<String>,
    /// Number of samples taken of each figure.
    pub samples: u32,
    /// Whether spans were shortened: then no figure of the run is to be quoted.
    pub brief: bool,
    /// Time of the run, in seconds since 1970.
    pub unix_s: u64,
}

/// Description of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Number of processors that this program may use.
    pub cores: usize,
    /// The kernel's name and release.
    pub kernel: String,
}

impl Run {
    /// Describes the run that this process makes.
    pub fn this(samples: u32, brief: bool) -> Self {
        let commit = option_env!("JET_BENCH_COMMIT").unwrap_or(UNKNOWN);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit.to_owned(),
            dirty: option_env!("JET_BENCH_DIRTY").map(|dirty| dirty == "true"),
            checkout: elsewhere(commit, checkout()),
            profile: env!("JET_BENCH_PROFILE").to_owned(),
            machine: Machine::this(),
            arguments: std::env::args().skip(1).collect(),
            samples,
            brief,
            unix_s: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        }
    }

    /// Returns the reason why no figure of this run is to be quoted, if there is one.
    pub fn caution(&self) -> Option<String> {
        let mut reasons = Vec::new();
        if self.profile != "release" {
            reasons.push(format!("built with the profile {}", self.profile));
        }
        if self.brief {
            reasons.push("brief".to_owned());
        }
        (!reasons.is_empty())
            .then(|| format!("no figure of this run is to be quoted: {}", reasons.join(", ")))
    }

    /// Returns what differs between an earlier run `then` and this one, a line for each difference.
    pub fn differences(&self, then: &Self) -> Vec<String> {
        let words = |run: &Self| {
            let dirty = match run.dirty {
                Some(true) => " with changes",
                Some(false) => "",
                None => ", changes unknown",
            };
            [
                ("processor", run.machine.cpu.clone()),
                ("cores", run.machine.cores.to_string()),
                ("kernel", run.machine.kernel.clone()),
                ("version", run.version.clone()),
                ("commit", format!("{}{dirty}", run.commit)),
                ("profile", run.profile.clone()),
                ("samples", run.samples.to_string()),
                ("brief", run.brief.to_string()),
                ("settings", settings(&run.arguments).join(" ")),
            ]
        };
        let pairs = words(then).into_iter().zip(words(self));
        let unlike = pairs.filter(|(then, now)| then != now);
        unlike.map(|((what, then), (_, now))| format!("{what}: {then} then, {now} now")).collect()
    }
}

/// Describes the run for people, in a line or two.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, commit, dirty, checkout, profile, machine, .. } = self;
        let changes = if *dirty == Some(true) { " with changes" } else { "" };
        let checkout = checkout.as_deref().map(short);
        let checkout = checkout.map_or(String::new(), |now| format!(" (the checkout is at {now} now)"));
        let Machine { cpu, cores, kernel } = machine;
        let commit = short(commit);
        write!(f, "jet-bench {version}, commit {commit}{changes}{checkout}, {profile}; ")?;
        write!(f, "{cpu}, {cores} cores, {kernel}")?;
        self.caution().map_or(Ok(()), |caution| write!(f, "\n{caution}"))
    }
}

/// Returns those of a run's arguments that decide what is measured.
fn settings(arguments: &[String]) -> Vec<&str> {
    let mut settings = Vec::new();
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        let (name, joined) = argument.split_once('=').map_or((argument, false), |(name, _)| (name, true));
        match OTHER_ARGUMENTS.iter().find(|(other, _)| *other == name) {
            Some((_, true)) if !joined => drop(rest.next()),
            Some(_) => {}
            None => settings.push(argument),
        }
    }
    settings
}

impl Machine {
    fn this() -> Self {
        let told = |file: &str| std::fs::read_to_string(file).map(|text| text.trim().to_owned());
        let kernel = told("/proc/sys/kernel/osrelease").map(|release| format!("Linux {release}"));
        Self {
            cpu: cpu_name().unwrap_or_else(|| UNKNOWN.to_owned()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: kernel.unwrap_or_else(|_| UNKNOWN.to_owned()),
        }
    }
}

fn cpu_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the first 12 characters of a commit.
fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

/// Returns the commit that the checkout, from which this program was built, is at now, if the checkout still
/// exists.
fn checkout() -> Option<String> {
    let git = ["--no-optional-locks", "-C", env!("CARGO_MANIFEST_DIR")];
    let output = Command::new("git").args(git).args(["rev-parse", "HEAD"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the checkout's commit `now` if it differs from the commit that the program was built from.
fn elsewhere(built: &str, now: Option<String>) -> Option<String> {
    now.filter(|now| built != UNKNOWN && now != built)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns the description of an invented run on a machine that is not this one.
    pub fn example() -> Run {
        Run {
            version: "0.1.0".to_owned(),
            commit: "aaaa".to_owned(),
            dirty: Some(false),
            checkout: None,
            profile: "release".to_owned(),
            machine: Machine { cpu: "Example 9".to_owned(), cores: 2, kernel: "Linux 6.1".to_owned() },
            arguments: vec!["core".to_owned()],
            samples: 7,
            brief: false,
            unix_s: 1,
        }
    }

    #[test]
    fn a_run_is_a_line_of_json_and_back() {
        let line = Line { run: Run::this(3, true) };
        let text = serde_json::to_string(&line).unwrap();
        assert!(text.starts_with("{\"run\":{"), "{text}");
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        assert!(line.run.machine.cores > 0);
        assert!(line.run.machine.kernel.starts_with("Linux "), "{}", line.run.machine.kernel);
        // Built by `cargo test`, which is no release.
        assert!(line.run.caution().is_some_and(|text| text.contains("profile") && text.contains("brief")));
        assert_eq!(example().caution(), None);
    }

    #[test]
    fn a_checkout_that_moved_on_is_told() {
        assert_eq!(elsewhere("aaaa", None), None);
        assert_eq!(elsewhere("aaaa", Some("aaaa".to_owned())), None);
        assert_eq!(elsewhere(UNKNOWN, Some("bbbb".to_owned())), None);
        let run = Run { checkout: elsewhere("aaaa", Some("bbbb".to_owned())), ..example() };
        assert!(run.to_string().contains("commit aaaa (the checkout is at bbbb now), release"), "{run}");
        assert!(!example().to_string().contains("checkout"));
        // A line from before the field existed.
        let text = serde_json::to_string(&Line { run: example() }).unwrap();
        assert!(!text.contains("checkout"), "{text}");
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap().run, example());
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let then = example();
        assert_eq!(then.differences(&then), [""; 0]);
        let mut now = example();
        now.machine.cpu = "Other 1".to_owned();
        now.dirty = Some(true);
        now.arguments =
            ["--json", "core", "--check=exact", "--baseline", "file", "--baseline=file", "--samples", "7"]
                .map(str::to_owned)
                .to_vec();
        assert_eq!(
            now.differences(&then),
            ["processor: Example 9 then, Other 1 now", "commit: aaaa then, aaaa with changes now"]
        );
        now.arguments.push("--set=a=b".to_owned());
        assert_eq!(now.differences(&then)[2], "settings: core then, core --set=a=b now");
    }
}
