//! The thread that asks a gateway for its state, again and again.

use std::{
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use keiro_control::protocol::{
    AppSnapshot, PathSnapshot, PeerSnapshot, Request, Response, StatusSnapshot, TenantSnapshot,
    VersionSnapshot,
    client::{Client, ClientError},
};
use tokio::sync::watch;

use super::{Fault, Shared, is_looked_at, lock, unexpected};

/// What is known of a gateway.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// Raised by every poll.
    pub(crate) number: u64,
    /// The last complete answers; absent: there were none yet.
    pub(crate) data: Option<Arc<Data>>,
    /// Why there are no newer ones; absent: `data` is of the last poll.
    pub(crate) fault: Option<Fault>,
    polled: Option<Instant>,
    /// The time until the next poll, while a page is open.
    pub(crate) interval: Duration,
}

/// Answers of one poll.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) at: SystemTime,
    pub(crate) since: Instant,
    pub(crate) version: VersionSnapshot,
    pub(crate) status: StatusSnapshot,
    pub(crate) paths: Vec<PathSnapshot>,
    pub(crate) peers: Vec<PeerSnapshot>,
    pub(crate) apps: Vec<AppSnapshot>,
    /// Absent: no page needed them.
    pub(crate) tenants: Option<Vec<TenantSnapshot>>,
}

/// How often a gateway is asked while a page is open, and otherwise. Ours.
const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_IDLE: Duration = Duration::from_secs(30);
/// An interval is this many times what the last poll took, so that a gateway with much to say, or on a busy machine, is
/// asked more rarely; but never longer than [`INTERVAL_MAX`]. Ours.
const INTERVALS_PER_POLL: u32 = 5;
const INTERVAL_MAX: Duration = Duration::from_secs(10);
/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl View {
    /// The last poll is as new as polls are while a page is open.
    pub(crate) fn is_recent(&self, now: Instant) -> bool {
        let recent = self.interval.max(INTERVAL) * 2;
        self.polled
            .is_some_and(|polled| now.saturating_duration_since(polled) < recent)
    }
}

/// Starts the thread; it ends with the source.
pub(super) fn start(shared: Arc<Shared>) -> watch::Receiver<Arc<View>> {
    let (sender, receiver) = watch::channel(Arc::default());
    thread::Builder::new()
        .name("poll".into())
        .spawn(move || run(&shared, &sender))
        .expect("a thread can be started");
    receiver
}

fn run(shared: &Shared, views: &watch::Sender<Arc<View>>) {
    let mut client = None;
    let mut view = View::default();
    while !shared.has_ended() {
        let begun = Instant::now();
        let tenants = is_looked_at(lock(&shared.wanted).tenants, begun);
        match poll(&shared.socket, &mut client, tenants) {
            Ok(data) => {
                lock(&shared.record).on_poll(data.at, &data.apps);
                view.data = Some(Arc::new(data));
                view.fault = None;
            }
            Err(fault) => {
                client = None;
                view.fault = Some(fault);
            }
        }
        let now = Instant::now();
        let took = now.saturating_duration_since(begun);
        view.number += 1;
        view.polled = Some(now);
        view.interval = (took * INTERVALS_PER_POLL).clamp(INTERVAL, INTERVAL_MAX);
        views.send_replace(Arc::new(view.clone()));
        wait(shared, now, view.interval, tenants);
    }
}

/// Waits for the next poll, which is soon while a page is open.
fn wait(shared: &Shared, polled: Instant, interval: Duration, had_tenants: bool) {
    let mut wanted = lock(&shared.wanted);
    while !shared.has_ended() {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(polled);
        let needs_tenants = !had_tenants && is_looked_at(wanted.tenants, now);
        let due = match is_looked_at(wanted.looked, now) {
            // What no page has needed so far comes at once.
            true if needs_tenants => Duration::ZERO,
            true => interval,
            false => INTERVAL_IDLE,
        };
        let Some(left) = due.checked_sub(elapsed).filter(|left| !left.is_zero()) else {
            return;
        };
        let rested = shared.woken.wait_timeout(wanted, left);
        wanted = rested.unwrap_or_else(std::sync::PoisonError::into_inner).0;
    }
}

/// A connection with a limit for every answer.
pub(super) fn connect(socket: &Path, timeout: Duration) -> Result<Client<UnixStream>, Fault> {
    let unreachable = |error| Fault::unreachable(socket, &error);
    let stream = UnixStream::connect(socket).map_err(unreachable)?;
    stream
        .set_read_timeout(Some(timeout))
        .map_err(unreachable)?;
    stream
        .set_write_timeout(Some(timeout))
        .map_err(unreachable)?;
    Ok(Client::new(stream))
}

fn poll(
    socket: &Path,
    client: &mut Option<Client<UnixStream>>,
    tenants: bool,
) -> Result<Data, Fault> {
    let client = match client {
        Some(client) => client,
        None => client.insert(connect(socket, ANSWER_TIMEOUT)?),
    };
    let mut ask = |request: &Request| {
        client
            .request(request)
            .map_err(|error| Fault::unanswered(&error))
    };
    let version = match ask(&Request::Version {})? {
        Response::Version(version) => version,
        other => return Err(unexpected(&other)),
    };
    let status = match ask(&Request::Status {})? {
        Response::Status(status) => *status,
        other => return Err(unexpected(&other)),
    };
    let paths = match ask(&Request::ShowPath { name: None })? {
        Response::Paths { paths } => paths,
        other => return Err(unexpected(&other)),
    };
    let peers = match ask(&Request::ShowPeer { name: None })? {
        Response::Peers { peers } => peers,
        other => return Err(unexpected(&other)),
    };
    let apps = match ask(&Request::ShowApp { name: None })? {
        Response::Apps { apps } => apps,
        other => return Err(unexpected(&other)),
    };
    let tenants = match tenants {
        true => match ask(&Request::ShowTenant { name: None })? {
            Response::Tenants { tenants } => Some(tenants),
            other => return Err(unexpected(&other)),
        },
        false => None,
    };
    Ok(Data {
        at: SystemTime::now(),
        since: Instant::now(),
        version,
        status,
        paths,
        peers,
        apps,
        tenants,
    })
}

/// Whether a connection cannot be used any further.
pub(super) fn is_broken(error: &ClientError) -> bool {
    !matches!(error, ClientError::Refused(_))
}
