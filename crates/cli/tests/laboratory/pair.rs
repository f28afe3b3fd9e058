//! Two real gateways in a laboratory: tokyo and osaka, with a link for every path between them.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
    process::{self, Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU32, atomic::Ordering},
    thread,
    time::Duration,
};

use keiro_control::protocol::{Event, EventKind};
use keiro_lab::{Interrupts, Lab, Process, Topology};
use keiro_linux::process::SIGTERM;
use serde_json::Value;

use crate::{
    harness::{Ran, Site, eventually, finish, keiro, run, shown},
    links::{HOSTS, Link, address, topology},
};

/// The application of most tests: only the near path meets its latency target.
pub(crate) const APP: &str = "orders";

/// Reads the configuration again; POSIX's number.
pub(crate) const SIGHUP: i32 = 1;

/// The gateways' UDP port on every path.
const PORT: u16 = 7600;

/// How long what runs in the laboratory may take to end; ours: most tests are through by then.
const GRACE: Duration = Duration::from_millis(300);

#[derive(Clone, Default)]
pub(crate) struct Setup {
    pub(crate) links: Vec<Link>,
    /// More lines of `[gateway]`, at both.
    pub(crate) gateway: String,
    /// More at the end of tokyo's and osaka's configuration.
    pub(crate) more: [String; 2],
    /// The environment of tokyo's gateway.
    pub(crate) environment: Vec<(String, String)>,
}

impl Setup {
    pub(crate) fn of(links: &[Link]) -> Self {
        Self {
            links: links.to_vec(),
            ..Self::default()
        }
    }
}

/// The laboratory and its gateways; ended when dropped.
pub(crate) struct Pair {
    // First, so that the gateways end before their files go.
    pub(crate) lab: Lab,
    pub(crate) tokyo: Gateway,
    pub(crate) osaka: Gateway,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) struct Gateway {
    pub(crate) site: Site,
    pub(crate) process: Process,
    name: &'static str,
}

impl Pair {
    /// Starts both and waits until all paths are up and the application is on the first.
    pub(crate) fn start(setup: &Setup) -> Self {
        let pair = Self::start_unready(setup);
        for gateway in [&pair.tokyo, &pair.osaka] {
            eventually("all paths are up", || {
                let ended = gateway.process.wait(Duration::ZERO).expect("a status");
                assert_eq!(ended, None, "the gateway in {} ended", gateway.name);
                (gateway.status()?["paths_up"] == setup.links.len()).then_some(())
            });
        }
        let first = setup.links[0].name;
        eventually("the application is on the first path", || {
            (pair.tokyo.app(APP)["path"] == first).then_some(())
        });
        pair
    }

    fn start_unready(setup: &Setup) -> Self {
        let turn = Self::turn();
        let lab = lab_of(&topology(&setup.links));
        let sites = [Site::new(), Site::new()];
        let publics = [sites[0].public_key(), sites[1].public_key()];
        let [tokyo, osaka] = sites;
        let text_tokyo = configuration(setup, &tokyo, 0, &publics[1]);
        let text_osaka = configuration(setup, &osaka, 1, &publics[0]);
        let environment = &setup.environment;
        Self {
            tokyo: Gateway::start(&lab, "tokyo", tokyo, &text_tokyo, environment),
            osaka: Gateway::start(&lab, "osaka", osaka, &text_osaka, &[]),
            lab,
            _turn: turn,
        }
    }
}

impl Pair {
    /// In another topology with a tokyo and an osaka, after `prepare` was done in it. `text` makes the
    /// configuration of each from the beginning of it and the other's public key. Nothing is waited for.
    pub(crate) fn start_in(
        topology: &str,
        prepare: impl FnOnce(&Lab),
        text: impl Fn(usize, String, &str) -> String,
    ) -> Self {
        let turn = Self::turn();
        let lab = lab_of(topology);
        prepare(&lab);
        let sites = [Site::new(), Site::new()];
        let publics = [sites[0].public_key(), sites[1].public_key()];
        let texts = [0, 1].map(|own| {
            let beginning = sites[own].gateway(HOSTS[own]);
            text(own, beginning, &publics[1 - own])
        });
        let [tokyo, osaka] = sites;
        Self {
            osaka: Gateway::start(&lab, "osaka", osaka, &texts[1], &[]),
            tokyo: Gateway::start(&lab, "tokyo", tokyo, &texts[0], &[]),
            lab,
            _turn: turn,
        }
    }

    /// One at a time: some tests are about time, and the machine may have few processors.
    fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gateway {
    pub(crate) fn start(
        lab: &Lab,
        name: &'static str,
        site: Site,
        text: &str,
        environment: &[(String, String)],
    ) -> Self {
        site.write("gateway.toml", text);
        Self {
            process: Self::spawn(lab, name, &site, environment),
            site,
            name,
        }
    }

    /// Starts it again with the same configuration, after it has ended.
    pub(crate) fn restart(&mut self, lab: &Lab) {
        self.process = Self::spawn(lab, self.name, &self.site, &[]);
    }

    fn spawn(lab: &Lab, name: &str, site: &Site, environment: &[(String, String)]) -> Process {
        let file = site.path("gateway.toml");
        let log = File::options()
            .create(true)
            .append(true)
            .open(site.path("log"))
            .expect("a log");
        let host = lab.host(name).expect("a host");
        let mut command = host.command(env!("CARGO_BIN_EXE_keiro"));
        command
            .args(["gateway", "--user", "root", "--config", &shown(&file)])
            .env_remove("NOTIFY_SOCKET")
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        host.spawn(command).expect("it starts")
    }

    /// Ends it and starts it again, where `resolver` is its `/etc/resolv.conf`.
    pub(crate) fn restart_with_resolver(&mut self, lab: &Lab, resolver: &str) {
        self.process.signal(SIGTERM).expect("signalled");
        eventually("it ends", || {
            self.process.wait(Duration::ZERO).expect("a child")
        });
        let resolver = self.site.write("resolv.conf", resolver);
        let log = File::options().append(true).open(self.site.path("log"));
        let host = lab.host(self.name).expect("a host");
        let mut command = host.command("unshare");
        let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .arg(resolver)
            .arg(env!("CARGO_BIN_EXE_keiro"))
            .args(["gateway", "--user", "root", "--config"])
            .arg(self.site.path("gateway.toml"))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"));
        self.process = host.spawn(command).expect("it starts");
    }

    fn control(&self) -> String {
        shown(&self.site.path("control.sock"))
    }

    /// A query with this gateway's control socket.
    pub(crate) fn ask(&self, args: &[&str]) -> Ran {
        run(args.iter().copied().chain(["--socket", &self.control()]))
    }

    /// A query's answer as JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.ask(&[args, &["--json"]].concat())
            .expect_code(0)
            .json()
    }

    pub(crate) fn app(&self, name: &str) -> Value {
        self.json(&["show", "app", name])[0].clone()
    }

    pub(crate) fn path(&self, name: &str) -> Value {
        self.json(&["show", "path", name])[0].clone()
    }

    /// `None` while the gateway does not answer.
    pub(crate) fn status(&self) -> Option<Value> {
        serde_json::from_str(&self.ask(&["status", "--json"]).stdout).ok()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.site.path("log")).unwrap_or_default()
    }

    /// Its configuration as it stands in the file.
    pub(crate) fn configuration(&self) -> String {
        fs::read_to_string(self.site.path("gateway.toml")).expect("the configuration")
    }

    pub(crate) fn message_socket(&self) -> std::path::PathBuf {
        self.site.path("message.sock")
    }

    /// `keiro send` or `keiro receive` with this gateway's message socket.
    pub(crate) fn message_command(&self, args: &[&str]) -> Command {
        let mut command = keiro(args);
        command.arg("--socket").arg(self.message_socket());
        command
    }

    /// Runs `keiro receive` in a thread of its own from when the gateway has it attached.
    pub(crate) fn receiving(&self, mut command: Command) -> thread::JoinHandle<Ran> {
        let thread = thread::spawn(move || finish(&mut command, b""));
        self.wait_for_receiver();
        thread
    }

    pub(crate) fn wait_for_receiver(&self) {
        eventually("the receiver is attached", || {
            (self.app(APP)["receivers"] == 1).then_some(())
        });
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("log of the gateway in {}:\n{}", self.name, self.log());
        }
        let _ = self.process.signal(SIGTERM);
    }
}

/// `keiro monitor` beside a gateway, ended when dropped.
pub(crate) struct Monitor {
    child: Child,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Monitor {
    /// Starts it and waits until it hears events.
    pub(crate) fn start(gateway: &Gateway) -> Self {
        let mut child = keiro(["monitor", "--socket", &gateway.control()])
            .stdout(Stdio::piped())
            // A gateway that stops is no news here.
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&events);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
                heard.lock().expect("not poisoned").push(event);
            }
        });
        let monitor = Self { child, events };
        eventually("the monitor reports a reload", || {
            gateway.ask(&["reload"]).expect_code(0);
            monitor.find(|kind| matches!(kind, EventKind::Reloaded { .. }))
        });
        monitor
    }

    /// The first event of a kind so far.
    pub(crate) fn find(&self, wanted: impl Fn(&EventKind) -> bool) -> Option<Event> {
        let events = self.events.lock().expect("not poisoned");
        events.iter().find(|event| wanted(&event.kind)).cloned()
    }

    /// Waits for an event of a kind.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, wanted: impl Fn(&EventKind) -> bool) -> Event {
        eventually(what, || self.find(&wanted))
    }

    /// Forgets the events so far.
    pub(crate) fn forget(&self) {
        self.events.lock().expect("not poisoned").clear();
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if thread::panicking() {
            let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("events: {events:#?}");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The namespaces and the record that a laboratory has left.
pub(crate) fn remains(lab: &str) -> Vec<String> {
    let prefix = format!("keiro-{lab}-");
    let mut remains: Vec<String> = fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|file| file.starts_with(&prefix))
        .collect();
    let record = format!("{}/{lab}.json", keiro_lab::lab::RECORD_DIRECTORY);
    remains.extend(Path::new(&record).exists().then_some(record));
    remains
}

/// The laboratory of a topology.
pub(crate) fn lab_of(topology: &str) -> Lab {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("g{}-{number}", process::id());
    let topology = Topology::parse(topology, "test").expect("a topology");
    Lab::builder(&topology)
        .name(name)
        .grace(GRACE)
        .interrupts(interrupts())
        .up()
        .unwrap_or_else(|error| {
            panic!("tests of gateways in a laboratory need root and iproute2: {error}")
        })
}

/// Removes the laboratories on Ctrl-C too.
fn interrupts() -> &'static Interrupts {
    static INTERRUPTS: std::sync::OnceLock<Interrupts> = std::sync::OnceLock::new();
    INTERRUPTS.get_or_init(|| Interrupts::install(Duration::ZERO).expect("signal handlers"))
}

fn configuration(setup: &Setup, site: &Site, own: usize, peer_key: &str) -> String {
    let peer = HOSTS[1 - own];
    let mut text = format!("{}{}", site.gateway(HOSTS[own]), setup.gateway);
    let mut endpoints = Vec::new();
    for (number, link) in setup.links.iter().enumerate() {
        let _ = write!(
            text,
            "[[path]]\nname = \"{}\"\nlocal = \"{}:{PORT}\"\nrate = \"50Mbit\"\n\
             delay = \"{}ms\"\nmtu_max = \"1500B\"\n",
            link.name,
            address(link, number, own),
            link.delay_ms
        );
        let remote = address(link, number, 1 - own);
        endpoints.push(format!("{} = \"{remote}:{PORT}\"", link.name));
    }
    let _ = write!(
        text,
        "[[peer]]\nname = \"{peer}\"\npublic_key = \"{peer_key}\"\nendpoints = {{ {} }}\n\
         [[app]]\nname = \"{APP}\"\nclass = \"message\"\npeer = \"{peer}\"\n\
         latency_target = \"15ms\"\nlength = \"1kB\"\ninterval = \"5ms\"\n",
        endpoints.join(", ")
    );
    text + &setup.more[own]
}
