//! The thread that has the BFD sessions and their sockets.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, mpsc},
    time::Duration,
};

use keiro_bfd::{Config, Datagram, SOURCE_PORTS, SessionId, Transmit};
use keiro_linux::{
    bfd_socket::{Receiver, Sender, Target},
    clock,
    epoll::{Epoll, Interest, ReadyList, Waker},
    privilege, realtime,
};
use keiro_units::Instant;

use super::{News, Published, SessionSnapshot, Wanted};

pub(super) enum Command {
    /// Receive the packets of a family.
    Receive(Receiver),
    Add(SessionId, Wanted),
    Reconfigure(SessionId, Config),
    Remove(SessionId),
}

pub(super) struct Sessions {
    sessions: keiro_bfd::Sessions,
    outlets: BTreeMap<SessionId, Outlet>,
    receivers: Vec<Inlet>,
    /// When the state of all sessions was left for the daemon.
    published: Instant,
    commands: mpsc::Receiver<Command>,
    epoll: Epoll,
    waker: Arc<Waker>,
    news: Arc<News>,
    buffer: [u8; DATAGRAM_BYTES],
}

struct Inlet {
    receiver: Receiver,
    /// The last attempt to receive failed, which was logged.
    fails: bool,
}

/// How packets to a neighbour are sent.
struct Outlet {
    target: Target,
    /// `None`: it could not be opened yet.
    sender: Option<Sender>,
    /// Why the last packet could not be sent.
    error: Option<String>,
    /// Where to look for a free source port.
    port: u16,
}

/// Longer than every valid packet, authenticated or not.
const DATAGRAM_BYTES: usize = 256;
/// Datagrams read from a socket before what is due. Ours.
const DATAGRAMS_PER_TURN: usize = 1024;
/// Late timers take from the neighbour's detection time.
const TIMER_SLACK: Duration = Duration::from_micros(1);
/// The state that the daemon reads is older than this only while no packet comes and none is due. Ours.
const PUBLISH_EVERY: Duration = Duration::from_millis(200);
const COMMANDS: u64 = 0;

impl Sessions {
    /// # Errors
    /// Too many open descriptors, or no random numbers.
    pub(super) fn new(
        commands: mpsc::Receiver<Command>,
        waker: Arc<Waker>,
        news: Arc<News>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&*waker, COMMANDS, Interest::Read)?;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            sessions: keiro_bfd::Sessions::new(seed),
            outlets: BTreeMap::new(),
            receivers: Vec::new(),
            published: Instant::ZERO,
            commands,
            epoll,
            waker,
            news,
            buffer: [0; DATAGRAM_BYTES],
        })
    }

    /// Runs until the daemon's side is dropped.
    ///
    /// # Panics
    /// It cannot wait for packets. A daemon that went on would seem to have BFD.
    pub(super) fn run(mut self) {
        privilege::give_up_in_thread();
        // Without it timers are up to 50 µs later.
        let _ = realtime::set_timer_slack(TIMER_SLACK);
        let mut ready = ReadyList::new(8);
        loop {
            let timeout = self.sessions.poll_timeout().map(|due| due - now());
            if let Err(error) = self.epoll.wait(&mut ready, timeout) {
                tracing::error!(%error, "BFD cannot wait for packets");
                panic!("BFD cannot wait for packets: {error}");
            }
            // First, so that a late thread does not take what waits for missing.
            self.receive();
            self.sessions.handle_timeout(now());
            self.report();
            self.transmit();
            match self.handle_commands() {
                Ok(false) => {}
                Ok(true) => self.publish(),
                Err(_) => break,
            }
            self.transmit();
            if now() - self.published >= PUBLISH_EVERY {
                self.publish();
            }
            self.sessions.check_invariants();
        }
        let all: Vec<SessionId> = self.outlets.keys().copied().collect();
        for id in all {
            self.remove(id);
        }
    }

    fn receive(&mut self) {
        for inlet in &mut self.receivers {
            for _ in 0..DATAGRAMS_PER_TURN {
                let received = match inlet.receiver.receive(&mut self.buffer) {
                    Ok(Some(received)) => received,
                    Ok(None) => break,
                    Err(error) => {
                        if !std::mem::replace(&mut inlet.fails, true) {
                            tracing::warn!(%error, "a BFD packet cannot be read");
                        }
                        break;
                    }
                };
                inlet.fails = false;
                let datagram = Datagram {
                    from: received.from,
                    ttl: received.ttl,
                    interface: received.interface,
                    payload: &self.buffer[..received.length],
                };
                // Counted by reason.
                let _ = self.sessions.handle_datagram(now(), &datagram);
            }
        }
    }

    fn report(&mut self) {
        let mut is_published = false;
        while let Some(event) = self.sessions.poll_event() {
            // Before, so that the daemon sees the state that it is woken for.
            if !std::mem::replace(&mut is_published, true) {
                self.publish();
            }
            self.news.add(event.session, event.change);
        }
    }

    fn transmit(&mut self) {
        while let Some(packet) = self.sessions.poll_transmit(now()) {
            if let Some(outlet) = self.outlets.get_mut(&packet.session) {
                outlet.send(&packet);
            }
        }
    }

    /// Says whether there were commands.
    ///
    /// # Errors
    /// The daemon's side is gone.
    fn handle_commands(&mut self) -> Result<bool, mpsc::TryRecvError> {
        self.waker.reset();
        let mut any = false;
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    any = true;
                    self.handle(command);
                }
                Err(mpsc::TryRecvError::Empty) => return Ok(any),
                Err(gone) => return Err(gone),
            }
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Receive(receiver) => {
                let token = self.receivers.len() as u64 + 1;
                match self.epoll.add(&receiver, token, Interest::Read) {
                    Ok(()) => self.receivers.push(Inlet {
                        receiver,
                        fails: false,
                    }),
                    Err(error) => tracing::error!(%error, "BFD packets cannot be received"),
                }
            }
            Command::Add(id, wanted) => {
                let address = wanted.target.address;
                match self.sessions.add(now(), id, address, wanted.config) {
                    Ok(()) => _ = self.outlets.insert(id, Outlet::new(wanted.target)),
                    Err(error) => tracing::error!(%address, %error, "no BFD with a neighbour"),
                }
            }
            Command::Reconfigure(id, config) => {
                self.sessions.reconfigure(now(), id, config);
            }
            Command::Remove(id) => self.remove(id),
        }
    }

    fn remove(&mut self, id: SessionId) {
        self.sessions.remove(id);
        self.transmit();
        self.outlets.remove(&id);
    }

    /// Leaves the state of all sessions for the daemon.
    fn publish(&mut self) {
        let of = |(id, outlet): (&SessionId, &Outlet)| {
            let snapshot = SessionSnapshot {
                status: self.sessions.status(*id)?,
                send_error: outlet.error.clone(),
            };
            Some((*id, snapshot))
        };
        let all = Published {
            sessions: self.outlets.iter().filter_map(of).collect(),
            discards: *self.sessions.discards(),
        };
        *self.news.published() = Some(Arc::new(all));
        self.published = now();
    }
}

impl Outlet {
    fn new(target: Target) -> Self {
        let mut octets = [0; 2];
        // Without random numbers the search for a port begins at the first.
        let _ = getrandom::fill(&mut octets);
        Self {
            target,
            sender: None,
            error: None,
            port: u16::from_ne_bytes(octets),
        }
    }

    fn send(&mut self, packet: &Transmit) {
        let result = self.try_send(&packet.payload);
        let error = result.err().map(|error| error.to_string());
        if let (Some(error), None) = (&error, &self.error) {
            let to = packet.to;
            tracing::warn!(%to, "BFD packets cannot be sent: {error}; that is tried again");
        }
        self.error = error;
    }

    fn try_send(&mut self, payload: &[u8]) -> io::Result<()> {
        let sender = match self.sender.take() {
            Some(sender) => sender,
            None => Sender::open(&self.target, SOURCE_PORTS, self.port)?,
        };
        // After an error the socket may be bound to an interface or address that is gone.
        sender.send(payload)?;
        self.sender = Some(sender);
        Ok(())
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::monotonic_nanos())
}
