//! Alerts for Prometheus, each with series for which it fires and for which it does not.

use crate::query::Query;

/// How soon someone should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Traffic does not pass.
    Critical,
    /// A need is not met, or will not be.
    Warning,
    /// Worth to know.
    Info,
}

#[derive(Clone, Debug)]
pub struct Alert {
    pub name: &'static str,
    pub query: Query,
    /// How long the query must have a result, as Prometheus writes it: `5m`.
    pub lasting: &'static str,
    pub severity: Severity,
    /// One line, with labels as `{{ $labels.app }}`.
    pub summary: &'static str,
    /// What to do.
    pub description: &'static str,
    /// Series, with a value a minute in promtool's notation, for which it fires at the end of half an hour.
    pub fires_for: &'static [(&'static str, &'static str)],
    /// The same for which it does not.
    pub silent_for: &'static [(&'static str, &'static str)],
}

/// The name of the group of all alerts.
const GROUP: &str = "keiro";

/// The file of rules.
pub fn rules() -> String {
    let mut text = String::from(
        "# Alerts for gateways and egress daemons of Keiro; made from the declarations of its metrics, see\n\
         # docs/operations.md. `promtool check rules` accepts it.\ngroups:\n",
    );
    text.push_str(&format!("  - name: {GROUP}\n    rules:\n"));
    for alert in all() {
        text.push_str(&format!("      - alert: {}\n", alert.name));
        text.push_str(&format!("        expr: {}\n", quoted(alert.query.text())));
        text.push_str(&format!("        for: {}\n", alert.lasting));
        text.push_str(&format!(
            "        labels:\n          severity: {}\n",
            alert.severity.name()
        ));
        text.push_str(&format!(
            "        annotations:\n          summary: {}\n",
            quoted(alert.summary)
        ));
        text.push_str(&format!(
            "          description: {}\n",
            quoted(alert.description)
        ));
    }
    text
}

/// Tests for `promtool test rules` of the rules in `file`.
pub fn tests(file: &str) -> String {
    let mut text = format!(
        "rule_files:\n  - {}\nevaluation_interval: 1m\ntests:\n",
        quoted(file)
    );
    for alert in all() {
        for (series, fires) in [(alert.fires_for, true), (alert.silent_for, false)] {
            text.push_str("  - interval: 1m\n    input_series:\n");
            for (series, values) in series {
                text.push_str(&format!("      - series: {}\n", quoted(series)));
                text.push_str(&format!("        values: {}\n", quoted(values)));
            }
            text.push_str("    promql_expr_test:\n");
            let count = format!(
                "count(ALERTS{{alertname=\"{}\",alertstate=\"firing\"}})",
                alert.name
            );
            text.push_str(&format!(
                "      - expr: {}\n        eval_time: 30m\n",
                quoted(&count)
            ));
            text.push_str(match fires {
                true => "        exp_samples:\n          - labels: '{}'\n            value: 1\n",
                false => "        exp_samples: []\n",
            });
        }
    }
    text
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// As a string of YAML: its escapes are those of JSON.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text is JSON")
}

/// All of them, the gateways' first.
pub fn all() -> Vec<Alert> {
    let mut all = reachability();
    all.extend(needs());
    all.extend(configuration());
    all.extend(drops());
    all.extend(egress());
    all
}

/// What does not answer.
fn reachability() -> Vec<Alert> {
    vec![
        Alert {
            name: "KeiroGatewayDown",
            query: Query::own(r#"up{job=~"keiro.*"} == 0"#),
            lasting: "2m",
            severity: Severity::Critical,
            summary: "{{ $labels.instance }} cannot be read",
            description: "The gateway does not run, or its metrics page cannot be reached: systemctl status keiro-gateway.",
            fires_for: &[(r#"up{job="keiro",instance="a"}"#, "0x30")],
            silent_for: &[
                (r#"up{job="keiro",instance="a"}"#, "1x30"),
                (r#"up{job="node",instance="a"}"#, "0x30"),
            ],
        },
        Alert {
            name: "KeiroPeerDown",
            query: Query::own("keiro_peer_up == 0"),
            lasting: "2m",
            severity: Severity::Critical,
            summary: "peer {{ $labels.peer }} is not reached from {{ $labels.instance }}",
            description: "No path to it is up, or there is no session: keiro doctor at both ends, keiro show peer.",
            fires_for: &[(r#"keiro_peer_up{peer="p"}"#, "0x30")],
            silent_for: &[(r#"keiro_peer_up{peer="p"}"#, "1x28 0x2")],
        },
        Alert {
            name: "KeiroPathDown",
            query: Query::own("keiro_path_up == 0"),
            lasting: "2m",
            severity: Severity::Warning,
            summary: "path {{ $labels.path }} to {{ $labels.peer }} is down at {{ $labels.instance }}",
            description: "It carries no traffic; keiro show path has the diagnosis, keiro doctor what corrects it.",
            fires_for: &[(r#"keiro_path_up{path="w",peer="p"}"#, "1x10 0x20")],
            silent_for: &[(r#"keiro_path_up{path="w",peer="p"}"#, "1x30")],
        },
        Alert {
            name: "KeiroPathFlaps",
            // The hold-down grows with the failures of the last minutes; four in an hour are no accident.
            query: Query::own("increase(keiro_path_outages_total[1h]) > 3"),
            lasting: "0m",
            severity: Severity::Warning,
            summary: "path {{ $labels.path }} to {{ $labels.peer }} went silent {{ $value | humanize }} times in an hour",
            description: "The line comes and goes, so that applications are held off it; look at modem, radio or provider.",
            fires_for: &[(r#"keiro_path_outages_total{path="w",peer="p"}"#, "0+1x30")],
            silent_for: &[(
                r#"keiro_path_outages_total{path="w",peer="p"}"#,
                "0x20 1x10",
            )],
        },
        Alert {
            name: "KeiroPathBrownout",
            // A path that is up and loses a twentieth is of use to hardly any application without repair.
            query: Query::own(
                "keiro_path_loss_ratio > 0.05 and on (instance, path, peer) keiro_path_up == 1",
            ),
            lasting: "5m",
            severity: Severity::Warning,
            summary: "path {{ $labels.path }} to {{ $labels.peer }} loses {{ $value | humanizePercentage }}",
            description: "It is up and loses packets: keiro show path; what is not repaired leaves it if another path is better.",
            fires_for: &[
                (r#"keiro_path_loss_ratio{path="w",peer="p"}"#, "0.2x30"),
                (r#"keiro_path_up{path="w",peer="p"}"#, "1x30"),
            ],
            silent_for: &[
                (r#"keiro_path_loss_ratio{path="w",peer="p"}"#, "0.2x30"),
                (r#"keiro_path_up{path="w",peer="p"}"#, "0x30"),
            ],
        },
        Alert {
            name: "KeiroPathSlow",
            query: Query::own(
                "keiro_path_pacing_rate_bits_per_second < 0.5 * keiro_path_configured_rate_bits_per_second \
                 and on (instance, path, peer) keiro_path_up == 1",
            ),
            lasting: "15m",
            severity: Severity::Warning,
            summary: "path {{ $labels.path }} to {{ $labels.peer }} carries less than half of its configured rate",
            description: "The line is slower than configured, or others use it: keiro show path, keiro measure.",
            fires_for: &[
                (
                    r#"keiro_path_pacing_rate_bits_per_second{path="w",peer="p"}"#,
                    "1000x30",
                ),
                (
                    r#"keiro_path_configured_rate_bits_per_second{path="w",peer="p"}"#,
                    "5000x30",
                ),
                (r#"keiro_path_up{path="w",peer="p"}"#, "1x30"),
            ],
            silent_for: &[
                (
                    r#"keiro_path_pacing_rate_bits_per_second{path="w",peer="p"}"#,
                    "4000x30",
                ),
                (
                    r#"keiro_path_configured_rate_bits_per_second{path="w",peer="p"}"#,
                    "5000x30",
                ),
                (r#"keiro_path_up{path="w",peer="p"}"#, "1x30"),
            ],
        },
    ]
}

/// What applications and tenants do not get.
fn needs() -> Vec<Alert> {
    vec![
        Alert {
            name: "KeiroTargetMissed",
            query: Query::own("keiro_app_target_met == 0"),
            lasting: "5m",
            severity: Severity::Warning,
            summary: "{{ $labels.app }} misses its latency target at {{ $labels.instance }}",
            description: "keiro explain APP says why, and what another path would give; keiro plan --what-if what would help.",
            fires_for: &[(r#"keiro_app_target_met{app="a"}"#, "1x10 0x20")],
            silent_for: &[(r#"keiro_app_target_met{app="a"}"#, "1x26 0x4")],
        },
        Alert {
            name: "KeiroMessagesExpire",
            query: Query::own("rate(keiro_app_expired_messages_total[5m]) > 0"),
            lasting: "10m",
            severity: Severity::Warning,
            summary: "messages of {{ $labels.app }} are given up at the end of their lifetime",
            description: "More is sent than paths carry, or no path is up: keiro show app, keiro explain.",
            fires_for: &[(r#"keiro_app_expired_messages_total{app="a"}"#, "0+3x30")],
            silent_for: &[(r#"keiro_app_expired_messages_total{app="a"}"#, "7x30")],
        },
        Alert {
            name: "KeiroTenantDeviceDown",
            query: Query::own("keiro_tenant_device_up == 0"),
            lasting: "1m",
            severity: Severity::Critical,
            summary: "tenant {{ $labels.tenant }} has no device at {{ $labels.instance }}",
            description: "It carries no IP packets: keiro show tenant says what has become of its device.",
            fires_for: &[(r#"keiro_tenant_device_up{tenant="t"}"#, "0x30")],
            silent_for: &[(r#"keiro_tenant_device_up{tenant="t"}"#, "1x30")],
        },
    ]
}

/// What an operator has to put right.
fn configuration() -> Vec<Alert> {
    vec![
        Alert {
            name: "KeiroConfigurationRejected",
            query: Query::own(r#"increase(keiro_reloads_total{result="rejected"}[15m]) > 0"#),
            lasting: "0m",
            severity: Severity::Warning,
            summary: "{{ $labels.instance }} refused a new configuration",
            description: "The old one stays in force: keiro status has the reason, keiro config check every problem.",
            fires_for: &[(r#"keiro_reloads_total{result="rejected"}"#, "0x20 1x10")],
            silent_for: &[
                (r#"keiro_reloads_total{result="rejected"}"#, "1x30"),
                (r#"keiro_reloads_total{result="accepted"}"#, "0x20 1x10"),
            ],
        },
        Alert {
            name: "KeiroNetworkDocumentsRefused",
            query: Query::own(
                r#"increase(keiro_network_documents_total{result="refused"}[15m]) > 0"#,
            ),
            lasting: "0m",
            severity: Severity::Warning,
            summary: "{{ $labels.instance }} refused a document of its network",
            description: "What a hub or branch sends cannot be taken; the log has the reason.",
            fires_for: &[(
                r#"keiro_network_documents_total{result="refused"}"#,
                "0x20 1x10",
            )],
            silent_for: &[(
                r#"keiro_network_documents_total{result="received"}"#,
                "0x20 1x10",
            )],
        },
        Alert {
            name: "KeiroClockBehind",
            // A handshake in five minutes is a copy of a packet; a peer tries every five seconds.
            query: Query::own(
                r#"rate(keiro_dropped_packets_total{reason="stale_handshake"}[5m]) > 0.05"#,
            ),
            lasting: "5m",
            severity: Severity::Warning,
            summary: "handshakes at {{ $labels.instance }} are older than earlier ones",
            description: "The clock of a peer has gone back, so that it is refused: the event clock_behind names it. \
                          Set its clock.",
            fires_for: &[(
                r#"keiro_dropped_packets_total{reason="stale_handshake"}"#,
                "0+12x30",
            )],
            silent_for: &[(
                r#"keiro_dropped_packets_total{reason="stale_handshake"}"#,
                "0+1x30",
            )],
        },
        Alert {
            name: "KeiroWrongKey",
            query: Query::own(
                r#"rate(keiro_dropped_packets_total{reason=~"foreign_key|bad_mac"}[5m]) > 0.05"#,
            ),
            lasting: "5m",
            severity: Severity::Info,
            summary: "handshakes with a wrong key come to {{ $labels.instance }}",
            description: "A gateway with another key, or a stranger: the event wrong_key says which.",
            fires_for: &[(
                r#"keiro_dropped_packets_total{reason="foreign_key"}"#,
                "0+12x30",
            )],
            silent_for: &[(
                r#"keiro_dropped_packets_total{reason="replayed"}"#,
                "0+12x30",
            )],
        },
        Alert {
            name: "KeiroBudgetNearlyUsed",
            query: Query::own("keiro_uplink_budget_used_bytes / keiro_uplink_budget_bytes > 0.8"),
            lasting: "5m",
            severity: Severity::Info,
            summary: "path {{ $labels.path }} of {{ $labels.instance }} has used most of its budget of the month",
            description: "At the budget only essential applications use it, without another path: keiro show path.",
            fires_for: &[
                (r#"keiro_uplink_budget_used_bytes{path="lte"}"#, "9x30"),
                (r#"keiro_uplink_budget_bytes{path="lte"}"#, "10x30"),
            ],
            silent_for: &[
                (r#"keiro_uplink_budget_used_bytes{path="lte"}"#, "7x30"),
                (r#"keiro_uplink_budget_bytes{path="lte"}"#, "10x30"),
            ],
        },
        Alert {
            name: "KeiroHistoryNotWritten",
            query: Query::own(
                r#"increase(keiro_history_writes_total{result=~"failed|dropped"}[15m]) > 0"#,
            ),
            lasting: "5m",
            severity: Severity::Info,
            summary: "{{ $labels.instance }} does not keep what it measures",
            description: "The disk is full or slow: keiro status has the reason in history.",
            fires_for: &[(r#"keiro_history_writes_total{result="failed"}"#, "0+1x30")],
            silent_for: &[(r#"keiro_history_writes_total{result="written"}"#, "0+1x30")],
        },
    ]
}

/// What is dropped, and where this machine is the bottleneck.
fn drops() -> Vec<Alert> {
    vec![
        Alert {
            name: "KeiroReceiveBufferFull",
            query: Query::own("rate(keiro_path_socket_dropped_packets_total[5m]) > 0"),
            lasting: "10m",
            severity: Severity::Warning,
            summary: "{{ $labels.instance }} drops packets of path {{ $labels.path }}",
            description: "The machine does not keep up: its processor, or net.core.rmem_max (CAP_NET_ADMIN).",
            fires_for: &[(
                r#"keiro_path_socket_dropped_packets_total{path="w"}"#,
                "0+60x30",
            )],
            silent_for: &[(
                r#"keiro_path_socket_dropped_packets_total{path="w"}"#,
                "60x30",
            )],
        },
        Alert {
            name: "KeiroPacketsFailToLeave",
            query: Query::own(
                "rate(keiro_path_socket_failed_batches_total[5m]) + rate(keiro_path_socket_too_large_batches_total[5m]) > 0",
            ),
            lasting: "10m",
            severity: Severity::Warning,
            summary: "the system does not send packets of path {{ $labels.path }} at {{ $labels.instance }}",
            description: "A route, a firewall or the MTU of the interface: keiro show path, ip route get.",
            fires_for: &[
                (
                    r#"keiro_path_socket_failed_batches_total{path="w"}"#,
                    "0+6x30",
                ),
                (
                    r#"keiro_path_socket_too_large_batches_total{path="w"}"#,
                    "0x30",
                ),
            ],
            silent_for: &[
                (
                    r#"keiro_path_socket_failed_batches_total{path="w"}"#,
                    "6x30",
                ),
                (
                    r#"keiro_path_socket_too_large_batches_total{path="w"}"#,
                    "0x30",
                ),
            ],
        },
        Alert {
            name: "KeiroPacketsDepartLate",
            query: Query::own(r#"keiro_pacing_lateness_seconds{quantile="0.99"} > 0.0002"#),
            lasting: "15m",
            severity: Severity::Info,
            summary: "packets leave {{ $labels.instance }} later than planned",
            description: "Too few processors, or busy ones: keiro gateway --realtime and --cpu.",
            fires_for: &[(
                r#"keiro_pacing_lateness_seconds{quantile="0.99"}"#,
                "0.001x30",
            )],
            silent_for: &[(r#"keiro_pacing_lateness_seconds{quantile="1"}"#, "0.001x30")],
        },
        Alert {
            name: "KeiroTenantPacketsRefused",
            query: Query::own(
                r#"rate(keiro_tenant_dropped_packets_total{reason=~"spoofed|no_route|peer_spoofed|peer_foreign|queue_unknown_at_peer|device"}[5m]) > 1"#,
            ),
            lasting: "10m",
            severity: Severity::Warning,
            summary: "packets of tenant {{ $labels.tenant }} are dropped at {{ $labels.instance }}: {{ $labels.reason }}",
            description: "Prefixes, routes or ids differ at the two ends: docs/operations.md, Tenants.",
            fires_for: &[(
                r#"keiro_tenant_dropped_packets_total{tenant="t",reason="no_route"}"#,
                "0+600x30",
            )],
            silent_for: &[(
                r#"keiro_tenant_dropped_packets_total{tenant="t",reason="queue_delayed"}"#,
                "0+600x30",
            )],
        },
        Alert {
            name: "KeiroPacketsUnauthentic",
            query: Query::own(
                r#"sum by (instance) (rate(keiro_dropped_packets_total{reason=~"unauthentic|malformed|over_budget|rate_limited"}[5m])) > 100"#,
            ),
            lasting: "10m",
            severity: Severity::Info,
            summary: "{{ $labels.instance }} drops {{ $value | humanize }} packets per second that are not a peer's, or too many",
            description: "An attack, or a peer that works wrongly: keiro show peer has the counts by peer.",
            fires_for: &[(
                r#"keiro_dropped_packets_total{instance="a",reason="unauthentic"}"#,
                "0+60000x30",
            )],
            silent_for: &[(
                r#"keiro_dropped_packets_total{instance="a",reason="unauthentic"}"#,
                "0+60x30",
            )],
        },
    ]
}

/// The daemons of the egress suite.
fn egress() -> Vec<Alert> {
    vec![
        Alert {
            name: "KeiroEgressNeighbourDown",
            query: Query::own("keiro_egress_neighbour_up == 0"),
            lasting: "2m",
            severity: Severity::Critical,
            summary: "the BGP session of {{ $labels.instance }} with {{ $labels.neighbour }} is down",
            description: "Its routes are withdrawn: keiro show egress.",
            fires_for: &[(r#"keiro_egress_neighbour_up{neighbour="n"}"#, "0x30")],
            silent_for: &[(r#"keiro_egress_neighbour_up{neighbour="n"}"#, "1x30")],
        },
        Alert {
            name: "KeiroEgressPeerWithoutRoutes",
            query: Query::own("keiro_egress_peer_routes == 0"),
            lasting: "10m",
            severity: Severity::Warning,
            summary: "egress peer {{ $labels.peer }} has no routes at {{ $labels.instance }}",
            description: "Its session is down or its import policy takes nothing: keiro show egress.",
            fires_for: &[(r#"keiro_egress_peer_routes{peer="p"}"#, "0x30")],
            silent_for: &[(r#"keiro_egress_peer_routes{peer="p"}"#, "5x30")],
        },
        Alert {
            name: "KeiroEgressRefused",
            query: Query::own("increase(keiro_egress_refused_total[15m]) > 0"),
            lasting: "0m",
            severity: Severity::Warning,
            summary: "the kernel of {{ $labels.instance }} refuses changes of forwarding",
            description: "Routes of another program, or a missing module: the daemon's log has the reason.",
            fires_for: &[("keiro_egress_refused_total", "0+1x30")],
            silent_for: &[("keiro_egress_refused_total", "4x30")],
        },
        Alert {
            name: "KeiroEgressNotAdvertised",
            query: Query::own("keiro_egress_neighbour_not_advertised > 0"),
            lasting: "10m",
            severity: Severity::Warning,
            summary: "{{ $value | humanize }} destinations are not advertised to {{ $labels.neighbour }}",
            description: "They do not fit into a message, or the neighbour lacks a capability: keiro explain PREFIX.",
            fires_for: &[(
                r#"keiro_egress_neighbour_not_advertised{neighbour="n"}"#,
                "3x30",
            )],
            silent_for: &[(
                r#"keiro_egress_neighbour_not_advertised{neighbour="n"}"#,
                "0x30",
            )],
        },
    ]
}
