//! Seeds of handshakes, from which their ephemeral keys are made.
//!
//! The endpoint's random numbers could all be computed again from its present state, and with them the
//! ephemeral keys, and so every key that was ever agreed on. Each seed therefore also depends on a secret
//! that is replaced by its hash whenever it was used.

use blake2::{Blake2s256, Digest};
use rand_chacha::ChaCha20Rng;
use rand_core::RngCore;
use zeroize::{Zeroize, Zeroizing};

/// The secret behind the seeds of handshakes to come.
#[derive(Default)]
pub(super) struct HandshakeSeeds {
    secret: Zeroizing<[u8; 32]>,
}

impl HandshakeSeeds {
    /// The seed of the next handshake.
    pub(super) fn draw(&mut self, random: &mut ChaCha20Rng) -> [u8; 32] {
        let mut drawn = [0; 32];
        random.fill_bytes(&mut drawn);
        let seed = self.hash(b"keiro handshake seed 1", &drawn);
        *self.secret = self.hash(b"keiro next seed 1", &drawn);
        drawn.zeroize();
        seed
    }

    /// Mixes in what is not known from the state of the random numbers.
    pub(super) fn mix(&mut self, entropy: &[u8; 32]) {
        *self.secret = self.hash(b"keiro entropy 1", entropy);
    }

    fn hash(&self, label: &[u8], more: &[u8; 32]) -> [u8; 32] {
        let mut hash = Blake2s256::new();
        hash.update(label);
        hash.update(*self.secret);
        hash.update(more);
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn past_seeds_cannot_be_derived_from_the_state() {
        let random = || ChaCha20Rng::from_seed([1; 32]);
        let mut seeds = HandshakeSeeds::default();
        seeds.mix(&[7; 32]);
        let before = *seeds.secret;
        let mut state = random();
        let first = seeds.draw(&mut state);
        let second = seeds.draw(&mut state);
        assert_ne!(first, second);
        assert_ne!(before, *seeds.secret);
        // The random numbers are computed again from the beginning: with the present secret they
        // give other seeds.
        let mut stolen = HandshakeSeeds {
            secret: seeds.secret.clone(),
        };
        let mut again = random();
        for _ in 0..2 {
            let seed = stolen.draw(&mut again);
            assert!(seed != first && seed != second);
        }
    }

    #[test]
    fn seeds_are_the_same_for_the_same_numbers() {
        let draw = |entropy: Option<[u8; 32]>| {
            let mut seeds = HandshakeSeeds::default();
            if let Some(entropy) = entropy {
                seeds.mix(&entropy);
            }
            seeds.draw(&mut ChaCha20Rng::from_seed([1; 32]))
        };
        assert_eq!(draw(None), draw(None));
        assert_ne!(draw(None), draw(Some([0; 32])));
    }
}
