//! Senders and receivers of messages over a gateway's message socket.

use std::{io, path::Path, thread, time::Duration};

use keiro_control::{
    config::Name,
    message_socket::{
        Role,
        client::{AckReader, ClientError, Connection, MessageReader, MessageWriter},
    },
};
use keiro_lab::traffic::{MessageReceiver, MessageSender, Received};

/// Sends one application's messages. A thread reads the acknowledgements so that they never block sending;
/// arrivals are counted by the receiver.
#[derive(Debug)]
pub(super) struct SocketSender {
    writer: MessageWriter<Connection>,
    next_id: u64,
}

/// Receives one application's messages.
#[derive(Debug)]
pub(super) struct SocketReceiver {
    reader: MessageReader<Connection>,
    connection: Connection,
    timeout: Option<Duration>,
}

impl SocketSender {
    pub(super) fn connect(socket: &Path, app: &Name) -> Result<Self, ClientError> {
        let connection = Connection::unix(socket, Role::Send, app)?;
        let mut acks = AckReader::new(connection.try_clone()?);
        thread::Builder::new()
            .name("acks".into())
            // Ends with the connection, at the latest when the gateway ends.
            .spawn(move || while let Ok(Some(_)) = acks.next_ack() {})?;
        Ok(Self {
            writer: MessageWriter::new(connection),
            next_id: 0,
        })
    }
}

impl MessageSender for SocketSender {
    fn send(&mut self, body: Vec<u8>) -> io::Result<()> {
        self.next_id += 1;
        self.writer.send(self.next_id, &body).map_err(into_io)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.writer.stream().finish_sending()
    }
}

impl SocketReceiver {
    pub(super) fn connect(socket: &Path, app: &Name) -> Result<Self, ClientError> {
        let connection = Connection::unix(socket, Role::Receive, app)?;
        Ok(Self {
            reader: MessageReader::new(connection.try_clone()?),
            connection,
            timeout: None,
        })
    }
}

impl MessageReceiver for SocketReceiver {
    fn receive(&mut self, timeout: Duration) -> io::Result<Received> {
        if self.timeout != Some(timeout) {
            self.connection.set_read_timeout(Some(timeout))?;
            self.timeout = Some(timeout);
        }
        match self.reader.next_message() {
            Ok(Some(message)) => Ok(Received::Message(message.body)),
            Ok(None) => Ok(Received::Ended),
            Err(ClientError::Io(error))
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                Ok(Received::TimedOut)
            }
            Err(error) => Err(into_io(error)),
        }
    }
}

fn into_io(error: ClientError) -> io::Error {
    match error {
        ClientError::Io(error) => error,
        other => io::Error::other(other),
    }
}
