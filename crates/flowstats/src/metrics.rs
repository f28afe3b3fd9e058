//! Totals per egress peer in the OpenMetrics text format. Flows are never labels: their number has
//! no bound.

use keiro_stats_export::openmetrics::register_stats;
use prometheus_client::{encoding::text::encode, registry::Registry};

use crate::{Peers, Tracker};

/// The page of several interfaces, each with its name.
pub fn render<'a>(all: impl IntoIterator<Item = (&'a str, &'a Tracker)>, peers: &Peers) -> String {
    let segments = all.into_iter().flat_map(|(interface, tracker)| {
        tracker.totals().iter().map(move |(sid, stats)| {
            let labels = vec![
                ("interface", interface.to_owned()),
                ("peer", peers.name(*sid).into_owned()),
                ("sid", sid.map_or_else(String::new, |sid| sid.to_string())),
            ];
            (labels, stats)
        })
    });
    let mut registry = Registry::default();
    register_stats(&mut registry, segments);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use keiro_stats_export::documentation::{check_tables, stats_table};

    use super::*;
    use crate::{
        SegmentStats,
        record::{Counts, KEY_BYTES, Key},
    };

    #[test]
    fn the_page_lists_the_declared_figures() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/flowstats.md");
        check_tables(
            file,
            &[("stats: SegmentStats", stats_table::<SegmentStats>())],
        );
    }

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
