//! Names of things inside one endpoint, and the few that are on the wire.

use std::fmt;

use blake2::{Blake2s256, Digest};

/// A peer in this endpoint's table; never on the wire, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

/// A path to one peer, numbered by the sending side.
///
/// It names a packet-number space and is part of the AEAD nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

/// A bound UDP socket of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u16);

/// An application on the wire: the first four bytes of the BLAKE2s hash of its name.
///
/// Both gateways derive the same number from the same name without asking each other. The
/// configuration refuses two names that collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u32);

/// Whose traffic it is; both gateways call it the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

impl TenantId {
    /// The default tenant: control frames, and applications without a tenant of their own.
    pub const ZERO: Self = Self(0);
}

/// One client of a datagram listener; replies carry the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// A message of one sending endpoint to one peer, in order of acceptance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

/// A stream of one session, opened by us or by the peer. Never used again, even if the peer
/// restarts and counts from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u64);

impl StreamId {
    /// Bits of the number on the wire; above them is the life of the peer.
    const WIRE_BITS: u32 = 48;

    /// Our `number`th to the peer in its `life`th life.
    pub(crate) const fn of_ours(life: u16, number: u64) -> Self {
        Self((life as u64) << Self::WIRE_BITS | number << 1)
    }

    /// This side opened the stream.
    pub const fn is_ours(self) -> bool {
        self.0 & 1 == 0
    }

    /// How many its opener has opened before, in this life of the peer.
    pub const fn number(self) -> u64 {
        self.to_wire() >> 1
    }

    /// As the frames of the sender call it: the lowest bit says that the other side opened it.
    pub(crate) const fn to_wire(self) -> u64 {
        self.0 & ((1 << Self::WIRE_BITS) - 1)
    }

    /// Ours and the peer's are the other way round at the peer. `None`: beyond all that there are.
    pub(crate) const fn from_wire(life: u16, wire: u64) -> Option<Self> {
        if wire >> Self::WIRE_BITS != 0 {
            return None;
        }
        Some(Self((life as u64) << Self::WIRE_BITS | wire ^ 1))
    }
}

impl AppId {
    /// The wire number of the application called `name`.
    pub fn of_name(name: &str) -> Self {
        let hash = Blake2s256::digest(name.as_bytes());
        Self(u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]))
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
