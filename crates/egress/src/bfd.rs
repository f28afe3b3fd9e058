//! BFD sessions with neighbours (RFC 5882): what the daemon asks of them, and what it learns.
//!
//! The sessions are in a thread, because a full table keeps the event loop busy for longer than
//! a detection time. Commands go there by a bounded queue. The thread leaves the changes of each
//! session in a shared map, which their number bounds, and wakes the event loop.

mod thread;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use keiro_bfd::{Change, Config, Discards, Failure, PORT};
use keiro_bgp::rib::NeighbourId;
use keiro_linux::{
    bfd_socket::{IpVersion, Receiver, Target},
    epoll::Waker,
};

use thread::Command;

/// The daemon's side of BFD.
pub(crate) struct Bfd {
    /// `None`: no neighbour has BFD.
    thread: Option<Thread>,
    wanted: BTreeMap<NeighbourId, Wanted>,
    news: Arc<News>,
}

/// A session that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) target: Target,
    pub(crate) config: Config,
}

/// The changes of a session that the daemon has not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// It failed, also if it has come up since.
    pub(crate) failed: Option<Failure>,
    /// The last change; the failure comes before it.
    pub(crate) last: Option<Change>,
}

/// The state of all sessions.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) sessions: BTreeMap<NeighbourId, SessionSnapshot>,
    pub(crate) discards: Discards,
}

#[derive(Debug)]
pub(crate) struct SessionSnapshot {
    pub(crate) status: keiro_bfd::Status,
    /// Why its last packet could not be sent; `None`: it was.
    pub(crate) send_error: Option<String>,
}

struct Thread {
    commands: mpsc::SyncSender<Command>,
    waker: Arc<Waker>,
    receivers: BTreeSet<IpVersion>,
    handle: Option<JoinHandle<()>>,
}

/// What the thread leaves for the daemon.
struct News {
    changes: Mutex<BTreeMap<NeighbourId, Changes>>,
    waker: Waker,
}

/// Commands that the thread has not handled. Ours; sending waits for room.
const COMMANDS_MAX: usize = 1024;
/// How long the daemon waits for a snapshot. Ours.
const SNAPSHOT_WAIT: Duration = Duration::from_millis(200);

impl Bfd {
    /// # Errors
    /// Too many open descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            thread: None,
            wanted: BTreeMap::new(),
            news: Arc::new(News {
                changes: Mutex::default(),
                waker: Waker::new()?,
            }),
        })
    }

    /// Is readable while there are changes.
    pub(crate) fn waker(&self) -> &Waker {
        &self.news.waker
    }

    /// Begins, changes and ends sessions.
    ///
    /// # Errors
    /// The port cannot be opened, or there is no thread; the text says what to try. Sessions that
    /// there were before go on.
    pub(crate) fn follow(&mut self, wanted: BTreeMap<NeighbourId, Wanted>) -> Result<(), String> {
        if wanted.is_empty() {
            self.thread = None;
            self.wanted.clear();
            return Ok(());
        }
        let mut commands = Vec::new();
        let versions: BTreeSet<IpVersion> = wanted
            .values()
            .map(|it| IpVersion::of(it.target.address))
            .collect();
        let mut thread = match self.thread.take() {
            Some(thread) => thread,
            None => Thread::start(Arc::clone(&self.news))?,
        };
        for version in versions.difference(&thread.receivers.clone()) {
            match Receiver::open(*version, PORT) {
                Ok(receiver) => {
                    commands.push(Command::Receive(receiver));
                    thread.receivers.insert(*version);
                }
                Err(error) => {
                    self.thread = (!self.wanted.is_empty()).then_some(thread);
                    return Err(port_hint(&error));
                }
            }
        }
        for (id, before) in &self.wanted {
            let stays = wanted.get(id).is_some_and(|it| it.target == before.target);
            if !stays {
                commands.push(Command::Remove(*id));
            }
        }
        for (id, now) in &wanted {
            match self.wanted.get(id) {
                Some(before) if before == now => {}
                Some(before) if before.target == now.target => {
                    commands.push(Command::Reconfigure(*id, now.config));
                }
                _ => commands.push(Command::Add(*id, now.clone())),
            }
        }
        self.wanted = wanted;
        let sent = thread.send(commands);
        self.thread = Some(thread);
        sent
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&mut self) -> BTreeMap<NeighbourId, Changes> {
        self.news.waker.reset();
        let mut changes = std::mem::take(&mut *self.news.lock());
        // A removed session may have changed last.
        changes.retain(|id, _| self.wanted.contains_key(id));
        changes
    }

    /// The state of all sessions; `None`: there are none, or the thread does not answer.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        let thread = self.thread.as_ref()?;
        let (sender, answer) = mpsc::sync_channel(1);
        thread.send(vec![Command::Snapshot(sender)]).ok()?;
        answer.recv_timeout(SNAPSHOT_WAIT).ok()
    }
}

impl Thread {
    fn start(news: Arc<News>) -> Result<Self, String> {
        let failed = |error: io::Error| format!("no thread for BFD: {error}");
        let (sender, commands) = mpsc::sync_channel(COMMANDS_MAX);
        let waker = Arc::new(Waker::new().map_err(failed)?);
        let sessions = thread::Sessions::new(commands, Arc::clone(&waker), news).map_err(failed)?;
        let thread = std::thread::Builder::new().name("bfd".to_owned());
        let handle = thread.spawn(move || sessions.run()).map_err(failed)?;
        Ok(Self {
            commands: sender,
            waker,
            receivers: BTreeSet::new(),
            handle: Some(handle),
        })
    }

    fn send(&self, commands: Vec<Command>) -> Result<(), String> {
        for command in commands {
            if self.commands.send(command).is_err() {
                return Err("the thread of BFD has ended; restart the daemon".to_owned());
            }
        }
        self.waker.wake();
        Ok(())
    }
}

impl Drop for Thread {
    /// Waits until neighbours were informed that BFD ends, which takes no longer than a few packets.
    fn drop(&mut self) {
        let (closed, _) = mpsc::sync_channel(0);
        self.commands = closed;
        self.waker.wake();
        if let Some(handle) = self.handle.take() {
            // A panic was logged by the thread.
            let _ = handle.join();
        }
    }
}

impl News {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<NeighbourId, Changes>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, id: NeighbourId, change: Change) {
        let mut all = self.lock();
        let of = all.entry(id).or_default();
        if let Change::Down(failure) = change {
            of.failed = Some(failure);
        }
        of.last = Some(change);
        drop(all);
        self.waker.wake();
    }
}

fn port_hint(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "`ss -ulpn sport = :{PORT}` shows the program, which may be another BFD daemon; stop that, or remove `bfd`"
        ),
        _ => "remove `bfd` from the configuration, or see why the port cannot be opened".to_owned(),
    };
    format!("BFD: UDP port {PORT} cannot be opened: {error}; {hint}")
}
