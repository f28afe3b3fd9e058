//! Totals per egress peer in the OpenMetrics text format. Flows are never labels: their number has
//! no bound.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use crate::{Peers, Tracker};

type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter<u64, AtomicU64>>;

/// The page of several interfaces.
pub fn render<'a>(all: impl IntoIterator<Item = (&'a str, &'a Tracker)>, peers: &Peers) -> String {
    let names = [
        (
            "bytes",
            "Bytes on the wire by egress peer, with link-layer headers",
        ),
        ("packets", "Packets on the wire by egress peer"),
        (
            "tcp_segments",
            "TCP segments of this host, retransmitted ones as well",
        ),
        (
            "tcp_retransmits",
            "TCP segments of this host that were retransmitted",
        ),
    ];
    let families: [Counters; 4] = Default::default();
    for (interface, tracker) in all {
        for (sid, total) in tracker.totals() {
            let labels = vec![
                ("interface", interface.to_owned()),
                ("peer", peers.name(*sid).into_owned()),
                ("sid", sid.map_or_else(String::new, |sid| sid.to_string())),
            ];
            let values = [
                total.bytes,
                total.packets,
                total.segments,
                total.retransmits,
            ];
            for (family, value) in families.iter().zip(values) {
                family.get_or_create(&labels).inc_by(value);
            }
        }
    }
    let mut registry = Registry::with_prefix("keiro_flowstats");
    for ((name, help), family) in names.into_iter().zip(families) {
        registry.register(name, help, family);
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Counts, KEY_BYTES, Key};

    #[test]
    fn totals_are_labelled_by_peer() {
        let mut bytes = [0; KEY_BYTES];
        bytes[47] = 0xa;
        bytes[53] = 6;
        let mut tracker = Tracker::default();
        let counts = Counts {
            bytes: 1500,
            packets: 1,
            ..Counts::default()
        };
        tracker.update(Key::new(bytes), counts).unwrap();
        let peers = ["transit-a=::a".parse().unwrap()].into_iter().collect();
        let page = render([("eth0", &tracker)], &peers);
        let line =
            r#"keiro_flowstats_bytes_total{interface="eth0",peer="transit-a",sid="::a"} 1500"#;
        assert!(page.contains(line), "{page}");
    }
}
