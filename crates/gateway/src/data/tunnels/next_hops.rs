//! Which of several peers a packet takes that lead to the same network, as the two hubs of a network of sites do.
//!
//! The first that is up, in the order that the tenant has them. A peer that comes back is held down for a while: a path
//! that comes and goes would otherwise move all packets each time.

use std::{collections::BTreeMap, time::Duration};

use keiro_core::{Instant, PeerId};

/// How long a peer that was down must be up before it is preferred again. Ours: longer than its other sessions need to
/// come back.
const HOLD_DOWN_MIN: Duration = Duration::from_secs(10);
/// It doubles with each further failure, up to this. Ours.
const HOLD_DOWN_MAX: Duration = Duration::from_secs(320);
/// A peer that has been up for so long has no failures on its account. Ours.
const PROVEN_AFTER: Duration = Duration::from_secs(600);
/// How long a direct session must be up before packets take it. Ours: the other end knows the tenant by then, and the
/// first probes of the MTU are answered.
pub(super) const DIRECT_SETTLE_TIME: Duration = Duration::from_millis(200);

/// Peers and since when they may be preferred.
#[derive(Debug, Default)]
pub(super) struct NextHops {
    peers: BTreeMap<PeerId, PeerHistory>,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextHop {
    pub(super) peer: PeerId,
    /// It is another one than it would be if all were up.
    pub(super) is_backup: bool,
    /// The destination is in the Internet.
    pub(super) is_default: bool,
}

#[derive(Clone, Copy, Debug)]
struct PeerHistory {
    is_up: bool,
    up_since: Instant,
    /// Before that, any other one that is up is preferred.
    held_until: Instant,
    /// After its last failure; zero: it has had none.
    hold_down: Duration,
}

impl NextHops {
    /// Notes whether a peer is up. Once it is, others that are up are preferred for `settle_time`.
    pub(super) fn on_peer_state(
        &mut self,
        now: Instant,
        peer: PeerId,
        is_up: bool,
        settle_time: Duration,
    ) {
        let history = self.peers.entry(peer).or_insert(PeerHistory {
            is_up: false,
            up_since: now,
            held_until: now,
            hold_down: Duration::ZERO,
        });
        if history.is_up == is_up {
            return;
        }
        history.is_up = is_up;
        if is_up {
            history.up_since = now;
            history.held_until = now + history.hold_down.max(settle_time);
            return;
        }
        let is_proven = now.saturating_duration_since(history.up_since) >= PROVEN_AFTER;
        history.hold_down = match is_proven {
            true => HOLD_DOWN_MIN,
            false => (history.hold_down * 2).clamp(HOLD_DOWN_MIN, HOLD_DOWN_MAX),
        };
    }

    /// Whether packets take a peer before all that come after it.
    pub(super) fn is_preferred(&self, now: Instant, peer: PeerId) -> bool {
        let history = self.peers.get(&peer);
        history.is_some_and(|of| of.is_up && of.held_until <= now)
    }

    /// A peer is removed.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }

    /// The next hop among `candidates`, best first, of which `may_take` lets some pass; `None`: it lets none pass.
    /// While none is up it is the first, so that senders learn that it is away.
    #[inline]
    pub(super) fn choose(
        &self,
        now: Instant,
        candidates: &[PeerId],
        may_take: impl Fn(PeerId) -> bool,
    ) -> Option<NextHop> {
        let permitted = || candidates.iter().copied().filter(|peer| may_take(*peer));
        let first = permitted().next()?;
        let chosen = match candidates.len() {
            1 => first,
            _ => {
                let is_up = |peer: &PeerId| self.peers.get(peer).is_some_and(|of| of.is_up);
                let released = permitted().find(|peer| self.is_preferred(now, *peer));
                released
                    .or_else(|| permitted().find(is_up))
                    .unwrap_or(first)
            }
        };
        Some(NextHop {
            peer: chosen,
            is_backup: chosen != first,
            is_default: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: PeerId = PeerId(1);
    const SECOND: PeerId = PeerId(2);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn chosen(hops: &NextHops, now: Instant) -> PeerId {
        let chosen = hops.choose(now, &[FIRST, SECOND], |_| true);
        chosen.expect("both may be taken").peer
    }

    #[test]
    fn first_peer_up_is_chosen_and_a_returning_one_is_held_down() {
        let mut hops = NextHops::default();
        assert_eq!(chosen(&hops, at(0)), FIRST, "senders learn that it is away");
        hops.on_peer_state(at(0), SECOND, true, Duration::ZERO);
        assert_eq!(chosen(&hops, at(0)), SECOND);
        hops.on_peer_state(at(1), FIRST, true, Duration::ZERO);
        assert_eq!(chosen(&hops, at(1)), FIRST, "it has had no failure");
        hops.on_peer_state(at(100), FIRST, false, Duration::ZERO);
        assert_eq!(chosen(&hops, at(100)), SECOND);
        hops.on_peer_state(at(101), FIRST, true, Duration::ZERO);
        assert_eq!(chosen(&hops, at(110)), SECOND);
        assert_eq!(chosen(&hops, at(111)), FIRST);
        // What is held down is better than what is away.
        hops.on_peer_state(at(120), FIRST, false, Duration::ZERO);
        hops.on_peer_state(at(121), FIRST, true, Duration::ZERO);
        hops.on_peer_state(at(122), SECOND, false, Duration::ZERO);
        assert_eq!(chosen(&hops, at(122)), FIRST);
    }

    #[test]
    fn the_hold_down_doubles_until_a_peer_has_proven_itself() {
        let mut hops = NextHops::default();
        hops.on_peer_state(at(0), SECOND, true, Duration::ZERO);
        let mut now = 0;
        for expected in [10, 20, 40, 80, 160, 320, 320] {
            hops.on_peer_state(at(now), FIRST, true, Duration::ZERO);
            hops.on_peer_state(at(now + 1), FIRST, false, Duration::ZERO);
            hops.on_peer_state(at(now + 2), FIRST, true, Duration::ZERO);
            assert_eq!(chosen(&hops, at(now + 1 + expected)), SECOND, "{expected}");
            assert_eq!(chosen(&hops, at(now + 2 + expected)), FIRST, "{expected}");
            now += 400;
        }
        hops.on_peer_state(at(now + 600), FIRST, false, Duration::ZERO);
        hops.on_peer_state(at(now + 601), FIRST, true, Duration::ZERO);
        assert_eq!(chosen(&hops, at(now + 610)), SECOND);
        assert_eq!(chosen(&hops, at(now + 611)), FIRST);
    }

    #[test]
    fn a_direct_session_is_taken_when_it_has_settled() {
        let mut hops = NextHops::default();
        hops.on_peer_state(at(0), SECOND, true, Duration::ZERO);
        hops.on_peer_state(at(1), FIRST, true, DIRECT_SETTLE_TIME);
        assert_eq!(chosen(&hops, at(1)), SECOND);
        let settled = at(1) + DIRECT_SETTLE_TIME;
        assert_eq!(chosen(&hops, settled), FIRST);
        assert!(hops.is_preferred(settled, FIRST) && !hops.is_preferred(at(1), FIRST));
        // What has not settled is better than what is away.
        hops.on_peer_state(at(1), SECOND, false, Duration::ZERO);
        assert_eq!(chosen(&hops, at(1)), FIRST);
    }

    #[test]
    fn refused_next_hops_are_not_chosen() {
        let mut hops = NextHops::default();
        hops.on_peer_state(at(0), FIRST, true, Duration::ZERO);
        let choose_by = |hops: &NextHops, candidates: &[PeerId], except: PeerId| {
            let hop = hops.choose(at(0), candidates, |peer| peer != except);
            hop.map(|hop| (hop.peer, hop.is_backup))
        };
        let choose = |candidates: &[PeerId], except| choose_by(&hops, candidates, except);
        assert_eq!(choose(&[FIRST, SECOND], SECOND), Some((FIRST, false)));
        assert_eq!(choose(&[FIRST, SECOND], FIRST), Some((SECOND, false)));
        assert_eq!(choose(&[SECOND, FIRST], PeerId(9)), Some((FIRST, true)));
        assert_eq!(choose(&[FIRST], FIRST), None);
        hops.forget(FIRST);
        let found = choose_by(&hops, &[SECOND, FIRST], PeerId(9));
        assert_eq!(
            found,
            Some((SECOND, false)),
            "it is as one that was never up"
        );
    }
}
