//! The dashboards: overview, application, path, tenant, egress.

use keiro_egress::stats::{
    ComparisonStats, EgressPeerStats, EgressStats, NeighbourStats, SteeringStats,
};
use keiro_flowstats::SegmentStats;
use keiro_stats::{
    AggregationStats, AppStats, CapacityStats, PathSocketStats, PathStats, StatSet,
    TcpForwardStats, TcpListenerStats, TenantPathStats, TenantPeerStats, TenantStats,
    UdpForwardStats, UdpListenerStats,
};

use crate::{
    board::{Board, Panel},
    catalogue,
};

/// Series of the gateways that are chosen.
const GATEWAY: &str = r#"instance=~"$instance""#;

/// All of them.
pub fn all() -> Vec<Board> {
    vec![overview(), application(), path(), tenant(), egress()]
}

fn overview() -> Board {
    Board::new(
        "keiro-overview",
        "Keiro: overview",
        "Targets, paths and peers of all gateways, and what they drop.",
    )
    .variable("instance", "keiro_build_info")
    .row(
        "Now",
        [
            Panel::number("targets missed", r#"count(keiro_app_target_met{instance=~"$instance"} == 0) or vector(0)"#),
            Panel::number("paths down", r#"count(keiro_path_up{instance=~"$instance"} == 0) or vector(0)"#),
            Panel::number("peers down", r#"count(keiro_peer_up{instance=~"$instance"} == 0) or vector(0)"#),
            Panel::number("devices down", r#"count(keiro_tenant_device_up{instance=~"$instance"} == 0) or vector(0)"#),
            Panel::number("gateways", r#"count(keiro_build_info{instance=~"$instance"})"#),
            Panel::number("shortest uptime", r#"min(keiro_uptime_seconds{instance=~"$instance"})"#),
        ],
    )
    .row(
        "Targets and paths",
        [
            Panel::states("target met", r#"keiro_app_target_met{instance=~"$instance"}"#, "{{instance}} {{app}}"),
            Panel::states("path up", r#"keiro_path_up{instance=~"$instance"}"#, "{{instance}} {{path}} {{peer}}"),
            Panel::states("peer up", r#"keiro_peer_up{instance=~"$instance"}"#, "{{instance}} {{peer}}"),
            Panel::lines(
                "moves of applications",
                &[(
                    r#"sum by (instance, reason) (increase(keiro_path_switches_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{instance}} {{reason}}",
                )],
            )
            .in_unit("short"),
        ],
    )
    .row(
        "Traffic",
        [
            Panel::lines(
                "sent by path",
                &[(r#"keiro_path_sent_rate_bits_per_second{instance=~"$instance"}"#, "{{instance}} {{path}} {{peer}}")],
            ),
            Panel::lines(
                "loss by path",
                &[(r#"keiro_path_loss_ratio{instance=~"$instance"}"#, "{{instance}} {{path}} {{peer}}")],
            ),
            Panel::lines(
                "budgets of the month",
                &[
                    (r#"keiro_uplink_budget_used_bytes{instance=~"$instance"}"#, "{{instance}} {{path}} used"),
                    (r#"keiro_uplink_budget_bytes{instance=~"$instance"}"#, "{{instance}} {{path}} budget"),
                ],
            ),
        ],
    )
    .row(
        "What is dropped and refused",
        [
            lines_by(
                "packets from the network, by reason",
                "keiro_dropped_packets_total",
                "instance, reason",
                "{{instance}} {{reason}}",
            ),
            lines_by(
                "packets of tenants, by reason",
                "keiro_tenant_dropped_packets_total",
                "instance, tenant, reason",
                "{{instance}} {{tenant}} {{reason}}",
            ),
            lines_by(
                "full receive buffers",
                "keiro_path_socket_dropped_packets_total",
                "instance, path",
                "{{instance}} {{path}}",
            ),
            Panel::lines(
                "departures later than planned",
                &[(r#"keiro_pacing_lateness_seconds{instance=~"$instance"}"#, "{{instance}} {{quantile}}")],
            ),
        ],
    )
    .row(
        "The gateway itself",
        [
            lines_by("reloads", "keiro_reloads_total", "instance, result", "{{instance}} {{result}}"),
            lines_by("plans", "keiro_plans_total", "instance, result", "{{instance}} {{result}}"),
            Panel::lines("time of the last plan", &[(r#"keiro_planning_seconds{instance=~"$instance"}"#, "{{instance}}")]),
            lines_by("history", "keiro_history_writes_total", "instance, result", "{{instance}} {{result}}"),
            lines_by(
                "documents of the network",
                "keiro_network_documents_total",
                "instance, result",
                "{{instance}} {{result}}",
            ),
        ],
    )
}

fn application() -> Board {
    let chosen = format!(r#"{GATEWAY},app=~"$app""#);
    Board::new(
        "keiro-application",
        "Keiro: application",
        "Delay against target and forecast, path, messages and connections.",
    )
    .variable("instance", "keiro_build_info")
    .variable("app", "keiro_app_sent_messages_total")
    .row(
        "Delay",
        [
            Panel::lines(
                "measured delay and target",
                &[
                    (&quantile("0.5", &chosen), "{{app}} median"),
                    (&quantile("0.99", &chosen), "{{app}} p99"),
                    (&format!("keiro_app_latency_target_seconds{{{chosen}}}"), "{{app}} target"),
                    (&format!("keiro_app_predicted_delay_seconds{{{chosen}}}"), "{{app}} predicted mean"),
                ],
            ),
            Panel::states("target met", &format!("keiro_app_target_met{{{chosen}}}"), "{{app}}"),
            Panel::states("on path", &format!("keiro_app_on_path{{{chosen}}}"), "{{app}} {{path}}"),
            Panel::lines(
                "moves",
                &[(
                    &format!("sum by (app, reason) (increase(keiro_path_switches_total{{{chosen}}}[$__rate_interval]))"),
                    "{{app}} {{reason}}",
                )],
            )
            .in_unit("short"),
        ],
    )
    .row("Figures", figures::<AppStats>(&chosen))
    .row("UDP listeners", figures::<UdpListenerStats>(&chosen))
    .row("UDP forwards", figures::<UdpForwardStats>(&chosen))
    .row("TCP listeners", figures::<TcpListenerStats>(&chosen))
    .row("TCP forwards", figures::<TcpForwardStats>(&chosen))
}

fn path() -> Board {
    let chosen = format!(r#"{GATEWAY},path=~"$path",peer=~"$peer""#);
    Board::new(
        "keiro-path",
        "Keiro: path",
        "Delay, loss, capacity and use of paths; aggregation; sockets.",
    )
    .variable("instance", "keiro_build_info")
    .variable("path", "keiro_path_up")
    .variable("peer", "keiro_path_up")
    .row(
        "State",
        [
            Panel::states(
                "up",
                &format!("keiro_path_up{{{chosen}}}"),
                "{{path}} {{peer}}",
            ),
            Panel::lines(
                "capacity and use",
                &[
                    (
                        &format!("keiro_path_capacity_rate_bits_per_second{{{chosen}}}"),
                        "{{path}} {{peer}} capacity",
                    ),
                    (
                        &format!("keiro_path_pacing_rate_bits_per_second{{{chosen}}}"),
                        "{{path}} {{peer}} pacing",
                    ),
                    (
                        &format!("keiro_path_sent_rate_bits_per_second{{{chosen}}}"),
                        "{{path}} {{peer}} sent",
                    ),
                    (
                        &format!("keiro_path_cross_traffic_bits_per_second{{{chosen}}}"),
                        "{{path}} {{peer}} others",
                    ),
                ],
            ),
            Panel::lines(
                "round trip",
                &[
                    (
                        &format!("keiro_path_srtt_seconds{{{chosen}}}"),
                        "{{path}} {{peer}}",
                    ),
                    (
                        &format!("keiro_path_base_rtt_seconds{{{chosen}}}"),
                        "{{path}} {{peer}} without queues",
                    ),
                ],
            ),
            Panel::lines(
                "loss",
                &[(
                    &format!("keiro_path_loss_ratio{{{chosen}}}"),
                    "{{path}} {{peer}}",
                )],
            ),
        ],
    )
    .row("Figures", figures::<PathStats>(&chosen))
    .row("Capacity", figures::<CapacityStats>(&chosen))
    .row(
        "Sockets",
        figures::<PathSocketStats>(&format!(r#"{GATEWAY},path=~"$path""#)),
    )
    .row("Aggregation", figures::<AggregationStats>(&chosen))
}

fn tenant() -> Board {
    let chosen = format!(r#"{GATEWAY},tenant=~"$tenant""#);
    Board::new(
        "keiro-tenant",
        "Keiro: tenant",
        "Share against weight, windows per path, drops by cause.",
    )
    .variable("instance", "keiro_build_info")
    .variable("tenant", "keiro_tenant_weight")
    .row(
        "Share",
        [
            Panel::lines(
                "share of what all tenants send, and by weight",
                &[
                    (
                        &format!(
                            "sum by (instance, tenant) (rate(keiro_tenant_path_sent_bytes_total{{{chosen}}}[$__rate_interval])) \
                             / on (instance) group_left () \
                             sum by (instance) (rate(keiro_tenant_path_sent_bytes_total{{{GATEWAY}}}[$__rate_interval]))"
                        ),
                        "{{tenant}}",
                    ),
                    (&format!("keiro_tenant_share_ratio{{{chosen}}}"), "{{tenant}} by weight"),
                ],
            )
            .in_unit("percentunit"),
            Panel::states("device up", &format!("keiro_tenant_device_up{{{chosen}}}"), "{{tenant}}"),
            Panel::lines(
                "dropped, by reason",
                &[(&format!("rate(keiro_tenant_dropped_packets_total{{{chosen}}}[$__rate_interval])"), "{{tenant}} {{reason}}")],
            ),
            Panel::lines(
                "of its link alone",
                &[(
                    &format!("rate(keiro_tenant_not_forwarded_packets_total{{{chosen}}}[$__rate_interval])"),
                    "{{tenant}} {{kind}}",
                )],
            ),
            Panel::lines(
                "TCP connections that stay packets, by reason",
                &[(
                    &format!("rate(keiro_tenant_not_split_connections_total{{{chosen}}}[$__rate_interval])"),
                    "{{tenant}} {{reason}}",
                )],
            ),
        ],
    )
    .row("Figures", figures::<TenantStats>(&chosen))
    .row("Towards peers", figures::<TenantPeerStats>(&chosen))
    .row("On paths", figures::<TenantPathStats>(&chosen))
}

fn egress() -> Board {
    Board::new(
        "keiro-egress",
        "Keiro: egress",
        "BGP sessions, egress peers and the comparison of multipath with single path; FlowStats per segment.",
    )
    .variable("instance", "keiro_egress_destinations")
    .row(
        "Sessions",
        [
            Panel::states("established", &format!("keiro_egress_neighbour_up{{{GATEWAY}}}"), "{{neighbour}}"),
            Panel::lines("routes per egress peer", &[(&format!("keiro_egress_peer_routes{{{GATEWAY}}}"), "{{peer}}")]),
        ],
    )
    .row("The daemon", figures::<EgressStats>(GATEWAY))
    .row("Neighbours", figures::<NeighbourStats>(GATEWAY))
    .row("Egress peers", figures::<EgressPeerStats>(GATEWAY))
    .row("Multipath and single path", figures::<ComparisonStats>(GATEWAY))
    .row("Steering", figures::<SteeringStats>(GATEWAY))
    .row("FlowStats", figures::<SegmentStats>(""))
}

/// A panel for each figure of a set.
fn figures<S: StatSet>(filter: &str) -> Vec<Panel> {
    let metrics = catalogue::set::<S>();
    metrics
        .iter()
        .map(|metric| Panel::of(metric, filter))
        .collect()
}

/// Rates of a counter of the chosen gateways, summed up by labels.
fn lines_by(title: &str, counter: &str, labels: &str, legend: &str) -> Panel {
    let query = format!("sum by ({labels}) (rate({counter}{{{GATEWAY}}}[$__rate_interval]))");
    Panel::lines(title, &[(&query, legend)])
}

/// Of the delays of messages.
fn quantile(quantile: &str, filter: &str) -> String {
    format!(
        "histogram_quantile({quantile}, sum by (app, le) (rate(keiro_app_delay_seconds_bucket{{{filter}}}[$__rate_interval])))"
    )
}
