//! How many cookie replies strangers get. Those that ask again have a limit of their own, which first requests
//! cannot use up.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::{Bandwidth, ByteCount, Instant};

use super::cookie_requests::RequestHistory;
use crate::{id::SocketId, wire::COOKIE_LEN};

/// Cookie replies to strangers are counted over this time, so that a flood does not use up those
/// of a whole second at its beginning.
const WINDOW: Duration = Duration::from_millis(10);
/// Cookie replies per [`WINDOW`] to strangers that ask for the first time, and as many to those
/// that ask again. Ours: 20,000 per second in all, 15 Mbit/s, take a fifth of a processor.
const COOKIES_MAX: u32 = 100;
/// Each limit is this share of what may leave the socket at most. Ours: both take an eighth.
const UPLINK_SHARE: u32 = 16;
/// With the headers of IPv6 and UDP.
const REPLY_IP_BYTES: ByteCount = ByteCount::new(COOKIE_LEN as u64 + 48);

/// The limits of first and of repeated requests.
#[derive(Default)]
pub(super) struct CookieRateLimit {
    since: Instant,
    limits: [RateLimit; 2],
    was_used: bool,
}

#[derive(Default)]
struct RateLimit {
    count: u32,
    /// When the next reply may leave each socket whose rate is bounded.
    next: BTreeMap<SocketId, Instant>,
}

impl CookieRateLimit {
    /// Whether another reply may leave a socket. `uplink`: what may leave there; `None`: it is not bounded.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        socket: SocketId,
        uplink: Option<Bandwidth>,
        before: RequestHistory,
    ) -> bool {
        self.was_used = true;
        if now.saturating_duration_since(self.since) >= WINDOW {
            self.since = now;
            for limit in &mut self.limits {
                limit.count = 0;
            }
        }
        let [first, again] = &mut self.limits;
        match before {
            RequestHistory::Unanswered => again.admit(now, socket, uplink),
            RequestHistory::Never | RequestHistory::Answered => first.admit(now, socket, uplink),
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
}

impl RateLimit {
    fn admit(&mut self, now: Instant, socket: SocketId, uplink: Option<Bandwidth>) -> bool {
        if self.count >= COOKIES_MAX {
            return false;
        }
        if let Some(rate) = uplink {
            let next = self.next.entry(socket).or_default();
            if rate.is_zero() || *next > now {
                return false;
            }
            let took = rate.transmission_time_ceil(REPLY_IP_BYTES) * UPLINK_SHARE;
            // What was not used in a window is lost.
            *next = (*next).max(now - WINDOW) + took;
        }
        self.count += 1;
        true
    }
}
