//! What good files mean, and how bad ones are refused.

use super::*;

mod classes;
mod files;
mod forwards;
mod interfaces;
mod members;
mod tenants;
mod terms;

const KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";

/// A whole file in which every kind of entry occurs. Tests replace parts of it.
const GOOD: &str = r#"[gateway]
name = "tokyo"
message_socket = "/run/keiro/message.sock"
message_tcp = "127.0.0.1:7601"
metrics = "127.0.0.1:9477"
tolerance = "2%"

[[path]]
name = "path1"
local = "192.0.2.1:7600"
rate = "100Mbit"
delay = "100ms"
mtu_max = "1500B"

[[path]]
name = "path2"
local = "192.0.2.129:7600"
rate = "1.5Gbit"

[[peer]]
name = "osaka"
public_key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
endpoints = { path1 = "198.51.100.1:7600", path2 = "203.0.113.1:7600" }
reassembly_max = "128MiB"

[[app]]
name = "A3"
class = "message"
peer = "osaka"
latency_target = "20ms"
lifetime = "2s"
length = "100kB"
interval = "100ms"
path = "path2"

[[app]]
name = "A5"
class = "datagram"
peer = "osaka"

[[listener]]
app = "A5"
udp = "127.0.0.1:5005"

[[forward]]
app = "A5"
udp = "10.0.0.9:5005"
"#;

fn good() -> Config {
    Config::parse(GOOD, "good.toml").unwrap_or_else(|e| panic!("{e}"))
}

/// Problems as `line:column: message; hint`.
fn problems(text: &str) -> Vec<String> {
    match Config::parse(text, "f") {
        Ok(_) => Vec::new(),
        Err(e) => e
            .problems()
            .iter()
            .map(|p| p.to_string()[2..].trim_start().to_owned())
            .collect(),
    }
}

/// The problems of the good file with one piece of text replaced.
fn with(from: &str, to: &str) -> Vec<String> {
    assert_eq!(GOOD.matches(from).count(), 1, "{from:?} must occur once");
    problems(&GOOD.replacen(from, to, 1))
}

#[track_caller]
fn refused(from: &str, to: &str, expected: &str) {
    assert_eq!(with(from, to), [expected], "{from} -> {to}");
}

#[test]
fn complete_file_is_read() {
    let config = good();
    assert_eq!(config.file(), "good.toml");
    assert_eq!(
        config.gateway,
        Gateway {
            name: Name::new("tokyo").unwrap(),
            private_key_file: PathBuf::from("/etc/keiro/private.key"),
            control_socket: PathBuf::from("/run/keiro/control.sock"),
            readonly_socket: PathBuf::from("/run/keiro/control-readonly.sock"),
            readonly_group: None,
            message_socket: Some(PathBuf::from("/run/keiro/message.sock")),
            message_tcp: Some("127.0.0.1:7601".parse().unwrap()),
            metrics: Some("127.0.0.1:9477".parse().unwrap()),
            metrics_public: false,
            state_directory: PathBuf::from("/var/lib/keiro"),
            scheduler: Scheduler::Deadline,
            planner: Planner::Frugal,
            tolerance: Probability::new(0.02).unwrap(),
            probe_share: Probability::new(0.005).unwrap(),
            socket_group: None,
            auto_uplinks: None,
        }
    );
    let path1 = config.path_named("path1").unwrap();
    let rate = Bandwidth::from_mbit_per_second(100);
    assert_eq!(config[path1].rate, Some(rate));
    assert_eq!(config[path1].rate_bound(), rate);
    assert_eq!(config[path1].delay, Some(Duration::from_millis(100)));
    assert_eq!(config[path1].mtu_max, Some(ByteCount::new(1500)));
    let path2 = config.path_named("path2").unwrap();
    assert_eq!(config[path2].delay, None);
    let peer = &config[config.peer_named("osaka").unwrap()];
    assert_eq!(peer.public_key, KEY.parse().unwrap());
    assert_eq!(peer.endpoints[&path2], "203.0.113.1:7600".parse().unwrap());
    assert_eq!(peer.reassembly_max, ByteCount::new(128 << 20));
    let a3 = &config[config.app_named("A3").unwrap()];
    assert_eq!(a3.path, Some(path2));
    assert_eq!(a3.lifetime, Some(Duration::from_secs(2)));
    assert_eq!(a3.length, Some(ByteCount::new(100_000)));
    let a5 = config.app_named("A5").unwrap();
    assert_eq!(
        (config[a5].class, config[a5].latency_target),
        (Class::Datagram, None)
    );
    assert_eq!(config.listeners[0].app, a5);
    assert_eq!(config.forward_of(a5), Some(&config.forwards[0]));
    assert_eq!(config.path_named("path3"), None);
}

#[test]
fn minimal_file_is_valid() {
    let text = "gateway.name = \"a\"\n[[path]]\nname = \"p\"\nlocal = \"[2001:db8::1]:1\"\nrate = \"1kbit\"";
    let config = Config::parse(text, "f").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.gateway.message_socket, None);
    assert_eq!(config.gateway.metrics, None);
    assert!(config.peers.is_empty());
}

#[test]
fn a_report_shows_the_line_and_a_caret() {
    let text = GOOD.replace("mtu_max = \"1500B\"", "\tmtu = \"1500B\"");
    let report = Config::parse(&text, "/etc/keiro/gateway.toml")
        .unwrap_err()
        .to_string();
    assert_eq!(
        report,
        "/etc/keiro/gateway.toml:13:2: unknown key `mtu` in [[path]]; known keys are name, local, interface, port, \
         family, rate, delay, mtu_max, metered, monthly_budget, budget_day, role, cost_per_gb\n  13 |  mtu = \"1500B\"\n     |  ^^^"
    );
}

#[test]
fn all_problems_come_in_one_report() {
    let text = GOOD
        .replace("tolerance = \"2%\"", "tolerance = 2")
        .replace("rate = \"100Mbit\"", "rate = \"100MB\"")
        .replace("delay = ", "dellay = ")
        .replace(
            "peer = \"osaka\"\nlatency_target",
            "peer = \"osak\"\nlatency_target",
        );
    assert_eq!(
        problems(&text),
        [
            "6:13: tolerance: `2` has no unit; write %, as in \"2%\"",
            "11:8: rate: `MB` is not a unit of bandwidth; rates are in bits, not bytes: write \
             `Mbit`, eight times the number",
            "12:1: unknown key `dellay` in [[path]]; did you mean `delay`?",
            "29:8: peer: there is no [[peer]] named `osak`; did you mean `osaka`?",
        ]
    );
}

#[test]
fn broken_toml_is_refused_with_its_place() {
    let text = "[gateway]\nname = \"a\"\nname = \"b\"\n[[path]]\nrate = 100Mbit\n[[peer]\nname = 1";
    assert_eq!(
        problems(text),
        [
            "3:1: not valid TOML: duplicate key; keep one of them",
            "5:8: not valid TOML: string values must be quoted, expected literal string; put the \
             value in quotes, as in \"20ms\"",
            "6:8: not valid TOML: unclosed array table, expected `]`",
        ]
    );
}

#[test]
fn other_problems_are_reported_beside_broken_toml() {
    let text = GOOD
        .replace("tolerance = \"2%\"", "tolerance = 2%")
        .replace("\"1.5Gbit\"", "\"1.5GB\"");
    let found = problems(&text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("6:13: not valid TOML: "), "{found:?}");
    assert!(
        found[1].starts_with("18:8: rate: `GB` is not a unit"),
        "{found:?}"
    );
}

#[test]
fn path_without_a_rate_has_no_rate_bound() {
    let config = Config::parse(&GOOD.replace("rate = \"100Mbit\"\n", ""), "x.toml").unwrap();
    let path = &config[config.path_named("path1").unwrap()];
    assert_eq!(path.rate, None);
    assert_eq!(path.rate_bound(), PATH_RATE_MAX);
    assert_eq!(path.rate_assumed(), Bandwidth::from_mbit_per_second(20));
}

#[test]
fn missing_tables_and_keys_are_named() {
    assert_eq!(
        problems(""),
        [
            "1:1: the file has no [gateway]; add [gateway] with name = \"...\", or let `keiro init` \
             write a file",
            "1:1: the file has no [[path]]; add one per uplink with name and interface, or \
              uplinks = \"auto\" to [gateway]",
        ]
    );
    refused(
        "class = \"message\"\n",
        "",
        "26:1: [[app]] has no `class`; add class = \"message\"",
    );
    refused(
        "name = \"osaka\"\n",
        "",
        "20:1: [[peer]] has no `name`; add name = \"...\"",
    );
}

#[test]
fn tables_of_the_wrong_kind_are_refused() {
    assert_eq!(
        with("[gateway]\n", "[[gateway]]\n"),
        [
            "1:1: [[gateway]] begins one of several tables, and there is only one; write [gateway], once"
        ]
    );
    let text = "[gateway]\nname = \"a\"\n[path]\nname = \"p\"";
    assert_eq!(
        problems(text),
        [
            "3:1: [path] begins a single table, and there can be several; write [[path]], once for every path"
        ]
    );
    assert_eq!(
        problems("gateway = 1\npath = [1]"),
        [
            "1:11: gateway: this is an integer; begin a table with [gateway]",
            "2:9: path: this is an integer; write [[path]] tables",
        ]
    );
}

#[test]
fn unknown_keys_get_the_nearest_known() {
    refused(
        "mtu_max",
        "mtu_mox",
        "13:1: unknown key `mtu_mox` in [[path]]; did you mean `mtu_max`?",
    );
    refused(
        "[[forward]]",
        "[[Forwards]]",
        "45:3: unknown key `Forwards` in the file; did you mean `forward`?",
    );
    refused(
        "tolerance",
        "colour",
        "6:1: unknown key `colour` in [gateway]; known keys are name, private_key_file, \
         control_socket, readonly_socket, message_socket, message_tcp, metrics, metrics_public, state_directory, \
         scheduler, planner, tolerance, probe_share, socket_group, readonly_group, uplinks, uplinks_exclude, uplinks_metered, uplinks_rate, \
         uplinks_port",
    );
}

#[test]
fn wrong_units_and_types_are_refused() {
    refused(
        "\"100ms\"\nmtu_max",
        "100\nmtu_max",
        "12:9: delay: `100` has no unit; write ns, us, ms, s, min or h, as in \"20ms\"",
    );
    refused(
        "latency_target = \"20ms\"",
        "latency_target = 0.02",
        "30:18: latency_target: `0.02` has no unit; write ns, us, ms, s, min or h, as in \"20ms\"",
    );
    refused(
        "length = \"100kB\"",
        "length = \"100KB\"",
        "32:10: length: `KB` is not a unit of size; write `kB` (1000 bytes) or `KiB` (1024 bytes)",
    );
    refused(
        "\"100Mbit\"",
        "true",
        "11:8: rate: this is a boolean; write a number and a unit in quotes",
    );
    refused(
        "\"message\"",
        "[]",
        "28:9: class: this is an array; write a text in quotes",
    );
    refused(
        "tolerance = \"2%\"",
        "metrics_public = \"yes\"",
        "6:18: metrics_public: this is a text; write true or false",
    );
    refused(
        "tolerance = \"2%\"",
        "probe_share = \"11%\"",
        "6:15: probe_share: more than a tenth of a path for measuring it; write 0% to 10%",
    );
    refused(
        "tolerance = \"2%\"",
        "tolerance = \"120%\"",
        "6:13: tolerance: `120%` is too large; the largest value is 100%",
    );
}

#[test]
fn values_out_of_range_are_refused() {
    refused(
        "\"100Mbit\"",
        "\"0bit\"",
        "11:8: rate: nothing could be sent at a rate of 0; write what the uplink carries, as in \
         \"100Mbit\"",
    );
    refused(
        "\"100Mbit\"",
        "\"999bit\"",
        "11:8: rate: 999bit is less than any uplink carries; write what the uplink carries, as in \
         \"100Mbit\"",
    );
    refused(
        "\"100Mbit\"",
        "\"99999Tbit\"",
        "11:8: rate: 99999000Gbit is more than any uplink carries; write what the uplink carries, as \
         in \"100Mbit\"",
    );
    refused(
        "\"1500B\"",
        "\"576B\"",
        "13:11: mtu_max: 576B is out of range; write 1280B to 65535B",
    );
    refused(
        "\"100kB\"",
        "\"17MiB\"",
        "32:10: length: 17MiB is out of range; write 1B to 16MiB",
    );
    refused(
        "latency_target = \"20ms\"",
        "latency_target = \"0ms\"",
        "30:18: latency_target: must be more than 0; remove it to leave it open",
    );
    refused(
        "latency_target = \"20ms\"\nlifetime = \"2s\"",
        "lifetime = \"25h\"",
        "30:12: lifetime: 25h is more than 24h; is the unit the right one?",
    );
    refused(
        "\"128MiB\"",
        "\"1kB\"",
        "24:18: reassembly_max: 1kB is out of range; write 32MiB to 1024GiB",
    );
}

#[test]
fn duplicate_names_are_refused() {
    let text = GOOD.replace("\"A5\"\nclass", "\"A3\"\nclass");
    assert_eq!(
        problems(&text),
        [
            "37:8: another [[app]] is named `A3` (line 27); give each its own name",
            "42:7: app: there is no [[app]] named `A5`; did you mean `A3`?",
            "46:7: app: there is no [[app]] named `A5`; did you mean `A3`?",
        ]
    );
}

#[test]
fn names_are_checked() {
    refused(
        "name = \"tokyo\"",
        "name = \"to kyo\"",
        "2:8: name: ' ' must not occur in a name; use A-Z a-z 0-9 . _ -",
    );
    refused(
        "name = \"tokyo\"",
        "name = \"\"",
        "2:8: name: a name must not be empty; choose another name",
    );
    let long = "x".repeat(65);
    refused(
        "name = \"tokyo\"",
        &format!("name = \"{long}\""),
        "2:8: name: a name has at most 64 bytes, this one has 65; choose another name",
    );
}

#[test]
fn references_must_exist() {
    refused(
        "path = \"path2\"",
        "path = \"path3\"",
        "34:8: path: there is no [[path]] named `path3`; did you mean `path1`?",
    );
    refused(
        "{ path1 =",
        "{ wan =",
        "23:15: endpoints: there is no [[path]] named `wan`; there are path1, path2",
    );
    refused(
        "app = \"A5\"\nudp = \"10",
        "app = \"sensors\"\nudp = \"10",
        "46:7: app: there is no [[app]] named `sensors`; there are A3, A5",
    );
}

#[test]
fn keys_that_do_not_parse_are_refused() {
    let hint = "copy what `keiro pubkey` prints at the peer";
    refused(
        KEY,
        "not a key",
        &format!(
            "22:14: public_key: the key is not base64 (44 characters of A-Z a-z 0-9 + / ending in =); {hint}"
        ),
    );
    refused(
        KEY,
        "AQEB",
        &format!("22:14: public_key: the key has 3 bytes instead of 32; {hint}"),
    );
}

#[test]
fn addresses_are_checked() {
    refused(
        "\"192.0.2.1:7600\"",
        "\"192.0.2.1\"",
        "10:9: local: `192.0.2.1` is not an IP address and a port; add a port: \"192.0.2.1:7600\"",
    );
    refused(
        "\"198.51.100.1:7600\"",
        "\"osaka.example:7600\"",
        "23:23: endpoints: `osaka.example:7600` is a name, and names are not looked up; write the \
         address that it has: \"192.0.2.1:7600\" or \"[2001:db8::1]:7600\"",
    );
    // An address that is none is no name.
    refused(
        "\"198.51.100.1:7600\"",
        "\"198.51.100.300:7600\"",
        "23:23: endpoints: `198.51.100.300:7600` is not an IP address and a port; write \
         \"192.0.2.1:7600\" or \"[2001:db8::1]:7600\"; names are not looked up",
    );
    refused(
        "\"192.0.2.1:7600\"",
        "\"192.0.2.1:0\"",
        "10:9: local: port 0 would be another port at every start; write a port from 1 to 65535",
    );
    refused(
        "\"10.0.0.9:5005\"",
        "\"[::ffff:127.0.0.1]:5006\"",
        "47:7: udp: `[::ffff:127.0.0.1]:5006` is an IPv4 address in IPv6 form; write \
         \"127.0.0.1:5006\"",
    );
    refused(
        "\"198.51.100.1:7600\"",
        "\"0.0.0.0:7600\"",
        "23:23: endpoints: `0.0.0.0:7600` is not one machine's address; write the peer's address on \
         this path",
    );
    refused(
        "\"198.51.100.1:7600\"",
        "\"[2001:db8::1]:7600\"",
        "23:23: endpoints: `[2001:db8::1]:7600` is IPv6, but path1 is an IPv4 path; write the \
         peer's IPv4 address, or add a path with a local IPv6 one",
    );
    refused(
        "\"198.51.100.1:7600\"",
        "\"192.0.2.129:7600\"",
        "23:23: endpoints: `192.0.2.129:7600` is this gateway itself; write the peer's address",
    );
}

#[test]
fn link_local_addresses_say_their_interface() {
    refused(
        "\"10.0.0.9:5005\"",
        "\"[fe80::1]:5005\"",
        "47:7: udp: `[fe80::1]:5005` does not say on which interface; write \"[fe80::1%3]:5005\" \
         with the number that `ip link` shows",
    );
}

#[test]
fn addresses_that_are_bound_twice_are_refused() {
    refused(
        "\"192.0.2.129:7600\"",
        "\"192.0.2.1:7600\"",
        "17:9: local: `192.0.2.1:7600` is already taken by line 10; choose another address or port",
    );
    refused(
        "\"127.0.0.1:5005\"",
        "\"192.0.2.1:7600\"",
        "43:7: udp: `192.0.2.1:7600` is already taken by line 10; choose another address or port",
    );
    refused(
        "\"127.0.0.1:5005\"",
        "\"0.0.0.0:7600\"",
        "43:7: udp: `0.0.0.0:7600` is already taken by line 10; choose another address or port",
    );
    refused(
        "[[forward]]\n",
        "[[listener]]\napp = \"A3\"\nudp = \"127.0.0.1:5005\"\n[[forward]]\n",
        "47:7: udp: `127.0.0.1:5005` is already taken by line 43; choose another address or port",
    );
    refused(
        "\"127.0.0.1:9477\"",
        "\"127.0.0.1:7601\"",
        "5:11: metrics: `127.0.0.1:7601` is taken by message_tcp; choose another port",
    );
    refused(
        "\"192.0.2.129:7600\"",
        "\"0.0.0.0:7601\"",
        "17:9: local: `0.0.0.0:7601` does not say which uplink this is; write interface = \"...\", or the uplink's own \
         address",
    );
    let second = format!(
        "[[peer]]\nname = \"kobe\"\npublic_key = \"{KEY}\"\nendpoints.path2 = \"203.0.113.1:7600\"\n"
    );
    assert_eq!(
        problems(&format!("{GOOD}{second}")),
        [
            "50:14: public_key: line 22 has the same key; every gateway has a key of its own",
            "51:19: endpoints: `203.0.113.1:7600` is line 23's on the same path; every gateway has \
             an address of its own",
        ]
    );
}

#[test]
fn local_sockets_must_be_loopback() {
    refused(
        "\"127.0.0.1:7601\"",
        "\"0.0.0.0:7601\"",
        "4:15: message_tcp: `0.0.0.0:7601` is not a loopback address; write 127.0.0.1 or [::1]: \
         every host that reaches this port can send and receive",
    );
    refused(
        "\"127.0.0.1:9477\"",
        "\"192.0.2.1:9477\"",
        "5:11: metrics: `192.0.2.1:9477` is not a loopback address; write 127.0.0.1, or \
         metrics_public = true if other hosts may read the metrics",
    );
    assert_eq!(
        with(
            "\"127.0.0.1:9477\"",
            "\"192.0.2.1:9477\"\nmetrics_public = true"
        ),
        [""; 0]
    );
    refused(
        "/run/keiro/message.sock",
        "/run/keiro/control.sock",
        "3:18: message_socket: this is the control socket; give each its own file name",
    );
    refused(
        "/run/keiro/message.sock",
        "/run/keiro/control-readonly.sock",
        "3:18: readonly_socket: this is the message socket; give each its own file name",
    );
    refused(
        "/run/keiro/message.sock",
        "message.sock",
        "3:18: message_socket: `message.sock` is not an absolute file name; begin it with /",
    );
    refused(
        "/run/keiro/message.sock",
        &format!("/{}", "x".repeat(107)),
        "3:18: message_socket: a socket's file name has at most 107 bytes, not 108; choose a \
         shorter directory such as /run/keiro",
    );
    refused(
        "tolerance = \"2%\"",
        "socket_group = \"a:b\"",
        "6:16: socket_group: `a:b` is not a group's name; `getent group` lists them",
    );
}

#[test]
fn application_id_collisions_are_refused() {
    let config = good();
    assert!(
        config
            .refuse_app_id_collisions(|name| u32::from(name.as_bytes()[1]))
            .is_ok()
    );
    let of_users = |name: &str| if name.starts_with("keiro.") { 8 } else { 7 };
    let error = config.refuse_app_id_collisions(of_users).unwrap_err();
    assert_eq!(
        error.problems()[0].to_string(),
        "good.toml:37:8: `A5` has the same number on the wire as `A3`; rename one of them, at both \
         gateways"
    );
    let like_keiros = |name: &str| {
        if name == "A3" || name.starts_with("keiro.") {
            7
        } else {
            8
        }
    };
    let error = config.refuse_app_id_collisions(like_keiros).unwrap_err();
    let text = error.problems()[0].to_string();
    assert!(
        text.contains("`A3` has the same number on the wire as `keiro.network`"),
        "{text}"
    );
}

#[test]
fn names_of_keiros_own_applications_are_refused() {
    for name in ["keiro.network", "keiro.", "keiro.x"] {
        let found = with("name = \"A5\"\nclass", &format!("name = \"{name}\"\nclass"));
        let is_said = |line: &String| line.contains("that begin with `keiro.` are Keiro's own");
        assert!(found.iter().any(is_said), "{name}: {found:?}");
    }
    assert_eq!(
        with("name = \"A5\"\nclass", "name = \"keiro\"\nclass").len(),
        2,
        "those that name it"
    );
}

#[test]
fn datagrams_have_a_lifetime_by_default() {
    let datagram = "class = \"datagram\"";
    for (keys, seconds) in [
        ("", 2),
        ("\nlifetime = \"1s\"", 1),
        ("\nlatency_target = \"5s\"", 5),
    ] {
        let text = GOOD.replace(datagram, &format!("{datagram}{keys}"));
        let config = Config::parse(&text, "f").expect("a configuration");
        let app = config.apps.iter().find(|app| app.class == Class::Datagram);
        let lifetime = app.expect("an application of the class").lifetime;
        assert_eq!(lifetime, Some(Duration::from_secs(seconds)), "{keys}");
    }
}

#[test]
fn contradictions_of_an_application_are_refused() {
    refused(
        "lifetime = \"2s\"",
        "lifetime = \"10ms\"",
        "31:12: lifetime: 10ms is shorter than the latency target 20ms, so data would be dropped in \
         time; make lifetime at least as long as latency_target, or remove it",
    );
    refused(
        "class = \"datagram\"",
        "class = \"datagram\"\nlength = \"100kB\"",
        "39:10: length: a datagram has at most 65507B; write class = \"message\" for longer ones",
    );
}
