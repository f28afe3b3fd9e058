//! The server: echoes every message.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use keiro_linux::epoll::{Epoll, Interest, ReadyList, Waker};
use keiro_units::ByteCount;
use socket2::{Domain, Socket, Type};

use super::message::is_message;
use crate::{
    lab::{Host, LabError},
    traffic::{TrafficError, exchange::be_punctual},
};

/// Maximum of connections; further ones are closed at once. Ours: far beyond any experiment here.
pub const CONNECTIONS_MAX: usize = 20_000;

/// A server in a host, stopped when dropped.
///
/// A client that sends anything but messages, or closes, is disconnected.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    waker: Waker,
}

impl Server {
    /// Listens at `address` of `host`; port 0 lets the kernel choose one. Messages are `message` bytes long.
    /// `congestion` is the server's congestion control, `None` the host's default. It runs on `cpu`, counted
    /// from zero, `None` for any.
    ///
    /// # Errors
    /// [`TrafficError::Connect`] with the address that is not available.
    pub fn start(
        host: &Host,
        address: SocketAddr,
        message: ByteCount,
        congestion: Option<&str>,
        cpu: Option<usize>,
    ) -> Result<Self, TrafficError> {
        let to = address;
        let listener = host
            .run(|| listen(address, congestion))
            .map_err(LabError::from)?
            .map_err(|source| TrafficError::Connect { to, source })?;
        Self::serve(listener, address, message, cpu)
    }

    /// As [`start`](Self::start), in the network of this process.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_here(address: SocketAddr, message: ByteCount) -> Result<Self, TrafficError> {
        let to = address;
        let listener =
            listen(address, None).map_err(|source| TrafficError::Connect { to, source })?;
        Self::serve(listener, address, message, None)
    }

    fn serve(
        listener: Socket,
        address: SocketAddr,
        message: ByteCount,
        cpu: Option<usize>,
    ) -> Result<Self, TrafficError> {
        let failed = |source| TrafficError::Connect {
            to: address,
            source,
        };
        let bound = listener.local_addr().map_err(failed)?.as_socket();
        let address = bound.ok_or_else(|| failed(io::ErrorKind::Unsupported.into()))?;
        let stop = Arc::new(Stop {
            asked: AtomicBool::new(false),
            waker: Waker::new().map_err(TrafficError::System)?,
        });
        let length = usize::try_from(message.get()).unwrap_or(usize::MAX);
        let mut serving =
            Serving::new(listener, length, Arc::clone(&stop)).map_err(TrafficError::System)?;
        let thread = thread::Builder::new()
            .name("transactions-server".into())
            .spawn(move || serving.run(cpu))
            .map_err(TrafficError::System)?;
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops, and returns whether it served until then.
    ///
    /// # Errors
    /// [`TrafficError::System`] with the error that ended it.
    pub fn stop(mut self) -> Result<(), TrafficError> {
        self.join().map_err(TrafficError::System)
    }

    fn join(&mut self) -> io::Result<()> {
        self.stop.asked.store(true, Ordering::Release);
        self.stop.waker.wake();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the server's thread panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

fn listen(address: SocketAddr, congestion: Option<&str>) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if let Some(congestion) = congestion {
        // Accepted connections inherit it.
        socket.set_tcp_congestion(congestion.as_bytes())?;
    }
    socket.bind(&address.into())?;
    socket.listen(i32::from(i16::MAX))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// Maximum of ready connections per wait; ours, so that none waits long for others.
const READY_MAX: usize = 64;

struct Serving {
    listener: Socket,
    epoll: Epoll,
    stop: Arc<Stop>,
    length: usize,
    /// By token; `None` if closed.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
}

struct Connection {
    stream: TcpStream,
    message: Vec<u8>,
    filled: usize,
    /// Bytes of a complete message that have been sent back; `None` while it is being received.
    sent: Option<usize>,
    /// The epoll set waits for room instead of input.
    waits_for_room: bool,
}

impl Serving {
    fn new(listener: Socket, length: usize, stop: Arc<Stop>) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, Interest::Read)?;
        epoll.add(&stop.waker, STOP, Interest::Read)?;
        Ok(Self {
            listener,
            epoll,
            stop,
            length,
            connections: Vec::new(),
            free: Vec::new(),
        })
    }

    fn run(&mut self, cpu: Option<usize>) -> io::Result<()> {
        be_punctual(cpu);
        let mut ready = ReadyList::new(READY_MAX);
        while !self.stop.asked.load(Ordering::Acquire) {
            self.epoll.wait(&mut ready, None)?;
            for event in ready.iter() {
                match event.token {
                    LISTENER => self.accept()?,
                    STOP => self.stop.waker.reset(),
                    token => self.serve(token as usize),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let (socket, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The client has disconnected meanwhile.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            let stream = TcpStream::from(socket);
            if self.connections.len() - self.free.len() >= CONNECTIONS_MAX {
                continue;
            }
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let token = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            self.epoll.add(&stream, token as u64, Interest::Read)?;
            self.connections[token] = Some(Connection {
                stream,
                message: vec![0; self.length],
                filled: 0,
                sent: None,
                waits_for_room: false,
            });
        }
    }

    fn serve(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token).and_then(Option::as_mut) else {
            return;
        };
        let mut served = connection.echo();
        let is_full = connection.sent.is_some();
        if served.is_ok() && is_full != connection.waits_for_room {
            // While a client does not read, nothing is read from it.
            let interest = if is_full {
                Interest::Write
            } else {
                Interest::Read
            };
            connection.waits_for_room = is_full;
            served = self
                .epoll
                .modify(&connection.stream, token as u64, interest);
        }
        if served.is_err() {
            // Closing the descriptor removes it from the set.
            self.connections[token] = None;
            self.free.push(token);
        }
    }
}

impl Connection {
    /// Echoes a message that has arrived completely.
    ///
    /// # Errors
    /// Any reason to close the connection.
    fn echo(&mut self) -> io::Result<()> {
        if self.sent.is_some() {
            return self.send_back();
        }
        loop {
            match self.stream.read(&mut self.message[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if self.filled == self.message.len() {
                if !is_message(&self.message) {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                self.filled = 0;
                self.sent = Some(0);
                return self.send_back();
            }
        }
    }

    /// Sends as much of the message as there is room for.
    ///
    /// # Errors
    /// Any reason to close the connection.
    fn send_back(&mut self) -> io::Result<()> {
        while let Some(sent) = self.sent.filter(|sent| *sent < self.message.len()) {
            match self.stream.write(&self.message[sent..]) {
                Ok(written) => self.sent = Some(sent + written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.sent = None;
        Ok(())
    }
}
