//! A control socket that answers what it was given, as a gateway would.

// Each program that includes this uses a part of it.
#![allow(dead_code, clippy::allow_attributes)]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

/// See the module. Ends when it is dropped.
pub(crate) struct FakeGateway {
    path: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<BTreeMap<String, Value>>,
    asked: Mutex<BTreeMap<String, u64>>,
    monitors: Mutex<Vec<UnixStream>>,
    clients: Mutex<Vec<UnixStream>>,
    ended: AtomicBool,
}

impl FakeGateway {
    /// Listens at `path`, with the answers of a small site.
    pub(crate) fn start(path: &Path) -> Self {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).expect("the socket can be made");
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if of_thread.ended.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&of_thread);
                thread::spawn(move || serve(&shared, stream));
            }
        });
        let gateway = Self {
            path: path.to_owned(),
            shared,
        };
        for (request, answer) in small_site() {
            gateway.answer(request, answer);
        }
        gateway
    }

    /// From here on a request of this name is answered so.
    pub(crate) fn answer(&self, request: &str, answer: Value) {
        self.shared
            .answers
            .lock()
            .unwrap()
            .insert(request.to_owned(), answer);
    }

    /// Changes an answer in place.
    pub(crate) fn change(&self, request: &str, change: impl FnOnce(&mut Value)) {
        change(
            self.shared
                .answers
                .lock()
                .unwrap()
                .get_mut(request)
                .expect("it has an answer"),
        );
    }

    /// How often requests of this name came.
    pub(crate) fn asked(&self, request: &str) -> u64 {
        self.shared
            .asked
            .lock()
            .unwrap()
            .get(request)
            .copied()
            .unwrap_or_default()
    }

    /// Connections that follow events.
    pub(crate) fn monitors(&self) -> usize {
        self.shared.monitors.lock().unwrap().len()
    }

    pub(crate) fn publish(&self, event: &Value) {
        for monitor in &mut *self.shared.monitors.lock().unwrap() {
            writeln!(monitor, "{event}").expect("the monitor listens");
        }
    }
}

impl Drop for FakeGateway {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(&self.path);
        let _ = std::fs::remove_file(&self.path);
        for client in &*self.shared.clients.lock().unwrap() {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn serve(shared: &Shared, stream: UnixStream) {
    let mut out = stream.try_clone().expect("a stream can be cloned");
    shared
        .clients
        .lock()
        .unwrap()
        .push(stream.try_clone().expect("a stream can be cloned"));
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let request: Value = serde_json::from_str(&line).expect("a request is JSON");
        let name = request["request"]
            .as_str()
            .expect("a request has a name")
            .to_owned();
        *shared
            .asked
            .lock()
            .unwrap()
            .entry(name.clone())
            .or_default() += 1;
        let key = match request["kind"].as_str() {
            Some(kind) => format!("{name}_{kind}"),
            None => name.clone(),
        };
        let missing =
            json!({"response": "error", "code": "not_found", "message": "there is no such answer"});
        let answer = shared
            .answers
            .lock()
            .unwrap()
            .get(&key)
            .cloned()
            .unwrap_or(missing);
        if writeln!(out, "{answer}").is_err() {
            return;
        }
        if name == "monitor" {
            shared
                .monitors
                .lock()
                .unwrap()
                .push(out.try_clone().expect("a stream can be cloned"));
        }
    }
}

/// An application's answer.
pub(crate) fn app(name: &str, path: &str, p99: f64) -> Value {
    json!({
        "name": name, "class": "message", "peer": "osaka", "path": path, "assigned_by": "planner",
        "latency_target_seconds": 0.02, "target_met": p99 <= 0.02, "predicted_delay_seconds": 0.0123,
        "predicted_p50_seconds": 0.0121, "predicted_p95_seconds": 0.0155, "predicted_p99_seconds": 0.0171,
        "margin_seconds": 0.02 - 0.0123, "judged_by": "measurement", "loss_tolerance_ratio": 0.01,
        "length_bytes": 1200.0, "interval_seconds": 0.01, "sent_messages": 1234, "delivered_messages": 1230,
        "delay": {"count": 500, "mean_seconds": 0.0124, "min_seconds": 0.01, "p50_seconds": 0.0122, "p90_seconds": 0.014,
                  "p95_seconds": 0.015, "p99_seconds": p99, "p999_seconds": 0.03, "max_seconds": 0.04}
    })
}

/// A path's answer.
pub(crate) fn path(name: &str, state: &str) -> Value {
    json!({
        "name": name, "peer": "osaka", "state": state, "why": "answered 0.2 s ago", "state_seconds": 3600.0,
        "local": "192.0.2.1:7600", "remote": "198.51.100.1:7600", "delay_seconds": 0.0107, "delay_configured": false,
        "configured_rate_bits_per_second": 100_000_000u64, "sent_rate_bits_per_second": 20_400_000u64,
        "cross_traffic_bits_per_second": 8_000_000u64, "available_bits_per_second": 71_400_000u64,
        "srtt_seconds": 0.0215, "min_rtt_seconds": 0.0213, "jitter_seconds": 0.0009, "loss_ratio": 0.001,
        "mtu_bytes": 1500, "sent_bytes": 150_000_000u64, "probe_bytes": 720_000, "outages": 1,
        "capacity": {"rate_bits_per_second": 99_800_000u64, "low_bits_per_second": 99_100_000u64,
                     "high_bits_per_second": 100_300_000u64, "age_seconds": 1.5}
    })
}

/// A tenant's answer.
pub(crate) fn tenant(name: &str, id: u64) -> Value {
    json!({
        "name": name, "id": id, "weight": 2.0, "share_ratio": 0.5, "controller": "keiro", "device": format!("keiro{id}"),
        "device_present": true, "device_state": "up", "mtu_bytes": 1400, "prefixes": ["10.1.0.0/16"],
        "ingress_packets": 5000, "ingress_bytes": 7_000_000u64, "egress_packets": 900, "egress_bytes": 6_000_000u64,
        "dropped_packets": {"spoofed": 3, "too_big": 0},
        "peers": [{"peer": "osaka", "app": "ip", "prefixes": ["10.2.0.0/16"], "queued_bytes": 20_000,
                   "dropped_packets": {"delayed": 4},
                   "paths": [{"path": "wan0", "window_bytes": 90_000, "acked_rate_bits_per_second": 24_000_000u64,
                              "srtt_seconds": 0.021, "loss_ratio": 0.001, "in_flight_bytes": 80_000}]}]
    })
}

/// The answers to all requests.
pub(crate) fn small_site() -> Vec<(&'static str, Value)> {
    let apps = vec![app("A1", "wan0", 0.0181), app("A2", "wan1", 0.0257)];
    let terms = json!({"propagation_seconds": 0.0107, "length_bytes": 1200.0, "rate_bits_per_second": 1e8,
        "other_load_bits_per_second": 2e7, "paper_delay_seconds": 0.0109, "predicted_delay_seconds": 0.0123,
        "predicted_p99_seconds": 0.0171});
    vec![
        (
            "version",
            json!({"response": "version", "version": "0.1.0", "protocol_version": 1}),
        ),
        ("status", status(2, 2, 1)),
        (
            "show_path",
            json!({"response": "paths", "paths": [path("wan0", "up"), path("wan1", "up")]}),
        ),
        (
            "show_peer",
            json!({"response": "peers", "peers": [{"name": "osaka", "public_key": "AQE=", "state": "up",
            "why": "2 of 2 paths are up", "state_seconds": 3600.0, "handshake_age_seconds": 61.5, "paths_up": 2,
            "dropped_packets": {"unauthentic": 3, "replayed": 1}}]}),
        ),
        ("show_app", json!({"response": "apps", "apps": apps})),
        (
            "show_tenant",
            json!({"response": "tenants", "tenants": [tenant("blue", 1), tenant("red", 2)]}),
        ),
        ("monitor", json!({"response": "monitoring"})),
        (
            "explain",
            json!({"response": "explanation", "app": "A1", "assigned_by": "planner", "model": "valid",
            "text": "A1 is on wan0, because it has the smallest delay: 12.3 ms, 7.7 ms below its target.", "path": "wan0",
            "latency_target_seconds": 0.02, "candidates": [{"path": "wan0", "state": "up", "chosen": true, "terms": terms,
            "margin_seconds": 0.0077, "target_met": true, "judged_by": "forecast", "verdict": "the smallest delay"}],
            "would_move": [{"change": "path_delay", "path": "wan0", "now_seconds": 0.0107, "at_seconds": 0.0188, "to": "wan1"}]}),
        ),
        (
            "planner_input",
            json!({"response": "planner_input", "version": 1, "alone": false, "planner": "frugal", "scheduler": "deadline",
            "tolerance_ratio": 0.0, "peers": ["osaka"],
            "paths": [{"name": "wan0", "rate_bits_per_second": 100_000_000u64, "role": "primary"},
                      {"name": "wan1", "rate_bits_per_second": 100_000_000u64, "role": "primary"}],
            "paths_up": [{"path": 0, "peer": 0, "level": {"rate_bits_per_second": 100_000_000u64, "delay_seconds": 0.0107, "loss_ratio": 0.0}},
                         {"path": 1, "peer": 0, "level": {"rate_bits_per_second": 100_000_000u64, "delay_seconds": 0.025, "loss_ratio": 0.0}}],
            "apps": [{"name": "A1", "class": "message", "peer": 0, "latency_target_seconds": 0.02, "length_bytes": 1200,
                      "interval_seconds": 0.01, "path_now": 0, "sends": true},
                     {"name": "A2", "class": "message", "peer": 0, "latency_target_seconds": 0.04, "length_bytes": 1200,
                      "interval_seconds": 0.01, "path_now": 1, "sends": true}]}),
        ),
        (
            "history_app",
            json!({"response": "app_history", "name": "A1", "peer": "osaka", "row_seconds": 60, "rows": []}),
        ),
        (
            "history_path",
            json!({"response": "path_history", "name": "wan0", "row_seconds": 60, "rows": []}),
        ),
    ]
}

/// The answer to `status`, with numbers of paths, applications, and applications that meet their target.
pub(crate) fn status(paths: usize, apps: usize, met: usize) -> Value {
    json!({
        "response": "status", "name": "tokyo", "version": "0.1.0", "public_key": "AQE=",
        "started": "2026-01-31T12:00:00.000000Z", "uptime_seconds": 86_400.5, "config_file": "/etc/keiro/gateway.toml",
        "config_loaded": "2026-01-31T12:00:00.000000Z", "draining": false, "scheduler": "deadline", "planner": "frugal",
        "tolerance_ratio": 0.0, "model": "valid", "paths_up": paths, "paths": paths, "peers_up": 1, "peers": 1,
        "apps": apps, "apps_with_target": apps, "apps_target_met": met, "apps_target_measured": apps,
        "message_senders": 5, "message_receivers": 0, "history": {"state": "ok"}
    })
}
