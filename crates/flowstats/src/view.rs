//! The live view: connections, their subflows, the egress peer of each, rate, round-trip time and
//! loss.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use crate::{Change, Peers, line::protocol, record::Key};

/// What changed since the view was written last.
#[derive(Clone, Debug, Default)]
pub struct View {
    flows: BTreeMap<Key, Change>,
}

/// Connections that are shown; the rest is summed up.
const CONNECTIONS_MAX: usize = 24;

impl View {
    /// Adds what a flow sent.
    pub fn add(&mut self, change: &Change) {
        let sum = self.flows.entry(change.key);
        sum.and_modify(|sum| {
            sum.bytes += change.bytes;
            sum.packets += change.packets;
            sum.segments = sum.segments.wrapping_add(change.segments);
            sum.retransmits = sum.retransmits.wrapping_add(change.retransmits);
            sum.counts = change.counts;
        })
        .or_insert(*change);
    }

    /// What was added in `interval`, as text, the busiest connections first; then begins anew.
    pub fn take(&mut self, interval: Duration, peers: &Peers) -> String {
        let flows = std::mem::take(&mut self.flows);
        let mut text = String::new();
        let total: u64 = flows.values().map(|flow| flow.bytes).sum();
        let _ = writeln!(text, "{} flows, {}", flows.len(), rate(total, interval));
        let _ = writeln!(
            text,
            "{:<52} {:<18} {:>12} {:>9} {:>7}",
            "CONNECTION / SUBFLOW", "EGRESS PEER", "RATE", "RTT", "LOSS"
        );
        let mut connections: Vec<Vec<&Change>> = connections(&flows);
        connections.sort_by_key(|all| std::cmp::Reverse(sum(all)));
        for all in connections.iter().take(CONNECTIONS_MAX) {
            write_connection(&mut text, all, interval, peers);
        }
        if let Some(rest) = connections.get(CONNECTIONS_MAX..).filter(|r| !r.is_empty()) {
            let bytes = rest.iter().map(|all| sum(all)).sum();
            let _ = writeln!(text, "and {} more, {}", rest.len(), rate(bytes, interval));
        }
        text
    }
}

/// Flows by MPTCP connection; every other flow is one by itself.
fn connections(flows: &BTreeMap<Key, Change>) -> Vec<Vec<&Change>> {
    let mut by_token: BTreeMap<u32, Vec<&Change>> = BTreeMap::new();
    let mut all = Vec::new();
    for change in flows.values() {
        match change.counts.token {
            Some(token) => by_token.entry(token).or_default().push(change),
            None => all.push(vec![change]),
        }
    }
    all.extend(by_token.into_values());
    all
}

fn sum(all: &[&Change]) -> u64 {
    all.iter().map(|change| change.bytes).sum()
}

fn write_connection(text: &mut String, all: &[&Change], interval: Duration, peers: &Peers) {
    let Some(first) = all.first() else {
        return;
    };
    let Some(token) = first.counts.token else {
        write_flow(text, "", first, interval, peers);
        return;
    };
    let _ = writeln!(
        text,
        "{:<52} {:<18} {:>12}",
        format!("mptcp {token:08x}, {} subflows", all.len()),
        "",
        rate(sum(all), interval)
    );
    for change in all {
        write_flow(text, "  ", change, interval, peers);
    }
}

fn write_flow(text: &mut String, indent: &str, change: &Change, interval: Duration, peers: &Peers) {
    let key = &change.key;
    let name = match (key.source(), key.destination()) {
        (Some(source), Some(destination)) => {
            format!(
                "{indent}{} {source} {destination}",
                protocol(key.protocol())
            )
        }
        _ => format!("{indent}{:?}", key.kind()).to_lowercase(),
    };
    let tcp = change.counts.tcp;
    let rtt = tcp.map_or_else(
        || "-".into(),
        |tcp| format!("{:.1} ms", tcp.rtt.as_secs_f64() * 1e3),
    );
    let loss = match (tcp, change.segments) {
        (Some(_), 1..) => {
            let ratio = f64::from(change.retransmits) / f64::from(change.segments);
            format!("{:.2} %", ratio * 100.0)
        }
        _ => "-".into(),
    };
    let _ = writeln!(
        text,
        "{name:<52} {:<18} {:>12} {rtt:>9} {loss:>7}",
        peers.name(key.sid()),
        rate(change.bytes, interval)
    );
}

/// A rate on the wire.
fn rate(bytes: u64, interval: Duration) -> String {
    let seconds = interval.as_secs_f64();
    let bits = if seconds > 0.0 {
        bytes as f64 * 8.0 / seconds
    } else {
        0.0
    };
    match bits {
        1e9.. => format!("{:.2} Gbit/s", bits / 1e9),
        1e6.. => format!("{:.2} Mbit/s", bits / 1e6),
        _ => format!("{:.1} kbit/s", bits / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Counts, KEY_BYTES, Tcp};

    fn change(port: u8, sid: u8, token: Option<u32>, bytes: u64) -> Change {
        let mut key = [0; KEY_BYTES];
        key[47] = sid;
        key[49] = port;
        key[52..54].copy_from_slice(&[6, 6]);
        let tcp = Tcp {
            rtt: Duration::from_millis(12),
            ..Tcp::default()
        };
        Change {
            key: Key::new(key),
            bytes,
            packets: 10,
            segments: 100,
            retransmits: 3,
            counts: Counts {
                token,
                tcp: Some(tcp),
                ..Counts::default()
            },
        }
    }

    #[test]
    fn subflows_are_shown_under_their_connection_with_peer_rate_rtt_and_loss() {
        let mut view = View::default();
        let peers = ["transit-a=::a".parse().unwrap()].into_iter().collect();
        for _ in 0..2 {
            view.add(&change(1, 0xa, Some(0xbeef), 1_000_000));
        }
        view.add(&change(2, 0, Some(0xbeef), 250_000));
        view.add(&change(3, 0, None, 9_000));
        let text = view.take(Duration::from_secs(1), &peers);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("4 flows") || lines[0].starts_with("3 flows"),
            "{text}"
        );
        assert!(lines[2].starts_with("mptcp 0000beef, 2 subflows"), "{text}");
        assert!(lines[2].ends_with("18.00 Mbit/s"), "{text}");
        assert!(
            lines[3].contains("best path") && lines[4].contains("transit-a"),
            "{text}"
        );
        assert!(
            lines[4].ends_with("16.00 Mbit/s   12.0 ms  3.00 %"),
            "{text}"
        );
        assert_eq!(lines.len(), 6, "{text}");
        assert!(
            view.take(Duration::from_secs(1), &peers)
                .starts_with("0 flows")
        );
    }
}
