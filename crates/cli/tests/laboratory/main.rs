//! Two real gateways in network namespaces: what they carry, and what happens to it when paths
//! die, configurations change and gateways stop. Needs root and iproute2, and fails without.

mod flow;
#[path = "../harness/mod.rs"]
mod harness;
mod pair;

use std::{
    fs,
    time::{Duration, SystemTime},
};

use flow::{Flow, body};
use harness::finish;
use keiro_control::protocol::{DownReason, Event, EventKind, MoveReason};
use pair::{APP, FAR, Monitor, NEAR, Pair, Setup};

/// Time from one message of a flow to the next.
const INTERVAL: Duration = Duration::from_millis(5);

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
    assert_eq!(pair.osaka.app(APP)["messages_received"], lengths.len());

    // Many at once, faster than the path carries them.
    let flow = Flow::start(&pair, 50_000, INTERVAL, Some(40));
    flow.wait_for_more(40);
    flow.finish();
}

#[test]
fn a_dead_path_is_noticed_and_left_and_taken_again() {
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
    let noticed = since(cut, &down);
    let round_trip = Duration::from_millis(2 * u64::from(NEAR.delay_ms));
    // On top of 3 RTT + 100 ms, 50 ms for a busy machine to schedule both gateways and us.
    let allowed = 3 * round_trip + Duration::from_millis(100) + Duration::from_millis(50);
    assert!(noticed <= allowed, "{noticed:?}, {allowed:?} are allowed");
    let moved = monitor.wait_for("the application moves away", is_move("near", "far"));
    assert_eq!(reason_of(&moved), MoveReason::PathDown);
    assert!(since(cut, &moved) <= allowed, "{moved:?}");
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
