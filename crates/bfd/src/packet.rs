//! The control packet (RFC 5880 §4.1).

use std::time::Duration;

/// The state of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    AdminDown,
    #[default]
    Down,
    Init,
    Up,
}

/// Why a session went down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Diagnostic {
    #[default]
    None,
    /// No packet came within the detection time.
    DetectionTimeExpired,
    EchoFailed,
    /// The neighbour's session is down.
    NeighbourSignalledDown,
    ForwardingPlaneReset,
    PathDown,
    ConcatenatedPathDown,
    AdministrativelyDown,
    ReverseConcatenatedPathDown,
    /// A value that RFC 5880 reserves, 9 to 31.
    Reserved(u8),
}

/// A control packet without authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlPacket {
    pub diagnostic: Diagnostic,
    pub state: State,
    /// P: asks for a packet with `is_final`.
    pub poll: bool,
    /// F: answers a packet with `poll`.
    pub is_final: bool,
    /// C: the session goes on when the control plane of the sender fails.
    pub control_plane_independent: bool,
    /// D: the sender wants no periodic packets.
    pub demand: bool,
    /// Lost packets that end the session, at least 1.
    pub multiplier: u8,
    /// The sender's number of the session, never 0.
    pub my_discriminator: u32,
    /// The receiver's number of the session; 0: the sender does not know it.
    pub your_discriminator: u32,
    /// The shortest interval at which the sender wants to send.
    pub desired_min_tx: Micros,
    /// The shortest interval at which the sender wants to receive; 0: it wants no periodic packets.
    pub required_min_rx: Micros,
    /// The same for echo packets; 0: it supports none.
    pub required_min_echo_rx: Micros,
}

/// An interval in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u32);

/// Why a packet is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Its TTL or hop limit is not 255, or not known.
    Ttl,
    /// Less than 24 octets.
    TooShort,
    Version,
    /// Its length field is below the minimum, or beyond the datagram.
    Length,
    /// The A bit is set: authentication is not supported.
    Authentication,
    /// Detect Mult is zero.
    ZeroMultiplier,
    /// The M bit is set.
    Multipoint,
    /// My Discriminator is zero.
    ZeroDiscriminator,
    /// No session has Your Discriminator.
    UnknownDiscriminator,
    /// Your Discriminator is zero in state Init or Up.
    MissingDiscriminator,
    /// No session with its source address.
    UnknownNeighbour,
    /// The session with Your Discriminator is with another address.
    WrongAddress,
    /// The session is up on another interface.
    WrongInterface,
}

/// The length of a packet without authentication.
pub const LENGTH: usize = 24;

impl ControlPacket {
    /// The packet in the format of RFC 5880 §4.1.
    pub fn encode(&self) -> [u8; LENGTH] {
        let bit = |set: bool, number: u8| u8::from(set) << number;
        let mut octets = [0; LENGTH];
        octets[0] = VERSION << 5 | self.diagnostic.number();
        octets[1] = self.state.number() << 6
            | bit(self.poll, 5)
            | bit(self.is_final, 4)
            | bit(self.control_plane_independent, 3)
            | bit(self.demand, 1);
        octets[2] = self.multiplier;
        octets[3] = LENGTH as u8;
        let fields = [
            self.my_discriminator,
            self.your_discriminator,
            self.desired_min_tx.0,
            self.required_min_rx.0,
            self.required_min_echo_rx.0,
        ];
        for (place, field) in octets[4..].chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_be_bytes());
        }
        octets
    }

    /// Parses a packet with the checks of RFC 5880 §6.8.6 that need no session.
    ///
    /// # Errors
    /// Why it must be discarded.
    pub fn decode(datagram: &[u8]) -> Result<Self, Discard> {
        let Some(octets) = datagram.first_chunk::<LENGTH>() else {
            return Err(Discard::TooShort);
        };
        let has = |number: u8| octets[1] >> number & 1 != 0;
        if octets[0] >> 5 != VERSION {
            return Err(Discard::Version);
        }
        let length = usize::from(octets[3]);
        let authenticated = has(2);
        let least = match authenticated {
            true => LENGTH + AUTHENTICATION_BYTES_MIN,
            false => LENGTH,
        };
        if length < least || length > datagram.len() {
            return Err(Discard::Length);
        }
        if octets[2] == 0 {
            return Err(Discard::ZeroMultiplier);
        }
        if has(0) {
            return Err(Discard::Multipoint);
        }
        let field = |number: usize| {
            let at = 4 + 4 * number;
            u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
        };
        if field(0) == 0 {
            return Err(Discard::ZeroDiscriminator);
        }
        if authenticated {
            return Err(Discard::Authentication);
        }
        Ok(Self {
            diagnostic: Diagnostic::of(octets[0] & 0x1f),
            state: State::of(octets[1] >> 6),
            poll: has(5),
            is_final: has(4),
            control_plane_independent: has(3),
            demand: has(1),
            multiplier: octets[2],
            my_discriminator: field(0),
            your_discriminator: field(1),
            desired_min_tx: Micros(field(2)),
            required_min_rx: Micros(field(3)),
            required_min_echo_rx: Micros(field(4)),
        })
    }
}

impl State {
    const fn number(self) -> u8 {
        match self {
            Self::AdminDown => 0,
            Self::Down => 1,
            Self::Init => 2,
            Self::Up => 3,
        }
    }

    const fn of(number: u8) -> Self {
        match number & 3 {
            0 => Self::AdminDown,
            1 => Self::Down,
            2 => Self::Init,
            _ => Self::Up,
        }
    }

    /// `admin_down`, `down`, `init` or `up`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdminDown => "admin_down",
            Self::Down => "down",
            Self::Init => "init",
            Self::Up => "up",
        }
    }
}

impl Diagnostic {
    const fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::DetectionTimeExpired => 1,
            Self::EchoFailed => 2,
            Self::NeighbourSignalledDown => 3,
            Self::ForwardingPlaneReset => 4,
            Self::PathDown => 5,
            Self::ConcatenatedPathDown => 6,
            Self::AdministrativelyDown => 7,
            Self::ReverseConcatenatedPathDown => 8,
            Self::Reserved(number) => number & 0x1f,
        }
    }

    const fn of(number: u8) -> Self {
        match number {
            0 => Self::None,
            1 => Self::DetectionTimeExpired,
            2 => Self::EchoFailed,
            3 => Self::NeighbourSignalledDown,
            4 => Self::ForwardingPlaneReset,
            5 => Self::PathDown,
            6 => Self::ConcatenatedPathDown,
            7 => Self::AdministrativelyDown,
            8 => Self::ReverseConcatenatedPathDown,
            other => Self::Reserved(other & 0x1f),
        }
    }

    /// The name of RFC 5880 §4.1 in words of `_`: `detection_time_expired`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::DetectionTimeExpired => "detection_time_expired",
            Self::EchoFailed => "echo_failed",
            Self::NeighbourSignalledDown => "neighbour_signalled_down",
            Self::ForwardingPlaneReset => "forwarding_plane_reset",
            Self::PathDown => "path_down",
            Self::ConcatenatedPathDown => "concatenated_path_down",
            Self::AdministrativelyDown => "administratively_down",
            Self::ReverseConcatenatedPathDown => "reverse_concatenated_path_down",
            Self::Reserved(_) => "reserved",
        }
    }
}

impl Micros {
    /// The interval; those beyond 71 minutes are cut to what the field holds.
    pub fn of(duration: Duration) -> Self {
        Self(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX))
    }

    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0 as u64)
    }
}

const VERSION: u8 = 1;
/// Authentication type and length (RFC 5880 §4.1).
const AUTHENTICATION_BYTES_MIN: usize = 2;
