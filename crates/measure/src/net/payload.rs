//! Payload of transfers: bytes that no device on the path can compress.

use std::sync::OnceLock;

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// Maximum of bytes per read or write.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Pseudo-random bytes with a fixed seed, repeated as needed.
pub(crate) fn payload() -> &'static [u8] {
    static PAYLOAD: OnceLock<Vec<u8>> = OnceLock::new();
    PAYLOAD.get_or_init(|| {
        let mut bytes = vec![0; CHUNK_BYTES];
        ChaCha12Rng::seed_from_u64(0).fill_bytes(&mut bytes);
        bytes
    })
}
