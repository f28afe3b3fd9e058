//! Events as sentences for the log, the reason in numbers. Programs read them from `keiro monitor`.

use std::time::Duration;

use keiro_control::protocol::{
    AggregationParameters, DownReason, EventKind, JudgedBy, MoveReason, PathRef,
};
use keiro_units::Bandwidth;

/// One line.
pub(crate) fn sentence(kind: &EventKind) -> String {
    match kind {
        EventKind::Started { version } => format!("keiro {version} serves"),
        EventKind::Draining { messages_waiting } => {
            format!("stopping: {messages_waiting} messages are under way, nothing new is taken")
        }
        EventKind::PeerUp { peer, .. } => format!("peer {peer} is up: keys are agreed"),
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
        EventKind::PathUp {
            on,
            remote,
            rtt_seconds,
        } => format!(
            "{} is up: {remote} answered after {}",
            path(on),
            millis(*rtt_seconds)
        ),
        EventKind::PathDown {
            on,
            reason,
            silent_seconds,
            limit_seconds,
        } => {
            let numbers = silent_seconds.zip(*limit_seconds).map(|(silent, limit)| {
                format!(
                    ", for {} where {} is tolerated",
                    millis(silent),
                    millis(limit)
                )
            });
            format!(
                "{} is down: {}{}",
                path(on),
                down(*reason),
                numbers.unwrap_or_default()
            )
        }
        EventKind::RemoteChanged { on, from, to } => {
            format!("{}: the peer moved from {from} to {to}", path(on))
        }
        EventKind::MtuChanged {
            on,
            from_bytes,
            to_bytes,
        } => format!(
            "{}: packets of {to_bytes} bytes pass, {from_bytes} before",
            path(on)
        ),
        EventKind::KeyChanged { peer, key_changes } => {
            format!("peer {peer}: keys changed, {key_changes} times so far")
        }
        EventKind::AggregationChanged {
            on,
            before,
            after,
            why,
        } => {
            let (before, after) = (gathering(before), gathering(after));
            format!(
                "{}: aggregates of {after} instead of {before}: {why}",
                path(on)
            )
        }
        EventKind::AggregationPaused { on, why, .. } => {
            format!("{}: nothing is gathered for now: {why}", path(on))
        }
        EventKind::AggregationResumed {
            on,
            bandwidth_bits_per_second,
            after,
        } => {
            let bandwidth = Bandwidth::from_bits_per_second(*bandwidth_bits_per_second);
            format!(
                "{}: thin traffic is gathered again, for {bandwidth}: aggregates of {}",
                path(on),
                gathering(after)
            )
        }
        EventKind::AppMoved {
            app,
            from,
            to,
            reason,
            from_predicted_seconds,
            to_predicted_seconds,
            latency_target_seconds,
        } => {
            let mut text = moved(app, from.as_deref(), to.as_deref(), *reason);
            let there = to_predicted_seconds.map(|by| format!("{} there", millis(by)));
            let before = from_predicted_seconds.map(|by| format!("{} where it was", millis(by)));
            let told: Vec<String> = there.into_iter().chain(before).collect();
            if !told.is_empty() {
                text.push_str(&format!(", by equation 3 {}", told.join(", ")));
            }
            if let Some(latency_target) = latency_target_seconds {
                text.push_str(&format!(", {} demanded", millis(*latency_target)));
            }
            text
        }
        EventKind::TargetMissed {
            app,
            path,
            latency_target_seconds,
            judged_by,
            predicted_seconds,
            predicted_p99_seconds,
            paper_delay_seconds,
            p99_seconds,
        } => {
            let on = path
                .as_ref()
                .map(|path| format!(" on {path}"))
                .unwrap_or_default();
            let mut text = format!(
                "{app} misses its latency target of {}{on}",
                millis(*latency_target_seconds)
            );
            if let Some(p99) = p99_seconds {
                text.push_str(&format!(", 99 of 100 messages took up to {}", millis(*p99)));
            }
            match (predicted_seconds, predicted_p99_seconds) {
                (Some(mean), Some(p99)) => text.push_str(&format!(
                    ", {} predicted on average and up to {} for 99 of 100",
                    millis(*mean),
                    millis(*p99)
                )),
                _ if *judged_by == Some(JudgedBy::Forecast) => {
                    text.push_str(", more arrives than is sent");
                }
                _ => {}
            }
            if *judged_by == Some(JudgedBy::Equation3) {
                let mean = paper_delay_seconds.map(|mean| format!("{} on average", millis(mean)));
                let mean = mean.unwrap_or_else(|| "more arrives than is sent".to_owned());
                text.push_str(&format!(", by equation 3 alone: {mean}"));
            }
            text
        }
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
                "{app} gets its {} again{by}",
                millis(*latency_target_seconds)
            )
        }
        EventKind::MessageExpired {
            app,
            age_seconds,
            length_bytes,
            messages_expired,
        } => format!(
            "{app}: a message of {length_bytes} bytes was given up after {}, {messages_expired} so far",
            millis(*age_seconds)
        ),
        EventKind::Reloaded { changes } => format!("reloaded: {changes}"),
        EventKind::ConfigRejected { problems, first } => {
            let more = match problems {
                0 | 1 => String::new(),
                several => format!("{several} problems, the first: "),
            };
            format!("reload refused, everything stays as it was; {more}{first}")
        }
        EventKind::TenantUnknown { peer, id } => format!(
            "peer {peer} sends packets of a tenant of number {id}, and no tenant here has that number and this peer: they are dropped"
        ),
        EventKind::TenantRefused { tenant, id, peer } => format!(
            "peer {peer} drops the packets of tenant {tenant}: it has no tenant of that number, {id}, with this gateway"
        ),
        EventKind::DeviceLost {
            tenant,
            device,
            reason,
        } => format!("tenant {tenant} has lost its device {device}, which is made again: {reason}"),
        EventKind::DeviceRestored {
            tenant,
            device,
            lost_seconds,
        } => format!("tenant {tenant} has its device {device} again after {lost_seconds:.1} s"),
        EventKind::DeviceDown {
            tenant,
            device,
            reason,
        } => format!("tenant {tenant}: its device {device} does not serve it: {reason}"),
        EventKind::DeviceUp {
            tenant,
            device,
            down_seconds,
        } => format!(
            "tenant {tenant}: its device {device} serves it again after {down_seconds:.1} s"
        ),
        EventKind::StoreLost { reason } => {
            format!("the plan store is lost, the gateway goes on without it: {reason}")
        }
        EventKind::StoreConnected { lost_seconds } => match lost_seconds {
            Some(lost) => format!("the plan store is back after {lost:.1} s"),
            None => "the plan store answers".to_owned(),
        },
        EventKind::StoreNotice { text } => format!("plan store: {text}"),
        EventKind::EventsLost { count } => format!("{count} events were lost: too many at once"),
        EventKind::Unknown => "unknown event".to_owned(),
    }
}

fn moved(app: &str, from: Option<&str>, to: Option<&str>, reason: MoveReason) -> String {
    let why = match reason {
        MoveReason::First => "the first path",
        MoveReason::PathDown => "its path went down",
        MoveReason::PathUp => "a path that it prefers came up",
        MoveReason::Plan => "the plan says so",
        MoveReason::Pin => "the configuration says so",
        MoveReason::Operator => "an operator says so",
        MoveReason::Unknown => "for an unknown reason",
    };
    match (from, to) {
        (None, Some(to)) => format!("{app} takes {to}: {why}"),
        (Some(from), Some(to)) => format!("{app} moves from {from} to {to}: {why}"),
        (Some(from), None) => format!("{app} leaves {from} and has no path: {why}"),
        (None, None) => format!("{app} has no path: {why}"),
    }
}

fn down(reason: DownReason) -> &'static str {
    match reason {
        DownReason::Silent => "nothing was heard",
        DownReason::LocalError => "the system cannot send on it",
        DownReason::PeerClosed => "it closed the session",
        DownReason::Removed => "the configuration no longer has it",
        DownReason::NotValidated => "no challenge was answered",
        DownReason::KeysExpired => "its keys are too old",
        DownReason::Stopping => "this gateway stops",
        DownReason::Unknown => "for an unknown reason",
    }
}

fn path(on: &PathRef) -> String {
    format!("path {} to {}", on.path, on.peer)
}

/// S, I and N.
fn gathering(p: &AggregationParameters) -> String {
    let interval = Duration::try_from_secs_f64(p.interval_seconds).unwrap_or_default();
    format!("{} B every {interval:?}, {} times", p.size_bytes, p.copies)
}

fn millis(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use keiro_control::protocol::VersionRange;

    use super::*;

    #[test]
    fn gathering_is_told_with_its_interval_as_it_is() {
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
            "path path1 to osaka: aggregates of 2048 B every 1ms, 2 times instead of 2048 B every \
             750µs, 2 times: because"
        );
        let paused = EventKind::AggregationPaused {
            on: on(),
            bandwidth_bits_per_second: 700_000,
            needed_bits_per_second: 1_024_000,
            why: "it gives 700kbit/s".into(),
        };
        assert_eq!(
            sentence(&paused),
            "path path1 to osaka: nothing is gathered for now: it gives 700kbit/s"
        );
        let resumed = EventKind::AggregationResumed {
            on: on(),
            bandwidth_bits_per_second: 8_000_000,
            after: of(500.0),
        };
        assert_eq!(
            sentence(&resumed),
            "path path1 to osaka: thin traffic is gathered again, for 8Mbit/s: aggregates of 2048 B every 500µs, 2 times"
        );
    }

    #[test]
    fn a_move_is_told_with_its_numbers() {
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
            "A3 moves from path1 to path2: the plan says so, by equation 3 10.1 ms there, \
             113.5 ms where it was, 20.0 ms demanded"
        );
    }

    #[test]
    fn a_missed_target_is_told_with_what_says_so() {
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
            "A3 misses its latency target of 20.0 ms on path1, 99 of 100 messages took up to 25.0 ms"
        );
        assert_eq!(
            missed(JudgedBy::Forecast, Some(0.0135), None),
            "A3 misses its latency target of 20.0 ms on path1, 13.5 ms predicted on average and up to \
             27.0 ms for 99 of 100"
        );
        assert_eq!(
            missed(JudgedBy::Equation3, None, None),
            "A3 misses its latency target of 20.0 ms on path1, by equation 3 alone: 30.0 ms on average"
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
            "reload refused, everything stays as it was; a:1:1: no"
        );
        assert_eq!(
            sentence_of(2),
            "reload refused, everything stays as it was; 2 problems, the first: a:1:1: no"
        );
    }

    #[test]
    fn a_dead_path_is_told_with_what_was_tolerated() {
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
            "path path1 to osaka is down: nothing was heard, for 91.0 ms where 90.0 ms is tolerated"
        );
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
}
