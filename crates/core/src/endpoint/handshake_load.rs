//! Limits on what handshakes cost per second: key agreements, cookie replies, version replies.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use keiro_units::Instant;

/// The window over which handshakes are counted.
const LOAD_WINDOW: Duration = Duration::from_secs(1);
/// Addresses whose handshakes are counted at once.
const SOURCES_MAX: usize = 1024;
/// Cookie replies per window: 0.7 Mbit/s that a flood from forged addresses makes us send.
const COOKIES_MAX: u32 = 1000;
/// Version replies per window, 42 kbit/s. Ours: a peer sends an initiation every half second at
/// most, and a flood must not take the room of cookie replies.
const VERSION_REPLIES_MAX: u32 = 100;
/// Handshakes that one verified address may begin in a window while there is load.
const HANDSHAKES_PER_SOURCE_MAX: u32 = 5;

/// Initiations with a valid first MAC in the present window, and what was sent because of them.
#[derive(Default)]
pub(super) struct HandshakeLoad {
    since: Instant,
    initiations: u32,
    cookies: u32,
    version_replies: u32,
    by_source: BTreeMap<IpAddr, u32>,
}

impl HandshakeLoad {
    /// Counts an initiation and returns how many there were in this window.
    pub(super) fn on_initiation(&mut self, now: Instant) -> u32 {
        self.start_window(now);
        self.initiations = self.initiations.saturating_add(1);
        self.initiations
    }

    /// Whether another cookie reply may be sent in this window.
    pub(super) fn admits_cookie(&mut self) -> bool {
        self.cookies = self.cookies.saturating_add(1);
        self.cookies <= COOKIES_MAX
    }

    /// Whether another version reply may be sent in this window.
    pub(super) fn admits_version_reply(&mut self, now: Instant) -> bool {
        self.start_window(now);
        self.version_replies = self.version_replies.saturating_add(1);
        self.version_replies <= VERSION_REPLIES_MAX
    }

    /// Whether a verified address may begin another handshake in this window.
    pub(super) fn admits_handshake(&mut self, source: IpAddr) -> bool {
        // A host that has one IPv6 address usually has its whole /64.
        let source = match source {
            IpAddr::V4(_) => source,
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & !u128::from(u64::MAX)).into()),
        };
        if self.by_source.len() >= SOURCES_MAX && !self.by_source.contains_key(&source) {
            return false;
        }
        let count = self.by_source.entry(source).or_default();
        *count += 1;
        *count <= HANDSHAKES_PER_SOURCE_MAX
    }

    fn start_window(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) >= LOAD_WINDOW {
            *self = Self {
                since: now,
                ..Self::default()
            };
        }
    }
}
