//! Measuring between two hosts with the real command: who may, in which forms the answer comes,
//! and what is left when the other host, the user or the disk ends it early.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    harness::{Ran, Site, finish, is_root, keiro, run, shown, signal},
    measure_server::{Endless, Server},
};

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

/// A few sizes, quickly. The largest is large enough that the time rises with the size whatever
/// else the machine does, so that there is a fit.
const QUICK: [&str; 8] = [
    "--only",
    "tcp",
    "--sizes",
    "1kB-10MB",
    "--per-decade",
    "1",
    "--precision",
    "50%",
];

/// Datagrams that are enough to have every part of a report.
const FEW_DATAGRAMS: [&str; 6] = [
    "--probes",
    "50",
    "--probe-interval",
    "2ms",
    "--trains",
    "10",
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
    // The client's key is not allowed.
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
        .says(&["does not authenticate itself", "--allow"]);
}

#[test]
fn what_is_missing_or_in_the_way_is_reported() {
    run(["measure"]).expect_code(64);
    run(["measure", "127.0.0.1:1", "--open", "--serve", "127.0.0.1:0"]).expect_code(64);
    run(["measure", "127.0.0.1:1"])
        .expect_code(64)
        .says(&["--key and --peer are needed", "--open"]);
    run(["measure", "127.0.0.1:1", "--open"])
        .expect_code(1)
        .says(&["cannot connect", "keiro measure --serve"]);
    run(["measure", "no port", "--open"])
        .expect_code(64)
        .says(&["HOST:PORT"]);
    run(["measure", "127.0.0.1:1", "--open", "--sizes", "9MB-1MB"])
        .expect_code(64)
        .says(&["begin with the smaller size"]);
    run(["measure", "--serve", "127.0.0.1:0"])
        .expect_code(64)
        .says(&["--allow"]);
    let site = Site::new();
    let key = shown(&site.path("private.key"));
    run(["measure", "--serve", "127.0.0.1:0", "--key", &key])
        .expect_code(64)
        .says(&["no client may use this server"]);
    let taken = Server::open();
    run(["measure", "--serve", &taken.address, "--open"])
        .expect_code(1)
        .says(&["cannot listen"]);
}

#[test]
fn all_parts_are_measured_and_written_in_every_form() {
    let server = Server::open();
    let site = Site::new();
    let (csv, figure) = (site.path("loopback.csv"), site.path("loopback.svg"));
    let quick = [
        "--sizes",
        "1kB-1MB",
        "--per-decade",
        "2",
        "--precision",
        "20%",
        "--time",
        "3s",
    ];
    let mut command = keiro(["measure", &server.address, "--open"]);
    command
        .args(quick)
        .args(FEW_DATAGRAMS)
        .arg("--csv")
        .arg(&csv)
        .arg("--figure")
        .arg(&figure);
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
    let svg = fs::read_to_string(&figure).expect("written");
    assert!(svg.contains("throughput") && svg.trim_end().ends_with("</svg>"));

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
        assert_eq!(found["sizes"].as_array().expect("sizes").len(), 5);
        let all = found["samples"].as_array().expect("samples");
        assert!(all.len() >= 18, "{}", all.len());
        for sample in all {
            let seconds = sample["seconds"].as_f64().expect("a number");
            assert!(seconds > 0.0 && seconds < 1.0, "{seconds}");
        }
    }
}

#[test]
fn a_full_device_costs_nothing_of_what_was_measured() {
    let server = Server::open();
    let files = ["--csv", "/dev/full", "--figure", "/dev/full", "--json"];
    let args = [&["measure", &server.address, "--open"], &files[..], &QUICK].concat();
    let ran = run(args).expect_code(1).says(&[
        "cannot write /dev/full",
        "No space left",
        "  try: a place with room; what is on standard output is complete",
    ]);
    assert_eq!(ran.stderr.matches("cannot write").count(), 2, "{ran:#?}");
    assert_complete(&ran.stdout);
}

/// Of the two files in a directory, what they hold.
fn old_files(site: &Site) -> [String; 2] {
    ["x.csv", "x.svg"].map(|name| {
        site.write(name, "as it was");
        shown(&site.path(name))
    })
}

#[track_caller]
fn assert_as_they_were(site: &Site) {
    let files = fs::read_dir(site.directory.path()).expect("a directory");
    assert_eq!(files.count(), 3, "the key and the two files");
    for name in ["x.csv", "x.svg"] {
        let text = fs::read_to_string(site.path(name)).expect("it is there");
        assert_eq!(text, "as it was", "{name}");
    }
}

#[test]
fn old_files_stay_until_there_is_something_to_take_their_place() {
    let site = Site::new();
    let [csv, figure] = old_files(&site);
    let files = ["--csv", &csv, "--figure", &figure];
    let measure = |address: &str, more: &[&str]| {
        let args = [&["measure", address, "--open"], &files[..], &QUICK, more].concat();
        run(args)
    };
    // No server.
    measure("127.0.0.1:1", &[])
        .expect_code(1)
        .says(&["cannot connect"]);
    assert_as_they_were(&site);
    let server = Server::open();
    measure(&server.address, &["--time", "1us"])
        .expect_code(1)
        .says(&["no transfer fits into 1 µs", "--time "]);
    assert_as_they_were(&site);
    measure(&server.address, &[]).expect_code(0);
    let text = fs::read_to_string(&csv).expect("written");
    assert!(text.contains("bytes,seconds\n"), "{text}");
    let svg = fs::read_to_string(&figure).expect("written");
    assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
}

#[test]
fn transfers_follow_the_answer_on_standard_output() {
    let server = Server::open();
    let site = Site::new();
    let args = ["measure", &server.address, "--open", "--csv", "/dev/stdout"];
    let args = [&args[..], &QUICK].concat();
    // Into a pipe, and into a file, whose inode has to stay.
    let piped = run(&args).expect_code(0).stdout;
    let path = site.write("answer.txt", "");
    let file = fs::File::options().append(true).open(&path).expect("open");
    let status = keiro(&args).stdout(file).stderr(Stdio::null()).status();
    assert!(status.expect("it runs").success());
    for text in [piped, fs::read_to_string(&path).expect("written")] {
        let answer = text.find("transfers over TCP").expect("the answer");
        let transfers = text.find("bytes,seconds\n").expect("the transfers");
        assert!(answer < transfers, "{text}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_the_work() {
    // No server is asked: no connection was possible.
    for (wrong, says) in [
        (
            &["--probe-interval", "1us"][..],
            "1 µs from one probe to the next",
        ),
        (&["--probes", "2", "--probe-interval", "31s"], "2 probes"),
        (&["--probes", "60000", "--probe-interval", "60s"], "41 d"),
        (&["--only", "udp", "--figure", "x.svg"], "--only leaves out"),
        (
            &["--only", "capacity", "--csv", "x.csv"],
            "--only leaves out",
        ),
        (&["--figure", "x.svg", "--sizes", "1MB"], "of one size"),
        (&["--pause", "30s", "--time", "30s"], "a pause of 30 s"),
        (&["--sizes", "1B-1GB", "--per-decade", "50"], "200 sizes"),
    ] {
        let args = [&["measure", "127.0.0.1:1", "--open"], wrong].concat();
        let ran = run(args).expect_code(64).says(&[says, "  try: "]);
        assert!(!ran.stderr.contains("cannot connect"), "{ran:#?}");
    }
    // What is not measured may say what it likes.
    let only = ["--only", "tcp", "--probe-interval", "1us"];
    run([&["measure", "127.0.0.1:1", "--open"], &only[..]].concat())
        .expect_code(1)
        .says(&["cannot connect"]);
}

#[test]
fn a_time_without_a_transfer_is_an_error() {
    let server = Server::open();
    let measure = |only: &[&str]| {
        let args = ["measure", &server.address, "--open", "--json"];
        let short = ["--sizes", "1kB-100kB", "--time", "1us"];
        run([&args[..], &short, only].concat()).expect_code(1)
    };
    let ran = measure(&["--only", "tcp"]).says(&["no transfer fits into 1 µs", "as in --time "]);
    assert_eq!(ran.stdout, "");
    // What else was measured is printed.
    let few = ["--probes", "20", "--probe-interval", "1ms"];
    let ran = measure(&[&few[..], &["--only", "tcp", "--only", "udp"]].concat());
    let found = ran.says(&["no transfer fits into 1 µs"]).json();
    assert_eq!(found["probes"]["sent"], 20);
    let ended = found["ended_early"].as_str().expect("a reason");
    assert!(ended.contains("no transfer fits"), "{ended}");
}

/// A disk of one page that is full, for the command that follows; it goes with that.
const ON_A_FULL_DISK: &str = "mount -t tmpfs -o size=4k keiro-test \"$0\" \
     && head -c 4096 /dev/zero > \"$0/fill\" && cd \"$0\" && exec \"$@\"";

/// The same, full of a figure; says afterwards whether that is still the old one, and what there is.
const FULL_OF_THE_OLD_FIGURE: &str = "mount -t tmpfs -o size=4k keiro-test \"$0\" && cd \"$0\" \
     && head -c 4096 /dev/zero > x.svg && { \"$@\"; ended=$?; \
     grep -q svg x.svg && echo new >&2 || echo old $(ls -A) >&2; exit $ended; }";

#[test]
fn a_full_disk_costs_nothing_of_what_was_measured() {
    if !is_root("a_full_disk_costs_nothing_of_what_was_measured") {
        return;
    }
    let server = Server::open();
    let site = Site::new();
    let on_a_full_disk = |script: &str, files: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]);
        command.arg(site.directory.path());
        command.args([env!("CARGO_BIN_EXE_keiro"), "measure", &server.address]);
        command.args(["--open", "--json"]).args(files).args(QUICK);
        finish(&mut command, b"").expect_code(1)
    };
    let ran = on_a_full_disk(ON_A_FULL_DISK, &["--csv", "x.csv", "--figure", "x.svg"]);
    assert_complete(&ran.stdout);
    ran.says(&[
        "cannot write x.csv",
        "cannot write x.svg",
        "No space left",
        "try: ",
    ]);

    // The file that fills the disk stays, and nothing is left beside it.
    on_a_full_disk(FULL_OF_THE_OLD_FIGURE, &["--figure", "x.svg"]).says(&[
        "cannot write x.svg",
        "No space left",
        "\nold x.svg\n",
    ]);

    // The answer itself has no room: the files still have all.
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let (csv, figure) = (
        elsewhere.path().join("x.csv"),
        elsewhere.path().join("x.svg"),
    );
    let answer = ON_A_FULL_DISK.replace("exec \"$@\"", "exec \"$@\" > answer.json");
    let files = ["--csv", &shown(&csv), "--figure", &shown(&figure)];
    on_a_full_disk(&answer, &files).says(&["cannot write to standard output", "No space left"]);
    let text = fs::read_to_string(&csv).expect("written");
    assert!(text.lines().count() >= 18, "{text}");
    let svg = fs::read_to_string(&figure).expect("written");
    assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
}

fn assert_complete(document: &str) {
    let found: Value = serde_json::from_str(document).expect("a whole document");
    assert_eq!(found["sizes"].as_array().expect("sizes").len(), 5);
    assert!(found["samples"].as_array().expect("samples").len() >= 18);
}

#[test]
fn a_figure_is_one_file() {
    let server = Server::open();
    let site = Site::new();
    let directory = shown(site.directory.path());
    let missing = shown(&site.path("nowhere/x.svg"));
    let slash = format!("{}/", shown(&site.path("figures")));
    for (given, says) in [
        (&directory, "a directory, not a file"),
        (&slash, "a directory, not a file"),
        (&missing, "there is no directory"),
    ] {
        let args = ["measure", &server.address, "--open", "--figure", given];
        // Before anything is measured.
        let ran = run(args.iter().chain(&QUICK)).expect_code(1);
        assert_eq!(ran.stdout, "", "{ran:#?}");
        ran.says(&[says, given.as_str(), "  try: "]);
    }
}

#[test]
fn all_parts_are_measured_over_ipv6() {
    let mut command = keiro(["measure", "--serve", "[::1]:0", "--open"]);
    let server = Server::start(&mut command);
    assert!(server.address.starts_with("[::1]:"), "{}", server.address);
    let small = [
        "--sizes",
        "1kB-100kB",
        "--per-decade",
        "1",
        "--precision",
        "50%",
    ];
    for way in [&[][..], &["--reverse"], &["--fresh"]] {
        let open = ["measure", &server.address, "--open", "--json"];
        let args = [&open[..], &FEW_DATAGRAMS, &small, way].concat();
        let found = run(args).expect_code(0).json();
        assert_eq!(found["server"], server.address);
        assert_eq!(found["probes"]["there"]["received"], 50);
        assert_eq!(found["probes"]["back"]["received"], 50);
        assert!(found["capacity"]["there"].is_object());
        assert!(found["samples"].as_array().expect("samples").len() >= 18);
    }
    // Where an address ends must be seen.
    run(["measure", "::1", "--open"])
        .expect_code(64)
        .says(&["HOST:PORT", "[2001:db8::1]:7610"]);
}

#[test]
fn a_name_that_cannot_be_resolved_is_reported_as_that() {
    // Longer than a name may be, so no resolver is asked.
    let target = format!("{}.example:7610", "x".repeat(300));
    let ran = run(["measure", &target, "--open"]).expect_code(1);
    let ran = ran.says(&["the name cannot be resolved"]);
    assert!(!ran.stderr.contains("HOST:PORT"), "{}", ran.stderr);
}

#[test]
fn a_server_that_fails_while_probing_leaves_what_was_measured() {
    let mut server = Server::open();
    let many = [
        "--only",
        "udp",
        "--probes",
        "60000",
        "--probe-interval",
        "1ms",
    ];
    let client = keiro(["measure", &server.address, "--open", "--json"])
        .args(many)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    thread::sleep(Duration::from_secs(1));
    server.child.kill().expect("killed");
    let killed = Instant::now();
    let output = client.wait_with_output().expect("it ends");
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let probes = &found["probes"];
    let received = probes["back"]["received"].as_u64().expect("a number");
    // Probes sent to a closed port are not counted as lost.
    assert!((100..30_000).contains(&received), "{probes:#}");
    assert!(
        probes["there"]["loss_ratio"].as_f64().expect("a number") < 0.05,
        "{probes:#}"
    );
    let ended = found["ended_early"].as_str().expect("a reason");
    assert!(ended.contains(&server.address), "{ended}");
}

#[test]
fn a_server_that_fails_leaves_what_was_measured() {
    let site = Site::new();
    let mut server = Server::open();
    let mut command = keiro(["measure", &server.address, "--open"]);
    let endless = Endless::start(&mut command, "1kB-30MB", &site);
    server.child.kill().expect("killed");
    let killed = Instant::now();
    endless.ended().says(&[&server.address, "was lost"]);
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[test]
fn ctrl_c_leaves_what_was_measured() {
    let site = Site::new();
    let server = Server::open();
    let mut command = keiro(["measure", &server.address, "--open"]);
    let endless = Endless::start(&mut command, "1kB-30MB", &site);
    signal(endless.child(), "INT");
    let sent = Instant::now();
    endless.ended().says(&["interrupted"]);
    let took = sent.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}
