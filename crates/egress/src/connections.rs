//! Sockets for the speaker: listeners, connections, and send buffers.
//!
//! The speaker decides what is sent and when to connect. All sockets are in one `epoll` set and
//! never block. What a neighbour does not read stays in the speaker as a set of destinations, so
//! that a slow neighbour costs no memory here.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
};

use keiro_bgp::{
    rib::NeighbourId,
    speaker::{Action, ConnectionId, Direction, Input, Speaker},
};
use keiro_linux::{
    bgp_socket::{self, Md5Key, Options},
    epoll::{Epoll, Interest},
    tcp::Progress,
};

use crate::config::Neighbour;

pub struct Connections {
    listeners: Vec<TcpListener>,
    /// By number; `None`: the neighbour was removed.
    neighbours: Vec<Option<Known>>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// An accepted connection on which the speaker has not decided yet.
    offered: Option<(NeighbourId, TcpStream)>,
    buffer: Vec<u8>,
    /// Connections from addresses that belong to no neighbour.
    pub unknown_connections: u64,
}

/// The socket options of a neighbour.
struct Known {
    address: IpAddr,
    port: u16,
    options: Options,
}

struct Connection {
    stream: TcpStream,
    connecting: bool,
    out: Vec<u8>,
    sent: usize,
    /// The socket's send buffer is full.
    blocked: bool,
    /// The socket is registered for output too.
    waits: bool,
}

/// The meaning of an `epoll` token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Listener(usize),
    Connection(ConnectionId),
}

impl Connections {
    /// Opens the listeners with the TCP-MD5 keys of all neighbours.
    ///
    /// # Errors
    /// A listener cannot be opened; the text says what to try.
    pub fn open<'a>(
        epoll: &Epoll,
        listen: &[SocketAddr],
        neighbours: impl IntoIterator<Item = &'a Neighbour>,
    ) -> Result<Self, String> {
        let neighbours: Vec<_> = neighbours.into_iter().map(Known::of).map(Some).collect();
        let keys: Vec<(IpAddr, Md5Key)> = neighbours
            .iter()
            .flatten()
            .filter_map(|known| Some((known.address, known.options.md5.clone()?)))
            .collect();
        let mut listeners = Vec::new();
        for (number, address) in listen.iter().enumerate() {
            let listener = bgp_socket::listen(*address, &keys)
                .map_err(|error| listen_hint(*address, &error))?;
            let token = Token::Listener(number).number();
            epoll
                .add(&listener, token, Interest::Read)
                .map_err(|error| format!("epoll: {error}"))?;
            listeners.push(listener);
        }
        Ok(Self {
            listeners,
            neighbours,
            connections: BTreeMap::new(),
            offered: None,
            buffer: vec![0; READ_BYTES],
            unknown_connections: 0,
        })
    }

    /// Changes the TCP-MD5 keys of neighbours. Existing connections stay.
    ///
    /// # Errors
    /// The kernel has no TCP-MD5; the text says what to try.
    pub fn sign<'a>(
        &self,
        neighbours: impl IntoIterator<Item = &'a Neighbour>,
    ) -> Result<(), String> {
        for neighbour in neighbours {
            for listener in &self.listeners {
                let key = neighbour.md5.as_ref();
                bgp_socket::set_listener_key(listener, neighbour.address, key).map_err(
                    |error| {
                        let address = neighbour.address;
                        format!(
                            "connections of {address} cannot be signed: {}",
                            hint(&error)
                        )
                    },
                )?;
            }
        }
        Ok(())
    }

    /// Replaces or removes a neighbour that has no connection.
    pub fn set(&mut self, id: NeighbourId, neighbour: Option<&Neighbour>) {
        let place = usize::from(id.0);
        if let (None, Some(Some(before))) = (neighbour, self.neighbours.get(place)) {
            for listener in &self.listeners {
                // A key that stays behind belongs to an address without a neighbour.
                let _ = bgp_socket::set_listener_key(listener, before.address, None);
            }
        }
        if place >= self.neighbours.len() {
            self.neighbours.resize_with(place + 1, || None);
        }
        self.neighbours[place] = neighbour.map(Known::of);
    }

    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.listeners.iter();
        listeners.filter_map(|l| l.local_addr().ok()).collect()
    }

    /// Handles a ready descriptor; inputs for the speaker go to `on_input`.
    pub fn on_ready(
        &mut self,
        token: Token,
        readable: bool,
        writable: bool,
        on_input: &mut dyn FnMut(Input),
    ) {
        match token {
            Token::Listener(number) => self.accept(number, on_input),
            Token::Connection(id) => {
                let Some(connection) = self.connections.get_mut(&id) else {
                    return;
                };
                if connection.connecting && (writable || readable) {
                    self.finish_connecting(id, on_input);
                } else {
                    if writable {
                        connection.blocked = false;
                    }
                    if readable {
                        self.read(id, on_input);
                    }
                }
            }
        }
    }

    /// Carries out an action of the speaker.
    pub fn carry_out(
        &mut self,
        epoll: &Epoll,
        speaker: &mut Speaker,
        action: Action,
        on_input: &mut dyn FnMut(Input),
    ) {
        match action {
            Action::Connect(id) => self.connect(epoll, id, on_input),
            Action::Accept(neighbour) => {
                let id = ConnectionId::new(neighbour, Direction::Incoming);
                let offered = self.offered.take();
                let Some((_, stream)) = offered.filter(|(from, _)| *from == neighbour) else {
                    return on_input(Input::Disconnected(id));
                };
                let local = local_of(&stream);
                match self.add(epoll, id, stream, false) {
                    Ok(()) => on_input(Input::Connected(id, local)),
                    Err(_) => on_input(Input::Disconnected(id)),
                }
            }
            Action::Refuse(id) => {
                self.offered.take_if(|(of, _)| *of == id);
            }
            Action::Close(id) => {
                if let Some(mut connection) = self.connections.remove(&id) {
                    connection.fill(speaker, id);
                    // Best effort: the neighbour notices the closed connection anyway.
                    let _ = connection.write();
                }
            }
        }
    }

    /// Sends all pending output.
    pub fn transmit(
        &mut self,
        epoll: &Epoll,
        speaker: &mut Speaker,
        on_input: &mut dyn FnMut(Input),
    ) {
        let mut broken = Vec::new();
        for (&id, connection) in &mut self.connections {
            while !connection.connecting && !connection.blocked {
                connection.fill(speaker, id);
                if connection.out.is_empty() {
                    break;
                }
                if connection.write().is_err() {
                    broken.push(id);
                    break;
                }
            }
            let wanted = connection.connecting || connection.blocked;
            if wanted != connection.waits {
                let interest = match wanted {
                    true => Interest::ReadWrite,
                    false => Interest::Read,
                };
                // The descriptor is registered; a failure shows as a silent session.
                let token = Token::Connection(id).number();
                let _ = epoll.modify(&connection.stream, token, interest);
                connection.waits = wanted;
            }
        }
        for id in broken {
            self.connections.remove(&id);
            on_input(Input::Disconnected(id));
        }
    }

    /// Neighbours for which there is something to send.
    pub fn unsent(&self, speaker: &Speaker) -> impl Iterator<Item = NeighbourId> {
        let all = self.connections.iter();
        all.filter(|(id, connection)| !connection.out.is_empty() || speaker.has_output(**id))
            .map(|(id, _)| id.neighbour)
    }

    fn accept(&mut self, number: usize, on_input: &mut dyn FnMut(Input)) {
        // One at a time: the speaker must decide before the next is accepted.
        let Some(Ok((stream, remote))) = self.listeners.get(number).map(TcpListener::accept) else {
            return;
        };
        let mut known = self.neighbours.iter().enumerate();
        let found = known.find_map(|(place, known)| {
            let known = known.as_ref()?;
            (known.address == remote.ip()).then_some((place, &known.options))
        });
        let Some((place, options)) = found else {
            self.unknown_connections += 1;
            return;
        };
        if let Err(error) = bgp_socket::prepare_accepted(&stream, options) {
            tracing::warn!(%error, %remote, "a connection cannot be used");
            return;
        }
        let id = NeighbourId(place as u16);
        self.offered = Some((id, stream));
        on_input(Input::IncomingConnection(id));
    }

    fn connect(&mut self, epoll: &Epoll, neighbour: NeighbourId, on_input: &mut dyn FnMut(Input)) {
        let id = ConnectionId::new(neighbour, Direction::Outgoing);
        let Some(known) = &self.neighbours[usize::from(neighbour.0)] else {
            return on_input(Input::Disconnected(id));
        };
        let to = SocketAddr::new(known.address, known.port);
        let begun = bgp_socket::connect(to, &known.options).and_then(|(stream, progress)| {
            let connecting = matches!(progress, Progress::Waits);
            let local = local_of(&stream);
            self.add(epoll, id, stream, connecting)?;
            Ok((connecting, local))
        });
        match begun {
            Ok((true, _)) => {}
            Ok((false, local)) => on_input(Input::Connected(id, local)),
            Err(error) => {
                tracing::debug!(%to, %error, "cannot connect");
                on_input(Input::Disconnected(id));
            }
        }
    }

    fn add(
        &mut self,
        epoll: &Epoll,
        id: ConnectionId,
        stream: TcpStream,
        connecting: bool,
    ) -> io::Result<()> {
        let interest = match connecting {
            true => Interest::ReadWrite,
            false => Interest::Read,
        };
        epoll.add(&stream, Token::Connection(id).number(), interest)?;
        let connection = Connection {
            stream,
            connecting,
            out: Vec::new(),
            sent: 0,
            blocked: false,
            waits: connecting,
        };
        self.connections.insert(id, connection);
        Ok(())
    }

    fn finish_connecting(&mut self, id: ConnectionId, on_input: &mut dyn FnMut(Input)) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let failed = match connection.stream.take_error() {
            Ok(None) => None,
            Ok(Some(error)) | Err(error) => Some(error),
        };
        match failed {
            None => {
                connection.connecting = false;
                let local = local_of(&connection.stream);
                on_input(Input::Connected(id, local));
            }
            Some(error) => {
                let known = self.neighbours[usize::from(id.neighbour.0)].as_ref();
                let to = known.map(|known| known.address);
                tracing::debug!(?to, %error, "cannot connect");
                self.connections.remove(&id);
                on_input(Input::Disconnected(id));
            }
        }
    }

    fn read(&mut self, id: ConnectionId, on_input: &mut dyn FnMut(Input)) {
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(&id) else {
                return;
            };
            match connection.stream.read(&mut self.buffer) {
                Ok(0) => {}
                Ok(count) => {
                    on_input(Input::Received(id, self.buffer[..count].to_vec()));
                    if count < self.buffer.len() {
                        return;
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => {}
            }
            self.connections.remove(&id);
            return on_input(Input::Disconnected(id));
        }
    }
}

impl Known {
    fn of(neighbour: &Neighbour) -> Self {
        Self {
            address: neighbour.address,
            port: neighbour.port,
            options: Options {
                md5: neighbour.md5.clone(),
                one_hop: neighbour.one_hop,
                local: neighbour.local,
                unsent_max: (!neighbour.hold_time.is_zero()).then_some(neighbour.hold_time),
            },
        }
    }
}

impl Connection {
    /// Refills the send buffer from the speaker.
    fn fill(&mut self, speaker: &mut Speaker, id: ConnectionId) {
        if self.out.is_empty() {
            speaker.transmit(id, &mut self.out, SEND_BYTES);
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }
}

impl Token {
    /// The token for `epoll`, at least 2⁴⁸.
    pub fn number(self) -> u64 {
        match self {
            Self::Listener(number) => LISTENER | number as u64,
            Self::Connection(ConnectionId {
                neighbour: id,
                direction,
            }) => CONNECTION | u64::from(id.0) << 1 | u64::from(direction == Direction::Incoming),
        }
    }

    /// The inverse of [`number`](Self::number); `None`: a token of another component.
    pub fn of(number: u64) -> Option<Self> {
        let low = number & 0xffff_ffff;
        match number & !0xffff_ffff {
            LISTENER => Some(Self::Listener(usize::try_from(low).ok()?)),
            CONNECTION => {
                let direction = match low & 1 {
                    0 => Direction::Outgoing,
                    _ => Direction::Incoming,
                };
                Some(Self::Connection(ConnectionId::new(
                    NeighbourId((low >> 1) as u16),
                    direction,
                )))
            }
            _ => None,
        }
    }
}

fn local_of(stream: &TcpStream) -> IpAddr {
    match stream.local_addr() {
        Ok(address) => address.ip(),
        // The connection is broken already, which shows at its first use.
        Err(_) => IpAddr::from([0; 4]),
    }
}

fn hint(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(ENOPROTOOPT) => {
            "this kernel has no TCP-MD5 (CONFIG_TCP_MD5SIG); remove `md5_file`".to_owned()
        }
        _ => error.to_string(),
    }
}

fn listen_hint(address: SocketAddr, error: &io::Error) -> String {
    let hint = match error.kind() {
        ErrorKind::AddrInUse => {
            let port = address.port();
            format!("`ss -tlpn sport = :{port}` shows who listens there; stop that")
        }
        ErrorKind::AddrNotAvailable => "this machine does not have that address".to_owned(),
        ErrorKind::PermissionDenied => {
            "a port below 1024 needs CAP_NET_BIND_SERVICE or root".to_owned()
        }
        _ if error.raw_os_error() == Some(ENOPROTOOPT) => hint(error),
        _ => "see `listen` in the configuration".to_owned(),
    };
    format!("cannot listen at {address}: {error}; {hint}")
}

/// `ENOPROTOOPT` (errno(3)).
const ENOPROTOOPT: i32 = 92;
const LISTENER: u64 = 1 << 48;
const CONNECTION: u64 = 2 << 48;
/// Read at once. Ours.
const READ_BYTES: usize = 65_536;
/// Reads of one neighbour before the others' turn. Ours.
const READS_PER_TURN: usize = 4;
/// Bytes passed to the kernel at once, which also bounds the send buffer. Ours.
const SEND_BYTES: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoll_tokens_round_trip() {
        for token in [
            Token::Listener(3),
            Token::Connection(ConnectionId::new(NeighbourId(0), Direction::Outgoing)),
            Token::Connection(ConnectionId::new(NeighbourId(65_535), Direction::Incoming)),
        ] {
            assert_eq!(Token::of(token.number()), Some(token));
        }
        assert_eq!(Token::of(7), None);
    }
}
