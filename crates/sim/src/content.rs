//! Distinguishable bodies: pseudo-random bytes from a key, so that altered, mixed up or truncated content is
//! detected.

use crate::seed::mix;

/// Datagrams at least this long carry their index, shorter ones do not.
pub(crate) const INDEX_LEN: usize = 8;

/// `len` bytes that depend on every bit of `key`.
pub(crate) fn body(key: u64, len: usize) -> Vec<u8> {
    let mut body = vec![0; len];
    for (word, chunk) in (0_u64..).zip(body.chunks_mut(8)) {
        chunk.copy_from_slice(&word_of(key, word)[..chunk.len()]);
    }
    body
}

/// Fills `out` with the bytes from `offset` on of an endless content that depends on `key`.
pub(crate) fn fill(key: u64, offset: u64, out: &mut [u8]) {
    let mut at = 0;
    while at < out.len() {
        if (offset + at as u64).is_multiple_of(8)
            && let Some(chunk) = out[at..].first_chunk_mut::<8>()
        {
            *chunk = word_of(key, (offset + at as u64) / 8);
            at += 8;
            continue;
        }
        let position = offset + at as u64;
        let (word, within) = (position / 8, (position % 8) as usize);
        let len = (8 - within).min(out.len() - at);
        out[at..at + len].copy_from_slice(&word_of(key, word)[within..within + len]);
        at += len;
    }
}

/// Index of the first of `bytes` that differs from the output of [`fill`] for `key` from `offset` on; `None`
/// if none differs.
pub(crate) fn first_wrong(key: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut at = 0;
    while at < bytes.len() {
        if (offset + at as u64).is_multiple_of(8)
            && let Some(chunk) = bytes[at..].first_chunk::<8>()
            && *chunk == word_of(key, (offset + at as u64) / 8)
        {
            at += 8;
            continue;
        }
        let position = offset + at as u64;
        let (word, within) = (position / 8, (position % 8) as usize);
        let len = (8 - within).min(bytes.len() - at);
        let expected = word_of(key, word);
        if bytes[at..at + len] != expected[within..within + len] {
            let same = bytes[at..].iter().zip(&expected[within..]);
            return Some(position + same.take_while(|(is, should)| is == should).count() as u64);
        }
        at += len;
    }
    None
}

/// Like [`body`], with `index` in front if there is room.
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

/// SplitMix64: a counter in steps of the golden ratio, finalised.
const fn word_of(key: u64, word: u64) -> [u8; 8] {
    mix(key.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_content_is_the_same_wherever_it_is_cut() {
        let whole = body(7, 100);
        for start in 0..40 {
            for len in 0..40 {
                let mut part = vec![0; len];
                fill(7, start as u64, &mut part);
                assert_eq!(part, whole[start..start + len]);
                assert_eq!(first_wrong(7, start as u64, &part), None);
                if let Some(byte) = part.last_mut() {
                    *byte ^= 1;
                    let wrong = (start + len - 1) as u64;
                    assert_eq!(first_wrong(7, start as u64, &part), Some(wrong));
                }
            }
        }
    }
}
