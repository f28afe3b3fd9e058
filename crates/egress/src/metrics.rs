//! The metrics page of a daemon in the OpenMetrics text format. Labels are configured names and
//! fixed words. Client prefixes are no labels, since their number is not bounded.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::status::{ComparisonStatus, Status};

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge>;

pub fn render(status: &Status) -> String {
    let mut registry = Registry::with_prefix("keiro_egress");
    let neighbours = gauges(status.neighbours.iter().map(|one| {
        let is_up = one.state == "established";
        ([("neighbour", &one.name)], usize::from(is_up))
    }));
    registry.register("neighbour_up", "Whether the session is up", neighbours);
    let routes = status.peers.iter();
    let routes = gauges(routes.map(|one| ([("peer", &one.name)], one.routes)));
    registry.register("peer_routes", "Routes of an egress peer", routes);
    let subflows = status.peers.iter();
    let subflows = subflows.filter_map(|one| Some(([("peer", &one.name)], one.subflows?)));
    let help = "MPTCP subflows by an egress peer's address";
    registry.register("peer_subflows", help, gauges(subflows));
    let help = "Changes of forwarding that were refused";
    registry.register("refused", help, counter(status.refused));
    if let Some(comparison) = &status.comparison {
        compared(&mut registry, comparison);
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

fn compared(registry: &mut Registry, of: &ComparisonStatus) {
    let multipath = of.prefixes - of.single_path - of.trial;
    let [many, one, trial] = ["multipath", "single_path", "trial"].map(str::to_owned);
    let mode = gauges([
        ([("mode", &many)], multipath),
        ([("mode", &one)], of.single_path),
        ([("mode", &trial)], of.trial),
    ]);
    let help = "Client prefixes by whether their connections are told of EPE addresses";
    registry.register("client_prefixes", help, mode);
    let totals = [
        (
            "client_prefixes_forgotten",
            "Client prefixes that were forgotten because there were too many",
            of.forgotten,
        ),
        (
            "compared_connections",
            "Connections whose goodput counted, single-path ones and others",
            of.counted,
        ),
        (
            "comparison_decisions",
            "Decisions whether connections of a client prefix are told of EPE addresses",
            of.decisions,
        ),
    ];
    for (name, help, total) in totals {
        registry.register(name, help, counter(total));
    }
}

fn gauges<'a>(all: impl IntoIterator<Item = ([(&'static str, &'a String); 1], usize)>) -> Gauges {
    let family = Gauges::default();
    for (labels, value) in all {
        let labels = labels.map(|(name, value)| (name, value.clone()));
        family.get_or_create(&labels.to_vec()).set(value as i64);
    }
    family
}

fn counter(total: u64) -> Counter<u64, AtomicU64> {
    let counter = Counter::default();
    counter.inc_by(total);
    counter
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::status::PeerStatus;

    #[test]
    fn what_is_shown_is_counted_by_name() {
        let peer = PeerStatus {
            name: "transit-a".to_owned(),
            rt: "65000:10".to_owned(),
            sid: None,
            address: None,
            routes: 7,
            subflows: Some(3),
            kernel: None,
        };
        let mut status = Status {
            role: "egress".to_owned(),
            asn: 65000,
            router_id: Ipv4Addr::LOCALHOST,
            destinations: 1,
            vrps: None,
            unknown_connections: 0,
            refused: 2,
            config_rejected: None,
            neighbours: Vec::new(),
            peers: vec![peer],
            comparison: None,
            kernel: None,
        };
        let page = render(&status);
        for line in [
            r#"keiro_egress_peer_routes{peer="transit-a"} 7"#,
            r#"keiro_egress_peer_subflows{peer="transit-a"} 3"#,
            "keiro_egress_refused_total 2",
        ] {
            assert!(page.lines().any(|there| there == line), "{line}: {page}");
        }
        assert!(!page.contains("client_prefixes"), "{page}");
        status.comparison = Some(ComparisonStatus {
            prefixes: 9,
            single_path: 2,
            trial: 1,
            counted: 44,
            ..ComparisonStatus::default()
        });
        let page = render(&status);
        for line in [
            r#"keiro_egress_client_prefixes{mode="multipath"} 6"#,
            r#"keiro_egress_client_prefixes{mode="single_path"} 2"#,
            "keiro_egress_compared_connections_total 44",
        ] {
            assert!(page.lines().any(|there| there == line), "{line}: {page}");
        }
    }
}
