//! Events in sentences, with their reasons in numbers: the gateway's log and the pages of `keiro web` show them.
//! Programs read events from `keiro monitor`.

mod severity;
mod tenant;
mod unanswered;

use std::time::Duration;

use keiro_units::Bandwidth;

pub use self::severity::{Severity, severity};
use self::tenant::tenant_sentence;
pub use self::unanswered::{UnansweredPackets, clock_behind, key_fault};
use crate::{
    config::{Class, MTU_MIN},
    protocol::{AggregationParameters, DownReason, EventKind, JudgedBy, MoveReason, PathRef, Side},
    rounded,
};

/// An event in a sentence, without its time.
pub fn sentence(kind: &EventKind) -> String {
    match kind {
        EventKind::Started { version } => format!("keiro {version} is listening"),
        EventKind::Draining { waiting_messages } => format!(
            "stopping: {waiting_messages} messages are still to be delivered, new ones are refused"
        ),
        EventKind::Reloaded { changes } => format!("reloaded: {changes}"),
        EventKind::ConfigRejected { problems, first } => config_rejected(*problems, first),
        EventKind::EventsLost { count } => format!("{count} events were lost: too many at once"),
        EventKind::Unknown => "unknown event".to_owned(),
        kind => peer_sentence(kind)
            .or_else(|| path_sentence(kind))
            .or_else(|| unanswered::sentence(kind))
            .or_else(|| aggregation_sentence(kind))
            .or_else(|| app_sentence(kind))
            .or_else(|| tenant_sentence(kind))
            .or_else(|| store_sentence(kind))
            .or_else(|| budget_sentence(kind))
            .or_else(|| network_sentence(kind))
            .unwrap_or_else(|| kind.name().to_owned()),
    }
}

fn config_rejected(problems: u64, first: &str) -> String {
    let more = match problems {
        0 | 1 => String::new(),
        several => format!("{several} problems, the first: "),
    };
    format!("reload refused, the configuration in force is unchanged; {more}{first}")
}

/// `here`: the peer and the class of the application of this name in this configuration.
fn app_mismatch(
    peer: &str,
    app: Option<&str>,
    class: Class,
    seen_by: Side,
    here: Option<(&str, Class)>,
) -> String {
    let class = class_name(class);
    match (seen_by, app, here) {
        (Side::Peer, app, _) => {
            let app = app.unwrap_or("a removed application");
            format!(
                "app_mismatch: peer {peer} takes nothing of {app}: it has no application of this name and \
                 class {class}; give it one name and class in both configurations"
            )
        }
        (Side::Us, Some(app), Some((other, _))) if other != peer => format!(
            "app_mismatch: peer {peer} sends {app}, which is an application of peer {other} here; names \
             of applications are unique, so use another name for it at both ends"
        ),
        (Side::Us, Some(app), Some((_, here))) => format!(
            "app_mismatch: peer {peer} sends {app} as class {class}, which is class {} here; give it one \
             class in both configurations",
            class_name(here)
        ),
        (Side::Us, _, _) => format!(
            "app_mismatch: peer {peer} sends an application of class {class} that is not configured here; \
             its log has the name: add it here under that name, or remove it there"
        ),
    }
}

fn class_name(class: Class) -> &'static str {
    match class {
        Class::Message => "message",
        Class::Datagram => "datagram",
        Class::Stream => "stream",
    }
}

fn peer_sentence(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::PeerUp { peer, .. } => format!("peer {peer} is up: session keys are agreed"),
        EventKind::PeerDown { peer, reason } => format!("peer {peer} is down: {}", down(*reason)),
        EventKind::VersionMismatch {
            peer,
            remote,
            peer_versions,
            our_versions,
        } => {
            let who = match peer {
                Some(peer) => format!("peer {peer} at {remote}"),
                None => format!("a gateway at {remote} that is not a peer here"),
            };
            format!(
                "version_mismatch: {who} speaks wire version {peer_versions}, this gateway speaks \
                 {our_versions}; upgrade the older of the two"
            )
        }
        EventKind::DuplicateKey {
            peer,
            served,
            other,
        } => format!(
            "two gateways use the key of peer {peer}: {served} is served, {other} is not; give each \
             gateway its own key (`keiro genkey`)"
        ),
        EventKind::AppMismatch {
            peer,
            app,
            class,
            seen_by,
            configured_peer,
            configured_class,
        } => app_mismatch(
            peer,
            app.as_deref(),
            *class,
            *seen_by,
            configured_peer.as_deref().zip(*configured_class),
        ),
        EventKind::KeyRefused { peer } => format!(
            "peer {peer} refuses this gateway: another gateway that uses the same private key is \
             served; stop it, or give this one another key (`keiro genkey`)"
        ),
        EventKind::KeyChanged { peer, key_changes } => {
            format!("peer {peer}: session keys changed, {key_changes} times so far")
        }
        _ => return None,
    })
}

fn path_sentence(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::PathUp {
            on,
            remote,
            rtt_seconds,
        } => format!(
            "{} is up: {remote} answered after {}",
            path(on),
            duration(*rtt_seconds)
        ),
        EventKind::PathDown {
            on,
            reason,
            silent_seconds,
            limit_seconds,
        } => {
            let silence = silent_seconds.zip(*limit_seconds).map(|(silent, limit)| {
                format!(" for {} (limit {})", duration(silent), duration(limit))
            });
            let silence = silence.unwrap_or_default();
            format!("{} is down: {}{silence}", path(on), down(*reason))
        }
        EventKind::LocalChanged {
            path,
            from,
            to,
            problem,
        } => local_changed(path, from.as_deref(), to.as_deref(), problem.as_deref()),
        EventKind::RemoteChanged { on, from, to } => {
            format!("{}: the peer's address is {to} (was {from})", path(on))
        }
        EventKind::MtuChanged {
            on,
            from_bytes,
            to_bytes,
        } if fell_below_base(*from_bytes, *to_bytes) => format!(
            "{}: no packets of {MTU_MIN} bytes pass, {to_bytes} do; larger ones are searched; check the MTU of the \
             line and of tunnels below it",
            path(on)
        ),
        EventKind::MtuChanged {
            on,
            from_bytes,
            to_bytes,
        } => format!(
            "{}: MTU {to_bytes} (was {from_bytes}), found by probing",
            path(on)
        ),
        _ => return None,
    })
}

fn aggregation_sentence(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::AggregationChanged {
            on,
            before,
            after,
            why,
        } => format!(
            "{}: aggregates of {} (was {}): {why}",
            path(on),
            parameters(after),
            parameters(before)
        ),
        EventKind::AggregationPaused { on, why, .. } => {
            format!("{}: aggregation is paused: {why}", path(on))
        }
        EventKind::AggregationResumed {
            on,
            bandwidth_bits_per_second,
            after,
        } => {
            let bandwidth = Bandwidth::from_bits_per_second(*bandwidth_bits_per_second);
            format!(
                "{}: aggregation is resumed at {bandwidth}: aggregates of {}",
                path(on),
                parameters(after)
            )
        }
        _ => return None,
    })
}

fn app_sentence(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::AppMoved { .. } => return app_moved(kind),
        EventKind::TargetMissed { .. } => return target_missed(kind),
        EventKind::TargetMet {
            app,
            latency_target_seconds,
            judged_by,
        } => {
            let by = match judged_by {
                Some(JudgedBy::Measurement) => ", as measured",
                Some(JudgedBy::Forecast) => ", as predicted",
                Some(JudgedBy::Equation3) => ", by equation 3 alone",
                Some(JudgedBy::Unknown) | None => "",
            };
            format!(
                "{app} meets its latency target of {} again{by}",
                duration(*latency_target_seconds)
            )
        }
        EventKind::MessageExpired {
            app,
            age_seconds,
            length_bytes,
            expired_messages,
        } => format!(
            "{app}: a message of {length_bytes} bytes expired after {}, {expired_messages} so far",
            duration(*age_seconds)
        ),
        _ => return None,
    })
}

fn app_moved(kind: &EventKind) -> Option<String> {
    let EventKind::AppMoved {
        app,
        from,
        to,
        reason,
        from_predicted_seconds,
        to_predicted_seconds,
        latency_target_seconds,
    } = kind
    else {
        return None;
    };
    let mut text = moved(app, from.as_deref(), to.as_deref(), *reason);
    let there = to_predicted_seconds.map(|by| format!("{} there", duration(by)));
    let before = from_predicted_seconds.map(|by| format!("{} where it was", duration(by)));
    let predicted: Vec<String> = there.into_iter().chain(before).collect();
    if !predicted.is_empty() {
        text.push_str(&format!(", by equation 3 {}", predicted.join(", ")));
    }
    if let Some(target) = latency_target_seconds {
        text.push_str(&format!(", latency target {}", duration(*target)));
    }
    Some(text)
}

fn target_missed(kind: &EventKind) -> Option<String> {
    let EventKind::TargetMissed {
        app,
        path,
        latency_target_seconds,
        judged_by,
        predicted_seconds,
        predicted_p99_seconds,
        paper_delay_seconds,
        p99_seconds,
    } = kind
    else {
        return None;
    };
    let on = path
        .as_ref()
        .map(|path| format!(" on {path}"))
        .unwrap_or_default();
    let mut text = format!(
        "{app} misses its latency target of {}{on}",
        duration(*latency_target_seconds)
    );
    if let Some(p99) = p99_seconds {
        text.push_str(&format!(", measured 99th percentile {}", duration(*p99)));
    }
    match (predicted_seconds, predicted_p99_seconds) {
        (Some(mean), Some(p99)) => text.push_str(&format!(
            ", predicted mean {} and 99th percentile {}",
            duration(*mean),
            duration(*p99)
        )),
        _ if *judged_by == Some(JudgedBy::Forecast) => {
            text.push_str(", the path is overloaded");
        }
        _ => {}
    }
    if *judged_by == Some(JudgedBy::Equation3) {
        let mean = paper_delay_seconds.map(|mean| format!("mean {}", duration(mean)));
        let mean = mean.unwrap_or_else(|| "the path is overloaded".to_owned());
        text.push_str(&format!(", by equation 3 alone: {mean}"));
    }
    Some(text)
}

fn store_sentence(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::StoreLost { reason } => {
            format!("the plan store cannot be used, the last plan stays in force: {reason}")
        }
        EventKind::StoreConnected { lost_seconds } => match lost_seconds {
            Some(lost) => format!("the plan store answers again after {lost:.1} s"),
            None => "the plan store answers".to_owned(),
        },
        EventKind::StoreNotice { text } => format!("plan store: {text}"),
        _ => return None,
    })
}

fn budget_sentence(kind: &EventKind) -> Option<String> {
    let bytes = rounded::bytes;
    Some(match kind {
        EventKind::BudgetWarning {
            path,
            used_bytes,
            budget_bytes,
            ends,
        } => format!(
            "path {path}: {} of its budget of {} for the month are used up, which ends on {ends}",
            bytes(*used_bytes),
            bytes(*budget_bytes)
        ),
        EventKind::BudgetSpent {
            path,
            budget_bytes,
            ends,
            ..
        } => format!(
            "path {path}: its budget of {} for the month is used up; until {ends} only keepalives remain, and essential \
             applications that have no other path; raise monthly_budget if the line may carry more",
            bytes(*budget_bytes)
        ),
        EventKind::BudgetRenewed { path, budget_bytes } => format!(
            "path {path}: a new month has begun, with a budget of {}",
            bytes(*budget_bytes)
        ),
        _ => return None,
    })
}

fn network_sentence(kind: &EventKind) -> Option<String> {
    let from = |remote: &Option<String>| match remote {
        Some(remote) => format!(" from {remote}"),
        None => String::new(),
    };
    Some(match kind {
        EventKind::SiteJoined {
            site,
            invitation,
            remote,
            prefixes,
            ..
        } => {
            let from = from(remote);
            let prefixes = prefixes.join(", ");
            match invitation {
                Some(_) => format!("site {site} has joined{from} with {prefixes}"),
                None => format!("site {site} has asked again{from} for the answer to its join"),
            }
        }
        EventKind::PeerRenamed { peer, before } => {
            format!("peer {before} is {peer} now; its session goes on")
        }
        EventKind::JoinRefused {
            peer,
            remote,
            reason,
            text,
        } => format!("join refused ({reason}): {peer}{}: {text}", from(remote)),
        _ => return None,
    })
}

fn moved(app: &str, from: Option<&str>, to: Option<&str>, reason: MoveReason) -> String {
    let why = match reason {
        MoveReason::First => "the first path",
        MoveReason::PathDown => "its path went down",
        MoveReason::PathUp => "a preferred path came up",
        MoveReason::Plan => "the plan has changed",
        MoveReason::Pin => "it is pinned by the configuration",
        MoveReason::Operator => "an operator assigned it",
        MoveReason::Unknown => "for an unknown reason",
    };
    match (from, to) {
        (None, Some(to)) => format!("{app} takes {to}: {why}"),
        (Some(from), Some(to)) => format!("{app} moves from {from} to {to}: {why}"),
        (Some(from), None) => format!("{app} leaves {from} and has no path: {why}"),
        (None, None) => format!("{app} has no path: {why}"),
    }
}

/// A path has turned out to carry less than every path of IPv6 does.
pub(crate) fn fell_below_base(from_bytes: u64, to_bytes: u64) -> bool {
    from_bytes >= MTU_MIN && to_bytes < MTU_MIN
}

fn down(reason: DownReason) -> &'static str {
    match reason {
        DownReason::Silent => "no packet was received",
        DownReason::LocalError => "it has no local address",
        DownReason::PeerClosed => "the peer closed the session",
        DownReason::Removed => "it was removed from the configuration",
        DownReason::NotValidated => "path validation failed",
        DownReason::TooSmall => "short packets pass and long ones do not (its MTU)",
        DownReason::KeysExpired => "its keys have expired",
        DownReason::Stopping => "this gateway is stopping",
        DownReason::Unknown => "for an unknown reason",
    }
}

fn local_changed(
    path: &str,
    from: Option<&str>,
    to: Option<&str>,
    problem: Option<&str>,
) -> String {
    let what = match (from, to) {
        (Some(from), Some(to)) if from == to => match problem {
            Some(_) => format!("path {path} leaves from {to}"),
            None => format!("path {path}, which leaves from {to}, has a default route"),
        },
        (Some(from), Some(to)) => format!("path {path} leaves from {to} (was {from})"),
        (None, Some(to)) => format!("path {path} leaves from {to}"),
        (Some(from), None) => format!("path {path} has lost its address {from}"),
        (None, None) => format!("path {path} waits"),
    };
    match problem {
        Some(problem) => format!("{what}: {problem}"),
        None => what,
    }
}

fn path(on: &PathRef) -> String {
    format!("path {} to {}", on.path, on.peer)
}

/// Size, interval and copies of aggregates.
fn parameters(p: &AggregationParameters) -> String {
    let interval = Duration::try_from_secs_f64(p.interval_seconds).unwrap_or_default();
    format!("{} B every {interval:?}, {} copies", p.size_bytes, p.copies)
}

/// As the commands show durations.
fn duration(seconds: f64) -> String {
    rounded::duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::AddressField;
    use crate::protocol::VersionRange;

    #[test]
    fn an_address_outside_all_prefixes_is_named_with_what_to_change() {
        let text = |peer: Option<&str>, from, field| {
            let kind = EventKind::PrefixMismatch {
                tenant: "blue".into(),
                peer: peer.map(str::to_owned),
                from,
                field,
                address: "10.9.0.7".into(),
                dropped_packets: 12,
            };
            sentence(&kind)
        };
        let (source, destination) = (AddressField::Source, AddressField::Destination);
        let osaka = Some("osaka");
        assert_eq!(
            text(osaka, Side::Peer, source),
            "prefix_mismatch: tenant blue: peer osaka sends packets from 10.9.0.7, which is in none of \
             its networks here; add the network to `prefixes` of [tenant.blue.peer.osaka], or correct \
             the sender (12 packets dropped)"
        );
        let parts = [
            (osaka, Side::Peer, destination, "take it out at osaka"),
            (
                osaka,
                Side::Us,
                source,
                "osaka reports that it drops packets from 10.9.0.7",
            ),
            (osaka, Side::Us, source, "(by its count 12 packets)"),
            (
                osaka,
                Side::Us,
                destination,
                "out of `prefixes` of [tenant.blue.peer.osaka]",
            ),
            (
                None,
                Side::Us,
                source,
                "packets from 10.9.0.7 come from its device",
            ),
            (None, Side::Us, destination, "no peer has that address"),
        ];
        for (peer, from, field, part) in parts {
            let text = text(peer, from, field);
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn version_mismatch_names_both_versions_and_what_to_do() {
        let mismatch = |peer: Option<&str>, newest| EventKind::VersionMismatch {
            peer: peer.map(str::to_owned),
            remote: "198.51.100.1:7600".into(),
            peer_versions: VersionRange { oldest: 2, newest },
            our_versions: VersionRange {
                oldest: 1,
                newest: 1,
            },
        };
        assert_eq!(
            sentence(&mismatch(Some("osaka"), 2)),
            "version_mismatch: peer osaka at 198.51.100.1:7600 speaks wire version 2, this gateway \
             speaks 1; upgrade the older of the two"
        );
        assert_eq!(
            sentence(&mismatch(None, 3)),
            "version_mismatch: a gateway at 198.51.100.1:7600 that is not a peer here speaks wire \
             version 2 to 3, this gateway speaks 1; upgrade the older of the two"
        );
    }

    #[test]
    fn mismatches_of_applications_name_what_differs_and_what_to_do() {
        let mismatch = |app: Option<&str>, seen_by, here: Option<(&str, Class)>| {
            sentence(&EventKind::AppMismatch {
                peer: "osaka".into(),
                app: app.map(str::to_owned),
                class: Class::Message,
                seen_by,
                configured_peer: here.map(|(peer, _)| peer.to_owned()),
                configured_class: here.map(|(_, class)| class),
            })
        };
        let here = Some(("osaka", Class::Datagram));
        for (text, parts) in [
            (
                mismatch(Some("office"), Side::Peer, here),
                ["peer osaka takes nothing of office", "class message"],
            ),
            (
                mismatch(Some("office"), Side::Us, here),
                ["sends office as class message", "class datagram here"],
            ),
            (
                mismatch(Some("office"), Side::Us, Some(("kobe", Class::Message))),
                ["of peer kobe here", "another name"],
            ),
            (
                mismatch(None, Side::Us, None),
                ["not configured here", "remove it there"],
            ),
        ] {
            for part in parts {
                assert!(text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn duplicate_keys_are_reported_with_both_addresses_and_what_to_do() {
        let kind = EventKind::DuplicateKey {
            peer: "osaka".into(),
            served: "198.51.100.1:7600".into(),
            other: "203.0.113.9:7600".into(),
        };
        assert_eq!(
            sentence(&kind),
            "two gateways use the key of peer osaka: 198.51.100.1:7600 is served, 203.0.113.9:7600 \
             is not; give each gateway its own key (`keiro genkey`)"
        );
        let kind = EventKind::KeyRefused {
            peer: "tokyo".into(),
        };
        assert_eq!(
            sentence(&kind),
            "peer tokyo refuses this gateway: another gateway that uses the same private key is \
             served; stop it, or give this one another key (`keiro genkey`)"
        );
    }

    #[test]
    fn aggregation_events_show_the_exact_interval() {
        let on = || PathRef {
            path: "path1".into(),
            peer: "osaka".into(),
        };
        let of = |micros: f64| AggregationParameters {
            size_bytes: 2048,
            interval_seconds: micros * 1e-6,
            copies: 2,
        };
        let changed = EventKind::AggregationChanged {
            on: on(),
            before: of(750.0),
            after: of(1000.0),
            why: "because".into(),
        };
        assert_eq!(
            sentence(&changed),
            "path path1 to osaka: aggregates of 2048 B every 1ms, 2 copies (was 2048 B every 750µs, \
             2 copies): because"
        );
        let paused = EventKind::AggregationPaused {
            on: on(),
            bandwidth_bits_per_second: 700_000,
            needed_bits_per_second: 1_024_000,
            why: "it gives 700kbit/s".into(),
        };
        assert_eq!(
            sentence(&paused),
            "path path1 to osaka: aggregation is paused: it gives 700kbit/s"
        );
        let resumed = EventKind::AggregationResumed {
            on: on(),
            bandwidth_bits_per_second: 8_000_000,
            after: of(500.0),
        };
        assert_eq!(
            sentence(&resumed),
            "path path1 to osaka: aggregation is resumed at 8Mbit/s: aggregates of 2048 B every 500µs, 2 copies"
        );
    }

    #[test]
    fn a_move_is_logged_with_its_predictions() {
        let kind = EventKind::AppMoved {
            app: "A3".into(),
            from: Some("path1".into()),
            to: Some("path2".into()),
            reason: MoveReason::Plan,
            from_predicted_seconds: Some(0.1135),
            to_predicted_seconds: Some(0.0101),
            latency_target_seconds: Some(0.02),
        };
        assert_eq!(
            sentence(&kind),
            "A3 moves from path1 to path2: the plan has changed, by equation 3 10.1 ms there, \
             114 ms where it was, latency target 20 ms"
        );
    }

    #[test]
    fn short_durations_do_not_become_zero() {
        let kind = EventKind::PathUp {
            on: PathRef {
                path: "wan0".into(),
                peer: "osaka".into(),
            },
            remote: "192.0.2.1:7600".into(),
            rtt_seconds: 0.000_012_3,
        };
        assert_eq!(
            sentence(&kind),
            "path wan0 to osaka is up: 192.0.2.1:7600 answered after 12.3 µs"
        );
    }

    #[test]
    fn a_missed_target_is_logged_with_its_source() {
        let missed = |judged_by, predicted: Option<f64>, p99_seconds| {
            sentence(&EventKind::TargetMissed {
                app: "A3".into(),
                path: Some("path1".into()),
                latency_target_seconds: 0.02,
                judged_by: Some(judged_by),
                predicted_seconds: predicted,
                predicted_p99_seconds: predicted.map(|mean| mean * 2.0),
                paper_delay_seconds: Some(0.03),
                p99_seconds,
            })
        };
        assert_eq!(
            missed(JudgedBy::Measurement, None, Some(0.025)),
            "A3 misses its latency target of 20 ms on path1, measured 99th percentile 25 ms"
        );
        assert_eq!(
            missed(JudgedBy::Forecast, Some(0.0135), None),
            "A3 misses its latency target of 20 ms on path1, predicted mean 13.5 ms and 99th \
             percentile 27 ms"
        );
        assert_eq!(
            missed(JudgedBy::Equation3, None, None),
            "A3 misses its latency target of 20 ms on path1, by equation 3 alone: mean 30 ms"
        );
    }

    #[test]
    fn a_refused_reload_counts_its_problems_only_where_there_are_several() {
        let sentence_of = |problems| {
            sentence(&EventKind::ConfigRejected {
                problems,
                first: "a:1:1: no".into(),
            })
        };
        assert_eq!(
            sentence_of(1),
            "reload refused, the configuration in force is unchanged; a:1:1: no"
        );
        assert_eq!(
            sentence_of(2),
            "reload refused, the configuration in force is unchanged; 2 problems, the first: a:1:1: no"
        );
    }

    #[test]
    fn a_path_that_goes_down_is_logged_with_its_silence_limit() {
        let kind = EventKind::PathDown {
            on: PathRef {
                path: "path1".into(),
                peer: "osaka".into(),
            },
            reason: DownReason::Silent,
            silent_seconds: Some(0.091),
            limit_seconds: Some(0.09),
        };
        assert_eq!(
            sentence(&kind),
            "path path1 to osaka is down: no packet was received for 91 ms (limit 90 ms)"
        );
    }
}
