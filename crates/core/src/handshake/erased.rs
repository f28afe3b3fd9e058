//! The primitives of the handshake and its state, erased when they are dropped: snow erases nothing.
//!
//! What snow and the primitives have on the stack while they compute is not covered; the next calls
//! overwrite it.

use std::{
    hint::black_box,
    ops::{Deref, DerefMut},
};

use curve25519_dalek::montgomery::MontgomeryPoint;
use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};
use snow::{
    Builder, Error, HandshakeState,
    params::{CipherChoice, DHChoice, HashChoice},
    resolvers::{CryptoResolver, DefaultResolver},
    types::{Cipher, Dh, Hash, Random},
};
use zeroize::{Zeroize, Zeroizing};

/// Needs no key, so that a state of it is cheap.
const BLANK_PATTERN: &str = "Noise_NN_25519_ChaChaPoly_BLAKE2s";
const KEY_LEN: usize = 32;

/// A handshake's state, with chaining key and pre-shared key. It does not move: a copy would stay
/// behind.
pub(super) struct ErasedState(Box<HandshakeState>);

impl ErasedState {
    pub(super) fn new(state: HandshakeState) -> Self {
        Self(Box::new(state))
    }
}

impl Deref for ErasedState {
    type Target = HandshakeState;

    fn deref(&self) -> &HandshakeState {
        &self.0
    }
}

impl DerefMut for ErasedState {
    fn deref_mut(&mut self) -> &mut HandshakeState {
        &mut self.0
    }
}

impl Drop for ErasedState {
    fn drop(&mut self) {
        // Its fields are not accessible, but another state may take its place in memory.
        *self.0 = blank();
        black_box(&mut *self.0);
    }
}

fn blank() -> HandshakeState {
    let params = BLANK_PATTERN.parse().expect("the pattern is a constant");
    Builder::with_resolver(params, Box::new(ErasedResolver::new([0; 32])))
        .build_initiator()
        .expect("the pattern needs no keys")
}

/// X25519 (RFC 7748 §5) of a private key's bytes: the public key.
pub(super) fn public_key(private: &[u8; KEY_LEN]) -> [u8; KEY_LEN] {
    MontgomeryPoint::mul_base_clamped(*private).to_bytes()
}

/// Primitives that are erased when dropped, with randomness that was given, not drawn from the
/// system.
pub(super) struct ErasedResolver {
    seed: Zeroizing<[u8; 32]>,
}

impl ErasedResolver {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        Self {
            seed: Zeroizing::new(seed),
        }
    }
}

impl CryptoResolver for ErasedResolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        let random = ChaCha20Rng::from_seed(*self.seed);
        Some(Box::new(SeededRandom(random)))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        match choice {
            DHChoice::Curve25519 => Some(Box::<ErasedDh>::default()),
            _ => None,
        }
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        let hash = DefaultResolver.resolve_hash(choice)?;
        Some(Box::new(ErasedHash(hash)))
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        let cipher = DefaultResolver.resolve_cipher(choice)?;
        Some(Box::new(ErasedCipher(cipher)))
    }
}

struct SeededRandom(ChaCha20Rng);

impl Random for SeededRandom {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        self.0.fill_bytes(dest);
        Ok(())
    }
}

impl Drop for SeededRandom {
    fn drop(&mut self) {
        // The ephemeral key could be computed again from it.
        self.0 = ChaCha20Rng::from_seed([0; 32]);
        black_box(&mut self.0);
    }
}

/// An X25519 key pair.
#[derive(Default)]
struct ErasedDh {
    private: Zeroizing<[u8; KEY_LEN]>,
    public: [u8; KEY_LEN],
}

impl Dh for ErasedDh {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_LEN
    }

    fn priv_len(&self) -> usize {
        KEY_LEN
    }

    fn set(&mut self, private: &[u8]) {
        self.private.copy_from_slice(private);
        self.public = public_key(&self.private);
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        random.try_fill_bytes(&mut *self.private)?;
        self.public = public_key(&self.private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &*self.private
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let public: [u8; KEY_LEN] = public
            .get(..KEY_LEN)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(Error::Dh)?;
        let mut shared = MontgomeryPoint(public)
            .mul_clamped(*self.private)
            .to_bytes();
        out[..KEY_LEN].copy_from_slice(&shared);
        shared.zeroize();
        Ok(())
    }
}

/// A hash whose last block, which may be of a key, is erased.
struct ErasedHash(Box<dyn Hash>);

impl Hash for ErasedHash {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn block_len(&self) -> usize {
        self.0.block_len()
    }

    fn hash_len(&self) -> usize {
        self.0.hash_len()
    }

    fn reset(&mut self) {
        self.0.reset();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.input(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        self.0.result(out);
    }
}

impl Drop for ErasedHash {
    fn drop(&mut self) {
        // Two blocks, so that the first is taken in and the second lies in the buffer.
        self.0.reset();
        let blocks = vec![0; 2 * self.0.block_len()];
        self.0.input(&blocks);
        black_box(&mut *self.0);
    }
}

struct ErasedCipher(Box<dyn Cipher>);

impl Cipher for ErasedCipher {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn set(&mut self, key: &[u8; KEY_LEN]) {
        self.0.set(key);
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        self.0.encrypt(nonce, authtext, plaintext, out)
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        self.0.decrypt(nonce, authtext, ciphertext, out)
    }
}

impl Drop for ErasedCipher {
    fn drop(&mut self) {
        self.0.set(&[0; KEY_LEN]);
        black_box(&mut *self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_agreement_matches_rfc_7748() {
        // RFC 7748 §5.2, the second vector, and §6.1.
        let scalar = [
            0x4b, 0x66, 0xe9, 0xd4, 0xd1, 0xb4, 0x67, 0x3c, 0x5a, 0xd2, 0x26, 0x91, 0x95, 0x7d,
            0x6a, 0xf5, 0xc1, 0x1b, 0x64, 0x21, 0xe0, 0xea, 0x01, 0xd4, 0x2c, 0xa4, 0x16, 0x9e,
            0x79, 0x18, 0xba, 0x0d,
        ];
        let mut dh = ErasedDh::default();
        dh.set(&scalar);
        let mut library = DefaultResolver
            .resolve_dh(&DHChoice::Curve25519)
            .expect("snow is built with Curve25519");
        library.set(&scalar);
        assert_eq!(dh.pubkey(), library.pubkey());
        let peer = public_key(&[9; 32]);
        let (mut ours, mut theirs) = ([0; 32], [0; 32]);
        dh.dh(&peer, &mut ours).expect("a whole key");
        library.dh(&peer, &mut theirs).expect("a whole key");
        assert_eq!(ours, theirs);
        assert!(dh.dh(&peer[..31], &mut ours).is_err());
    }
}
