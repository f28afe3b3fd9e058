//! The control connection: length-prefixed messages, encrypted unless the server is open.
//!
//! Noise_IK_25519_ChaChaPoly_BLAKE2s (revision 34) with the static keys of gateways and a prologue of its
//! own, so that no message can be replayed to the overlay or from it.

use std::net::TcpStream;

use keiro_control::{PrivateKey, PublicKey};
use snow::{Builder, HandshakeState, TransportState, params::NoiseParams};

use super::{
    timeout::{Ended, WaitLimits},
    wire::{MESSAGE_BYTES_MAX, Role, Status, preamble},
};

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
/// Binds the handshake to this protocol and its version.
const PROLOGUE: &[u8] = b"keiro measure 1";
/// Ephemeral key, encrypted static key, empty payload.
const INITIATION_LEN: usize = 32 + 48 + 16;
/// Ephemeral key, empty payload.
const RESPONSE_LEN: usize = 32 + 16;
/// The authentication tag of a message.
const TAG_LEN: usize = 16;

/// Our private key and the server's public key.
#[derive(Clone, Debug)]
pub struct Identity {
    pub private: PrivateKey,
    /// The server's public key.
    pub peer: PublicKey,
}

/// Messages over one TCP connection.
pub(crate) struct Channel {
    stream: TcpStream,
    cipher: Option<Box<TransportState>>,
    buffer: Vec<u8>,
}

/// Errors of opening or using a channel.
#[derive(Debug)]
pub(crate) enum ChannelError {
    /// Reading or writing failed.
    Ended(Ended),
    /// The server's reason for refusing; never [`Status::Welcome`].
    Status(Status),
    /// A message was altered or forged.
    NotAuthentic,
    /// A message violates the protocol.
    Garbage(&'static str),
}

impl From<Ended> for ChannelError {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

impl Channel {
    /// Opens the client's end of a new connection.
    pub(crate) fn open(
        mut stream: TcpStream,
        identity: Option<&Identity>,
        limits: &WaitLimits<'_>,
    ) -> Result<Self, ChannelError> {
        let Some(identity) = identity else {
            limits.write_full(&mut stream, &preamble(Role::Open))?;
            welcome(&mut stream, limits)?;
            return Ok(Self::new(stream, None));
        };
        let mut state = noise(&identity.private, |builder| {
            builder
                .remote_public_key(identity.peer.as_bytes())
                .and_then(Builder::build_initiator)
        })?;
        let mut first = preamble(Role::Authenticated).to_vec();
        let mut message = [0; INITIATION_LEN];
        state
            .write_message(&[], &mut message)
            .map_err(|_| ChannelError::NotAuthentic)?;
        first.extend(message);
        limits.write_full(&mut stream, &first)?;
        welcome(&mut stream, limits)?;
        let mut response = [0; RESPONSE_LEN];
        limits.read_full(&mut stream, &mut response)?;
        state
            .read_message(&response, &mut [0; RESPONSE_LEN])
            .map_err(|_| ChannelError::NotAuthentic)?;
        Ok(Self::new(stream, Some(transport(state)?)))
    }

    /// Reads the first message of an authenticated client and returns its key. The caller decides whether to
    /// accept it.
    pub(crate) fn identify(
        mut stream: TcpStream,
        private: &PrivateKey,
        limits: &WaitLimits<'_>,
    ) -> Result<(PendingClient, PublicKey), ChannelError> {
        let mut message = [0; INITIATION_LEN];
        limits.read_full(&mut stream, &mut message)?;
        let mut state = noise(private, Builder::build_responder)?;
        if state
            .read_message(&message, &mut [0; INITIATION_LEN])
            .is_err()
        {
            refuse(&mut stream, Status::WrongKey, limits);
            return Err(ChannelError::Status(Status::WrongKey));
        }
        let peer = state
            .get_remote_static()
            .and_then(|key| key.try_into().ok())
            .ok_or(ChannelError::NotAuthentic)?;
        Ok((PendingClient { stream, state }, PublicKey::from_bytes(peer)))
    }

    /// Welcomes a client that needs no authentication.
    pub(crate) fn welcome_open(
        mut stream: TcpStream,
        limits: &WaitLimits<'_>,
    ) -> Result<Self, ChannelError> {
        limits.write_full(&mut stream, &[Status::Welcome as u8])?;
        Ok(Self::new(stream, None))
    }

    fn new(stream: TcpStream, cipher: Option<Box<TransportState>>) -> Self {
        Self {
            stream,
            cipher,
            buffer: vec![0; MESSAGE_BYTES_MAX + TAG_LEN],
        }
    }

    /// The TCP connection, for its addresses.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends one message of at most [`MESSAGE_BYTES_MAX`] bytes.
    pub(crate) fn send(
        &mut self,
        message: &[u8],
        limits: &WaitLimits<'_>,
    ) -> Result<(), ChannelError> {
        debug_assert!(message.len() <= MESSAGE_BYTES_MAX, "message length");
        let mut frame = vec![0; 2 + message.len() + TAG_LEN];
        let length = match &mut self.cipher {
            Some(cipher) => cipher
                .write_message(message, &mut frame[2..])
                .map_err(|_| ChannelError::Garbage("a message that cannot be encrypted"))?,
            None => {
                frame[2..2 + message.len()].copy_from_slice(message);
                message.len()
            }
        };
        let announced = u16::try_from(length).map_err(|_| ChannelError::Garbage(TOO_LONG))?;
        frame[..2].copy_from_slice(&announced.to_be_bytes());
        // One call, so that it is one TCP segment.
        limits.write_full(&mut self.stream, &frame[..2 + length])?;
        Ok(())
    }

    /// Receives one message.
    pub(crate) fn receive(&mut self, limits: &WaitLimits<'_>) -> Result<Vec<u8>, ChannelError> {
        let mut length = [0; 2];
        limits.read_full(&mut self.stream, &mut length)?;
        let length = usize::from(u16::from_be_bytes(length));
        let tag = if self.cipher.is_some() { TAG_LEN } else { 0 };
        if length > MESSAGE_BYTES_MAX + tag {
            return Err(ChannelError::Garbage(TOO_LONG));
        }
        let frame = &mut self.buffer[..length];
        limits.read_full(&mut self.stream, frame)?;
        match &mut self.cipher {
            None => Ok(frame.to_vec()),
            Some(cipher) => {
                let mut message = vec![0; length];
                let length = cipher
                    .read_message(frame, &mut message)
                    .map_err(|_| ChannelError::NotAuthentic)?;
                message.truncate(length);
                Ok(message)
            }
        }
    }
}

const TOO_LONG: &str = "a message that is too long";

/// A client that has authenticated and waits for the server's decision.
pub(crate) struct PendingClient {
    stream: TcpStream,
    state: HandshakeState,
}

impl PendingClient {
    pub(crate) fn welcome(mut self, limits: &WaitLimits<'_>) -> Result<Channel, ChannelError> {
        let mut answer = [0; 1 + RESPONSE_LEN];
        answer[0] = Status::Welcome as u8;
        self.state
            .write_message(&[], &mut answer[1..])
            .map_err(|_| ChannelError::NotAuthentic)?;
        limits.write_full(&mut self.stream, &answer)?;
        Ok(Channel::new(self.stream, Some(transport(self.state)?)))
    }

    pub(crate) fn refuse(mut self, status: Status, limits: &WaitLimits<'_>) {
        refuse(&mut self.stream, status, limits);
    }
}

/// Sends the reason; the client may be gone already.
pub(crate) fn refuse(stream: &mut TcpStream, status: Status, limits: &WaitLimits<'_>) {
    let _ = limits.write_full(stream, &[status as u8]);
}

fn welcome(stream: &mut TcpStream, limits: &WaitLimits<'_>) -> Result<(), ChannelError> {
    let mut status = [0; 1];
    limits.read_full(stream, &mut status)?;
    match Status::of(status[0]) {
        Some(Status::Welcome) => Ok(()),
        Some(status) => Err(ChannelError::Status(status)),
        None => Err(ChannelError::Garbage("an unknown status")),
    }
}

fn noise<'a>(
    private: &'a PrivateKey,
    build: impl FnOnce(Builder<'a>) -> Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState, ChannelError> {
    let params: NoiseParams = PATTERN.parse().expect("the pattern is a constant");
    Builder::new(params)
        .prologue(PROLOGUE)
        .and_then(|builder| builder.local_private_key(private.as_bytes()))
        .and_then(build)
        .map_err(|_| ChannelError::NotAuthentic)
}

fn transport(state: HandshakeState) -> Result<Box<TransportState>, ChannelError> {
    let transport = state.into_transport_mode();
    transport
        .map(Box::new)
        .map_err(|_| ChannelError::NotAuthentic)
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, sync::atomic::AtomicBool, thread, time::Duration};

    use super::*;
    use crate::net::{timeout, wire::read_preamble};

    static STOP: AtomicBool = AtomicBool::new(false);

    const PATIENCE: WaitLimits<'static> = WaitLimits {
        silence: Duration::from_secs(10),
        stop: &STOP,
        end: None,
    };

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        timeout::prepare(&client).unwrap();
        timeout::prepare(&server).unwrap();
        (client, server)
    }

    fn key(byte: u8) -> (PrivateKey, PublicKey) {
        let public = keiro_core::PrivateKey::from_bytes([byte; 32]).public_key();
        (
            PrivateKey::from_bytes([byte; 32]),
            PublicKey::from_bytes(*public.as_bytes()),
        )
    }

    /// A client with key 1 that expects the server to have key `believed`. The server has key 2 and accepts
    /// every client.
    fn handshake(believed: u8) -> (Result<Channel, ChannelError>, Result<Channel, ChannelError>) {
        let (client, mut server) = pair();
        let serving = thread::spawn(move || {
            let mut bytes = [0; 8];
            PATIENCE.read_full(&mut server, &mut bytes)?;
            assert_eq!(read_preamble(&bytes), Ok(Role::Authenticated));
            let (client, peer) = Channel::identify(server, &key(2).0, &PATIENCE)?;
            assert_eq!(peer, key(1).1);
            client.welcome(&PATIENCE)
        });
        let identity = Identity {
            private: key(1).0,
            peer: key(believed).1,
        };
        let client = Channel::open(client, Some(&identity), &PATIENCE);
        (client, serving.join().unwrap())
    }

    #[test]
    fn messages_are_readable_by_both_ends_only() {
        let (client, server) = handshake(2);
        let (Ok(mut client), Ok(mut server)) = (client, server) else {
            panic!("no channel");
        };
        let long = vec![7; MESSAGE_BYTES_MAX];
        for message in [&b"one"[..], b"", &long] {
            client.send(message, &PATIENCE).unwrap();
            assert_eq!(server.receive(&PATIENCE).unwrap(), message);
            server.send(message, &PATIENCE).unwrap();
            assert_eq!(client.receive(&PATIENCE).unwrap(), message);
        }
        // In clear text on the same connection.
        let frame = [0, 3, b'o', b'n', b'e'];
        PATIENCE.write_full(&mut client.stream, &frame).unwrap();
        let got = server.receive(&PATIENCE);
        assert!(matches!(got, Err(ChannelError::NotAuthentic)), "{got:?}");
    }

    #[test]
    fn a_client_with_another_servers_key_is_refused() {
        let (client, server) = handshake(3);
        for end in [client.err(), server.err()] {
            let wrong = matches!(end, Some(ChannelError::Status(Status::WrongKey)));
            assert!(wrong, "{end:?}");
        }
    }

    #[test]
    fn too_long_and_broken_off_messages_are_errors() {
        let (client, mut server) = pair();
        let mut channel = Channel::new(client, None);
        PATIENCE.write_full(&mut server, &[0xff; 2]).unwrap();
        let got = channel.receive(&PATIENCE);
        assert!(matches!(got, Err(ChannelError::Garbage(_))), "{got:?}");
        PATIENCE.write_full(&mut server, &[0, 9, 1]).unwrap();
        drop(server);
        let got = channel.receive(&PATIENCE);
        let broken = matches!(got, Err(ChannelError::Ended(Ended::Broken(_))));
        assert!(broken, "{got:?}");
    }

    #[test]
    fn silence_and_cancellation_end_a_wait() {
        let (client, _server) = pair();
        let mut channel = Channel::new(client, None);
        let brief = WaitLimits {
            silence: Duration::from_millis(1),
            ..PATIENCE
        };
        let got = channel.receive(&brief);
        assert!(matches!(got, Err(ChannelError::Ended(Ended::Silent))));
        let stopped = AtomicBool::new(true);
        let stopped = WaitLimits {
            stop: &stopped,
            ..PATIENCE
        };
        let got = channel.receive(&stopped);
        assert!(matches!(got, Err(ChannelError::Ended(Ended::Stopped))));
    }
}
