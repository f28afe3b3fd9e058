//! A hash that compares runs.

use keiro_units::Instant;

/// FNV-1a's offset basis and prime (64 bit).
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// A running hash over all activity of links: FNV-1a on words of 64 bits instead of bytes, with a rotation so
/// that high bits reach low ones. It distinguishes runs; it is not cryptographic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHash(u64);

impl TraceHash {
    pub const fn new() -> Self {
        Self(OFFSET)
    }

    /// Adds a number.
    pub const fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(PRIME).rotate_left(23);
    }

    /// Adds bytes and their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
    }

    /// Adds an instant.
    pub const fn instant(&mut self, at: Instant) {
        self.word(at.as_nanos());
    }

    /// The hash so far.
    pub const fn value(self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    /// The hash of one byte string.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut hash = Self::new();
        hash.bytes(bytes);
        hash.value()
    }
}

impl Default for TraceHash {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_length_count() {
        let message = [7_u8; 100];
        let hash = TraceHash::of(&message);
        for bit in 0..800 {
            let mut other = message;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(TraceHash::of(&other), hash, "bit {bit}");
        }
        assert_ne!(TraceHash::of(&message[..99]), hash);
        assert_ne!(TraceHash::of(&[0; 8]), TraceHash::of(&[0; 16]));
    }
}
