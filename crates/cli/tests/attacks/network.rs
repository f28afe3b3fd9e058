//! The hosts, and the gateways on them.

use std::{
    fs::{self, File},
    process::{self, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_control::key::PublicKey;
use keiro_lab::{Host, Lab, Process, Topology};
use serde_json::Value;

use crate::{
    harness::{Site, eventually, finish, run, shown},
    support::key,
};

const TOPOLOGY: &str = r#"
[host.hub]
routes = [{ to = "default", via = "10.90.3.2" }]
sysctl = { "net.ipv4.conf.all.rp_filter" = 0, "net.ipv4.conf.default.rp_filter" = 0 }

[host.spoke]
sysctl = { "net.core.somaxconn" = 20000 }

[host.crowd]
routes = [{ to = "10.90.1.0/24", via = "10.90.3.1" }]

[host.fresh]
routes = [{ to = "10.90.1.0/24", via = "10.90.4.1" }]

[link.wan]
a = { host = "hub", addresses = ["10.90.1.1/24"] }
b = { host = "spoke", addresses = ["10.90.1.2/24"] }

[link.crowd]
a = { host = "hub", addresses = ["10.90.3.1/24"] }
b = { host = "crowd", addresses = ["10.90.3.2/24"] }

[link.fresh]
a = { host = "hub", addresses = ["10.90.4.1/24"] }
b = { host = "fresh", addresses = ["10.90.4.2/24"] }
"#;

/// Where the hub is reached.
pub(crate) const HUB: &str = "10.90.1.1:7600";
/// 32 bytes of 1, as the raw peers of the tests have them.
const HUB_KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n";
/// The keys of the hostile peers, in the same way.
pub(crate) const HOSTILE_KEYS: [u8; 2] = [2, 3];

/// The hub's application for streams of a hostile peer.
pub(crate) fn streams_of(gateway: u8) -> String {
    format!("streams-{gateway}")
}
/// The hub's TCP listener towards the spoke.
pub(crate) const HUB_LISTENER: &str = "127.0.0.1:5002";
/// The server at the spoke that its connections lead to.
pub(crate) const SPOKE_SERVER: &str = "127.0.0.1:9003";

pub(crate) struct Network {
    // First, so that the gateways end before their files go.
    lab: Lab,
    hub: Process,
    _spoke: Process,
    sites: [Site; 3],
}

impl Network {
    /// Hub and spoke are up.
    pub(crate) fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let topology = Topology::parse(TOPOLOGY, "attacks").expect("a topology");
        let lab = Lab::builder(&topology)
            .name(format!("k{}-{number}", process::id()))
            .grace(Duration::from_millis(300))
            .up()
            .unwrap_or_else(|error| panic!("attacks need root and iproute2: {error}"));
        let sites = [Site::without_key(), Site::new(), Site::new()];
        sites[0].write("private.key", HUB_KEY);
        sites[0].set_mode("private.key", 0o600);
        let publics = [&sites[1], &sites[2]].map(Site::public_key);
        sites[0].write("gateway.toml", &hub_configuration(&sites[0], &publics));
        let spoke = |site: &Site, name: &str, local: &str| {
            let text = spoke_configuration(site, name, local);
            site.write("gateway.toml", &text);
        };
        spoke(&sites[1], "spoke", "10.90.1.2");
        spoke(&sites[2], "fresh", "10.90.4.2");
        let network = Self {
            hub: spawn(&lab, "hub", &sites[0]),
            _spoke: spawn(&lab, "spoke", &sites[1]),
            lab,
            sites,
        };
        eventually("hub and spoke are up", || {
            let at_hub = ask(&network.sites[0], &["status"])?;
            let at_spoke = ask(&network.sites[1], &["status"])?;
            (at_hub["paths_up"] == 1 && at_spoke["paths_up"] == 1).then_some(())
        });
        network
    }

    pub(crate) fn host(&self, name: &str) -> &Host {
        self.lab.host(name).expect("a host")
    }

    /// What `ip` prints in a host.
    pub(crate) fn ip(&self, host: &str, args: &str) -> String {
        let mut command = self.host(host).command("ip");
        command.args(args.split_whitespace());
        finish(&mut command, b"").expect_code(0).stdout
    }

    /// The hub answers on its control socket.
    pub(crate) fn answers(&self) -> bool {
        ask(&self.sites[0], &["status"]).is_some()
    }

    /// How often paths between hub and spoke went down, as both have counted. `None`: one of them does not answer.
    pub(crate) fn outages(&self) -> Option<u64> {
        let at = |site: &Site, peer: &str| -> Option<u64> {
            let paths = ask(site, &["show", "path"])?;
            let of_peer = paths.as_array()?.iter().filter(|path| path["peer"] == peer);
            Some(of_peer.filter_map(|path| path["outages"].as_u64()).sum())
        };
        Some(at(&self.sites[0], "spoke")? + at(&self.sites[1], "hub")?)
    }

    /// Packets that have arrived at the hub from the attackers' host, as the hub's kernel counts them.
    pub(crate) fn arrived(&self) -> u64 {
        let shown: Value =
            serde_json::from_str(&self.ip("hub", "-j -s link show crowd")).expect("JSON");
        shown[0]["stats64"]["rx"]["packets"]
            .as_u64()
            .expect("a count")
    }

    /// Connections that have reached the hub's TCP listener, accepted or refused. `None`: it does not answer.
    pub(crate) fn connections(&self) -> Option<u64> {
        let apps = ask(&self.sites[0], &["show", "app", "back"])?;
        let listener = &apps[0]["tcp_listeners"][0];
        let count = |field| listener[field].as_u64();
        Some(count("accepted_connections")? + count("refused_connections")?)
    }

    /// Lines of the hub's log.
    pub(crate) fn log_lines(&self) -> usize {
        let log = fs::read_to_string(self.sites[0].path("log"));
        log.expect("a log").lines().count()
    }

    /// Seconds of a processor that the hub has used.
    pub(crate) fn hub_processor(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.hub.id())).expect("it runs");
        // After the name in parentheses, in ticks of 10 ms (proc(5)).
        let (_, rest) = text.rsplit_once(')').expect("a name");
        let ticks = rest.split_whitespace().skip(11).take(2);
        let ticks = ticks.map(|n| n.parse::<f64>().expect("a number"));
        ticks.sum::<f64>() / 100.0
    }

    /// Seconds that the hub's data thread was ready and did not run: others had the processors.
    pub(crate) fn hub_waited(&self) -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.hub.id())).expect("it runs");
        let data = tasks
            .filter_map(Result::ok)
            .map(|task| task.path())
            .find(|task| {
                fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "data")
            });
        let text = data.and_then(|task| fs::read_to_string(task.join("schedstat")).ok());
        let text = text.unwrap_or_default();
        let waited = text
            .split_whitespace()
            .nth(1)
            .and_then(|n| n.parse::<f64>().ok());
        waited.unwrap_or(0.0) / 1e9
    }

    /// The hub's resident memory.
    pub(crate) fn hub_memory(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.hub.id())).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.expect("Linux").trim().trim_end_matches(" kB");
        kilobytes.parse::<u64>().expect("a number") << 10
    }

    /// Starts the spoke that the hub knows no address of; after what time it has a path. `None`: not within
    /// `limit`.
    pub(crate) fn join_fresh(&self, limit: Duration) -> Option<Duration> {
        // The attack is there before.
        thread::sleep(Duration::from_secs(1));
        let begun = Instant::now();
        let fresh = spawn(&self.lab, "fresh", &self.sites[2]);
        let joined = loop {
            let status = ask(&self.sites[2], &["status"]);
            if status.is_some_and(|status| status["paths_up"] == 1) {
                break Some(begun.elapsed());
            }
            if begun.elapsed() > limit {
                break None;
            }
            thread::sleep(Duration::from_millis(20));
        };
        drop(fresh);
        joined
    }
}

fn ask(site: &Site, args: &[&str]) -> Option<Value> {
    let socket = shown(&site.path("control.sock"));
    let ran = run(args.iter().copied().chain(["--socket", &socket, "--json"]));
    serde_json::from_str(&ran.stdout).ok()
}

fn spawn(lab: &Lab, name: &str, site: &Site) -> Process {
    let log = File::create(site.path("log")).expect("a log");
    let host = lab.host(name).expect("a host");
    let mut command = host.command(crate::PROGRAM);
    command
        .args(["gateway", "--user", "root", "--config"])
        .arg(site.path("gateway.toml"))
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    host.spawn(command).expect("it starts")
}

/// With the applications that the hostile peer names.
fn hub_configuration(site: &Site, publics: &[String; 2]) -> String {
    let [spoke, fresh] = publics;
    let hostile = HOSTILE_KEYS.map(|number| {
        let public = PublicKey::from_bytes(*key(number).public_key().as_bytes());
        let streams = streams_of(number);
        format!(
            "[[peer]]\nname = \"hostile-{number}\"\npublic_key = \"{public}\"\n\
             [[app]]\nname = \"{streams}\"\nclass = \"stream\"\npeer = \"hostile-{number}\"\n\
             [[forward]]\napp = \"{streams}\"\ntcp = \"127.0.0.1:9009\"\nallow_local = true\n"
        )
    });
    site.gateway("hub")
        + &hostile.concat()
        + &format!(
            "[[path]]\nname = \"wan\"\nlocal = \"{HUB}\"\nrate = \"1Gbit\"\n\
             [[peer]]\nname = \"spoke\"\npublic_key = \"{spoke}\"\nendpoints = {{ wan = \"10.90.1.2:7600\" }}\n\
             [[peer]]\nname = \"fresh\"\npublic_key = \"{fresh}\"\n\
             [[app]]\nname = \"messages\"\nclass = \"message\"\npeer = \"hostile-2\"\n\
             [[app]]\nname = \"probe\"\nclass = \"datagram\"\npeer = \"spoke\"\n\
             [[forward]]\napp = \"probe\"\nudp = \"127.0.0.1:9001\"\nallow_local = true\n\
             [[app]]\nname = \"transfer\"\nclass = \"stream\"\npeer = \"spoke\"\n\
             [[forward]]\napp = \"transfer\"\ntcp = \"127.0.0.1:9002\"\nallow_local = true\n\
             [[app]]\nname = \"back\"\nclass = \"stream\"\npeer = \"spoke\"\n\
             [[listener]]\napp = \"back\"\ntcp = \"{HUB_LISTENER}\"\n"
        )
}

fn spoke_configuration(site: &Site, name: &str, local: &str) -> String {
    let hub = PublicKey::from_bytes(*key(1).public_key().as_bytes());
    site.gateway(name)
        + &format!(
            "[[path]]\nname = \"wan\"\nlocal = \"{local}:7600\"\nrate = \"1Gbit\"\n\
             [[peer]]\nname = \"hub\"\npublic_key = \"{hub}\"\nendpoints = {{ wan = \"{HUB}\" }}\n\
             [[app]]\nname = \"probe\"\nclass = \"datagram\"\npeer = \"hub\"\n\
             [[listener]]\napp = \"probe\"\nudp = \"127.0.0.1:5000\"\n\
             [[app]]\nname = \"transfer\"\nclass = \"stream\"\npeer = \"hub\"\n\
             [[listener]]\napp = \"transfer\"\ntcp = \"127.0.0.1:5001\"\n\
             [[app]]\nname = \"back\"\nclass = \"stream\"\npeer = \"hub\"\n\
             [[forward]]\napp = \"back\"\ntcp = \"{SPOKE_SERVER}\"\nallow_local = true\n"
        )
}
