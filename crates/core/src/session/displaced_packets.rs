//! Packets that strangers displace: a flood that fills the buffer of a socket makes it drop packets of peers as well.
//!
//! The receiver estimates how many of each path's packets that were, and reports it. It does not see what was
//! dropped: as large a share of it is taken to be a path's as of what arrived.

use super::aggregation::receiver::ReceiveOverflows;

/// What the counters of a socket show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketDrops {
    /// Those that there would have been without strangers, in all.
    pub(crate) of_peers: ReceiveOverflows,
    pub(crate) strangers: UnauthenticatedDrops,
}

/// What a socket dropped because of strangers since its counters were read last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnauthenticatedDrops {
    pub(crate) dropped: u64,
    /// Datagrams of all senders that arrived since then, and half of what was there before.
    pub(crate) arrivals: u64,
}

/// The packets of one path of the peer that strangers have displaced at its socket here.
#[derive(Debug, Default)]
pub(crate) struct DisplacedPackets {
    /// Packets that arrived, as in [`UnauthenticatedDrops::arrivals`].
    arrived: Parts,
    /// In all.
    displaced: Parts,
    /// In all, as the peer was informed.
    reported: u64,
}

/// Parts of a packet: few are displaced of a path that carries little.
type Parts = u64;
const PARTS: Parts = 1 << 16;

impl DisplacedPackets {
    pub(crate) fn on_packet(&mut self) {
        self.arrived = self.arrived.saturating_add(PARTS);
    }

    pub(crate) fn on_drops(&mut self, drops: UnauthenticatedDrops) {
        let all = u128::from(drops.arrivals) * u128::from(PARTS);
        let own = u128::from(self.arrived).min(all);
        let displaced = u128::from(drops.dropped) * u128::from(PARTS) * own / all.max(1);
        let displaced = Parts::try_from(displaced).unwrap_or(Parts::MAX);
        self.displaced = self.displaced.saturating_add(displaced);
        self.arrived /= 2;
    }

    /// More was displaced than the peer was informed of.
    pub(crate) fn is_news(&self) -> bool {
        self.displaced / PARTS > self.reported
    }

    /// The packets that were displaced in all; the peer is informed of them.
    pub(crate) fn take_report(&mut self) -> u64 {
        self.reported = self.displaced / PARTS;
        self.reported
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.reported <= self.displaced / PARTS,
            "what is reported was displaced"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_split_among_paths_by_their_arrivals() {
        let mut path = DisplacedPackets::default();
        let drops = UnauthenticatedDrops {
            dropped: 100,
            arrivals: 400,
        };
        path.on_drops(drops);
        assert!(!path.is_news(), "nothing of it came");
        for _ in 0..8 {
            path.on_packet();
        }
        path.on_drops(drops);
        assert!(path.is_news());
        assert_eq!(path.take_report(), 2);
        assert!(!path.is_news());
        // Half of what came before counts once more.
        path.on_drops(drops);
        assert_eq!(path.take_report(), 3);
    }

    #[test]
    fn impossible_counts_are_tolerated() {
        let mut path = DisplacedPackets::default();
        for dropped in [0, u64::MAX] {
            for arrivals in [0, 1, u64::MAX] {
                path.on_packet();
                path.on_drops(UnauthenticatedDrops { dropped, arrivals });
                path.take_report();
                path.check_invariants();
            }
        }
    }
}
