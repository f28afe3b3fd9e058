//! Sealing and opening data packets with one pair of keys.

use aws_lc_rs::aead::{
    AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};

use crate::{
    config::Cipher,
    id::PathId,
    wire::{DATA_HEADER_LEN, TAG_LEN},
};

/// The keys of both directions of one key epoch.
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
