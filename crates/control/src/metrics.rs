//! Names and help texts of the metrics.
//!
//! Prefix `keiro_`, base units (seconds, bytes, ratios from 0 to 1), counters end in `_total`.
//! Labels are names from the configuration and fixed reasons, never addresses or ports: their
//! number is bounded by the configuration. Counting and serving is the gateway's.

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// As Prometheus shows it.
    pub name: &'static str,
    /// One sentence without full stop.
    pub help: &'static str,
    /// What kind it is.
    pub kind: Kind,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
}

/// Kinds of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Distribution; the buckets' bounds are [`DELAY_BUCKETS_SECONDS`].
    Histogram,
    /// Always 1, with what there is to know in its labels.
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
/// the demands that people write (20, 100, 500 ms) among them.
pub const DELAY_BUCKETS_SECONDS: [f64; 14] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];

const PATH: &[&str] = &["path", "peer"];
const PEER: &[&str] = &["peer"];
const APP: &[&str] = &["app"];
const TENANT: &[&str] = &["tenant"];
const TENANT_PATH: &[&str] = &["tenant", "path", "peer"];

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal $labels:expr, $help:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $help, ".")]
            pub const $constant: Metric =
                Metric { name: $name, help: $help, kind: Kind::$kind, labels: $labels };
        )*

        /// Every metric.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BUILD: Info "keiro_build_info" &["version"],
        "Version of the gateway";
    UPTIME: Gauge "keiro_uptime_seconds" &[],
        "How long the gateway runs";
    CONFIG_LOADED: Gauge "keiro_config_loaded_timestamp_seconds" &[],
        "When the active configuration was read, in seconds since 1970";
    RELOADS: Counter "keiro_reloads_total" &["result"],
        "Reloads of the configuration by result: accepted or rejected";
    MODEL_VALID: Gauge "keiro_model_valid" &[],
        "1 if measured delays agree with predicted ones, else 0";

    PEER_UP: Gauge "keiro_peer_up" PEER,
        "1 if there is a session with the peer and a path is up, else 0";
    PEER_HANDSHAKE_AGE: Gauge "keiro_peer_handshake_age_seconds" PEER,
        "Time since the last complete handshake";
    PEER_HANDSHAKES: Counter "keiro_peer_handshakes_total" PEER,
        "Handshakes completed";
    PEER_KEY_CHANGES: Counter "keiro_peer_key_changes_total" PEER,
        "Changes of the session's keys";
    PEER_REASSEMBLY: Gauge "keiro_peer_reassembly_bytes" PEER,
        "Bytes of messages from the peer that are not complete";
    DROPPED_PACKETS: Counter "keiro_dropped_packets_total" &["reason"],
        "Packets from the network that were dropped, by reason";

    PATH_UP: Gauge "keiro_path_up" PATH,
        "1 if the path to the peer carries traffic, else 0";
    PATH_RTT: Gauge "keiro_path_rtt_seconds" PATH,
        "Smoothed round-trip time";
    PATH_RTT_MIN: Gauge "keiro_path_rtt_min_seconds" PATH,
        "Smallest round-trip time of the recent past";
    PATH_DELAY_VARIATION: Gauge "keiro_path_one_way_delay_variation_seconds" PATH,
        "Variation of the one-way delay to the peer";
    PATH_LOSS: Gauge "keiro_path_loss_ratio" PATH,
        "Share of the recently sent packets that were lost";
    PATH_RATE: Gauge "keiro_path_rate_bits_per_second" &["path"],
        "Rate that the gateway may send at, whole IP packets";
    PATH_CAPACITY: Gauge "keiro_path_capacity_bits_per_second" PATH,
        "What the path carries, measured, whole IP packets";
    PATH_AVAILABLE: Gauge "keiro_path_available_bits_per_second" PATH,
        "What more fits beside all that is on the path, where that is known";
    PATH_JITTER: Gauge "keiro_path_jitter_seconds" PATH,
        "Interarrival jitter (RFC 3550)";
    PATH_MTU: Gauge "keiro_path_mtu_bytes" PATH,
        "Largest IP packet that passes";
    PATH_QUEUE: Gauge "keiro_path_queue_bytes" PATH,
        "Bytes that wait for the path";
    PATH_SENT_PACKETS: Counter "keiro_path_sent_packets_total" PATH,
        "IP packets sent";
    PATH_SENT_BYTES: Counter "keiro_path_sent_bytes_total" PATH,
        "Bytes of IP packets sent";
    PATH_RECEIVED_PACKETS: Counter "keiro_path_received_packets_total" PATH,
        "IP packets received and opened";
    PATH_RECEIVED_BYTES: Counter "keiro_path_received_bytes_total" PATH,
        "Bytes of IP packets received and opened";
    PATH_LOST_PACKETS: Counter "keiro_path_lost_packets_total" PATH,
        "Packets sent and declared lost";
    PATH_RETRANSMITTED_BYTES: Counter "keiro_path_retransmitted_bytes_total" PATH,
        "Bytes sent again after a loss";
    PATH_AGGREGATE_SIZE: Gauge "keiro_path_aggregate_size_bytes" PATH,
        "Most bytes of aggregates in an interval, one copy of each counted, whole IP packets";
    PATH_AGGREGATE_INTERVAL: Gauge "keiro_path_aggregate_interval_seconds" PATH,
        "Interval of aggregates";
    PATH_AGGREGATE_COPIES: Gauge "keiro_path_aggregate_copies" PATH,
        "How often each aggregate is sent";
    PATH_AGGREGATION_PAUSED: Gauge "keiro_path_aggregation_paused" PATH,
        "1 while nothing is gathered by the clock because the path carries no combination, else 0";
    PATH_AGGREGATION_BANDWIDTH: Gauge "keiro_path_aggregation_bandwidth_bits_per_second"
        &["path", "peer", "source"],
        "What the spacing of copies, or trains, tell of the bandwidth, by source: copies, trains or aged";
    PATH_SENT_AGGREGATES: Counter "keiro_path_sent_aggregates_total" PATH,
        "Aggregates sent whose fate the peer has told";
    PATH_LOST_AGGREGATES: Counter "keiro_path_lost_aggregates_total" PATH,
        "Aggregates of which nothing came, after redundancy";
    PATH_SENT_COPIES: Counter "keiro_path_sent_aggregate_copies_total" PATH,
        "Copies of aggregates, or parity packets in their place, sent whose fate the peer has told";
    PATH_LOST_COPIES: Counter "keiro_path_lost_aggregate_copies_total" PATH,
        "Copies of aggregates, or parity packets in their place, lost";
    PATH_LEFT_OUT_COPIES: Counter "keiro_path_left_out_aggregate_copies_total" PATH,
        "Copies of aggregates, or parity packets in their place, that other paths had no room for";
    PATH_RECEIVED_AGGREGATES: Counter "keiro_path_received_aggregates_total" PATH,
        "Aggregates of the peer received, each once";
    PATH_RECEIVED_COPIES: Counter "keiro_path_received_aggregate_copies_total" PATH,
        "Copies of the peer's aggregates, or parity packets in their place, received";
    PATH_RECOVERED_AGGREGATES: Counter "keiro_path_recovered_aggregates_total" PATH,
        "Aggregates of the peer that were lost and that parity gave back";
    PATH_RECEIVER_OVERFLOWS: Counter "keiro_path_receiver_overflow_packets_total"
        &["path", "peer", "where"],
        "Packets that the peer dropped in receiving, by where: its socket or the rest of its system";
    PATH_AGGREGATION_DECISIONS: Counter "keiro_path_aggregation_decisions_total"
        &["path", "peer", "cause"],
        "Decisions of the aggregation's controller, by cause, those that change nothing included";
    PATH_SWITCHES: Counter "keiro_path_switches_total" &["app", "reason"],
        "Moves of an application to another path, by reason";

    PATH_SOCKET_DROPS: Counter "keiro_path_socket_dropped_packets_total" &["path"],
        "Packets dropped here because the socket's receive buffer was full; not the path's loss";
    PATH_SOCKET_SEND_FAILURES: Counter "keiro_path_socket_send_failures_total" &["path"],
        "Batches of packets that the system did not take for sending";

    APP_ON_PATH: Gauge "keiro_app_on_path" &["app", "path"],
        "1 for the path that the application takes, 0 for the others";
    APP_TARGET: Gauge "keiro_app_target_seconds" APP,
        "Target delay";
    APP_TARGET_MET: Gauge "keiro_app_target_met" APP,
        "1 if the application gets what it demands, else 0";
    APP_DELAY_PREDICTED: Gauge "keiro_app_delay_predicted_seconds" APP,
        "Predicted mean delay";
    APP_DELAY: Histogram "keiro_app_delay_seconds" APP,
        "Delay of messages from taking them over until the peer has them whole";
    APP_QUEUE: Gauge "keiro_app_queue_bytes" APP,
        "Bytes that wait to be sent";
    APP_MESSAGES: Counter "keiro_app_messages_total" &["app", "outcome"],
        "Messages by outcome: sent, delivered, expired, refused or received";
    APP_OPEN_CONNECTIONS: Gauge "keiro_app_open_connections" &["app", "side"],
        "TCP connections that are open, by side: of clients at the listeners or to servers at the forward";
    APP_CONNECTIONS: Counter "keiro_app_connections_total" &["app", "side", "outcome"],
        "TCP connections by side and outcome: accepted, refused, reset, failed or forbidden";
    APP_SENT_BYTES: Counter "keiro_app_sent_bytes_total" APP,
        "Bytes of messages taken over";
    APP_RECEIVED_BYTES: Counter "keiro_app_received_bytes_total" APP,
        "Bytes of messages from the peer";

    PLANS: Counter "keiro_plans_total" &["result"],
        "Plans made by result: unchanged, changed or infeasible";
    PLANNING_TIME: Gauge "keiro_planning_seconds" &[],
        "How long the last plan took";

    TENANT_WEIGHT: Gauge "keiro_tenant_weight" TENANT,
        "Weight of the tenant";
    TENANT_DEVICE_UP: Gauge "keiro_tenant_device_up" TENANT,
        "1 if the tenant's device is there and up, else 0";
    TENANT_ENTERED_PACKETS: Counter "keiro_tenant_entered_packets_total" TENANT,
        "IP packets that entered by the tenant's device";
    TENANT_ENTERED_BYTES: Counter "keiro_tenant_entered_bytes_total" TENANT,
        "Bytes that entered by the tenant's device";
    TENANT_LEFT_PACKETS: Counter "keiro_tenant_left_packets_total" TENANT,
        "IP packets that left by the tenant's device, those put together counted once";
    TENANT_LEFT_BYTES: Counter "keiro_tenant_left_bytes_total" TENANT,
        "Bytes that left by the tenant's device";
    TENANT_DROPPED_PACKETS: Counter "keiro_tenant_dropped_packets_total" &["tenant", "reason"],
        "IP packets of the tenant that were dropped, by reason";
    TENANT_NOT_FORWARDED_PACKETS: Counter "keiro_tenant_not_forwarded_packets_total" &["tenant", "kind"],
        "IP packets that entered and are of their link alone, by kind: multicast or link_local";
    TENANT_WINDOW: Gauge "keiro_tenant_window_bytes" TENANT_PATH,
        "Wire bytes of the tenant that may be on the way";
    TENANT_IN_FLIGHT: Gauge "keiro_tenant_in_flight_bytes" TENANT_PATH,
        "Wire bytes of the tenant that are on the way";
    TENANT_RATE: Gauge "keiro_tenant_rate_bits_per_second" TENANT_PATH,
        "What the tenant's controller lets leave";
    TENANT_ROUND_TRIP: Gauge "keiro_tenant_rtt_seconds" TENANT_PATH,
        "Smoothed round-trip time of the tenant's packets";
    TENANT_QUEUE: Gauge "keiro_tenant_queue_bytes" TENANT_PATH,
        "Bytes of the tenant that wait for the path";
    TENANT_SENT_PACKETS: Counter "keiro_tenant_sent_packets_total" TENANT_PATH,
        "Wire packets sent for the tenant";
    TENANT_SENT_BYTES: Counter "keiro_tenant_sent_bytes_total" TENANT_PATH,
        "Wire bytes sent for the tenant";
    TENANT_LOST_PACKETS: Counter "keiro_tenant_lost_packets_total" TENANT_PATH,
        "Wire packets of the tenant that were lost";

    HISTORY_WRITES: Counter "keiro_history_writes_total" &["result"],
        "Minutes handed to the history by result: written, failed or dropped";
    HISTORY_SIZE: Gauge "keiro_history_size_bytes" &[],
        "Size of the history's file";

    PACING_LATENESS: Gauge "keiro_pacing_lateness_seconds" &["quantile"],
        "How long after the pacer's time packets leave, by quantile, since the start";

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
        assert_eq!(PATH_SENT_BYTES.registered_name(), "keiro_path_sent_bytes");
        assert_eq!(BUILD.registered_name(), "keiro_build");
        assert_eq!(PATH_RTT.registered_name(), "keiro_path_rtt_seconds");
    }

    #[test]
    fn buckets_rise() {
        assert!(DELAY_BUCKETS_SECONDS.is_sorted());
    }
}
