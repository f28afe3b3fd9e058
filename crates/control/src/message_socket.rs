//! The message socket's framing: how local applications hand over and receive messages.
//!
//! Encoders and incremental, bounded decoders; `docs/message-socket.md` has every byte and a
//! test compares both. All numbers are big-endian. The gateway owns connections, queues and
//! permissions.
//!
//! A client sends a hello with its role and application, and the gateway answers. Then a sender sends
//! messages and gets one [`Ack`] for each, or a receiver gets messages. The sender chooses a message's
//! id; the gateway repeats it in the ack and at the receiver.

pub mod client;

use std::time::Duration;

use zeroize::Zeroizing;

use crate::config::{MESSAGE_BYTES_MAX, NAME_BYTES_MAX, Name, NameError};

/// First bytes of both directions.
pub const MAGIC: [u8; 4] = *b"KEIM";
/// Version of this framing.
pub const VERSION: u8 = 2;
/// Oldest version that is still spoken. It has no [`Outcome::Unknown`].
pub const VERSION_MIN: u8 = 1;
/// Longest text of a refusal in bytes; longer ones are cut.
pub const REFUSAL_BYTES_MAX: usize = 1024;
/// Longest message body in bytes. The shortest has one byte.
pub const BODY_BYTES_MAX: usize = MESSAGE_BYTES_MAX as usize;
/// Length of a message's header: body length and id.
pub const MESSAGE_HEADER_BYTES: usize = 12;
/// Length of an ack.
pub const ACK_BYTES: usize = 18;

const HELLO_HEADER_BYTES: usize = 7;
const ANSWER_HEADER_BYTES: usize = 8;
const TOKEN_HEADER_BYTES: usize = 6;

/// First bytes of a connection over TLS, before its hello.
pub const TOKEN_MAGIC: [u8; 4] = *b"KEIT";
/// Version of what goes before the hello there.
pub const TOKEN_VERSION: u8 = 1;
/// Longest token in bytes. Those that `keiro gentoken` makes have 44.
pub const TOKEN_BYTES_MAX: usize = 255;

/// What a client wants: the first thing it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`VERSION_MIN`] to [`VERSION`]: what the client understands.
    pub version: u8,
    /// Send or receive.
    pub role: Role,
    pub app: Name,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client hands messages over.
    Send,
    /// The client gets messages.
    Receive,
}

/// The gateway's answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Accepted,
    /// The gateway closes after this.
    Refused {
        /// For programs.
        reason: RefusalReason,
        /// For people: what is wrong and what to try.
        text: String,
    },
}

/// Why a hello was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The hello cannot be read.
    BadHello,
    /// The gateway does not speak this version.
    Version,
    /// There is no such application.
    UnknownApp,
    /// The application is not for the message socket: its class is `datagram`, or it is to be
    /// received and has a forward.
    NotAvailable,
    /// As many clients as the gateway serves.
    Busy,
    /// The user has no permission.
    Forbidden,
    /// The gateway stops.
    Stopping,
    /// Over TLS: no client has this token.
    BadToken,
    /// A reason of a newer gateway, with its number.
    Other(u8),
}

/// A message on its way to or from the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender's number for it.
    pub id: u64,
    /// 1 byte to [`BODY_BYTES_MAX`].
    pub body: Vec<u8>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The sender's number for it.
    pub id: u64,
    /// Whether and how it arrived.
    pub outcome: Outcome,
    /// From taking the message over until this was known, rounded to nanoseconds, at most 584
    /// years. Zero for refused messages and for unknown outcomes.
    pub delay: Duration,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer gateway has delivered it whole to its receivers.
    Delivered,
    /// It was given up at the end of its lifetime. It may have been delivered.
    Expired,
    /// It was not taken over, here or by the peer: it was not delivered and will not be.
    Refused(RefusedReason),
    /// It may have been delivered, and nothing more will be known of it.
    Unknown(UnknownReason),
}

/// Why it is not known whether a message was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownReason {
    /// The peer restarted, or closed the session, before it acknowledged the message.
    PeerRestarted,
    /// The peer was removed from the configuration before it acknowledged the message.
    PeerGone,
    /// The gateway stops, and the peer has not acknowledged the message.
    Stopping,
    /// A reason of a newer gateway, with its number.
    Other(u8),
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedReason {
    /// The gateway or the peer's receiver holds as much of this application as it may. Send again
    /// later.
    QueueFull,
    /// An earlier message of this connection has the same id and no ack yet.
    DuplicateId,
    /// The application is gone from the configuration.
    AppRemoved,
    /// The peer is gone, or its session ended for good.
    PeerGone,
    /// The gateway stops.
    Stopping,
    /// The peer does not accept messages of this length.
    TooLong,
    /// The peer has no receiver for this application.
    NoReceiver,
    /// The peer accepted it and then refused it without a reason.
    PeerRefused,
    /// The peer has no application of this name in class message.
    UnknownToPeer,
    /// A reason of a newer gateway, with its number.
    Other(u8),
}

/// The other side does not speak this protocol. The connection must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// The first bytes are not [`MAGIC`].
    #[error("the other side does not speak the message socket's protocol")]
    NotThisProtocol,
    /// A version that is not spoken here.
    #[error(
        "the other side speaks version {0} of the message socket's protocol, this is {VERSION_MIN} to \
         {VERSION}"
    )]
    Version(u8),
    #[error("the token is of version {0}, this is {TOKEN_VERSION}")]
    TokenVersion(u8),
    /// A token without bytes.
    #[error("a token of 0 bytes; `keiro gentoken` makes one")]
    EmptyToken,
    #[error("unknown role {0}; 1 sends, 2 receives")]
    Role(u8),
    /// Not an application's name.
    #[error("not an application's name: {0}")]
    App(NameError),
    /// A message without body, or longer than [`BODY_BYTES_MAX`].
    #[error("a message of {0} bytes; 1 to {BODY_BYTES_MAX} are allowed")]
    BodyLength(u64),
    /// A text that is too long or not UTF-8.
    #[error("the refusal's text cannot be read")]
    RefusalText,
    #[error("unknown outcome {0} of a message")]
    Outcome(u8),
}

impl Hello {
    /// One of the newest version.
    pub fn new(role: Role, app: Name) -> Self {
        Self {
            version: VERSION,
            role,
            app,
        }
    }

    /// The bytes to send.
    pub fn encode(&self) -> Vec<u8> {
        let name = self.app.as_str().as_bytes();
        let mut bytes = Vec::with_capacity(HELLO_HEADER_BYTES + name.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.push(self.version);
        bytes.push(match self.role {
            Role::Send => 1,
            Role::Receive => 2,
        });
        // A Name has at most 64 bytes.
        bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(name);
        bytes
    }
}

impl Answer {
    /// The bytes to send to a client of this version. A text longer than [`REFUSAL_BYTES_MAX`] is cut.
    pub fn encode(&self, version: u8) -> Vec<u8> {
        let (status, text) = match self {
            Self::Accepted => (0, ""),
            Self::Refused { reason, text } => (reason.code(), cut(text, REFUSAL_BYTES_MAX)),
        };
        let mut bytes = Vec::with_capacity(ANSWER_HEADER_BYTES + text.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.push(version);
        bytes.push(status);
        bytes.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }
}

impl Ack {
    /// The bytes to send to a client of this version. Version 1 has one outcome that leaves open whether the
    /// message was delivered: expired.
    pub fn encode(&self, version: u8) -> [u8; ACK_BYTES] {
        let (status, reason) = match self.outcome {
            Outcome::Delivered => (0, 0),
            Outcome::Expired => (1, 0),
            Outcome::Refused(reason) => (2, reason.code()),
            Outcome::Unknown(_) if version < 2 => (1, 0),
            Outcome::Unknown(reason) => (3, reason.code()),
        };
        let nanos = u64::try_from(self.delay.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = [0; ACK_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_be_bytes());
        bytes[8] = status;
        bytes[9] = reason;
        bytes[10..].copy_from_slice(&nanos.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; ACK_BYTES]) -> Result<Self, FramingError> {
        let outcome = match bytes[8] {
            0 => Outcome::Delivered,
            1 => Outcome::Expired,
            2 => Outcome::Refused(RefusedReason::of_code(bytes[9])),
            3 => Outcome::Unknown(UnknownReason::of_code(bytes[9])),
            other => return Err(FramingError::Outcome(other)),
        };
        let delay = Duration::from_nanos(be_u64(&bytes[10..]));
        Ok(Self {
            id: be_u64(&bytes[..8]),
            outcome,
            delay,
        })
    }
}

/// The header of a message; its body follows as it is.
///
/// # Errors
/// The body is empty or too long.
pub fn encode_message_header(
    id: u64,
    body_bytes: usize,
) -> Result<[u8; MESSAGE_HEADER_BYTES], FramingError> {
    let length = body_length(body_bytes as u64)?;
    let mut header = [0; MESSAGE_HEADER_BYTES];
    header[..4].copy_from_slice(&length.to_be_bytes());
    header[4..].copy_from_slice(&id.to_be_bytes());
    Ok(header)
}

impl RefusalReason {
    const fn code(self) -> u8 {
        match self {
            Self::BadHello => 1,
            Self::Version => 2,
            Self::UnknownApp => 3,
            Self::NotAvailable => 4,
            Self::Busy => 5,
            Self::Forbidden => 6,
            Self::Stopping => 7,
            Self::BadToken => 8,
            // 0 would be an acceptance.
            Self::Other(0) => 255,
            Self::Other(code) => code,
        }
    }

    const fn of_code(code: u8) -> Self {
        match code {
            1 => Self::BadHello,
            2 => Self::Version,
            3 => Self::UnknownApp,
            4 => Self::NotAvailable,
            5 => Self::Busy,
            6 => Self::Forbidden,
            7 => Self::Stopping,
            8 => Self::BadToken,
            other => Self::Other(other),
        }
    }
}

impl RefusedReason {
    const fn code(self) -> u8 {
        match self {
            Self::QueueFull => 1,
            Self::DuplicateId => 2,
            Self::AppRemoved => 3,
            Self::PeerGone => 4,
            Self::Stopping => 5,
            Self::TooLong => 6,
            Self::NoReceiver => 7,
            Self::PeerRefused => 8,
            Self::UnknownToPeer => 9,
            Self::Other(code) => code,
        }
    }

    const fn of_code(code: u8) -> Self {
        match code {
            1 => Self::QueueFull,
            2 => Self::DuplicateId,
            3 => Self::AppRemoved,
            4 => Self::PeerGone,
            5 => Self::Stopping,
            6 => Self::TooLong,
            7 => Self::NoReceiver,
            8 => Self::PeerRefused,
            9 => Self::UnknownToPeer,
            other => Self::Other(other),
        }
    }
}

impl UnknownReason {
    const fn code(self) -> u8 {
        match self {
            Self::PeerRestarted => 1,
            Self::PeerGone => 2,
            Self::Stopping => 3,
            Self::Other(code) => code,
        }
    }

    const fn of_code(code: u8) -> Self {
        match code {
            1 => Self::PeerRestarted,
            2 => Self::PeerGone,
            3 => Self::Stopping,
            other => Self::Other(other),
        }
    }
}

/// The bytes with which a connection over TLS begins; `None`: the token has no or too many bytes.
pub fn encode_token(token: &str) -> Option<Zeroizing<Vec<u8>>> {
    let length = u8::try_from(token.len())
        .ok()
        .filter(|length| *length > 0)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(TOKEN_HEADER_BYTES + token.len()));
    bytes.extend_from_slice(&TOKEN_MAGIC);
    bytes.extend_from_slice(&[TOKEN_VERSION, length]);
    bytes.extend_from_slice(token.as_bytes());
    Some(bytes)
}

/// Reads one token. At most 261 bytes are held.
#[derive(Debug, Default)]
pub struct TokenDecoder {
    header: Filling<TOKEN_HEADER_BYTES>,
    token: Zeroizing<Vec<u8>>,
}

impl TokenDecoder {
    /// Takes what it needs from the front of `input`; `None`: more is needed. What follows the token stays in
    /// `input`.
    ///
    /// # Errors
    /// See [`FramingError`].
    pub fn decode(
        &mut self,
        input: &mut &[u8],
    ) -> Result<Option<Zeroizing<Vec<u8>>>, FramingError> {
        let Some(header) = self.header.fill(input) else {
            return Ok(None);
        };
        if header[..4] != TOKEN_MAGIC {
            return Err(FramingError::NotThisProtocol);
        }
        if header[4] != TOKEN_VERSION {
            return Err(FramingError::TokenVersion(header[4]));
        }
        let length = usize::from(header[5]);
        if length == 0 {
            return Err(FramingError::EmptyToken);
        }
        if self.token.capacity() < length {
            // At once: a growing buffer would leave copies of the token behind.
            self.token = Zeroizing::new(Vec::with_capacity(length));
        }
        if !fill_vec(&mut self.token, length, input) {
            return Ok(None);
        }
        let token = std::mem::take(&mut self.token);
        *self = Self::default();
        Ok(Some(token))
    }
}

/// Reads one hello. At most 71 bytes are held.
#[derive(Debug, Default)]
pub struct HelloDecoder {
    header: Filling<HELLO_HEADER_BYTES>,
    name: Vec<u8>,
}

impl HelloDecoder {
    /// Takes what it needs from the front of `input`; `None`: more is needed. What follows the
    /// hello stays in `input`.
    ///
    /// # Errors
    /// See [`FramingError`]; answer [`RefusalReason::Version`] or [`RefusalReason::BadHello`].
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Hello>, FramingError> {
        let Some(header) = self.header.fill(input) else {
            return Ok(None);
        };
        let version = header[4];
        let role = match preamble(header)? {
            1 => Role::Send,
            2 => Role::Receive,
            other => return Err(FramingError::Role(other)),
        };
        let length = usize::from(header[6]);
        if length > NAME_BYTES_MAX {
            return Err(FramingError::App(NameError::TooLong(length)));
        }
        if !fill_vec(&mut self.name, length, input) {
            return Ok(None);
        }
        let name = String::from_utf8_lossy(&self.name);
        let app = Name::new(&name).map_err(FramingError::App)?;
        *self = Self::default();
        Ok(Some(Hello { version, role, app }))
    }
}

/// Reads one answer. At most [`REFUSAL_BYTES_MAX`] and 8 bytes are held.
#[derive(Debug, Default)]
pub struct AnswerDecoder {
    header: Filling<ANSWER_HEADER_BYTES>,
    text: Vec<u8>,
}

impl AnswerDecoder {
    /// Takes what it needs from the front of `input`; `None`: more is needed.
    ///
    /// # Errors
    /// See [`FramingError`].
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Answer>, FramingError> {
        let Some(header) = self.header.fill(input) else {
            return Ok(None);
        };
        let status = preamble(header)?;
        let length = usize::from(u16::from_be_bytes([header[6], header[7]]));
        if length > REFUSAL_BYTES_MAX {
            return Err(FramingError::RefusalText);
        }
        if !fill_vec(&mut self.text, length, input) {
            return Ok(None);
        }
        let text = std::mem::take(&mut self.text);
        let text = String::from_utf8(text).map_err(|_| FramingError::RefusalText)?;
        *self = Self::default();
        Ok(Some(match status {
            0 => Answer::Accepted,
            code => Answer::Refused {
                reason: RefusalReason::of_code(code),
                text,
            },
        }))
    }

    /// How many bytes the rest of this answer has at least.
    fn wanted(&self) -> usize {
        match self.header.is_full() {
            false => ANSWER_HEADER_BYTES - self.header.length,
            true => {
                let bytes = &self.header.bytes;
                usize::from(u16::from_be_bytes([bytes[6], bytes[7]])) - self.text.len()
            }
        }
    }
}

/// Reads messages. At most one body is held, and only as much of it as has come.
#[derive(Debug, Default)]
pub struct MessageDecoder {
    header: Filling<MESSAGE_HEADER_BYTES>,
    body: Vec<u8>,
}

impl MessageDecoder {
    /// Takes what it needs from the front of `input`; `None`: more is needed. Call it until then.
    ///
    /// # Errors
    /// A length of 0 or above [`BODY_BYTES_MAX`]; the stream cannot be used further.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Message>, FramingError> {
        let Some(header) = self.header.fill(input) else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
        let length = body_length(u64::from(length))? as usize;
        let id = be_u64(&header[4..]);
        if !fill_vec(&mut self.body, length, input) {
            return Ok(None);
        }
        let body = std::mem::take(&mut self.body);
        *self = Self::default();
        Ok(Some(Message { id, body }))
    }

    /// Nothing of an incomplete message is held: the stream may end here.
    pub fn is_between_messages(&self) -> bool {
        self.header.length == 0
    }

    /// Bytes held.
    pub fn held_bytes(&self) -> usize {
        self.header.length + self.body.capacity()
    }
}

#[derive(Debug, Default)]
pub struct AckDecoder {
    bytes: Filling<ACK_BYTES>,
}

impl AckDecoder {
    /// Takes what it needs from the front of `input`; `None`: more is needed. Call it until then.
    ///
    /// # Errors
    /// An unknown outcome; the stream cannot be used further.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Ack>, FramingError> {
        let Some(bytes) = self.bytes.fill(input) else {
            return Ok(None);
        };
        let ack = Ack::decode(bytes)?;
        *self = Self::default();
        Ok(Some(ack))
    }

    /// Nothing of an incomplete ack is held: the stream may end here.
    pub fn is_between_acks(&self) -> bool {
        self.bytes.length == 0
    }
}

/// A fixed number of bytes that come in pieces.
#[derive(Debug)]
struct Filling<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Filling<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }
}

impl<const N: usize> Filling<N> {
    fn fill(&mut self, input: &mut &[u8]) -> Option<&[u8; N]> {
        let taken = (N - self.length).min(input.len());
        let (now, rest) = input.split_at(taken);
        self.bytes[self.length..self.length + taken].copy_from_slice(now);
        self.length += taken;
        *input = rest;
        self.is_full().then_some(&self.bytes)
    }

    fn is_full(&self) -> bool {
        self.length == N
    }
}

/// Moves bytes from `input` until `bytes` has `length`; whether it has.
///
/// Memory grows with what comes, not with what was announced.
fn fill_vec(bytes: &mut Vec<u8>, length: usize, input: &mut &[u8]) -> bool {
    let missing = length - bytes.len();
    let (now, rest) = input.split_at(missing.min(input.len()));
    if bytes.capacity() < bytes.len() + now.len() {
        // Doubling as usual, but not beyond the length that is known.
        let wanted = (2 * bytes.capacity()).clamp(bytes.len() + now.len(), length);
        bytes.reserve_exact(wanted - bytes.len());
    }
    bytes.extend_from_slice(now);
    *input = rest;
    bytes.len() == length
}

/// Checks magic and version and gives the byte after them.
fn preamble(header: &[u8]) -> Result<u8, FramingError> {
    if header[..4] != MAGIC {
        return Err(FramingError::NotThisProtocol);
    }
    match header[4] {
        VERSION_MIN..=VERSION => Ok(header[5]),
        other => Err(FramingError::Version(other)),
    }
}

fn body_length(length: u64) -> Result<u32, FramingError> {
    match u32::try_from(length) {
        Ok(length @ 1..) if length as usize <= BODY_BYTES_MAX => Ok(length),
        _ => Err(FramingError::BodyLength(length)),
    }
}

fn be_u64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take(8)
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The longest beginning of `text` of at most `bytes_max` bytes.
fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests;
