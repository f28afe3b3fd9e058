//! The server's name in the ClientHello of a TLS connection (RFC 8446 §4.1.2, RFC 6066 §3).

use std::{collections::VecDeque, net::IpAddr, time::Duration};

/// Handshakes that are read at a time and span packets.
const WAITING_MAX: usize = 64;
/// Those of one client. Ours: browsers open six connections to a server at once, and one's packets come within
/// milliseconds.
const CLIENT_WAITING_MAX: usize = 8;
/// Bytes of one: with post-quantum key shares and many extensions it has some 2 KiB.
const HELLO_BYTES_MAX: usize = 8192;
/// Its packets come at once.
const WAITING_TIME: Duration = Duration::from_secs(3);

const RECORD_HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;

/// What the begin of a connection says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientHello {
    /// The server's name, in lower case.
    Name(String),
    /// More bytes are needed.
    Incomplete,
    /// It is no TLS, or has no name.
    Nothing,
}

/// Begins of handshakes whose rest is still to come, by flow, the oldest first. Nothing else of any payload is kept.
#[derive(Default)]
pub(super) struct PartialHandshakes {
    parts: VecDeque<Part>,
    /// Handshakes that had to make room for others.
    displaced: u64,
}

struct Part {
    flow: u64,
    client: IpAddr,
    since: Duration,
    /// Of the next byte.
    sequence: u32,
    bytes: Vec<u8>,
}

impl PartialHandshakes {
    /// Takes bytes of a flow's client in the order of their sequence numbers; others are ignored, and are sent again.
    pub(super) fn on_bytes(
        &mut self,
        now: Duration,
        client: IpAddr,
        flow: u64,
        sequence: u32,
        bytes: &[u8],
    ) -> ClientHello {
        let Some(place) = self.parts.iter().position(|part| part.flow == flow) else {
            let hello = server_name(bytes);
            if hello == ClientHello::Incomplete && bytes.len() >= HELLO_BYTES_MAX {
                return ClientHello::Nothing;
            }
            if hello == ClientHello::Incomplete {
                self.make_room(client);
                self.parts.push_back(Part {
                    flow,
                    client,
                    since: now,
                    sequence: sequence.wrapping_add(bytes.len() as u32),
                    bytes: bytes.to_vec(),
                });
            }
            return hello;
        };
        let part = &mut self.parts[place];
        if part.sequence != sequence {
            return ClientHello::Incomplete;
        }
        let room = HELLO_BYTES_MAX - part.bytes.len();
        part.bytes
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        part.sequence = sequence.wrapping_add(bytes.len() as u32);
        let mut hello = server_name(&part.bytes);
        if hello == ClientHello::Incomplete && part.bytes.len() == HELLO_BYTES_MAX {
            hello = ClientHello::Nothing;
        }
        if hello != ClientHello::Incomplete {
            self.parts.remove(place);
        }
        hello
    }

    /// Drops what has waited too long.
    pub(super) fn on_time(&mut self, now: Duration) {
        let is_old = |part: &mut Part| now.saturating_sub(part.since) > WAITING_TIME;
        while self.parts.pop_front_if(is_old).is_some() {}
    }

    /// A flow has begun anew.
    pub(super) fn forget(&mut self, flow: u64) {
        self.parts.retain(|part| part.flow != flow);
    }

    /// How many handshakes had to make room for others before they were whole.
    pub(super) fn displaced(&self) -> u64 {
        self.displaced
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }

    /// Drops the oldest of a client that has too many, or of all.
    fn make_room(&mut self, client: IpAddr) {
        let of_client = || self.parts.iter().enumerate();
        let mut of_client = of_client().filter(|(_, part)| part.client == client);
        let oldest = of_client.next().map(|(place, _)| place);
        let has_its_share = 1 + of_client.count() >= CLIENT_WAITING_MAX;
        let place = match oldest {
            Some(oldest) if has_its_share => Some(oldest),
            _ => (self.parts.len() >= WAITING_MAX).then_some(0),
        };
        if let Some(place) = place {
            self.parts.remove(place);
            self.displaced += 1;
        }
    }
}

/// Reads the begin of what a client sends.
pub(super) fn server_name(bytes: &[u8]) -> ClientHello {
    match bytes {
        [RECORD_HANDSHAKE, 3, ..] | [RECORD_HANDSHAKE] | [] => {}
        _ => return ClientHello::Nothing,
    }
    let (message, is_whole) = handshake(bytes);
    match find_name(&message) {
        Some(Some(name)) => ClientHello::Name(name),
        Some(None) => ClientHello::Nothing,
        None if is_whole => ClientHello::Nothing,
        None => ClientHello::Incomplete,
    }
}

/// The handshake message, as far as it is here, from its records; whether it is whole or goes wrong.
fn handshake(bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        let [kind, major, _, high, low, body @ ..] = rest else {
            return (message, false);
        };
        if (*kind, *major) != (RECORD_HANDSHAKE, 3) {
            return (message, true);
        }
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let here = body.len().min(length);
        message.extend_from_slice(&body[..here]);
        if let [_, a, b, c, ..] = message[..] {
            let wanted = 4 + usize::from(a) * 65_536 + usize::from(b) * 256 + usize::from(c);
            if message.len() >= wanted {
                message.truncate(wanted);
                return (message, true);
            }
        }
        if here < length {
            return (message, false);
        }
        rest = &body[length..];
    }
}

/// `None`: it is not there yet. `Some(None)`: it will not be.
fn find_name(message: &[u8]) -> Option<Option<String>> {
    let mut at = Fields(message);
    if at.number(1)? != usize::from(CLIENT_HELLO) {
        return Some(None);
    }
    // Length, version, random.
    at.take(3 + 2 + 32)?;
    for length_bytes in [1, 2, 1] {
        // Session, cipher suites, compression methods.
        let length = at.number(length_bytes)?;
        at.take(length)?;
    }
    let mut left = at.number(2)?;
    while left >= 4 {
        let (kind, length) = (at.number(2)?, at.number(2)?);
        let body = at.take(length)?;
        if kind == usize::from(EXTENSION_SERVER_NAME) {
            return Some(name_of(body));
        }
        left = left.saturating_sub(4 + length);
    }
    Some(None)
}

/// The host name of the list of names.
fn name_of(body: &[u8]) -> Option<String> {
    let mut fields = Fields(body);
    fields.take(2)?;
    if fields.number(1)? != 0 {
        return None;
    }
    let length = fields.number(2)?;
    let name = std::str::from_utf8(fields.take(length)?).ok()?;
    let is_name = !name.is_empty() && name.len() <= super::names::NAME_BYTES_MAX && name.is_ascii();
    is_name.then(|| name.trim_end_matches('.').to_ascii_lowercase())
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of up to three bytes.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        let taken = self.take(bytes)?.iter();
        Some(taken.fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }
}
