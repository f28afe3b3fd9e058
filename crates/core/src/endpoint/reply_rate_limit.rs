//! How many replies strangers get: cookies, and the versions spoken here. Those that ask again have a limit of
//! their own, which first requests cannot use up, and no network gets more than its share of either.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use keiro_units::{Bandwidth, ByteCount, Instant};

use super::{networks::network, reply_requests::RequestHistory};
use crate::{id::SocketId, wire::COOKIE_LEN};

/// Replies to strangers are counted over this time, so that a flood does not use up those of a whole second
/// at its beginning.
const WINDOW: Duration = Duration::from_millis(10);
/// Replies per [`WINDOW`] to strangers that ask for the first time, and as many to those that ask again.
/// Ours: 20,000 cookies per second in all, 15 Mbit/s, take a fifth of a processor.
const REPLIES_MAX: u32 = 100;
/// Of these, to one network. Ours: who holds an IPv6 /48 has 65,536 addresses that can ask again, and leaves
/// three quarters to others.
const REPLIES_PER_NETWORK_MAX: u32 = REPLIES_MAX / 4;
/// Each limit is this share of what may leave the socket at most. Ours: both take an eighth.
const UPLINK_SHARE: u32 = 16;
/// The longest reply with the headers of IPv6 and UDP.
const REPLY_IP_BYTES: ByteCount = ByteCount::new(COOKIE_LEN as u64 + 48);

/// Where an initiation comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct InitiationSource {
    pub(super) address: IpAddr,
    /// A peer is known at `address`.
    pub(super) is_peer_address: bool,
    /// Where it came, and what may leave there; `None`: it is not bounded.
    pub(super) socket: SocketId,
    pub(super) uplink: Option<Bandwidth>,
}

/// The limits of first and of repeated requests.
#[derive(Default)]
pub(super) struct ReplyRateLimit {
    since: Instant,
    limits: [RateLimit; 2],
    was_used: bool,
}

#[derive(Default)]
struct RateLimit {
    count: u32,
    by_network: BTreeMap<IpAddr, u32>,
    /// When the next reply may leave each socket whose rate is bounded.
    next: BTreeMap<SocketId, Instant>,
}

impl ReplyRateLimit {
    /// Whether another reply may be sent.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        source: InitiationSource,
        before: RequestHistory,
    ) -> bool {
        self.was_used = true;
        if now.saturating_duration_since(self.since) >= WINDOW {
            self.since = now;
            for limit in &mut self.limits {
                limit.count = 0;
                limit.by_network.clear();
            }
        }
        let [first, again] = &mut self.limits;
        match before {
            RequestHistory::Unanswered => again.admit(now, source),
            RequestHistory::Never | RequestHistory::Answered => first.admit(now, source),
        }
    }

    /// Whether a reply was asked for in this second.
    pub(super) fn was_used(&self) -> bool {
        self.was_used
    }

    pub(super) fn into_next_second(self) -> Self {
        Self {
            was_used: false,
            ..self
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        for limit in &self.limits {
            assert!(limit.count <= REPLIES_MAX, "replies to strangers");
            let counted = limit.by_network.values().sum::<u32>();
            assert_eq!(limit.count, counted, "every reply goes to a network");
        }
    }
}

impl RateLimit {
    fn admit(&mut self, now: Instant, source: InitiationSource) -> bool {
        let network = network(source.address);
        let of_network = self.by_network.get(&network).copied().unwrap_or(0);
        if self.count >= REPLIES_MAX || of_network >= REPLIES_PER_NETWORK_MAX {
            return false;
        }
        if let Some(rate) = source.uplink {
            let next = self.next.entry(source.socket).or_default();
            if rate.is_zero() || *next > now {
                return false;
            }
            let took = rate.transmission_time_ceil(REPLY_IP_BYTES) * UPLINK_SHARE;
            // What was not used in a window is lost.
            *next = (*next).max(now - WINDOW) + took;
        }
        self.count += 1;
        self.by_network.insert(network, of_network + 1);
        true
    }
}
