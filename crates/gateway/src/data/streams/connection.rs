//! One TCP connection beside its stream: reads and writes as far as the other takes.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
};

use keiro_core::{AppId, Instant, PeerId, StreamId, TenantId};
use keiro_linux::epoll::{Epoll, Interest};

use super::super::{
    context::Context,
    epoll_registration::{EpollRegistration, interest},
    quota::QuotaGuard,
    split::{CONNECTED, FlowAddresses},
    token,
};

pub(super) struct Connection {
    pub(super) socket: TcpStream,
    pub(super) peer: PeerId,
    pub(super) stream: StreamId,
    /// Its client is at this gateway's listener.
    pub(super) listener: Option<u64>,
    pub(super) app: AppId,
    /// `None`: it is of a listener or a forward.
    pub(super) split: Option<SplitEnd>,
    pub(super) connecting: Option<Connecting>,
    /// The socket may have something to read, and its stream takes it.
    pub(super) reads: bool,
    /// The socket has said that it will say no more.
    pub(super) read_ended: bool,
    /// The stream has bytes that the socket did not take.
    pub(super) writes: bool,
    pub(super) write_ended: bool,
    /// Since when it is reset or broken: nothing can be written, and what it holds is read.
    pub(super) broken: Option<Instant>,
    /// When something last went through, either way.
    pub(super) moved_at: Instant,
    pub(super) watch: EpollRegistration,
    /// Of the descriptors.
    pub(super) share: Option<QuotaGuard>,
    /// Of the ports of peers' clients that connections to servers may take.
    pub(super) _port: Option<QuotaGuard>,
}

/// An end of a tenant's split connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitEnd {
    pub(super) tenant: TenantId,
    /// Of packets that come from its client or server here.
    pub(super) flow: FlowAddresses,
}

/// A connection to a server that is not there yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connecting {
    pub(super) to: SocketAddr,
    /// When it is given up.
    pub(super) by: Instant,
}

/// What became of one connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Open,
    /// Both directions have ended.
    Ended,
    /// The other side reset it, or it broke, and nothing is left to read.
    Broken,
    /// It takes nothing more, and may have something to read.
    Unwritable,
}

/// Bytes written to one connection in one turn: where a gap of a stream was filled, megabytes wait
/// behind it.
pub(super) const WRITE_PER_TURN: usize = 64 << 10;
impl Connection {
    /// One to a server, that is there and has said nothing yet.
    pub(super) fn new(
        socket: TcpStream,
        peer: PeerId,
        stream: StreamId,
        app: AppId,
        now: Instant,
    ) -> Self {
        Self {
            socket,
            peer,
            stream,
            listener: None,
            app,
            split: None,
            connecting: None,
            reads: true,
            read_ended: false,
            writes: false,
            write_ended: false,
            broken: None,
            moved_at: now,
            watch: EpollRegistration::new(Interest::Read),
            share: None,
            _port: None,
        }
    }

    pub(super) fn read(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Progress {
        if self.connecting.is_some() {
            return Progress::Open;
        }
        if self.read_ended {
            return match self.broken {
                Some(_) => Progress::Broken,
                None => Progress::Open,
            };
        }
        let (endpoint, peer, stream) = (&mut *context.endpoint, self.peer, self.stream);
        let mut left = buffer.len();
        while left > 0 {
            let Some(room) = endpoint.stream_room(peer, stream) else {
                return Progress::Broken;
            };
            if room == 0 {
                // A `Writable` signal follows.
                self.reads = false;
                return Progress::Open;
            }
            // The socket may be ready before the stream signals that it is writable, and that
            // signal is then not repeated.
            self.reads = true;
            let room = room.min(left);
            match self.socket.read(&mut buffer[..room]) {
                Ok(0) if self.broken.is_some() => return Progress::Broken,
                Ok(0) => {
                    self.read_ended = true;
                    endpoint.finish_stream(context.now, peer, stream);
                    return self.progress();
                }
                Ok(count) => {
                    endpoint.write_stream(context.now, peer, stream, &buffer[..count]);
                    self.moved_at = context.now;
                    left -= count;
                    if count < room && self.broken.is_none() {
                        return Progress::Open;
                    }
                }
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && self.broken.is_none() =>
                {
                    return Progress::Open;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Progress::Broken,
            }
        }
        Progress::Open
    }

    pub(super) fn write(&mut self, context: &mut Context<'_>) -> Progress {
        if self.write_ended || self.connecting.is_some() || self.broken.is_some() {
            return Progress::Open;
        }
        let (endpoint, peer, stream) = (&mut *context.endpoint, self.peer, self.stream);
        self.writes = false;
        let mut left = WRITE_PER_TURN;
        while left > 0 {
            let Some((first, second, last)) = endpoint.stream_data(peer, stream) else {
                // The stream has ended both ways before its socket: there is nothing more.
                return Progress::Open;
            };
            let bytes = first.len() + second.len();
            if bytes == 0 && !last {
                return Progress::Open;
            }
            let written = match bytes {
                0 => Ok(0),
                _ => {
                    let first = &first[..first.len().min(left)];
                    let second = &second[..second.len().min(left - first.len())];
                    match second {
                        // Cheaper, and what there is in most cases.
                        [] => self.socket.write(first),
                        _ => self
                            .socket
                            .write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
                    }
                }
            };
            match written {
                Ok(count) => {
                    endpoint.consume_stream(context.now, peer, stream, count);
                    self.moved_at = context.now;
                    left -= count;
                    if last && count == bytes {
                        self.write_ended = true;
                        // It fails if the other side is gone, which the next read shows.
                        let _ = self.socket.shutdown(Shutdown::Write);
                        return self.progress();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.writes = true;
                    return Progress::Open;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Progress::Unwritable,
            }
        }
        // The core signals these bytes once only. The socket is reported as writable and brings the
        // next turn.
        self.writes = true;
        Progress::Open
    }

    /// Informs the client's gateway that the server of a split connection is there.
    pub(super) fn say_connected(&self, context: &mut Context<'_>) {
        let (peer, stream) = (self.peer, self.stream);
        // A new stream has room for a byte; one that is gone needs none.
        let _ = context
            .endpoint
            .write_stream(context.now, peer, stream, &[CONNECTED]);
    }

    pub(super) fn progress(&self) -> Progress {
        if self.read_ended && self.write_ended {
            Progress::Ended
        } else {
            Progress::Open
        }
    }

    pub(super) fn update_interest(&mut self, epoll: &Epoll, number: u64) -> io::Result<()> {
        let reads = self.reads && !self.read_ended;
        let writes = self.writes || self.connecting.is_some();
        let token = token::connection(number);
        let interest = interest(reads, writes);
        self.watch.update(epoll, &self.socket, token, interest)
    }
}
