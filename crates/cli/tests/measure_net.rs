//! Measuring between two hosts with the real command: who may, what a known network measures as,
//! and what is left when the other host, the user or the disk ends it early.

mod harness;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use harness::{LIMIT, Ran, Site, eventually, finish, is_root, keiro, run, shown, signal, wait};
use keiro_lab::{Interrupts, Lab, Topology, emulator::LATENESS_P99_MAX};
use serde_json::Value;

/// A server that is ended when dropped, and where it is.
struct Server {
    child: Child,
    address: String,
    _reading: thread::JoinHandle<()>,
}

impl Server {
    /// Starts one and waits until it serves.
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                let rest = line.split_once("serving measurements on ")?.1;
                Some(rest.split_once(' ')?.0.to_owned())
            })
            .expect("it says where it serves");
        // Read on, or it could not write.
        let reading = thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self {
            child,
            address,
            _reading: reading,
        }
    }

    /// On loopback, for everybody.
    fn open() -> Self {
        Self::start(&mut keiro(["measure", "--serve", "127.0.0.1:0", "--open"]))
    }

    /// On loopback, with `site`'s key, for these keys.
    fn guarded(site: &Site, allowed: &[&str]) -> Self {
        let mut command = keiro(["measure", "--serve", "127.0.0.1:0", "--key"]);
        command.arg(site.path("private.key"));
        for key in allowed {
            command.args(["--allow", key]);
        }
        Self::start(&mut command)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two sites, and the key of each.
fn two_sites() -> ([Site; 2], [String; 2]) {
    let sites = [Site::new(), Site::new()];
    let keys = [sites[0].public_key(), sites[1].public_key()];
    (sites, keys)
}

/// The client's side of a guarded measurement.
fn authenticated(address: &str, site: &Site, peer: &str, more: &[&str]) -> Ran {
    let key = shown(&site.path("private.key"));
    let args = ["measure", address, "--key", &key, "--peer", peer];
    run(args.iter().chain(more))
}

/// A few small transfers, as fast as can be.
const QUICK: [&str; 8] = [
    "--only",
    "tcp",
    "--sizes",
    "1kB-100kB",
    "--per-decade",
    "1",
    "--precision",
    "50%",
];

#[test]
fn only_hosts_with_the_right_keys_measure() {
    let ([client, server], [client_key, server_key]) = two_sites();
    let serving = Server::guarded(&server, &[&client_key]);
    let at = &serving.address;

    let ran = authenticated(
        at,
        &client,
        &server_key,
        &[&QUICK[..], &["--json"]].concat(),
    );
    let found = ran.expect_code(0).json();
    assert_eq!(found["authenticated"], true);
    assert_eq!(found["sizes"][2]["bytes"], 100_000);
    assert!(
        found["sizes"][2]["median_seconds"]
            .as_f64()
            .expect("a number")
            > 0.0
    );

    // The server has another key than the client means.
    authenticated(at, &client, &client_key, &QUICK)
        .expect_code(1)
        .says(&["the server's key is not", "keiro pubkey"]);
    // The client has a key that nobody allowed.
    let stranger = Site::new();
    authenticated(at, &stranger, &server_key, &QUICK)
        .expect_code(1)
        .says(&["does not allow this key", &stranger.public_key()]);
    run(["measure", at, "--open"].iter().chain(&QUICK))
        .expect_code(1)
        .says(&["demands authentication", "--peer"]);

    let open = Server::open();
    authenticated(&open.address, &client, &server_key, &QUICK)
        .expect_code(1)
        .says(&["proves nothing", "--allow"]);
}

#[test]
fn what_is_missing_or_in_the_way_is_told() {
    run(["measure"]).expect_code(64);
    run(["measure", "127.0.0.1:1", "--open", "--serve", "127.0.0.1:0"]).expect_code(64);
    run(["measure", "127.0.0.1:1"])
        .expect_code(1)
        .says(&["--key and --peer are needed", "--open"]);
    run(["measure", "127.0.0.1:1", "--open"])
        .expect_code(1)
        .says(&["cannot connect", "keiro measure --serve"]);
    run(["measure", "no port", "--open"])
        .expect_code(1)
        .says(&["HOST:PORT"]);
    run(["measure", "127.0.0.1:1", "--open", "--sizes", "9MB-1MB"])
        .expect_code(1)
        .says(&["must grow"]);
    run(["measure", "--serve", "127.0.0.1:0"])
        .expect_code(1)
        .says(&["--allow"]);
    let site = Site::new();
    let key = shown(&site.path("private.key"));
    run(["measure", "--serve", "127.0.0.1:0", "--key", &key])
        .expect_code(1)
        .says(&["nobody may use this server"]);
    let taken = Server::open();
    run(["measure", "--serve", &taken.address, "--open"])
        .expect_code(1)
        .says(&["cannot listen"]);
}

#[test]
fn all_parts_are_measured_and_written_in_every_form() {
    let server = Server::open();
    let site = Site::new();
    let (csv, figures) = (site.path("loopback.csv"), site.path("figures"));
    let quick = [
        "--sizes",
        "1kB-1MB",
        "--per-decade",
        "2",
        "--precision",
        "20%",
        "--time",
        "3s",
        "--probes",
        "50",
        "--probe-interval",
        "2ms",
        "--trains",
        "10",
    ];
    let mut command = keiro(["measure", &server.address, "--open"]);
    command
        .args(quick)
        .arg("--csv")
        .arg(&csv)
        .arg("--figure")
        .arg(&figures);
    let ran = finish(&mut command, b"").expect_code(0);
    for part in [
        "NOT authenticated",
        "round trip",
        "capacity",
        "T(n) = 8n/B + oh",
        "1 MB",
    ] {
        assert!(ran.stdout.contains(part), "no `{part}` in:\n{}", ran.stdout);
    }
    let text = fs::read_to_string(&csv).expect("written");
    assert!(
        text.contains("bytes,seconds\n") && text.lines().count() > 40,
        "{text}"
    );
    assert!(figures.join("transfer-time.svg").exists());

    for way in [&["--reverse"][..], &["--fresh"], &["--reverse", "--fresh"]] {
        let args = [
            &["measure", &server.address, "--open", "--json"],
            &QUICK[..],
            way,
        ]
        .concat();
        let found = run(args).expect_code(0).json();
        let back = way.contains(&"--reverse");
        assert_eq!(found["direction"], if back { "back" } else { "there" });
        assert_eq!(found["sizes"].as_array().expect("sizes").len(), 3);
        let all = found["samples"].as_array().expect("samples");
        assert!(all.len() >= 18, "{}", all.len());
        for sample in all {
            let seconds = sample["seconds"].as_f64().expect("a number");
            assert!(seconds > 0.0 && seconds < 1.0, "{seconds}");
        }
    }
}

#[test]
fn a_full_disk_costs_nothing_of_what_was_measured() {
    let server = Server::open();
    let args = [
        "measure",
        &server.address,
        "--open",
        "--csv",
        "/dev/full",
        "--json",
    ];
    let ran = run(args.iter().chain(&QUICK)).expect_code(1).says(&[
        "cannot write /dev/full",
        "No space left",
        "standard output",
    ]);
    let found = ran.json();
    assert_eq!(found["sizes"].as_array().expect("sizes").len(), 3);
    assert!(found["samples"].as_array().expect("samples").len() >= 18);
}

/// A measurement that goes on until something ends it, with its file.
fn endless(at: &str, csv: &Path) -> Child {
    let endless = [
        "--only",
        "tcp",
        "--sizes",
        "1kB-30MB",
        "--per-decade",
        "1",
        "--precision",
        "0.001%",
        "--repeats",
        "1000",
        "--time",
        "10min",
    ];
    keiro(["measure", at, "--open"])
        .args(endless)
        .arg("--csv")
        .arg(csv)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
}

/// Ends when it has, and gives what it said.
fn ended(mut child: Child) -> Ran {
    let code = wait(&mut child, LIMIT).expect("it ends");
    let output = child.wait_with_output().expect("read");
    Ran {
        code,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn assert_kept(ran: &Ran, csv: &Path) {
    assert!(ran.stdout.contains("transfers over TCP"), "{ran:#?}");
    let text = fs::read_to_string(csv).expect("written");
    assert!(
        text.contains("ended early") && text.lines().count() > 5,
        "{text}"
    );
}

#[test]
fn a_server_that_dies_leaves_what_was_measured() {
    let site = Site::new();
    let csv = site.path("x.csv");
    let mut server = Server::open();
    let child = endless(&server.address, &csv);
    thread::sleep(Duration::from_secs(1));
    server.child.kill().expect("killed");
    let killed = Instant::now();
    let ran = ended(child).expect_code(1).says(&[&server.address, "gone"]);
    assert!(
        killed.elapsed() < Duration::from_secs(4),
        "{:?}",
        killed.elapsed()
    );
    assert_kept(&ran, &csv);
}

#[test]
fn ctrl_c_leaves_what_was_measured() {
    let site = Site::new();
    let csv = site.path("x.csv");
    let server = Server::open();
    let child = endless(&server.address, &csv);
    thread::sleep(Duration::from_secs(1));
    signal(&child, "INT");
    let sent = Instant::now();
    let ran = ended(child).expect_code(1).says(&["interrupted"]);
    assert!(
        sent.elapsed() < Duration::from_secs(4),
        "{:?}",
        sent.elapsed()
    );
    assert_kept(&ran, &csv);
}

/// A laboratory with one link between tokyo and osaka, and a server in osaka; one at a time.
struct Wan {
    // First, so that it ends before the laboratory.
    _server: Server,
    lab: Lab,
    _turn: MutexGuard<'static, ()>,
}

const PORT: &str = "198.51.100.2:7610";

impl Wan {
    fn new(directions: &str) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static INTERRUPTS: OnceLock<Interrupts> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let text = format!(
            "[host.tokyo]\n[host.osaka]\n[link.wan]\n\
             a = {{ host = \"tokyo\", addresses = [\"198.51.100.1/30\"] }}\n\
             b = {{ host = \"osaka\", addresses = [\"198.51.100.2/30\"] }}\n{directions}"
        );
        let topology = Topology::parse(&text, "test").expect("a topology");
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
        serve.args(["measure", "--serve", PORT, "--open"]);
        Self {
            _server: Server::start(&mut serve),
            lab,
            _turn: turn,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let host = self.lab.host("tokyo").expect("a host");
        let mut command = host.command(env!("CARGO_BIN_EXE_keiro"));
        command.args(["measure", PORT, "--open"]).args(args);
        command
    }

    /// Measures until `good` is satisfied. A run during which the emulator was late does not
    /// count, and is repeated; the last of three does.
    fn measure(&self, args: &[&str], good: impl Fn(&Value) -> Result<(), String>) {
        for attempt in 1.. {
            self.lab.measure_from_now().expect("an emulator");
            let mut command = self.command(args);
            let found = finish(command.arg("--json"), b"").expect_code(0).json();
            let report = self.lab.emulator_report().expect("it runs");
            let lateness = report.expect("an emulator").lateness;
            match good(&found) {
                Ok(()) => return,
                Err(what) if attempt < 3 => eprintln!(
                    "attempt {attempt}: {what}; the emulator was late by {:?} (99 %), {:?} is the \
                     bound",
                    lateness.p99, LATENESS_P99_MAX
                ),
                Err(what) => panic!("{what}: {found:#}"),
            }
        }
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

#[test]
fn a_known_link_measures_as_what_it_is() {
    if !is_root("a_known_link_measures_as_what_it_is") {
        return;
    }
    let wan = Wan::new("each_way = { rate = \"50Mbit\", delay = \"5ms\", buffer = \"256KiB\" }");
    // Of 1500 bytes that a full packet takes on the link, 1448 are payload.
    let bandwidth = 50e6 * 1448.0 / 1500.0;
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
        let pieces = found["fit"]["pieces"].as_array().ok_or("no fit")?;
        let (first, last) = (&pieces[0], &pieces[pieces.len() - 1]);
        let rate = last["bandwidth_bits_per_second"].as_f64();
        near("B", rate, bandwidth, 0.02 * bandwidth)?;
        // The delay, and the headers of a first packet.
        near("oh", first["overhead_seconds"].as_f64(), 0.005, 0.00035)?;
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

#[test]
fn losses_there_and_back_are_told_apart() {
    if !is_root("losses_there_and_back_are_told_apart") {
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
    let csv = site.path("x.csv");
    let endless = [
        "--only",
        "tcp",
        "--sizes",
        "1kB-1MB",
        "--per-decade",
        "1",
        "--precision",
        "0.001%",
        "--repeats",
        "1000",
        "--time",
        "10min",
        "--csv",
        &shown(&csv),
    ];
    let child = wan
        .command(&endless)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    thread::sleep(Duration::from_secs(2));
    let cut = Instant::now();
    wan.lab
        .link("wan")
        .and_then(|link| link.cut())
        .expect("cut");
    let ran = ended(child).expect_code(1).says(&["has vanished", PORT]);
    assert!(
        cut.elapsed() < Duration::from_secs(8),
        "{:?}",
        cut.elapsed()
    );
    assert_kept(&ran, &csv);
    eventually("the server is free again", || {
        wan.lab.link("wan").and_then(|link| link.mend()).ok()
    });
}
