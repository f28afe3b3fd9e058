//! Two real gateways in network namespaces: what they carry, and what happens to it when paths
//! die, configurations change and gateways stop. Needs root and iproute2, and fails without.

mod bonding;
mod carried_connection;
mod endpoints;
mod flow;
#[path = "../harness/mod.rs"]
mod harness;
mod links;
mod lossy_link;
mod other_hosts;
mod pair;
mod redundancy;
mod segments;
mod shared_line;
mod split;
mod terms;
mod uplinks;

use std::{
    fs,
    os::unix::net::UnixDatagram,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, SystemTime},
};

use flow::{Flow, body};
use harness::{LIMIT, eventually, finish, keiro, shown};
use keiro_control::{
    message_socket::{Outcome, RefusedReason},
    protocol::{DownReason, Event, EventKind, MoveReason},
};
use keiro_lab::host_noise::{NoiseAllowance, retry_until_undisturbed};
use keiro_linux::process::SIGTERM;
use links::{FAR, Link, NEAR};
use pair::{APP, Monitor, Pair, SIGHUP, Setup, remains};

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro");

/// Time from one message of a flow to the next.
const INTERVAL: Duration = Duration::from_millis(5);

/// Does once more what was not in time while the machine itself paused; `None`, said aloud, where it always
/// does.
fn in_time<T>(once: impl FnMut() -> T, is_in_time: impl Fn(&T) -> bool) -> Option<T> {
    const ALLOWANCE: NoiseAllowance = NoiseAllowance {
        // Of the 50 ms that gateways may take to be scheduled.
        processor: Duration::from_millis(20),
        disk: None,
    };
    /// A machine that was late every time is not waited for again.
    static HINDERED: AtomicBool = AtomicBool::new(false);
    let waited = HINDERED.load(Ordering::Relaxed);
    let patience = Duration::from_secs(if waited { 0 } else { 40 });
    retry_until_undisturbed(ALLOWANCE, patience, once, is_in_time)
        .inspect_err(|disturbed| {
            HINDERED.store(true, Ordering::Relaxed);
            disturbed.skip_test(thread::current().name().unwrap_or("a test"));
        })
        .ok()
}

#[test]
fn messages_of_all_sizes_arrive_once_and_whole() {
    let pair = Pair::start(&Setup::of(&[NEAR, FAR]));
    let lengths = [1, 7, 1000, 1472, 1500, 10_000, 100_000, 1_000_000];
    let count = lengths.len().to_string();
    let received = pair.osaka.site.path("received");
    let mut receive = pair
        .osaka
        .message_command(&["receive", APP, "--count", &count]);
    receive.arg("--output").arg(&received);
    let receiving = pair.osaka.receiving(receive);
    for (number, length) in (0..).zip(lengths) {
        let mut send = pair.tokyo.message_command(&["send", APP]);
        finish(&mut send, &body(number, length))
            .expect_code(0)
            .says(&["1 delivered"]);
    }
    receiving.join().expect("it ends").expect_code(0);
    for (number, length) in (0..).zip(lengths) {
        let file = received.join((number + 1).to_string());
        let content = fs::read(file).expect("received");
        assert!(content == body(number, length), "of {length} bytes");
    }
    assert_eq!(pair.osaka.app(APP)["received_messages"], lengths.len());

    // Many at once, faster than the path carries them.
    let flow = Flow::start(&pair, 50_000, INTERVAL, Some(40));
    flow.wait_for_more(40);
    flow.finish();
}

#[test]
fn a_failed_path_is_noticed_and_left_and_used_again() {
    let round_trip = Duration::from_millis(2 * u64::from(NEAR.delay_ms));
    // On top of 3 RTT + 100 ms, 50 ms for a busy machine to schedule both gateways and us.
    let allowed = 3 * round_trip + Duration::from_millis(100) + Duration::from_millis(50);
    let is_in_time = |times: &[Duration; 2]| times.iter().all(|time| *time <= allowed);
    let Some(times) = in_time(leave_a_failed_path_and_return, is_in_time) else {
        return;
    };
    assert!(is_in_time(&times), "{times:?}, {allowed:?} are allowed");
}

#[test]
fn a_gateway_that_was_kept_from_running_hears_what_has_come_before_it_judges() {
    // signal(7): what no process can refuse or miss.
    const SIGSTOP: i32 = 19;
    const SIGCONT: i32 = 18;
    let pair = Pair::start(&Setup::of(&[NEAR, FAR]));
    let flow = Flow::start(&pair, 1000, INTERVAL, None);
    flow.wait_for_more(50);
    for _ in 0..20 {
        pair.tokyo.process.signal(SIGSTOP).expect("signalled");
        // Longer than either path may be silent, shorter than osaka takes tokyo for gone.
        thread::sleep(Duration::from_millis(170));
        pair.tokyo.process.signal(SIGCONT).expect("signalled");
        flow.wait_for_more(50);
    }
    let log = pair.tokyo.log();
    let silent: Vec<&str> = log
        .lines()
        .filter(|l| l.contains("no packet was received"))
        .collect();
    assert!(silent.is_empty(), "{silent:#?}");
    flow.finish();
}

/// After what time it was noticed, and left.
fn leave_a_failed_path_and_return() -> [Duration; 2] {
    let pair = Pair::start(&Setup::of(&[NEAR, FAR]));
    let monitor = Monitor::start(&pair.tokyo);
    let flow = Flow::start(&pair, 1000, INTERVAL, None);
    flow.wait_for_more(50);
    monitor.forget();

    let cut = SystemTime::now();
    pair.lab.link("near").and_then(|l| l.cut()).expect("cut");
    let down = monitor.wait_for(
        "near is down",
        |kind| matches!(kind, EventKind::PathDown { on, .. } if on.path == "near"),
    );
    let EventKind::PathDown {
        reason,
        silent_seconds: Some(silent),
        limit_seconds: Some(limit),
        ..
    } = down.kind
    else {
        panic!("no numbers: {down:?}")
    };
    assert_eq!(reason, DownReason::Silent);
    assert!(silent >= limit && limit > 0.0, "{silent} s of {limit} s");
    let moved = monitor.wait_for("the application moves away", is_move("near", "far"));
    assert_eq!(reason_of(&moved), MoveReason::PathDown);
    flow.wait_for_more(50);
    assert_eq!(pair.tokyo.path("near")["state"], "down");
    assert_eq!(pair.tokyo.app(APP)["path"], "far");

    pair.lab
        .link("near")
        .and_then(|l| l.mend())
        .expect("mended");
    monitor.wait_for(
        "near is up again",
        |kind| matches!(kind, EventKind::PathUp { on, .. } if on.path == "near"),
    );
    let back = monitor.wait_for("the application comes back", is_move("far", "near"));
    assert!(
        matches!(reason_of(&back), MoveReason::PathUp | MoveReason::Plan),
        "{back:?}"
    );
    flow.wait_for_more(50);
    assert_eq!(pair.tokyo.app(APP)["path"], "near");
    flow.finish();
    [since(cut, &down), since(cut, &moved)]
}

/// What the figures ask for.
const BROWNOUT_MAX: Duration = Duration::from_secs(2);

#[test]
fn a_brownout_is_left_within_two_seconds_and_loses_nothing() {
    let is_in_time = |took: &Duration| *took <= BROWNOUT_MAX;
    let Some(took) = in_time(leave_a_brownout, is_in_time) else {
        return;
    };
    assert!(is_in_time(&took), "{took:?}");
}

/// After what time it was left.
fn leave_a_brownout() -> Duration {
    let pair = Pair::start(&Setup::of(&[NEAR, FAR]));
    // Both meet it, so that the far one is taken and the near one stays free.
    let patient = pair
        .tokyo
        .configuration()
        .replace("latency_target = \"15ms\"", "latency_target = \"40ms\"");
    pair.tokyo.site.write("gateway.toml", &patient);
    let monitor = Monitor::start(&pair.tokyo);
    pair.tokyo.process.signal(SIGHUP).expect("signalled");
    let flow = Flow::start(&pair, 1000, INTERVAL, None);
    flow.wait_for_more(50);
    eventually("the application is on the far path", || {
        (pair.tokyo.app(APP)["path"] == "far").then_some(())
    });
    flow.wait_for_more(200);
    monitor.forget();

    let longer = Duration::from_millis(u64::from(FAR.delay_ms) + 80);
    let begun = SystemTime::now();
    let far = pair.lab.link("far").expect("it is there");
    far.change(|config| config.delay = longer).expect("changed");
    let moved = monitor.wait_for("the application moves away", is_move("far", "near"));
    // For four times the round trip nothing is heard: it may be taken for dead at first.
    assert!(
        matches!(reason_of(&moved), MoveReason::Plan | MoveReason::PathDown),
        "{moved:?}"
    );
    flow.wait_for_more(200);
    eventually("the far path is up", || {
        (pair.tokyo.path("far")["state"] == "up").then_some(())
    });
    flow.wait_for_more(400);
    assert_eq!(pair.tokyo.app(APP)["path"], "near");
    flow.finish();
    since(begun, &moved)
}

/// By so little that the path is not taken for dead, while most of what was measured is from before:
/// the plan alone has to see it.
#[test]
fn a_brownout_that_kills_no_path_is_left_within_two_seconds() {
    let is_in_time = |(reason, took): &(MoveReason, Duration)| {
        *reason == MoveReason::Plan && *took <= BROWNOUT_MAX
    };
    let Some(found) = in_time(leave_a_brownout_by_plan, is_in_time) else {
        return;
    };
    assert!(is_in_time(&found), "{found:?}");
}

/// Why it was left, and after what time.
fn leave_a_brownout_by_plan() -> (MoveReason, Duration) {
    let slowly = 4 * INTERVAL;
    let pair = Pair::start(&Setup::of(&[NEAR, FAR]));
    let patient = pair
        .tokyo
        .configuration()
        .replace("latency_target = \"15ms\"", "latency_target = \"30ms\"")
        .replace("interval = \"5ms\"", "interval = \"20ms\"");
    assert!(patient.contains("30ms") && patient.contains("20ms"));
    pair.tokyo.site.write("gateway.toml", &patient);
    let monitor = Monitor::start(&pair.tokyo);
    pair.tokyo.process.signal(SIGHUP).expect("signalled");
    let flow = Flow::start(&pair, 1000, slowly, None);
    flow.wait_for_more(50);
    eventually("the application is on the far path", || {
        (pair.tokyo.app(APP)["path"] == "far").then_some(())
    });
    // Its delay is judged by measurement.
    flow.wait_for_more(300);
    monitor.forget();

    let begun = SystemTime::now();
    let far = pair.lab.link("far").expect("it is there");
    far.change(|config| config.delay = Duration::from_millis(u64::from(FAR.delay_ms) + 20))
        .expect("changed");
    let moved = monitor.wait_for("the application moves away", is_move("far", "near"));
    flow.wait_for_more(50);
    flow.finish();
    (reason_of(&moved), since(begun, &moved))
}

fn is_move(away: &str, to_path: &str) -> impl Fn(&EventKind) -> bool {
    move |kind| {
        matches!(kind, EventKind::AppMoved { app, from, to, .. }
            if app == APP && from.as_deref() == Some(away) && to.as_deref() == Some(to_path))
    }
}

fn reason_of(event: &Event) -> MoveReason {
    match event.kind {
        EventKind::AppMoved { reason, .. } => reason,
        _ => panic!("no move: {event:?}"),
    }
}

fn since(then: SystemTime, event: &Event) -> Duration {
    event.time.0.duration_since(then).unwrap_or_default()
}

#[test]
fn a_reload_loses_nothing_and_a_broken_one_changes_nothing() {
    // A path that is silent for as long as the machine pauses is not lost by a reload.
    let is_in_time = |lost: &Option<Event>| lost.is_none();
    let Some(lost) = in_time(reload_while_messages_flow, is_in_time) else {
        return;
    };
    assert_eq!(lost, None);
}

/// The first path or peer that was lost meanwhile.
fn reload_while_messages_flow() -> Option<Event> {
    let pair = Pair::start(&Setup::of(&[NEAR, FAR]));
    let monitor = Monitor::start(&pair.tokyo);
    let flow = Flow::start(&pair, 1000, INTERVAL, None);
    flow.wait_for_more(20);
    let good = pair.tokyo.configuration();

    monitor.forget();
    let changed = good.replace("latency_target = \"15ms\"", "latency_target = \"14ms\"");
    let added = "[[app]]\nname = \"alarms\"\nclass = \"message\"\npeer = \"osaka\"\n";
    pair.tokyo
        .site
        .write("gateway.toml", &format!("{changed}{added}"));
    pair.tokyo.process.signal(SIGHUP).expect("signalled");
    let reloaded = monitor.wait_for("the reload is notified", |kind| {
        matches!(kind, EventKind::Reloaded { .. })
    });
    let EventKind::Reloaded { changes } = reloaded.kind else {
        unreachable!("waited for")
    };
    assert_eq!(changes.apps.changed, [APP]);
    assert_eq!(changes.apps.added, ["alarms"]);
    assert_eq!(pair.tokyo.app(APP)["latency_target_seconds"], 0.014);
    flow.wait_for_more(20);

    let broken = good.replace("latency_target = \"15ms\"", "latency_target = \"15Mbit\"");
    pair.tokyo.site.write("gateway.toml", &broken);
    pair.tokyo.process.signal(SIGHUP).expect("signalled");
    let rejected = monitor.wait_for("the refusal is notified", |kind| {
        matches!(kind, EventKind::ConfigRejected { .. })
    });
    let EventKind::ConfigRejected { problems, first } = rejected.kind else {
        unreachable!("waited for")
    };
    assert!(
        problems == 1 && first.contains("gateway.toml:") && first.contains("Mbit"),
        "{first}"
    );
    let status = pair.tokyo.ask(&["status"]).expect_code(0).stdout;
    assert!(status.contains("last reload was refused"), "{status}");
    assert!(pair.tokyo.log().contains("reload refused"));
    assert_eq!(pair.tokyo.app(APP)["latency_target_seconds"], 0.014);
    pair.tokyo.app("alarms");

    flow.wait_for_more(20);
    let lost_path = monitor.find(|kind| {
        matches!(
            kind,
            EventKind::PathDown { .. } | EventKind::PeerDown { .. }
        )
    });
    flow.finish();
    lost_path
}

#[test]
fn a_stopped_gateway_delivers_what_it_took_over() {
    let pair = Pair::start(&Setup::of(&[NEAR, FAR]));
    let monitor = Monitor::start(&pair.osaka);
    // Three times what the path carries, so much is in flight when it is asked to stop.
    let mut flow = Flow::start(&pair, 20_000, Duration::from_millis(1), None);
    flow.wait_for_more(20);
    let taken = pair.tokyo.app(APP)["sent_messages"].as_u64();
    let taken = taken.expect("a number");
    let before = flow.received();
    pair.tokyo.process.signal(SIGTERM).expect("signalled");
    let status = pair.tokyo.process.wait(LIMIT).expect("a status");
    assert_eq!(status.and_then(|s| s.code()), Some(0));
    let sent = flow.stop();
    let tally = flow.settle();
    tally.assert_once_and_whole();
    let received = tally.received.len() as u64;
    assert!(before < taken, "nothing was under way: {before} of {taken}");
    assert!(received >= taken, "{received} of {taken} taken over");
    // Nothing was acknowledged that did not come, and the rest was refused rather than forgotten.
    for (id, outcome) in &tally.acks {
        match outcome {
            Outcome::Delivered => assert!(tally.received.contains_key(id), "{id}"),
            refused => assert_eq!(*refused, Outcome::Refused(RefusedReason::Stopping)),
        }
    }
    let delivered = tally.acks.values().filter(|o| **o == Outcome::Delivered);
    assert_eq!(delivered.count(), tally.received.len());
    assert!(sent > received, "nothing was refused while it stopped");

    let down = monitor.wait_for("the peer is notified", |kind| {
        matches!(kind, EventKind::PeerDown { .. })
    });
    assert!(
        matches!(
            down.kind,
            EventKind::PeerDown {
                reason: DownReason::PeerClosed,
                ..
            }
        ),
        "{down:?}"
    );
    for socket in ["control.sock", "message.sock"] {
        assert!(!pair.tokyo.site.path(socket).exists(), "{socket}");
    }
    let lab = pair.lab.name().to_owned();
    assert!(!remains(&lab).is_empty());
    pair.lab.down().expect("removed");
    assert_eq!(remains(&lab), Vec::<String>::new());
    let status = pair.osaka.process.wait(LIMIT).expect("a status");
    assert_eq!(
        status.and_then(|s| s.code()),
        Some(0),
        "osaka had SIGTERM too"
    );
    assert!(!pair.osaka.site.path("control.sock").exists());
}

#[test]
fn a_stopped_gateway_does_not_wait_for_a_failed_path_for_ever() {
    // As docs/operations.md says.
    const DRAIN: Duration = Duration::from_secs(5);
    let pair = Pair::start(&Setup::of(&[NEAR]));
    pair.lab.link("near").and_then(|l| l.cut()).expect("cut");
    let mut flow = Flow::start(&pair, 1000, INTERVAL, Some(5));
    eventually("the messages are taken over", || {
        (pair.tokyo.app(APP)["sent_messages"] == 5).then_some(())
    });
    let reported = SystemTime::now();
    pair.tokyo.process.signal(SIGTERM).expect("signalled");
    let status = pair.tokyo.process.wait(LIMIT).expect("a status");
    let took = reported.elapsed().expect("the clock goes on");
    assert_eq!(status.and_then(|s| s.code()), Some(0));
    assert!(took >= DRAIN, "gave up after {took:?}");
    // Beyond the wait, the farewell and a busy machine.
    assert!(
        took <= DRAIN + Duration::from_secs(2),
        "ended after {took:?}"
    );
    let log = pair.tokyo.log();
    assert!(log.contains("not everything was delivered"), "{log}");
    flow.stop();
    assert!(flow.settle().received.is_empty(), "over a cut link");
}

#[test]
fn the_service_manager_is_notified() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(LIMIT)).expect("a limit");
    let pair = Pair::start(&Setup {
        environment: vec![("NOTIFY_SOCKET".into(), shown(&socket))],
        ..Setup::of(&[NEAR])
    });
    // Every message up to the one with this line.
    let heard_until = |wanted: &str| {
        let mut lines = Vec::new();
        while !lines.iter().any(|line| line == wanted) {
            let mut bytes = [0; 4096];
            let length = manager
                .recv(&mut bytes)
                .unwrap_or_else(|e| panic!("no {wanted}: {e}; heard {lines:?}"));
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            lines.extend(text.lines().map(str::to_owned));
        }
        lines
    };
    heard_until("READY=1");
    pair.tokyo.process.signal(SIGHUP).expect("signalled");
    let reloading = heard_until("RELOADING=1");
    // systemd.service(5), Type=notify-reload: without it the reload never ends.
    assert!(
        reloading.iter().any(|l| l.starts_with("MONOTONIC_USEC=")),
        "{reloading:?}"
    );
    heard_until("READY=1");
    pair.tokyo.process.signal(SIGTERM).expect("signalled");
    heard_until("STOPPING=1");
    let status = pair.tokyo.process.wait(LIMIT).expect("a status");
    assert_eq!(status.and_then(|s| s.code()), Some(0));
}

#[test]
fn what_an_idle_path_carries_is_measured() {
    let pair = Pair::start(&Setup::of(&[NEAR]));
    // Of the link; the gateways are configured with less.
    let carries = 50e6;
    eventually("the capacity is found", || {
        let found = pair.tokyo.path("near")["capacity"]["rate_bits_per_second"].as_f64()?;
        ((found / carries - 1.0).abs() <= 0.05).then_some(())
    });
}

#[test]
fn messages_enter_over_loopback_tcp_where_it_is_configured() {
    const TCP: &str = "127.0.0.1:7601";
    let tcp = |pair: &Pair, host: &str, args: &[&str]| {
        let host = pair.lab.host(host).expect("a host");
        let mut command = host.command(env!("CARGO_BIN_EXE_keiro"));
        command.args(args).args(["--tcp", TCP]);
        command
    };
    let pair = Pair::start(&Setup {
        gateway: format!("message_tcp = \"{TCP}\"\n"),
        ..Setup::of(&[NEAR])
    });
    let receive = tcp(&pair, "osaka", &["receive", APP, "--count", "1"]);
    let receiving = pair.osaka.receiving(receive);
    let mut send = tcp(&pair, "tokyo", &["send", APP]);
    finish(&mut send, b"over TCP")
        .expect_code(0)
        .says(&["1 delivered"]);
    let received = receiving.join().expect("it ends").expect_code(0);
    assert_eq!(received.stdout, "over TCP");
    // It is not reachable from the machine's other networks.
    finish(&mut keiro(["send", APP, "--tcp", TCP]), b"x").expect_code(1);
    drop(pair);

    let pair = Pair::start(&Setup::of(&[NEAR]));
    let host = pair.lab.host("tokyo").expect("a host");
    let sockets = host
        .command("cat")
        .args(["/proc/net/tcp", "/proc/net/tcp6"])
        .output();
    let sockets = String::from_utf8(sockets.expect("read").stdout).expect("text");
    let listed = sockets.lines().filter(|l| !l.contains("local_address"));
    assert_eq!(listed.count(), 0, "{sockets}");
    let mut send = tcp(&pair, "tokyo", &["send", APP]);
    finish(&mut send, b"x")
        .expect_code(1)
        .says(&["no gateway takes messages at 127.0.0.1:7601", "message_tcp"]);
}

#[test]
fn a_link_of_smaller_packets_is_found_out() {
    packets_fit(Link { mtu: 1400, ..NEAR });
}

#[test]
fn a_wire_of_smaller_packets_halfway_is_found_out() {
    packets_fit(Link {
        mtu_halfway: Some(1400),
        ..NEAR
    });
}

/// The gateways may send packets of 1500 bytes, and 1400 pass.
#[track_caller]
fn packets_fit(link: Link) {
    let pair = Pair::start(&Setup::of(&[link]));
    let flow = Flow::start(&pair, 100_000, Duration::from_millis(20), Some(20));
    flow.wait_for_more(20);
    for gateway in [&pair.tokyo, &pair.osaka] {
        let mtu = eventually("a larger packet than the smallest passes", || {
            let mtu = gateway.path("near")["mtu_bytes"].as_u64()?;
            (mtu > 1280).then_some(mtu)
        });
        assert!(mtu <= 1400, "{mtu}");
    }
    flow.finish();
}
