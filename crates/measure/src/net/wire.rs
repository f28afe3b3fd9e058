//! Wire format of measurements: preamble, control messages, probes.
//!
//! `docs/measure-protocol.md` describes it. Numbers are big-endian. Parsing never panics: input that is too
//! short, too long or unknown gives `None`.

/// First bytes of every TCP connection to a server.
pub(crate) const MAGIC: [u8; 6] = *b"KEIROM";
/// Version of this format.
pub(crate) const VERSION: u8 = 1;
/// Magic, version, role.
pub(crate) const PREAMBLE_LEN: usize = 8;
/// Authorises data connections and probes of a session.
pub(crate) const TOKEN_LEN: usize = 16;
/// Maximum length of a control message before encryption. Ours: the time stamps of the longest train fit.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8192;
/// Maximum of packets in a train. Ours: 256 of 1400 bytes are 30 ms at 100 Mbit/s.
pub(crate) const TRAIN_PACKETS_MAX: u16 = 256;
/// Maximum length of a refusal's reason, in bytes.
const REASON_BYTES_MAX: usize = 200;

/// A session's token, assigned on the control connection.
pub(crate) type Token = [u8; TOKEN_LEN];

/// Purpose of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Open = 0,
    Authenticated = 1,
    /// Data of a session; its token follows.
    Data = 2,
}

/// The server's first byte on a control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Welcome = 0,
    /// The server requires authentication.
    KeyWanted = 1,
    /// The server has no key.
    IsOpen = 2,
    /// The client's key is not allowed.
    NotAllowed = 3,
    /// The client's message was not encrypted for this server's key.
    WrongKey = 4,
    /// The server has its maximum of clients.
    Busy = 5,
    /// Other protocol version.
    Version = 6,
}

/// A request of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Hello,
    Ping,
    /// The client will send bytes on the data connection.
    Receive(Transfer),
    /// The server shall send bytes on the data connection.
    Send(Transfer),
    /// Resets the counters; the server shall reflect at most this many probes.
    ProbesBegin {
        packets: u32,
    },
    /// Asks for the counters.
    ProbesEnd,
    TrainBegin {
        train: u32,
        /// Number of its packets.
        packets: u16,
    },
    /// Asks for the arrivals, once all packets are there or none came for a while.
    TrainEnd {
        train: u32,
    },
    /// Asks for as many packets back as arrived.
    TrainBack {
        train: u32,
    },
}

/// A transfer over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) bytes: u64,
    /// On a data connection that is opened for it.
    pub(crate) fresh: bool,
}

/// The server's answers. All time stamps are of its monotonic clock, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// To [`Request::Hello`].
    Welcome {
        token: Token,
        /// Maximum of bytes of a transfer.
        transfer_bytes_max: u64,
        /// Whether the server reflects UDP.
        udp: bool,
    },
    /// Acknowledges requests without another answer.
    Ready {
        /// When the request was read.
        received_at: u64,
        /// When this was written.
        replied_at: u64,
    },
    /// Progress of a transfer.
    Progress {
        bytes: u64,
    },
    /// End of a transfer.
    Done {
        bytes: u64,
        /// Before the first write, or when the first byte was read.
        first_at: u64,
        /// After the last write, or when the last byte was read.
        last_at: u64,
    },
    /// Counters of probes.
    Probes(ProbeCounts),
    /// Arrivals of a train.
    Train(Vec<TrainStamp>),
    Refused(String),
}

/// The server's counters of the client's probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProbeCounts {
    /// Duplicates are not counted.
    pub(crate) received: u64,
    pub(crate) duplicates: u64,
    /// Probes that arrived after one sent later (RFC 4737 §4.1).
    pub(crate) reordered: u64,
    /// Probes over the rate limit, which were not answered.
    pub(crate) refused: u64,
}

/// Arrival of one packet of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrainStamp {
    /// Its index in the train as sent.
    pub(crate) index: u16,
    /// Arrival in the kernel after that of the train's first packet, in nanoseconds.
    pub(crate) after_first_nanos: u32,
}

/// Kind of a UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    Request = 1,
    Reply = 2,
    /// Packet of a train to the server.
    Train = 3,
    /// Packet of a train from the server.
    TrainBack = 4,
}

/// Header of every UDP packet; zeros follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) kind: ProbeKind,
    pub(crate) token: Token,
    /// Sequence number; for trains, the train's number times 2^32 plus the index.
    pub(crate) number: u64,
    /// Sending time by the client's clock.
    pub(crate) sent_at: u64,
    /// Arrival by the server's clock, stamped by the kernel.
    pub(crate) received_at: u64,
    /// Sending time of the reply by the server's clock.
    pub(crate) replied_at: u64,
    /// Number of replies that the server had sent before this one.
    pub(crate) reply_number: u64,
}

impl Role {
    fn of(byte: u8) -> Option<Self> {
        [Self::Open, Self::Authenticated, Self::Data]
            .into_iter()
            .find(|role| *role as u8 == byte)
    }
}

impl Status {
    pub(crate) fn of(byte: u8) -> Option<Self> {
        use Status::{Busy, IsOpen, KeyWanted, NotAllowed, Version, Welcome, WrongKey};
        [
            Welcome, KeyWanted, IsOpen, NotAllowed, WrongKey, Busy, Version,
        ]
        .into_iter()
        .find(|status| *status as u8 == byte)
    }
}

/// The preamble of a connection.
pub(crate) fn preamble(role: Role) -> [u8; PREAMBLE_LEN] {
    let mut bytes = [0; PREAMBLE_LEN];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[6] = VERSION;
    bytes[7] = role as u8;
    bytes
}

/// Parses a preamble; `Err(None)` if it is not of this protocol.
pub(crate) fn read_preamble(bytes: &[u8; PREAMBLE_LEN]) -> Result<Role, Option<Status>> {
    if bytes[..MAGIC.len()] != MAGIC {
        return Err(None);
    }
    if bytes[6] != VERSION {
        return Err(Some(Status::Version));
    }
    Role::of(bytes[7]).ok_or(None)
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        match self {
            Self::Hello => out.push(1),
            Self::Ping => out.push(2),
            Self::Receive(transfer) => transfer.encode(3, &mut out),
            Self::Send(transfer) => transfer.encode(4, &mut out),
            Self::ProbesBegin { packets } => {
                out.push(5);
                out.extend(packets.to_be_bytes());
            }
            Self::ProbesEnd => out.push(6),
            Self::TrainBegin { train, packets } => {
                out.push(7);
                out.extend(train.to_be_bytes());
                out.extend(packets.to_be_bytes());
            }
            Self::TrainEnd { train } => {
                out.push(8);
                out.extend(train.to_be_bytes());
            }
            Self::TrainBack { train } => {
                out.push(9);
                out.extend(train.to_be_bytes());
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let request = match reader.u8()? {
            1 => Self::Hello,
            2 => Self::Ping,
            3 => Self::Receive(Transfer::decode(&mut reader)?),
            4 => Self::Send(Transfer::decode(&mut reader)?),
            5 => Self::ProbesBegin {
                packets: reader.u32()?,
            },
            6 => Self::ProbesEnd,
            7 => Self::TrainBegin {
                train: reader.u32()?,
                packets: reader.u16()?,
            },
            8 => Self::TrainEnd {
                train: reader.u32()?,
            },
            9 => Self::TrainBack {
                train: reader.u32()?,
            },
            _ => return None,
        };
        reader.end().then_some(request)
    }
}

impl Transfer {
    fn encode(self, kind: u8, out: &mut Vec<u8>) {
        out.push(kind);
        out.extend(self.bytes.to_be_bytes());
        out.push(u8::from(self.fresh));
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            bytes: reader.u64()?,
            fresh: reader.flag()?,
        })
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        let mut numbers = |kind: u8, numbers: &[u64]| {
            out.push(kind);
            numbers.iter().for_each(|n| out.extend(n.to_be_bytes()));
        };
        match self {
            Self::Welcome {
                token,
                transfer_bytes_max,
                udp,
            } => {
                numbers(0x81, &[*transfer_bytes_max]);
                out.push(u8::from(*udp));
                out.extend(token);
            }
            Self::Ready {
                received_at,
                replied_at,
            } => numbers(0x82, &[*received_at, *replied_at]),
            Self::Progress { bytes } => numbers(0x83, &[*bytes]),
            Self::Done {
                bytes,
                first_at,
                last_at,
            } => numbers(0x84, &[*bytes, *first_at, *last_at]),
            Self::Probes(counts) => numbers(
                0x85,
                &[
                    counts.received,
                    counts.duplicates,
                    counts.reordered,
                    counts.refused,
                ],
            ),
            Self::Train(stamps) => {
                out.push(0x86);
                for stamp in stamps.iter().take(TRAIN_PACKETS_MAX.into()) {
                    out.extend(stamp.index.to_be_bytes());
                    out.extend(stamp.after_first_nanos.to_be_bytes());
                }
            }
            Self::Refused(reason) => {
                out.push(0xff);
                out.extend(reason.bytes().take(REASON_BYTES_MAX));
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let answer = match reader.u8()? {
            0x81 => Self::Welcome {
                transfer_bytes_max: reader.u64()?,
                udp: reader.flag()?,
                token: reader.array()?,
            },
            0x82 => Self::Ready {
                received_at: reader.u64()?,
                replied_at: reader.u64()?,
            },
            0x83 => Self::Progress {
                bytes: reader.u64()?,
            },
            0x84 => Self::Done {
                bytes: reader.u64()?,
                first_at: reader.u64()?,
                last_at: reader.u64()?,
            },
            0x85 => Self::Probes(ProbeCounts {
                received: reader.u64()?,
                duplicates: reader.u64()?,
                reordered: reader.u64()?,
                refused: reader.u64()?,
            }),
            0x86 => {
                let mut stamps = Vec::new();
                while !reader.end() {
                    if stamps.len() >= usize::from(TRAIN_PACKETS_MAX) {
                        return None;
                    }
                    stamps.push(TrainStamp {
                        index: reader.u16()?,
                        after_first_nanos: reader.u32()?,
                    });
                }
                Self::Train(stamps)
            }
            0xff => Self::Refused(reader.text()?),
            _ => return None,
        };
        reader.end().then_some(answer)
    }
}

impl Probe {
    /// Length of the header: the minimum length of a probe.
    pub(crate) const LEN: usize = 60;

    /// Writes the header and leaves the rest of `out` unchanged. Does nothing if there is no room.
    pub(crate) fn write(&self, out: &mut [u8]) {
        let Some(head) = out.first_chunk_mut::<{ Self::LEN }>() else {
            return;
        };
        head[0] = self.kind as u8;
        head[1] = VERSION;
        head[2..4].fill(0);
        head[4..20].copy_from_slice(&self.token);
        let numbers = [
            self.number,
            self.sent_at,
            self.received_at,
            self.replied_at,
            self.reply_number,
        ];
        for (place, number) in head[20..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
    }

    /// Parses the header; the rest is padding.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes.get(..Self::LEN)?);
        let kind = reader.u8()?;
        let kind = [
            ProbeKind::Request,
            ProbeKind::Reply,
            ProbeKind::Train,
            ProbeKind::TrainBack,
        ]
        .into_iter()
        .find(|known| *known as u8 == kind)?;
        if reader.u8()? != VERSION || reader.u16()? != 0 {
            return None;
        }
        Some(Self {
            kind,
            token: reader.array()?,
            number: reader.u64()?,
            sent_at: reader.u64()?,
            received_at: reader.u64()?,
            replied_at: reader.u64()?,
            reply_number: reader.u64()?,
        })
    }
}

/// Reads from the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// The remaining bytes as text, without characters that could confuse a terminal.
    fn text(&mut self) -> Option<String> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.len() > REASON_BYTES_MAX {
            return None;
        }
        let text = String::from_utf8_lossy(bytes);
        Some(text.chars().filter(|c| !c.is_control()).collect())
    }

    fn end(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request> {
        let transfer = |fresh| Transfer {
            bytes: 100_000_000,
            fresh,
        };
        vec![
            Request::Hello,
            Request::Ping,
            Request::Receive(transfer(true)),
            Request::Send(transfer(false)),
            Request::ProbesBegin { packets: 250 },
            Request::ProbesEnd,
            Request::TrainBegin {
                train: 7,
                packets: 64,
            },
            Request::TrainEnd { train: 7 },
            Request::TrainBack { train: u32::MAX },
        ]
    }

    fn answers() -> Vec<Answer> {
        let stamps = (0..TRAIN_PACKETS_MAX).map(|index| TrainStamp {
            index,
            after_first_nanos: u32::from(index) * 120_000,
        });
        vec![
            Answer::Welcome {
                token: [9; TOKEN_LEN],
                transfer_bytes_max: 1 << 40,
                udp: true,
            },
            Answer::Ready {
                received_at: 1,
                replied_at: u64::MAX,
            },
            Answer::Progress { bytes: 3 },
            Answer::Done {
                bytes: 1,
                first_at: 2,
                last_at: 3,
            },
            Answer::Probes(ProbeCounts {
                received: 1,
                duplicates: 2,
                reordered: 3,
                refused: 4,
            }),
            Answer::Train(stamps.collect()),
            Answer::Train(Vec::new()),
            Answer::Refused("no".into()),
        ]
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_nothing_shorter_or_longer_is() {
        for request in requests() {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request));
            assert_eq!(Request::decode(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Request::decode(&[&bytes[..], &[0]].concat()), None);
        }
        for answer in answers() {
            let bytes = answer.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Answer::decode(&bytes), Some(answer.clone()));
            if !matches!(answer, Answer::Refused(_)) {
                assert_eq!(Answer::decode(&bytes[..bytes.len() - 1]), None);
                assert_eq!(Answer::decode(&[&bytes[..], &[0]].concat()), None);
            }
        }
        assert_eq!(Request::decode(&[]), None);
        assert_eq!(Answer::decode(&[0]), None);
    }

    #[test]
    fn trains_and_reasons_are_bounded() {
        let stamps = [0; 6].repeat(usize::from(TRAIN_PACKETS_MAX) + 1);
        assert_eq!(Answer::decode(&[&[0x86], &stamps[..]].concat()), None);
        let long = vec![b'x'; REASON_BYTES_MAX + 1];
        assert_eq!(Answer::decode(&[&[0xff], &long[..]].concat()), None);
        let odd = Answer::decode(b"\xff\x1b[31mred\xfe");
        assert_eq!(odd, Some(Answer::Refused("[31mred\u{fffd}".into())));
    }

    #[test]
    fn foreign_preambles_are_distinguished() {
        assert_eq!(read_preamble(&preamble(Role::Data)), Ok(Role::Data));
        assert_eq!(read_preamble(b"GET / HT"), Err(None));
        assert_eq!(read_preamble(b"KEIROM\x02\x00"), Err(Some(Status::Version)));
        assert_eq!(read_preamble(b"KEIROM\x01\x09"), Err(None));
    }

    #[test]
    fn a_probe_is_read_as_it_was_written_whatever_follows() {
        let probe = Probe {
            kind: ProbeKind::Reply,
            token: [3; TOKEN_LEN],
            number: 1 << 40,
            sent_at: 2,
            received_at: 3,
            replied_at: 4,
            reply_number: 5,
        };
        let mut bytes = [0xee; 100];
        probe.write(&mut bytes);
        assert_eq!(Probe::read(&bytes), Some(probe));
        assert_eq!(Probe::read(&bytes[..Probe::LEN - 1]), None);
        bytes[1] = 9;
        assert_eq!(Probe::read(&bytes), None);
        probe.write(&mut [0; Probe::LEN - 1]);
    }
}
