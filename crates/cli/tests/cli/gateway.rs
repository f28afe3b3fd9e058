//! The running gateway from the command line: what two of them report.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, UdpSocket},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use keiro_control::{
    config::Name,
    message_socket::{Role, client::Connection},
};
use serde_json::Value;

use crate::harness::{LIMIT, Ran, Site, eventually, finish, keiro, run, shown, signal, wait};

/// An address of this machine's loopback network at which nothing listens now.
pub(crate) fn free(ip: &str) -> SocketAddr {
    let socket = UdpSocket::bind((ip, 0)).expect("a free port");
    socket.local_addr().expect("its address")
}

pub(crate) fn path(name: &str, local: SocketAddr) -> String {
    format!(
        "[[path]]\nname = \"{name}\"\nlocal = \"{local}\"\nrate = \"50Mbit\"\ndelay = \"1ms\"\n"
    )
}

/// A gateway that runs, ended when dropped.
pub(crate) struct Gateway {
    pub(crate) site: Site,
    pub(crate) child: Child,
}

impl Gateway {
    pub(crate) fn start(site: Site, text: &str) -> Self {
        site.write("gateway.toml", text);
        fs::File::create(site.path("log")).expect("a log");
        let child = Self::spawn(&site);
        Self { site, child }
    }

    /// With this limit of open files.
    pub(crate) fn start_with_files(site: Site, text: &str, files_max: u32) -> Self {
        let file = shown(&site.write("gateway.toml", text));
        let log = fs::File::create(site.path("log")).expect("a log");
        let child = Command::new("sh")
            .args(["-c", "ulimit -n $0 && exec \"$@\"", &files_max.to_string()])
            .args([crate::PROGRAM, "gateway", "--log-format", "json"])
            .args(["--config", &file])
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        Self { site, child }
    }

    fn spawn(site: &Site) -> Child {
        let file = shown(&site.path("gateway.toml"));
        let log = fs::File::options().append(true).open(site.path("log"));
        keiro(["gateway", "--log-format", "json", "--config", &file])
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("it starts")
    }

    /// Kills it without notice, and starts it again.
    pub(crate) fn kill_and_start(&mut self) {
        self.kill();
        self.start_again();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it has ended");
    }

    pub(crate) fn start_again(&mut self) {
        self.child = Self::spawn(&self.site);
    }

    /// Waits until it answers.
    pub(crate) fn ready(&self) {
        eventually("it answers", || {
            (self.ask(&["status"]).code == Some(0)).then_some(())
        });
    }

    fn control(&self) -> String {
        shown(&self.site.path("control.sock"))
    }

    /// A query with this gateway's control socket.
    pub(crate) fn ask(&self, args: &[&str]) -> Ran {
        run(args.iter().copied().chain(["--socket", &self.control()]))
    }

    fn json(&self, args: &[&str]) -> Value {
        self.ask(&[args, &["--json"]].concat())
            .expect_code(0)
            .json()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.site.path("log")).unwrap_or_default()
    }

    fn message_command(&self, args: &[&str]) -> Command {
        let socket = shown(&self.site.path("message.sock"));
        let mut command = keiro(args);
        command.args(["--socket", &socket]);
        command
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "log of the gateway in {}:\n{}",
                self.site.directory.path().display(),
                self.log()
            );
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const APPS: &str = "\
[[app]]
name = \"orders\"
class = \"message\"
peer = \"PEER\"
latency_target = \"50ms\"
length = \"10kB\"
interval = \"100ms\"
";

/// Two gateways on this machine's loopback network, with two paths between them, both up.
pub(crate) fn pair() -> (Gateway, Gateway) {
    let (a, b) = (Site::new(), Site::new());
    let at = [
        [free("127.0.0.1"), free("127.0.0.2")],
        [free("127.0.0.3"), free("127.0.0.4")],
    ];
    let text = |site: &Site, name: &str, own: usize, peer: &str, key: &str| {
        let [near, far] = at[own];
        let [to_near, to_far] = at[1 - own];
        format!(
            "{}{}{}[[peer]]\nname = \"{peer}\"\npublic_key = \"{key}\"\n\
             endpoints = {{ near = \"{to_near}\", far = \"{to_far}\" }}\n{}",
            site.gateway(name),
            path("near", near),
            path("far", far),
            APPS.replace("PEER", peer)
        )
    };
    let text_a = text(&a, "tokyo", 0, "osaka", &b.public_key());
    let text_b = text(&b, "osaka", 1, "tokyo", &a.public_key());
    let pair = (Gateway::start(a, &text_a), Gateway::start(b, &text_b));
    for gateway in [&pair.0, &pair.1] {
        eventually("both paths are up", || {
            let ran = gateway.ask(&["status", "--json"]);
            let status: Value = serde_json::from_str(&ran.stdout).ok()?;
            (status["paths_up"] == 2).then_some(())
        });
    }
    pair
}

#[test]
fn two_gateways_show_what_is_active() {
    let (a, _b) = pair();
    // A busy machine may be silent for longer than is tolerated just after the start.
    let status = eventually("both paths stay up", || {
        let status = a.ask(&["status"]).expect_code(0).stdout;
        status.contains("2 of 2 up").then_some(status)
    });
    for part in ["gateway tokyo: running", "2 of 2 up", "1 of 1 up", "frugal"] {
        assert!(status.contains(part), "no `{part}` in:\n{status}");
    }
    let table = eventually("near stays up", || {
        let table = a.ask(&["show", "path"]).expect_code(0).stdout;
        table.contains("\nnear  osaka  up").then_some(table)
    });
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[0].starts_with("path  peer   state"), "{table}");
    assert!(
        lines[1].starts_with("near  osaka  up") && lines[1].contains("50 Mbit/s"),
        "{table}"
    );
    let paths = a.json(&["show", "path", "near"]);
    assert_eq!(paths[0]["name"], "near");
    assert!(
        paths[0]["srtt_seconds"]
            .as_f64()
            .is_some_and(|rtt| rtt > 0.0),
        "{paths}"
    );
    assert_eq!(paths[0]["configured_rate_bits_per_second"], 50_000_000);
    assert!(
        a.ask(&["show", "path", "near"])
            .expect_code(0)
            .stdout
            .contains("path near to osaka")
    );

    let apps = a.json(&["show", "app"]);
    assert_eq!(
        (&apps[0]["name"], &apps[0]["latency_target_seconds"]),
        (&"orders".into(), &0.05.into())
    );
    assert!(
        a.ask(&["show", "app"])
            .expect_code(0)
            .stdout
            .contains("orders")
    );
    assert!(
        a.ask(&["show", "app", "orders"])
            .expect_code(0)
            .stdout
            .contains("latency target")
    );
    eventually("the peer stays up", || {
        (a.json(&["show", "peer"])[0]["state"] == "up").then_some(())
    });
    assert!(
        a.ask(&["show", "peer"])
            .expect_code(0)
            .stdout
            .contains("osaka")
    );
    assert!(
        a.ask(&["show", "peer", "osaka"])
            .expect_code(0)
            .stdout
            .contains("public key")
    );

    let judged = &apps[0]["judged_by"];
    assert!(judged == "forecast" || judged.is_null(), "{apps}");
    let plan = a.ask(&["plan", "--json"]);
    assert!(matches!(plan.code, Some(0 | 2)), "{plan:?}");
    assert_eq!(plan.json()["apps"][0]["terms"]["length_bytes"], 10_000.0);
    let explained = a.ask(&["explain", "orders"]).expect_code(0).stdout;
    assert!(
        explained.contains("orders is on") && explained.contains("near"),
        "{explained}"
    );
    let candidates = a.json(&["explain", "orders"]);
    assert_eq!(candidates["candidates"].as_array().map(Vec::len), Some(2));
    eventually("what is applied is in force", || {
        let applied = a.ask(&["apply"]);
        let in_force = applied.code == Some(0) && applied.stdout.contains("in force");
        (in_force && a.ask(&["plan"]).code == Some(0)).then_some(())
    });

    eventually("the history is open", || {
        (a.json(&["status"])["history"]["state"] == "ok").then_some(())
    });
    let history = a.json(&["show", "path", "near", "--history"]);
    assert_eq!(
        (&history["name"], &history["row_seconds"]),
        (&"near".into(), &60.into())
    );
    let days = a.json(&["show", "app", "orders", "--history", "48h"]);
    assert_eq!(
        (&days["peer"], &days["row_seconds"]),
        (&"osaka".into(), &3600.into())
    );
    a.ask(&["show", "app", "order", "--history"])
        .expect_code(1)
        .says(&["no application `order`"]);
    a.ask(&["show", "app", "--history"]).expect_code(64);
    a.ask(&["show", "path", "nera"])
        .expect_code(1)
        .says(&["keiro: ", "nera"]);
    a.ask(&["explain", "order"]).expect_code(1).says(&["order"]);
}

#[test]
fn a_plan_that_would_move_an_application_ends_with_2() {
    let (a, _b) = pair();
    // On a busy machine a path may be silent for longer than is tolerated, and come back.
    let (plan, text) = eventually("only what is supposed moves an application", || {
        if a.ask(&["apply"]).code != Some(0) || a.ask(&["plan"]).code != Some(0) {
            return None;
        }
        let on = a.json(&["show", "app", "orders"])[0]["path"].clone();
        let lose = format!("lose {}", on.as_str()?);
        let suppose = ["plan", "--what-if", lose.as_str()];
        let text = a.ask(&suppose);
        let plan = a.ask(&[&suppose[..], &["--json"]].concat());
        // Nothing of that has happened.
        let still = a.json(&["show", "app", "orders"])[0]["path"] == on;
        (still && text.code == Some(2) && plan.code == Some(2)).then(|| (plan.json(), text.stdout))
    });
    assert!(
        text.contains("would move after the supposed change: orders"),
        "{text}"
    );
    assert_eq!(plan["changes"], 1);
    let both = ["plan", "--what-if", "lose near", "--what-if", "lose far"];
    let text = a.ask(&both).expect_code(3).stdout;
    assert!(
        text.contains("1 of 1 latency targets would be missed"),
        "{text}"
    );
    a.ask(&["plan", "--what-if", "lose near", "--what-if", "lose near"])
        .expect_code(64);
    a.ask(&["plan", "--what-if", "lose naer"])
        .expect_code(1)
        .says(&["no path `naer`", "  try: one of near, far"]);
}

/// Does not outlive its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_command_shows_a_peer_that_never_answers_as_down() {
    let site = Site::new();
    let text = format!(
        "{}{}[[peer]]\nname = \"osaka\"\npublic_key = \"{}\"\nendpoints = {{ near = \"{}\" }}\n{}",
        site.gateway("tokyo"),
        path("near", free("127.0.0.1")),
        Site::new().public_key(),
        free("127.0.0.2"),
        APPS.replace("PEER", "osaka")
    );
    let gateway = Gateway::start(site, &text);
    eventually("the gateway answers", || {
        (gateway.ask(&["status"]).code == Some(0)).then_some(())
    });
    let status = gateway.ask(&["status"]).expect_code(0).stdout;
    assert!(status.contains("0 of 1 up"), "{status}");
    let peer = gateway.json(&["show", "peer", "osaka"]);
    assert!(
        peer[0]["state"] != "up" && peer[0]["why"].is_string(),
        "{peer}"
    );
    assert_ne!(gateway.json(&["show", "path"])[0]["state"], "up");
    let app = gateway
        .ask(&["show", "app", "orders"])
        .expect_code(0)
        .stdout;
    assert!(app.contains("is up; traffic waits"), "{app}");
    gateway.ask(&["explain", "orders"]).expect_code(0);
    assert!(app.contains("50 ms, not met\n"), "{app}");
    let plan = gateway.ask(&["plan"]).expect_code(3).stdout;
    assert!(plan.contains("orders: no path to osaka is up"), "{plan}");
    let (body, said) = (gateway.site.path("body"), gateway.site.path("said"));
    fs::write(&body, "hello").unwrap();
    let send = gateway
        .message_command(&["send", "orders"])
        .stdin(fs::File::open(&body).unwrap())
        .stderr(fs::File::create(&said).unwrap())
        .spawn();
    let _send = Ended(send.unwrap());
    eventually("it says that it waits", || {
        let said = fs::read_to_string(&said).unwrap_or_default();
        said.contains("1 message not acknowledged yet")
            .then_some(())
    });
}

#[test]
fn messages_travel_from_shell_to_shell() {
    let (a, b) = pair();
    let mut receive = b.message_command(&["receive", "orders", "--count", "3"]);
    let receiving = std::thread::spawn(move || finish(&mut receive, b""));
    eventually("the receiver is attached", || {
        (b.json(&["show", "app", "orders"])[0]["receivers"] == 1).then_some(())
    });
    let mut send = a.message_command(&["send", "orders", "--lines", "--json"]);
    let sent = finish(&mut send, b"one\ntwo\nthree\n").expect_code(0);
    let lines: Vec<Value> = sent
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines.iter().all(|line| line["outcome"] == "delivered"),
        "{lines:?}"
    );
    assert!(sent.stderr.contains("3 delivered"), "{}", sent.stderr);
    let received = receiving.join().expect("it ends").expect_code(0);
    let mut parts: Vec<&str> = ["one", "two", "three"].to_vec();
    parts.retain(|part| received.stdout.contains(part));
    assert_eq!(parts.len(), 3, "{received:?}");

    // Who no longer reads what becomes of the messages does not stop them.
    let body = a.site.path("body");
    fs::write(&body, "again").unwrap();
    let mut receive = b.message_command(&["receive", "orders", "--count", "3"]);
    let receiving = std::thread::spawn(move || finish(&mut receive, b""));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = a
        .message_command(&["send", "orders", "--count", "3", "--json"])
        .stdin(fs::File::open(&body).unwrap())
        .stdout(writer)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("3 delivered"), "{said}");
    receiving.join().expect("it ends").expect_code(0);

    let mut unknown = a.message_command(&["send", "oders"]);
    finish(&mut unknown, b"x")
        .expect_code(1)
        .says(&["refused", "oders"]);
    let mut empty = a.message_command(&["send", "orders"]);
    finish(&mut empty, b"")
        .expect_code(1)
        .says(&["the message is empty"]);
    // The other socket of the same gateway.
    let message = shown(&a.site.path("message.sock"));
    run(["status", "--socket", &message])
        .expect_code(1)
        .says(&["the gateway's control socket?", "`control_socket`"]);
}

#[test]
fn a_client_that_breaks_the_message_sockets_protocol_is_logged() {
    let (a, _b) = pair();
    let socket = a.site.path("message.sock");
    let name = Name::new("orders").expect("a name");
    let attach = || Connection::unix(&socket, Role::Send, &name).expect("attached");
    let mut endless = attach();
    // A message of 4 GiB, number 1.
    endless
        .write_all(&[0xff; 4])
        .and_then(|()| endless.write_all(&1_u64.to_be_bytes()))
        .expect("written");
    let log = |part: &str| {
        let line = || {
            a.log()
                .lines()
                .find(|line| line.contains(part))
                .map(str::to_owned)
        };
        eventually(part, line)
    };
    let line = log("a message of 4294967295 bytes");
    assert!(line.contains("orders") && line.contains("WARN"), "{line}");
    assert_eq!(endless.read(&mut [0]).expect("closed"), 0);
    let mut cut = attach();
    cut.write_all(&10_u32.to_be_bytes())
        .and_then(|()| cut.write_all(&1_u64.to_be_bytes()))
        .and_then(|()| cut.write_all(b"abc"))
        .expect("written");
    drop(cut);
    log("after 3 bytes of a message of 10");
    let mut stranger = UnixStream::connect(&socket).expect("connected");
    stranger.write_all(b"GET / HTTP/1.1\r\n").expect("written");
    log("a connection is refused");
    let times = a.log().matches("message socket: ").count();
    assert_eq!(times, 3, "{}", a.log());
}

#[test]
fn a_refused_reload_changes_nothing_and_a_good_one_is_reported() {
    let (a, _b) = pair();
    let mut monitor = keiro(["monitor", "--count", "1", "--socket", &a.control()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let good = fs::read_to_string(a.site.path("gateway.toml")).expect("the configuration");
    a.site
        .write("gateway.toml", &good.replace("50ms", "50Mbit"));
    a.ask(&["reload"])
        .expect_code(1)
        .says(&["gateway.toml:", "50Mbit"]);
    let refused = a.ask(&["reload", "--json"]).expect_code(1).json();
    assert_eq!(refused["error"]["code"], "config_rejected", "{refused}");
    assert_eq!(a.json(&["show", "app"])[0]["latency_target_seconds"], 0.05);
    assert!(
        a.ask(&["status"])
            .expect_code(0)
            .stdout
            .contains("last reload was refused")
    );

    a.site.write("gateway.toml", &good.replace("50ms", "40ms"));
    let reloaded = a.ask(&["reload"]).expect_code(0);
    assert!(reloaded.stdout.contains("app ~orders"), "{reloaded:?}");
    assert_eq!(a.json(&["show", "app"])[0]["latency_target_seconds"], 0.04);
    assert!(
        !a.ask(&["status"])
            .expect_code(0)
            .stdout
            .contains("last reload was refused")
    );
    // What only a restart brings is shown as long as it waits; an old key, with every reload.
    let changed = good
        .replace("50ms", "40ms")
        .replace("latency_target", "demand")
        .replace("[gateway]\n", "[gateway]\nsocket_group = \"root\"\n");
    a.site.write("gateway.toml", &changed);
    let line = "socket_group: the new value takes effect after a restart";
    for _ in 0..2 {
        a.ask(&["reload"])
            .expect_code(0)
            .says(&[line, "`demand` is now called `latency_target`"]);
        assert!(a.ask(&["status"]).stdout.contains(line));
    }
    let answer = a.json(&["reload"]);
    assert_eq!(answer["needs_restart"][0], line);
    assert_eq!(answer["warnings"].as_array().map(Vec::len), Some(1));
    a.site.write("gateway.toml", &good.replace("50ms", "40ms"));
    assert_eq!(a.json(&["reload"])["needs_restart"], serde_json::json!([]));
    assert!(!a.ask(&["status"]).stdout.contains(line));
    // Whether the monitor was there before the first reload or only before the last, or later than that.
    eventually("the monitor hears of a reload", || {
        let ended = monitor.try_wait().expect("a child can be waited for");
        ended.or_else(|| {
            a.ask(&["reload"]).expect_code(0);
            None
        })
    });
    let output = monitor.wait_with_output().expect("it ends");
    let line: Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    assert!(
        line["event"].is_string() && line["time"].is_string(),
        "{line}"
    );
}

#[test]
fn a_gateway_ends_with_sigterm_and_leaves_no_sockets() {
    let (mut a, b) = pair();
    signal(&a.child, "TERM");
    assert_eq!(wait(&mut a.child, LIMIT), Some(Some(0)));
    a.ask(&["status"])
        .expect_code(1)
        .says(&["no gateway is running"]);
    assert!(!a.site.path("control.sock").exists() && !a.site.path("message.sock").exists());
    let log = a.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let up = lines.iter().find(|line| line["event"] == "path_up");
    let up = up.expect("a path came up");
    assert!(up["path"].is_string() && up["peer"] == "osaka", "{up}");
    assert!(up["rtt_seconds"].is_f64(), "{up}");
    assert!(!log.contains("event_fields"), "{log}");
    assert_eq!(lines.last().expect("lines")["message"], "stopped");
    eventually("the peer notices", || {
        (b.json(&["show", "peer"])[0]["state"] != "up").then_some(())
    });
}

#[test]
fn the_data_thread_keeps_to_the_processor_that_is_named() {
    let site = Site::new();
    let text = format!("{}{}", site.gateway("a"), path("p", free("127.0.0.1")));
    let file = shown(&site.write("gateway.toml", &text));
    run(["gateway", "--cpu", "1023", "--config", &file])
        .expect_code(1)
        .says(&["cannot keep to processor 1023", "counted from 0"]);
    let child = keiro(["gateway", "--cpu", "0", "--config", &file])
        .stderr(Stdio::null())
        .spawn();
    let child = Ended(child.expect("keiro starts"));
    let threads = PathBuf::from(format!("/proc/{}/task", child.0.id()));
    eventually("the data thread is on processor 0", || {
        let mut threads = fs::read_dir(&threads).ok()?.flatten();
        threads.find(|thread| {
            let status = fs::read_to_string(thread.path().join("status"));
            let status = status.unwrap_or_default();
            status.starts_with("Name:\tdata\n") && status.contains("Cpus_allowed_list:\t0\n")
        })
    });
}

#[test]
fn a_second_gateway_does_not_take_the_sockets_of_the_first() {
    let (a, _b) = pair();
    let text = fs::read_to_string(a.site.path("gateway.toml")).expect("the configuration");
    let first = text.find("local = \"").expect("an address") + 9;
    let local: SocketAddr = text[first..]
        .split('"')
        .next()
        .expect("quoted")
        .parse()
        .expect("an address");
    let elsewhere = text.replace(&local.to_string(), &free("127.0.0.9").to_string());
    let file = a.site.write("second.toml", &elsewhere);
    run(["gateway", "--config", &shown(&file)])
        .expect_code(1)
        .says(&["keiro: "]);
    a.ask(&["status"]).expect_code(0);
}
