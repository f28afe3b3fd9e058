//! A hub, and machines that join its network: one behind two address translators, one without.
//!
//! ```text
//!  desk --- tokyo === nat0 === isp === hub --- server
//!                 === nat1 ===  ||
//!  shelf -- kyoto ==============
//! ```

use std::{
    fs::{self, File},
    net::IpAddr,
    path::Path,
    process::Stdio,
    thread,
    time::Instant,
};

use keiro_control::{
    invitation::Token,
    key::PublicKey,
    network::{Registry, RegistryEdit},
    protocol::EventKind,
};
use keiro_lab::{Lab, Process};
use keiro_linux::process::{SIGKILL, SIGTERM};
use serde_json::Value;

use crate::{
    gateways::{Monitor, echo, lab, monitor_at},
    harness::{LIMIT, Ran, Site, eventually, finish, run, shown},
};

const TOPOLOGY: &str = r#"
[host.hub]
routes = [{ to = "default", via = "203.0.113.1" }]
sysctl = { "net.ipv4.ip_forward" = 1 }
[host.isp]
sysctl = { "net.ipv4.ip_forward" = 1 }
[host.nat0]
routes = [{ to = "default", via = "198.51.100.1" }]
sysctl = { "net.ipv4.ip_forward" = 1 }
[host.nat1]
routes = [{ to = "default", via = "192.0.2.1" }]
sysctl = { "net.ipv4.ip_forward" = 1 }
[host.tokyo]
[host.kyoto]
routes = [{ to = "default", via = "203.0.113.17" }]
[host.desk]
routes = [{ to = "default", via = "10.1.0.1" }]
[host.shelf]
[host.server]
routes = [{ to = "default", via = "10.0.0.1" }]
[link.core]
a = { host = "isp", addresses = ["203.0.113.1/28"] }
b = { host = "hub", addresses = ["203.0.113.2/28"] }
each_way = { rate = "50Mbit", delay = "10ms", buffer = "128KiB" }
[link.out0]
a = { host = "isp", addresses = ["198.51.100.1/28"] }
b = { host = "nat0", addresses = ["198.51.100.2/28"] }
[link.out1]
a = { host = "isp", addresses = ["192.0.2.1/28"] }
b = { host = "nat1", addresses = ["192.0.2.2/28"] }
[link.out2]
a = { host = "isp", addresses = ["203.0.113.17/28"] }
b = { host = "kyoto", addresses = ["203.0.113.18/28"] }
[link.wan0]
a = { host = "nat0", addresses = ["192.168.0.1/24"] }
b = { host = "tokyo", addresses = ["192.168.0.2/24"] }
[link.wan1]
a = { host = "nat1", addresses = ["192.168.1.1/24"] }
b = { host = "tokyo", addresses = ["192.168.1.2/24"] }
[link.lan0]
a = { host = "tokyo", addresses = ["10.1.0.1/24"] }
b = { host = "desk", addresses = ["10.1.0.10/24"] }
[link.lan1]
a = { host = "kyoto", addresses = ["10.2.0.1/24"] }
b = { host = "shelf", addresses = ["10.2.0.10/24"] }
[link.lanh]
a = { host = "hub", addresses = ["10.0.0.1/24"] }
b = { host = "server", addresses = ["10.0.0.10/24"] }
"#;

/// The hub's host, and what is on it.
pub(crate) struct World {
    // First, so that the gateways end before their files go.
    pub(crate) lab: Lab,
    pub(crate) hub: Site,
    pub(crate) processes: Vec<Process>,
}

impl World {
    /// The hub runs, and has no site.
    pub(crate) fn start() -> Self {
        let mut world = Self::new(TOPOLOGY);
        for number in 0..2 {
            world.sh(
                &format!("nat{number}"),
                &format!(
                    "nft 'table ip nat {{ chain post {{ type nat hook postrouting priority srcnat; \
                     oifname \"out{number}\" masquerade; }}; }}'"
                ),
            );
            let metric = 100 * (number + 1);
            let route = format!(
                "ip route add default via 192.168.{number}.1 dev wan{number} metric {metric}"
            );
            world.sh("tokyo", &route);
        }
        world.start_hub();
        world
    }

    /// Nothing runs.
    pub(crate) fn new(topology: &str) -> Self {
        Self {
            lab: lab(topology),
            hub: Site::without_key(),
            processes: Vec::new(),
        }
    }

    /// Makes the hub, at 203.0.113.2, and starts it.
    pub(crate) fn start_hub(&mut self) {
        let world = self;
        let file = shown(&world.hub.path("gateway.toml"));
        let init = ["init", "--hub", "--name", "hub", "--output", &file];
        let made = world.keiro("hub", &init).expect_code(0);
        assert!(made.stderr.contains("203.0.113.2:7600"), "{}", made.stderr);
        make_local(&world.hub);
        world.spawn("hub", &world.hub.path("gateway.toml"));
        eventually("the hub answers", || world.ask(&["status"]));
    }

    /// Sites have no direct sessions; applied with the next invitation.
    pub(crate) fn keep_packets_with_hubs(&self) {
        let file = self.hub.path("network/registry.toml");
        let text = fs::read_to_string(&file).expect("a registry");
        let closed = text.replacen("[network]", "[network]\ndirect = false", 1);
        assert_ne!(closed, text);
        fs::write(&file, closed).expect("written");
    }

    pub(crate) fn sh(&self, host: &str, script: &str) -> String {
        let mut command = self.lab.host(host).expect("a host").command("sh");
        command.args(["-c", script]);
        finish(&mut command, b"").expect_code(0).stdout
    }

    pub(crate) fn keiro(&self, host: &str, args: &[&str]) -> Ran {
        let mut command = self.lab.host(host).expect("a host").command(crate::PROGRAM);
        command.args(args);
        finish(&mut command, b"")
    }

    /// A command of the hub, with its configuration.
    pub(crate) fn at_hub(&self, args: &[&str]) -> Ran {
        let file = shown(&self.hub.path("gateway.toml"));
        let args: Vec<&str> = args.iter().copied().chain(["--config", &file]).collect();
        self.keiro("hub", &args)
    }

    pub(crate) fn invite(&self, args: &[&str]) -> String {
        let args: Vec<&str> = ["invite"].iter().chain(args).copied().collect();
        let ran = self.at_hub(&args).expect_code(0);
        assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
        ran.stdout.trim().to_owned()
    }

    /// `keiro join` on a host, into the files of `site`.
    pub(crate) fn join(&self, host: &str, site: &Site, token: &str, more: &[&str]) -> Ran {
        let file = shown(&site.path("keiro/gateway.toml"));
        let sysctl = shown(&site.path("sysctl"));
        let mut args = vec!["join", token, "--yes", "--output", &file];
        args.extend(["--sysctl-directory", &sysctl]);
        args.extend(more);
        self.keiro(host, &args)
    }

    /// A join of kyoto's that ends with `parts` and leaves nothing in `site`.
    #[track_caller]
    fn is_refused(&self, site: &Site, token: &str, more: &[&str], parts: &[&str]) {
        let ran = self.join("kyoto", site, token, more);
        let _ = ran.expect_code(1).says(parts);
        assert!(is_empty(site), "after {parts:?}");
    }

    pub(crate) fn spawn(&mut self, host: &str, file: &Path) {
        let log = File::create(file.with_extension("log")).expect("a log");
        let host = self.lab.host(host).expect("a host");
        let mut command = host.command(crate::PROGRAM);
        command
            .args(["gateway", "--user", "root", "--config", &shown(file)])
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.processes.push(host.spawn(command).expect("it starts"));
    }

    /// Kills the gateway that was started in this place, and starts it again.
    pub(crate) fn restart(&mut self, place: usize, host: &str, file: &Path) {
        self.processes[place].signal(SIGKILL).expect("it runs");
        let killed = self.processes.remove(place);
        let ended = killed.wait(LIMIT).expect("its status");
        assert!(ended.is_some(), "it ends");
        self.spawn(host, file);
        let started = self.processes.pop().expect("it was started");
        self.processes.insert(place, started);
    }

    /// Lets a host forward packets of a device, as udev does when the device comes.
    pub(crate) fn forward(&self, host: &str, device: &str) {
        let file = format!("/proc/sys/net/ipv4/conf/{device}/forwarding");
        let host = self.lab.host(host).expect("a host");
        eventually("the device is there", || {
            host.run(|| fs::write(&file, "1").ok())
                .expect("in the host")
        });
    }

    /// Pings from a host until there is an answer.
    #[track_caller]
    pub(crate) fn ping(&self, host: &str, to: &str) {
        let to: IpAddr = to.parse().expect("an address");
        let host = self.lab.host(host).expect("a host");
        let answered = host.run(move || echo(to, 56, None)).expect("in the host");
        assert_eq!(answered, Some(56), "{to}");
    }

    pub(crate) fn ask(&self, args: &[&str]) -> Option<Value> {
        ask(&self.hub, args)
    }

    fn monitor(&self) -> Monitor {
        monitor_at(&self.hub.path("control.sock"))
    }

    fn registry(&self) -> Registry {
        Registry::load(&self.hub.path("network/registry.toml")).expect("a registry")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.hub.path("gateway.log")).unwrap_or_default();
            eprintln!("the hub's log:\n{log}");
        }
        for process in &self.processes {
            let _ = process.signal(SIGTERM);
        }
    }
}

/// Several gateways share the machine's files here, so each gets its sockets beside its configuration.
pub(crate) fn make_local(site: &Site) {
    let file = eventually("there is a configuration", || {
        let files = ["gateway.toml", "keiro/gateway.toml"].map(|name| site.path(name));
        files.into_iter().find(|file| file.exists())
    });
    let [control, message, state] =
        ["control.sock", "message.sock", "state"].map(|name| shown(&site.path(name)));
    let text = fs::read_to_string(&file).expect("a file");
    let default = "message_socket = \"/run/keiro/message.sock\"";
    assert!(text.contains(default), "{text}");
    let local = format!(
        "message_socket = \"{message}\"\ncontrol_socket = \"{control}\"\nstate_directory = \"{state}\""
    );
    fs::write(&file, text.replacen(default, &local, 1)).expect("written");
}

pub(crate) fn ask(site: &Site, args: &[&str]) -> Option<Value> {
    let socket = shown(&site.path("control.sock"));
    let args = args.iter().copied();
    let ran = run(args.chain(["--socket", &socket, "--json"]));
    serde_json::from_str(&ran.stdout).ok()
}

/// What is left of a join that failed.
fn is_empty(site: &Site) -> bool {
    let mut entries = fs::read_dir(site.directory.path()).expect("a directory");
    entries.next().is_none()
}

pub(crate) fn read(site: &Site, name: &str) -> String {
    fs::read_to_string(site.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn a_branch_behind_two_translators_joins_and_hosts_of_both_ends_reach_each_other() {
    let mut world = World::start();
    let token = world.invite(&["tokyo"]);
    let mut monitor = world.monitor();
    let tokyo = Site::without_key();
    let begun = Instant::now();
    let joined = world.join("tokyo", &tokyo, &token, &[]).expect_code(0);
    let took = begun.elapsed();
    assert!(
        joined.stderr.contains("10.1.0.0/24 (on lan0)"),
        "{}",
        joined.stderr
    );
    let (site, remote) = monitor.next(|event| match event {
        EventKind::SiteJoined {
            site,
            invitation: Some(_),
            remote,
            ..
        } => Some((site, remote.expect("its address"))),
        _ => None,
    });
    assert_eq!(site, "tokyo");
    let seen = ["198.51.100.2:", "192.0.2.2:"];
    assert!(seen.iter().any(|nat| remote.starts_with(nat)), "{remote}");

    make_local(&tokyo);
    world.spawn("tokyo", &tokyo.path("keiro/gateway.toml"));
    let forwarding = read(&tokyo, "sysctl/60-keiro-join.conf");
    assert!(
        forwarding.contains("net.ipv4.conf.lan0.forwarding = 1"),
        "{forwarding}"
    );
    assert!(
        forwarding.contains("net.ipv4.conf.keiro1.forwarding = 1"),
        "{forwarding}"
    );
    world.forward("tokyo", "keiro1");
    world.ping("desk", "10.0.0.10");
    eprintln!(
        "joined after {took:?}, first ping of the hub's network after {:?}",
        begun.elapsed()
    );
    // Nor does the network behind the branch need anything else.
    world.ping("server", "10.1.0.10");
    eventually("both uplinks are in use", || {
        let paths = ask(&tokyo, &["show", "path"])?;
        let up = paths
            .as_array()?
            .iter()
            .filter(|path| path["state"] == "up");
        (up.count() == 2).then_some(())
    });
    let sites = world.at_hub(&["sites", "--json"]).expect_code(0).json();
    assert_eq!(sites["sites"][0]["name"], "tokyo");
    assert_eq!(sites["sites"][0]["state"], "up");

    // A configuration is never replaced.
    let before = read(&tokyo, "keiro/gateway.toml");
    world
        .join("tokyo", &tokyo, &token, &[])
        .expect_code(1)
        .says(&["gateway.toml is there already", "mv "]);
    assert_eq!(read(&tokyo, "keiro/gateway.toml"), before);

    world.at_hub(&["revoke", "tokyo"]).expect_code(0);
    eventually("the branch's session ends", || {
        let peers = ask(&tokyo, &["show", "peer"])?;
        (peers[0]["state"] != "up").then_some(())
    });
    assert!(world.registry().sites.is_empty());
}

#[test]
fn an_invitation_serves_one_machine_and_that_one_again() {
    let world = World::start();
    let token = world.invite(&["tokyo"]);
    let tokyo = Site::without_key();
    world.join("tokyo", &tokyo, &token, &[]).expect_code(0);
    let secret = read(&tokyo, "keiro/hub.psk");
    assert_eq!(world.registry().sites.len(), 1);

    // Another machine.
    let kyoto = Site::without_key();
    let mut monitor = world.monitor();
    let refused = world.join("kyoto", &kyoto, &token, &["--name", "kyoto"]);
    let refused = refused
        .expect_code(1)
        .says(&["used at 20", "keiro revoke tokyo", "--replace"]);
    let seen = ["from 198.51.100.2", "from 192.0.2.2"];
    assert!(
        seen.iter().any(|nat| refused.stderr.contains(nat)),
        "{}",
        refused.stderr
    );
    assert!(is_empty(&kyoto));
    let reason = monitor.next(|event| match event {
        EventKind::JoinRefused { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(reason, "used");

    // The same machine, whose answer was lost.
    for file in [
        "keiro/gateway.toml",
        "keiro/hub.psk",
        "sysctl/60-keiro-join.conf",
    ] {
        fs::remove_file(tokyo.path(file)).expect("it was written");
    }
    world.join("tokyo", &tokyo, &token, &[]).expect_code(0);
    assert_eq!(read(&tokyo, "keiro/hub.psk"), secret);
    assert_eq!(world.registry().sites.len(), 1);

    // Who used a token under another name goes with the invitation.
    let stolen = world.invite(&["osaka"]);
    let thief = Site::without_key();
    let evil = ["--name", "evil"];
    world.join("kyoto", &thief, &stolen, &evil).expect_code(0);
    let sites = world.at_hub(&["sites", "--json"]).expect_code(0).json();
    assert_eq!(sites["sites"][2]["name"], "osaka");
    assert_eq!(sites["sites"][2]["state"], "used");
    assert_eq!(sites["sites"][2]["used_by"], "evil");
    let asked = world.at_hub(&["invite", "osaka"]).expect_code(1);
    let _ = asked.says(&["`evil`", "--replace"]);
    let revoked = world.at_hub(&["revoke", "osaka"]).expect_code(0);
    let _ = revoked.says(&["site `evil`"]);
    assert_eq!(world.registry().sites.len(), 1);

    // A token is not a session: the site's key is its own from now on.
    let token: Token = token.parse().expect("a token");
    let provisional = token.secret.preshared_key().to_base64();
    assert_ne!(secret.trim(), provisional.as_str());
}

#[test]
fn joins_that_are_refused_say_why_and_leave_nothing_behind() {
    let world = World::start();
    let token = world.invite(&["kyoto"]);
    let kyoto = Site::without_key();
    // Nothing is asked of the hub.
    let letter = if token.as_bytes()[60] == b'x' {
        "y"
    } else {
        "x"
    };
    let mut altered = token.clone();
    altered.replace_range(60..=60, letter);
    world.is_refused(&kyoto, &altered, &[], &["altered"]);
    world.is_refused(
        &kyoto,
        &token[..token.len() - 9],
        &[],
        &["the end of the token is missing"],
    );
    world.is_refused(
        &kyoto,
        &token.replacen("keiro1", "keiro7", 1),
        &[],
        &["format 7"],
    );
    world.is_refused(&kyoto, "hello", &[], &["begins with `keiro1`"]);

    // The hub's checks.
    let tokyo = Site::without_key();
    let of_tokyo = world.invite(&["tokyo"]);
    world.join("tokyo", &tokyo, &of_tokyo, &[]).expect_code(0);
    let claim = ["--prefix", "10.1.0.0/25"];
    world.is_refused(
        &kyoto,
        &token,
        &claim,
        &["10.1.0.0/25", "10.1.0.0/24", "site `tokyo`"],
    );
    world.is_refused(&kyoto, &token, &["--prefix", "10.0.0.0/24"], &["the hub"]);
    world.is_refused(
        &kyoto,
        &token,
        &["--prefix", "203.0.113.0/24"],
        &["203.0.113.2", "hub itself"],
    );
    world.is_refused(
        &kyoto,
        &token,
        &["--name", "tokyo"],
        &["another site", "--name"],
    );
    let bound = world.invite(&["kyoto", "--replace", "--prefix", "10.9.0.0/16"]);
    world.is_refused(&kyoto, &bound, &[], &["10.9.0.0/16", "not for 10.2.0.0/24"]);
    expire(&world, "kyoto");
    world.is_refused(&kyoto, &bound, &[], &["has expired at 2020-", "--replace"]);
    assert_eq!(world.registry().sites.len(), 1);

    // The token is good for who uses it rightly.
    let token = world.invite(&["kyoto", "--replace"]);
    let file = kyoto.write(
        "token",
        &format!("\n  {}\n{}  \n", &token[..50], &token[50..]),
    );
    let file = shown(&file);
    let place = shown(&kyoto.path("keiro/gateway.toml"));
    let sysctl = shown(&kyoto.path("sysctl"));
    let args = ["join", "--file", &file, "--output", &place];
    let args: Vec<&str> = args
        .into_iter()
        .chain(["--sysctl-directory", &sysctl])
        .collect();
    // Without a terminal nothing is asked, and nothing assumed.
    world.keiro("kyoto", &args).expect_code(64).says(&["--yes"]);
    let args: Vec<&str> = args.into_iter().chain(["--yes"]).collect();
    world.keiro("kyoto", &args).expect_code(0);
    assert_eq!(world.registry().sites.len(), 2);
}

/// Moves the end of an invitation into the past, and lets the hub know.
fn expire(world: &World, name: &str) {
    let file = world.hub.path("network/registry.toml");
    let mut edit = RegistryEdit::open(&file).expect("a registry");
    let (name, invitation) = edit
        .registry()
        .invitations
        .iter()
        .find(|(of, _)| of.as_str() == name)
        .map(|(name, invitation)| (name.clone(), invitation.clone()))
        .expect("an invitation");
    let over = keiro_control::network::Invitation {
        expires: "2020-01-01T00:00:00Z"
            .parse::<keiro_control::protocol::Timestamp>()
            .expect("a time")
            .0,
        ..invitation
    };
    edit.put_invitation(&name, &over);
    edit.commit().expect("written");
    let socket = shown(&world.hub.path("control.sock"));
    run(["reload", "--socket", &socket]).expect_code(0);
}

#[test]
fn a_hub_that_does_not_answer_is_reported_with_what_to_check() {
    let world = World::start();
    let token = world.invite(&["kyoto"]);
    let elsewhere: Token = token.parse().expect("a token");
    let of_other_hub = Token {
        hub_key: PublicKey::from_bytes([7; 32]),
        ..elsewhere.clone()
    };
    let unreachable = Token {
        hub_endpoints: vec!["203.0.113.9:7600".parse().expect("an endpoint")],
        ..elsewhere
    };
    let revoked = world.invite(&["nara"]);
    world.at_hub(&["revoke", "nara"]).expect_code(0);
    let tokens = [of_other_hub.to_string(), unreachable.to_string(), revoked];
    thread::scope(|scope| {
        for token in &tokens {
            let world = &world;
            scope.spawn(move || {
                let site = Site::without_key();
                let begun = Instant::now();
                let ran = world
                    .join("kyoto", &site, token, &[])
                    .expect_code(1)
                    .says(&[
                        "has not answered within 15 s",
                        "no answer from the hub yet",
                        "UDP port 7600",
                        "`keiro sites`",
                    ]);
                eprintln!("gave up after {:?}", begun.elapsed());
                assert!(is_empty(&site), "{}", ran.stderr);
            });
        }
    });
}
