//! The rows about the RDMA port.

use super::{number, word};
use serde_json::Value;

/// The RDMA port, if the NIC has one: how it stands, where it listens, and what its packets are like.
pub(super) fn rows(status: &Value) -> Vec<(&'static str, String)> {
    let Some(port) = status.pointer("/rdma").filter(|port| port.is_object()) else { return Vec::new() };
    let n = |pointer: &str| number(port, pointer);
    let bytes = n("/packet_bytes_max");
    let mut line = format!(
        "{} port {}, {}, {}; packets of up to {bytes} bytes, {} for a message of 4 KiB",
        word(port, "/device"),
        n("/port"),
        word(port, "/link"),
        word(port, "/state"),
        n("/packets_of_4_kib"),
    );
    for (pointer, what) in [("/downs", "went down"), ("/address_changes", "addresses changed")] {
        if n(pointer) > 0 {
            line.push_str(&format!("; {what}: {}", n(pointer)));
        }
    }
    let mut rows = vec![("rdma", line)];
    let each = |pointer: &str| port.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let away: Vec<_> = each("/listening")
        .filter(|at| at.pointer("/is_there").and_then(Value::as_bool) == Some(false))
        .map(|at| word(at, "/address"))
        .collect();
    if !away.is_empty() {
        rows.push(("  away", format!("{}: no address of the port now (ip address)", away.join(", "))));
    }
    for at in each("/listening") {
        if let Some(problem) = at.pointer("/problem").and_then(Value::as_str) {
            rows.push(("  cannot listen", format!("{}: {problem}", word(at, "/address"))));
        }
    }
    let shorter: Vec<_> = each("/paths")
        .filter(|path| number(path, "/packet_bytes") < bytes)
        .map(|path| format!("{} of {} bytes", number(path, "/connections"), number(path, "/packet_bytes")))
        .collect();
    if !shorter.is_empty() {
        rows.push((
            "  shorter packets",
            format!("{}: those senders' interfaces have a smaller MTU", shorter.join(", ")),
        ));
    }
    if n("/refused_for_packets") > 0 {
        let refused = format!(
            "{} requests, the last with packets of {} bytes: give the interfaces at both ends the same MTU",
            n("/refused_for_packets"),
            n("/refused_packet_bytes")
        );
        rows.push(("  refused", refused));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status::page::rows_of;

    #[test]
    fn the_rdma_port_has_rows_for_what_is_not_as_it_should_be() {
        let port = |listening: Value, paths: Value, refused: u64| {
            serde_json::json!({"rdma": {"device": "mlx5_0", "port": 1, "link": "RoCE", "state": "active",
                "packet_bytes_max": 4096, "packets_of_4_kib": 2, "interface": "eth0", "downs": 1,
                "address_changes": 0, "refused_for_packets": refused, "refused_packet_bytes": 8192,
                "listening": listening, "paths": paths}})
        };
        let there = serde_json::json!([{"address": "10.0.0.1:7450", "is_there": true}]);
        let alike = serde_json::json!([{"packet_bytes": 4096, "connections": 3}]);
        let line = "rdma|mlx5_0 port 1, RoCE, active; packets of up to 4096 bytes, 2 for a message of 4 KiB; went down: 1";
        assert_eq!(rows_of(rows(&port(there, alike, 0))), [line]);
        let away = serde_json::json!([{"address": "10.0.0.1:7450", "is_there": false}]);
        let shorter = serde_json::json!([{"packet_bytes": 1024, "connections": 2}, {"packet_bytes": 4096, "connections": 3}]);
        assert_eq!(
            rows_of(rows(&port(away, shorter, 4))),
            [
                line,
                "  away|10.0.0.1:7450: no address of the port now (ip address)",
                "  shorter packets|2 of 1024 bytes: those senders' interfaces have a smaller MTU",
                "  refused|4 requests, the last with packets of 8192 bytes: give the interfaces at both ends the same MTU",
            ]
        );
        assert!(
            rows(&serde_json::json!({"rdma": null})).is_empty() && rows(&serde_json::json!({})).is_empty()
        );
    }
}
