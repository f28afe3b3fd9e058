//! Metrics that are no figures of a path, peer, application or tenant: of the process, of states,
//! and families with a reason as a label. `keiro_stats` declares the others.
//!
//! Prefix `keiro_`, base units (seconds, bytes, ratios from 0 to 1), counters end in `_total`.
//! Labels are names from the configuration and fixed reasons, never addresses or ports, so their
//! number is bounded by the configuration.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    /// One sentence without full stop.
    pub help: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Distribution; the buckets' bounds are [`DELAY_BUCKETS_SECONDS`].
    Histogram,
    /// Always 1; the information is in its labels.
    Info,
}

impl Metric {
    /// The name without the suffix that OpenMetrics encoders add by themselves: `_total` of
    /// counters, `_info` of infos.
    pub fn registered_name(&self) -> &'static str {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.name.strip_suffix(suffix).unwrap_or(self.name)
    }
}

/// Upper bounds of the delay histograms' buckets. Ours: 1 ms to 10 s, three or four per decade, with
/// the usual latency targets (20, 100, 500 ms) among them.
pub const DELAY_BUCKETS_SECONDS: [f64; 14] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];

const PATH: &[&str] = &["path", "peer"];
const PEER: &[&str] = &["peer"];
const APP: &[&str] = &["app"];
const TENANT: &[&str] = &["tenant"];

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal $labels:expr, $help:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $help, ".")]
            pub const $constant: Metric =
                Metric { name: $name, help: $help, kind: Kind::$kind, labels: $labels };
        )*

        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BUILD: Info "keiro_build_info" &["version"],
        "Version of the gateway";
    UPTIME: Gauge "keiro_uptime_seconds" &[],
        "Time since the gateway started";
    CONFIG_LOADED: Gauge "keiro_config_loaded_timestamp_seconds" &[],
        "Time when the active configuration was read, in seconds since 1970";
    RELOADS: Counter "keiro_reloads_total" &["result"],
        "Reloads of the configuration by result: accepted or rejected";
    NETWORK_DOCUMENTS: Counter "keiro_network_documents_total" &["result"],
        "Documents of the network channel by result: received (those of unknown types and those refused too), unknown, refused, undelivered";
    MODEL_VALID: Gauge "keiro_model_valid" &[],
        "1 if measured delays agree with predicted ones, else 0";

    PEER_UP: Gauge "keiro_peer_up" PEER,
        "1 if there is a session with the peer and a path is up, else 0";
    DROPPED_PACKETS: Counter "keiro_dropped_packets_total" &["reason"],
        "Packets from the network that were dropped, by reason";

    PATH_UP: Gauge "keiro_path_up" PATH,
        "1 if the path to the peer carries traffic, else 0";
    PATH_AGGREGATION_DECISIONS: Counter "keiro_path_aggregation_decisions_total"
        &["path", "peer", "cause"],
        "Decisions of the aggregation's controller, by cause, those that change nothing included";
    UPLINK_BUDGET: Gauge "keiro_uplink_budget_bytes" &["path"],
        "What the uplink of the path may carry in a month, in both directions";
    UPLINK_USED: Gauge "keiro_uplink_budget_used_bytes" &["path"],
        "What it has carried this month";
    PATH_SWITCHES: Counter "keiro_path_switches_total" &["app", "reason"],
        "Moves of an application to another path, by reason";


    APP_ON_PATH: Gauge "keiro_app_on_path" &["app", "path"],
        "1 for the path that the application uses, 0 for the others";
    APP_DELAY: Histogram "keiro_app_delay_seconds" APP,
        "Delay of messages from accepting them until the peer has them whole";

    PLANS: Counter "keiro_plans_total" &["result"],
        "Plans made by result: unchanged, changed or infeasible";
    PLANNING_TIME: Gauge "keiro_planning_seconds" &[],
        "Time that the last plan took";

    TENANT_DEVICE_UP: Gauge "keiro_tenant_device_up" TENANT,
        "1 if the tenant's device exists and is up, else 0";
    TENANT_DROPPED_PACKETS: Counter "keiro_tenant_dropped_packets_total" &["tenant", "reason"],
        "IP packets of the tenant that were dropped, by reason";
    TENANT_NOT_FORWARDED_PACKETS: Counter "keiro_tenant_not_forwarded_packets_total" &["tenant", "kind"],
        "IP packets from the device that belong to its link alone, by kind: multicast or link_local";

    TENANT_NOT_SPLIT_CONNECTIONS: Counter "keiro_tenant_not_split_connections_total" &["tenant", "reason"],
        "TCP connections of a tenant with tcp = \"split\" that stayed IP packets, by reason";

    HISTORY_WRITES: Counter "keiro_history_writes_total" &["result"],
        "Minutes given to the history, by result: written, failed or dropped";
    HISTORY_SIZE: Gauge "keiro_history_size_bytes" &[],
        "Size of the history's file";

    PACING_LATENESS: Gauge "keiro_pacing_lateness_seconds" &["quantile"],
        "Delay of packets beyond their departure time by the pacer, by quantile, since the start";

    MESSAGE_TLS_CLOSED: Counter "keiro_message_tls_closed_connections_total" &["reason"],
        "Connections of other hosts to the message socket that were refused or closed early, by reason";
    MESSAGE_TLS_OPENING: Gauge "keiro_message_tls_opening_connections" &[],
        "Connections of other hosts to the message socket that have not shown a token yet";
    MESSAGE_CLIENTS: Gauge "keiro_message_clients" &["role"],
        "Clients attached to the message socket by role: send or receive";
    CONTROL_CLIENTS: Gauge "keiro_control_clients" &[],
        "Clients of the control socket";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let mut names = BTreeSet::new();
        for metric in ALL {
            let name = metric.name;
            assert!(names.insert(name), "{name} twice");
            assert!(name.starts_with("keiro_"), "{name}");
            assert!(
                name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{name}"
            );
            assert_eq!(
                metric.kind == Kind::Counter,
                name.ends_with("_total"),
                "{name}"
            );
            assert_eq!(metric.kind == Kind::Info, name.ends_with("_info"), "{name}");
            assert!(!metric.help.ends_with('.'), "{name}");
            for unit in ["_ms", "_percent", "_kb", "_mbit"] {
                assert!(!name.contains(unit), "{name} is not in a base unit");
            }
        }
    }

    #[test]
    fn registered_names_leave_the_suffix_to_the_encoder() {
        assert_eq!(RELOADS.registered_name(), "keiro_reloads");
        assert_eq!(BUILD.registered_name(), "keiro_build");
        assert_eq!(UPTIME.registered_name(), "keiro_uptime_seconds");
    }

    #[test]
    fn histogram_buckets_increase() {
        assert!(DELAY_BUCKETS_SECONDS.is_sorted());
    }
}
