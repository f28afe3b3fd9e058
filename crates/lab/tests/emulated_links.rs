//! Emulated links as seen by hosts: delay, and changes while the laboratory runs.

mod support;

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use keiro_lab::{Lab, LabError, Topology, emulator::Direction};
use keiro_link::Trace;
use keiro_testing::wait_until;
use support::{topology, unique_name, up};

const TWO_PATHS: &str = r#"
[host.tokyo]
[host.osaka]
[link.path1]
a = { host = "tokyo", addresses = ["192.0.2.1/24"] }
b = { host = "osaka", addresses = ["192.0.2.2/24", "2001:db8::2/64"] }
each_way = { rate = "100Mbit", delay = "2ms", buffer = "64KiB" }
[link.plain]
a = { host = "tokyo", addresses = ["198.51.100.1/24"] }
b = { host = "osaka", addresses = ["198.51.100.2/24"] }
"#;

/// Echoes packets to `address` in osaka until it receives "end"; requests are sent from tokyo.
struct Echo<'a> {
    lab: &'a Lab,
    socket: UdpSocket,
    at: SocketAddr,
    server: Option<thread::JoinHandle<()>>,
}

impl<'a> Echo<'a> {
    fn new(lab: &'a Lab, from: &str, at: &str) -> Self {
        let at: SocketAddr = at.parse().unwrap();
        let bind = |host: &str, to: SocketAddr| {
            let host = lab.host(host).unwrap();
            host.run(|| UdpSocket::bind(to)).unwrap().unwrap()
        };
        let answering = bind("osaka", at);
        let server = thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((length, from)) = answering.recv_from(&mut buffer) {
                let _ = answering.send_to(&buffer[..length], from);
                if &buffer[..length] == b"end" {
                    return;
                }
            }
        });
        let socket = bind("tokyo", from.parse().unwrap());
        Self {
            lab,
            socket,
            at,
            server: Some(server),
        }
    }

    /// The round trip of one packet; `None` if no answer came within `timeout`.
    fn round_trip(&self, timeout: Duration) -> Option<Duration> {
        let start = Instant::now();
        self.socket.set_read_timeout(Some(timeout)).unwrap();
        self.socket.send_to(b"echo", self.at).unwrap();
        match self.socket.recv(&mut [0; 64]) {
            Ok(_) => Some(start.elapsed()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The shortest of some round trips: that of the path, without the machine's delays.
    fn best_of(&self, count: u32) -> Duration {
        let trips = (0..count).filter_map(|_| self.round_trip(Duration::from_secs(2)));
        trips.min().expect("no answer at all")
    }
}

impl Drop for Echo<'_> {
    fn drop(&mut self) {
        // From inside, where no link can lose it.
        let osaka = self.lab.host("osaka").unwrap();
        let _ =
            osaka.run(|| UdpSocket::bind("127.0.0.1:0").and_then(|s| s.send_to(b"end", self.at)));
        let _ = self.server.take().unwrap().join();
    }
}

const PATH1: (&str, &str) = ("192.0.2.1:0", "192.0.2.2:7");

fn two_paths() -> Topology {
    topology(TWO_PATHS)
}

#[test]
fn echo_takes_two_delays_and_the_plain_link_none() {
    let lab = up(&two_paths(), &unique_name());
    let echo = Echo::new(&lab, PATH1.0, PATH1.1);
    // The very first packet needs no address resolution.
    let first = echo.round_trip(Duration::from_secs(2)).unwrap();
    assert!(first >= Duration::from_millis(4), "{first:?}");
    let best = echo.best_of(50);
    assert!(best >= Duration::from_millis(4), "{best:?}");
    assert!(best < Duration::from_micros(4_500), "{best:?}");
    let plain = Echo::new(&lab, "198.51.100.1:0", "198.51.100.2:7");
    assert!(plain.best_of(20) < Duration::from_millis(1));
    let report = lab.emulator_report().unwrap().unwrap();
    let path1 = report.link("path1").unwrap();
    assert!(path1.a_to_b.link.departed_packets >= 51);
    assert_eq!(report.frames_lost(), 0);
    assert!(report.link("plain").is_none());
}

#[test]
fn delay_changes_while_packets_flow() {
    let lab = up(&two_paths(), &unique_name());
    let echo = Echo::new(&lab, PATH1.0, PATH1.1);
    let path1 = lab.link("path1").unwrap();
    path1
        .change(|config| config.delay = Duration::from_millis(20))
        .unwrap();
    let best = echo.best_of(10);
    assert!(best >= Duration::from_millis(40), "{best:?}");
    assert!(best < Duration::from_millis(42), "{best:?}");
    assert_eq!(
        path1.current().unwrap().b_to_a.delay,
        Duration::from_millis(20)
    );
}

#[test]
fn cut_link_is_silent_until_mended() {
    let lab = up(&two_paths(), &unique_name());
    let echo = Echo::new(&lab, PATH1.0, PATH1.1);
    let path1 = lab.link("path1").unwrap();
    path1.cut().unwrap();
    assert_eq!(echo.round_trip(Duration::from_millis(200)), None);
    let report = lab.emulator_report().unwrap().unwrap();
    // The hosts' kernels occasionally send packets of their own (RFC 3810).
    assert!(report.link("path1").unwrap().a_to_b.link.drops.down >= 1);
    path1.mend().unwrap();
    assert!(echo.round_trip(Duration::from_secs(2)).is_some());
}

#[test]
fn unplugging_removes_the_carrier_and_replugging_restores_it() {
    let lab = up(&two_paths(), &unique_name());
    let echo = Echo::new(&lab, PATH1.0, PATH1.1);
    let has_carrier = |host: &str| {
        let mut command = lab.host(host).unwrap().command("ip");
        let output = command
            .args(["-o", "link", "show", "path1"])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).contains("LOWER_UP")
    };
    let path1 = lab.link("path1").unwrap();
    path1.unplug().unwrap();
    wait_until("both carriers go", || {
        !has_carrier("tokyo") && !has_carrier("osaka")
    });
    path1.plug().unwrap();
    wait_until("both carriers return", || {
        has_carrier("tokyo") && has_carrier("osaka")
    });
    wait_until("packets pass again", || {
        echo.round_trip(Duration::from_millis(100)).is_some()
    });
}

#[test]
fn a_recording_begins_when_it_is_asked_for_and_waits_are_measured() {
    let lab = up(&two_paths(), &unique_name());
    let path1 = lab.link("path1").unwrap();
    let socket = |host: &str, address: &str| {
        let host = lab.host(host).unwrap();
        host.run(|| UdpSocket::bind(address)).unwrap().unwrap()
    };
    let (from, to) = (socket("tokyo", "192.0.2.1:0"), socket("osaka", PATH1.1));
    to.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    // Nothing for 300 ms, then a packet every 10 ms.
    let lines = (30..60).map(|step| format!("{}\n", step * 10));
    let trace = Trace::from_mahimahi(&lines.collect::<String>()).unwrap();
    path1.replay(Direction::AToB, Some(trace)).unwrap();
    let current = path1.current().unwrap();
    assert!(current.recordings[0].is_some() && current.recordings[1].is_none());
    assert!(path1.measure_queueing(Direction::AToB).unwrap().is_none());
    let start = Instant::now();
    for _ in 0..20 {
        from.send_to(&[0; 1472], PATH1.1).unwrap();
    }
    for _ in 0..20 {
        to.recv(&mut [0; 1500]).unwrap();
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(480), "{took:?}");
    assert!(took < Duration::from_millis(600), "{took:?}");
    let measured = path1.measure_queueing(Direction::AToB).unwrap().unwrap();
    // The last of twenty waits for nineteen; the hosts' kernels occasionally send packets of their own.
    let longest = measured.quantile_ms(1.0).unwrap();
    assert!((189.0..215.0).contains(&longest), "{longest}");
    let bytes = measured.bytes_until(Duration::from_secs(1));
    assert!((30_000..31_000).contains(&bytes), "{bytes}");
    assert_eq!(measured.bytes_until(Duration::from_millis(300)), 0);
}

#[test]
fn plain_and_unknown_links_cannot_be_changed() {
    let lab = up(&two_paths(), &unique_name());
    let error = lab.link("plain").unwrap().cut().unwrap_err();
    assert!(matches!(error, LabError::NotEmulated(_)));
    assert!(error.to_string().contains("emulated = true"), "{error}");
    let error = lab.link("path11").unwrap_err().to_string();
    assert_eq!(
        error,
        "the laboratory has no link `path11`; did you mean `path1`?"
    );
}
