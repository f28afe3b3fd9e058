//! Programs on other hosts that send and receive through gateways, over TCP with TLS: the clients and
//! examples of `clients/`, in every language.

use std::{
    ffi::OsStr,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use keiro_linux::process::SIGTERM;
use tempfile::TempDir;

use crate::{
    harness::{Ran, eventually, finish, run, shown},
    links::{NEAR, address},
    pair::{APP, Pair, Setup},
};

/// The port of `[message_tls]`.
const PORT: u16 = 7602;

/// Certificates and tokens of both gateways, as `keiro gencert` and `keiro gentoken` make them.
struct Files {
    directory: TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self {
            directory: tempfile::tempdir().expect("a directory"),
        };
        for own in [0, 1] {
            let (cert, key) = (files.cert(own), files.path(&format!("{own}.key")));
            let (address, cert, key) = (address(&NEAR, 0, own), shown(&cert), shown(&key));
            let ran = run([
                "gencert",
                &address,
                "gateway.example",
                "--cert",
                &cert,
                "--key",
                &key,
            ])
            .expect_code(0);
            assert!(
                ran.stdout.starts_with("SHA-256 fingerprint: "),
                "{}",
                ran.stdout
            );
        }
        for name in ["sensor", "display", "other"] {
            files.make_token(name);
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn cert(&self, own: usize) -> PathBuf {
        self.path(&format!("{own}.pem"))
    }

    fn token(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.token"))
    }

    fn make_token(&self, name: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let text = run(["gentoken"]).expect_code(0).stdout;
        fs::write(self.token(name), text).expect("written");
        let owner = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.token(name), owner).expect("set");
    }

    /// What both configurations have: `sensor` sends at tokyo, `display` receives at osaka.
    fn setup(&self) -> Setup {
        let may = ["send", "receive"];
        let names = ["sensor", "display"];
        let more = [0, 1].map(|own| {
            format!(
                "[message_tls]\nlisten = [\"{}:{PORT}\"]\ncert = \"{}\"\nkey = \"{}\"\n{}",
                address(&NEAR, 0, own),
                shown(&self.cert(own)),
                shown(&self.path(&format!("{own}.key"))),
                self.client(names[own], &format!("{} = [\"{APP}\"]\n", may[own])),
            )
        });
        Setup {
            more,
            ..Setup::of(&[NEAR])
        }
    }

    fn client(&self, name: &str, rest: &str) -> String {
        let token = shown(&self.token(name));
        format!("[[message_client]]\nname = \"{name}\"\ntoken_file = \"{token}\"\n{rest}")
    }
}

/// What runs an example.
struct Example {
    language: &'static str,
    command: Vec<String>,
}

fn address_of(own: usize) -> String {
    address(&NEAR, 0, own)
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients")
}

impl Example {
    fn python() -> Self {
        let script = clients().join("python/example.py");
        Self {
            language: "python",
            command: vec!["python3".into(), shown(&script)],
        }
    }

    /// Built in `files`' directory. The Go of a distribution may be elsewhere than in the search path.
    fn go(files: &Files) -> Self {
        let program = files.path("go-example");
        let mut build = Command::new("go");
        let path = std::env::var("PATH").unwrap_or_default();
        build
            .env("PATH", format!("{path}:/usr/local/go/bin"))
            .env("GOFLAGS", "-mod=mod -buildvcs=false")
            .env("GOTOOLCHAIN", "local")
            .env(
                "GOCACHE",
                Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"),
            )
            .current_dir(clients().join("go"))
            .args(["build", "-o", &shown(&program), "./example"]);
        finish(&mut build, b"").expect_code(0);
        Self {
            language: "go",
            command: vec![shown(&program)],
        }
    }

    fn c(files: &Files) -> Self {
        let program = files.path("c-example");
        let mut build = Command::new("cc");
        build
            .args([
                "-Wall",
                "-Wextra",
                "-Werror",
                "-std=c11",
                "-o",
                &shown(&program),
            ])
            .args(["example.c", "keiro.c", "-lssl", "-lcrypto"])
            .current_dir(clients().join("c"));
        finish(&mut build, b"").expect_code(0);
        Self {
            language: "c",
            command: vec![shown(&program)],
        }
    }

    /// The example at `tokyo` or `osaka` that reaches the gateway at the other end of the link.
    fn run(&self, pair: &Pair, files: &Files, role: &str, more: &[&str]) -> Command {
        self.run_for(APP, pair, files, role, more)
    }

    /// The same for an application.
    fn run_for(&self, app: &str, pair: &Pair, files: &Files, role: &str, more: &[&str]) -> Command {
        let (host, gateway, token) = match role {
            "send" => ("osaka", 0, "sensor"),
            _ => ("tokyo", 1, "display"),
        };
        let host = pair.lab.host(host).expect("a host");
        let mut command = host.command(&self.command[0]);
        command.args(&self.command[1..]).args([
            role,
            &format!("{}:{PORT}", address(&NEAR, 0, gateway)),
            app,
            &shown(&files.token(token)),
            &shown(&files.cert(gateway)),
        ]);
        command
            .args(more.iter().map(OsStr::new))
            .stdin(Stdio::null());
        command
    }
}

/// Sends three messages from osaka's host through tokyo's gateway, and receives them at tokyo's host from
/// osaka's gateway.
#[track_caller]
fn three_messages_arrive(pair: &Pair, files: &Files, example: &Example) {
    let mut receive = example.run(pair, files, "receive", &["3"]);
    let receiving = thread::spawn(move || finish(&mut receive, b""));
    pair.osaka.wait_for_receiver();
    let mut send = example.run(pair, files, "send", &[]);
    let sent = finish(&mut send, b"one\ntwo\nthree\n");
    let received = receiving.join().expect("it ends");
    let sorted = |ran: Ran| {
        let mut lines: Vec<String> = ran.stdout.lines().map(|l| l.trim().to_owned()).collect();
        lines.sort_unstable();
        lines
    };
    let (sent, received) = (sorted(sent.expect_code(0)), sorted(received.expect_code(0)));
    let language = example.language;
    assert_eq!(
        sent,
        ["1 delivered", "2 delivered", "3 delivered"],
        "{language}"
    );
    assert_eq!(received, ["1 one", "2 two", "3 three"], "{language}");
    eventually("the receiver is gone", || {
        (pair.osaka.app(APP)["receivers"] == 0).then_some(())
    });
}

#[test]
fn messages_of_other_hosts_are_delivered_and_their_outcomes_reach_them() {
    let files = Files::new();
    let pair = Pair::start(&files.setup());
    let examples = [Example::python(), Example::go(&files), Example::c(&files)];
    for example in &examples {
        three_messages_arrive(&pair, &files, example);
    }
    let shown = pair.tokyo.json(&["show", "client", "sensor"]);
    let sensor = &shown["clients"][0];
    assert_eq!(sensor["delivered_messages"], 9, "{sensor}");
    assert_eq!(sensor["unfinished_messages"], 0, "{sensor}");
    let address = sensor["address"].as_str().expect("an address");
    assert!(address.starts_with(&address_of(1)), "{address}");
    let display = pair.osaka.ask(&["show", "client"]).expect_code(0);
    assert!(display.stdout.contains("display"), "{}", display.stdout);
    // A wrong token is refused with the reason, in every language.
    fs::copy(files.token("other"), files.token("sensor")).expect("copied");
    for example in &examples {
        let mut send = example.run(&pair, &files, "send", &[]);
        let refused = finish(&mut send, b"x\n").expect_code(1);
        let language = example.language;
        assert!(
            refused.stderr.contains("no client has this token"),
            "{language}: {}",
            refused.stderr
        );
    }
    // A reload takes the new token over.
    pair.tokyo.ask(&["reload"]).expect_code(0);
    three_messages_arrive(&pair, &files, &examples[0]);
    // Another certificate than the gateway's is not trusted.
    fs::copy(files.cert(1), files.cert(0)).expect("copied");
    for example in &examples {
        let mut send = example.run(&pair, &files, "send", &[]);
        finish(&mut send, b"x\n").expect_code(1);
    }
}

#[test]
fn messages_that_expire_are_reported_to_other_hosts() {
    const BRIEF: &str = "brief";
    let files = Files::new();
    let mut setup = files.setup();
    for (more, peer) in setup.more.iter_mut().zip(["osaka", "tokyo"]) {
        let app = format!(
            "[[app]]\nname = \"{BRIEF}\"\nclass = \"message\"\npeer = \"{peer}\"\nlifetime = \"300ms\"\n"
        );
        *more = app + &more.replace("send = [", &format!("send = [\"{BRIEF}\", "));
    }
    let pair = Pair::start(&setup);
    pair.osaka.process.signal(SIGTERM).expect("it is there");
    eventually("the other gateway has stopped", || {
        pair.osaka
            .process
            .wait(Duration::ZERO)
            .expect("a status")
            .map(drop)
    });
    for example in [Example::python(), Example::c(&files)] {
        let mut send = example.run_for(BRIEF, &pair, &files, "send", &[]);
        let sent = finish(&mut send, b"one\ntwo\n").expect_code(0);
        let lines: Vec<&str> = sent.stdout.lines().map(str::trim).collect();
        assert_eq!(lines, ["1 expired", "2 expired"], "{}", example.language);
    }
}

#[test]
fn strangers_that_flood_the_port_disturb_no_client() {
    /// Connections that say nothing, and then many that say something else than TLS. It stays until its input
    /// ends.
    const FLOOD: &str = "\
import socket, sys
address = (sys.argv[1], int(sys.argv[2]))
silent = [socket.create_connection(address) for _ in range(8)]
for number in range(60):
    with socket.create_connection(address) as stranger:
        try:
            stranger.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n' if number % 2 else bytes(range(256)) * 50)
            stranger.recv(100)
        except OSError:
            pass
print('done', flush=True)
sys.stdin.read()
";
    let files = Files::new();
    let pair = Pair::start(&files.setup());
    let host = pair.lab.host("tokyo").expect("a host");
    let mut flood = host.command("python3");
    flood
        .args(["-c", FLOOD, &address_of(0), &PORT.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut flood = flood.spawn().expect("it starts");
    let mut said = [0; 4];
    let stdout = flood.stdout.as_mut().expect("piped");
    stdout
        .read_exact(&mut said)
        .expect("it says that it is done");
    // The silent ones are still there, and from another network nothing is different.
    three_messages_arrive(&pair, &files, &Example::python());
    drop(flood.stdin.take());
    assert!(flood.wait().expect("it ends").success());
    let shown = pair.tokyo.json(&["show", "client"]);
    let closed = &shown["closed_connections"];
    let count = |reason: &str| closed[reason].as_u64().expect("a number");
    // Ten are looked at, and more only if they take their time.
    assert!(count("tls") >= 10, "{closed}");
    assert_eq!(count("tls") + count("failures"), 60, "{closed}");
    let log = pair.tokyo.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("message TLS: a connection is closed"));
    // One per reason in ten seconds.
    assert!((2..20).contains(&lines.count()), "{log}");
}
