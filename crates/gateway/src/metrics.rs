//! The metrics page: names from `keiro_control::metrics`, values from snapshots.

use std::collections::BTreeMap;

use keiro_control::{
    metrics::{self, DELAY_BUCKETS_SECONDS, Metric},
    protocol::{
        AppSnapshot, BudgetSnapshot, DeviceState, ModelState, PathSnapshot, PathState,
        PeerSnapshot, PeerState, TenantSnapshot,
    },
};
use keiro_stats::{HandshakeStats, PathSocketStats, StatSet, TcpListenerStats, UdpListenerStats};
use keiro_stats_export::openmetrics::{Counters, Gauges, Labels, register_stats};
use keiro_store::RecorderCounts;
use prometheus_client::{
    encoding::text::encode,
    metrics::{MetricType, info::Info},
    registry::Registry,
};

use crate::{
    data::measure::{DelayBuckets, LatenessFigures},
    document_counts::DocumentCounts,
    message_tls,
};

/// Everything that the page shows.
pub(crate) struct Page<'a> {
    pub(crate) version: &'a str,
    pub(crate) uptime_seconds: f64,
    pub(crate) config_loaded_seconds: f64,
    pub(crate) reloads_accepted: u64,
    pub(crate) reloads_rejected: u64,
    pub(crate) documents: DocumentCounts,
    pub(crate) model: ModelState,
    pub(crate) paths: &'a [PathSnapshot],
    pub(crate) peers: &'a [PeerSnapshot],
    pub(crate) apps: &'a [AppSnapshot],
    pub(crate) tenants: &'a [TenantSnapshot],
    pub(crate) message_tls: &'a message_tls::Figures,
    pub(crate) handshakes: &'a HandshakeStats,
    /// By application.
    pub(crate) delays: &'a [(String, DelayBuckets)],
    /// Application, reason, moves.
    pub(crate) switches: &'a [(String, &'static str, u64)],
    /// Of all peers and the endpoint, by reason.
    pub(crate) dropped: &'a [(&'static str, u64)],
    /// Plans by result.
    pub(crate) plans: &'a [(&'static str, u64)],
    pub(crate) planning_seconds: f64,
    /// `None`: there is no history.
    pub(crate) history: Option<RecorderCounts>,
    pub(crate) lateness: LatenessFigures,
    pub(crate) message_senders: u64,
    pub(crate) message_receivers: u64,
    pub(crate) control_clients: u64,
}

/// The page in the OpenMetrics text format.
pub(crate) fn render(page: &Page<'_>) -> String {
    let mut registry = Registry::default();
    process(&mut registry, page);
    peers(&mut registry, page);
    paths(&mut registry, page);
    aggregation(&mut registry, page);
    apps(&mut registry, page);
    tenants(&mut registry, page.tenants);
    message_tls(&mut registry, page.message_tls);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    // Histograms are kept as counts already; the library's own type would count again.
    let end = "# EOF\n";
    if text.ends_with(end) {
        text.truncate(text.len() - end.len());
    }
    histograms(&mut text, page.delays);
    text.push_str(end);
    text
}

fn process(registry: &mut Registry, page: &Page<'_>) {
    let info = Info::new(vec![("version", page.version.to_owned())]);
    registry.register(metrics::BUILD.registered_name(), metrics::BUILD.help, info);
    gauges(registry, &metrics::UPTIME, [(vec![], page.uptime_seconds)]);
    gauges(
        registry,
        &metrics::CONFIG_LOADED,
        [(vec![], page.config_loaded_seconds)],
    );
    let reloads = [
        ("accepted", page.reloads_accepted),
        ("rejected", page.reloads_rejected),
    ];
    counters(registry, &metrics::RELOADS, by("result", &reloads));
    let documents = page.documents.by_result();
    counters(
        registry,
        &metrics::NETWORK_DOCUMENTS,
        by("result", &documents),
    );
    let valid = f64::from(page.model == ModelState::Valid);
    gauges(registry, &metrics::MODEL_VALID, [(vec![], valid)]);
    counters(registry, &metrics::PLANS, by("result", page.plans));
    gauges(
        registry,
        &metrics::PLANNING_TIME,
        [(vec![], page.planning_seconds)],
    );
    let clients = [
        ("send", page.message_senders),
        ("receive", page.message_receivers),
    ];
    let clients = by("role", &clients).map(|(labels, count)| (labels, count as f64));
    gauges(registry, &metrics::MESSAGE_CLIENTS, clients);
    gauges(
        registry,
        &metrics::CONTROL_CLIENTS,
        [(vec![], page.control_clients as f64)],
    );
    counters(
        registry,
        &metrics::DROPPED_PACKETS,
        by("reason", page.dropped),
    );
    register_stats(registry, [(vec![], page.handshakes)]);
    history(registry, page.history.as_ref());
    let late = &page.lateness;
    let quantiles = [
        ("0.5", late.p50_seconds),
        ("0.99", late.p99_seconds),
        ("1", late.max_seconds),
    ];
    let quantiles = quantiles.map(|(q, value)| (vec![("quantile", q.to_owned())], value));
    gauges(registry, &metrics::PACING_LATENESS, quantiles);
}

fn history(registry: &mut Registry, counts: Option<&RecorderCounts>) {
    let Some(counts) = counts else { return };
    let results = [
        ("written", counts.written),
        ("failed", counts.failed),
        ("dropped", counts.dropped),
    ];
    counters(registry, &metrics::HISTORY_WRITES, by("result", &results));
    let size = counts.file_bytes as f64;
    gauges(registry, &metrics::HISTORY_SIZE, [(vec![], size)]);
}

fn peers(registry: &mut Registry, page: &Page<'_>) {
    let label = |peer: &PeerSnapshot| vec![("peer", peer.name.clone())];
    let up = |peer: &PeerSnapshot| f64::from(peer.state == PeerState::Up);
    gauges(
        registry,
        &metrics::PEER_UP,
        page.peers.iter().map(|p| (label(p), up(p))),
    );
    let peers = page.peers.iter();
    register_stats(registry, peers.map(|p| (label(p), &p.stats.0)));
}

/// Clients of the message socket on other hosts.
fn message_tls(registry: &mut Registry, figures: &message_tls::Figures) {
    let label = |name: &str| vec![("client", name.to_owned())];
    let clients = figures.clients.iter();
    register_stats(registry, clients.map(|one| (label(&one.name), &one.stats)));
    let closed = figures.closed_connections.iter();
    let closed = closed.map(|(reason, count)| (vec![("reason", (*reason).to_owned())], *count));
    counters(registry, &metrics::MESSAGE_TLS_CLOSED, closed);
    let opening = [(Vec::new(), figures.opening_connections as f64)];
    gauges(registry, &metrics::MESSAGE_TLS_OPENING, opening);
}

fn tenants(registry: &mut Registry, tenants: &[TenantSnapshot]) {
    let label = |t: &TenantSnapshot| vec![("tenant", t.name.clone())];
    register_stats(registry, tenants.iter().map(|t| (label(t), &t.stats.0)));
    let up = |t: &TenantSnapshot| (label(t), f64::from(t.device_state == DeviceState::Up));
    gauges(registry, &metrics::TENANT_DEVICE_UP, tenants.iter().map(up));
    let mut dropped: Vec<(Labels, u64)> = Vec::new();
    for tenant in tenants {
        let mut by_reason = tenant.dropped_packets.clone();
        for peer in &tenant.peers {
            for (reason, count) in &peer.dropped_packets {
                *by_reason.entry(format!("queue_{reason}")).or_default() += count;
            }
        }
        for (reason, count) in by_reason {
            dropped.push((
                vec![("tenant", tenant.name.clone()), ("reason", reason)],
                count,
            ));
        }
    }
    counters(registry, &metrics::TENANT_DROPPED_PACKETS, dropped);
    let of_the_link = tenants.iter().flat_map(|tenant| {
        let counts = tenant.not_forwarded_packets.iter();
        counts.map(|(kind, count)| {
            let tenant = ("tenant", tenant.name.clone());
            (vec![tenant, ("kind", kind.clone())], *count)
        })
    });
    counters(
        registry,
        &metrics::TENANT_NOT_FORWARDED_PACKETS,
        of_the_link,
    );
    let not_split = tenants.iter().flat_map(|tenant| {
        let counts = tenant.not_split_connections.iter();
        counts.map(|(reason, count)| {
            let tenant = ("tenant", tenant.name.clone());
            (vec![tenant, ("reason", reason.clone())], *count)
        })
    });
    counters(registry, &metrics::TENANT_NOT_SPLIT_CONNECTIONS, not_split);
    tenants_on_paths(registry, tenants);
}

fn tenants_on_paths(registry: &mut Registry, tenants: &[TenantSnapshot]) {
    let mut towards_peers = Vec::new();
    let mut on_paths = Vec::new();
    for tenant in tenants {
        for peer in &tenant.peers {
            let (tenant, peer_name) =
                (("tenant", tenant.name.clone()), ("peer", peer.peer.clone()));
            towards_peers.push((vec![tenant.clone(), peer_name.clone()], &peer.stats.0));
            for path in &peer.paths {
                let path_name = ("path", path.path.clone());
                let labels = vec![tenant.clone(), path_name, peer_name.clone()];
                on_paths.push((labels, &path.stats.0));
            }
        }
    }
    register_stats(registry, towards_peers);
    register_stats(registry, on_paths);
}

fn paths(registry: &mut Registry, page: &Page<'_>) {
    let label = |p: &PathSnapshot| vec![("path", p.name.clone()), ("peer", p.peer.clone())];
    let up = |p: &PathSnapshot| (label(p), f64::from(p.state == PathState::Up));
    let in_use = page.paths.iter().filter(|path| !path.abandoned);
    gauges(registry, &metrics::PATH_UP, in_use.map(up));
    register_stats(registry, page.paths.iter().map(|p| (label(p), &p.stats.0)));
    let capacities = page.paths.iter();
    register_stats(
        registry,
        capacities.filter_map(|p| Some((label(p), &p.capacity.as_ref()?.0))),
    );
    let budgets: BTreeMap<&str, &BudgetSnapshot> = page
        .paths
        .iter()
        .filter_map(|path| path.budget.as_ref())
        .map(|budget| (budget.uplink.as_str(), budget))
        .collect();
    let of_uplink = |uplink: &str| vec![("path", uplink.to_owned())];
    let all = budgets.iter();
    let all = all.map(|(uplink, of)| (of_uplink(uplink), of.budget_bytes as f64));
    gauges(registry, &metrics::UPLINK_BUDGET, all);
    let used = budgets.iter();
    let used = used.map(|(uplink, of)| (of_uplink(uplink), of.used_bytes as f64));
    gauges(registry, &metrics::UPLINK_USED, used);
    // One socket serves all peers of a path.
    let sockets: BTreeMap<&str, &PathSocketStats> = page
        .paths
        .iter()
        .filter_map(|p| Some((p.name.as_str(), &p.socket.as_ref()?.0)))
        .collect();
    register_stats(
        registry,
        sockets
            .into_iter()
            .map(|(path, stats)| (vec![("path", path.to_owned())], stats)),
    );
}

fn aggregation(registry: &mut Registry, page: &Page<'_>) {
    let label = |p: &PathSnapshot| vec![("path", p.name.clone()), ("peer", p.peer.clone())];
    let with = |p: &PathSnapshot, name: &'static str, value: &str| {
        let mut labels = label(p);
        labels.push((name, value.to_owned()));
        labels
    };
    let gathering = || {
        let paths = page.paths.iter();
        paths.filter_map(|path| Some((path, path.aggregation.as_ref()?)))
    };
    register_stats(
        registry,
        gathering().map(|(path, aggregation)| (label(path), &aggregation.stats.0)),
    );
    let decisions = gathering().flat_map(|(path, aggregation)| {
        let by_cause = aggregation.decisions.iter();
        by_cause.map(move |(cause, count)| (with(path, "cause", cause), *count))
    });
    counters(registry, &metrics::PATH_AGGREGATION_DECISIONS, decisions);
}

fn apps(registry: &mut Registry, page: &Page<'_>) {
    let label = |a: &AppSnapshot| vec![("app", a.name.clone())];
    register_stats(registry, page.apps.iter().map(|a| (label(a), &a.stats.0)));
    let names: std::collections::BTreeSet<&str> =
        page.paths.iter().map(|path| path.name.as_str()).collect();
    let on_path = page.apps.iter().flat_map(|app| {
        names.iter().map(|path| {
            let labels = vec![("app", app.name.clone()), ("path", (*path).to_owned())];
            (labels, f64::from(app.path.as_deref() == Some(*path)))
        })
    });
    gauges(registry, &metrics::APP_ON_PATH, on_path);
    connections(registry, page.apps);
    let switches = page.switches.iter().map(|(app, reason, count)| {
        (
            vec![("app", app.clone()), ("reason", (*reason).to_owned())],
            *count,
        )
    });
    counters(registry, &metrics::PATH_SWITCHES, switches);
}

/// Listeners and forwards; an application's listeners are added up.
fn connections(registry: &mut Registry, apps: &[AppSnapshot]) {
    let label = |a: &AppSnapshot| vec![("app", a.name.clone())];
    let with_udp: Vec<_> = apps.iter().filter(|a| !a.listeners.is_empty()).collect();
    let udp: Vec<_> = with_udp
        .iter()
        .map(|a| UdpListenerStats::sum(a.listeners.iter().map(|l| &l.stats.0)))
        .collect();
    let labels = with_udp.iter().map(|a| label(a));
    register_stats(registry, labels.zip(&udp));
    let forwards = apps.iter();
    register_stats(
        registry,
        forwards.filter_map(|a| Some((label(a), &a.forward.as_ref()?.stats.0))),
    );
    let with_tcp: Vec<_> = apps
        .iter()
        .filter(|a| !a.tcp_listeners.is_empty())
        .collect();
    let tcp: Vec<_> = with_tcp
        .iter()
        .map(|a| TcpListenerStats::sum(a.tcp_listeners.iter().map(|l| &l.stats.0)))
        .collect();
    let labels = with_tcp.iter().map(|a| label(a));
    register_stats(registry, labels.zip(&tcp));
    let forwards = apps.iter();
    register_stats(
        registry,
        forwards.filter_map(|a| Some((label(a), &a.tcp_forward.as_ref()?.stats.0))),
    );
}

fn gauges(
    registry: &mut Registry,
    metric: &Metric,
    values: impl IntoIterator<Item = (Labels, f64)>,
) {
    let family = Gauges::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    registry.register(metric.registered_name(), metric.help, family);
}

fn counters(
    registry: &mut Registry,
    metric: &Metric,
    values: impl IntoIterator<Item = (Labels, u64)>,
) {
    let family = Counters::default();
    for (labels, value) in values {
        family.get_or_create(&labels).inc_by(value);
    }
    registry.register(metric.registered_name(), metric.help, family);
}

fn by<'a>(
    label: &'static str,
    counts: &'a [(&'static str, u64)],
) -> impl Iterator<Item = (Labels, u64)> + 'a {
    counts
        .iter()
        .map(move |(value, count)| (vec![(label, (*value).to_owned())], *count))
}

fn histograms(text: &mut String, delays: &[(String, DelayBuckets)]) {
    let Metric { name, help, .. } = metrics::APP_DELAY;
    let kind = MetricType::Histogram.as_str();
    text.push_str(&format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n"));
    for (app, buckets) in delays {
        let mut count = 0;
        let bounds = DELAY_BUCKETS_SECONDS
            .iter()
            .map(|bound| format!("{bound:?}"));
        for (bound, new) in bounds.chain(["+Inf".to_owned()]).zip(buckets.counts) {
            count += new;
            text.push_str(&format!(
                "{name}_bucket{{app=\"{app}\",le=\"{bound}\"}} {count}\n"
            ));
        }
        text.push_str(&format!(
            "{name}_sum{{app=\"{app}\"}} {}\n",
            buckets.sum_seconds
        ));
        text.push_str(&format!("{name}_count{{app=\"{app}\"}} {count}\n"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// One path, with a distinct value for every figure about aggregates.
    #[test]
    fn every_figure_of_aggregates_has_the_name_that_is_its_own() {
        let path = json!({
            "name": "west", "peer": "plant", "state": "up", "why": "", "state_seconds": 1.0,
            "local": "192.0.2.1:7000", "delay_configured": false,
                        "received_aggregates": 101, "received_copies": 102, "recovered_aggregates": 103,
            "aggregation": {
                "mode": "eager", "size_bytes": 104, "interval_seconds": 0.105, "copies": 106, "paused": true,
                "decisions": { "idle": 107, "line": 108 },
                "sent_aggregates": 109, "lost_aggregates": 110, "sent_copies": 111, "lost_copies": 112,
                "unsent_copies": 113, "peer_socket_dropped_packets": 114, "peer_system_dropped_packets": 115,
                "bandwidth_bits_per_second": 116, "bandwidth_source": "3 s ago",
            },
        });
        let paths: [PathSnapshot; 1] = [serde_json::from_value(path).unwrap()];
        let page = Page {
            version: "0.0.0",
            uptime_seconds: 0.0,
            config_loaded_seconds: 0.0,
            reloads_accepted: 0,
            reloads_rejected: 0,
            documents: DocumentCounts::default(),
            model: ModelState::Off,
            paths: &paths,
            peers: &[],
            apps: &[],
            tenants: &[],
            message_tls: &message_tls::Figures::default(),
            handshakes: &HandshakeStats::default(),
            delays: &[],
            switches: &[],
            dropped: &[],
            plans: &[],
            planning_seconds: 0.0,
            history: None,
            lateness: LatenessFigures::default(),
            message_senders: 0,
            message_receivers: 0,
            control_clients: 0,
        };
        let text = render(&page);
        let shown: BTreeMap<&str, &str> = text
            .lines()
            .filter(|line| line.contains("aggreg") || line.contains("received_copies"))
            .filter_map(|line| line.strip_prefix("keiro_path_")?.rsplit_once(' '))
            .collect();
        let of = |name: &str, more: &str| format!(r#"{name}{{path="west",peer="plant"{more}}}"#);
        let wanted = [
            ("received_aggregates_total", "", "101"),
            ("received_copies_total", "", "102"),
            ("recovered_aggregates_total", "", "103"),
            ("aggregation_size_bytes", "", "104.0"),
            ("aggregation_interval_seconds", "", "0.105"),
            ("aggregation_copies", "", "106.0"),
            ("aggregation_paused", "", "1.0"),
            ("aggregation_decisions_total", r#",cause="idle""#, "107"),
            ("aggregation_decisions_total", r#",cause="line""#, "108"),
            ("aggregation_sent_aggregates_total", "", "109"),
            ("aggregation_lost_aggregates_total", "", "110"),
            ("aggregation_sent_copies_total", "", "111"),
            ("aggregation_lost_copies_total", "", "112"),
            ("aggregation_unsent_copies_total", "", "113"),
            ("aggregation_peer_socket_dropped_packets_total", "", "114"),
            ("aggregation_peer_system_dropped_packets_total", "", "115"),
            ("aggregation_bandwidth_bits_per_second", "", "116.0"),
        ];
        for (name, more, value) in wanted {
            assert_eq!(shown.get(&*of(name, more)), Some(&value), "{name}{more}");
        }
        assert_eq!(shown.len(), wanted.len(), "{shown:?}");
    }
}
