//! Derives seeds of components from the seed of a run.
//!
//! Every component that draws random numbers (a link, a gateway, a traffic source) has its own generator, so
//! that adding one does not affect the others.

use crate::trace::TraceHash;

/// The seed of part `index` of the kind `what`.
pub fn derive(seed: u64, what: &str, index: u64) -> u64 {
    let mut hash = TraceHash::new();
    hash.word(seed);
    hash.bytes(what.as_bytes());
    hash.word(index);
    mix(hash.value())
}

/// Like [`derive()`], with the length of a key.
pub fn derive_key(seed: u64, what: &str, index: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (part, chunk) in (0_u64..).zip(key.chunks_mut(8)) {
        let word = derive(derive(seed, what, index), "part", part);
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    key
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output
/// bit.
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn parts_have_different_seeds() {
        let mut seeds = BTreeSet::new();
        for seed in 0..10 {
            for index in 0..10 {
                for what in ["wire", "gateway", "gatewaz"] {
                    assert!(seeds.insert(derive(seed, what, index)));
                }
            }
        }
    }
}
