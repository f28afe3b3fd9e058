//! Messages over Keiro: through the message socket of a gateway that runs in a host.

use std::{
    io,
    net::{Shutdown, SocketAddr},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use keiro_control::{
    config::Name,
    message_socket::{
        Outcome, Role,
        client::{AckReader, ClientError, Connection, MessageReader, MessageWriter},
    },
};

use super::{MessageReceiver, MessageSender, Received};
use crate::lab::{Host, LabError, lock};

/// The message socket of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageSocket {
    /// A Unix socket; its path is the machine's, not the host's.
    Unix(PathBuf),
    /// Loopback TCP inside the host.
    Tcp(SocketAddr),
}

/// Why a gateway's message socket could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The connection failed, or the gateway refused it.
    #[error("host `{host}`, application `{app}`: {source}")]
    Client {
        host: String,
        app: String,
        /// What the client says.
        source: ClientError,
    },
    /// The host cannot be entered.
    #[error(transparent)]
    Lab(#[from] LabError),
}

/// Acknowledgements of the gateway, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// The peer gateway has them.
    pub delivered: u64,
    /// Expired at the end of their lifetime.
    pub expired: u64,
    /// Not accepted by the gateway or the peer.
    pub refused: u64,
    /// Perhaps delivered: the peer restarted, or one of the gateways stopped.
    pub unknown: u64,
}

/// Hands messages of one application to a gateway.
#[derive(Debug)]
pub struct GatewaySender {
    writer: MessageWriter<Connection>,
    next_id: u64,
    outcomes: Arc<Mutex<Outcomes>>,
    /// Reads acknowledgements continuously, because the gateway would have to keep them. `None` once joined.
    acks: Option<JoinHandle<()>>,
}

/// Gets messages of one application from a gateway.
#[derive(Debug)]
pub struct GatewayReceiver {
    reader: MessageReader<Connection>,
    /// The same stream, to set its timeout.
    stream: Connection,
    timeout: Option<Duration>,
}

impl MessageSocket {
    /// Connects as a sender of `app`.
    ///
    /// # Errors
    /// See [`SocketError`].
    pub fn sender(&self, host: &Host, app: &Name) -> Result<GatewaySender, SocketError> {
        let connection = self.connect(host, app, Role::Send)?;
        GatewaySender::new(connection).map_err(|error| client_error(host, app, error.into()))
    }

    /// Connects as a receiver of `app`.
    ///
    /// # Errors
    /// See [`SocketError`].
    pub fn receiver(&self, host: &Host, app: &Name) -> Result<GatewayReceiver, SocketError> {
        let connection = self.connect(host, app, Role::Receive)?;
        GatewayReceiver::new(connection).map_err(|error| client_error(host, app, error.into()))
    }

    fn connect(&self, host: &Host, app: &Name, role: Role) -> Result<Connection, SocketError> {
        let connected = host.run(|| match self {
            Self::Unix(path) => Connection::unix(path, role, app),
            Self::Tcp(address) => Connection::tcp(*address, role, app),
        });
        let connected = connected.map_err(LabError::from)?;
        connected.map_err(|error| client_error(host, app, error))
    }
}

impl GatewaySender {
    fn new(connection: Connection) -> io::Result<Self> {
        let mut reader = AckReader::new(connection.try_clone()?);
        let outcomes = Arc::new(Mutex::new(Outcomes::default()));
        let counting = Arc::clone(&outcomes);
        let acks = thread::Builder::new().name("acks".into()).spawn(move || {
            // An error ends the connection, which the next message will notice.
            while let Ok(Some(ack)) = reader.next_ack() {
                lock(&counting).count(ack.outcome);
            }
        })?;
        Ok(Self {
            writer: MessageWriter::new(connection),
            next_id: 0,
            outcomes,
            acks: Some(acks),
        })
    }

    /// A view of the acknowledgements that outlives the sender.
    pub fn outcomes(&self) -> Arc<Mutex<Outcomes>> {
        Arc::clone(&self.outcomes)
    }
}

impl Outcomes {
    fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Delivered => self.delivered += 1,
            Outcome::Expired => self.expired += 1,
            Outcome::Refused(_) => self.refused += 1,
            Outcome::Unknown(_) => self.unknown += 1,
        }
    }
}

impl MessageSender for GatewaySender {
    fn send(&mut self, body: Vec<u8>) -> io::Result<()> {
        let id = self.next_id;
        self.next_id += 1;
        self.writer.send(id, &body).map_err(io_error)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.writer.stream().finish_sending()
    }
}

impl Drop for GatewaySender {
    fn drop(&mut self) {
        // Fails only if the gateway has closed it already; the thread ends in either case.
        let _ = self.writer.stream().shutdown(Shutdown::Both);
        if let Some(acks) = self.acks.take() {
            let _ = acks.join();
        }
    }
}

impl GatewayReceiver {
    fn new(connection: Connection) -> io::Result<Self> {
        Ok(Self {
            stream: connection.try_clone()?,
            reader: MessageReader::new(connection),
            timeout: None,
        })
    }
}

impl MessageReceiver for GatewayReceiver {
    fn receive(&mut self, timeout: Duration) -> io::Result<Received> {
        if self.timeout != Some(timeout) {
            self.stream.set_read_timeout(Some(timeout))?;
            self.timeout = Some(timeout);
        }
        match self.reader.next_message().map_err(io_error) {
            Ok(Some(message)) => Ok(Received::Message(message.body)),
            Ok(None) => Ok(Received::Ended),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(Received::TimedOut),
                _ => Err(error),
            },
        }
    }
}

fn client_error(host: &Host, app: &Name, source: ClientError) -> SocketError {
    SocketError::Client {
        host: host.name().to_owned(),
        app: app.to_string(),
        source,
    }
}

fn io_error(error: ClientError) -> io::Error {
    match error {
        ClientError::Io(error) => error,
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    use keiro_control::message_socket::{Ack, VERSION, encode_message_header};

    use super::*;

    #[test]
    fn messages_are_numbered_and_acks_are_counted() {
        let (ours, mut gateway) = UnixStream::pair().unwrap();
        let mut sender = GatewaySender::new(Connection::Unix(ours)).unwrap();
        let outcomes = sender.outcomes();
        for (id, outcome) in [Outcome::Delivered, Outcome::Expired]
            .into_iter()
            .enumerate()
        {
            sender.send(vec![id as u8; 3]).unwrap();
            let mut frame = [0; 15];
            gateway.read_exact(&mut frame).unwrap();
            assert_eq!(frame[..4], 3_u32.to_be_bytes());
            assert_eq!(frame[4..12], (id as u64).to_be_bytes());
            assert_eq!(frame[12..], [id as u8; 3]);
            let ack = Ack {
                id: id as u64,
                outcome,
                delay: Duration::ZERO,
            };
            gateway.write_all(&ack.encode(VERSION)).unwrap();
        }
        sender.finish().unwrap();
        assert_eq!(gateway.read(&mut [0; 1]).unwrap(), 0);
        drop(gateway);
        // The thread has read everything that was sent before the end.
        sender.acks.take().unwrap().join().unwrap();
        let expected = Outcomes {
            delivered: 1,
            expired: 1,
            refused: 0,
            unknown: 0,
        };
        assert_eq!(*lock(&outcomes), expected);
    }

    #[test]
    fn messages_are_received_then_the_end() {
        let (ours, mut gateway) = UnixStream::pair().unwrap();
        let mut receiver = GatewayReceiver::new(Connection::Unix(ours)).unwrap();
        let short = Duration::from_millis(5);
        assert_eq!(receiver.receive(short).unwrap(), Received::TimedOut);
        gateway
            .write_all(&encode_message_header(9, 2).unwrap())
            .unwrap();
        assert_eq!(receiver.receive(short).unwrap(), Received::TimedOut);
        gateway.write_all(&[1, 2]).unwrap();
        let wait = Duration::from_secs(10);
        assert_eq!(
            receiver.receive(wait).unwrap(),
            Received::Message(vec![1, 2])
        );
        drop(gateway);
        assert_eq!(receiver.receive(wait).unwrap(), Received::Ended);
    }
}
