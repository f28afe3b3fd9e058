//! What a gateway's machine has no room for: the device's ring, which others' bursts fill, and the
//! socket's buffer. Both are counted as the kernel counts them, for the core to tell the peer.

use std::collections::BTreeMap;

use keiro_core::{Endpoint, SocketId};
use keiro_model::Instant;

use crate::scenario::Bursts;

/// Datagrams dropped so far.
#[derive(Debug, Default)]
pub(super) struct Drops {
    /// By interface: what the socket had no room for.
    sockets: BTreeMap<usize, u64>,
    /// What the device had no room for, others' datagrams included, of bursts that are over.
    system: u64,
    /// The bursts that go on, and since when.
    bursts: Option<(Instant, Bursts)>,
    /// What the core was told.
    told: Option<(BTreeMap<usize, u64>, u64)>,
}

impl Drops {
    /// Others send like this from now on; `None`: no more.
    pub(super) fn set_bursts(&mut self, now: Instant, bursts: Option<Bursts>) {
        self.system += self.of_bursts(now);
        self.bursts = bursts.map(|bursts| (now, bursts));
    }

    /// Whether the device has no room for what arrives now; counted if so.
    pub(super) fn ring_is_full(&mut self, now: Instant) -> bool {
        let is_full = self.bursts.is_some_and(|(since, bursts)| {
            let nanos = bursts.every.as_nanos().max(1);
            let into = (now - since).as_nanos() % nanos;
            let gap = bursts.gap.as_nanos();
            let from = gap * u128::from(bursts.ring);
            (from..gap * u128::from(bursts.datagrams)).contains(&into)
        });
        self.system += u64::from(is_full);
        is_full
    }

    pub(super) fn on_socket_full(&mut self, interface: usize) {
        *self.sockets.entry(interface).or_default() += 1;
    }

    /// Tells the core what is new.
    pub(super) fn tell(&mut self, now: Instant, endpoint: &mut Endpoint, interfaces: usize) {
        let system = self.system + self.of_bursts(now);
        let is_told = |(sockets, known): &(BTreeMap<usize, u64>, u64)| {
            *sockets == self.sockets && *known == system
        };
        if self.told.as_ref().is_some_and(is_told) {
            return;
        }
        for interface in 0..interfaces {
            let own = self.sockets.get(&interface).copied().unwrap_or_default();
            endpoint.set_overflows(SocketId(interface as u16), own, system);
        }
        self.told = Some((self.sockets.clone(), system));
    }

    /// Nobody was told: the endpoint is a new one.
    pub(super) fn forget_told(&mut self) {
        self.told = None;
    }

    /// Others' datagrams that the ring had no room for since the bursts began, in whole bursts.
    fn of_bursts(&self, now: Instant) -> u64 {
        let Some((since, bursts)) = self.bursts else {
            return 0;
        };
        let whole = (now - since).as_nanos() / bursts.every.as_nanos().max(1);
        let each = bursts.datagrams.saturating_sub(bursts.ring);
        u64::try_from(whole)
            .unwrap_or(u64::MAX)
            .saturating_mul(each.into())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_ring_is_full_from_its_last_slot_to_the_end_of_the_burst() {
        let bursts = Bursts {
            datagrams: 600,
            gap: Duration::from_micros(1),
            every: Duration::from_millis(50),
            ring: 256,
        };
        let mut drops = Drops::default();
        let at = |micros| Instant::ZERO + Duration::from_micros(micros);
        assert!(!drops.ring_is_full(at(300)), "nobody sends");
        drops.set_bursts(at(0), Some(bursts));
        for (micros, full) in [
            (0, false),
            (255, false),
            (256, true),
            (599, true),
            (600, false),
            (50_256, true),
        ] {
            assert_eq!(drops.ring_is_full(at(micros)), full, "{micros} µs");
        }
        drops.set_bursts(at(100_000), None);
        assert!(!drops.ring_is_full(at(100_300)));
        // Three of ours, and of two bursts what the ring did not hold.
        assert_eq!(drops.system, 3 + 2 * 344);
    }
}
