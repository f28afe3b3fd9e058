//! Tenants' devices that others set down, rename, or take the place of, and those that are wider than the
//! path.

use std::{
    io::{Read, Write},
    thread,
};

use keiro_control::protocol::EventKind;
use socket2::SockRef;

use crate::{
    gateways::{Gateways, MIB, NARROW, TOPOLOGY, tenant},
    harness::{LIMIT, Ran, eventually, run, shown},
};

fn reload(gateways: &Gateways) -> Ran {
    run(["reload", "--socket", &control(gateways)]).expect_code(0)
}

fn control(gateways: &Gateways) -> String {
    shown(&gateways.sites[0].path("control.sock"))
}

fn log(gateways: &Gateways) -> String {
    std::fs::read_to_string(gateways.sites[0].path("log")).expect("a log")
}

/// Of blue's device: what `show` and Prometheus have.
fn state(gateways: &Gateways) -> (String, bool) {
    let tenant = gateways.tenant(0, "blue");
    let state = tenant["device_state"].as_str().expect("a state").to_owned();
    let page = gateways.metrics(0);
    let up = |value: u8| {
        page.contains(&format!(
            "keiro_tenant_device_up{{tenant=\"blue\"}} {value}"
        ))
    };
    assert!(up(0) || up(1), "{page}");
    (state, up(1))
}

#[test]
fn a_device_that_is_set_down_or_renamed_is_reported_until_it_serves_again() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, "table = 101\n"));
    gateways.ping(0, "10.2.0.1", Some("t-blue"));
    assert_eq!(state(&gateways), ("up".to_owned(), true));
    let mut monitor = gateways.monitor(0);
    let mut reported = |event: &str| {
        monitor.next(|kind| {
            let name = kind.name();
            match kind {
                EventKind::DeviceDown {
                    tenant,
                    device,
                    reason,
                } if name == event => Some((tenant, device, reason)),
                EventKind::DeviceUp { tenant, device, .. } if name == event => {
                    Some((tenant, device, String::new()))
                }
                _ => None,
            }
        })
    };
    let blue = |reason: &str| ("blue".to_owned(), "t-blue".to_owned(), reason.to_owned());

    gateways.ip(0, "link set t-blue down");
    let was_set_down = "it was set down (`ip link set t-blue up`)";
    assert_eq!(reported("device_down"), blue(was_set_down));
    assert_eq!(state(&gateways), ("down".to_owned(), false));
    let status = gateways.ask(0, &["status"]).expect("an answer");
    assert_eq!(status["tenants_with_device"], 0, "{status:#}");
    let text = run(["show", "tenant", "blue", "--socket", &control(&gateways)]);
    let text = text.expect_code(0).stdout;
    assert!(text.contains(&format!(", down: {was_set_down}")), "{text}");
    reload(&gateways).says(&[&format!(
        "tenant `blue`: its device t-blue does not serve it: {was_set_down}"
    )]);
    gateways.ip(0, "link set t-blue up");
    assert_eq!(reported("device_up"), blue(""));
    assert_eq!(state(&gateways), ("up".to_owned(), true));
    gateways.ping(0, "10.2.0.1", Some("t-blue"));

    gateways.ip(0, "link set t-blue down");
    assert_eq!(reported("device_down"), blue(was_set_down));
    gateways.ip(0, "link set t-blue name t-other");
    gateways.ip(0, "link set t-other up");
    let (_, _, reason) = reported("device_down");
    assert!(
        reason.starts_with("it was renamed to `t-other`, "),
        "{reason}"
    );
    assert_eq!(state(&gateways), ("renamed".to_owned(), false));
    for command in ["t-other down", "t-other name t-blue", "t-blue up"] {
        gateways.ip(0, &format!("link set {command}"));
    }
    assert_eq!(reported("device_up"), blue(""));
    gateways.ping(0, "fd00:2::1", Some("t-blue"));
    gateways.ping(0, "10.2.0.1", Some("t-blue"));
    // That there are no routes into what is down is no second problem.
    let log = log(&gateways);
    assert!(!log.contains("the kernel refuses"), "{log}");
}

#[test]
fn a_device_that_cannot_be_made_again_is_reported_by_reload_and_ends_with_another_name() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, ""));
    let mut monitor = gateways.monitor(0);
    for command in [
        "set t-blue down",
        "set t-blue name t-away",
        "add t-blue type veth peer name t-veth",
        "delete t-away",
    ] {
        gateways.ip(0, &format!("link {command}"));
    }
    monitor.next(|kind| matches!(kind, EventKind::DeviceLost { .. }).then_some(()));
    let why = "interface `t-blue` is there already";
    eventually("it is said why", || {
        let tenant = gateways.tenant(0, "blue");
        let problem = tenant["device_problem"].as_str()?;
        (tenant["device_state"] == "missing" && problem.contains(why)).then_some(())
    });
    reload(&gateways).says(&[&format!(
        "tenant `blue`: its device t-blue is missing: {why}"
    )]);
    let file = gateways.sites[0].path("gateway.toml");
    let text = std::fs::read_to_string(&file).expect("a file");
    let elsewhere = text.replacen("device = \"t-blue\"", "device = \"t-new\"", 1);
    gateways.sites[0].write("gateway.toml", &elsewhere);
    let ran = reload(&gateways);
    assert!(!ran.stderr.contains("missing"), "{ran:#?}");
    let restored = monitor.next(|kind| match kind {
        EventKind::DeviceRestored { tenant, device, .. } => Some((tenant, device)),
        _ => None,
    });
    assert_eq!(restored, ("blue".to_owned(), "t-new".to_owned()));
    gateways.ip(0, "link delete t-blue");
    gateways.ping(0, "10.2.0.1", None);
}

#[test]
fn a_device_that_is_moved_to_another_namespace_is_made_again() {
    let gateways = Gateways::start(|own| {
        // Each by another name, for one is taken to the other's namespace.
        tenant(own, "blue", 1, "table = 101\n").replace("t-blue", &format!("t-blue{own}"))
    });
    // Its addresses and routes are there: what is still being set up would not find the interface.
    gateways.ping(0, "10.2.0.1", Some("t-blue0"));
    let mut monitor = gateways.monitor(0);
    gateways.ip(0, &format!("link set t-blue0 netns {}", gateways.pid(1)));
    let lost = monitor.next(|kind| match kind {
        EventKind::DeviceLost {
            tenant,
            device,
            reason,
        } => Some((tenant, device, reason)),
        _ => None,
    });
    let reason = "the TUN device was moved to another network namespace".to_owned();
    assert_eq!(lost, ("blue".to_owned(), "t-blue0".to_owned(), reason));
    monitor.next(|kind| matches!(kind, EventKind::DeviceRestored { .. }).then_some(()));
    assert_eq!(state(&gateways), ("up".to_owned(), true));
    gateways.ping(0, "10.2.0.1", Some("t-blue0"));
    gateways.ping(0, "fd00:2::1", Some("t-blue0"));
    eventually("the other one is closed", || {
        (!gateways.ip(1, "link show").contains("t-blue0")).then_some(())
    });
    let log = log(&gateways);
    assert!(!log.contains("no such interface"), "{log}");
}

/// The path from a is narrower than the one to it, so that only a knows what segments fit: it has to lower
/// what a SYN from b asks for.
#[test]
fn a_syn_by_a_wider_path_asks_for_what_fits_the_way_back() {
    let gateways = Gateways::start_with(TOPOLOGY, "400Mbit", |own, text| {
        let text = match own {
            0 => text.replacen("mtu_max = \"1500B\"", NARROW, 1),
            _ => text,
        };
        text + &tenant(own, "blue", 1, "weight = 1\n")
    });
    let whole_segments = |to: &str| {
        // The device takes 1400 bytes, the path of 1380 less than 100 fewer of a packet, and that of 1280 with
        // which it begins again where it fails for a moment.
        let header = if to.contains(':') { 60 + 12 } else { 40 + 12 };
        let fits = 1380 - 100 - header..1380 - 28 - header;
        let what = format!("segments to {to} fit, {fits:?}");
        // From a, who was asked by b.
        let (mut here, mut sender) = eventually(&what, || {
            let (here, sender) = gateways.connect(1, to, None);
            let segment = SockRef::from(&sender).tcp_mss().expect("a segment");
            fits.contains(&segment).then_some((here, sender))
        });
        here.set_read_timeout(Some(LIMIT)).expect("set");
        sender.set_write_timeout(Some(LIMIT)).expect("set");
        thread::scope(|scope| {
            scope.spawn(move || sender.write_all(&vec![0x5a; MIB]).expect("sent"));
            let mut bytes = Vec::new();
            here.read_to_end(&mut bytes).expect("received");
            assert_eq!(bytes.len(), MIB);
        });
    };
    whole_segments("10.1.0.1");
    whole_segments("fd00:1::1");
    // The tenant is made anew, and the path says nothing new.
    let file = gateways.sites[0].path("gateway.toml");
    let text = std::fs::read_to_string(&file).expect("a file");
    let heavier = text.replacen("weight = 1\n", "weight = 2\n", 1);
    gateways.sites[0].write("gateway.toml", &heavier);
    reload(&gateways);
    whole_segments("10.1.0.1");
}
