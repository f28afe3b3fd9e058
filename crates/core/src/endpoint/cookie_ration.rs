//! How many cookie replies strangers get. Those that ask again have a ration that those who ask for the
//! first time cannot use up.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::{ByteCount, Instant};

use super::{asked::AskedBefore, handshake_load::Ask};
use crate::{id::SocketId, wire::COOKIE_LEN};

/// Cookie replies to strangers are rationed over this time, so that a flood does not use up those
/// of a whole second at its beginning.
const WINDOW: Duration = Duration::from_millis(10);
/// Cookie replies per [`WINDOW`] to strangers that ask for the first time, and as many to those
/// that ask again. Ours: 20,000 per second in all, 15 Mbit/s, take a fifth of a processor.
const COOKIES_MAX: u32 = 100;
/// A ration takes this share of what may leave the socket at most. Ours: both take an eighth.
const UPLINK_SHARE: u32 = 16;
/// With the headers of IPv6 and UDP.
const REPLY_IP_BYTES: ByteCount = ByteCount::new(COOKIE_LEN as u64 + 48);

/// The rations of those that ask for the first time, and of those that ask again.
#[derive(Default)]
pub(super) struct CookieRation {
    since: Instant,
    rations: [Ration; 2],
    was_used: bool,
}

#[derive(Default)]
struct Ration {
    count: u32,
    /// When the next reply may leave each socket whose rate is bounded.
    next: BTreeMap<SocketId, Instant>,
}

impl CookieRation {
    /// Whether another reply may be sent.
    pub(super) fn admit(&mut self, now: Instant, ask: Ask, before: AskedBefore) -> bool {
        self.was_used = true;
        if now.saturating_duration_since(self.since) >= WINDOW {
            self.since = now;
            for ration in &mut self.rations {
                ration.count = 0;
            }
        }
        let [first, again] = &mut self.rations;
        match before {
            AskedBefore::InVain => again.admit(now, ask),
            AskedBefore::Never | AskedBefore::Answered => first.admit(now, ask),
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

impl Ration {
    fn admit(&mut self, now: Instant, ask: Ask) -> bool {
        if self.count >= COOKIES_MAX {
            return false;
        }
        if let Some(rate) = ask.uplink {
            let next = self.next.entry(ask.socket).or_default();
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
