//! Bodies that can be told apart: random bytes from a key, so that nothing altered, mixed up or
//! cut passes for them.

use crate::seed::mix;

/// Datagrams at least this long carry their index, shorter ones do not.
pub(crate) const INDEX_LEN: usize = 8;

/// `len` bytes that depend on every bit of `key`.
pub(crate) fn body(key: u64, len: usize) -> Vec<u8> {
    let mut body = vec![0; len];
    for (word, chunk) in (0_u64..).zip(body.chunks_mut(8)) {
        // SplitMix64: a counter in steps of the golden ratio, finalised.
        let bytes = mix(key.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    body
}

/// As [`body`], with `index` in front where there is room.
pub(crate) fn datagram(key: u64, index: u64, len: usize) -> Vec<u8> {
    let mut datagram = body(key, len);
    if let Some(front) = datagram.first_chunk_mut::<INDEX_LEN>() {
        *front = index.to_be_bytes();
    }
    datagram
}

/// The index of a datagram; `None` if it is too short to have one.
pub(crate) fn index_of(datagram: &[u8]) -> Option<u64> {
    datagram
        .first_chunk::<INDEX_LEN>()
        .map(|front| u64::from_be_bytes(*front))
}
