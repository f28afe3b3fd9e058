//! Where a tenant's packets go, noted so that the control thread learns of each destination once in a while.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use keiro_core::Instant;

/// Addresses that are noted within [`AGAIN_AFTER`]; others are left out. Ours.
const NOTED_MAX: usize = 256;
/// How often an address is reported that packets still go to. Ours.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Destinations of a tenant's packets.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    /// Most packets go where the one before them went.
    last: Option<IpAddr>,
    noted: BTreeSet<IpAddr>,
    new: Vec<IpAddr>,
    forget_at: Option<Instant>,
}

impl Destinations {
    #[inline]
    pub(super) fn note(&mut self, now: Instant, destination: IpAddr) {
        if self.forget_at.is_none_or(|at| at <= now) {
            self.forget_at = Some(now + AGAIN_AFTER);
            self.noted.clear();
            self.last = None;
        }
        if self.last == Some(destination) {
            return;
        }
        self.last = Some(destination);
        if self.noted.len() < NOTED_MAX && self.noted.insert(destination) {
            self.new.push(destination);
        }
    }

    /// Those that have been noted since the last call.
    pub(super) fn take_new(&mut self) -> std::vec::Drain<'_, IpAddr> {
        self.new.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_destination_is_reported_once_in_a_while_and_not_too_many() {
        let mut destinations = Destinations::default();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        let mut noted = |seconds: u64, numbers: &[u32]| -> Vec<IpAddr> {
            let now = Instant::ZERO + Duration::from_secs(seconds);
            for number in numbers {
                destinations.note(now, address(*number));
            }
            destinations.take_new().collect()
        };
        assert_eq!(noted(0, &[1, 1, 2, 1]), [address(1), address(2)]);
        assert!(noted(29, &[1, 2]).is_empty());
        assert_eq!(noted(30, &[1]), [address(1)]);
        let many: Vec<u32> = (0..10_000).collect();
        assert_eq!(noted(60, &many).len(), NOTED_MAX);
    }
}
