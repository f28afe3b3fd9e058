//! A blocking client of the message socket.
//!
//! Sending and reading acks are separate halves. Give each to a thread of its own: a sender that only
//! writes blocks once unread acks fill the socket.
//!
//! ```no_run
//! # use std::path::Path;
//! # use keiro_control::{config::Name, message_socket::{client::{Connection, AckReader, MessageWriter}, Role}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let app = Name::new("A3")?;
//! let connection = Connection::unix(Path::new("/run/keiro/message.sock"), Role::Send, &app)?;
//! let mut acks = AckReader::new(connection.try_clone()?);
//! let mut messages = MessageWriter::new(connection);
//! messages.send(1, b"a message")?;
//! println!("{:?}", acks.next_ack()?);
//! # Ok(())
//! # }
//! ```

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use super::{
    Ack, AckDecoder, Answer, AnswerDecoder, FramingError, Hello, Message, MessageDecoder,
    RefusalReason, Role, VERSION_MIN, encode_message_header,
};
use crate::config::Name;

/// Why a connection did not come about or broke.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The stream failed.
    #[error("the connection to the gateway failed: {0}")]
    Io(#[from] io::Error),
    /// The gateway closed the connection within a message, an ack or its answer.
    #[error("the gateway closed the connection; `journalctl -u keiro-gateway` may say why")]
    Closed,
    /// The gateway refused the hello.
    #[error("the gateway refused the connection: {text}")]
    Refused {
        /// For programs.
        reason: RefusalReason,
        /// For people.
        text: String,
    },
    /// What came is not of this protocol.
    #[error(transparent)]
    Framing(#[from] FramingError),
}

/// A stream on which the gateway accepted a hello.
#[derive(Debug)]
pub enum Connection {
    /// Over a Unix socket.
    Unix(UnixStream),
    /// Over loopback TCP.
    Tcp(TcpStream),
}

impl Connection {
    /// Connects to a Unix socket and says hello. The answer must come within ten seconds; after
    /// that reads and writes have no time limit.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn unix(path: &Path, role: Role, app: &Name) -> Result<Self, ClientError> {
        let connect = || Ok(Self::Unix(UnixStream::connect(path)?));
        Self::open(connect, role, app)
    }

    /// Connects over TCP and says hello, as [`Connection::unix`] does.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn tcp(address: SocketAddr, role: Role, app: &Name) -> Result<Self, ClientError> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, ANSWER_TIME)?;
            // Messages are written whole; waiting for more would only delay them.
            stream.set_nodelay(true)?;
            Ok(Self::Tcp(stream))
        };
        Self::open(connect, role, app)
    }

    /// A second handle on the same stream.
    ///
    /// # Errors
    /// The system has no more file descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// Limits how long a read waits; `None`: for ever.
    ///
    /// # Errors
    /// A limit of zero.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(limit),
            Self::Tcp(stream) => stream.set_read_timeout(limit),
        }
    }

    /// Says that no more messages come; acks still do.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn finish_sending(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    /// Ends the connection for all handles: a read that waits returns.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        }
    }

    /// Says hello in the newest version that the gateway speaks. One of before may still run after an upgrade.
    fn open(
        connect: impl Fn() -> io::Result<Self>,
        role: Role,
        app: &Name,
    ) -> Result<Self, ClientError> {
        let mut hello = Hello::new(role, app.clone());
        loop {
            let mut connection = connect()?;
            connection.set_read_timeout(Some(ANSWER_TIME))?;
            match say_hello(&mut connection, &hello) {
                Ok(()) => {
                    connection.set_read_timeout(None)?;
                    return Ok(connection);
                }
                Err(ClientError::Refused {
                    reason: RefusalReason::Version,
                    ..
                }) if hello.version > VERSION_MIN => hello.version -= 1,
                Err(error) => return Err(error),
            }
        }
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write_vectored(slices),
            Self::Tcp(stream) => stream.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.flush(),
            Self::Tcp(stream) => stream.flush(),
        }
    }
}

/// Says hello on a stream and waits for the answer, reading nothing beyond it.
///
/// # Errors
/// See [`ClientError`].
pub fn say_hello<S: Read + Write>(stream: &mut S, hello: &Hello) -> Result<(), ClientError> {
    stream.write_all(&hello.encode())?;
    stream.flush()?;
    let mut decoder = AnswerDecoder::default();
    loop {
        let mut bytes = vec![0; decoder.wanted()];
        stream.read_exact(&mut bytes).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => ClientError::Closed,
            _ => ClientError::Io(e),
        })?;
        match decoder.decode(&mut bytes.as_slice())? {
            Some(Answer::Accepted) => return Ok(()),
            Some(Answer::Refused { reason, text }) => {
                return Err(ClientError::Refused { reason, text });
            }
            None => {}
        }
    }
}

/// Hands messages over.
#[derive(Debug)]
pub struct MessageWriter<W> {
    stream: W,
}

impl<W: Write> MessageWriter<W> {
    /// On a stream after its hello.
    pub fn new(stream: W) -> Self {
        Self { stream }
    }

    /// Hands one message over; waits while the gateway takes none.
    ///
    /// # Errors
    /// The body is empty or too long, and nothing was sent; or the stream failed.
    pub fn send(&mut self, id: u64, body: &[u8]) -> Result<(), ClientError> {
        let header = encode_message_header(id, body.len())?;
        let mut slices = [io::IoSlice::new(&header), io::IoSlice::new(body)];
        let mut rest: &mut [io::IoSlice<'_>] = &mut slices;
        while !rest.is_empty() {
            match self.stream.write_vectored(rest) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(n) => io::IoSlice::advance_slices(&mut rest, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(self.stream.flush()?)
    }

    /// The stream, for example to finish sending.
    pub fn stream(&self) -> &W {
        &self.stream
    }
}

#[derive(Debug)]
pub struct AckReader<R> {
    input: Buffered<R>,
    decoder: AckDecoder,
}

impl<R: Read> AckReader<R> {
    /// On a stream after its hello.
    pub fn new(stream: R) -> Self {
        Self {
            input: Buffered::new(stream),
            decoder: AckDecoder::default(),
        }
    }

    /// Waits for the next ack; `None`: the gateway closed the connection. A stream's time-out is
    /// a [`ClientError::Io`] after which it may be called again; nothing is lost.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn next_ack(&mut self) -> Result<Option<Ack>, ClientError> {
        loop {
            if let Some(ack) = self.input.decode(|input| self.decoder.decode(input))? {
                return Ok(Some(ack));
            }
            if !self.input.refill()? {
                let whole = self.decoder.is_between_acks();
                return if whole {
                    Ok(None)
                } else {
                    Err(ClientError::Closed)
                };
            }
        }
    }
}

#[derive(Debug)]
pub struct MessageReader<R> {
    input: Buffered<R>,
    decoder: MessageDecoder,
}

impl<R: Read> MessageReader<R> {
    /// On a stream after its hello.
    pub fn new(stream: R) -> Self {
        Self {
            input: Buffered::new(stream),
            decoder: MessageDecoder::default(),
        }
    }

    /// Waits for the next message; `None`: the gateway closed the connection. A stream's
    /// time-out is a [`ClientError::Io`] after which it may be called again; nothing is lost.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn next_message(&mut self) -> Result<Option<Message>, ClientError> {
        loop {
            if let Some(message) = self.input.decode(|input| self.decoder.decode(input))? {
                return Ok(Some(message));
            }
            if !self.input.refill()? {
                let whole = self.decoder.is_between_messages();
                return if whole {
                    Ok(None)
                } else {
                    Err(ClientError::Closed)
                };
            }
        }
    }
}

/// A stream and what was read of it and not yet decoded.
#[derive(Debug)]
struct Buffered<R> {
    stream: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> Buffered<R> {
    fn new(stream: R) -> Self {
        Self {
            stream,
            buffer: vec![0; READ_BYTES],
            start: 0,
            end: 0,
        }
    }

    fn decode<T>(
        &mut self,
        decode: impl FnOnce(&mut &[u8]) -> Result<Option<T>, FramingError>,
    ) -> Result<Option<T>, FramingError> {
        let mut input = &self.buffer[self.start..self.end];
        let decoded = decode(&mut input);
        self.start = self.end - input.len();
        decoded
    }

    /// Reads once; whether the stream goes on. Everything read before must be decoded.
    fn refill(&mut self) -> io::Result<bool> {
        loop {
            match self.stream.read(&mut self.buffer) {
                Ok(n) => {
                    (self.start, self.end) = (0, n);
                    return Ok(n > 0);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// Bytes asked of the stream at once. Ours: a large message takes few reads.
const READ_BYTES: usize = 64 << 10;

/// How long the gateway may take to answer a hello. Ours: it does nothing else for it than look
/// up a name.
const ANSWER_TIME: Duration = Duration::from_secs(10);
