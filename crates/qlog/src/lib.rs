//! Packet traces of the core as qlog (draft-ietf-quic-qlog-main-schema), for qvis and other readers.
//!
//! A trace is a header and one JSON object per event. [`write_record`] writes them as JSON text
//! sequences (RFC 7464), which is qlog's format `JSON-SEQ`: a reader can begin before the trace ends.
//! Keiro's overlay is not QUIC, but numbers, acknowledges and loses packets as QUIC does, so the events
//! of QUIC's namespaces fit. What QUIC does not have is in the namespace `keiro`.

use std::io::{self, Write};

use keiro_core::{Instant, PathDownReason, RecoveryMetrics, TraceEvent, TraceKind};
use serde_json::{Map, Value, json};

/// One line of a trace.
pub type Record = Value;

/// Separates the records of a JSON text sequence (RFC 7464 §2.2).
const RECORD_SEPARATOR: u8 = 0x1e;

/// The first record: which gateway saw the events that follow, and what their times count from.
///
/// `reference_unix_ms`: the wall clock at the core's [`Instant::ZERO`]; `None`: virtual time.
pub fn header(vantage_point: &str, peer: &str, reference_unix_ms: Option<f64>) -> Value {
    json!({
        "qlog_version": "0.3",
        "qlog_format": "JSON-SEQ",
        "title": format!("{vantage_point} to {peer}"),
        "trace": {
            "vantage_point": {"name": vantage_point, "type": "unknown"},
            "common_fields": {
                "protocol_type": ["KEIRO"],
                "time_format": "relative",
                "reference_time": reference_unix_ms.unwrap_or(0.0),
            },
        },
    })
}

/// One event; times in milliseconds. `path` is its name.
pub fn event(event: &TraceEvent, path: &str) -> Value {
    let (name, data) = name_and_data(&event.kind);
    json!({"time": milliseconds(event.at), "path": path, "name": name, "data": data})
}

/// Events that the trace has lost at this time because too many were waiting.
pub fn dropped(at_ms: f64, dropped_events: u64) -> Value {
    json!({
        "time": at_ms,
        "name": "keiro:events_dropped",
        "data": {"count": dropped_events},
    })
}

/// Writes one record of a JSON text sequence.
///
/// # Errors
/// As `out`.
pub fn write_record(out: &mut impl Write, record: &Value) -> io::Result<()> {
    out.write_all(&[RECORD_SEPARATOR])?;
    serde_json::to_writer(&mut *out, record)?;
    out.write_all(b"\n")
}

/// As qlog has times.
pub fn milliseconds(at: Instant) -> f64 {
    at.as_nanos() as f64 / 1e6
}

fn name_and_data(kind: &TraceKind) -> (&'static str, Value) {
    match *kind {
        TraceKind::PacketSent {
            number,
            ip_bytes,
            ack_eliciting,
        } => {
            let mut data = packet(number, ip_bytes);
            data["is_ack_eliciting"] = json!(ack_eliciting);
            ("transport:packet_sent", data)
        }
        TraceKind::PacketReceived {
            number,
            ip_bytes,
            is_ce,
        } => {
            let mut data = packet(number, ip_bytes);
            if is_ce {
                data["ecn"] = json!("CE");
            }
            ("transport:packet_received", data)
        }
        TraceKind::PacketAcked {
            number,
            was_lost: false,
        } => (
            "transport:packets_acked",
            json!({"packet_number_space": "application_data", "packet_numbers": [number]}),
        ),
        TraceKind::PacketAcked {
            number,
            was_lost: true,
        } => ("keiro:spurious_loss", json!({"packet_number": number})),
        TraceKind::PacketLost { number, ip_bytes } => {
            ("recovery:packet_lost", packet(number, ip_bytes))
        }
        TraceKind::Recovery(metrics) => ("recovery:metrics_updated", recovery(&metrics)),
        TraceKind::MtuChanged { mtu } => ("connectivity:mtu_updated", json!({"new": mtu})),
        TraceKind::PathValidated { remote, rtt } => (
            "keiro:path_validated",
            json!({"remote": remote.to_string(), "rtt": rtt.as_secs_f64() * 1e3}),
        ),
        TraceKind::PathMoved { remote } => {
            ("keiro:path_moved", json!({"remote": remote.to_string()}))
        }
        TraceKind::PathDown { reason } => ("keiro:path_down", down(reason)),
    }
}

fn packet(number: u64, ip_bytes: u64) -> Value {
    json!({
        "header": {"packet_type": "1RTT", "packet_number": number},
        "raw": {"length": ip_bytes},
    })
}

fn recovery(metrics: &RecoveryMetrics) -> Value {
    let mut data = Map::new();
    if let Some(smoothed) = metrics.smoothed_rtt {
        data.insert("smoothed_rtt".into(), json!(smoothed.as_secs_f64() * 1e3));
        let variance = metrics.rtt_variance.as_secs_f64() * 1e3;
        data.insert("rtt_variance".into(), json!(variance));
    }
    if let Some(min) = metrics.min_rtt {
        data.insert("min_rtt".into(), json!(min.as_secs_f64() * 1e3));
    }
    data.insert("bytes_in_flight".into(), json!(metrics.bytes_in_flight));
    let rate = metrics.pacing_rate.as_bits_per_second();
    data.insert("pacing_rate".into(), json!(rate));
    Value::Object(data)
}

fn down(reason: PathDownReason) -> Value {
    match reason {
        PathDownReason::Silent { silent, limit } => json!({
            "reason": "silent",
            "silent": silent.as_secs_f64() * 1e3,
            "limit": limit.as_secs_f64() * 1e3,
        }),
        PathDownReason::ChallengeUnanswered => json!({"reason": "not_validated"}),
        PathDownReason::TooSmall { bytes } => json!({"reason": "too_small", "bytes": bytes}),
        PathDownReason::Removed => json!({"reason": "removed"}),
        PathDownReason::KeysExpired => json!({"reason": "keys_expired"}),
        PathDownReason::NoLocalAddress => json!({"reason": "local_error"}),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keiro_core::PathId;
    use keiro_units::Bandwidth;

    use super::*;

    fn at(ms: u64, kind: TraceKind) -> TraceEvent {
        TraceEvent {
            at: Instant::ZERO + Duration::from_millis(ms),
            path: PathId(0),
            kind,
        }
    }

    #[test]
    fn records_are_a_json_text_sequence() {
        let mut out = Vec::new();
        write_record(&mut out, &header("tokyo", "osaka", None)).unwrap();
        let lost = at(
            1500,
            TraceKind::PacketLost {
                number: 7,
                ip_bytes: 1400,
            },
        );
        write_record(&mut out, &event(&lost, "wan1")).unwrap();
        write_record(&mut out, &dropped(1501.0, 3)).unwrap();
        let mut records = Vec::new();
        for record in out.split(|byte| *byte == 0x1e).skip(1) {
            assert_eq!(record.last(), Some(&b'\n'));
            records.push(serde_json::from_slice::<Value>(record).unwrap());
        }
        assert_eq!(records[0]["qlog_format"], "JSON-SEQ");
        assert_eq!(records[1]["time"], 1500.0);
        assert_eq!(records[1]["name"], "recovery:packet_lost");
        assert_eq!(records[1]["path"], "wan1");
        assert_eq!(records[1]["data"]["header"]["packet_number"], 7);
        assert_eq!(records[2]["data"]["count"], 3);
    }

    #[test]
    fn metrics_are_in_qlogs_units() {
        let metrics = RecoveryMetrics {
            smoothed_rtt: Some(Duration::from_micros(12_500)),
            rtt_variance: Duration::from_micros(250),
            min_rtt: None,
            bytes_in_flight: 3000,
            pacing_rate: Bandwidth::from_mbit_per_second(10),
        };
        let value = event(&at(0, TraceKind::Recovery(metrics)), "wan1");
        assert_eq!(value["data"]["smoothed_rtt"], 12.5);
        assert_eq!(value["data"]["rtt_variance"], 0.25);
        assert_eq!(value["data"].get("min_rtt"), None);
        assert_eq!(value["data"]["pacing_rate"], 10_000_000);
    }
}
