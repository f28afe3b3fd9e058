//! The other side of a measurement: takes bytes, sends bytes, reflects probes, for few clients at
//! a time and within bounds.
//!
//! One thread accepts, one serves UDP, and each client has one. A stranger costs at most a thread
//! for a few seconds and one Diffie-Hellman: connections that have not proved anything are few,
//! and few of one address.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use keiro_control::{PrivateKey, PublicKey};
use keiro_linux::{
    clock::monotonic_nanos,
    epoll::{Epoll, Interest, ReadyList, Waker},
    udp::{BatchSocket, Purpose, ReceiveBuffers},
};
use socket2::{Domain, Protocol, Socket, Type};

use super::{
    channel::{Channel, ChannelError, refuse},
    error::NetError,
    payload::{CHUNK_BYTES, payload},
    reflection::{Reflection, Reflections, reflect},
    timeout::{self, Ended, SILENCE, WaitLimits},
    wire::{
        Answer, PREAMBLE_LEN, Request, Role, Status, TOKEN_LEN, Token, Transfer, read_preamble,
    },
};

/// Who may measure.
#[derive(Clone, Debug)]
pub enum Access {
    /// Everybody who reaches the server. For laboratories.
    Open,
    /// Who has one of these keys.
    Keys {
        /// The server's own.
        private: PrivateKey,
        /// The clients'.
        allowed: Vec<PublicKey>,
    },
}

/// What a server gives at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at once.
    pub clients: usize,
    /// Bytes of TCP of one client, both directions together.
    pub session_bytes: u64,
    /// How long one client may stay.
    pub session_time: Duration,
}

/// An event for the operator's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client is in.
    Came {
        /// From where.
        from: SocketAddr,
        /// Its key; `None` on an open server.
        key: Option<PublicKey>,
    },
    /// It has gone.
    Went {
        /// From where.
        from: SocketAddr,
        /// Bytes of TCP, both directions.
        bytes: u64,
    },
    /// A client was rejected.
    Refused {
        /// From where.
        from: SocketAddr,
        /// Why.
        why: &'static str,
    },
}

/// Ends a running server from another thread.
#[derive(Clone, Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

/// A server that has its addresses.
pub struct Server {
    listener: TcpListener,
    udp: Mutex<BatchSocket>,
    shared: Shared,
    stop: Stop,
}

struct Shared {
    access: Access,
    limits: Limits,
    sessions: Mutex<BTreeMap<Token, Seat>>,
    reflections: Reflections,
    /// Connections that have not proved anything, by address.
    strangers: Mutex<BTreeMap<IpAddr, usize>>,
    report: Box<dyn Fn(&ServerEvent) + Send + Sync>,
}

/// A session as others see it.
struct Seat {
    peer: IpAddr,
    data: SyncSender<TcpStream>,
}

/// Connections that have not proved anything, altogether and of one address. Ours.
const STRANGERS_MAX: usize = 32;
const STRANGERS_OF_ONE_MAX: usize = 8;

/// How long proving may take. Ours.
const PROOF_TIME: Duration = Duration::from_secs(3);

/// How long a client may ask nothing. Ours.
const IDLE_MAX: Duration = Duration::from_secs(120);

/// The interval of progress reports to a client.
const PROGRESS_STEP: Duration = Duration::from_secs(1);

impl Default for Limits {
    /// Ours: enough for the longest sensible measurement over 10 Gbit/s.
    fn default() -> Self {
        Self {
            clients: 4,
            session_bytes: 200_000_000_000,
            session_time: Duration::from_secs(3600),
        }
    }
}

impl Stop {
    /// Ends the server; clients are cut off.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Server {
    /// Takes `address`, over TCP and UDP. `report` is called with events, from any thread.
    ///
    /// # Errors
    /// Where the address cannot be had.
    pub fn bind(
        address: SocketAddr,
        access: Access,
        limits: Limits,
        report: impl Fn(&ServerEvent) + Send + Sync + 'static,
    ) -> Result<Self, NetError> {
        let listen = |reason| NetError::Listen { address, reason };
        let listener = open_listener(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        // Port zero: the one that TCP was given.
        let address = listener.local_addr().map_err(listen)?;
        let udp = BatchSocket::bind(address, Purpose::Application)?;
        single_stamps(&udp).map_err(listen)?;
        let waker = Waker::new().map_err(listen)?;
        Ok(Self {
            listener,
            udp: Mutex::new(udp),
            shared: Shared {
                access,
                limits,
                sessions: Mutex::default(),
                reflections: Mutex::default(),
                strangers: Mutex::default(),
                report: Box::new(report),
            },
            stop: Stop {
                flag: Arc::default(),
                waker: Arc::new(waker),
            },
        })
    }

    /// Where it listens: over IPv4 or over IPv6, never both.
    ///
    /// # Errors
    /// None that is known.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What ends it.
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until stopped.
    ///
    /// # Errors
    /// No descriptors or threads to be had.
    pub fn run(&self) -> io::Result<()> {
        thread::scope(|scope| {
            let udp = thread::Builder::new()
                .name("udp".into())
                .spawn_scoped(scope, || self.serve_udp())?;
            let accepted = self.accept(scope);
            self.stop.stop();
            udp.join().unwrap_or(Ok(())).and(accepted)
        })
    }

    fn accept<'scope>(&'scope self, scope: &'scope thread::Scope<'scope, '_>) -> io::Result<()> {
        let epoll = Epoll::new()?;
        epoll.add(&self.listener, 0, Interest::Read)?;
        epoll.add(&*self.stop.waker, 1, Interest::Read)?;
        let mut ready = ReadyList::new(2);
        while !self.stop.flag.load(Ordering::Acquire) {
            epoll.wait(&mut ready, None)?;
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                // Of the connection, or no descriptors left; the latter must not become a busy
                // loop.
                Err(_) => {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            let Some(stranger) = self.shared.stranger(from) else {
                (self.shared.report)(&ServerEvent::Refused {
                    from,
                    why: "too many connections at once",
                });
                continue;
            };
            let serve = move || self.serve(stream, from, stranger);
            let name = thread::Builder::new().name("client".into());
            // Without a thread the connection closes, which says enough.
            let _ = name.spawn_scoped(scope, serve);
        }
        Ok(())
    }

    fn serve_udp(&self) -> io::Result<()> {
        let epoll = Epoll::new()?;
        epoll.add(&*self.lock_udp(), 0, Interest::Read)?;
        epoll.add(&*self.stop.waker, 1, Interest::Read)?;
        let mut ready = ReadyList::new(2);
        let mut buffers = ReceiveBuffers::new();
        while !self.stop.flag.load(Ordering::Acquire) {
            epoll.wait(&mut ready, None)?;
            reflect(&self.udp, &mut buffers, &self.shared.reflections);
        }
        Ok(())
    }

    fn lock_udp(&self) -> MutexGuard<'_, BatchSocket> {
        lock(&self.udp)
    }

    fn serve(&self, stream: TcpStream, from: SocketAddr, stranger: Stranger<'_>) {
        let proof = WaitLimits {
            silence: PROOF_TIME,
            stop: &self.stop.flag,
            end: Some(Instant::now() + PROOF_TIME),
        };
        // Inherited on some systems, not on others.
        if stream.set_nonblocking(false).is_err() || timeout::prepare(&stream).is_err() {
            return;
        }
        let refused = |why| (self.shared.report)(&ServerEvent::Refused { from, why });
        match self.shared.prove(stream, from, &proof) {
            Ok(Some((channel, seat, key))) => {
                drop(stranger);
                (self.shared.report)(&ServerEvent::Came { from, key });
                let mut session = Session {
                    server: self,
                    channel,
                    seat,
                    data: None,
                    // Not zeros, which the kernel would only promise and give while a transfer
                    // is timed.
                    buffer: vec![1; CHUNK_BYTES],
                    bytes: 0,
                    end: Instant::now() + self.shared.limits.session_time,
                };
                // The client has its error report already, or is gone.
                let _ = session.run();
                let bytes = session.bytes;
                (self.shared.report)(&ServerEvent::Went { from, bytes });
            }
            Ok(None) => {}
            Err(ChannelError::Status(status)) => refused(match status {
                Status::KeyWanted => "it did not authenticate itself",
                Status::IsOpen => "it wants authentication, and this server is open",
                Status::NotAllowed => "its key is not allowed",
                Status::WrongKey => "it means another server's key",
                Status::Busy => "as many clients as allowed are there",
                Status::Version | Status::Welcome => "it speaks another version",
            }),
            Err(ChannelError::Ended(_)) => refused("it said nothing in time"),
            Err(ChannelError::NotAuthentic) => refused("its handshake was not authentic"),
            Err(ChannelError::Garbage(why)) => refused(why),
        }
    }
}

impl Shared {
    /// Counts a connection that has proved nothing; `None` if there are too many.
    fn stranger(&self, from: SocketAddr) -> Option<Stranger<'_>> {
        let address = from.ip();
        let mut strangers = lock(&self.strangers);
        let all: usize = strangers.values().sum();
        let own = strangers.get(&address).copied().unwrap_or(0);
        if all >= STRANGERS_MAX || own >= STRANGERS_OF_ONE_MAX {
            return None;
        }
        strangers.insert(address, own + 1);
        Some(Stranger {
            shared: self,
            address,
        })
    }

    /// Lets a client prove that it may be here. `None` for a data connection, which goes to its
    /// session.
    fn prove(
        &self,
        mut stream: TcpStream,
        from: SocketAddr,
        proof: &WaitLimits<'_>,
    ) -> Result<Option<(Channel, Occupied<'_>, Option<PublicKey>)>, ChannelError> {
        let mut first = [0; PREAMBLE_LEN];
        proof.read_full(&mut stream, &mut first)?;
        let turn_away = |mut stream: TcpStream, status| {
            refuse(&mut stream, status, proof);
            Err(ChannelError::Status(status))
        };
        match (read_preamble(&first), &self.access) {
            (Ok(Role::Data), _) => {
                let mut token: Token = [0; TOKEN_LEN];
                proof.read_full(&mut stream, &mut token)?;
                self.hand_over(stream, from, &token);
                Ok(None)
            }
            (Ok(Role::Open), Access::Keys { .. }) => turn_away(stream, Status::KeyWanted),
            (Ok(Role::Authenticated), Access::Open) => turn_away(stream, Status::IsOpen),
            (Ok(Role::Open), Access::Open) => match self.seat(from)? {
                Some(seat) => Ok(Some((Channel::welcome_open(stream, proof)?, seat, None))),
                None => turn_away(stream, Status::Busy),
            },
            (Ok(Role::Authenticated), Access::Keys { private, allowed }) => {
                let (caller, key) = Channel::identify(stream, private, proof)?;
                if !allowed.contains(&key) {
                    caller.refuse(Status::NotAllowed, proof);
                    return Err(ChannelError::Status(Status::NotAllowed));
                }
                match self.seat(from)? {
                    Some(seat) => Ok(Some((caller.welcome(proof)?, seat, Some(key)))),
                    None => {
                        caller.refuse(Status::Busy, proof);
                        Err(ChannelError::Status(Status::Busy))
                    }
                }
            }
            (Err(Some(status)), _) => turn_away(stream, status),
            (Err(None), _) => Err(ChannelError::Garbage("it does not speak this protocol")),
        }
    }

    /// A token and its place among the sessions; `None` if all are taken.
    fn seat(&self, from: SocketAddr) -> Result<Option<Occupied<'_>>, ChannelError> {
        let mut token: Token = [0; TOKEN_LEN];
        getrandom::fill(&mut token)
            .map_err(|_| ChannelError::Garbage("no random numbers to be had"))?;
        // One at a time is used; one more may come meanwhile.
        let (data, arriving) = sync_channel(2);
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= self.limits.clients {
            return Ok(None);
        }
        let peer = from.ip().to_canonical();
        sessions.insert(token, Seat { peer, data });
        let reflection = Arc::new(Reflection::new(peer));
        lock(&self.reflections).insert(token, Arc::clone(&reflection));
        Ok(Some(Occupied {
            shared: self,
            token,
            arriving,
            reflection,
        }))
    }

    fn hand_over(&self, stream: TcpStream, from: SocketAddr, token: &Token) {
        let sessions = lock(&self.sessions);
        // Looked up among few; the time this takes reveals nothing about a token of 128 random bits
        // that could be used before the session ends.
        let Some(seat) = sessions.get(token) else {
            return;
        };
        if seat.peer == from.ip().to_canonical() {
            // Beyond the bound it closes.
            let _ = seat.data.try_send(stream);
        }
    }
}

/// A connection that has proved nothing; counted until dropped.
struct Stranger<'a> {
    shared: &'a Shared,
    address: IpAddr,
}

impl Drop for Stranger<'_> {
    fn drop(&mut self) {
        let mut strangers = lock(&self.shared.strangers);
        if let Some(count) = strangers.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                strangers.remove(&self.address);
            }
        }
    }
}

/// A place among the sessions; free again when dropped, and its token worth nothing.
struct Occupied<'a> {
    shared: &'a Shared,
    token: Token,
    arriving: Receiver<TcpStream>,
    reflection: Arc<Reflection>,
}

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        lock(&self.shared.sessions).remove(&self.token);
        lock(&self.shared.reflections).remove(&self.token);
    }
}

/// One client.
struct Session<'a> {
    server: &'a Server,
    channel: Channel,
    seat: Occupied<'a>,
    data: Option<TcpStream>,
    buffer: Vec<u8>,
    bytes: u64,
    end: Instant,
}

impl<'a> Session<'a> {
    fn limits(&self, silence: Duration) -> WaitLimits<'a> {
        WaitLimits {
            silence,
            stop: &self.server.stop.flag,
            end: Some(self.end),
        }
    }

    fn answer(&mut self, answer: &Answer) -> Result<(), ChannelError> {
        let limits = self.limits(SILENCE);
        self.channel.send(&answer.encode(), &limits)
    }

    fn ready(&mut self, received_at: u64) -> Result<(), ChannelError> {
        self.answer(&Answer::Ready {
            received_at,
            replied_at: monotonic_nanos(),
        })
    }

    fn refuse(&mut self, why: &str) -> Result<(), ChannelError> {
        self.answer(&Answer::Refused(why.to_owned()))
    }

    fn run(&mut self) -> Result<(), ChannelError> {
        loop {
            let idle = self.limits(IDLE_MAX);
            let message = match self.channel.receive(&idle) {
                Ok(message) => message,
                Err(ChannelError::Ended(Ended::Silent)) => {
                    return self.refuse("the time of this session is over");
                }
                Err(error) => return Err(error),
            };
            let received_at = monotonic_nanos();
            let Some(request) = Request::decode(&message) else {
                return self.refuse("a request that this server does not know");
            };
            self.handle(&request, received_at)?;
        }
    }

    fn handle(&mut self, request: &Request, received_at: u64) -> Result<(), ChannelError> {
        let reflection = Arc::clone(&self.seat.reflection);
        match *request {
            Request::Hello => {
                let welcome = Answer::Welcome {
                    token: self.seat.token,
                    transfer_bytes_max: self.server.shared.limits.session_bytes,
                    udp: true,
                };
                self.answer(&welcome)
            }
            Request::Ping => self.ready(received_at),
            Request::Receive(transfer) => self.transfer(transfer, received_at, Self::receive),
            Request::Send(transfer) => self.transfer(transfer, received_at, Self::send),
            Request::ProbesBegin { packets } => {
                reflection.begin_probes(packets);
                self.ready(received_at)
            }
            Request::ProbesEnd => self.answer(&Answer::Probes(reflection.end_probes())),
            Request::TrainBegin { train, packets } => {
                reflection.begin_train(train, packets);
                self.ready(received_at)
            }
            Request::TrainEnd { train } => match reflection.end_train(train) {
                Some(stamps) => self.answer(&Answer::Train(stamps)),
                None => self.refuse("a train that was not announced"),
            },
            Request::TrainBack { train } => {
                let token = self.seat.token;
                match reflection.pay_back(train, token, &self.server.udp) {
                    Some((first_at, last_at, packets)) => self.answer(&Answer::Done {
                        bytes: packets,
                        first_at,
                        last_at,
                    }),
                    None => self.refuse("a train of which nothing came"),
                }
            }
        }
    }

    /// Finds the data connection, says that all is ready, and transfers.
    fn transfer(
        &mut self,
        transfer: Transfer,
        received_at: u64,
        run: fn(&mut Self, &mut TcpStream, u64) -> Result<Answer, ChannelError>,
    ) -> Result<(), ChannelError> {
        let total = self.bytes.saturating_add(transfer.bytes);
        if transfer.bytes == 0 || total > self.server.shared.limits.session_bytes {
            return self.refuse("more bytes than this server gives one client");
        }
        self.bytes = total;
        let kept = match transfer.fresh {
            true => {
                // Unused connections take up the backlog.
                while self.seat.arriving.try_recv().is_ok() {}
                None
            }
            false => self.data.take(),
        };
        let mut data = match kept {
            Some(data) => {
                self.ready(received_at)?;
                data
            }
            None if transfer.fresh => {
                self.ready(received_at)?;
                self.await_data()?
            }
            None => {
                let data = self.await_data()?;
                self.ready(received_at)?;
                data
            }
        };
        let answer = run(self, &mut data, transfer.bytes)?;
        self.data = (!transfer.fresh).then_some(data);
        self.answer(&answer)
    }

    fn await_data(&mut self) -> Result<TcpStream, ChannelError> {
        match self.seat.arriving.recv_timeout(SILENCE) {
            Ok(data) => Ok(data),
            Err(_) => {
                self.refuse("no data connection came")?;
                Err(ChannelError::Ended(Ended::Silent))
            }
        }
    }

    fn receive(&mut self, data: &mut TcpStream, bytes: u64) -> Result<Answer, ChannelError> {
        let limits = self.limits(SILENCE);
        let (mut left, mut first_at) = (bytes, None);
        let mut told = Instant::now();
        while left > 0 {
            let room = usize::try_from(left)
                .unwrap_or(CHUNK_BYTES)
                .min(CHUNK_BYTES);
            let read = limits.read_some(data, &mut self.buffer[..room])?;
            first_at.get_or_insert_with(monotonic_nanos);
            left -= read as u64;
            if left > 0 && told.elapsed() >= PROGRESS_STEP {
                told = Instant::now();
                self.answer(&Answer::Progress {
                    bytes: bytes - left,
                })?;
            }
        }
        let last_at = monotonic_nanos();
        Ok(Answer::Done {
            bytes,
            first_at: first_at.unwrap_or(last_at),
            last_at,
        })
    }

    fn send(&mut self, data: &mut TcpStream, bytes: u64) -> Result<Answer, ChannelError> {
        let payload = payload();
        let first_at = monotonic_nanos();
        let (mut left, mut told) = (bytes, Instant::now());
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(payload.len());
            let part = &payload[..room.min(payload.len())];
            left -= self.limits(IDLE_MAX).write_some(data, part)? as u64;
            if left > 0 && told.elapsed() >= PROGRESS_STEP {
                told = Instant::now();
                self.answer(&Answer::Progress {
                    bytes: bytes - left,
                })?;
            }
        }
        Ok(Answer::Done {
            bytes,
            first_at,
            last_at: monotonic_nanos(),
        })
    }
}

/// Makes the kernel give every datagram by itself, with its own stamp: several given as one have
/// only the first one's.
pub(crate) fn single_stamps(socket: &impl AsFd) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt::UdpGroSegment};
    setsockopt(socket, UdpGroSegment, &false).map_err(io::Error::from)
}

/// One family only, as UDP does: over IPv6 alone IPv4 would get as far as TCP.
fn open_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let family = Domain::for_address(address);
    let socket = Socket::new(family, Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of a server that has just ended must not keep the next one away.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Connections that wait to be accepted; ours: as many as may be unproved, and some more.
const BACKLOG: i32 = 128;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
