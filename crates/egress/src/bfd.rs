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
};

use keiro_bfd::{Change, Config, Discards, Failure, PORT, SessionId};
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
    wanted: BTreeMap<NeighbourId, (SessionId, Wanted)>,
    /// Each session has a number that no other had, so that nothing about an ended one is taken for news of
    /// a neighbour that has its [`NeighbourId`] after a reload.
    next_session: u32,
    port: u16,
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

#[derive(Clone, Debug)]
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
    changes: Mutex<BTreeMap<SessionId, Changes>>,
    /// The last state of all sessions; `None`: the thread has not begun.
    published: Mutex<Option<Arc<Published>>>,
    waker: Waker,
}

/// The state of all sessions.
struct Published {
    sessions: BTreeMap<SessionId, SessionSnapshot>,
    discards: Discards,
}

/// Commands that the thread has not handled. Ours; sending waits for room.
const COMMANDS_MAX: usize = 1024;

impl Bfd {
    /// # Errors
    /// Too many open descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            thread: None,
            wanted: BTreeMap::new(),
            next_session: 0,
            port: PORT,
            news: Arc::new(News {
                changes: Mutex::default(),
                published: Mutex::default(),
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
    /// The port cannot be opened for a family, whose neighbours then have no sessions, or there is
    /// no thread; the text says what to try. Everything else is done.
    pub(crate) fn follow(
        &mut self,
        mut wanted: BTreeMap<NeighbourId, Wanted>,
    ) -> Result<(), String> {
        if wanted.is_empty() {
            self.end();
            return Ok(());
        }
        let mut commands = Vec::new();
        let mut result = Ok(());
        let versions: BTreeSet<IpVersion> = wanted
            .values()
            .map(|it| IpVersion::of(it.target.address))
            .collect();
        let mut thread = match self.thread.take() {
            Some(thread) => thread,
            None => Thread::start(Arc::clone(&self.news))?,
        };
        for version in versions.difference(&thread.receivers.clone()) {
            match Receiver::open(*version, self.port) {
                Ok(receiver) => {
                    commands.push(Command::Receive(receiver));
                    thread.receivers.insert(*version);
                }
                Err(error) => result = Err(port_hint(&error)),
            }
        }
        wanted.retain(|_, it| {
            let version = IpVersion::of(it.target.address);
            thread.receivers.contains(&version)
        });
        if wanted.is_empty() {
            self.end();
            return result;
        }
        self.change_to(wanted, &mut commands);
        let sent = thread.send(commands);
        self.thread = Some(thread);
        sent.and(result)
    }

    fn end(&mut self) {
        self.thread = None;
        self.wanted.clear();
    }

    /// Removals are first, since an address has one session.
    fn change_to(&mut self, wanted: BTreeMap<NeighbourId, Wanted>, commands: &mut Vec<Command>) {
        let before = std::mem::take(&mut self.wanted);
        for (id, (session, before)) in &before {
            let stays = wanted.get(id).is_some_and(|it| it.target == before.target);
            if !stays {
                commands.push(Command::Remove(*session));
            }
        }
        for (id, now) in wanted {
            let session = match before.get(&id) {
                Some((session, before)) if before.target == now.target => {
                    if before.config != now.config {
                        commands.push(Command::Reconfigure(*session, now.config));
                    }
                    *session
                }
                _ => {
                    let session = SessionId(self.next_session);
                    self.next_session = self.next_session.wrapping_add(1);
                    commands.push(Command::Add(session, now.clone()));
                    session
                }
            };
            self.wanted.insert(id, (session, now));
        }
    }

    /// The changes since the last call.
    pub(crate) fn take_changes(&mut self) -> BTreeMap<NeighbourId, Changes> {
        self.news.waker.reset();
        let changes = std::mem::take(&mut *self.news.lock());
        // Those of ended sessions have no neighbour.
        let of = |(id, (session, _)): (&NeighbourId, &(SessionId, Wanted))| {
            Some((*id, *changes.get(session)?))
        };
        self.wanted.iter().filter_map(of).collect()
    }

    /// The last published state of all sessions; `None`: there are none.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        self.thread.as_ref()?;
        let published = self.news.published().clone()?;
        let of = |(id, (session, _)): (&NeighbourId, &(SessionId, Wanted))| {
            Some((*id, published.sessions.get(session)?.clone()))
        };
        Some(Snapshot {
            sessions: self.wanted.iter().filter_map(of).collect(),
            discards: published.discards,
        })
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
            // The thread must make room if there are more than the queue has room for.
            self.waker.wake();
        }
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
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SessionId, Changes>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn published(&self) -> std::sync::MutexGuard<'_, Option<Arc<Published>>> {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, id: SessionId, change: Change) {
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
    format!("BFD cannot open UDP port {PORT}: {error}; {hint}")
}

#[cfg(test)]
mod tests {
    use keiro_testing::{eventually, wait_until};

    use super::*;

    /// Takes packets at any free port.
    fn bfd() -> Bfd {
        Bfd {
            port: 0,
            ..Bfd::new().unwrap()
        }
    }

    fn wanted(address: &str) -> Wanted {
        Wanted {
            target: Target {
                address: address.parse().unwrap(),
                // The discard port.
                port: 9,
                local: None,
                interface: None,
            },
            config: Config {
                interval: std::time::Duration::from_secs(1),
                multiplier: 3,
            },
        }
    }

    fn one(address: &str) -> BTreeMap<NeighbourId, Wanted> {
        BTreeMap::from([(NeighbourId(0), wanted(address))])
    }

    #[test]
    fn more_neighbours_than_the_queue_has_room_for_are_followed() {
        let (sender, done) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bfd = bfd();
            let all = (0..=COMMANDS_MAX as u16).map(|number| {
                let [high, low] = number.to_be_bytes();
                (NeighbourId(number), wanted(&format!("127.1.{high}.{low}")))
            });
            let result = bfd.follow(all.collect());
            let _ = sender.send((bfd, result));
        });
        let (bfd, result) = eventually("an answer", || done.try_recv().ok());
        assert_eq!(result, Ok(()));
        wait_until("all sessions that there may be", || {
            let count = bfd.snapshot().map(|all| all.sessions.len());
            // One more is refused by the sessions.
            count == Some(1024)
        });
    }

    #[test]
    fn a_change_of_an_ended_session_is_not_of_the_next_neighbour_with_its_number() {
        let mut bfd = bfd();
        bfd.follow(one("127.1.0.1")).unwrap();
        let (ended, _) = bfd.wanted[&NeighbourId(0)];
        bfd.follow(one("127.1.0.2")).unwrap();
        let (session, _) = bfd.wanted[&NeighbourId(0)];
        bfd.news.add(ended, Change::Up);
        assert_eq!(bfd.take_changes(), BTreeMap::new());
        bfd.news.add(session, Change::Up);
        assert_eq!(bfd.take_changes()[&NeighbourId(0)].last, Some(Change::Up));
    }

    #[test]
    fn sessions_end_although_the_port_of_another_family_is_taken() {
        let taken = std::net::UdpSocket::bind("[::]:0").unwrap();
        let mut bfd = bfd();
        let first = wanted("127.1.0.1");
        bfd.follow(
            [
                (NeighbourId(0), first.clone()),
                (NeighbourId(1), wanted("127.1.0.2")),
            ]
            .into(),
        )
        .unwrap();
        bfd.port = taken.local_addr().unwrap().port();
        let error = bfd
            .follow([(NeighbourId(0), first), (NeighbourId(1), wanted("::1"))].into())
            .unwrap_err();
        assert!(error.contains("BFD cannot open UDP port"), "{error}");
        wait_until("only the first session is left", || {
            let all = bfd.snapshot();
            let is_first = |all: Snapshot| all.sessions.into_keys().eq([NeighbourId(0)]);
            all.is_some_and(is_first) && bfd.wanted.len() == 1
        });
    }
}
