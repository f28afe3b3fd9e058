//! Sealing and opening data packets with one pair of keys.

use aws_lc_rs::aead::{
    AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};

use crate::{
    config::{Cipher, TimingConfig},
    id::PathId,
    wire::{DATA_HEADER_LEN, TAG_LEN},
};

/// How much one key may be used.
///
/// A packet of up to [`SHORT_LEN_MAX`] bytes counts as one unit, a longer one as [`LONG_UNITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyLimits {
    /// Units that were sealed with a key before the next one is agreed on.
    pub(crate) rekey_units: u64,
    /// Units that are sealed with a key at most.
    pub(crate) sealed_units_max: u64,
    /// Packets under a key that were not authentic before the next one is agreed on.
    pub(crate) rekey_forged: u64,
    /// Packets under a key that may be found not authentic; then it is not used any more.
    pub(crate) forged_max: u64,
}

/// Longest packet of one unit: RFC 9001 §B.1 has its higher limits for packets up to this length.
const SHORT_LEN_MAX: usize = 1 << 11;
/// Units of a longer packet: 2^28 of the short ones are allowed, and 2^23 of the others.
const LONG_UNITS: u64 = 1 << 5;

impl KeyLimits {
    /// AES-GCM: RFC 9001 §6.6 and §B.1. ChaCha20-Poly1305: RFC 9001 §6.6; that it seals more packets
    /// than can be numbered leaves WireGuard's REKEY_AFTER_MESSAGES.
    pub(crate) const fn of(cipher: Cipher) -> Self {
        match cipher {
            Cipher::Aes256Gcm => Self {
                rekey_units: 1 << 27,
                sealed_units_max: 1 << 28,
                rekey_forged: 1 << 51,
                forged_max: 1 << 52,
            },
            Cipher::ChaCha20Poly1305 => Self {
                rekey_units: 1 << 60,
                sealed_units_max: 1 << 61,
                rekey_forged: 1 << 35,
                forged_max: 1 << 36,
            },
        }
    }

    /// The same or lower: for tests, which do not send 2^27 packets.
    pub(crate) fn lowered_to(self, timing: &TimingConfig) -> Self {
        Self {
            rekey_units: self.rekey_units.min(timing.rekey_after_packets),
            sealed_units_max: self.sealed_units_max.min(timing.reject_after_packets),
            rekey_forged: self.rekey_forged.min(timing.reject_after_forged / 2),
            forged_max: self.forged_max.min(timing.reject_after_forged),
        }
    }
}

/// What one key was used for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyUse {
    sealed_units: u64,
    forged: u64,
}

impl KeyUse {
    /// A packet of `len` bytes was sealed.
    pub(crate) fn on_sealed(&mut self, len: usize) {
        self.sealed_units += match len <= SHORT_LEN_MAX {
            true => 1,
            false => LONG_UNITS,
        };
    }

    /// A packet was not authentic.
    pub(crate) fn on_forged(&mut self) {
        self.forged += 1;
    }

    /// The next key is to be agreed on.
    pub(crate) fn is_worn(&self, limits: &KeyLimits) -> bool {
        self.sealed_units >= limits.rekey_units || self.forged >= limits.rekey_forged
    }

    /// The key may not be used for another packet, however long.
    pub(crate) fn is_used_up(&self, limits: &KeyLimits) -> bool {
        let sealed_max = limits
            .sealed_units_max
            .saturating_sub(LONG_UNITS - 1)
            .max(1);
        self.sealed_units >= sealed_max || self.forged >= limits.forged_max
    }
}

/// The keys of both directions of one key epoch. The library clears its keys when they are dropped.
///
/// The nonce is the path's number and the packet number of that path, so that every path has its
/// own packet-number space under one key.
pub(crate) struct PacketKeys {
    seal: LessSafeKey,
    open: LessSafeKey,
}

impl PacketKeys {
    pub(crate) fn new(cipher: Cipher, send: &[u8; 32], receive: &[u8; 32]) -> Self {
        let algorithm = match cipher {
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let [seal, open] = [send, receive].map(|bytes| {
            LessSafeKey::new(UnboundKey::new(algorithm, bytes).expect("both ciphers take 32 bytes"))
        });
        Self { seal, open }
    }

    /// Encrypts the packet that begins at `start` of `buf` (header, then clear text) in place and
    /// appends the tag.
    pub(crate) fn seal(&self, path: PathId, number: u64, buf: &mut Vec<u8>, start: usize) {
        let (header, body) = buf[start..].split_at_mut(DATA_HEADER_LEN);
        let tag = self
            .seal
            .seal_in_place_separate_tag(nonce(path.0, number), Aad::from(&*header), body)
            .expect("a packet is far below the cipher's limit");
        buf.extend_from_slice(tag.as_ref());
    }

    /// Decrypts a whole packet in place; the clear text, or `None` if it is not authentic.
    pub(crate) fn open<'a>(&self, path: u8, number: u64, packet: &'a mut [u8]) -> Option<&'a [u8]> {
        if packet.len() < DATA_HEADER_LEN + TAG_LEN {
            return None;
        }
        let (header, body) = packet.split_at_mut(DATA_HEADER_LEN);
        self.open
            .open_in_place(nonce(path, number), Aad::from(&*header), body)
            .ok()
            .map(|clear| &*clear)
    }
}

fn nonce(path: u8, number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[3] = path;
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_limits_match_rfc_9001() {
        let aes = KeyLimits::of(Cipher::Aes256Gcm);
        assert_eq!(aes.rekey_units, 1 << 27);
        assert_eq!(aes.sealed_units_max, 1 << 28);
        assert_eq!(aes.sealed_units_max / LONG_UNITS, 1 << 23);
        assert_eq!(aes.forged_max, 1 << 52);
        assert_eq!(SHORT_LEN_MAX, 2048);
        let chacha = KeyLimits::of(Cipher::ChaCha20Poly1305);
        assert_eq!(chacha.forged_max, 1 << 36);
        for limits in [aes, chacha] {
            assert!(limits.rekey_units < limits.sealed_units_max);
            assert!(limits.rekey_forged < limits.forged_max);
            // The defaults lower nothing.
            assert_eq!(limits.lowered_to(&TimingConfig::default()), limits);
        }
    }

    #[test]
    fn no_key_is_used_beyond_its_limit_by_packets_of_any_length() {
        let limits = KeyLimits::of(Cipher::Aes256Gcm);
        for (len, rekey, last) in [
            (2048, 1 << 27, (1 << 28) - 31),
            (2049, 1 << 22, 1 << 23),
            (65_000, 1 << 22, 1 << 23),
        ] {
            let units = if len > 2048 { 32 } else { 1 };
            let mut used = KeyUse {
                sealed_units: (rekey - 1) * units,
                forged: 0,
            };
            assert!(!used.is_worn(&limits), "{len}");
            used.on_sealed(len);
            assert!(used.is_worn(&limits) && !used.is_used_up(&limits), "{len}");
            used.sealed_units = (last - 1) * units;
            assert!(!used.is_used_up(&limits), "{len}");
            used.on_sealed(len);
            assert!(used.is_used_up(&limits), "{len}");
            assert!(used.sealed_units <= limits.sealed_units_max, "{len}");
        }
    }

    #[test]
    fn forged_packets_count_towards_the_integrity_limit() {
        for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let limits = KeyLimits::of(cipher);
            let mut used = KeyUse {
                sealed_units: 0,
                forged: limits.rekey_forged - 1,
            };
            assert!(!used.is_worn(&limits));
            used.on_forged();
            assert!(used.is_worn(&limits) && !used.is_used_up(&limits));
            used.forged = limits.forged_max - 1;
            assert!(!used.is_used_up(&limits));
            used.on_forged();
            assert!(used.is_used_up(&limits));
        }
    }

    #[test]
    fn sealed_packets_open_only_unaltered_with_their_path_and_number() {
        for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let a = PacketKeys::new(cipher, &[1; 32], &[2; 32]);
            let b = PacketKeys::new(cipher, &[2; 32], &[1; 32]);
            let mut sealed = vec![4; DATA_HEADER_LEN];
            sealed.extend_from_slice(b"clear text");
            a.seal(PathId(3), 77, &mut sealed, 0);
            assert_eq!(b.open(3, 77, &mut sealed.clone()), Some(&b"clear text"[..]));
            assert_eq!(b.open(2, 77, &mut sealed.clone()), None);
            assert_eq!(b.open(3, 78, &mut sealed.clone()), None);
            assert_eq!(a.open(3, 77, &mut sealed.clone()), None);
            for index in 0..sealed.len() {
                let mut altered = sealed.clone();
                altered[index] ^= 1;
                assert_eq!(b.open(3, 77, &mut altered), None, "byte {index}");
            }
        }
    }
}
