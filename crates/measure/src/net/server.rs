//! The server of measurements: receives bytes, sends bytes and reflects probes, for a bounded number of
//! clients with bounded resources.
//!
//! One thread accepts connections, one serves UDP, and each client has one. An unauthenticated client costs
//! at most a thread for a few seconds and one Diffie-Hellman operation. The number of unauthenticated
//! connections is limited in total and per network; at the limit a new one takes the place of an old one.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
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
    unauthenticated::{RefusalReports, Unauthenticated},
    wire::{
        Answer, PREAMBLE_LEN, Request, Role, Status, TOKEN_LEN, Token, Transfer, read_preamble,
    },
};

#[derive(Clone, Debug)]
pub enum Access {
    /// Every client that reaches the server. For laboratories.
    Open,
    /// Clients with one of these keys.
    Keys {
        private: PrivateKey,
        allowed: Vec<PublicKey>,
    },
}

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub clients: usize,
    /// Maximum of TCP bytes of one client, in both directions together.
    pub session_bytes: u64,
    /// Maximum duration of one client's session.
    pub session_time: Duration,
}

/// An event for the operator's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client was accepted.
    Came {
        from: SocketAddr,
        /// Its public key; `None` on an open server.
        key: Option<PublicKey>,
    },
    Went {
        from: SocketAddr,
        /// TCP bytes in both directions.
        bytes: u64,
    },
    /// A client was rejected.
    Refused { from: SocketAddr, why: &'static str },
    /// `count` more were rejected lately, of which nothing was reported.
    AlsoRefused { count: u64 },
}

/// Stops a running server from another thread.
#[derive(Clone, Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

/// A server with bound addresses.
pub struct Server {
    listener: TcpListener,
    udp: Mutex<BatchSocket>,
    shared: Shared,
    stop: Stop,
}

struct Shared {
    access: Access,
    limits: Limits,
    sessions: Mutex<BTreeMap<Token, SessionEntry>>,
    reflections: Reflections,
    /// Unauthenticated connections, which are shut down for newer ones.
    unauthenticated: Mutex<Unauthenticated<TcpStream>>,
    refusals: Mutex<RefusalReports>,
    report: Box<dyn Fn(&ServerEvent) + Send + Sync>,
}

/// A session, as shared with other threads.
struct SessionEntry {
    peer: IpAddr,
    data: SyncSender<TcpStream>,
}

/// Time limit of authentication. Ours.
const PROOF_TIME: Duration = Duration::from_secs(3);

/// Maximum time between a client's requests. Ours.
const IDLE_MAX: Duration = Duration::from_secs(120);

/// Period of progress reports to a client.
const PROGRESS_STEP: Duration = Duration::from_secs(1);

impl Default for Limits {
    /// Ours: enough for the longest sensible measurement at 10 Gbit/s.
    fn default() -> Self {
        Self {
            clients: 4,
            session_bytes: 200_000_000_000,
            session_time: Duration::from_secs(3600),
        }
    }
}

impl Stop {
    /// Stops the server and disconnects its clients.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Server {
    /// Binds `address` for TCP and UDP. `report` is called with events, from any thread.
    ///
    /// # Errors
    /// The address is not available.
    pub fn bind(
        address: SocketAddr,
        access: Access,
        limits: Limits,
        report: impl Fn(&ServerEvent) + Send + Sync + 'static,
    ) -> Result<Self, NetError> {
        let listen = |reason| NetError::Listen { address, reason };
        let listener = open_listener(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        // Port zero: use the port that TCP was assigned.
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
                unauthenticated: Mutex::default(),
                refusals: Mutex::default(),
                report: Box::new(report),
            },
            stop: Stop {
                flag: Arc::default(),
                waker: Arc::new(waker),
            },
        })
    }

    /// The listening address; either IPv4 or IPv6.
    ///
    /// # Errors
    /// None is known.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until stopped.
    ///
    /// # Errors
    /// No file descriptors or threads are available.
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
                // An error of the connection, or no descriptors are left. The latter must not become a busy
                // loop.
                Err(_) => {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            let Ok(unauthenticated) = self.shared.register_unauthenticated(&stream, from) else {
                self.shared
                    .report_refused(from, "no file descriptors are left");
                continue;
            };
            let serve = move || self.serve(stream, from, unauthenticated);
            let name = thread::Builder::new().name("client".into());
            // If no thread can be started, the connection closes.
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

    fn serve(&self, stream: TcpStream, from: SocketAddr, unauthenticated: UnauthenticatedSlot<'_>) {
        let proof = WaitLimits {
            silence: PROOF_TIME,
            stop: &self.stop.flag,
            end: Some(Instant::now() + PROOF_TIME),
        };
        // Inherited on some systems only.
        if stream.set_nonblocking(false).is_err() || timeout::prepare(&stream).is_err() {
            return;
        }
        let authenticated = self.shared.authenticate(stream, from, &proof);
        let was_replaced = !unauthenticated.end();
        let report_refused = |why| self.shared.report_refused(from, why);
        match authenticated {
            Ok(Some((channel, slot, key))) => {
                (self.shared.report)(&ServerEvent::Came { from, key });
                let mut session = Session {
                    server: self,
                    channel,
                    slot,
                    data: None,
                    // Not zeros: the kernel would map zero pages lazily, during a timed transfer.
                    buffer: vec![1; CHUNK_BYTES],
                    bytes: 0,
                    end: Instant::now() + self.shared.limits.session_time,
                };
                // The client already has an error message, or is gone.
                let _ = session.run();
                let bytes = session.bytes;
                (self.shared.report)(&ServerEvent::Went { from, bytes });
            }
            Ok(None) => {}
            Err(ChannelError::Status(status)) => report_refused(match status {
                Status::KeyWanted => "it did not authenticate itself",
                Status::IsOpen => "it wants authentication, and this server is open",
                Status::NotAllowed => "its key is not allowed",
                Status::WrongKey => "it means another server's key",
                Status::Busy => "the maximum of clients is reached",
                Status::Version | Status::Welcome => "its protocol version differs",
            }),
            Err(ChannelError::Ended(_)) => report_refused(match was_replaced {
                true => "newer connections took its place before it authenticated itself",
                false => "it sent nothing in time",
            }),
            Err(ChannelError::NotAuthentic) => report_refused("its handshake was not authentic"),
            Err(ChannelError::Garbage(why)) => report_refused(why),
        }
    }
}

/// Sends the reason of a refusal and returns it as an error.
fn refused(mut stream: TcpStream, status: Status, limits: &WaitLimits<'_>) -> ChannelError {
    refuse(&mut stream, status, limits);
    ChannelError::Status(status)
}

impl Shared {
    /// Registers an unauthenticated connection, and shuts the one down whose place it takes.
    fn register_unauthenticated(
        &self,
        stream: &TcpStream,
        from: SocketAddr,
    ) -> io::Result<UnauthenticatedSlot<'_>> {
        let handle = stream.try_clone()?;
        let (number, replaced) = lock(&self.unauthenticated).push(from.ip(), handle);
        if let Some(replaced) = replaced {
            // Its thread finds the end and closes it; it may have closed already.
            let _ = replaced.shutdown(Shutdown::Both);
        }
        Ok(UnauthenticatedSlot {
            shared: self,
            number,
        })
    }

    fn report_refused(&self, from: SocketAddr, why: &'static str) {
        let report = lock(&self.refusals).on_refused(Instant::now());
        if report.unreported > 0 {
            let count = report.unreported;
            (self.report)(&ServerEvent::AlsoRefused { count });
        }
        if report.is_due {
            (self.report)(&ServerEvent::Refused { from, why });
        }
    }

    /// Authenticates a client. `None` for a data connection, which is passed to its session.
    fn authenticate(
        &self,
        mut stream: TcpStream,
        from: SocketAddr,
        proof: &WaitLimits<'_>,
    ) -> Result<Option<(Channel, SessionSlot<'_>, Option<PublicKey>)>, ChannelError> {
        let mut first = [0; PREAMBLE_LEN];
        proof.read_full(&mut stream, &mut first)?;
        match (read_preamble(&first), &self.access) {
            (Ok(Role::Data), _) => {
                let mut token: Token = [0; TOKEN_LEN];
                proof.read_full(&mut stream, &mut token)?;
                self.hand_over(stream, from, &token);
                Ok(None)
            }
            (Ok(Role::Open), Access::Keys { .. }) => Err(refused(stream, Status::KeyWanted, proof)),
            (Ok(Role::Authenticated), Access::Open) => Err(refused(stream, Status::IsOpen, proof)),
            (Ok(Role::Open), Access::Open) => match self.slot(from)? {
                Some(slot) => Ok(Some((Channel::welcome_open(stream, proof)?, slot, None))),
                None => Err(refused(stream, Status::Busy, proof)),
            },
            (Ok(Role::Authenticated), Access::Keys { private, allowed }) => {
                let (client, key) = Channel::identify(stream, private, proof)?;
                if !allowed.contains(&key) {
                    client.refuse(Status::NotAllowed, proof);
                    return Err(ChannelError::Status(Status::NotAllowed));
                }
                match self.slot(from)? {
                    Some(slot) => Ok(Some((client.welcome(proof)?, slot, Some(key)))),
                    None => {
                        client.refuse(Status::Busy, proof);
                        Err(ChannelError::Status(Status::Busy))
                    }
                }
            }
            (Err(Some(status)), _) => Err(refused(stream, status, proof)),
            (Err(None), _) => Err(ChannelError::Garbage("it does not speak this protocol")),
        }
    }

    /// A token and its index among the sessions; `None` if all are taken.
    fn slot(&self, from: SocketAddr) -> Result<Option<SessionSlot<'_>>, ChannelError> {
        let mut token: Token = [0; TOKEN_LEN];
        getrandom::fill(&mut token)
            .map_err(|_| ChannelError::Garbage("the system has no random numbers"))?;
        // One data connection is used at a time; one more may arrive meanwhile.
        let (data, arriving) = sync_channel(2);
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= self.limits.clients {
            return Ok(None);
        }
        let peer = from.ip().to_canonical();
        sessions.insert(token, SessionEntry { peer, data });
        let reflection = Arc::new(Reflection::new(peer));
        lock(&self.reflections).insert(token, Arc::clone(&reflection));
        Ok(Some(SessionSlot {
            shared: self,
            token,
            arriving,
            reflection,
        }))
    }

    fn hand_over(&self, stream: TcpStream, from: SocketAddr, token: &Token) {
        let sessions = lock(&self.sessions);
        // A linear search; its timing reveals nothing about a token of 128 random bits that is of use before
        // the session ends.
        let Some(slot) = sessions.get(token) else {
            return;
        };
        if slot.peer == from.ip().to_canonical() {
            // Connections beyond the bound are closed.
            let _ = slot.data.try_send(stream);
        }
    }
}

/// An unauthenticated connection; counted until dropped.
struct UnauthenticatedSlot<'a> {
    shared: &'a Shared,
    number: u64,
}

impl UnauthenticatedSlot<'_> {
    /// It has authenticated itself, or failed; `false` if another connection took its place.
    fn end(self) -> bool {
        lock(&self.shared.unauthenticated).remove(self.number)
    }
}

impl Drop for UnauthenticatedSlot<'_> {
    fn drop(&mut self) {
        lock(&self.shared.unauthenticated).remove(self.number);
    }
}

/// A slot among the sessions; dropping it frees the slot and invalidates its token.
struct SessionSlot<'a> {
    shared: &'a Shared,
    token: Token,
    arriving: Receiver<TcpStream>,
    reflection: Arc<Reflection>,
}

impl Drop for SessionSlot<'_> {
    fn drop(&mut self) {
        lock(&self.shared.sessions).remove(&self.token);
        lock(&self.shared.reflections).remove(&self.token);
    }
}

struct Session<'a> {
    server: &'a Server,
    channel: Channel,
    slot: SessionSlot<'a>,
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
        let reflection = Arc::clone(&self.slot.reflection);
        match *request {
            Request::Hello => {
                let welcome = Answer::Welcome {
                    token: self.slot.token,
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
                let token = self.slot.token;
                match reflection.send_back(train, token, &self.server.udp) {
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

    /// Takes the data connection, reports that it is ready, and transfers.
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
                // Unused connections fill the backlog.
                while self.slot.arriving.try_recv().is_ok() {}
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
        match self.slot.arriving.recv_timeout(SILENCE) {
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
        let mut reported_at = Instant::now();
        while left > 0 {
            let room = usize::try_from(left)
                .unwrap_or(CHUNK_BYTES)
                .min(CHUNK_BYTES);
            let read = limits.read_some(data, &mut self.buffer[..room])?;
            first_at.get_or_insert_with(monotonic_nanos);
            left -= read as u64;
            if left > 0 && reported_at.elapsed() >= PROGRESS_STEP {
                reported_at = Instant::now();
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
        let (mut left, mut reported_at) = (bytes, Instant::now());
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(payload.len());
            let part = &payload[..room.min(payload.len())];
            left -= self.limits(IDLE_MAX).write_some(data, part)? as u64;
            if left > 0 && reported_at.elapsed() >= PROGRESS_STEP {
                reported_at = Instant::now();
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

/// Disables GRO, so that the kernel delivers every datagram with its own time stamp.
pub(crate) fn single_stamps(socket: &impl AsFd) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt::UdpGroSegment};
    setsockopt(socket, UdpGroSegment, &false).map_err(io::Error::from)
}

/// One address family only, as for UDP: with IPv6 alone, IPv4 would get through on TCP only.
fn open_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let family = Domain::for_address(address);
    let socket = Socket::new(family, Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of a server that has just stopped must not block the next one.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Backlog of the listener; ours: all unauthenticated connections, and a few more.
const BACKLOG: i32 = 128;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
