//! State of the NIC's RDMA port, for the status, and for a log line at each change.

use jet_control::status::{LinkLayer, PortState, RdmaListening, RdmaStatus};
use jet_wire::SLAB_BYTES_U32;
use jet_wire::message::HEADER_BYTES;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

#[cfg(feature = "verbs")]
use jet_control::status::RdmaPath;
#[cfg(feature = "verbs")]
use jet_fabric::verbs::{self, PortStatus, PortWatch};

/// MTU of an interface, in bytes, at which RoCE packets carry 4096 bytes of payload. With its headers, as the
/// kernel counts them (`iboe_get_mtu` of rdma/ib_addr.h), such a packet takes 4192 bytes.
const MTU_WANTED: u32 = 4200;
/// Payload bytes that a packet should carry for the best speed.
const PACKET_BYTES_WANTED: u32 = 4096;

/// Returns the number of packets that a message of 4 KiB takes, header included.
fn packets_of_4_kib(packet_bytes: u32) -> u32 {
    let header = u32::try_from(HEADER_BYTES).expect("a header is short");
    (SLAB_BYTES_U32 + header).div_ceil(packet_bytes.max(1))
}

#[cfg(feature = "verbs")]
fn shown(port: PortStatus) -> RdmaStatus {
    RdmaStatus {
        link: if port.is_infiniband { LinkLayer::InfiniBand } else { LinkLayer::RoCE },
        state: match port.state {
            verbs::PortState::Active => PortState::Active,
            verbs::PortState::Down => PortState::Down,
            verbs::PortState::Waiting => PortState::Waiting,
            verbs::PortState::Unknown => PortState::Unknown,
        },
        packet_bytes_max: port.packet_bytes_max,
        packets_of_4_kib: packets_of_4_kib(port.packet_bytes_max),
        interface: port.interface,
        listening: port
            .listening
            .into_iter()
            .map(|at| RdmaListening {
                address: at.address.to_string(),
                is_there: at.is_there,
                problem: at.problem,
            })
            .collect(),
        paths: port
            .paths
            .iter()
            .map(|path| RdmaPath { packet_bytes: path.packet_bytes, connections: path.connections })
            .collect(),
        device: port.device,
        port: port.port,
        downs: port.downs,
        address_changes: port.address_changes,
        refused_for_packets: port.refused,
        refused_packet_bytes: port.refused_packet_bytes,
    }
}

/// Returns advice on what to change so that a message of 4 KiB takes two packets; `None` if packets are long
/// enough, or their length is unknown.
fn advice(status: &RdmaStatus) -> Option<String> {
    let RdmaStatus { packet_bytes_max: bytes, packets_of_4_kib: packets, .. } = status;
    if *bytes >= PACKET_BYTES_WANTED || *bytes == 0 {
        return None;
    }
    let change = if status.link == LinkLayer::InfiniBand {
        "let the subnet manager have an MTU of 4096 (mtu=5 in its partitions.conf)".to_owned()
    } else {
        let interface = status.interface.as_deref().unwrap_or("INTERFACE");
        format!(
            "give the interfaces at both ends an MTU of {MTU_WANTED} or more, and the switches between them \
             (ip link set dev {interface} mtu {MTU_WANTED})"
        )
    };
    Some(format!(
        "a message of 4 KiB takes {packets} packets, of up to {bytes} bytes; so that it takes 2, {change}"
    ))
}

/// Returns the first log lines about the RDMA port: its state, its addresses, and advice on longer packets.
fn first_lines(now: &RdmaStatus) -> Vec<String> {
    let RdmaStatus { device, port, link, state, packet_bytes_max, .. } = now;
    let at: Vec<&str> = now.listening.iter().map(|at| at.address.as_str()).collect();
    let mut lines = vec![format!(
        "{device} port {port} ({link}) is {state}, with packets of up to {packet_bytes_max} bytes; listening \
         on {}",
        at.join(", ")
    )];
    lines.extend(advice(now));
    lines
}

/// Returns log lines about addresses on which the daemon began to listen, stopped listening, or cannot
/// listen.
fn changes_of_listening(name: &str, before: &RdmaStatus, now: &RdmaStatus) -> Vec<String> {
    let away = |address: &str| {
        format!(
            "{address} is no address of {name} any more; nobody comes by it until it is back (ip address)"
        )
    };
    let mut lines = Vec::new();
    for at in &now.listening {
        let was = before.listening.iter().find(|old| old.address == at.address);
        let listened = was.is_some_and(|old| old.is_there && old.problem.is_none());
        match &at.problem {
            _ if !at.is_there && was.is_some_and(|old| old.is_there) => lines.push(away(&at.address)),
            Some(problem) if was.is_none_or(|old| old.problem.as_ref() != Some(problem)) => {
                lines.push(format!("cannot listen on {}: {problem}; trying again every second", at.address));
            }
            None if at.is_there && !listened => {
                lines.push(match was {
                    Some(_) => format!("listening on {} again", at.address),
                    None => format!("listening on {}, too", at.address),
                });
            }
            _ => {}
        }
    }
    let is_gone = |old: &&RdmaListening| now.listening.iter().all(|at| at.address != old.address);
    lines.extend(before.listening.iter().filter(is_gone).map(|old| away(&old.address)));
    lines
}

/// Returns log lines about changes that a peer alone can cause. The caller limits how often these lines are
/// logged, since a peer can repeat the changes at will.
fn changes_by_peers(name: &str, before: &RdmaStatus, now: &RdmaStatus) -> Vec<String> {
    let mut lines = Vec::new();
    let refused = now.refused_for_packets.saturating_sub(before.refused_for_packets);
    if refused > 0 {
        let who = match refused {
            1 => "a sender was refused".to_owned(),
            _ => format!("senders were refused {refused} times"),
        };
        lines.push(format!(
            "{who}: packets of {} bytes are longer than {name} takes ({}), and would be dropped; give the \
             interfaces at both ends the same MTU",
            now.refused_packet_bytes, now.packet_bytes_max
        ));
    }
    let shorter = |status: &RdmaStatus| {
        let short = status.paths.iter().filter(|path| path.packet_bytes < status.packet_bytes_max);
        short.map(|path| path.packet_bytes).min()
    };
    if let Some(bytes) = shorter(now)
        && shorter(before).is_none_or(|old| bytes < old)
    {
        lines.push(format!(
            "a sender's packets are of up to {bytes} bytes, where {name} takes {}: its interface has the \
             smaller MTU, and a message of 4 KiB takes {} packets",
            now.packet_bytes_max,
            packets_of_4_kib(bytes)
        ));
    }
    lines
}

/// Returns log lines about changes between two states of the RDMA port, except changes that a peer alone can
/// cause.
fn changes(before: &RdmaStatus, now: &RdmaStatus) -> Vec<String> {
    let name = format!("{} port {}", now.device, now.port);
    let mut lines = Vec::new();
    let went_down = now.downs > before.downs;
    if went_down || now.state != before.state {
        lines.push(match now.state {
            PortState::Active if went_down => format!("{name} was down, and is active again"),
            PortState::Active => format!("{name} is active again"),
            PortState::Down => {
                format!("{name} is down: no link, or its interface is; senders go on trying until it is back")
            }
            PortState::Waiting => format!("{name} has a link and waits for the subnet manager"),
            PortState::Unknown => format!("{name} does not say how it stands; see dmesg"),
        });
    }
    lines.extend(changes_of_listening(&name, before, now));
    if now.packet_bytes_max != before.packet_bytes_max && now.packet_bytes_max > 0 {
        lines.push(format!("{name} takes packets of up to {} bytes now", now.packet_bytes_max));
        lines.extend(advice(now));
    }
    lines
}

/// The RDMA port of the daemon's NIC. Empty if the NIC is no RDMA device.
#[derive(Clone, Debug, Default)]
pub struct RdmaView {
    #[cfg(feature = "verbs")]
    watch: Option<Arc<PortWatch>>,
    changed: Arc<Notify>,
}

impl RdmaView {
    /// Creates the view of a NIC's RDMA port.
    #[cfg(feature = "verbs")]
    pub fn of(watch: Arc<PortWatch>) -> Self {
        let changed = Arc::new(Notify::new());
        let rings = Arc::clone(&changed);
        watch.on_change(move || rings.notify_one());
        Self { watch: Some(watch), changed }
    }

    /// Returns the RDMA port's present state, or `None` if the NIC is no RDMA device.
    #[cfg(feature = "verbs")]
    pub fn status(&self) -> Option<RdmaStatus> {
        self.watch.as_ref().map(|watch| shown(watch.status()))
    }

    /// Returns `None`: this build has no RDMA.
    #[cfg(not(feature = "verbs"))]
    pub fn status(&self) -> Option<RdmaStatus> {
        None
    }
}

/// Minimum time between two log lines that a peer alone can cause. `jet status` always shows the counts.
const ABOUT_PEERS_EVERY: Duration = Duration::from_secs(60);

/// Turns changes of the RDMA port into log lines.
#[derive(Debug)]
pub struct RdmaLogger {
    view: RdmaView,
    said: Option<RdmaStatus>,
    /// Earliest time of the next log line that a peer alone can cause, and the state at the last such line.
    about_peers: Option<(Instant, RdmaStatus)>,
}

impl RdmaLogger {
    /// Creates a logger that has reported nothing yet.
    pub fn new(view: RdmaView) -> Self {
        Self { view, said: None, about_peers: None }
    }

    /// Waits until the RDMA port's state may have changed.
    pub async fn changed(&self) {
        self.view.changed.notified().await;
    }

    /// Returns log lines about what has changed at the RDMA port since the last call. The first call
    /// describes the port.
    pub fn changes(&mut self) -> Vec<String> {
        let Some(now) = self.view.status() else { return Vec::new() };
        self.lines_since(now, Instant::now())
    }

    fn lines_since(&mut self, now: RdmaStatus, at: Instant) -> Vec<String> {
        let mut lines = match &self.said {
            None => first_lines(&now),
            Some(before) => changes(before, &now),
        };
        let (next, before) = self.about_peers.get_or_insert_with(|| (at, now.clone()));
        if at >= *next {
            let of_peers = changes_by_peers(&format!("{} port {}", now.device, now.port), before, &now);
            if !of_peers.is_empty() {
                (*next, *before) = (at + ABOUT_PEERS_EVERY, now.clone());
                lines.extend(of_peers);
            }
        }
        self.said = Some(now);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_control::status::RdmaPath;

    fn listening_at(address: &str) -> RdmaListening {
        RdmaListening { address: address.into(), is_there: true, problem: None }
    }

    fn status() -> RdmaStatus {
        RdmaStatus {
            device: "mlx5_0".into(),
            port: 1,
            link: LinkLayer::RoCE,
            state: PortState::Active,
            packet_bytes_max: 4096,
            packets_of_4_kib: 2,
            interface: Some("eth0".into()),
            listening: vec![listening_at("10.0.0.1:7450")],
            paths: Vec::new(),
            downs: 0,
            address_changes: 0,
            refused_for_packets: 0,
            refused_packet_bytes: 0,
        }
    }

    fn small_packets() -> RdmaStatus {
        RdmaStatus { packet_bytes_max: 1024, packets_of_4_kib: packets_of_4_kib(1024), ..status() }
    }

    #[test]
    fn a_message_of_4_kib_is_two_packets_or_five() {
        assert_eq!([4096, 2048, 1024, 512, 256].map(packets_of_4_kib), [2, 3, 5, 9, 17]);
    }

    #[test]
    fn a_small_mtu_is_told_with_what_to_change() {
        let said = first_lines(&small_packets());
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].contains("mlx5_0 port 1 (RoCE) is active, with packets of up to 1024 bytes"),
            "{said:?}"
        );
        assert!(said[0].contains("listening on 10.0.0.1:7450"), "{said:?}");
        assert!(said[1].contains("takes 5 packets"), "{said:?}");
        assert!(said[1].contains("ip link set dev eth0 mtu 4200"), "{said:?}");
        assert_eq!(first_lines(&status()).len(), 1);
        let of_infiniband = first_lines(&RdmaStatus { link: LinkLayer::InfiniBand, ..small_packets() });
        assert!(of_infiniband[1].contains("partitions.conf"), "{of_infiniband:?}");
    }

    #[test]
    fn only_what_changed_is_said() {
        assert_eq!(changes(&status(), &status()), [""; 0]);
        let said = |now: RdmaStatus| changes(&status(), &now).join("\n");
        assert!(said(RdmaStatus { state: PortState::Down, downs: 1, ..status() }).contains("is down"));
        // The port went down and came up between two looks.
        assert!(said(RdmaStatus { downs: 1, ..status() }).contains("was down, and is active again"));
        let away = || vec![RdmaListening { is_there: false, ..listening_at("10.0.0.1:7450") }];
        assert!(said(RdmaStatus { listening: away(), ..status() }).contains("10.0.0.1:7450 is no address"));
        let back = changes(&RdmaStatus { listening: away(), ..status() }, &status());
        assert_eq!(back, ["listening on 10.0.0.1:7450 again"]);
        let problem = Some("Address already in use".to_owned());
        let not_there = || vec![RdmaListening { problem: problem.clone(), ..listening_at("10.0.0.1:7450") }];
        let taken = said(RdmaStatus { listening: not_there(), ..status() });
        assert!(taken.contains("cannot listen on 10.0.0.1:7450: Address already in use"), "{taken}");
        let still = RdmaStatus { listening: not_there(), ..status() };
        assert_eq!(changes(&still, &still), [""; 0]);
        assert_eq!(changes(&still, &status()), ["listening on 10.0.0.1:7450 again"]);
        let one_more = || vec![listening_at("10.0.0.1:7450"), listening_at("10.0.0.2:7450")];
        let more = RdmaStatus { listening: one_more(), ..status() };
        assert_eq!(changes(&status(), &more), ["listening on 10.0.0.2:7450, too"]);
        assert!(
            changes(&more, &status())
                .join("")
                .contains("10.0.0.2:7450 is no address of mlx5_0 port 1 any more")
        );
        let smaller = changes(&status(), &small_packets());
        assert!(smaller[0].contains("packets of up to 1024 bytes now"), "{smaller:?}");
        assert!(smaller[1].contains("takes 5 packets"), "{smaller:?}");
    }

    #[test]
    fn a_stranger_cannot_write_the_log_as_often_as_it_likes() {
        let refused =
            |times| RdmaStatus { refused_for_packets: times, refused_packet_bytes: 8192, ..status() };
        let mut logger = RdmaLogger::new(RdmaView::default());
        let start = Instant::now();
        assert_eq!(logger.lines_since(status(), start).len(), 1);
        let first = logger.lines_since(refused(1), start).join("");
        assert!(
            first.contains("a sender was refused: packets of 8192 bytes") && first.contains("same MTU"),
            "{first}"
        );
        for times in 2..100 {
            assert_eq!(logger.lines_since(refused(times), start + ABOUT_PEERS_EVERY / 2), [""; 0]);
        }
        let later = logger.lines_since(refused(100), start + ABOUT_PEERS_EVERY);
        assert_eq!(later.len(), 1, "{later:?}");
        assert!(later[0].contains("senders were refused 99 times: packets of 8192"), "{later:?}");
    }

    #[test]
    fn a_sender_with_smaller_packets_is_told_once() {
        let path = |packet_bytes, connections| RdmaPath { packet_bytes, connections };
        let with = |paths: Vec<RdmaPath>| RdmaStatus { paths, ..status() };
        let lines = |before: &RdmaStatus, now: &RdmaStatus| changes_by_peers("mlx5_0 port 1", before, now);
        let said = lines(&with(vec![path(4096, 3)]), &with(vec![path(1024, 1), path(4096, 3)]));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("up to 1024 bytes, where mlx5_0 port 1 takes 4096"), "{said:?}");
        let more = lines(&with(vec![path(1024, 1)]), &with(vec![path(1024, 2), path(4096, 1)]));
        assert_eq!(more, [""; 0]);
    }
}
