//! Rows of `jet status` about the RDMA port.

use jet_control::status::RdmaStatus;

/// Returns rows on the RDMA port: its state and longest packets, addresses at which the daemon cannot listen,
/// paths whose packets are shorter, and refused requests.
pub(super) fn rows(port: &RdmaStatus) -> Vec<(&'static str, String)> {
    let bytes = port.packet_bytes_max;
    let mut line = format!(
        "{} port {}, {}, {}; packets of up to {bytes} bytes, {} for a message of 4 KiB",
        port.device, port.port, port.link, port.state, port.packets_of_4_kib,
    );
    for (times, what) in [(port.downs, "went down"), (port.address_changes, "addresses changed")] {
        if times > 0 {
            line.push_str(&format!("; {what}: {times}"));
        }
    }
    let mut rows = vec![("rdma", line)];
    let away: Vec<_> =
        port.listening.iter().filter(|at| !at.is_there).map(|at| at.address.as_str()).collect();
    if !away.is_empty() {
        rows.push(("  away", format!("{}: no address of the port now (ip address)", away.join(", "))));
    }
    for at in &port.listening {
        if let Some(problem) = &at.problem {
            rows.push(("  cannot listen", format!("{}: {problem}", at.address)));
        }
    }
    let shorter: Vec<_> = port
        .paths
        .iter()
        .filter(|path| path.packet_bytes < bytes)
        .map(|path| format!("{} of {} bytes", path.connections, path.packet_bytes))
        .collect();
    if !shorter.is_empty() {
        rows.push((
            "  shorter packets",
            format!("{}: those senders' interfaces have a smaller MTU", shorter.join(", ")),
        ));
    }
    if port.refused_for_packets > 0 {
        let refused = format!(
            "{} requests, the last with packets of {} bytes: give the interfaces at both ends the same MTU",
            port.refused_for_packets, port.refused_packet_bytes
        );
        rows.push(("  refused", refused));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status::page::rows_of;
    use jet_control::status::{LinkLayer, PortState, RdmaListening, RdmaPath};

    #[test]
    fn the_rdma_port_has_rows_for_what_is_not_as_it_should_be() {
        let listening =
            |is_there| RdmaListening { address: "10.0.0.1:7450".to_owned(), is_there, problem: None };
        let path = |packet_bytes, connections| RdmaPath { packet_bytes, connections };
        let good = RdmaStatus {
            device: "mlx5_0".to_owned(),
            port: 1,
            link: LinkLayer::RoCE,
            state: PortState::Active,
            packet_bytes_max: 4096,
            packets_of_4_kib: 2,
            interface: Some("eth0".to_owned()),
            listening: vec![listening(true)],
            paths: vec![path(4096, 3)],
            downs: 1,
            address_changes: 0,
            refused_for_packets: 0,
            refused_packet_bytes: 8192,
        };
        let line = "rdma|mlx5_0 port 1, RoCE, active; packets of up to 4096 bytes, 2 for a message of 4 KiB; \
                    went down: 1";
        assert_eq!(rows_of(rows(&good)), [line]);
        let taken = RdmaListening { problem: Some("in use".to_owned()), ..listening(true) };
        let bad = RdmaStatus {
            listening: vec![listening(false), taken],
            paths: vec![path(1024, 2), path(4096, 3)],
            refused_for_packets: 4,
            ..good
        };
        assert_eq!(
            rows_of(rows(&bad)),
            [
                line,
                "  away|10.0.0.1:7450: no address of the port now (ip address)",
                "  cannot listen|10.0.0.1:7450: in use",
                "  shorter packets|2 of 1024 bytes: those senders' interfaces have a smaller MTU",
                "  refused|4 requests, the last with packets of 8192 bytes: give the interfaces at both ends \
                 the same MTU",
            ]
        );
    }
}
