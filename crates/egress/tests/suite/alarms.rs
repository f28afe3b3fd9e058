//! Mistakes of configuration in a site with two border routers: each is an alarm that names it.

use std::{path::PathBuf, time::Instant};

use keiro_egress::{
    alarms::{AlarmStatus, Cause},
    control::{self, Answer, Request},
    looking_glass::{RouteQuery, RouteStatus},
    status::Status,
};

use super::{LIMIT, Running, address};

/// A border router (`host`) with one transit, and its control socket.
struct Border {
    _running: Running,
    directory: tempfile::TempDir,
}

impl Border {
    fn start(test: u8, host: u8, transit: u8, locator: &str, keys: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let (own, server, peer) = (
            address(test, host),
            address(test, 20),
            address(test, transit),
        );
        let other = address(test, 17 - host);
        let running = Running::asbr(&format!(
            r#"
[asbr]
asn = 65000
router_id = "10.0.0.{host}"
locator = "{locator}"
listen = ["{own}:1790"]
control_socket = {socket:?}

[[reflector]]
name = "server"
address = "{server}"
port = 1790
local_address = "{own}"
next_hop = "2001:db8:a::{host}"

[[reflector]]
name = "other"
address = "{other}"
port = 1790
local_address = "{own}"
next_hop = "2001:db8:a::{host}"

[[peer]]
name = "transit-{transit}"
address = "{peer}"
port = 1790
local_address = "{own}"
next_hop = "2001:db8:f:{transit}::2"
asn = 6500{transit}
import = "all"
export = "own"
{keys}
"#
        ));
        Self {
            _running: running,
            directory,
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }
}

/// The transit of a border router.
fn of(test: u8, border: u8, transit: u8) -> Running {
    let text = super::transit_text(test, transit, &format!("2001:db8:c{transit}::/48"));
    Running::asbr(&text.replacen(&address(test, 9), &address(test, border), 1))
}

fn status(socket: &std::path::Path) -> Status {
    match control::ask(socket, Request::Status).unwrap() {
        Answer::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Waits for an alarm.
fn alarm(socket: &std::path::Path, cause: Cause, subject: &str) -> AlarmStatus {
    let end = Instant::now() + LIMIT;
    loop {
        let alarms = status(socket).alarms;
        let mut found = alarms.iter();
        if let Some(found) = found.find(|one| one.cause == cause && one.subject == subject) {
            return found.clone();
        }
        assert!(Instant::now() < end, "{cause} {subject}: {alarms:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn server(test: u8, target: &str) -> (Running, tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let own = address(test, 20);
    let reflectors: String = [9, 8]
        .map(|host| {
            let border = address(test, host);
            format!(
                "[[reflector]]\nname = \"border{host}\"\naddress = \"{border}\"\nport = 1790\n\
                 local_address = \"{own}\"\n"
            )
        })
        .concat();
    let running = Running::endpoint(&format!(
        r#"
[egress]
asn = 65000
router_id = "10.0.0.20"
listen = ["{own}:1790"]
control_socket = {socket:?}
{reflectors}
[[peer]]
name = "transit-1"
rt = "65000:256"
address = "2001:db8:a:e::a"
[[peer]]
name = "transit-2"
rt = "{target}"
address = "2001:db8:a:e::b"
"#
    ));
    (running, directory, socket)
}

#[test]
fn a_shared_locator_and_a_shared_distinguisher_are_alarms_at_every_router() {
    let test = 20;
    let one = Border::start(test, 9, 1, "2001:db8:a:1::/64", "function = 0x100");
    let keys = "function = 0x200\nrd = \"65000:256\"";
    let two = Border::start(test, 8, 2, "2001:db8:a:1::/64", keys);
    let (_server, _directory, socket) = server(test, "65000:512");
    let _transits = (of(test, 9, 1), of(test, 8, 2));
    for (border, other) in [(&one, "10.0.0.8"), (&two, "10.0.0.9")] {
        for (cause, subject) in [
            (Cause::LocatorShared, "2001:db8:a:1::/64"),
            (Cause::DistinguisherShared, "65000:256"),
        ] {
            let found = alarm(&border.socket(), cause, subject);
            assert!(found.text.contains(other), "{found:?}");
        }
    }
    let shared = alarm(&socket, Cause::DistinguisherShared, "65000:256");
    assert!(shared.text.contains("10.0.0.8, 10.0.0.9"), "{shared:?}");
    // Which of the two the best route leads to is the decision process's affair.
    let found = alarm(&socket, Cause::LocatorShared, "2001:db8:a:1:100::");
    assert!(found.text.contains("10.0.0.8"), "{found:?}");
}

#[test]
fn an_unknown_route_target_is_an_alarm_that_names_those_received() {
    let test = 21;
    let _one = Border::start(test, 9, 1, "2001:db8:a:1::/64", "function = 0x100");
    let _two = Border::start(test, 8, 2, "2001:db8:a:2::/64", "function = 0x200");
    let (_server, _directory, socket) = server(test, "65000:99");
    let _transits = (of(test, 9, 1), of(test, 8, 2));
    let found = alarm(&socket, Cause::TargetAbsent, "transit-2");
    for part in ["65000:99", "65000:512 (2)"] {
        assert!(found.text.contains(part), "{part}: {found:?}");
    }
    let peers = status(&socket).peers;
    assert_eq!(peers[0].segments[0].routes, 2);
    assert_eq!(peers[0].sid, Some("2001:db8:a:1:100::".parse().unwrap()));
}

/// All pages of a query.
fn routes(socket: &std::path::Path, mut query: RouteQuery) -> Vec<RouteStatus> {
    let mut all = Vec::new();
    for _ in 0..100 {
        let page = match control::ask(socket, Request::Routes(Box::new(query.clone()))).unwrap() {
            Answer::Routes(page) => page,
            other => panic!("{other:?}"),
        };
        // A page ends after a destination, and there are two border routers.
        assert!(page.routes.len() <= query.limit + 1);
        all.extend(page.routes);
        query.after = page.next;
        if query.after.is_none() {
            return all;
        }
    }
    panic!("the pages do not end");
}

#[test]
fn received_routes_are_listed_by_page_with_their_use_or_the_reason() {
    let test = 22;
    let keys = "function = 0x100";
    let one = Border::start(test, 9, 1, "2001:db8:a:1::/64", keys);
    let two = Border::start(test, 8, 2, "2001:db8:a:2::/64", "function = 0x200");
    let (_server, _directory, socket) = server(test, "65000:99");
    let _transits = (of(test, 9, 1), of(test, 8, 2));
    let limited = |limit| RouteQuery {
        limit,
        ..RouteQuery::default()
    };
    let listed = || routes(&socket, limited(1000));
    let used = |route: &RouteStatus| route.unused.is_none();
    // Of each transit's VPN routes those of the first are used, and five best paths.
    keiro_testing::wait_until("everything is there", || {
        let all = listed();
        all.len() == 10 && all.iter().filter(|route| used(route)).count() == 7
    });
    let all = listed();
    // Three prefixes and two locators, two of the prefixes by both border routers, and the VPN routes.
    let vpn = |route: &&RouteStatus| route.path.distinguisher.is_some();
    assert_eq!(
        (all.len(), all.iter().filter(vpn).count()),
        (10, 4),
        "{all:?}"
    );
    assert_eq!(routes(&socket, limited(1)), all, "pages are the same");
    let of = |query: RouteQuery| {
        let found = routes(&socket, query);
        let line = |route: &RouteStatus| {
            let from = route.path.from.clone().unwrap_or_default();
            (from, route.prefix.to_string(), route.unused.clone())
        };
        found.iter().map(line).collect::<Vec<_>>()
    };
    let of_target = |text: &str| RouteQuery {
        target: Some(text.to_owned()),
        ..limited(2)
    };
    let no_peer = Some("no [[peer]] has its route target".to_owned());
    for prefix in ["2001:db8:c2::/48", "2001:db8:cc::/48"] {
        let found = of(of_target("65000:512"));
        assert!(found.contains(&("border8".to_owned(), prefix.to_owned(), no_peer.clone())));
        assert_eq!(found.len(), 2);
    }
    let used = of(of_target("65000:256"));
    assert!(
        used.iter()
            .all(|(from, _, unused)| from == "border9" && unused.is_none())
    );
    let query = RouteQuery {
        prefix: Some("2001:db8:cc::/47".parse().unwrap()),
        neighbour: Some("border8".to_owned()),
        ..limited(1)
    };
    assert_eq!(of(query).len(), 2, "one is unicast");
    let hostile =
        r#"{"limit":0,"after":{"denied_of":65535,"distinguisher":7,"prefix":"10.0.0.0/8"}}"#;
    let hostile: RouteQuery = serde_json::from_str(hostile).unwrap();
    let answer = control::ask(&socket, Request::Routes(Box::new(hostile))).unwrap();
    assert!(matches!(answer, Answer::Routes(page) if page.routes.is_empty()));
    let unknown = RouteQuery {
        neighbour: Some("border7".to_owned()),
        ..limited(1)
    };
    let refused = control::ask(&socket, Request::Routes(Box::new(unknown))).unwrap();
    assert!(
        matches!(&refused, Answer::Refused(why) if why.contains("border9, border8")),
        "{refused:?}"
    );
    // A border router has denied routes, too, here none.
    let unused = RouteQuery {
        unused: true,
        ..limited(10)
    };
    assert!(
        routes(&one.socket(), unused)
            .iter()
            .all(|route| route.unused.is_some())
    );
    drop(two);
}
