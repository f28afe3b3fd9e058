//! Known networks measure as what they are: B, oh and breaks of emulated links, loss
//! and jitter each way, with the real command in network namespaces. `make accuracy` looks closer, and at
//! crossovers.

mod harness;
mod measure_server;

use std::{
    process::Command,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use harness::{Site, finish, is_root};
use keiro_lab::{Interrupts, Lab, Topology, host_noise::retry_until_on_time};
use measure_server::{Endless, Server};
use serde_json::Value;

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro");

/// A laboratory with one link between tokyo and osaka, and a server in osaka; one at a time.
struct Wan {
    // First, so that it ends before the laboratory.
    _server: Server,
    server: &'static str,
    lab: Lab,
    _turn: MutexGuard<'static, ()>,
}

const PORT: &str = "198.51.100.2:7610";
const PORT_V6: &str = "[2001:db8::2]:7610";

/// Every kernel has it and allows it in a namespace. It does not pace, and with a buffer that holds
/// a whole transfer nothing is lost: times are the network's alone.
const RENO: &str = "sysctl = { \"net.ipv4.tcp_congestion_control\" = \"reno\" }\n";

impl Wan {
    fn new(directions: &str) -> Self {
        Self::pair(PORT, "", directions)
    }

    /// The server is in osaka at this address; `tcp` is what both hosts do otherwise than the
    /// machine.
    fn pair(server: &'static str, tcp: &str, directions: &str) -> Self {
        let hosts = format!(
            "[host.tokyo]\n{tcp}[host.osaka]\n{tcp}[link.wan]\n\
             a = {{ host = \"tokyo\", addresses = [\"198.51.100.1/24\", \"2001:db8::1/64\"] }}\n\
             b = {{ host = \"osaka\", addresses = [\"198.51.100.2/24\", \"2001:db8::2/64\"] }}\n\
             {directions}"
        );
        Self::up(server, &hosts)
    }

    /// With a router before the link, where the kernel's own token bucket lets `mbit` pass, of
    /// Ethernet frames, and bursts of `burst_bytes`.
    fn shaped(directions: &str, mbit: u32, burst_bytes: u32) -> Self {
        let hosts = format!(
            "[host.tokyo]\n{RENO}routes = [{{ to = \"198.51.100.0/24\", via = \"192.0.2.2\" }}]\n\
             [host.nara]\nsysctl = {{ \"net.ipv4.ip_forward\" = 1 }}\n\
             [host.osaka]\n{RENO}routes = [{{ to = \"192.0.2.0/24\", via = \"198.51.100.1\" }}]\n\
             [link.lan]\neach_way = {{ rate = \"400Mbit\", buffer = \"4MiB\" }}\n\
             a = {{ host = \"tokyo\", addresses = [\"192.0.2.1/24\"] }}\n\
             b = {{ host = \"nara\", addresses = [\"192.0.2.2/24\"] }}\n\
             [link.wan]\n\
             a = {{ host = \"nara\", addresses = [\"198.51.100.1/24\"] }}\n\
             b = {{ host = \"osaka\", addresses = [\"198.51.100.2/24\"] }}\n{directions}"
        );
        let wan = Self::up(PORT, &hosts);
        let (rate, burst) = (format!("{mbit}mbit"), burst_bytes.to_string());
        let mut tc = wan.lab.host("nara").expect("a host").command("tc");
        tc.args(["qdisc", "add", "dev", "wan", "root", "tbf", "rate", &rate])
            .args(["burst", &burst, "limit", "16mb"]);
        finish(&mut tc, b"").expect_code(0);
        wan
    }

    fn up(server: &'static str, topology: &str) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static INTERRUPTS: OnceLock<Interrupts> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let topology = Topology::parse(topology, "test").expect("a topology");
        let interrupts = INTERRUPTS
            .get_or_init(|| Interrupts::install(Duration::ZERO).expect("signal handlers"));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let lab = Lab::builder(&topology)
            .name(format!("m{}n{number}", std::process::id()))
            .grace(Duration::from_millis(300))
            .interrupts(interrupts)
            .up()
            .expect("a laboratory");
        let mut serve = lab
            .host("osaka")
            .expect("a host")
            .command(env!("CARGO_BIN_EXE_keiro"));
        serve.args(["measure", "--serve", server, "--open"]);
        Self {
            server,
            _server: Server::start(&mut serve),
            lab,
            _turn: turn,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let host = self.lab.host("tokyo").expect("a host");
        let mut command = host.command(env!("CARGO_BIN_EXE_keiro"));
        command.args(["measure", self.server, "--open"]).args(args);
        command
    }

    /// Measures until `good` is satisfied, and gives what was found. Whatever else comes of a run
    /// during which the emulator was late does not count; of those that count the third must do.
    /// `None`, said aloud, where the host disturbs every attempt.
    fn measure(&self, args: &[&str], good: impl Fn(&Value) -> Result<(), String>) -> Option<Value> {
        for attempt in 1.. {
            let found = self.measure_once(args, |found| good(found).is_ok())?;
            match good(&found) {
                Ok(()) => return Some(found),
                Err(what) if attempt < 3 => eprintln!("attempt {attempt}: {what}"),
                Err(what) => panic!("{what}: {found:#}"),
            }
        }
        unreachable!("the third attempt ends it")
    }

    /// Measures while the emulator is punctual; late, only what `counts_if_late` counts. `None`,
    /// said aloud, where the host disturbs.
    fn measure_once(
        &self,
        args: &[&str],
        counts_if_late: impl Fn(&Value) -> bool,
    ) -> Option<Value> {
        /// A host that disturbed once is not waited for again.
        static STARVED: AtomicBool = AtomicBool::new(false);
        let waited = STARVED.load(Ordering::Relaxed);
        let patience = Duration::from_secs(if waited { 0 } else { 20 });
        let once = || {
            let mut command = self.command(args);
            finish(command.arg("--json"), b"").expect_code(0).json()
        };
        retry_until_on_time(&self.lab, patience, once, counts_if_late)
            .expect("an emulator")
            .inspect_err(|late| {
                STARVED.store(true, Ordering::Relaxed);
                late.skip_test(thread::current().name().unwrap_or("a test"));
            })
            .ok()
    }
}

fn near(what: &str, found: Option<f64>, wanted: f64, tolerance: f64) -> Result<(), String> {
    match found {
        Some(found) if (found - wanted).abs() <= tolerance => Ok(()),
        _ => Err(format!(
            "{what}: {found:?} instead of {wanted} ± {tolerance}"
        )),
    }
}

/// Payload of TCP in a full packet, which takes 1500 bytes on the link.
const PAYLOAD_V4: f64 = 1448.0;
const PAYLOAD_V6: f64 = 1428.0;

/// One line of a fit: B within 2 % of `bandwidth` in bit/s, oh within 5 % or 0.2 ms of `overhead`.
fn line(piece: &Value, bandwidth: f64, overhead: f64) -> Result<(), String> {
    let found = piece["bandwidth_bits_per_second"].as_f64();
    near("B", found, bandwidth, 0.02 * bandwidth)?;
    let tolerance = (0.05 * overhead.abs()).max(0.0002);
    near(
        "oh",
        piece["overhead_seconds"].as_f64(),
        overhead,
        tolerance,
    )
}

/// Whether the first piece has the overhead, and the last the bandwidth, of a link of `mbit`
/// without a break.
fn whole_line(found: &Value, payload: f64, mbit: f64, delay: f64) -> Result<(), String> {
    let pieces = found["fit"]["pieces"].as_array().ok_or("no fit")?;
    let (first, last) = (&pieces[0], &pieces[pieces.len() - 1]);
    let mut both = last.clone();
    both["overhead_seconds"] = first["overhead_seconds"].clone();
    line(&both, mbit * 1e6 * payload / 1500.0, delay)
}

#[test]
fn a_known_link_measures_as_what_it_is() {
    if !is_root("a_known_link_measures_as_what_it_is") {
        return;
    }
    let directions = "each_way = { rate = \"50Mbit\", delay = \"5ms\", buffer = \"256KiB\" }";
    for (server, payload) in [(PORT, PAYLOAD_V4), (PORT_V6, PAYLOAD_V6)] {
        let wan = Wan::pair(server, "", directions);
        let transfers = [
            "--only",
            "tcp",
            "--sizes",
            "1kB-3MB",
            "--per-decade",
            "2",
            "--time",
            "10s",
        ];
        wan.measure(&transfers, |found| {
            whole_line(found, payload, 50.0, 0.005)?;
            let trip = found["round_trip_min_seconds"].as_f64();
            near("round trip", trip, 0.010, 0.0005)
        });
        let trains = ["--only", "capacity", "--trains", "20"];
        wan.measure(&trains, |found| {
            for way in ["there", "back"] {
                let rate = found["capacity"][way]["bits_per_second"].as_f64();
                near(way, rate, 50e6, 0.05 * 50e6)?;
            }
            Ok(())
        });
    }
}

/// docs/measure.md derives the numbers.
#[test]
fn a_buffer_breaks_the_line_where_it_is_full() {
    if !is_root("a_buffer_breaks_the_line_where_it_is_full") {
        return;
    }
    let link = "each_way = { rate = \"100Mbit\", delay = \"5ms\", buffer = \"4MiB\" }";
    let wan = Wan::shaped(link, 50, 250_000);
    let (below, above) = (100e6 * PAYLOAD_V4 / 1500.0, 50e6 * PAYLOAD_V4 / 1514.0);
    let burst = 250_000.0 * PAYLOAD_V4 / 1514.0;
    let full_at = burst * below / (below - above);
    let tcp = |sizes, per_decade, time| {
        let [only, pause] = [["--only", "tcp"], ["--pause", "50ms"]];
        let rest = ["--sizes", sizes, "--per-decade", per_decade, "--time", time];
        [&only[..], &pause, &rest].concat()
    };
    let Some(found) = wan.measure(&tcp("10kB-2MB", "6", "20s"), |found| {
        let fit = &found["fit"];
        let breaks = fit["breaks"].as_array().ok_or("no fit")?.len();
        near("breaks", Some(breaks as f64), 1.0, 0.0)?;
        line(&fit["pieces"][0], below, 0.005)?;
        line(&fit["pieces"][1], above, 0.005 - burst * 8.0 / above)?;
        near(
            "break",
            fit["breaks"][0]["at_bytes"].as_f64(),
            full_at,
            0.1 * full_at,
        )
    }) else {
        return;
    };
    // Sizes that are not among those.
    let fit = &found["fit"];
    wan.measure(&tcp("12kB-1.7MB", "5", "10s"), |found| {
        for size in found["sizes"].as_array().ok_or("no sizes")? {
            let bytes = size["bytes"].as_f64().ok_or("no size")?;
            let is_above = bytes > fit["breaks"][0]["at_bytes"].as_f64().ok_or("no break")?;
            let piece = &fit["pieces"][usize::from(is_above)];
            let of = |name: &str| piece[name].as_f64().ok_or("no line");
            let predicted =
                of("overhead_seconds")? + 8.0 * bytes / of("bandwidth_bits_per_second")?;
            let measured = size["median_seconds"].as_f64();
            let what = format!("{bytes} bytes");
            near(
                &what,
                Some(predicted),
                measured.ok_or("no time")?,
                0.03 * predicted,
            )?;
        }
        Ok(())
    });
}

#[test]
fn losses_there_and_back_are_distinguished() {
    if !is_root("losses_there_and_back_are_distinguished") {
        return;
    }
    let wan = Wan::new(
        "each_way = { delay = \"10ms\" }\na_to_b = { loss = \"10%\" }\nb_to_a = { jitter = \"4ms\" }",
    );
    let probes = [
        "--only",
        "udp",
        "--probes",
        "1000",
        "--probe-interval",
        "2ms",
    ];
    wan.measure(&probes, |found| {
        let probes = &found["probes"];
        // Three standard deviations of a thousand.
        near(
            "loss there",
            probes["there"]["loss_ratio"].as_f64(),
            0.1,
            0.03,
        )?;
        near("loss back", probes["back"]["loss_ratio"].as_f64(), 0.0, 0.0)?;
        near(
            "round trip",
            probes["round_trip"]["min_seconds"].as_f64(),
            0.020,
            0.0005,
        )?;
        let above = |way: &str| probes[way]["delay_above_least"]["p50_seconds"].as_f64();
        near("jitter there", above("there"), 0.0, 0.0005)?;
        // Uniform over 4 ms, but packets that would overtake wait for the one before.
        near("jitter back", above("back"), 0.0025, 0.001)
    });
}

#[test]
fn a_link_that_is_cut_is_noticed_within_seconds() {
    if !is_root("a_link_that_is_cut_is_noticed_within_seconds") {
        return;
    }
    let wan = Wan::new("each_way = { rate = \"50Mbit\", delay = \"2ms\", buffer = \"256KiB\" }");
    let site = Site::new();
    let endless = Endless::start(&mut wan.command(&[]), "1kB-1MB", &site);
    let cut = Instant::now();
    wan.lab
        .link("wan")
        .and_then(|link| link.cut())
        .expect("cut");
    endless.ended().says(&["fell silent", PORT]);
    let took = cut.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
}
