//! Drops of a gateway's machine: by the device's ring, which cross traffic fills in bursts, and by the
//! socket's buffer. Both are counted as the kernel counts them, and the core reports them to the peer.

use std::{collections::BTreeMap, time::Duration};

use keiro_core::{Endpoint, SocketId};
use keiro_units::Instant;

use crate::{scenario::Bursts, seed};

/// Datagrams dropped so far.
#[derive(Debug)]
pub(super) struct Drops {
    /// Phases of the bursts' intervals.
    seed: u64,
    /// Drops of the socket, by interface.
    sockets: BTreeMap<usize, u64>,
    /// Drops of the device in completed bursts, cross traffic included.
    system: u64,
    /// The running bursts, and their start.
    bursts: Option<(Instant, Bursts)>,
    /// Counts that the core already has.
    reported: Option<(BTreeMap<usize, u64>, u64)>,
}

impl Drops {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            seed,
            sockets: BTreeMap::new(),
            system: 0,
            bursts: None,
            reported: None,
        }
    }

    /// Starts these bursts of cross traffic; `None` stops them.
    pub(super) fn set_bursts(&mut self, now: Instant, bursts: Option<Bursts>) {
        self.system += self.of_bursts(now);
        self.bursts = bursts.map(|bursts| (now, bursts));
    }

    /// Whether the device has no room for an arriving datagram; counts it if so.
    pub(super) fn ring_is_full(&mut self, now: Instant) -> bool {
        let is_full = self.bursts.is_some_and(|(since, bursts)| {
            let (_, begins, into) = self.slot(now, since, &bursts);
            let full_at = begins.saturating_add(length(&bursts, bursts.ring));
            (full_at..begins.saturating_add(length(&bursts, bursts.datagrams))).contains(&into)
        });
        self.system += u64::from(is_full);
        is_full
    }

    pub(super) fn on_socket_full(&mut self, interface: usize) {
        *self.sockets.entry(interface).or_default() += 1;
    }

    /// Passes new counts to the core.
    pub(super) fn report(&mut self, now: Instant, endpoint: &mut Endpoint, interfaces: usize) {
        let system = self.system + self.of_bursts(now);
        let is_notified = |(sockets, known): &(BTreeMap<usize, u64>, u64)| {
            *sockets == self.sockets && *known == system
        };
        if self.reported.as_ref().is_some_and(is_notified) {
            return;
        }
        for interface in 0..interfaces {
            let own = self.sockets.get(&interface).copied().unwrap_or_default();
            endpoint.set_overflows(SocketId(interface as u16), own, system);
        }
        self.reported = Some((self.sockets.clone(), system));
    }

    /// A new endpoint has no counts yet.
    pub(super) fn forget_announced(&mut self) {
        self.reported = None;
    }

    /// Datagrams of cross traffic that the ring dropped since the bursts began, in completed bursts.
    fn of_bursts(&self, now: Instant) -> u64 {
        let Some((since, bursts)) = self.bursts else {
            return 0;
        };
        let (slot, begins, into) = self.slot(now, since, &bursts);
        let over_at = begins.saturating_add(length(&bursts, bursts.datagrams));
        let whole = slot + u64::from(into >= over_at);
        let each = bursts.datagrams.saturating_sub(bursts.ring);
        whole.saturating_mul(each.into())
    }

    /// Every interval `every` has one burst, which begins in its first half. Returns the index of the present
    /// interval, the offset of the burst in it, and the time since its start.
    fn slot(&self, now: Instant, since: Instant, bursts: &Bursts) -> (u64, u64, u64) {
        let (every, passed) = (nanos(bursts.every).max(1), nanos(now - since));
        let slot = passed / every;
        let begins = seed::derive(self.seed, "burst", slot) % (every / 2).max(1);
        (slot, begins, passed % every)
    }
}

/// Duration of this many datagrams of a burst.
fn length(bursts: &Bursts, datagrams: u32) -> u64 {
    nanos(bursts.gap).saturating_mul(datagrams.into())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_full_from_its_last_slot_to_the_end_of_every_burst() {
        let bursts = Bursts {
            datagrams: 600,
            gap: Duration::from_micros(1),
            every: Duration::from_millis(50),
            ring: 256,
        };
        let mut drops = Drops::new(1);
        let at = |micros| Instant::ZERO + Duration::from_micros(micros);
        assert!(!drops.ring_is_full(at(300)), "no traffic");
        drops.set_bursts(at(0), Some(bursts));
        // One of our datagrams per microsecond for two seconds.
        let full: Vec<u64> = (0..2_000_000)
            .filter(|micros| drops.ring_is_full(at(*micros)))
            .collect();
        let bursts: Vec<&[u64]> = full.chunk_by(|one, next| one + 1 == *next).collect();
        assert_eq!(bursts.len(), 40);
        assert!(bursts.iter().all(|burst| burst.len() == 344));
        let gaps: Vec<u64> = bursts.windows(2).map(|two| two[1][0] - two[0][0]).collect();
        assert!(gaps.iter().all(|gap| (25_000..=75_000).contains(gap)));
        assert!(gaps.iter().max() > gaps.iter().min());
        // Ours, and the cross traffic of every burst.
        drops.set_bursts(at(2_000_000), None);
        assert!(!drops.ring_is_full(at(2_000_300)));
        assert_eq!(drops.system, 2 * 40 * 344);
    }
}
