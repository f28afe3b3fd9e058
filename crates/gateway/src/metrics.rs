//! The metrics page: names from `keiro_control::metrics`, values from snapshots.

use std::sync::atomic::AtomicU64;

use keiro_control::{
    metrics::{self, DELAY_BUCKETS_SECONDS, Metric},
    protocol::{
        AggregationSnapshot, AppSnapshot, DeviceState, ModelState, PathSnapshot, PathState,
        PeerSnapshot, PeerState, TcpListenerSnapshot, TenantPathSnapshot, TenantSnapshot,
    },
};
use keiro_store::RecorderCounts;
use prometheus_client::{
    encoding::text::encode,
    metrics::{MetricType, counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};

use crate::data::measure::{DelayBuckets, LatenessFigures};

/// Everything that the page shows.
pub(crate) struct Page<'a> {
    pub(crate) version: &'a str,
    pub(crate) uptime_seconds: f64,
    pub(crate) config_loaded_seconds: f64,
    pub(crate) reloads_accepted: u64,
    pub(crate) reloads_rejected: u64,
    pub(crate) model: ModelState,
    pub(crate) paths: &'a [PathSnapshot],
    pub(crate) peers: &'a [PeerSnapshot],
    pub(crate) apps: &'a [AppSnapshot],
    pub(crate) tenants: &'a [TenantSnapshot],
    /// By application.
    pub(crate) delays: &'a [(String, DelayBuckets)],
    /// Application, reason, moves.
    pub(crate) switches: &'a [(String, &'static str, u64)],
    /// Of all peers and the endpoint, by reason.
    pub(crate) dropped: &'a [(&'static str, u64)],
    /// Path, datagrams dropped by the own socket's full buffer, batches that could not be sent.
    pub(crate) sockets: &'a [(String, u64, u64)],
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

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;
type Counters = Family<Labels, Counter>;

/// The page in the OpenMetrics text format.
pub(crate) fn render(page: &Page<'_>) -> String {
    let mut registry = Registry::default();
    process(&mut registry, page);
    peers(&mut registry, page);
    paths(&mut registry, page);
    aggregation(&mut registry, page);
    apps(&mut registry, page);
    tenants(&mut registry, page.tenants);
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
    let age = |p: &PeerSnapshot| Some((label(p), p.handshake_age_seconds?));
    gauges(
        registry,
        &metrics::PEER_HANDSHAKE_AGE,
        page.peers.iter().filter_map(age),
    );
    // Every key change is a completed handshake, and so is the first key.
    let handshakes = |p: &PeerSnapshot| p.key_changes;
    counters(
        registry,
        &metrics::PEER_HANDSHAKES,
        page.peers.iter().map(|p| (label(p), handshakes(p))),
    );
    let changes = |p: &PeerSnapshot| p.key_changes.saturating_sub(1);
    counters(
        registry,
        &metrics::PEER_KEY_CHANGES,
        page.peers.iter().map(|p| (label(p), changes(p))),
    );
    let reassembly = |p: &PeerSnapshot| p.reassembly_bytes as f64;
    gauges(
        registry,
        &metrics::PEER_REASSEMBLY,
        page.peers.iter().map(|p| (label(p), reassembly(p))),
    );
}

fn tenants(registry: &mut Registry, tenants: &[TenantSnapshot]) {
    let label = |t: &TenantSnapshot| vec![("tenant", t.name.clone())];
    let mut gauge = |metric: &Metric, value: &dyn Fn(&TenantSnapshot) -> f64| {
        let values = tenants.iter().map(|tenant| (label(tenant), value(tenant)));
        gauges(registry, metric, values);
    };
    gauge(&metrics::TENANT_WEIGHT, &|t| t.weight);
    gauge(&metrics::TENANT_DEVICE_UP, &|t| {
        f64::from(t.device_state == DeviceState::Up)
    });
    let mut counter = |metric: &Metric, value: &dyn Fn(&TenantSnapshot) -> u64| {
        let values = tenants.iter().map(|tenant| (label(tenant), value(tenant)));
        counters(registry, metric, values);
    };
    counter(&metrics::TENANT_ENTERED_PACKETS, &|t| t.entered_packets);
    counter(&metrics::TENANT_ENTERED_BYTES, &|t| t.entered_bytes);
    counter(&metrics::TENANT_LEFT_PACKETS, &|t| t.left_packets);
    counter(&metrics::TENANT_LEFT_BYTES, &|t| t.left_bytes);
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
    tenants_on_paths(registry, tenants);
}

fn tenants_on_paths(registry: &mut Registry, tenants: &[TenantSnapshot]) {
    let paths = || {
        let peers = tenants
            .iter()
            .flat_map(|t| t.peers.iter().map(move |p| (t, p)));
        peers.flat_map(|(tenant, peer)| {
            peer.paths.iter().map(move |path| {
                let (path_name, peer) = (path.path.clone(), peer.peer.clone());
                let tenant = ("tenant", tenant.name.clone());
                (vec![tenant, ("path", path_name), ("peer", peer)], path)
            })
        })
    };
    let mut gauge = |metric: &Metric, value: &dyn Fn(&TenantPathSnapshot) -> Option<f64>| {
        let values = paths().filter_map(|(label, path)| Some((label, value(path)?)));
        gauges(registry, metric, values);
    };
    gauge(&metrics::TENANT_WINDOW, &|p| {
        p.window_bytes.map(|b| b as f64)
    });
    gauge(&metrics::TENANT_IN_FLIGHT, &|p| {
        Some(p.in_flight_bytes as f64)
    });
    gauge(&metrics::TENANT_RATE, &|p| {
        p.rate_bits_per_second.map(|r| r as f64)
    });
    gauge(&metrics::TENANT_ROUND_TRIP, &|p| p.round_trip_seconds);
    gauge(&metrics::TENANT_QUEUE, &|p| Some(p.queued_bytes as f64));
    let mut counter = |metric: &Metric, value: &dyn Fn(&TenantPathSnapshot) -> u64| {
        counters(
            registry,
            metric,
            paths().map(|(label, path)| (label, value(path))),
        );
    };
    counter(&metrics::TENANT_SENT_PACKETS, &|p| p.sent_packets);
    counter(&metrics::TENANT_SENT_BYTES, &|p| p.sent_bytes);
    counter(&metrics::TENANT_LOST_PACKETS, &|p| p.lost_packets);
}

fn paths(registry: &mut Registry, page: &Page<'_>) {
    let label = |p: &PathSnapshot| vec![("path", p.name.clone()), ("peer", p.peer.clone())];
    let mut gauge = |metric: &Metric, value: &dyn Fn(&PathSnapshot) -> Option<f64>| {
        let values = page
            .paths
            .iter()
            .filter_map(|path| Some((label(path), value(path)?)));
        gauges(registry, metric, values);
    };
    gauge(&metrics::PATH_UP, &|p| {
        Some(f64::from(p.state == PathState::Up))
    });
    gauge(&metrics::PATH_RTT, &|p| p.srtt_seconds);
    gauge(&metrics::PATH_RTT_MIN, &|p| p.rtt_min_seconds);
    gauge(&metrics::PATH_DELAY_VARIATION, &|p| {
        p.one_way_delay_variation_seconds
    });
    gauge(&metrics::PATH_LOSS, &|p| p.loss_ratio);
    gauge(&metrics::PATH_CAPACITY, &|p| {
        p.capacity
            .map(|measured| measured.rate_bits_per_second as f64)
    });
    gauge(&metrics::PATH_AVAILABLE, &|p| {
        p.available_bits_per_second.map(|rate| rate as f64)
    });
    gauge(&metrics::PATH_JITTER, &|p| p.jitter_seconds);
    gauge(&metrics::PATH_MTU, &|p| Some(p.mtu_bytes as f64));
    gauge(&metrics::PATH_QUEUE, &|p| Some(p.queue_bytes as f64));
    let rate = |p: &PathSnapshot| {
        (
            vec![("path", p.name.clone())],
            p.rate_bits_per_second as f64,
        )
    };
    gauges(registry, &metrics::PATH_RATE, page.paths.iter().map(rate));
    let mut counter = |metric: &Metric, value: &dyn Fn(&PathSnapshot) -> u64| {
        counters(
            registry,
            metric,
            page.paths.iter().map(|path| (label(path), value(path))),
        );
    };
    counter(&metrics::PATH_SENT_PACKETS, &|p| p.sent_packets);
    counter(&metrics::PATH_SENT_BYTES, &|p| p.sent_bytes);
    counter(&metrics::PATH_RECEIVED_PACKETS, &|p| p.received_packets);
    counter(&metrics::PATH_RECEIVED_BYTES, &|p| p.received_bytes);
    counter(&metrics::PATH_LOST_PACKETS, &|p| p.lost_packets);
    counter(&metrics::PATH_RETRANSMITTED_BYTES, &|p| {
        p.retransmitted_bytes
    });
    let socket = |path: &str| vec![("path", path.to_owned())];
    let drops = page
        .sockets
        .iter()
        .map(|(path, drops, _)| (socket(path), *drops));
    counters(registry, &metrics::PATH_SOCKET_DROPS, drops);
    let failures = page
        .sockets
        .iter()
        .map(|(path, _, failures)| (socket(path), *failures));
    counters(registry, &metrics::PATH_SOCKET_SEND_FAILURES, failures);
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
    let mut gauge = |metric: &Metric, value: &dyn Fn(&AggregationSnapshot) -> f64| {
        let values = gathering().map(|(path, aggregation)| (label(path), value(aggregation)));
        gauges(registry, metric, values);
    };
    gauge(&metrics::PATH_AGGREGATE_SIZE, &|a| {
        a.parameters.size_bytes as f64
    });
    gauge(&metrics::PATH_AGGREGATE_INTERVAL, &|a| {
        a.parameters.interval_seconds
    });
    gauge(&metrics::PATH_AGGREGATE_COPIES, &|a| {
        a.parameters.copies as f64
    });
    gauge(&metrics::PATH_AGGREGATION_PAUSED, &|a| f64::from(a.paused));
    let bandwidths = gathering().filter_map(|(path, aggregation)| {
        let rate = aggregation.bandwidth_bits_per_second?;
        let source = match aggregation.bandwidth_source.as_deref()? {
            now @ ("copies" | "trains") => now,
            _ => "aged",
        };
        Some((with(path, "source", source), rate as f64))
    });
    gauges(registry, &metrics::PATH_AGGREGATION_BANDWIDTH, bandwidths);
    let mut counter = |metric: &Metric, value: &dyn Fn(&AggregationSnapshot) -> u64| {
        let values = gathering().map(|(path, aggregation)| (label(path), value(aggregation)));
        counters(registry, metric, values);
    };
    counter(&metrics::PATH_SENT_AGGREGATES, &|a| a.sent_aggregates);
    counter(&metrics::PATH_LOST_AGGREGATES, &|a| a.lost_aggregates);
    counter(&metrics::PATH_SENT_COPIES, &|a| a.sent_copies);
    counter(&metrics::PATH_LOST_COPIES, &|a| a.lost_copies);
    counter(&metrics::PATH_LEFT_OUT_COPIES, &|a| a.left_out_copies);
    // What comes is counted whether or not anything is gathered here.
    let mut counter = |metric: &Metric, value: &dyn Fn(&PathSnapshot) -> u64| {
        let values = page.paths.iter().map(|path| (label(path), value(path)));
        counters(registry, metric, values);
    };
    counter(&metrics::PATH_RECEIVED_AGGREGATES, &|p| {
        p.received_aggregates
    });
    counter(&metrics::PATH_RECEIVED_COPIES, &|p| p.received_copies);
    counter(&metrics::PATH_RECOVERED_AGGREGATES, &|p| {
        p.recovered_aggregates
    });
    let overflows = gathering().flat_map(|(path, aggregation)| {
        [
            ("socket", aggregation.overflow_packets),
            ("system", aggregation.system_overflow_packets),
        ]
        .map(|(place, count)| (with(path, "where", place), count))
    });
    counters(registry, &metrics::PATH_RECEIVER_OVERFLOWS, overflows);
    let decisions = gathering().flat_map(|(path, aggregation)| {
        let by_cause = aggregation.decisions.iter();
        by_cause.map(move |(cause, count)| (with(path, "cause", cause), *count))
    });
    counters(registry, &metrics::PATH_AGGREGATION_DECISIONS, decisions);
}

fn apps(registry: &mut Registry, page: &Page<'_>) {
    let label = |a: &AppSnapshot| vec![("app", a.name.clone())];
    let mut gauge = |metric: &Metric, value: &dyn Fn(&AppSnapshot) -> Option<f64>| {
        let values = page
            .apps
            .iter()
            .filter_map(|app| Some((label(app), value(app)?)));
        gauges(registry, metric, values);
    };
    gauge(&metrics::APP_TARGET, &|a| a.latency_target_seconds);
    gauge(&metrics::APP_TARGET_MET, &|a| a.target_met.map(f64::from));
    gauge(&metrics::APP_DELAY_PREDICTED, &|a| {
        a.predicted_delay_seconds
    });
    gauge(&metrics::APP_QUEUE, &|a| Some(a.queue_bytes as f64));
    let mut counter = |metric: &Metric, value: &dyn Fn(&AppSnapshot) -> u64| {
        counters(
            registry,
            metric,
            page.apps.iter().map(|app| (label(app), value(app))),
        );
    };
    counter(&metrics::APP_SENT_BYTES, &|a| a.sent_bytes);
    counter(&metrics::APP_RECEIVED_BYTES, &|a| a.received_bytes);
    let names: std::collections::BTreeSet<&str> =
        page.paths.iter().map(|path| path.name.as_str()).collect();
    let on_path = page.apps.iter().flat_map(|app| {
        names.iter().map(|path| {
            let labels = vec![("app", app.name.clone()), ("path", (*path).to_owned())];
            (labels, f64::from(app.path.as_deref() == Some(*path)))
        })
    });
    gauges(registry, &metrics::APP_ON_PATH, on_path);
    let outcomes = page.apps.iter().flat_map(|app| {
        let outcomes = [
            ("sent", app.messages_sent),
            ("delivered", app.messages_delivered),
            ("expired", app.messages_expired),
            ("refused", app.messages_refused),
            ("received", app.messages_received),
        ];
        outcomes.map(|(outcome, count)| {
            (
                vec![("app", app.name.clone()), ("outcome", outcome.to_owned())],
                count,
            )
        })
    });
    counters(registry, &metrics::APP_MESSAGES, outcomes);
    connections(registry, page.apps);
    let switches = page.switches.iter().map(|(app, reason, count)| {
        (
            vec![("app", app.clone()), ("reason", (*reason).to_owned())],
            *count,
        )
    });
    counters(registry, &metrics::PATH_SWITCHES, switches);
}

/// Of TCP, by side: a gateway may have an application's listeners, its forward, or both.
fn connections(registry: &mut Registry, apps: &[AppSnapshot]) {
    let mut open = Vec::new();
    let mut outcomes = Vec::new();
    for app in apps {
        let labels = |side: &str| vec![("app", app.name.clone()), ("side", side.to_owned())];
        let mut add = |side: &str, now: u64, counts: &[(&str, u64)]| {
            open.push((labels(side), now as f64));
            outcomes.extend(counts.iter().map(|(outcome, count)| {
                let mut labels = labels(side);
                labels.push(("outcome", (*outcome).to_owned()));
                (labels, *count)
            }));
        };
        if !app.tcp_listeners.is_empty() {
            let sum =
                |count: fn(&TcpListenerSnapshot) -> u64| app.tcp_listeners.iter().map(count).sum();
            let counts = [
                ("accepted", sum(|listener| listener.accepted_connections)),
                ("refused", sum(|listener| listener.refused_connections)),
                ("reset", sum(|listener| listener.reset_connections)),
                ("failed", sum(|listener| listener.failed_connections)),
            ];
            add(
                "listener",
                sum(|listener| listener.open_connections),
                &counts,
            );
        }
        if let Some(forward) = &app.tcp_forward {
            let counts = [
                ("accepted", forward.accepted_connections),
                ("reset", forward.reset_connections),
                ("failed", forward.failed_connections),
                ("forbidden", forward.forbidden_connections),
            ];
            add("forward", forward.open_connections, &counts);
        }
    }
    gauges(registry, &metrics::APP_OPEN_CONNECTIONS, open);
    counters(registry, &metrics::APP_CONNECTIONS, outcomes);
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
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    /// One path, with a distinct value for every figure about aggregates.
    #[test]
    fn every_figure_of_aggregates_has_the_name_that_is_its_own() {
        let path = json!({
            "name": "west", "peer": "plant", "state": "up", "why": "", "state_seconds": 1.0,
            "local": "192.0.2.1:7000", "rate_bits_per_second": 1, "delay_configured": false,
            "mtu_bytes": 1500, "sent_packets": 2, "sent_bytes": 3, "received_packets": 4, "received_bytes": 5,
            "lost_packets": 6, "retransmitted_bytes": 7, "queue_bytes": 8, "in_flight_bytes": 9,
            "received_aggregates": 101, "received_copies": 102, "recovered_aggregates": 103,
            "aggregation": {
                "mode": "eager", "size_bytes": 104, "interval_seconds": 0.105, "copies": 106, "paused": true,
                "decisions": { "idle": 107, "line": 108 },
                "sent_aggregates": 109, "lost_aggregates": 110, "sent_copies": 111, "lost_copies": 112,
                "left_out_copies": 113, "overflow_packets": 114, "system_overflow_packets": 115,
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
            model: ModelState::Off,
            paths: &paths,
            peers: &[],
            apps: &[],
            tenants: &[],
            delays: &[],
            switches: &[],
            dropped: &[],
            sockets: &[],
            plans: &[],
            planning_seconds: 0.0,
            history: None,
            lateness: LatenessFigures::default(),
            message_senders: 0,
            message_receivers: 0,
            control_clients: 0,
        };
        let text = render(&page);
        let told: BTreeMap<&str, &str> = text
            .lines()
            .filter(|line| line.contains("aggreg") || line.contains("overflow"))
            .filter_map(|line| line.strip_prefix("keiro_path_")?.rsplit_once(' '))
            .collect();
        let of = |name: &str, more: &str| format!(r#"{name}{{path="west",peer="plant"{more}}}"#);
        let wanted = [
            ("received_aggregates_total", "", "101"),
            ("received_aggregate_copies_total", "", "102"),
            ("recovered_aggregates_total", "", "103"),
            ("aggregate_size_bytes", "", "104.0"),
            ("aggregate_interval_seconds", "", "0.105"),
            ("aggregate_copies", "", "106.0"),
            ("aggregation_paused", "", "1.0"),
            ("aggregation_decisions_total", r#",cause="idle""#, "107"),
            ("aggregation_decisions_total", r#",cause="line""#, "108"),
            ("sent_aggregates_total", "", "109"),
            ("lost_aggregates_total", "", "110"),
            ("sent_aggregate_copies_total", "", "111"),
            ("lost_aggregate_copies_total", "", "112"),
            ("left_out_aggregate_copies_total", "", "113"),
            (
                "receiver_overflow_packets_total",
                r#",where="socket""#,
                "114",
            ),
            (
                "receiver_overflow_packets_total",
                r#",where="system""#,
                "115",
            ),
            (
                "aggregation_bandwidth_bits_per_second",
                r#",source="aged""#,
                "116.0",
            ),
        ];
        for (name, more, value) in wanted {
            assert_eq!(told.get(&*of(name, more)), Some(&value), "{name}{more}");
        }
        assert_eq!(told.len(), wanted.len(), "{told:?}");
    }
}
