//! Daemons beside the gateway give up the privileges that they were started with, and work without. Needs root
//! and iproute2, and fails without.

mod harness;
mod threads;

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use harness::{LIMIT, Site, eventually, finish, run, shown};
use keiro_lab::{Lab, Process, Topology};
use keiro_linux::process::{SIGHUP, SIGTERM};
use serde_json::Value;
use threads::{ADMIN, BIND, NOBODY, assert_reduced};

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro");

const TOPOLOGY: &str = r#"
[host.a]

[host.b]

[link.wire]
a = { host = "a", addresses = ["192.0.2.1/24", "fd00:1::1/64"] }
b = { host = "b", addresses = ["192.0.2.2/24", "fd00:1::2/64"] }
"#;

/// A daemon in host a.
struct Daemon {
    process: Process,
    // Behind it, so that it ends before its host and its files go.
    lab: Lab,
    site: Site,
}

impl Daemon {
    /// Runs the command with `--user user`, in a directory that is that user's. `files` are written there before.
    fn start(user: &str, files: &[(&str, &str)], args: impl Fn(&Path) -> Vec<String>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let topology = Topology::parse(TOPOLOGY, "test").expect("a topology");
        let lab = Lab::builder(&topology)
            .name(format!("p{}-{number}", std::process::id()))
            .up()
            .unwrap_or_else(|error| panic!("these tests need root and iproute2: {error}"));
        let site = Site::new();
        let directory = site.path("");
        for (name, text) in files {
            site.write(name, &text.replace("DIRECTORY", &shown(&directory)));
        }
        site.give_to(user);
        let host = lab.host("a").expect("a host");
        let mut command = host.command(PROGRAM);
        command
            .args(args(&directory))
            .args(["--user", user])
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(File::create(site.path("output")).expect("a file"))
            .stderr(File::create(site.path("log")).expect("a file"));
        let process = host.spawn(command).expect("it starts");
        Self { process, lab, site }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.site.path("log")).expect("a log")
    }

    /// Waits until the log has `text`.
    fn await_log(&self, text: &str) {
        eventually(&format!("`{text}` is in the log"), || {
            let log = self.log();
            let ended = self.process.wait(Duration::ZERO).expect("a child");
            assert!(ended.is_none(), "it ended: {log}");
            log.contains(text).then_some(())
        });
    }

    /// What it answers to `show egress`.
    fn status(&self) -> Value {
        let socket = shown(&self.site.path("control.sock"));
        eventually("it answers", || {
            let ran = run(["show", "egress", "--socket", &socket, "--json"]);
            serde_json::from_str(&ran.stdout).ok()
        })
    }

    /// Ends it in order.
    fn stop(&self) {
        self.process.signal(SIGTERM).expect("it runs");
        let ended = self.process.wait(LIMIT).expect("a child");
        assert!(ended.is_some(), "it does not end: {}", self.log());
        let log = self.log();
        for trouble in ["cannot", "denied", "not permitted", "Operation not"] {
            assert!(!log.contains(trouble), "{log}");
        }
    }

    fn ip(&self, args: &str) -> String {
        let mut command = self.lab.host("a").expect("a host").command("ip");
        command.args(args.split_whitespace());
        finish(&mut command, b"").expect_code(0).stdout
    }
}

const ASBR: &str = r#"
[asbr]
asn = 65000
router_id = "192.0.2.1"
locator = "fd00:a:1::/64"
listen = ["192.0.2.1:179"]
control_socket = "DIRECTORY/control.sock"
[[peer]]
name = "transit"
address = "fd00:1::2"
asn = 65001
"#;

#[test]
fn a_border_router() {
    for user in ["nobody", "root"] {
        let daemon = Daemon::start(user, &[("asbr.toml", ASBR)], |at| {
            vec![
                "asbr".into(),
                "--config".into(),
                shown(&at.join("asbr.toml")),
                "--record".into(),
                shown(&at.join("recording")),
            ]
        });
        daemon.status();
        let uid = if user == "root" { 0 } else { NOBODY };
        // The port is open by now.
        assert_reduced(daemon.process.id(), uid, ADMIN, ADMIN | BIND);
        let rules = daemon.ip("-6 rule show");
        assert!(rules.contains("fd00:a:1::"), "{rules}");
        let recording = fs::metadata(daemon.site.path("recording")).expect("it records");
        assert_eq!(recording.uid(), uid);
        // A reload reads the file on a thread of its own, and puts another rule into the kernel.
        let other = ASBR.replace(
            "[[peer]]",
            "[[peer]]\nname = \"other\"\naddress = \"fd00:1::3\"\nasn = 65002\n[[peer]]",
        );
        let other = other.replace("DIRECTORY", &shown(&daemon.site.path("")));
        daemon.site.write("asbr.toml", &other);
        daemon.process.signal(SIGHUP).expect("it runs");
        eventually("it has the other peer", || {
            let status = daemon.status();
            (status["neighbours"].as_array()?.len() == 2).then_some(())
        });
        assert_reduced(daemon.process.id(), uid, ADMIN, ADMIN | BIND);
        daemon.stop();
        assert!(!daemon.site.path("control.sock").exists());
    }
}

const EGRESS: &str = r#"
[egress]
asn = 65000
router_id = "192.0.2.1"
control_socket = "DIRECTORY/control.sock"
mptcp = "precise"
interface = "wire"
[comparison]
evidence_file = "DIRECTORY/evidence"
[steering]
mode = "observe"
[[reflector]]
name = "border"
address = "fd00:1::2"
[[peer]]
name = "transit-a"
rt = "65000:10"
address = "fd00:e::a"
"#;

#[test]
fn an_endpoint_manager_with_evidence_and_the_paths_of_connections() {
    for user in ["nobody", "root"] {
        let daemon = Daemon::start(user, &[("egress.toml", EGRESS)], |at| {
            vec![
                "egress".into(),
                "--config".into(),
                shown(&at.join("egress.toml")),
            ]
        });
        daemon.status();
        let uid = if user == "root" { 0 } else { NOBODY };
        assert_reduced(daemon.process.id(), uid, ADMIN, ADMIN | BIND);
        let addresses = daemon.ip("-6 address show");
        assert!(addresses.contains("fd00:e::a"), "{addresses}");
        daemon.process.signal(SIGHUP).expect("it runs");
        daemon.await_log("reload");
        daemon.stop();
        let evidence = fs::metadata(daemon.site.path("evidence")).expect("it is kept");
        assert_eq!(evidence.uid(), uid);
    }
}

#[test]
fn counting_flows() {
    for user in ["nobody", "root"] {
        let daemon = Daemon::start(user, &[], |at| {
            let metrics = shown(&at.join("metrics"));
            ["flowstats", "wire", "--json", "--metrics", &metrics]
                .map(str::to_owned)
                .into()
        });
        eventually("it counts what leaves", || {
            daemon.ip("neighbour flush dev wire");
            let host = daemon.lab.host("a").expect("a host");
            host.run(|| {
                let socket = std::net::UdpSocket::bind("192.0.2.1:0").expect("bound");
                socket.send_to(b"counted", "192.0.2.2:9").expect("sent");
            })
            .expect("entered");
            let output = fs::read_to_string(daemon.site.path("output")).ok()?;
            output.contains("192.0.2.2").then_some(())
        });
        let uid = if user == "root" { 0 } else { NOBODY };
        let (main, bounding) = match keiro_linux::kernel::version() {
            Some(version) if version < (6, 6) => return,
            _ => (0, 0),
        };
        assert_reduced(daemon.process.id(), uid, main, bounding);
        eventually("it writes metrics", || {
            fs::metadata(daemon.site.path("metrics")).ok()
        });
        daemon.stop();
    }
}

#[test]
fn a_server_of_measurements() {
    let client = Site::new();
    let public = client.public_key();
    for user in ["nobody", "root"] {
        let daemon = Daemon::start(user, &[], |at| {
            let key = shown(&at.join("private.key"));
            let at = "192.0.2.1:761";
            ["measure", "--serve", at, "--key", &key, "--allow", &public]
                .map(str::to_owned)
                .into()
        });
        daemon.await_log("serving measurements on");
        let uid = if user == "root" { 0 } else { NOBODY };
        assert_reduced(daemon.process.id(), uid, 0, 0);
        let host = daemon.lab.host("b").expect("a host");
        let mut command = host.command(PROGRAM);
        command
            .args([
                "measure",
                "192.0.2.1:761",
                "--peer",
                &daemon.site.public_key(),
            ])
            .args(["--only", "tcp", "--sizes", "1kB-100kB", "--per-decade", "1"])
            .args(["--precision", "90%", "--key"])
            .arg(client.path("private.key"));
        let ran = finish(&mut command, b"");
        assert!(ran.stdout.contains("transfers over TCP"), "{ran:#?}");
        assert_reduced(daemon.process.id(), uid, 0, 0);
        daemon.stop();
    }
}
