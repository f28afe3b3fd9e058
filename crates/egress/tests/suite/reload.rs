//! Another configuration while daemons run: what it touches changes, the rest goes on.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Instant,
};

use keiro_egress::{
    asbr::Asbr,
    config::{AsbrConfig, EndpointConfig},
    control::{self, Answer, Monitor, Request},
    endpoint::Endpoint,
    forwarding::{Contents, PeerIndex, Table},
    status::{DaemonEvent, NeighbourStatus, Reloaded, Status},
};

use keiro_testing::not_tested;

use super::{LIMIT, Running, address, segment, server, transit};

/// A daemon with a file and a control socket.
struct Reloadable {
    running: Running,
    directory: tempfile::TempDir,
}

impl Reloadable {
    fn start(text: impl FnOnce(&Path) -> String, run: impl FnOnce(&Path) -> Running) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        fs::write(&file, text(&directory.path().join("s"))).unwrap();
        Self {
            running: run(&file),
            directory,
        }
    }

    fn border(text: impl FnOnce(&Path) -> String) -> Self {
        Self::start(text, |file| {
            let config = AsbrConfig::load(file).unwrap();
            let speaker = config.speaker.clone();
            Running::start_from(Asbr::new(config), &speaker, Some(file))
        })
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    fn write(&self, text: &str) {
        fs::write(self.directory.path().join("config.toml"), text).unwrap();
    }

    fn ask(&self) -> Answer {
        control::ask(&self.socket(), Request::Reload).unwrap()
    }

    fn reload(&self, text: &str) -> Reloaded {
        self.write(text);
        match self.ask() {
            Answer::Reloaded(reloaded) => *reloaded,
            other => panic!("{other:?}"),
        }
    }

    /// Why a configuration is refused.
    fn refused(&self, text: &str) -> String {
        self.write(text);
        match self.ask() {
            Answer::Refused(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    fn status(&self) -> Status {
        match control::ask(&self.socket(), Request::Status).unwrap() {
            Answer::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn neighbour(&self, name: &str) -> NeighbourStatus {
        let all = self.status().neighbours;
        let found = all.into_iter().find(|one| one.name == name);
        found.unwrap_or_else(|| panic!("no neighbour {name}"))
    }

    fn wait(&self, what: &str, holds: impl Fn(&Contents) -> bool) {
        self.running.wait(what, holds);
    }
}

/// The events of a reload, up to the `reloaded` event.
fn announced_with(monitor: &mut Monitor) -> Vec<DaemonEvent> {
    let mut reported = Vec::new();
    while !matches!(reported.last(), Some(DaemonEvent::Reloaded(_))) {
        reported.push(monitor.wait().unwrap().expect("the daemon runs").what);
    }
    reported
}

fn peer_has(peer: &str, routes_before: usize, routes: usize, sid: Option<&str>) -> DaemonEvent {
    DaemonEvent::Peer {
        peer: peer.to_owned(),
        routes_before,
        routes,
        sid: sid.map(|sid| sid.parse().unwrap()),
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn head(test: u8, socket: &Path, more: &str) -> String {
    let (own, server) = (address(test, 9), address(test, 20));
    format!(
        r#"
[asbr]
asn = 65000
router_id = "10.0.0.9"
locator = "2001:db8:a:1::/64"
listen = ["{own}:1790"]
control_socket = {socket:?}
{more}

[[reflector]]
name = "server"
address = "{server}"
port = 1790
local_address = "{own}"
next_hop = "2001:db8:a::9"
"#
    )
}

/// An egress peer; a target of its own, so that the server knows it whatever its function is.
fn peer(test: u8, number: u8, function: u16, import: &str) -> String {
    let (own, at) = (address(test, 9), address(test, number));
    let letter = ["a", "b"][usize::from(number) - 1];
    format!(
        r#"
[[peer]]
name = "transit-{letter}"
address = "{at}"
port = 1790
local_address = "{own}"
next_hop = "2001:db8:f:{number}::2"
asn = 6500{number}
function = {function}
rt = "65000:{}"
import = {import}
export = "own"
"#,
        256 * u16::from(number)
    )
}

const ANNOUNCE: &str = "announce = [\"2001:db8:a::/48\"]";
const ONLY_C1: &str = "[{ prefixes = [\"2001:db8:c1::/48\"] }]";

#[test]
fn a_border_routers_peers_come_change_and_go_without_the_others() {
    let test = 3;
    let server = server(test);
    let (a, b) = (
        transit(test, 1, "2001:db8:c1::/48"),
        transit(test, 2, "2001:db8:c2::/48"),
    );
    let border = Reloadable::border(|socket| {
        head(test, socket, ANNOUNCE)
            + &peer(test, 1, 0x100, "\"all\"")
            + &peer(test, 2, 0x200, "\"none\"")
    });
    let socket = border.socket();
    let config = |more: &str, peers: &[&str]| head(test, &socket, more) + &peers.concat();
    let [to_a, to_b] =
        [1, 2].map(|number| peer(test, number, 0x100 * u16::from(number), "\"all\""));
    let of =
        |peer, prefix: &'static str| move |contents: &Contents| segment(contents, peer, prefix);
    server.wait("a's, and nothing of b's", |contents| {
        of(0, "2001:db8:c1::/48")(contents).is_some()
    });
    assert_eq!(border.neighbour("transit-b").routes["ipv6"], 0);
    let mut monitor = Monitor::open(&socket).unwrap();

    // Another policy: what b announced long ago is there, and no session was touched.
    let reloaded = border.reload(&config(ANNOUNCE, &[&to_a, &to_b]));
    let changed = Reloaded {
        changed: names(&["transit-b"]),
        ..Reloaded::default()
    };
    assert_eq!(reloaded, changed);
    server.wait("b's", |contents| {
        of(1, "2001:db8:c2::/48")(contents).as_deref() == Some("2001:db8:a:1:200::")
    });
    let mut reported = announced_with(&mut monitor);
    assert_eq!(reported.pop(), Some(DaemonEvent::Reloaded(changed)));
    // The end of the first routes may have come before the monitor, or after it.
    reported.retain(|event| !matches!(event, DaemonEvent::AllAnnounced { .. }));
    assert_eq!(
        reported,
        [peer_has("transit-b", 0, 2, Some("2001:db8:a:1:200::"))]
    );

    // Broken ones are refused with their place, and everything stays.
    let broken = config(ANNOUNCE, &[&to_a, &to_b.replace("asn =", "asm =")]);
    let reason = border.refused(&broken);
    assert!(
        reason.contains("config.toml:") && reason.contains("unknown key `asm`"),
        "{reason}"
    );
    assert_eq!(border.status().config_rejected, Some(reason));
    let other_as = config(ANNOUNCE, &[&to_a, &to_b]).replacen("65000", "65099", 1);
    let reason = border.refused(&other_as);
    assert!(reason.contains("asn: it is 65000"), "{reason}");
    assert_eq!(border.neighbour("transit-a").state, "established");

    // What needs a restart is said; the rest is in force.
    let more = "announce = [\"2001:db8:a::/48\", \"2001:db8:b::/48\"]\nrule_priority = 7000";
    let reloaded = border.reload(&config(more, &[&to_a, &to_b]));
    assert_eq!(reloaded.needs_restart.len(), 1, "{reloaded:?}");
    assert!(reloaded.needs_restart[0].starts_with("rule_priority:"));
    assert_eq!(border.status().config_rejected, None);
    let ours = (Table::Main, "2001:db8:b::/48".parse().unwrap());
    a.wait("one more of our prefixes", |contents| {
        contents.routes.contains_key(&ours)
    });

    let more = "announce = [\"2001:db8:a::/48\", \"2001:db8:b::/48\"]";
    // One goes: its segment, its table, its session; the other does not notice.
    let reloaded = border.reload(&config(more, &[&to_b]));
    assert_eq!(reloaded.removed, ["transit-a"]);
    let contents = border.running.memory.contents();
    assert_eq!(
        contents.segments.len(),
        1,
        "when the answer is there it is gone"
    );
    server.wait("nothing of a's", |contents| {
        !contents
            .routes
            .keys()
            .any(|key| key.0 == Table::Peer(PeerIndex(0)))
    });
    a.wait("a has lost the session", |contents| {
        !contents.routes.contains_key(&ours)
    });

    // And comes back, with another segment and another policy; twice, the second time as it is.
    let again = peer(test, 1, 0x300, ONLY_C1);
    let both = config(more, &[&to_b, &again]);
    assert_eq!(border.reload(&both).added, ["transit-a"]);
    server.wait("a's by another segment", |contents| {
        of(0, "2001:db8:c1::/48")(contents).as_deref() == Some("2001:db8:a:1:300::")
            && of(0, "2001:db8:cc::/48")(contents).is_none()
    });
    assert_eq!(border.reload(&both), Reloaded::default());

    // Another segment is another session.
    let other = config(
        more,
        &[&to_b, &again.replace("function = 768", "function = 1024")],
    );
    assert_eq!(border.reload(&other).restarted, ["transit-a"]);
    server.wait("a's by another segment again", |contents| {
        of(0, "2001:db8:c1::/48")(contents).as_deref() == Some("2001:db8:a:1:400::")
    });
    let status = border.status();
    let times: Vec<(&str, u64)> = status
        .neighbours
        .iter()
        .map(|one| (one.name.as_str(), one.stats.times_up))
        .collect();
    assert_eq!(times, [("transit-a", 1), ("transit-b", 1), ("server", 1)]);
    assert_eq!(status.peers.len(), 2);
    drop(b);
}

#[test]
fn another_bound_of_routes_is_in_force_when_the_answer_is_there() {
    let test = 8;
    let _a = transit(test, 1, "2001:db8:c1::/48");
    let border = Reloadable::border(|socket| {
        head(test, socket, ANNOUNCE) + &peer(test, 1, 0x100, "\"all\"")
    });
    let config = |more: &str| {
        let peer = peer(test, 1, 0x100, "\"all\"");
        head(test, &border.socket(), ANNOUNCE) + &peer.replace("import", &format!("{more}\nimport"))
    };
    border.wait("a's routes", |contents| contents.routes.len() >= 2);
    let mut monitor = Monitor::open(&border.socket()).unwrap();
    border.reload(&config("routes_max = 1"));
    let a = border.neighbour("transit-a");
    assert_eq!(a.routes["ipv6"], 0, "{a:?}");
    assert_ne!(a.state, "established");
    assert!(border.running.memory.contents().segments.is_empty());
    let reported = announced_with(&mut monitor);
    let complaint = |what: &DaemonEvent| matches!(what, DaemonEvent::Complaint { neighbour, .. } if neighbour == "transit-a");
    assert!(reported.iter().any(complaint), "{reported:?}");
    assert!(
        reported.contains(&peer_has("transit-a", 2, 0, None)),
        "{reported:?}"
    );
    border.reload(&config("routes_max = 2"));
    border.wait("a's routes again", |contents| contents.routes.len() >= 2);
}

#[test]
fn a_file_of_the_rpki_is_read_again_and_its_routes_come_and_go() {
    let test = 4;
    let server = server(test);
    let _a = transit(test, 1, "2001:db8:c1::/48");
    let files = tempfile::tempdir().unwrap();
    let json = files.path().join("json");
    // Who may announce what is announced: one prefix by transit A, the other by another AS.
    let write = |c1: u32, cc: &str| {
        let text = format!(
            "{{\"roas\": [{{\"asn\": {c1}, \"prefix\": \"2001:db8:c1::/48\"}}, \
             {{\"asn\": {cc}, \"prefix\": \"2001:db8:cc::/48\", \"maxLength\": 48}}]}}"
        );
        fs::write(&json, text).unwrap();
    };
    write(65001, "\"AS65099\"");
    let import =
        "[{ rpki = \"invalid\", action = \"deny\" }, { rpki = \"valid\", local_pref = 120 }]";
    let border = Reloadable::border(|socket| {
        head(test, socket, &format!("rpki_file = {json:?}")) + &peer(test, 1, 0x100, import)
    });
    let has = |c1: bool, cc: bool| {
        move |contents: &Contents| {
            segment(contents, 0, "2001:db8:c1::/48").is_some() == c1
                && segment(contents, 0, "2001:db8:cc::/48").is_some() == cc
        }
    };
    server.wait("what is valid", has(true, false));
    assert_eq!(border.status().vrps, Some(2));
    let prefix = "2001:db8:c1::/48".parse().unwrap();
    let Answer::Explanation(reported) =
        control::ask(&border.socket(), Request::Explain(prefix)).unwrap()
    else {
        panic!("an explanation");
    };
    assert_eq!(reported.paths[0].rpki.as_deref(), Some("valid"));
    assert_eq!(reported.paths[0].local_pref, 120);

    // By the signal's way.
    write(65099, "65001");
    border.running.handle.reload();
    server.wait("what is valid now", has(false, true));

    fs::write(&json, "{\"roas\": [{\"asn\": 1}]}").unwrap();
    let Answer::Refused(reason) = border.ask() else {
        panic!("it is refused");
    };
    assert!(reason.contains("missing field `prefix`"), "{reason}");
    server.wait("and stays", has(false, true));
    assert_eq!(border.neighbour("transit-a").stats.times_up, 1);
}

#[test]
fn a_session_that_has_to_be_signed_restarts() {
    let test = 6;
    let files = tempfile::tempdir().unwrap();
    let key = files.path().join("key");
    fs::write(&key, "secret\n").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let signed = |text: &str, neighbour: &str| {
        let name = format!("name = \"{neighbour}\"");
        text.replacen(&name, &format!("{name}\nmd5_file = {key:?}"), 1)
    };
    let border = Reloadable::border(|socket| head(test, socket, ANNOUNCE));
    let of_border = head(test, &border.socket(), ANNOUNCE);
    let server = Reloadable::start(
        |socket| server_text(test, socket, &[]),
        |file| {
            let config = EndpointConfig::load(file).unwrap();
            let speaker = config.speaker.clone();
            Running::start_from(Endpoint::new(config), &speaker, Some(file))
        },
    );
    let of_server = server_text(test, &server.socket(), &[]);
    let ours = (Table::Main, "2001:db8:a::/48".parse().unwrap());
    let there = |contents: &Contents| contents.routes.contains_key(&ours);
    server.wait("our prefix", there);
    border.write(&signed(&of_border, "server"));
    match border.ask() {
        Answer::Refused(reason) if reason.contains("no TCP-MD5") => {
            return not_tested("a_session_that_has_to_be_signed_restarts", reason);
        }
        Answer::Reloaded(reloaded) => assert_eq!(reloaded.restarted, ["server"]),
        other => panic!("{other:?}"),
    }
    server.wait("nothing without a signature", |contents| !there(contents));
    let reloaded = server.reload(&signed(&of_server, "border"));
    assert_eq!(reloaded.restarted, ["border"]);
    server.wait("with one", there);
    // And without again, the border router last.
    server.reload(&of_server);
    server.wait("nothing with a signature of one side", |contents| {
        !there(contents)
    });
    border.reload(&of_border);
    server.wait("without", there);
}

fn server_text(test: u8, socket: &Path, peers: &[(&str, u16, u32)]) -> String {
    let (own, border) = (address(test, 20), address(test, 9));
    let peers = peers.iter().map(|(letter, number, table)| {
        format!(
            "[[peer]]\nname = \"transit-{letter}\"\nrt = \"65000:{number}\"\n\
             address = \"2001:db8:a:e::{letter}\"\ntable = {table}\n"
        )
    });
    format!(
        "[egress]\nasn = 65000\nrouter_id = \"10.0.0.20\"\nlisten = [\"{own}:1790\"]\n\
         control_socket = {socket:?}\n[[reflector]]\nname = \"border\"\naddress = \"{border}\"\n\
         port = 1790\nlocal_address = \"{own}\"\n{}",
        peers.collect::<String>()
    )
}

#[test]
fn a_servers_peers_come_and_go_with_the_routes_that_it_knows() {
    let test = 5;
    let _border = super::border(test);
    let _transits = [
        transit(test, 1, "2001:db8:c1::/48"),
        transit(test, 2, "2001:db8:c2::/48"),
    ];
    let server = Reloadable::start(
        |socket| server_text(test, socket, &[("a", 256, 7600)]),
        |file| {
            let config = EndpointConfig::load(file).unwrap();
            let speaker = config.speaker.clone();
            Running::start_from(Endpoint::new(config), &speaker, Some(file))
        },
    );
    let socket = server.socket();
    let has = |contents: &Contents, peer: usize| {
        contents
            .routes
            .keys()
            .any(|key| key.0 == Table::Peer(PeerIndex(peer)))
    };
    server.wait("a's alone", |contents| {
        has(contents, 0) && !has(contents, 1)
    });
    let end = Instant::now() + LIMIT;
    // Both have arrived before b's are wanted.
    while server.neighbour("border").routes["vpnv6"] < 4 {
        assert!(Instant::now() < end);
    }
    let mut monitor = Monitor::open(&socket).unwrap();
    let mut reported_peers = || {
        let mut reported = announced_with(&mut monitor);
        reported.pop();
        reported
    };
    let both = [("a", 256, 7600), ("b", 512, 7700)];
    let reported = server.reload(&server_text(test, &socket, &both));
    assert_eq!(
        (reported.peers_added, reported.peers_removed),
        (vec!["transit-b".to_owned()], vec![])
    );
    let segment_of_b = Some("2001:db8:a:1:200::");
    assert_eq!(
        reported_peers(),
        [peer_has("transit-b", 0, 2, segment_of_b)]
    );
    let contents = server.running.memory.contents();
    assert!(has(&contents, 0) && has(&contents, 1), "{contents:?}");
    assert_eq!(
        segment(&contents, 1, "2001:db8:c2::/48").unwrap(),
        "2001:db8:a:1:200::"
    );
    // Another table is another one; the other stays.
    let moved = [("b", 512, 7800), ("a", 256, 7600)];
    let reported = server.reload(&server_text(test, &socket, &moved));
    assert_eq!(
        (reported.peers_changed, reported.peers_added),
        (vec!["transit-b".to_owned()], vec![])
    );
    assert_eq!(
        server.reload(&server_text(test, &socket, &moved)),
        Reloaded::default()
    );
    assert_eq!(reported_peers(), [], "as many routes as before");
    assert_eq!(reported_peers(), []);
    let contents = server.running.memory.contents();
    assert!(
        has(&contents, 0) && !has(&contents, 1) && has(&contents, 2),
        "{contents:?}"
    );
    let reported = server.reload(&server_text(test, &socket, &[("b", 512, 7800)]));
    assert_eq!(reported.peers_removed, ["transit-a"]);
    assert_eq!(reported_peers(), [peer_has("transit-a", 2, 0, None)]);
    let contents = server.running.memory.contents();
    assert!(!has(&contents, 0) && has(&contents, 2), "{contents:?}");
    let status = server.status();
    assert_eq!(status.peers.len(), 1);
    assert_eq!(status.peers[0].stats.routes, 2);
    assert_eq!(server.neighbour("border").stats.times_up, 1);
}
