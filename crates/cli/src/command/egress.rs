//! `keiro asbr`, `keiro egress`: logging, configuration, then the daemon; and its answers.

mod drain;
mod steering;
mod text;

use std::{fs, io::ErrorKind, os::unix::fs::MetadataExt, path::Path};

use ipnet::IpNet;
use keiro_control::config::DEFAULT_CONTROL_SOCKET;
use keiro_egress::{
    asbr::Asbr,
    config::{AsbrConfig, EndpointConfig, SpeakerConfig},
    control::{self, Answer, Monitor, Request},
    daemon::{Daemon, Role},
    endpoint::Endpoint,
    forwarding::{Forwarding, Memory},
    kernel::{self, Cleaned, Kernel, KernelError},
    looking_glass::{PAGE_MAX, RouteQuery},
    metrics,
};
use keiro_linux::{
    limit,
    privilege::{self, Capability, PrivilegeError, RunAs},
    signal::Signals,
};

use super::{gateway::log, run_as};
use crate::{args, failure::Failure, output};

pub(crate) fn asbr(args: &args::Asbr) -> Result<(), Failure> {
    if args.daemon.cleanup {
        return cleaned(kernel::cleanup_asbr());
    }
    let config = AsbrConfig::load(&args.config)?;
    let speaker = config.speaker.clone();
    run(&speaker, &args.config, &args.daemon, None, || {
        let kernel = args.daemon.kernel(|| Kernel::asbr(&config))?;
        Ok((Asbr::new(config), kernel))
    })
}

pub(crate) fn egress(args: &args::Egress) -> Result<(), Failure> {
    match &args.command {
        Some(args::EgressCommand::Drain(args)) => return drain::drain(args, true),
        Some(args::EgressCommand::Undrain(args)) => return drain::drain(args, false),
        None => {}
    }
    if args.daemon.cleanup {
        cleaned(kernel::cleanup_endpoint())?;
        if kernel::waits_for_a_path_manager() {
            output::message!(
                "keiro: the kernel leaves MPTCP paths to a program in user space; if no other program manages \
                 them, run `sysctl net.mptcp.path_manager=kernel` (before Linux 6.15 `net.mptcp.pm_type=0`)"
            );
        }
        return Ok(());
    }
    let config = EndpointConfig::load(&args.config)?;
    let speaker = config.speaker.clone();
    let written = config.evidence_file.clone();
    run(
        &speaker,
        &args.config,
        &args.daemon,
        written.as_deref(),
        || {
            let kernel = args.daemon.kernel(|| Kernel::endpoint(&config))?;
            Ok((Endpoint::new(config), kernel))
        },
    )
}

pub(super) fn show(args: &args::ShowEgress) -> Result<(), Failure> {
    let request = match args.verify {
        true => Request::VerifiedStatus,
        false => Request::Status,
    };
    match ask(&args.socket, request)? {
        Answer::Status(status) if args.json => output::json(&status),
        Answer::Status(status) if args.metrics => output::text(metrics::render(&status)),
        Answer::Status(status) => output::text(text::status(&status)),
        other => Err(unexpected(&other)),
    }
}

/// Prints received routes, page by page.
pub(super) fn show_routes(args: &args::ShowRoute) -> Result<(), Failure> {
    let mut query = RouteQuery {
        prefix: args.prefix,
        neighbour: args.neighbour.clone(),
        distinguisher: args.rd.clone(),
        target: args.rt.clone(),
        community: args.community.clone(),
        unused: args.unused,
        limit: 0,
        after: None,
    };
    let mut left = args.limit.get();
    let mut shown = Vec::new();
    loop {
        query.limit = left.min(PAGE_MAX);
        let request = Request::Routes(Box::new(query.clone()));
        let page = match ask(&args.socket, request)? {
            Answer::Routes(page) => page,
            other => return Err(unexpected(&other)),
        };
        let routes = page.routes.into_iter().take(left);
        let before = shown.len();
        shown.extend(routes);
        left -= shown.len() - before;
        if args.json {
            for route in shown.drain(..) {
                output::json_line(&route)?;
            }
        }
        query.after = page.next;
        if left == 0 || query.after.is_none() {
            break;
        }
    }
    if !args.json {
        output::text(text::routes(&shown))?;
        if query.after.is_some() {
            output::message!("keiro: there may be more; --limit shows them");
        }
    }
    Ok(())
}

/// Prints events of a daemon, one per line, until it ends.
pub(super) fn monitor(args: &args::Monitor) -> Result<(), Failure> {
    let socket = socket_of(&args.socket);
    let mut monitor = Monitor::open(socket).map_err(|error| unanswered(socket, error))?;
    let mut left = args.count.map(std::num::NonZeroU64::get);
    while left != Some(0) {
        let event = monitor.wait().map_err(|error| unanswered(socket, error))?;
        let Some(event) = event else {
            return Err(Failure::new(
                "the daemon stopped, or closed the connection because this client read too slowly",
            ));
        };
        output::json_line(&event)?;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// Has one of the daemons read its configuration again.
pub(super) fn reload(query: &args::Query) -> Result<(), Failure> {
    match ask(socket_of(&query.socket), Request::Reload)? {
        Answer::Reloaded(reloaded) => {
            match query.json {
                true => output::json(&reloaded)?,
                false => output::text(text::reloaded(&reloaded))?,
            }
            for line in &reloaded.needs_restart {
                output::message!("keiro: takes effect after a restart: {line}");
            }
            for line in &reloaded.refused {
                output::message!("keiro: the kernel refused: {line}");
            }
            match reloaded.refused.len() {
                0 => Ok(()),
                some => Err(Failure::new(format!(
                    "the configuration is in force, except {some} changes that the kernel refused; they are retried"
                ))),
            }
        }
        Answer::Refused(reason) => Err(Failure::new(format!(
            "refused, everything stays as it was: {reason}"
        ))),
        other => Err(unexpected(&other)),
    }
}

/// The given socket, or the default of these daemons.
fn socket_of(given: &args::Socket) -> &Path {
    match given.socket == Path::new(DEFAULT_CONTROL_SOCKET) {
        true => Path::new(args::DEFAULT_EGRESS_SOCKET),
        false => &given.socket,
    }
}

/// What one of the daemons knows of a prefix.
pub(super) fn explain(prefix: IpNet, args: &args::Explain) -> Result<(), Failure> {
    let query = &args.query;
    let request = match args.verify {
        true => Request::VerifiedExplain(prefix),
        false => Request::Explain(prefix),
    };
    let answer = ask(socket_of(&query.socket), request).map_err(|failure| {
        failure.hint(
            "prefixes are explained by the egress suite's daemons; a gateway explains applications, \
             which `keiro show app` lists",
        )
    })?;
    match answer {
        Answer::Explanation(explanation) if query.json => output::json(&explanation),
        Answer::Explanation(explanation) => output::text(text::explanation(&explanation)),
        other => Err(unexpected(&other)),
    }
}

fn ask(socket: &Path, request: Request) -> Result<Answer, Failure> {
    control::ask(socket, request).map_err(|error| unanswered(socket, error))
}

fn unanswered(socket: &Path, error: std::io::Error) -> Failure {
    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return Failure::new(format!(
            "{}: the daemon did not answer within {} s; it may still carry out the request",
            socket.display(),
            control::PATIENCE.as_secs()
        ));
    }
    Failure::new(format!("{}: no daemon answers", socket.display()))
        .because(error)
        .hint("--socket names the `control_socket` of the daemon's configuration")
}

fn unexpected(answer: &Answer) -> Failure {
    match answer {
        Answer::Refused(reason) => Failure::new(format!("the daemon refuses: {reason}")),
        _ => Failure::new("the daemon sent another kind of answer; is it of another version?"),
    }
}

/// `make` gives the role and the place where its routes and segments are installed. `kept` is a file that the
/// daemon replaces now and then.
fn run<R: Role>(
    config: &SpeakerConfig,
    file: &Path,
    args: &args::EgressDaemon,
    kept: Option<&Path>,
    make: impl FnOnce() -> Result<(R, Box<dyn Forwarding>), Failure>,
) -> Result<(), Failure> {
    log(args.log_format, args.verbose);
    let signals =
        Signals::block().map_err(|error| Failure::new("cannot handle signals").because(error))?;
    // Each neighbour has a connection, and each BFD session a socket.
    limit::raise_open_files();
    // Over the configuration it would be written before the daemon looks.
    if let Some(path) = &args.record {
        refuse_overwriting(path, file)?;
    }
    give_up_privileges(config, file, args, kept)?;
    let (role, forwarding) = make()?;
    let mut daemon = Daemon::start(role, config, forwarding).map_err(Failure::from_anyhow)?;
    daemon.reload_from(file);
    if let Some(path) = &args.record {
        daemon.record_to(path).map_err(Failure::from_anyhow)?;
    }
    // The listeners are open, and a reload opens no others.
    privilege::reduce_thread(&[Capability::NetAdmin])
        .map_err(|error| run_as::refused(PrivilegeError::Capabilities(error)))?;
    daemon.serve(Some(signals)).map_err(Failure::from_anyhow)
}

/// Becomes the user that the daemon runs as, before there are threads.
fn give_up_privileges(
    config: &SpeakerConfig,
    file: &Path,
    args: &args::EgressDaemon,
    kept: Option<&Path>,
) -> Result<(), Failure> {
    let (run_as, warning) = run_as::choose(&args.user)?;
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    let sockets = config.control_socket.as_deref().and_then(Path::parent);
    let states = kept.and_then(Path::parent);
    for (directory, mode) in sockets
        .zip(Some(0o755))
        .into_iter()
        .chain(states.zip(Some(0o700)))
    {
        // What is missing then is reported by its use.
        if let Err(error) = run_as.prepare_directory(directory, mode) {
            tracing::warn!("{error}");
        }
    }
    if let Some(path) = &args.record {
        run_as
            .prepare_file(path)
            .map_err(|error| Failure::new("cannot record").because(error))?;
    }
    let keep = [Capability::NetAdmin, Capability::NetBindService];
    run_as.give_up(&keep).map_err(run_as::refused)?;
    let RunAs::User(account) = &run_as else {
        return Ok(());
    };
    let user = account.name();
    tracing::info!("running as user {user}");
    for file in RunAs::unreadable([file]) {
        tracing::warn!(
            "user {user} cannot read {}, so that a reload will fail; `chown {user}` it, or write --user root",
            file.display()
        );
    }
    Ok(())
}

fn refuse_overwriting(record: &Path, config: &Path) -> Result<(), Failure> {
    let is = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    if matches!((is(record), is(config)), (Ok(record), Ok(config)) if record == config) {
        return Err(Failure::new(format!(
            "{}: --record would overwrite the configuration",
            record.display()
        )));
    }
    Ok(())
}

impl args::EgressDaemon {
    /// Where routes and segments are installed: the kernel, or memory with `--dry-run`.
    fn kernel(
        &self,
        open: impl FnOnce() -> Result<Kernel, KernelError>,
    ) -> Result<Box<dyn Forwarding>, Failure> {
        if self.dry_run {
            return Ok(Box::new(Memory::default()));
        }
        match open() {
            Ok(kernel) => Ok(Box::new(kernel)),
            Err(error @ KernelError::Running { .. }) => {
                Err(Failure::new("cannot put routes into the kernel").because(error))
            }
            Err(error) => Err(Failure::new("cannot put routes into the kernel")
                .because(error)
                .hint("--dry-run exchanges routes without changing the kernel")),
        }
    }
}

fn cleaned(result: Result<Cleaned, KernelError>) -> Result<(), Failure> {
    let Cleaned {
        removed,
        report,
        problems,
    } = result
        .map_err(|error| Failure::new("cannot remove what is in the kernel").because(error))?;
    let first = report.failures.first().map(ToString::to_string);
    match first.or_else(|| problems.into_iter().next()) {
        None => output::text(format!("{removed}\n")),
        Some(first) => Err(Failure::new(format!(
            "some entries remain in the kernel: {report}; {removed}"
        ))
        .because(first)),
    }
}
