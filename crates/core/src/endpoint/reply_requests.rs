//! Which strangers have asked for a cookie or for the versions spoken here before, and got no answer.
//!
//! A flood from forged addresses comes from another address each time; a host that wants an answer
//! asks again from its own. Those that ask again are answered first. What is kept is a table of hashes
//! with one entry per place: a newer address takes the place of an older one.

use std::net::IpAddr;

/// Places, 4 bytes each. Ours: among 150,000 forged addresses per second an address is still known
/// after half a second in nine of ten cases.
const PLACES_BITS: u32 = 20;
const ANSWERED: u32 = 1 << 31;

/// Earlier requests of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestHistory {
    Never,
    /// Its request was not answered.
    Unanswered,
    Answered,
}

/// The addresses whose requests came last, by hash.
pub(super) struct ReplyRequestTable {
    seed: [u64; 3],
    /// Of the address that asked last, for each place: its fingerprint, and whether it was answered.
    places: Vec<u32>,
}

impl ReplyRequestTable {
    /// `seed` must be unpredictable, so that no one can choose addresses that share a place.
    pub(super) fn new(seed: [u64; 3]) -> Self {
        Self {
            seed,
            places: vec![0; 1 << PLACES_BITS],
        }
    }

    /// Notes that `source` asks for a reply.
    pub(super) fn on_request(&mut self, source: IpAddr) -> RequestHistory {
        let (place, fingerprint) = self.find(source);
        let entry = &mut self.places[place];
        match *entry {
            known if known == fingerprint => RequestHistory::Unanswered,
            known if known == fingerprint | ANSWERED => RequestHistory::Answered,
            _ => {
                *entry = fingerprint;
                RequestHistory::Never
            }
        }
    }

    /// `source` is answered.
    pub(super) fn on_answered(&mut self, source: IpAddr) {
        let (place, fingerprint) = self.find(source);
        self.places[place] = fingerprint | ANSWERED;
    }

    /// The place of an address and its fingerprint, which is not zero.
    fn find(&self, source: IpAddr) -> (usize, u32) {
        let bits = match source {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let [low, high] = [bits as u64, (bits >> 64) as u64];
        // The NH family of universal hashes (RFC 4418 §5.2) with one block.
        let product = u128::from(low.wrapping_add(self.seed[0]))
            * u128::from(high.wrapping_add(self.seed[1]));
        let mixed = (product as u64 ^ (product >> 64) as u64).wrapping_mul(self.seed[2] | 1);
        let place = (mixed >> (u64::BITS - PLACES_BITS)) as usize;
        let fingerprint = (mixed >> 8) as u32 & !ANSWERED;
        (place, fingerprint.max(1))
    }
}
