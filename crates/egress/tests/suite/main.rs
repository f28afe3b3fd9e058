//! Two transits, a border router and a server in one process, over loopback: real sockets, forwarding
//! in memory.

mod alarms;
mod reload;

use std::{
    net::Ipv6Addr,
    path::Path,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use keiro_egress::{
    asbr::Asbr,
    config::{AsbrConfig, EndpointConfig, SpeakerConfig},
    control::Monitor,
    daemon::{Daemon, Handle, Role},
    endpoint::Endpoint,
    forwarding::{
        Contents, Forwarding, ForwardingError, Memory, PeerIndex, RouteChange, Table, Via,
    },
    status::DaemonEvent,
};

const LIMIT: Duration = Duration::from_secs(20);

struct Running {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    memory: Memory,
}

impl Running {
    fn start<R: Role + Send + 'static>(role: R, config: &SpeakerConfig) -> Self {
        Self::start_from(role, config, None)
    }

    /// Which reads its configuration again from a file.
    fn start_from<R: Role + Send + 'static>(
        role: R,
        config: &SpeakerConfig,
        file: Option<&Path>,
    ) -> Self {
        let memory = Memory::default();
        let mut daemon = Daemon::start(role, config, Box::new(memory.clone())).unwrap();
        if let Some(file) = file {
            daemon.reload_from(file);
        }
        Self::serve(daemon, memory)
    }

    /// `memory`: what its forwarding keeps.
    fn serve<R: Role + Send + 'static>(daemon: Daemon<R>, memory: Memory) -> Self {
        let handle = daemon.handle();
        let thread = thread::spawn(move || daemon.serve(None).unwrap());
        Self {
            handle,
            thread: Some(thread),
            memory,
        }
    }

    fn asbr(text: &str) -> Self {
        let config = AsbrConfig::parse(text, "asbr.toml").unwrap();
        let speaker = config.speaker.clone();
        Self::start(Asbr::new(config), &speaker)
    }

    fn endpoint(text: &str) -> Self {
        let config = EndpointConfig::parse(text, "egress.toml").unwrap();
        let speaker = config.speaker.clone();
        Self::start(Endpoint::new(config), &speaker)
    }

    fn wait(&self, what: &str, holds: impl Fn(&Contents) -> bool) {
        let end = Instant::now() + LIMIT;
        while !holds(&self.memory.contents()) {
            assert!(
                Instant::now() < end,
                "never: {what}: {:?}",
                self.memory.contents()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || thread::panicking());
        }
    }
}

/// Loopback addresses of this test alone: `127.a.b.n`.
fn address(test: u8, host: u8) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{host}", 16 + test, pid % 251 + 1)
}

fn transit(test: u8, number: u8, prefix: &str) -> Running {
    Running::asbr(&transit_text(test, number, prefix))
}

fn transit_text(test: u8, number: u8, prefix: &str) -> String {
    let (own, border) = (address(test, number), address(test, 9));
    format!(
        r#"
[asbr]
asn = 6500{number}
router_id = "10.0.0.{number}"
locator = "2001:db8:ffff::/64"
announce = ["{prefix}", "2001:db8:cc::/48"]
listen = ["{own}:1790"]

[[peer]]
name = "customer"
address = "{border}"
port = 1790
local_address = "{own}"
next_hop = "2001:db8:f:{number}::1"
asn = 65000
import = "all"
export = "own"
"#
    )
}

fn border(test: u8) -> Running {
    let (own, server) = (address(test, 9), address(test, 20));
    let (a, b) = (address(test, 1), address(test, 2));
    Running::asbr(&format!(
        r#"
[asbr]
asn = 65000
router_id = "10.0.0.9"
locator = "2001:db8:a:1::/64"
announce = ["2001:db8:a::/48"]
listen = ["{own}:1790"]

[[reflector]]
name = "server"
address = "{server}"
port = 1790
local_address = "{own}"
next_hop = "2001:db8:a::9"

[[peer]]
name = "transit-a"
address = "{a}"
port = 1790
local_address = "{own}"
next_hop = "2001:db8:f:1::2"
asn = 65001
function = 0x100
import = "all"
export = "own"

[[peer]]
name = "transit-b"
address = "{b}"
port = 1790
local_address = "{own}"
next_hop = "2001:db8:f:2::2"
asn = 65002
function = 0x200
import = [{{ prefixes = ["2001:db8::/32 le 48"] }}]
export = "own"
"#
    ))
}

fn server(test: u8) -> Running {
    server_with(test, "")
}

/// With more keys.
fn server_with(test: u8, more: &str) -> Running {
    let (own, border) = (address(test, 20), address(test, 9));
    Running::endpoint(&format!(
        r#"
[egress]
{more}
asn = 65000
router_id = "10.0.0.20"
listen = ["{own}:1790"]

[[reflector]]
name = "border"
address = "{border}"
port = 1790
local_address = "{own}"

[[peer]]
name = "transit-a"
rt = "65000:256"
address = "2001:db8:a:e::a"

[[peer]]
name = "transit-b"
rt = "65000:512"
address = "2001:db8:a:e::b"
"#
    ))
}

fn segment(contents: &Contents, peer: usize, prefix: &str) -> Option<String> {
    let key = (Table::Peer(PeerIndex(peer)), prefix.parse().unwrap());
    match contents.routes.get(&key)? {
        Via::Segment(sid) => Some(sid.to_string()),
        other => Some(other.to_string()),
    }
}

#[test]
fn what_a_transit_announces_is_in_its_table_at_the_server_until_it_goes() {
    let test = 0;
    let (server, border) = (server(test), border(test));
    let a = transit(test, 1, "2001:db8:c1::/48");
    let b = transit(test, 2, "2001:db8:c2::/48");
    let at = |contents: &Contents, peer, prefix| segment(contents, peer, prefix);
    server.wait("both peers' routes, by their segments", |contents| {
        at(contents, 0, "2001:db8:c1::/48").as_deref() == Some("2001:db8:a:1:100::")
            && at(contents, 1, "2001:db8:c2::/48").as_deref() == Some("2001:db8:a:1:200::")
            && at(contents, 0, "2001:db8:cc::/48").is_some()
            && at(contents, 1, "2001:db8:cc::/48").is_some()
    });
    let contents = server.memory.contents();
    assert_eq!(
        at(&contents, 1, "2001:db8:c1::/48"),
        None,
        "b does not announce it"
    );
    let main = |prefix: &str| (Table::Main, prefix.parse().unwrap());
    server.wait(
        "best paths by the border router, and its locator",
        |contents| {
            let by_border = |prefix| match contents.routes.get(&main(prefix)) {
                Some(Via::Router { address, .. }) => address.to_string() == "2001:db8:a::9",
                _ => false,
            };
            by_border("2001:db8:cc::/48") && by_border("2001:db8:a:1::/64")
        },
    );
    server.wait("it has heard everything", |contents| contents.settled);
    // The border router has them by the peers themselves.
    border.wait("its tables", |contents| {
        at(contents, 0, "2001:db8:c1::/48").as_deref() == Some("via 2001:db8:f:1::1")
            && contents.segments.len() == 2
    });
    a.wait("our prefix and not the other transit's", |contents| {
        contents.routes.contains_key(&main("2001:db8:a::/48"))
            && !contents.routes.contains_key(&main("2001:db8:c2::/48"))
    });
    drop(a);
    border.wait("a's segment and table are gone", |contents| {
        contents.segments.len() == 1
            && !contents
                .routes
                .keys()
                .any(|key| key.0 == Table::Peer(PeerIndex(0)))
    });
    server.wait("a's table is empty, b's is not", |contents| {
        let has = |peer| {
            contents
                .routes
                .keys()
                .any(|key| key.0 == Table::Peer(PeerIndex(peer)))
        };
        !has(0) && has(1)
    });
    drop(b);
}

#[test]
fn restarted_daemon_recovers_routes_and_segments() {
    let test = 1;
    let (server_config, border) = (server(test), border(test));
    let _a = transit(test, 1, "2001:db8:c1::/48");
    let there = |contents: &Contents| segment(contents, 0, "2001:db8:c1::/48").is_some();
    server_config.wait("the route", there);
    drop(server_config);
    let again = server(test);
    again.wait("the route again", there);
    drop(border);
    again.wait("nothing without a border router", |contents| {
        contents.routes.is_empty()
    });
    let _border = self::border(test);
    again.wait("the route once more", there);
}

#[test]
fn monitors_get_session_and_peer_events_until_the_daemon_ends() {
    let test = 2;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let server = server_with(test, &format!("control_socket = {path:?}"));
    let mut monitor = Monitor::open(&path).unwrap();
    let mut until = |wanted: &dyn Fn(&DaemonEvent) -> bool| loop {
        let event = monitor.wait().unwrap().expect("the daemon runs");
        if wanted(&event.what) {
            break;
        }
    };
    let border = border(test);
    until(&|what| matches!(what, DaemonEvent::SessionUp { neighbour } if neighbour == "border"));
    let a = transit(test, 1, "2001:db8:c1::/48");
    let has = |what: &DaemonEvent, name: &str, wanted: usize| matches!(what, DaemonEvent::Peer { peer, routes, .. } if peer == name && *routes == wanted);
    until(&|what| has(what, "transit-a", 2));
    drop(a);
    until(&|what| has(what, "transit-a", 0));
    drop(border);
    until(
        &|what| matches!(what, DaemonEvent::SessionDown { neighbour, .. } if neighbour == "border"),
    );
    drop(server);
    while monitor.wait().unwrap().is_some() {}
}

/// Forwarding that takes long to finish, until released.
struct Slow {
    memory: Memory,
    finishing: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl Forwarding for Slow {
    fn add_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
        self.memory.add_segment(peer, sid)
    }

    fn remove_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
        self.memory.remove_segment(peer, sid)
    }

    fn change(&mut self, changes: &[RouteChange]) -> Vec<ForwardingError> {
        self.memory.change(changes)
    }

    fn clear(&mut self, table: Table) -> Result<(), ForwardingError> {
        self.memory.clear(table)
    }

    fn settled(&mut self) -> Vec<ForwardingError> {
        self.memory.settled()
    }

    fn finish(&mut self) {
        self.finishing.send(()).unwrap();
        // Also where the test has failed.
        let _ = self.go_on.recv();
    }
}

#[test]
fn neighbours_are_notified_of_the_end_before_what_takes_long() {
    let test = 7;
    let border = border(test);
    let (finishing, finishes) = mpsc::channel();
    let (go, go_on) = mpsc::channel();
    let text = transit_text(test, 1, "2001:db8:c1::/48");
    let config = AsbrConfig::parse(&text, "asbr.toml").unwrap();
    let speaker = config.speaker.clone();
    let memory = Memory::default();
    let slow = Slow {
        memory: memory.clone(),
        finishing,
        go_on,
    };
    let daemon = Daemon::start(Asbr::new(config), &speaker, Box::new(slow)).unwrap();
    let a = Running::serve(daemon, memory);
    border.wait("a's segment", |contents| contents.segments.len() == 1);
    a.handle.stop();
    finishes.recv_timeout(LIMIT).expect("it ends");
    border.wait("no segment of a's", |contents| contents.segments.is_empty());
    assert!(!a.thread.as_ref().unwrap().is_finished());
    go.send(()).unwrap();
}
