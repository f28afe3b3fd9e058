//! Two gateways of a run: keys, configurations, processes, readiness.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    os::unix::{fs::OpenOptionsExt, net::UnixStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use keiro_control::{
    PrivateKey, PublicKey,
    config::Name,
    key::KEY_BYTES,
    protocol::{
        AppSnapshot, PathSnapshot, PathState, Request as ControlRequest, Response, client::Client,
    },
    units::Text,
};
use keiro_lab::{
    Lab, Process,
    traffic::{MessageReceiver, MessageSender},
};
use keiro_linux::realtime::FifoPriority;
use keiro_model::aggregation::CustomController;
use rand_core::{OsRng, TryRngCore};

use super::{
    Sites, assignment,
    messages::{SocketReceiver, SocketSender},
};
use crate::{
    runner::Request,
    setup::{Assignment, Scheduler, Setup},
};

/// A pair of gateways, ended and reaped when dropped.
#[derive(Debug)]
pub(super) struct Gateways {
    from: Gateway,
    to: Gateway,
    /// Keys, configurations, sockets and logs; removed with this value.
    _directory: tempfile::TempDir,
}

#[derive(Debug)]
pub(super) struct Gateway {
    name: String,
    directory: PathBuf,
    pub(super) process: Process,
}

/// Time for the paths to come up. Ours: handshakes and path validation take some round trips, and a busy
/// machine needs longer.
pub(super) const READY_WAIT: Duration = Duration::from_secs(20);

/// Time for a gateway to move every application to its planned path. Ours: it plans every second.
const PLAN_WAIT: Duration = Duration::from_secs(5);

/// Period of asking for readiness.
pub(super) const READY_STEP: Duration = Duration::from_millis(20);

/// Time for a gateway to drain when it is stopped.
const END_GRACE: Duration = Duration::from_secs(2);

/// Timeout of an answer on the control socket.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// The gateways' UDP port on every path.
const PORT: u16 = 7600;

/// Lines of a gateway's log that an error quotes.
const LOG_LINES_SHOWN: usize = 12;

/// The data thread's real-time priority, below the emulator's.
pub(super) const PRIORITY: FifoPriority = FifoPriority::new(10).unwrap();

impl Gateways {
    /// Writes keys and configurations, starts both gateways and waits until all paths are up.
    pub(super) fn start(
        lab: &Lab,
        sites: &Sites,
        request: &Request<'_>,
        keiro: &Path,
    ) -> anyhow::Result<Self> {
        let hosts = [sites.from.as_str(), sites.to.as_str()];
        let (directory, [from, to]) = start_pair(
            lab,
            hosts,
            Program::anywhere(keiro),
            |own, home, peer_key| {
                let configuration = Configuration {
                    home,
                    host: hosts[own],
                    peer: hosts[1 - own],
                    peer_key,
                    sites,
                    request,
                };
                configuration.text()
            },
        )?;
        let gateways = Self {
            from,
            to,
            _directory: directory,
        };
        let ready = gateways
            .wait_until_ready(request.setup)
            .and_then(|()| gateways.wait_for_assignment(request));
        match ready {
            Ok(()) => Ok(gateways),
            Err(error) => Err(error.context(gateways.log_tail())),
        }
    }

    /// A sender and a receiver for every application, in the setup's order.
    #[expect(
        clippy::type_complexity,
        reason = "the two lists that an exchange takes"
    )]
    pub(super) fn connect(
        &mut self,
        setup: &Setup,
    ) -> anyhow::Result<(Vec<Box<dyn MessageSender>>, Vec<Box<dyn MessageReceiver>>)> {
        let mut senders: Vec<Box<dyn MessageSender>> = Vec::new();
        let mut receivers: Vec<Box<dyn MessageReceiver>> = Vec::new();
        for application in &setup.applications {
            let name = Name::new(&application.name)?;
            receivers.push(Box::new(SocketReceiver::connect(
                &self.to.message_socket(),
                &name,
            )?));
            senders.push(Box::new(SocketSender::connect(
                &self.from.message_socket(),
                &name,
            )?));
        }
        Ok((senders, receivers))
    }

    /// Checks that the applications are on the paths of the setup's plan, so that the measurement matches the
    /// prediction.
    pub(super) fn check_assignment(&self, request: &Request<'_>) -> anyhow::Result<()> {
        match self.misplaced(request)? {
            None => Ok(()),
            Some(what) => bail!("{what}"),
        }
    }

    /// Waits until the applications are on the paths of the setup's plan.
    fn wait_for_assignment(&self, request: &Request<'_>) -> anyhow::Result<()> {
        let deadline = Instant::now() + PLAN_WAIT;
        while let Some(what) = self.misplaced(request)? {
            if Instant::now() >= deadline {
                bail!("after {PLAN_WAIT:?} {what}");
            }
            thread::sleep(READY_STEP);
        }
        Ok(())
    }

    /// Describes the first application that is not on the path of the setup's plan.
    fn misplaced(&self, request: &Request<'_>) -> anyhow::Result<Option<String>> {
        let expected = assignment(request)?;
        let apps = self.from.apps()?;
        let paths: BTreeMap<&str, Option<&str>> = apps
            .iter()
            .map(|app| (app.name.as_str(), app.path.as_deref()))
            .collect();
        for (application, path) in request.setup.applications.iter().zip(expected) {
            let expected = request.setup.paths[path].name.as_str();
            let actual = paths.get(application.name.as_str()).copied().flatten();
            if actual != Some(expected) {
                return Ok(Some(format!(
                    "{} is on {}, not on {expected} as planned",
                    application.name,
                    actual.unwrap_or("no path")
                )));
            }
        }
        Ok(None)
    }

    /// The tail of both logs, for an error.
    pub(super) fn log_tail(&self) -> String {
        log_tail([&self.from, &self.to])
    }

    fn wait_until_ready(&self, setup: &Setup) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_WAIT;
        for gateway in [&self.from, &self.to] {
            loop {
                if let Some(status) = gateway.process.wait(Duration::ZERO)? {
                    bail!(
                        "the gateway in {} ended at once with {status}",
                        gateway.name
                    );
                }
                let up = gateway.paths_up();
                if matches!(up, Ok(up) if up >= setup.paths.len()) {
                    break;
                }
                if Instant::now() >= deadline {
                    let up = up.context("its control socket does not answer")?;
                    bail!(
                        "after {READY_WAIT:?} the gateway in {} has {up} of {} paths up",
                        gateway.name,
                        setup.paths.len()
                    );
                }
                thread::sleep(READY_STEP);
            }
        }
        Ok(())
    }
}

impl Drop for Gateways {
    fn drop(&mut self) {
        stop_all([&self.from, &self.to]);
    }
}

impl Gateway {
    fn control_socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    fn message_socket(&self) -> PathBuf {
        self.directory.join("message.sock")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn ask(&self, request: &ControlRequest) -> anyhow::Result<Response> {
        let stream = UnixStream::connect(self.control_socket())?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        stream.set_write_timeout(Some(ANSWER_WAIT))?;
        Ok(Client::new(stream).request(request)?)
    }

    pub(super) fn paths_up(&self) -> anyhow::Result<usize> {
        let paths = self.paths()?;
        let up = paths.iter().filter(|path| path.state == PathState::Up);
        Ok(up.count())
    }

    /// The answer of `keiro show path --json`.
    pub(super) fn paths(&self) -> anyhow::Result<Vec<PathSnapshot>> {
        match self.ask(&ControlRequest::ShowPath { name: None })? {
            Response::Paths { paths } => Ok(paths),
            other => bail!("the gateway answered {other:?} when asked for its paths"),
        }
    }

    fn apps(&self) -> anyhow::Result<Vec<AppSnapshot>> {
        match self.ask(&ControlRequest::ShowApp { name: None })? {
            Response::Apps { apps } => Ok(apps),
            other => bail!("the gateway answered {other:?} when asked for its applications"),
        }
    }
}

/// The program that gateways are started from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program<'a> {
    executable: &'a Path,
    /// For its command `gateway`.
    arguments: [&'static str; 2],
    /// CPU and priority of each data thread; `None` leaves them to the system.
    placements: Option<[Placement; 2]>,
}

/// CPU and priority of a thread that carries packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    /// The CPU that it is bound to.
    pub(super) cpu: usize,
    pub(super) priority: FifoPriority,
}

impl<'a> Program<'a> {
    pub(super) fn anywhere(keiro: &'a Path) -> Self {
        Self {
            executable: keiro,
            arguments: ["--user", "root"],
            placements: None,
        }
    }

    pub(super) fn placed(keiro: &'a Path, placements: [Placement; 2]) -> Self {
        Self {
            placements: Some(placements),
            ..Self::anywhere(keiro)
        }
    }

    /// `keiro-lab`, whose gateways have controllers that `keiro` does not know.
    pub(super) fn with_controller(
        keiro_lab: &'a Path,
        controller: &'static CustomController,
    ) -> Self {
        Self {
            executable: keiro_lab,
            arguments: ["--controller", controller.name],
            placements: None,
        }
    }
}

/// Starts a gateway in each of two hosts, each with its own key and directory. The directories are removed
/// with the returned value. `configuration` is called with the gateway's index, its directory and the other's
/// public key.
pub(super) fn start_pair(
    lab: &Lab,
    hosts: [&str; 2],
    program: Program<'_>,
    configuration: impl Fn(usize, &Path, &PublicKey) -> anyhow::Result<String>,
) -> anyhow::Result<(tempfile::TempDir, [Gateway; 2])> {
    let (directory, gateways) = start_all(lab, &hosts, program, |own, home, keys| {
        configuration(own, home, &keys[1 - own])
    })?;
    let pair = gateways.try_into();
    Ok((directory, pair.map_err(|_| anyhow!("two were started"))?))
}

/// As [`start_pair`], for any number of gateways; `configuration` is called with all public keys.
pub(super) fn start_all(
    lab: &Lab,
    hosts: &[&str],
    program: Program<'_>,
    configuration: impl Fn(usize, &Path, &[PublicKey]) -> anyhow::Result<String>,
) -> anyhow::Result<(tempfile::TempDir, Vec<Gateway>)> {
    let directory = tempfile::Builder::new()
        .prefix("keiro-experiment-")
        .tempdir()
        .context("cannot create a directory for keys and sockets")?;
    let keys: Vec<PrivateKey> = hosts
        .iter()
        .map(|_| random_key())
        .collect::<Result<_, _>>()?;
    let publics: Vec<PublicKey> = keys.iter().map(public_key).collect();
    let start = |(own, host): (usize, &&str)| -> anyhow::Result<Gateway> {
        let home = directory.path().join(host);
        fs::create_dir(&home)?;
        write_secret(&home.join("private.key"), keys[own].to_base64().as_bytes())?;
        let file = home.join("gateway.toml");
        fs::write(&file, configuration(own, &home, &publics)?)?;
        let placement = program
            .placements
            .and_then(|placements| placements.get(own).copied());
        spawn(lab, host, &home, &file, program, placement)
    };
    let gateways = hosts
        .iter()
        .enumerate()
        .map(start)
        .collect::<Result<_, _>>()?;
    Ok((directory, gateways))
}

/// Waits until each gateway has a path that is up.
pub(super) fn wait_for_path(gateways: &[Gateway]) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_WAIT;
    for gateway in gateways {
        while !matches!(gateway.paths_up(), Ok(1..)) {
            ensure_running(gateways)?;
            if Instant::now() >= deadline {
                bail!("after {READY_WAIT:?} no path is up\n{}", log_tail(gateways));
            }
            thread::sleep(READY_STEP);
        }
    }
    Ok(())
}

pub(super) fn ensure_running(gateways: &[Gateway]) -> anyhow::Result<()> {
    for gateway in gateways {
        if let Some(status) = gateway.process.wait(Duration::ZERO)? {
            bail!("a gateway ended with {status}");
        }
    }
    Ok(())
}

/// Stops gateways. All are signalled before any is waited for.
pub(super) fn stop_all<'a>(gateways: impl IntoIterator<Item = &'a Gateway> + Clone) {
    for gateway in gateways.clone() {
        let _ = gateway.process.signal(keiro_linux::process::SIGTERM);
    }
    for gateway in gateways {
        // A process that does not end is killed with the laboratory.
        let _ = gateway.process.end(END_GRACE);
    }
}

/// The table `gateway` of a configuration with the keys that every gateway needs. More keys may follow.
pub(super) fn gateway_table(name: &str, home: &Path) -> String {
    let file = |name: &str| quoted(&home.join(name).display().to_string());
    format!(
        "[gateway]\nname = {}\nprivate_key_file = {}\ncontrol_socket = {}\nstate_directory = {}\n",
        quoted(name),
        file("private.key"),
        file("control.sock"),
        file("state")
    )
}

/// The tail of the gateways' logs, for an error.
pub(super) fn log_tail<'a>(gateways: impl IntoIterator<Item = &'a Gateway>) -> String {
    let mut words = String::from("the gateways' last log lines:");
    for gateway in gateways {
        let log = fs::read_to_string(gateway.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..] {
            let _ = write!(words, "\n  {}: {line}", gateway.name);
        }
    }
    words
}

/// Inputs of one gateway's configuration.
struct Configuration<'a> {
    home: &'a Path,
    host: &'a str,
    peer: &'a str,
    peer_key: &'a PublicKey,
    sites: &'a Sites,
    request: &'a Request<'a>,
}

impl Configuration<'_> {
    fn text(&self) -> anyhow::Result<String> {
        let setup = self.request.setup;
        let variant = &setup.variants[self.request.variant];
        let scheduler = match variant.scheduler {
            Some(Scheduler::Deadline) => "deadline",
            Some(Scheduler::Fifo) | None => "fifo",
        };
        let planned = variant.assignment == Some(Assignment::Planned);
        let planner = if planned { "frugal" } else { "off" };
        let file = |name: &str| quoted(&self.home.join(name).display().to_string());
        let mut text = gateway_table(self.host, self.home);
        writeln!(text, "message_socket = {}", file("message.sock"))?;
        writeln!(text, "scheduler = \"{scheduler}\"")?;
        writeln!(text, "planner = \"{planner}\"")?;
        let mut endpoints = Vec::new();
        for path in &setup.paths {
            let link = &self.sites.topology.links[&path.name];
            let address = |host: &str| {
                let end = link.end(host)?;
                end.addresses.first().map(|prefix| prefix.address())
            };
            let own = address(self.host).context("a path has no local address")?;
            let theirs = address(self.peer).context("a path has no address at the peer")?;
            writeln!(text, "\n[[path]]")?;
            writeln!(text, "name = {}", quoted(&path.name))?;
            writeln!(text, "local = \"{}\"", std::net::SocketAddr::new(own, PORT))?;
            writeln!(text, "rate = \"{}\"", path.bandwidth)?;
            writeln!(text, "delay = \"{}\"", path.delay)?;
            let theirs = std::net::SocketAddr::new(theirs, PORT);
            endpoints.push(format!("{} = \"{theirs}\"", quoted(&path.name)));
        }
        writeln!(text, "\n[[peer]]")?;
        writeln!(text, "name = {}", quoted(self.peer))?;
        writeln!(text, "public_key = \"{}\"", self.peer_key)?;
        writeln!(text, "endpoints = {{ {} }}", endpoints.join(", "))?;
        let assignment = assignment(self.request)?;
        for (application, path) in setup.applications.iter().zip(assignment) {
            writeln!(text, "\n[[app]]")?;
            writeln!(text, "name = {}", quoted(&application.name))?;
            writeln!(text, "class = \"message\"")?;
            writeln!(text, "peer = {}", quoted(self.peer))?;
            writeln!(text, "latency_target = \"{}\"", application.latency_target)?;
            writeln!(text, "length = \"{}\"", application.length)?;
            writeln!(text, "interval = \"{}\"", Text(application.interval.0))?;
            if !planned {
                writeln!(text, "path = {}", quoted(&setup.paths[path].name))?;
            }
        }
        Ok(text)
    }
}

fn spawn(
    lab: &Lab,
    host: &str,
    home: &Path,
    file: &Path,
    program: Program<'_>,
    placement: Option<Placement>,
) -> anyhow::Result<Gateway> {
    let log = fs::File::create(home.join("log"))?;
    let host = lab.host(host)?;
    let mut command = host.command(program.executable);
    command.arg("gateway").args(program.arguments);
    if let Some(placement) = placement {
        command.arg("--cpu").arg(placement.cpu.to_string());
    }
    let priority = placement.map_or(PRIORITY, |placement| placement.priority);
    command
        .arg("--config")
        .arg(file)
        .arg("--realtime")
        .arg(priority.get().to_string())
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    Ok(Gateway {
        name: host.name().to_owned(),
        directory: home.to_owned(),
        process: host.spawn(command)?,
    })
}

fn random_key() -> anyhow::Result<PrivateKey> {
    let mut bytes = [0; KEY_BYTES];
    OsRng
        .try_fill_bytes(&mut bytes)
        .context("the operating system gives no random numbers")?;
    Ok(PrivateKey::from_bytes(bytes))
}

fn public_key(key: &PrivateKey) -> PublicKey {
    let key = keiro_core::PrivateKey::from_bytes(*key.as_bytes());
    PublicKey::from_bytes(*key.public_key().as_bytes())
}

fn write_secret(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content)
}

pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
