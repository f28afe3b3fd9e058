//! The client's end of a session: authentication, clock offset, and single transfers.

use std::{
    io,
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    sync::atomic::AtomicBool,
    time::Duration,
};

use keiro_control::PublicKey;
use keiro_linux::clock::monotonic_nanos;
use keiro_model::clock::{ClockOffset, Exchange};

use super::{
    channel::{Channel, ChannelError, Identity},
    error::NetError,
    payload::{CHUNK_BYTES, payload},
    timeout::{self, Ended, SILENCE, WaitLimits},
    wire::{Answer, PREAMBLE_LEN, Request, Role, Status, TOKEN_LEN, Token, Transfer, preamble},
};

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    There,
    /// From the server to the client.
    Back,
}

/// Which connection a transfer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// One warm connection for all transfers, like an application that keeps its connection.
    Warm,
    /// A new connection for each, setup included, like an application that does not.
    Fresh,
}

/// Our keys and the expected key of the server.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Our private key and the server's public key.
    pub identity: Identity,
    /// Our public key, for error messages.
    pub own: PublicKey,
}

/// A session with a server.
pub struct Session<'a> {
    channel: Channel,
    server: SocketAddr,
    token: Token,
    transfer_bytes_max: u64,
    data: Option<TcpStream>,
    clocks: ClockOffset,
    buffer: Vec<u8>,
    stop: &'a AtomicBool,
}

/// Exchanges of time stamps at the start. Ours: at least one of them meets no noise.
const EXCHANGES: usize = 16;

/// Minimum duration of a transfer through two sockets. Smaller results are caused by the uncertainty of the
/// clock offset, which on loopback can exceed the transfer. Ours.
const SHORTEST: Duration = Duration::from_micros(1);

/// Timeout of a write. Ours: the kernel detects a dead peer earlier, and a slow path takes long to drain the
/// send buffer.
const WRITE_SILENCE: Duration = Duration::from_secs(60);

impl<'a> Session<'a> {
    /// Connects to `target`, a host and a port; without `credentials` to an open server. Stops early when
    /// `stop` is set.
    ///
    /// # Errors
    /// Why the connection failed, and what to try.
    pub fn connect(
        target: &str,
        credentials: Option<&Credentials>,
        stop: &'a AtomicBool,
    ) -> Result<Self, NetError> {
        let (server, stream) = connect_any(target)?;
        let limits = WaitLimits {
            silence: SILENCE,
            stop,
            end: None,
        };
        timeout::prepare(&stream).map_err(|source| NetError::Connect {
            server,
            reason: source,
        })?;
        let identity = credentials.map(|known| &known.identity);
        let channel = Channel::open(stream, identity, &limits)
            .map_err(|error| of_handshake(error, server, credentials))?;
        let mut session = Self {
            channel,
            server,
            token: [0; TOKEN_LEN],
            transfer_bytes_max: 0,
            data: None,
            clocks: ClockOffset::default(),
            buffer: vec![1; CHUNK_BYTES],
            stop,
        };
        match session.ask(&Request::Hello, "while greeting")? {
            Answer::Welcome {
                token,
                transfer_bytes_max,
                ..
            } => {
                session.token = token;
                session.transfer_bytes_max = transfer_bytes_max;
            }
            _ => return Err(session.unexpected()),
        }
        for _ in 0..EXCHANGES {
            session.exchange_stamps()?;
        }
        Ok(session)
    }

    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// Our address on the control connection.
    ///
    /// # Errors
    /// None is known.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.channel.stream().local_addr()
    }

    /// Maximum of bytes that the server transfers in one session.
    pub fn transfer_bytes_max(&self) -> u64 {
        self.transfer_bytes_max
    }

    /// Minimum round trip on the control connection so far.
    pub fn round_trip_min(&self) -> Duration {
        self.clocks.round_trip_min().unwrap_or_default()
    }

    /// Flag that cancels all operations.
    pub(crate) fn stop(&self) -> &'a AtomicBool {
        self.stop
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// Exchanges time stamps once.
    ///
    /// # Errors
    /// The connection to the server is lost.
    pub fn exchange_stamps(&mut self) -> Result<(), NetError> {
        self.ask_ready(&Request::Ping, "while comparing clocks")
    }

    /// Transfers `bytes`. Returns the time from before the first write, or before the connection is opened,
    /// until the receiver has the last byte; at least 1 µs.
    ///
    /// # Errors
    /// The connection is lost or the server refuses. The session cannot be used any further.
    pub fn transfer(
        &mut self,
        bytes: u64,
        direction: Direction,
        connection: Connection,
    ) -> Result<Duration, NetError> {
        let fresh = connection == Connection::Fresh;
        let transfer = Transfer { bytes, fresh };
        let request = match direction {
            Direction::There => Request::Receive(transfer),
            Direction::Back => Request::Send(transfer),
        };
        let mut data = match fresh {
            true => None,
            false => Some(match self.data.take() {
                Some(data) => data,
                None => self.open_data()?,
            }),
        };
        self.ask_ready(&request, DURING)?;
        let begin = monotonic_nanos();
        let mut stream = match data.take() {
            Some(stream) => stream,
            None => self.open_data()?,
        };
        let (from, until) = match direction {
            Direction::There => {
                self.write(&mut stream, bytes)?;
                let (_, last_at) = self.done(bytes)?;
                (begin, self.ours(last_at))
            }
            Direction::Back => {
                self.read(&mut stream, bytes)?;
                let end = monotonic_nanos();
                let (first_at, _) = self.done(bytes)?;
                // With a new connection, time starts at the request for it.
                (if fresh { begin } else { self.ours(first_at) }, end)
            }
        };
        self.data = (!fresh).then_some(stream);
        Ok(Duration::from_nanos(until.saturating_sub(from)).max(SHORTEST))
    }

    /// Sends a request and returns the answer; a refusal is an error.
    pub(crate) fn ask(
        &mut self,
        request: &Request,
        during: &'static str,
    ) -> Result<Answer, NetError> {
        let limits = self.limits();
        self.channel
            .send(&request.encode(), &limits)
            .map_err(|error| self.error(error, during))?;
        self.await_answer(during)
    }

    /// Sends a request that is answered with time stamps.
    pub(crate) fn ask_ready(
        &mut self,
        request: &Request,
        during: &'static str,
    ) -> Result<(), NetError> {
        let asked_at = monotonic_nanos();
        match self.ask(request, during)? {
            Answer::Ready {
                received_at,
                replied_at,
            } => {
                let reply_received_at = monotonic_nanos();
                self.clocks.on_exchange(Exchange {
                    asked_at,
                    received_at,
                    replied_at,
                    heard_at: reply_received_at,
                });
                Ok(())
            }
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) fn unexpected(&self) -> NetError {
        NetError::Protocol {
            server: self.server,
            what: "an answer to another question",
        }
    }

    fn limits(&self) -> WaitLimits<'a> {
        WaitLimits {
            silence: SILENCE,
            stop: self.stop,
            end: None,
        }
    }

    fn await_answer(&mut self, during: &'static str) -> Result<Answer, NetError> {
        let limits = self.limits();
        let message = self
            .channel
            .receive(&limits)
            .map_err(|error| self.error(error, during))?;
        match Answer::decode(&message) {
            Some(Answer::Refused(reason)) => Err(NetError::Refused {
                server: self.server,
                reason,
            }),
            Some(answer) => Ok(answer),
            None => Err(NetError::Protocol {
                server: self.server,
                what: "an answer that this version does not know",
            }),
        }
    }

    /// Waits for the end of a transfer: the server's time stamps of the first and the last byte.
    fn done(&mut self, expected: u64) -> Result<(u64, u64), NetError> {
        loop {
            match self.await_answer(DURING)? {
                Answer::Progress { .. } => {}
                Answer::Done {
                    bytes,
                    first_at,
                    last_at,
                } if bytes == expected => return Ok((first_at, last_at)),
                _ => return Err(self.unexpected()),
            }
        }
    }

    fn ours(&self, theirs: u64) -> u64 {
        self.clocks.to_ours(theirs).unwrap_or(theirs)
    }

    fn open_data(&self) -> Result<TcpStream, NetError> {
        let server = self.server;
        let connect = |source| NetError::Connect {
            server,
            reason: source,
        };
        let mut stream = TcpStream::connect_timeout(&server, SILENCE).map_err(connect)?;
        timeout::prepare(&stream).map_err(connect)?;
        let mut first = [0; PREAMBLE_LEN + TOKEN_LEN];
        first[..PREAMBLE_LEN].copy_from_slice(&preamble(Role::Data));
        first[PREAMBLE_LEN..].copy_from_slice(&self.token);
        self.limits()
            .write_full(&mut stream, &first)
            .map_err(|ended| self.ended(ended, DURING))?;
        Ok(stream)
    }

    fn write(&self, stream: &mut TcpStream, bytes: u64) -> Result<(), NetError> {
        let limits = WaitLimits {
            silence: WRITE_SILENCE,
            ..self.limits()
        };
        let payload = payload();
        let mut left = bytes;
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(payload.len());
            let part = &payload[..room.min(payload.len())];
            let written = limits.write_some(stream, part);
            left -= written.map_err(|ended| self.ended(ended, DURING))? as u64;
        }
        Ok(())
    }

    fn read(&mut self, stream: &mut TcpStream, bytes: u64) -> Result<(), NetError> {
        let limits = self.limits();
        let mut left = bytes;
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(CHUNK_BYTES);
            let buffer = &mut self.buffer[..room.min(CHUNK_BYTES)];
            let read = limits.read_some(stream, buffer);
            left -= read.map_err(|ended| self.ended(ended, DURING))? as u64;
        }
        Ok(())
    }

    fn error(&self, error: ChannelError, during: &'static str) -> NetError {
        let server = self.server;
        match error {
            ChannelError::Ended(ended) => self.ended(ended, during),
            ChannelError::NotAuthentic => NetError::NotAuthentic(server),
            ChannelError::Garbage(what) => NetError::Protocol { server, what },
            ChannelError::Status(_) => self.unexpected(),
        }
    }

    fn ended(&self, ended: Ended, during: &'static str) -> NetError {
        of_end(ended, self.server, during)
    }
}

const DURING: &str = "during a transfer";

fn of_end(ended: Ended, server: SocketAddr, during: &'static str) -> NetError {
    match ended {
        Ended::Stopped => NetError::Interrupted,
        Ended::Silent => NetError::Vanished {
            server,
            during,
            silence: SILENCE,
        },
        // The kernel has given up, see TCP_USER_TIMEOUT.
        Ended::Broken(source) if source.kind() == io::ErrorKind::TimedOut => NetError::Vanished {
            server,
            during,
            silence: SILENCE,
        },
        Ended::Broken(source) => NetError::Lost {
            server,
            during,
            reason: source,
        },
    }
}

fn of_handshake(
    error: ChannelError,
    server: SocketAddr,
    credentials: Option<&Credentials>,
) -> NetError {
    let protocol = |what| NetError::Protocol { server, what };
    match (error, credentials) {
        (ChannelError::Ended(ended), _) => of_end(ended, server, "during the handshake"),
        (ChannelError::NotAuthentic, _) => NetError::NotAuthentic(server),
        (ChannelError::Garbage(what), _) => protocol(what),
        (ChannelError::Status(Status::KeyWanted), _) => NetError::KeyWanted(server),
        (ChannelError::Status(Status::IsOpen), _) => NetError::IsOpen(server),
        (ChannelError::Status(Status::Busy), _) => NetError::Busy(server),
        (ChannelError::Status(Status::Version), _) => NetError::Version(server),
        (ChannelError::Status(Status::NotAllowed), Some(known)) => NetError::NotAllowed {
            server,
            own: known.own,
        },
        (ChannelError::Status(Status::WrongKey), Some(known)) => NetError::WrongKey {
            server,
            peer: known.identity.peer,
        },
        (ChannelError::Status(_), _) => protocol("a status that does not fit"),
    }
}

/// Connects to the first address of `target` that accepts.
fn connect_any(target: &str) -> Result<(SocketAddr, TcpStream), NetError> {
    let resolve = |reason: io::Error| {
        let target = target.to_owned();
        // Only valid names are resolved.
        match reason.kind() {
            io::ErrorKind::InvalidInput => NetError::Target { target, reason },
            _ => NetError::Resolve { target, reason },
        }
    };
    let mut failure = resolve(io::Error::new(
        io::ErrorKind::NotFound,
        "no address of that name",
    ));
    for server in target
        .to_socket_addrs()
        .map_err(resolve)?
        .take(ADDRESSES_MAX)
    {
        match TcpStream::connect_timeout(&server, SILENCE) {
            Ok(stream) => return Ok((server, stream)),
            Err(source) => {
                failure = NetError::Connect {
                    server,
                    reason: source,
                }
            }
        }
    }
    Err(failure)
}

/// Maximum of addresses tried. Ours: one per address family, and one more.
const ADDRESSES_MAX: usize = 3;
