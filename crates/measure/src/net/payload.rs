//! What transfers consist of: bytes that no device on the way can compress.

use std::sync::OnceLock;

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// Bytes read or written in one call at most.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Random bytes, the same every time; transfers repeat them.
pub(crate) fn payload() -> &'static [u8] {
    static PAYLOAD: OnceLock<Vec<u8>> = OnceLock::new();
    PAYLOAD.get_or_init(|| {
        let mut bytes = vec![0; CHUNK_BYTES];
        ChaCha12Rng::seed_from_u64(0).fill_bytes(&mut bytes);
        bytes
    })
}
