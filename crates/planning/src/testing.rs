//! Configurations and inputs that tests plan with.

use std::time::Duration;

use keiro_control::config::{AppIndex, Config, PathIndex, PeerIndex};
use keiro_planner::queueing::{Spread, TrafficWindow, WindowHalf};
use keiro_units::ByteCount;

use crate::{MeasuredDelay, MeasuredWorkload, PlannerInput, Workload};

/// The paper's five applications over its two paths.
pub fn paper(gateway: &str, pin: &str) -> Config {
    let text = format!(
        r#"
[gateway]
name = "a"
{gateway}
[[path]]
name = "path1"
local = "192.0.2.1:4500"
rate = "100Mbit"
delay = "100ms"
[[path]]
name = "path2"
local = "198.51.100.1:4500"
rate = "100Mbit"
delay = "2ms"
[[peer]]
name = "b"
public_key = "{}"
endpoints = {{ path1 = "192.0.2.2:4500", path2 = "198.51.100.2:4500" }}
"#,
        keiro_control::PublicKey::from_bytes([9; 32])
    );
    let mut text = text;
    for (name, length, interval, latency_target) in [
        ("A1", "1MB", "200ms", "1s"),
        ("A2", "100kB", "100ms", "500ms"),
        ("A3", "100kB", "100ms", "20ms"),
        ("A4", "10kB", "100ms", "100ms"),
        ("A5", "10kB", "100ms", "20ms"),
    ] {
        let pin = if name == "A1" { pin } else { "" };
        text.push_str(&format!(
            "[[app]]\nname = \"{name}\"\nclass = \"message\"\npeer = \"b\"\nlength = \"{length}\"\n\
             interval = \"{interval}\"\nlatency_target = \"{latency_target}\"\n{pin}\n"
        ));
    }
    Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
}

pub fn both_up() -> PlannerInput {
    let up = (0..2)
        .map(|path| ((PathIndex(path), PeerIndex(0)), None))
        .collect();
    PlannerInput {
        up,
        ..PlannerInput::default()
    }
}

/// Both paths are up, and every application is where `paths` says.
pub fn placed(paths: [usize; 5]) -> PlannerInput {
    let now = paths.into_iter().enumerate();
    let now = now.map(|(app, path)| (AppIndex(app), PathIndex(path)));
    PlannerInput {
        now: now.collect(),
        ..both_up()
    }
}

/// Three paths; five applications on the first, which takes `first_ms` since just now. What the third,
/// "bulk", sends is not known.
pub fn all_on_a_path_that_takes_long(planner: &str, first_ms: u64) -> (Config, PlannerInput) {
    let mut text = format!("[gateway]\nname = \"a\"\nplanner = \"{planner}\"\n");
    let mut endpoints = Vec::new();
    for (path, delay) in [(1, first_ms), (2, 20), (3, 8)] {
        text.push_str(&format!(
            "[[path]]\nname = \"p{path}\"\nlocal = \"192.0.2.{path}:4500\"\nrate = \"20Mbit\"\n\
             delay = \"{delay}ms\"\n"
        ));
        endpoints.push(format!("p{path} = \"198.51.100.{path}:4500\""));
    }
    text.push_str(&format!(
        "[[peer]]\nname = \"b\"\npublic_key = \"{}\"\nendpoints = {{ {} }}\n",
        keiro_control::PublicKey::from_bytes([9; 32]),
        endpoints.join(", ")
    ));
    for (name, sends, latency_target) in [
        ("ctl", "length = \"1kB\"\ninterval = \"20ms\"", "15ms"),
        ("scada", "length = \"10kB\"\ninterval = \"40ms\"", "40ms"),
        ("bulk", "", "200ms"),
        ("video", "length = \"5kB\"\ninterval = \"8ms\"", "60ms"),
        ("free", "length = \"2kB\"\ninterval = \"50ms\"", "none"),
    ] {
        text.push_str(&format!(
            "[[app]]\nname = \"{name}\"\nclass = \"message\"\npeer = \"b\"\n{sends}\n"
        ));
        if latency_target != "none" {
            text.push_str(&format!("latency_target = \"{latency_target}\"\n"));
        }
    }
    let config = Config::parse(&text, "long.toml").unwrap_or_else(|error| panic!("{error}"));
    let up = (0..3).map(|path| ((PathIndex(path), PeerIndex(0)), None));
    let input = PlannerInput {
        up: up.collect(),
        now: (0..5).map(|app| (AppIndex(app), PathIndex(0))).collect(),
        sending: (0..5).map(AppIndex).collect(),
        ..PlannerInput::default()
    };
    (config, input)
}

/// What bulk sends, once that is known.
pub fn bulk() -> MeasuredWorkload {
    MeasuredWorkload::Sending(Workload {
        length: ByteCount::new(50_000),
        interval: Duration::from_millis(200),
        length_spread: Spread::NONE,
        interval_spread: Spread::EXPONENTIAL,
    })
}

/// Of bulk, enough for a forecast.
pub fn traffic_window() -> TrafficWindow {
    let half = WindowHalf {
        messages: 50,
        length_mean: 50_000.0,
        length_spread: Spread::NONE,
    };
    TrafficWindow {
        halves: [half; 2],
        interval_spread: Spread::EXPONENTIAL,
        together: 0.0,
    }
}

/// A5 sends bursts, which cannot be forecast, and has a latency target of 25 ms on the second path,
/// which has a delay of 20 ms (the other: 2 ms). By eq. 3 the target is met there.
pub fn bursty_a5(mean_ms: u64) -> (Config, PlannerInput) {
    let mut config = paper("scheduler = \"fifo\"", "");
    for other in &mut config.apps[..4] {
        other.latency_target = None;
        other.length = Some(ByteCount::new(100));
        // They do not load the path.
        other.path = Some(PathIndex(1));
    }
    let a5 = &mut config.apps[4];
    a5.latency_target = Some(Duration::from_millis(25));
    (a5.length, a5.interval) = (None, None);
    config.paths[0].delay = Some(Duration::from_millis(2));
    config.paths[1].delay = Some(Duration::from_millis(20));
    let mut input = placed([1, 1, 1, 1, 1]);
    let seen = Workload {
        length: ByteCount::new(10_000),
        interval: Duration::from_millis(100),
        length_spread: Spread::NONE,
        interval_spread: Spread::new(20.0).unwrap(),
    };
    input
        .workloads
        .insert(AppIndex(4), MeasuredWorkload::Sending(seen));
    let delay = MeasuredDelay {
        mean: Duration::from_millis(mean_ms),
        p99: Duration::from_millis(mean_ms + 1),
    };
    input.measured.insert(AppIndex(4), delay);
    (config, input)
}

/// Two gateways with two paths, "quick" of 10 ms and "slow" of 30 ms, and these applications to the peer "osaka".
pub fn with_apps(apps: &str) -> Config {
    let text = format!(
        "[gateway]\nname = \"a\"\n\
         [[path]]\nname = \"quick\"\nlocal = \"192.0.2.1:4500\"\nrate = \"20Mbit\"\ndelay = \"10ms\"\n\
         [[path]]\nname = \"slow\"\nlocal = \"198.51.100.1:4500\"\nrate = \"20Mbit\"\ndelay = \"30ms\"\n\
         [[peer]]\nname = \"osaka\"\npublic_key = \"{}\"\n\
         endpoints = {{ quick = \"192.0.2.2:4500\", slow = \"198.51.100.2:4500\" }}\n{apps}",
        keiro_control::PublicKey::from_bytes([9; 32])
    );
    Config::parse(&text, "apps.toml").unwrap_or_else(|error| panic!("{error}"))
}
