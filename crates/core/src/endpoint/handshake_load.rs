//! Which handshake packets of strangers are answered, and how: with a key agreement, with a cookie,
//! with the versions spoken here, or not at all.
//!
//! Peers' addresses, addresses proven by a cookie, and strangers each have limits that the others
//! cannot use up. When a proven address is read is `handshake_queue`'s.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use keiro_units::{Bandwidth, Instant};

use super::{cookie_rate_limit::CookieRateLimit, cookie_requests::CookieRequestTable};
use crate::id::SocketId;

/// The window over which handshakes are counted.
const LOAD_WINDOW: Duration = Duration::from_secs(1);
/// Proven addresses whose handshakes are counted at once; beyond that the oldest is forgotten.
const SOURCES_MAX: usize = 1024;
/// Cookie replies per second to the address of a peer that no stranger can use up at another. Ours: a peer begins twice a second at most, on
/// each of its paths.
const COOKIES_PER_PEER_ADDRESS_MAX: u32 = 20;
/// Handshakes that are answered per second without a cookie at the address of a peer while there is
/// load. Ours: as many as a peer begins.
const HANDSHAKES_PER_PEER_ADDRESS_MAX: u32 = 2;
/// Version replies per window, 42 kbit/s. Ours: a peer sends an initiation every half second at
/// most, and a flood must not take the room of cookie replies.
const VERSION_REPLIES_MAX: u32 = 100;
/// Handshakes that one proven address may begin in a window while there is load.
const HANDSHAKES_PER_SOURCE_MAX: u32 = 5;

/// Where an initiation comes from; each class has a queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SourceClass {
    /// It comes from the address of a peer.
    PeerAddress,
    /// It carries a cookie, which proves its address.
    Proven,
    /// Neither, but there is no load.
    Stranger,
}

/// What is to be done with an initiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Read(SourceClass),
    Cookie,
    Refused,
}

/// Initiations with a valid first MAC in the present window, and what was sent because of them.
#[derive(Default)]
pub(super) struct HandshakeLoad {
    since: Instant,
    initiations: u32,
    version_replies: u32,
    proven: Sources,
    peer_addresses: BTreeMap<IpAddr, PeerAddressCounts>,
    cookies: CookieRateLimit,
    cookie_requests: Option<CookieRequestTable>,
}

/// Handshakes by proven address.
#[derive(Default)]
struct Sources {
    counts: BTreeMap<IpAddr, u32>,
    oldest_first: VecDeque<IpAddr>,
}

/// What an address of a peer got without a cookie.
#[derive(Clone, Copy, Default)]
struct PeerAddressCounts {
    handshakes: u32,
    cookies: u32,
}

/// An initiation while there is load.
#[derive(Clone, Copy, Debug)]
pub(super) struct InitiationUnderLoad {
    pub(super) source: IpAddr,
    pub(super) with_cookie: bool,
    /// A peer is known at `source`.
    pub(super) is_peer_address: bool,
    /// Where it came, and what may leave there; `None`: it is not bounded.
    pub(super) socket: SocketId,
    pub(super) uplink: Option<Bandwidth>,
}

impl HandshakeLoad {
    /// Counts an initiation; whether there is load, so that [`admit_under_load`](Self::admit_under_load) decides.
    pub(super) fn on_initiation(&mut self, now: Instant, without_load_max: u32) -> bool {
        self.start_window(now);
        self.initiations = self.initiations.saturating_add(1);
        self.initiations > without_load_max
    }

    /// Decides about an initiation while there is load.
    pub(super) fn admit_under_load(
        &mut self,
        now: Instant,
        initiation: InitiationUnderLoad,
        hash_seed: impl FnOnce() -> [u64; 3],
    ) -> Admission {
        let source = prefix(initiation.source);
        if initiation.with_cookie {
            return match self.proven.admit(source) {
                true => Admission::Read(SourceClass::Proven),
                false => Admission::Refused,
            };
        }
        // What others send in a peer's name must not shut it out: beyond its own share it is a stranger.
        if initiation.is_peer_address
            && let Some(admission) = self.admit_peer_address(initiation.source)
        {
            return admission;
        }
        let requests = self
            .cookie_requests
            .get_or_insert_with(|| CookieRequestTable::new(hash_seed()));
        let before = requests.on_request(source);
        match self
            .cookies
            .admit(now, initiation.socket, initiation.uplink, before)
        {
            true => {
                requests.on_answered(source);
                Admission::Cookie
            }
            false => Admission::Refused,
        }
    }

    /// `None`: the address has used up its own share.
    fn admit_peer_address(&mut self, source: IpAddr) -> Option<Admission> {
        let counts = self.peer_addresses.entry(source).or_default();
        counts.handshakes = counts.handshakes.saturating_add(1);
        if counts.handshakes <= HANDSHAKES_PER_PEER_ADDRESS_MAX {
            return Some(Admission::Read(SourceClass::PeerAddress));
        }
        counts.cookies = counts.cookies.saturating_add(1);
        (counts.cookies <= COOKIES_PER_PEER_ADDRESS_MAX).then_some(Admission::Cookie)
    }

    /// Whether another version reply may be sent in this window.
    pub(super) fn admits_version_reply(&mut self, now: Instant) -> bool {
        self.start_window(now);
        self.version_replies = self.version_replies.saturating_add(1);
        self.version_replies <= VERSION_REPLIES_MAX
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        assert!(self.proven.counts.len() <= SOURCES_MAX, "proven addresses");
        assert_eq!(
            self.proven.counts.len(),
            self.proven.oldest_first.len(),
            "every proven address has an age"
        );
    }

    fn start_window(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) < LOAD_WINDOW {
            return;
        }
        // Who asked is forgotten when a window passes in which it was not needed.
        let had_load = self.cookies.was_used();
        *self = Self {
            since: now,
            cookie_requests: self.cookie_requests.take().filter(|_| had_load),
            cookies: std::mem::take(&mut self.cookies).into_next_second(),
            ..Self::default()
        };
    }
}

impl Sources {
    /// Whether this address may begin another handshake in this window.
    fn admit(&mut self, source: IpAddr) -> bool {
        if let Some(count) = self.counts.get_mut(&source) {
            *count = count.saturating_add(1);
            return *count <= HANDSHAKES_PER_SOURCE_MAX;
        }
        if self.counts.len() >= SOURCES_MAX
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.counts.remove(&oldest);
        }
        self.counts.insert(source, 1);
        self.oldest_first.push_back(source);
        true
    }
}

/// A host that has one IPv6 address usually has its whole /64.
pub(super) fn prefix(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & !u128::from(u64::MAX)).into()),
    }
}
