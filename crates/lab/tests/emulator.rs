//! The link emulator carries packets as configured. Needs root.

mod support;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use keiro_lab::{
    Lab,
    emulator::{
        Direction, Report,
        measure::{self, Observation, PathEnd, Traffic},
    },
    host_noise::retry_until_on_time,
};
use keiro_link::{Buffer, LinkConfig, Loss};
use keiro_units::{Bandwidth, Probability};

const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const B: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Time limit for repeating runs in which the emulator was late.
const PATIENCE: Duration = Duration::from_secs(20);

/// Tests that run in parallel would make each other late.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two hosts `a` and `b` with one emulated link `path`.
fn lab() -> Lab {
    let text = "[host.a]\n[host.b]\n[link.path]\nemulated = true\n\
                a = { host = \"a\", addresses = [\"192.0.2.1/30\"] }\n\
                b = { host = \"b\", addresses = [\"192.0.2.2/30\"] }\n";
    support::up(&support::topology(text), &support::unique_name())
}

fn end(lab: &Lab, host: &str, address: Ipv4Addr) -> PathEnd {
    let netns = lab.host(host).unwrap().namespace().to_owned();
    PathEnd {
        netns,
        interface: "path".into(),
        address,
    }
}

/// Configures the direction from `a` to `b` and sends traffic along it.
fn observe(lab: &Lab, config: LinkConfig, traffic: Traffic) -> (Observation, Report) {
    lab.link("path")
        .unwrap()
        .set(Direction::AToB, config)
        .unwrap();
    lab.measure_from_now().unwrap();
    let observation = measure::observe(&end(lab, "a", A), &end(lab, "b", B), traffic).unwrap();
    (observation, lab.emulator_report().unwrap().unwrap())
}

/// Like [`observe`], repeated until the emulator was punctual; `None`, with a report, if the host's
/// hypervisor prevents that.
fn observe_valid(lab: &Lab, config: LinkConfig, traffic: Traffic) -> Option<Observation> {
    let observation =
        retry_until_on_time(lab, PATIENCE, || observe(lab, config, traffic).0, |_| false);
    observation
        .unwrap()
        .inspect_err(|late| late.skip_test(thread::current().name().unwrap_or("a test")))
        .ok()
}

fn packets(packets: u32, interval: Duration) -> Traffic {
    Traffic {
        packets,
        interval,
        ip_bytes: 200,
        patience: Duration::from_millis(500),
    }
}

fn probability(value: f64) -> Probability {
    Probability::new(value).unwrap()
}

#[test]
fn delay_is_the_one_configured_and_order_is_kept() {
    let _alone = alone();
    let lab = lab();
    for delay in [Duration::from_millis(2), Duration::from_millis(100)] {
        let config = LinkConfig {
            delay,
            ..LinkConfig::default()
        };
        let traffic = packets(200, Duration::from_micros(3_137));
        let Some(observation) = observe_valid(&lab, config, traffic) else {
            return;
        };
        assert_eq!(
            (observation.packets_sent(), observation.packets_received()),
            (200, 200)
        );
        assert_eq!(observation.packets_overtaken(), 0);
        let error = observation.delay_error(delay).unwrap();
        // For its accuracy see examples/emulator_accuracy.rs. Here packets must never be early, and no later
        // than a valid run permits.
        assert!(
            (-5.0..200.0).contains(&error.p50_micros),
            "{delay:?}: {error:?}"
        );
    }
}

#[test]
fn rate_is_exact() {
    let _alone = alone();
    let lab = lab();
    let config = LinkConfig {
        rate: Some(Bandwidth::from_mbit_per_second(100)),
        // Outlasts a sender that is delayed by up to 60 ms.
        buffer: Buffer::Packets(500),
        ..LinkConfig::default()
    };
    let traffic = Traffic {
        packets: 14_000,
        interval: Duration::from_micros(100),
        ip_bytes: 1500,
        patience: Duration::from_millis(500),
    };
    let Some(observation) = observe_valid(&lab, config, traffic) else {
        return;
    };
    assert_eq!(observation.packets_overtaken(), 0);
    let rate = observation.rate(Duration::from_millis(300)).unwrap();
    assert!((rate / 100e6 - 1.0).abs() <= 0.005, "{rate} bit/s");
}

#[test]
fn impairments_do_what_they_say_in_their_direction_only() {
    let _alone = alone();
    let lab = lab();
    let config = LinkConfig {
        loss: Loss::Bernoulli(probability(0.3)),
        duplicate: Probability::ONE,
        ..LinkConfig::default()
    };
    let (observation, report) = observe(&lab, config, packets(1000, Duration::from_micros(200)));
    let arrived = observation
        .arrived()
        .into_iter()
        .filter(|arrived| *arrived)
        .count();
    assert_eq!(observation.packets_received(), 2 * arrived);
    // Six standard deviations around 700.
    assert!((613..=787).contains(&arrived), "{arrived}");
    let counters = report.link("path").unwrap().a_to_b.link;
    assert!(counters.drops.loss >= 1000 - arrived as u64);
    assert_eq!(report.frames_lost(), 0);

    let (from, to) = (end(&lab, "b", B), end(&lab, "a", A));
    let observation =
        measure::observe(&from, &to, packets(200, Duration::from_micros(200))).unwrap();
    assert_eq!(
        (observation.packets_sent(), observation.packets_received()),
        (200, 200)
    );
}

#[test]
fn corrupted_packets_fail_their_checksum() {
    let _alone = alone();
    let lab = lab();
    let config = LinkConfig {
        corrupt: Probability::ONE,
        ..LinkConfig::default()
    };
    let (observation, report) = observe(&lab, config, packets(300, Duration::from_micros(200)));
    // The tap captures before checksums are verified. A bit error in the magic hides a packet.
    assert!(observation.packets_received() <= 300);
    assert!(report.link("path").unwrap().a_to_b.link.corrupted_packets >= 300);
    let delivered = lab.host("b").unwrap().run(|| {
        let counters = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        let udp: Vec<_> = counters
            .lines()
            .filter(|line| line.starts_with("Udp:"))
            .collect();
        let column = udp[0]
            .split(' ')
            .position(|name| name == "InDatagrams")
            .unwrap();
        udp[1]
            .split(' ')
            .nth(column)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    });
    assert_eq!(delivered.unwrap(), 0);
}

#[test]
fn change_comes_into_force_while_packets_are_under_way() {
    let _alone = alone();
    let lab = lab();
    let slow = LinkConfig {
        delay: Duration::from_secs(20),
        ..LinkConfig::default()
    };
    let (observation, _) = observe(&lab, slow, packets(10, Duration::from_millis(1)));
    assert_eq!(observation.packets_received(), 0);
    // Packets in transit stay there, and later ones must not overtake unless allowed.
    let fast = LinkConfig {
        jitter_overtakes: true,
        ..LinkConfig::default()
    };
    let (observation, report) = observe(&lab, fast, packets(10, Duration::from_millis(1)));
    assert_eq!(observation.packets_received(), 10);
    let counters = report.link("path").unwrap().a_to_b.link;
    assert!(counters.arrived_packets - counters.departed_packets >= 10);
    // Cutting the link destroys them.
    lab.link("path").unwrap().cut().unwrap();
    let report = lab.emulator_report().unwrap().unwrap();
    let counters = report.link("path").unwrap().a_to_b.link;
    assert_eq!(
        counters.arrived_packets,
        counters.departed_packets + counters.drops.down
    );
}

#[test]
fn stream_passes_unharmed_in_packets_no_larger_than_the_mtu() {
    const BYTES: usize = 3_000_000;
    let _alone = alone();
    let lab = lab();
    let config = LinkConfig {
        rate: Some(Bandwidth::from_mbit_per_second(200)),
        delay: Duration::from_millis(1),
        ..LinkConfig::default()
    };
    lab.link("path")
        .unwrap()
        .change(|current| *current = config)
        .unwrap();
    let listener = lab
        .host("b")
        .unwrap()
        .run(|| TcpListener::bind((B, 0)).unwrap())
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let sent: Vec<u8> = (0..BYTES).map(|i| (i * 31 % 251) as u8).collect();
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut received = Vec::new();
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = lab
            .host("a")
            .unwrap()
            .run(|| TcpStream::connect((B, port)).unwrap())
            .unwrap();
        stream.write_all(&sent).unwrap();
        drop(stream);
        receiver.join().unwrap()
    });
    assert!(
        received == sent,
        "{} of {BYTES} bytes, or wrong ones",
        received.len()
    );
    let report = lab.emulator_report().unwrap().unwrap();
    for direction in [report.links[0].a_to_b, report.links[0].b_to_a] {
        assert_eq!(
            (direction.oversized, direction.checksum_missing),
            (0, 0),
            "{direction:?}"
        );
    }
}

#[test]
fn emulator_outlives_its_interfaces_without_burning_a_cpu() {
    let _alone = alone();
    let lab = lab();
    let namespace = lab.host("a").unwrap().namespace();
    let wire = format!("{}-wire", namespace.strip_suffix("-a").unwrap());
    let removed = Command::new("ip")
        .args(["-n", &wire, "link", "delete", "path-a"])
        .status()
        .unwrap();
    assert!(removed.success());
    let before = lab.emulator_report().unwrap().unwrap();
    thread::sleep(Duration::from_millis(300));
    let after = lab.emulator_report().unwrap().unwrap();
    let used = after.cpu_time - before.cpu_time;
    let passed = after.running - before.running;
    assert!(used < passed / 2, "{used:?} of CPU time in {passed:?}");
}
