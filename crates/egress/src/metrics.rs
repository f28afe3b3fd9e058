//! The metrics page of a daemon in the OpenMetrics text format; [`crate::stats`] declares the
//! figures.

use keiro_stats_export::openmetrics::register_stats;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use crate::status::Status;

/// Its label `reason` has the names of [`keiro_bfd::Discards`].
const BFD_DISCARDED: &str = "keiro_egress_bfd_discarded";

pub fn render(status: &Status) -> String {
    let mut registry = Registry::default();
    register_stats(&mut registry, [(Vec::new(), &status.stats.0)]);
    let neighbours = status.neighbours.iter();
    register_stats(
        &mut registry,
        neighbours.map(|one| (vec![("neighbour", one.name.clone())], &one.stats.0)),
    );
    let peers = status.peers.iter();
    register_stats(
        &mut registry,
        peers.map(|one| (vec![("peer", one.name.clone())], &one.stats.0)),
    );
    if let Some(comparison) = &status.comparison {
        register_stats(&mut registry, [(Vec::new(), &comparison.stats.0)]);
    }
    if let Some(discarded) = &status.bfd_discarded {
        let by_reason = Family::<Vec<(&str, String)>, Counter>::default();
        for (reason, count) in discarded {
            let labels = vec![("reason", reason.clone())];
            by_reason.get_or_create(&labels).inc_by(*count);
        }
        registry.register(BFD_DISCARDED, "Discarded BFD packets", by_reason);
    }
    if let Some(steering) = &status.steering {
        register_stats(&mut registry, [(Vec::new(), &steering.stats.0)]);
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use keiro_stats_export::Stats;

    use super::*;
    use crate::{
        alarms::{AlarmStatus, Cause},
        stats::{ComparisonStats, EgressPeerStats, EgressStats},
        status::{ComparisonStatus, PeerStatus},
    };

    fn status() -> Status {
        let peer = PeerStatus {
            name: "transit-a".to_owned(),
            rt: "65000:10".to_owned(),
            sid: None,
            segments: Vec::new(),
            address: None,
            ipv4_address: None,
            stats: Stats(EgressPeerStats {
                routes: 7,
                kernel_routes: Some(6),
                closed: Some(true),
                segment: Some(false),
                subflows: Some(3),
                draining_routes: Some(0),
            }),
            kernel: None,
        };
        Status {
            role: "egress".to_owned(),
            asn: 65000,
            router_id: Ipv4Addr::LOCALHOST,
            vrps: None,
            bfd_discarded: None,
            stats: Stats(EgressStats {
                destinations: 1,
                unknown_connections: 5,
                refused: 2,
                raised_alarms: 1,
                earlier_routes: 0,
            }),
            config_rejected: None,
            alarms: vec![AlarmStatus {
                cause: Cause::ForwardingOff,
                subject: "host".to_owned(),
                text: "this host forwards nothing".to_owned(),
                for_seconds: 7,
            }],
            further_alarms: std::collections::BTreeMap::new(),
            neighbours: Vec::new(),
            peers: vec![peer],
            comparison: None,
            steering: None,
            kernel: None,
        }
    }

    fn assert_lines(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|there| there == *line), "{line}: {page}");
        }
    }

    #[test]
    fn every_figure_has_its_metric() {
        let mut status = status();
        let page = render(&status);
        assert_lines(
            &page,
            &[
                r#"keiro_egress_peer_routes{peer="transit-a"} 7.0"#,
                r#"keiro_egress_peer_kernel_routes{peer="transit-a"} 6.0"#,
                r#"keiro_egress_peer_closed{peer="transit-a"} 1.0"#,
                r#"keiro_egress_peer_subflows{peer="transit-a"} 3.0"#,
                "keiro_egress_raised_alarms 1.0",
                "keiro_egress_destinations 1.0",
                "keiro_egress_refused_total 2",
                "keiro_egress_unknown_connections_total 5",
            ],
        );
        assert!(!page.contains("comparison"), "{page}");
        assert!(!page.contains("bfd"), "{page}");
        status.bfd_discarded = Some([("ttl".to_owned(), 4)].into());
        let line = r#"keiro_egress_bfd_discarded_total{reason="ttl"} 4"#;
        assert_lines(&render(&status), &[line]);
        status.comparison = Some(ComparisonStatus {
            stats: Stats(ComparisonStats {
                prefixes: 9,
                single_path_prefixes: 2,
                trial_prefixes: 1,
                counted_connections: 44,
                ..ComparisonStats::default()
            }),
            shown: Vec::new(),
        });
        assert_lines(
            &render(&status),
            &[
                "keiro_egress_comparison_prefixes 9.0",
                "keiro_egress_comparison_single_path_prefixes 2.0",
                "keiro_egress_comparison_counted_connections_total 44",
            ],
        );
    }

    #[test]
    fn status_round_trips_through_json() {
        let status = status();
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(
            (&json["destinations"], &json["peers"][0]["routes"]),
            (&1.into(), &7.into())
        );
        assert_eq!(serde_json::from_value::<Status>(json).unwrap(), status);
    }
}
