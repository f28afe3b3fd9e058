//! Two sites in namespaces: tokyo with two uplinks and a LAN, which comes to osaka.
//!
//! ```text
//! client --- lan  tokyo ==wan0, wan1== isp ==core== osaka
//! ```

use std::{
    fs::File,
    net::UdpSocket,
    path::PathBuf,
    process::{self, Stdio},
    sync::{OnceLock, atomic::AtomicU32, atomic::Ordering},
    time::Duration,
};

use keiro_lab::{Interrupts, Lab, Process, Topology};
use keiro_linux::process::SIGTERM;
use serde_json::Value;

use crate::{
    PROGRAM,
    harness::{LIMIT, Ran, Site, eventually, finish, run, shown},
};

pub(crate) const TOKYO: usize = 0;
pub(crate) const OSAKA: usize = 1;
const NAMES: [&str; 2] = ["tokyo", "osaka"];

const TOPOLOGY: &str = r#"
[host.client]
routes = [{ to = "default", via = "10.1.0.254" }]
[host.tokyo]
sysctl = { "net.ipv4.ip_forward" = 1 }
[host.isp]
sysctl = { "net.ipv4.ip_forward" = 1 }
[host.osaka]
sysctl = { "net.ipv4.ip_forward" = 1 }
routes = [{ to = "default", via = "203.0.113.1" }]
[link.lan]
a = { host = "tokyo", addresses = ["10.1.0.254/24"] }
b = { host = "client", addresses = ["10.1.0.5/24"] }
[link.wan0]
a = { host = "tokyo", addresses = ["192.0.2.2/28"] }
b = { host = "isp", addresses = ["192.0.2.1/28"] }
[link.wan1]
a = { host = "tokyo", addresses = ["198.51.100.2/28"] }
b = { host = "isp", addresses = ["198.51.100.1/28"] }
[link.core]
a = { host = "isp", addresses = ["203.0.113.1/28"] }
b = { host = "osaka", addresses = ["203.0.113.2/28"] }
"#;

/// How far back a clock is turned.
pub(crate) const CLOCK_DAYS_BEHIND: u64 = 30;

/// What a program with another clock is run with.
const OTHER_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME)
        time->tv_sec -= SECONDS;
    return result;
}
"#;

/// What is wrong with the configurations.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    /// Left out of tokyo's configuration.
    pub(crate) without: &'static [&'static str],
    /// In tokyo's configuration.
    pub(crate) replace: &'static [(&'static str, &'static str)],
    pub(crate) tenants: bool,
    /// Tokyo's gateway has no CAP_NET_ADMIN.
    pub(crate) without_net_admin: bool,
    pub(crate) wrong_key_at_tokyo: bool,
    pub(crate) class_at_osaka: &'static str,
    pub(crate) prefix_of_tokyo_at_osaka: &'static str,
    pub(crate) id_at_osaka: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            without: &[],
            replace: &[],
            tenants: true,
            without_net_admin: false,
            wrong_key_at_tokyo: false,
            class_at_osaka: "message",
            prefix_of_tokyo_at_osaka: "10.1.0.0/16",
            id_at_osaka: 1,
        }
    }
}

/// The laboratory and its gateways; ended when dropped.
pub(crate) struct Sites {
    // First, so that the gateways end before their files go.
    pub(crate) lab: Lab,
    processes: Vec<Process>,
    sites: [Site; 2],
    setup: Setup,
    /// Libraries that programs of a site are run with.
    preloaded: [Option<PathBuf>; 2],
}

impl Sites {
    pub(crate) fn start(setup: &Setup) -> Self {
        Self::prepare(setup, |_| {})
    }

    /// The same, after `prepare` was done in the laboratory.
    pub(crate) fn prepare(setup: &Setup, prepare: impl FnOnce(&Self)) -> Self {
        let mut sites = Self {
            lab: lab(),
            processes: Vec::new(),
            sites: [Site::new(), Site::new()],
            setup: *setup,
            preloaded: [None, None],
        };
        sites.add_default_routes();
        sites.ip(TOKYO, "route add 10.1.0.0/24 dev lan table 101");
        prepare(&sites);
        let keys = [sites.public_key(TOKYO), sites.public_key(OSAKA)];
        let texts = [sites.tokyo(&keys), sites.osaka(&keys)];
        for (site, text) in sites.sites.iter().zip(&texts) {
            site.write("gateway.toml", text);
        }
        for own in [OSAKA, TOKYO] {
            let process = sites.spawn(own);
            sites.processes.insert(0, process);
        }
        sites
    }

    fn tokyo(&self, keys: &[String; 2]) -> String {
        let setup = &self.setup;
        let key = match setup.wrong_key_at_tokyo {
            true => Site::new().public_key(),
            false => keys[OSAKA].clone(),
        };
        let mut text = format!(
            "{}[[path]]\nname = \"wan0\"\ninterface = \"wan0\"\n\
             [[path]]\nname = \"wan1\"\ninterface = \"wan1\"\n\
             [[peer]]\nname = \"osaka\"\npublic_key = \"{key}\"\nendpoint = \"203.0.113.2:7600\"\n\
             [[app]]\nname = \"orders\"\nclass = \"message\"\npeer = \"osaka\"\n\
             [[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"osaka\"\n",
            self.sites[TOKYO].gateway("tokyo"),
        );
        if setup.tenants {
            text.push_str(
                "[tenant.blue]\nid = 1\ndevice = \"t-blue\"\ntable = 101\ninterfaces = [\"lan\"]\n\
                 prefixes = [\"10.1.0.0/16\"]\n\
                 [tenant.blue.peer.osaka]\nprefixes = [\"10.2.0.0/16\"]\napp = \"ip\"\n",
            );
        }
        for part in setup.without {
            assert!(text.contains(part), "no `{part}` in {text}");
            text = text.replace(part, "");
        }
        for (part, other) in setup.replace {
            assert!(text.contains(part), "no `{part}` in {text}");
            text = text.replace(part, other);
        }
        text
    }

    fn osaka(&self, keys: &[String; 2]) -> String {
        let setup = &self.setup;
        let mut text = format!(
            "{}[[path]]\nname = \"core\"\ninterface = \"core\"\n\
             [[peer]]\nname = \"tokyo\"\npublic_key = \"{}\"\n\
             [[app]]\nname = \"orders\"\nclass = \"{}\"\npeer = \"tokyo\"\n\
             [[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"tokyo\"\n",
            self.sites[OSAKA].gateway("osaka"),
            keys[TOKYO],
            setup.class_at_osaka,
        );
        if setup.tenants {
            text.push_str(&format!(
                "[tenant.blue]\nid = {}\ndevice = \"t-blue\"\naddresses = [\"10.2.0.1/32\"]\n\
                 prefixes = [\"10.2.0.0/16\"]\n\
                 [tenant.blue.peer.tokyo]\nprefixes = [\"{}\"]\napp = \"ip\"\n",
                setup.id_at_osaka, setup.prefix_of_tokyo_at_osaka
            ));
        }
        text
    }

    fn spawn(&self, own: usize) -> Process {
        let host = self.lab.host(NAMES[own]).expect("a host");
        let mut command = match own == TOKYO && self.setup.without_net_admin {
            true => {
                let mut command = host.command("setpriv");
                command.args(["--bounding-set", "-net_admin", PROGRAM]);
                command
            }
            false => host.command(PROGRAM),
        };
        let log = File::create(self.sites[own].path("log")).expect("a log");
        command
            .args(["gateway", "--user", "root", "--config"])
            .arg(self.file(own))
            .envs(
                self.preloaded[own]
                    .iter()
                    .map(|library| ("LD_PRELOAD", library)),
            )
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        host.spawn(command).expect("it starts")
    }

    /// The default routes of tokyo's uplinks.
    pub(crate) fn add_default_routes(&self) {
        for route in [
            "192.0.2.1 dev wan0 metric 100",
            "198.51.100.1 dev wan1 metric 200",
        ] {
            self.ip(TOKYO, &format!("route replace default via {route}"));
        }
    }

    /// Its configuration.
    pub(crate) fn file(&self, own: usize) -> PathBuf {
        self.sites[own].path("gateway.toml")
    }

    pub(crate) fn public_key(&self, own: usize) -> String {
        self.sites[own].public_key()
    }

    /// Ends a gateway.
    pub(crate) fn stop(&mut self, own: usize) {
        self.processes[own].signal(SIGTERM).expect("it runs");
        let ended = self.processes[own].wait(LIMIT).expect("it is a child");
        assert!(ended.is_some(), "it does not end");
    }

    /// Starts a gateway that was stopped.
    pub(crate) fn restart(&mut self, own: usize) {
        self.processes[own] = self.spawn(own);
    }

    /// Starts a gateway that was stopped on a machine whose clock has gone back.
    /// The time of its handshakes is lost too, which would keep it above the former ones.
    pub(crate) fn turn_clock_back(&mut self, own: usize) {
        let site = &self.sites[own];
        std::fs::remove_file(site.path("state/handshake-time")).expect("it kept its time");
        let seconds = CLOCK_DAYS_BEHIND * 86_400 + 3600;
        let source = OTHER_CLOCK.replace("SECONDS", &seconds.to_string());
        let source = site.write("clock.c", &source);
        let library = site.path("clock.so");
        let mut command = process::Command::new("cc");
        command
            .args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(source);
        finish(&mut command, b"").expect_code(0);
        self.preloaded[own] = Some(library);
        self.restart(own);
    }

    /// Waits until all paths of tokyo are up.
    pub(crate) fn await_up(&self) {
        let socket = shown(&self.sites[TOKYO].path("control.sock"));
        eventually("tokyo's paths are up", || {
            let ran = run(["show", "path", "--json", "--socket", &socket]);
            let paths: Value = serde_json::from_str(&ran.stdout).ok()?;
            let paths = paths.as_array()?;
            let is_up = |path: &Value| path["state"] == "up";
            (!paths.is_empty() && paths.iter().all(is_up)).then_some(())
        });
    }

    /// What `keiro doctor` says beside a gateway.
    pub(crate) fn doctor(&self, own: usize, more: &[&str]) -> Ran {
        let host = self.lab.host(NAMES[own]).expect("a host");
        let mut command = host.command(PROGRAM);
        command
            .args(["doctor", "--config"])
            .arg(self.file(own))
            .args(more)
            .envs(
                self.preloaded[own]
                    .iter()
                    .map(|library| ("LD_PRELOAD", library)),
            );
        finish(&mut command, b"")
    }

    /// Waits until the first of what `keiro doctor` finds is this.
    #[track_caller]
    pub(crate) fn expect(&self, own: usize, cause: &str, kind: &str, name: Option<&str>) -> Value {
        let mut last = String::new();
        let end = std::time::Instant::now() + LIMIT;
        while std::time::Instant::now() < end {
            let ran = self.doctor(own, &["--json"]);
            last = format!("{ran:#?}");
            let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
            let first = &report["findings"][0];
            let is_about =
                first["subject"]["kind"] == kind && first["subject"]["name"].as_str() == name;
            if ran.code == Some(1) && first["cause"] == cause && is_about {
                eprintln!(
                    "{}: {}\n  {}",
                    NAMES[own], first["finding"], first["remedy"]
                );
                return first.clone();
            }
        }
        panic!("{cause} is not found first: {last}\n{}", self.logs());
    }

    /// Sends messages of an application from tokyo, which need not arrive.
    pub(crate) fn send(&self, app: &str) {
        let socket = shown(&self.sites[TOKYO].path("message.sock"));
        let mut command = process::Command::new(PROGRAM);
        command.args(["send", app, "--socket", &socket]);
        let ran = finish(&mut command, b"a message");
        eprintln!("keiro send: {:?} {}", ran.code, ran.stderr);
    }

    /// A host of tokyo's LAN reaches osaka's address in the tunnel.
    pub(crate) fn ping(&self) {
        let client = self.lab.host("client").expect("a host");
        let far = self.lab.host("osaka").expect("a host");
        let far = eventually("the address is there", || {
            far.run(|| UdpSocket::bind("10.2.0.1:9"))
                .expect("entered")
                .ok()
        });
        far.set_read_timeout(Some(Duration::from_millis(200)))
            .expect("set");
        eventually("a datagram of the LAN arrives", || {
            let near = client
                .run(|| UdpSocket::bind("10.1.0.5:0"))
                .expect("entered");
            near.expect("bound")
                .send_to(b"ping", "10.2.0.1:9")
                .expect("sent");
            far.recv(&mut [0; 100]).ok()
        });
    }

    /// A host of tokyo's LAN sends datagrams to osaka's, which need not arrive.
    pub(crate) fn send_from_lan(&self) {
        let client = self.lab.host("client").expect("a host");
        let sent = client.run(|| {
            let near = UdpSocket::bind("10.1.0.5:0").expect("bound");
            for _ in 0..10 {
                near.send_to(b"lost", "10.2.0.1:9").expect("sent");
            }
        });
        sent.expect("entered");
    }

    pub(crate) fn ip(&self, own: usize, args: &str) {
        self.ip_of(NAMES[own], args);
    }

    pub(crate) fn ip_of(&self, host: &str, args: &str) {
        let mut command = self.lab.host(host).expect("a host").command("ip");
        command.args(args.split_whitespace());
        finish(&mut command, b"").expect_code(0);
    }

    pub(crate) fn nft(&self, own: usize, rules: &[&str]) {
        self.nft_of(NAMES[own], rules);
    }

    pub(crate) fn nft_of(&self, host: &str, rules: &[&str]) {
        let mut command = self.lab.host(host).expect("a host").command("nft");
        command.args(["-f", "-"]);
        let rules: String = rules.iter().map(|rule| format!("{rule}\n")).collect();
        finish(&mut command, rules.as_bytes()).expect_code(0);
    }

    pub(crate) fn sysctl(&self, own: usize, setting: &str) {
        self.shell(own, &format!("sysctl -w {setting}"));
    }

    /// Runs a command as a person would.
    pub(crate) fn shell(&self, own: usize, text: &str) {
        let host = self.lab.host(NAMES[own]).expect("a host");
        let mut command = host.command("sh");
        command.args(["-c", text]);
        finish(&mut command, b"").expect_code(0);
    }

    fn logs(&self) -> String {
        let log = |site: &Site| std::fs::read_to_string(site.path("log")).unwrap_or_default();
        let logs: Vec<String> = self.sites.iter().map(log).collect();
        logs.join("\n")
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the gateways' logs:\n{}", self.logs());
        }
        for process in &self.processes {
            let _ = process.signal(SIGTERM);
        }
    }
}

fn lab() -> Lab {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let topology = Topology::parse(TOPOLOGY, "test").expect("a topology");
    Lab::builder(&topology)
        .name(format!("d{}-{number}", process::id()))
        .grace(Duration::from_millis(300))
        .interrupts(interrupts())
        .up()
        .unwrap_or_else(|error| panic!("these tests need root and iproute2: {error}"))
}

/// Removes the laboratories on Ctrl-C too.
fn interrupts() -> &'static Interrupts {
    static INTERRUPTS: OnceLock<Interrupts> = OnceLock::new();
    INTERRUPTS.get_or_init(|| Interrupts::install(Duration::ZERO).expect("signal handlers"))
}
