//! Versions of the protocol and its optional features.

use std::fmt;

/// The version that this gateway begins handshakes with, in the clear in every initiation.
pub const VERSION: u8 = 1;

/// A range of protocol versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    oldest: u8,
    newest: u8,
}

/// Optional parts of the protocol, one bit each.
///
/// Each side sends its set in the handshake; what both have may be used. Bits that a side does not
/// know are ignored, so that a later release can add some without another version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u16);

impl Versions {
    /// What this gateway speaks.
    pub const SUPPORTED: Self = Self::only(VERSION);

    /// The set with one version.
    pub const fn only(version: u8) -> Self {
        Self {
            oldest: version,
            newest: version,
        }
    }

    /// `None` if `oldest` is newer than `newest`.
    pub fn new(oldest: u8, newest: u8) -> Option<Self> {
        (oldest <= newest).then_some(Self { oldest, newest })
    }

    /// The oldest of them.
    pub const fn oldest(self) -> u8 {
        self.oldest
    }

    /// The newest of them.
    pub const fn newest(self) -> u8 {
        self.newest
    }

    /// Whether `version` is one of them.
    pub fn contains(self, version: u8) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

/// `2`, or `2 to 4`.
impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "{}", self.newest)
        } else {
            write!(f, "{} to {}", self.oldest, self.newest)
        }
    }
}

impl Features {
    /// No optional feature: what release 0.1.0 sends.
    pub const NONE: Self = Self(0);
    /// Answers an initiation of an unknown version with a version reply.
    pub const VERSION_REPLY: Self = Self(1);
    /// Puts together IP packets that come in parts.
    pub const SPLIT_PACKETS: Self = Self(1 << 1);
    /// Says which tenants are limited, and reports what a weight of 1 gets.
    pub const COMMON_UNIT: Self = Self(1 << 2);
    /// Connects split TCP connections of tenants to their servers.
    pub const TCP_SPLIT: Self = Self(1 << 3);
    /// Delivers the IP packets of a flow in order that come over several paths.
    pub const ORDERED_PACKETS: Self = Self(1 << 4);
    /// What this gateway has.
    pub const SUPPORTED: Self = Self(
        Self::VERSION_REPLY.0
            | Self::SPLIT_PACKETS.0
            | Self::COMMON_UNIT.0
            | Self::TCP_SPLIT.0
            | Self::ORDERED_PACKETS.0,
    );

    const NAMES: [(Self, &str); 5] = [
        (Self::VERSION_REPLY, "version-reply"),
        (Self::SPLIT_PACKETS, "split-packets"),
        (Self::COMMON_UNIT, "common-unit"),
        (Self::TCP_SPLIT, "tcp-split"),
        (Self::ORDERED_PACKETS, "ordered-packets"),
    ];

    /// From the bits of the handshake; unknown ones are kept.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The bits of the handshake.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// What both sets have.
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names of those that have one, in the order of their bits.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .into_iter()
            .filter(move |(feature, _)| self.contains(*feature))
            .map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_ranges_contain_their_ends_and_are_written_as_text() {
        let two_to_four = Versions::new(2, 4).unwrap();
        let contained = (0..=6).filter(|version| two_to_four.contains(*version));
        assert_eq!(contained.collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(two_to_four.to_string(), "2 to 4");
        assert_eq!(Versions::only(2).to_string(), "2");
        assert_eq!(Versions::new(3, 2), None);
    }

    #[test]
    fn features_of_a_later_release_are_ignored() {
        let theirs = Features::from_bits(0xff00 | Features::VERSION_REPLY.bits());
        let effective = theirs.intersection(Features::SUPPORTED);
        assert_eq!(effective, Features::VERSION_REPLY);
        assert_eq!(effective.names().collect::<Vec<_>>(), ["version-reply"]);
        assert!(!Features::NONE.contains(Features::VERSION_REPLY));
        assert_eq!(Features::NONE.names().next(), None);
    }
}
