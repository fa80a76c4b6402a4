//! Subcommand `jet cache`: shows, plans, makes and gives back reservations of the last-level cache.

use super::{fail, print, print_json};
use crate::daemon::cache::{CacheError, DEFAULT_GROUP, Recovered, RecoveryScope, Reserve, recover};
use crate::daemon::{ConfigError, DaemonArgs};
use crate::text;
use jet_cat::plan::Plan;
use jet_cat::resctrl::{AccessError, DomainId, GroupName, Line, Mode, Resctrl, Resource};
use jet_cat::reservation::{Reservation, preview, reserved};
use jet_cat::topology::{Domain, Inclusion, Topology};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Shows, plans, makes and gives back reservations of the last-level cache.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Action,
}

const EXAMPLES: &str = "\
Examples:
  jet cache show                                   caches, groups, and who has which ways
  jet cache plan --config /etc/jet/jetd.toml       what the daemon would reserve; changes nothing
  jet cache plan --set cache.bytes=25165824
  jet cache apply                                  reserves it until it is given back; a daemon then uses that
  jet cache restore                                gives back, and what killed daemons had left, too
  jet cache restore --forget                       what cannot be given back stays as it is, and is told and \
  forgotten";

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Shows the last-level caches of this host, the resctrl groups, and which ways each group has.
    Show {
        /// Print one JSON object (fields: docs/json.md).
        #[arg(long)]
        json: bool,
    },
    /// Shows what a daemon with this configuration would reserve. Changes nothing.
    Plan(Configured),
    /// Makes a reservation that lasts until `jet cache restore`. A daemon with the same group uses the
    /// reservation, and leaves it in place.
    Apply(Configured),
    /// Gives back what `jet cache apply` reserved, and what killed daemons had reserved. What a living daemon
    /// has reserved stays.
    Restore {
        #[command(flatten)]
        configured: Configured,
        /// Where a setting cannot be restored, because another tool has changed it or has the ways: restore
        /// the other settings, name those that stay as they are, and forget their earlier values. Without
        /// --forget, nothing of such a reservation is touched
        #[arg(long)]
        forget: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Configured {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
}

/// Error of a `jet cache` command.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Cache(CacheError),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Journal(#[from] jet_cat::reservation::JournalError),
    #[error(
        "cache is reserved as '{group}' already, by a daemon or by jet cache apply: jet cache show says \
         what; jet cache restore gives back what no living daemon uses"
    )]
    Reserved { group: GroupName },
    #[error("{0}")]
    Left(String),
}

/// Wraps an error in the daemon's [`CacheError`], so that `jet cache` and the daemon report it in the same
/// words.
impl<E: Into<CacheError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Cache(error.into())
    }
}

pub(super) fn run(args: &Args) -> ExitCode {
    let result = match &args.what {
        Action::Show { json } => show(*json),
        Action::Plan(configured) => planned(configured),
        Action::Apply(configured) => apply(configured),
        Action::Restore { configured, forget } => restore(configured, *forget),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(failure),
    }
}

/// What `jet cache show` prints (docs/json.md).
#[derive(Serialize)]
struct Shown {
    inclusion: Inclusion,
    domains: Vec<ShownDomain>,
    groups: Vec<ShownGroup>,
    /// Reason why there are no groups, if they cannot be read.
    error: Option<String>,
}

/// A last-level cache of this host.
#[derive(Serialize)]
struct ShownDomain {
    domain: DomainId,
    bytes: u64,
    ways: u32,
    line_bytes: u32,
    cpus: String,
}

/// A resctrl group.
#[derive(Serialize)]
struct ShownGroup {
    /// Name that the configuration uses for the group.
    group: String,
    mode: &'static str,
    exclusive: bool,
    /// Ways of the last-level caches, as in a schemata.
    ways: String,
    /// Memory bandwidth in each domain, where the processor can limit it.
    bandwidth: Option<BTreeMap<DomainId, u64>>,
}

fn show(as_json: bool) -> Result<(), Failure> {
    let topology = Topology::of_host()?;
    let (groups, error) = match groups() {
        Ok(groups) => (groups, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let domain = |domain: &Domain| ShownDomain {
        domain: domain.id,
        bytes: domain.bytes,
        ways: domain.ways,
        line_bytes: domain.line_bytes,
        cpus: domain.cpus.to_string(),
    };
    let domains = topology.domains.iter().map(domain).collect();
    let shown = Shown { inclusion: topology.inclusion, domains, groups, error };
    if as_json {
        print_json(&shown);
    } else {
        print(&page(&shown));
    }
    Ok(())
}

/// Formats what `jet cache show` prints for people.
fn page(shown: &Shown) -> String {
    let domain = |domain: &ShownDomain| {
        vec![
            domain.domain.to_string(),
            text::bytes(domain.bytes),
            domain.ways.to_string(),
            domain.cpus.clone(),
        ]
    };
    let domains: Vec<_> = shown.domains.iter().map(domain).collect();
    let mut page = text::table(&["domain", "size", "ways", "processors"], &domains);
    if let Some(error) = &shown.error {
        page.push_str(error);
        page.push('\n');
        return page;
    }
    let group = |group: &ShownGroup| {
        let limits = group.bandwidth.iter().flatten().map(|(domain, value)| format!("{domain}={value}"));
        let bandwidth = limits.collect::<Vec<_>>().join(";");
        vec![group.group.clone(), group.mode.to_owned(), group.ways.clone(), bandwidth]
    };
    let groups: Vec<_> = shown.groups.iter().map(group).collect();
    page.push_str(&text::table(&["group", "mode", "ways", "bandwidth"], &groups));
    page
}

/// Returns the name that the configuration uses for a resctrl group: for the default group,
/// [`DEFAULT_GROUP`].
fn name_of(group: &GroupName) -> String {
    if group.is_default() { DEFAULT_GROUP.to_owned() } else { group.to_string() }
}

/// Reads all resctrl groups.
fn groups() -> Result<Vec<ShownGroup>, Failure> {
    let resctrl = Resctrl::find()?;
    let mut names = vec![GroupName::default_group()];
    names.extend(resctrl.groups()?);
    let mut groups = Vec::new();
    for name in names {
        let group = resctrl.group(&name);
        let read = || -> Result<ShownGroup, AccessError> {
            let schemata = group.schemata()?;
            let ways = jet_cat::plan::schemata(&jet_cat::plan::l3_ways(&schemata)).to_string();
            let bandwidth = match schemata.line(&Resource::MemoryBandwidth) {
                Some(Line::Bandwidth(bandwidth)) => Some(bandwidth.clone()),
                _ => None,
            };
            let mode = group.mode()?;
            Ok(ShownGroup {
                group: name_of(&name),
                mode: mode.word(),
                exclusive: mode == Mode::Exclusive,
                ways: ways.trim_end().replace('\n', " "),
                bandwidth,
            })
        };
        match read() {
            Ok(group) => groups.push(group),
            // The group was removed meanwhile.
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(groups)
}

fn planned(configured: &Configured) -> Result<(), Failure> {
    let config = configured.daemon.load()?;
    let resctrl = Resctrl::find()?;
    let request = config.cache.request_near(config.pool.bytes, config.numa_node())?;
    if reserved(&config.cache.journals)?.contains(&request.group) {
        return Err(Failure::Reserved { group: request.group });
    }
    let plan = preview(&resctrl, &request, &config.cache.journals)?;
    if config.cache.reserve == Reserve::Off {
        tracing::info!("cache.reserve is \"off\": a daemon with this configuration reserves none of this");
    }
    print_plan(configured, &plan);
    Ok(())
}

fn apply(configured: &Configured) -> Result<(), Failure> {
    let config = configured.daemon.load()?;
    let resctrl = Resctrl::find()?;
    let request = config.cache.request_near(config.pool.bytes, config.numa_node())?;
    let reservation = Reservation::make(&resctrl, &request, &config.cache.journals, &mut |_| {})?;
    let plan = reservation.leave()?;
    print_plan(configured, &plan);
    Ok(())
}

fn print_plan(configured: &Configured, plan: &Plan) {
    if configured.json {
        let domains = plan.domains.iter().map(|planned| {
            json!({
                "domain": planned.domain,
                "ways": planned.ways,
                "bytes": planned.bytes,
                "with_devices": planned.with_devices,
                "left": planned.left,
            })
        });
        let changes = plan.changes.iter().map(|change| {
            let line = |ways| jet_cat::plan::schemata(ways).to_string().trim_end().replace('\n', " ");
            json!({
                "group": name_of(&change.group),
                "before": line(&change.before),
                "after": line(&change.after),
            })
        });
        print_json(&json!({
            "group": plan.group,
            "exclusive": plan.exclusive,
            "domains": domains.collect::<Vec<_>>(),
            "changes": changes.collect::<Vec<_>>(),
        }));
    } else {
        print(&plan.to_string());
    }
}

fn restore(configured: &Configured, forget: bool) -> Result<(), Failure> {
    let journals = configured.daemon.load()?.cache.journals;
    let scope = if forget { RecoveryScope::Forget } else { RecoveryScope::Standing };
    // The folder exists only where something was reserved before.
    let recovered = if journals.is_dir() { recover(&journals, scope)? } else { Vec::new() };
    let (well, failed): (Vec<_>, Vec<_>) = recovered.iter().partition(|left| left.is_well());
    if configured.json {
        print_json(&json!({ "left": recovered.iter().map(row).collect::<Vec<_>>() }));
    } else if recovered.is_empty() {
        print("nothing was left reserved\n");
    } else {
        well.iter().for_each(|left| print(&format!("{left}\n")));
    }
    let failed: Vec<String> = failed.iter().map(ToString::to_string).collect();
    if failed.is_empty() { Ok(()) } else { Err(Failure::Left(failed.join("; "))) }
}

fn row(recovered: &Recovered) -> Value {
    let result = |what, error: Option<String>| match error {
        None => json!({ "what": what, "restored": "undone" }),
        Some(error) => json!({ "what": what, "error": error }),
    };
    match recovered {
        Recovered::Reserved(left) => match &left.restored {
            Ok(restored) => json!({
                "what": "reservation",
                "group": left.group,
                "restored": restored,
                "stays": left.stays,
            }),
            Err(error) => json!({ "what": "reservation", "group": left.group, "error": error.to_string() }),
        },
        Recovered::Registers(restored) => {
            result("registers", restored.as_ref().err().map(ToString::to_string))
        }
        Recovered::Adjusted(restored) => {
            result("adjustments", restored.as_ref().err().map(ToString::to_string))
        }
        Recovered::Forgotten(what, stays) => json!({ "what": what, "restored": "forgotten", "stays": stays }),
        Recovered::InUse(what) => json!({ "what": what, "restored": "in-use" }),
        Recovered::Unseen(_) | Recovered::Unread(_) => result("reservation", Some(recovered.to_string())),
    }
}
