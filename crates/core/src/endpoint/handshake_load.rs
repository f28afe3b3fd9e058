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

use keiro_units::Instant;

use super::{
    networks::host,
    reply_rate_limit::{InitiationSource, ReplyRateLimit},
    reply_requests::ReplyRequestTable,
};

/// The window over which handshakes are counted.
const LOAD_WINDOW: Duration = Duration::from_secs(1);
/// Proven addresses whose handshakes are counted at once; beyond that the oldest is forgotten.
const SOURCES_MAX: usize = 1024;
/// Cookie replies per second to the address of a peer, and as many version replies, that no stranger can use up
/// at another. Ours: a peer begins twice a second at most, on each of its paths.
const REPLIES_PER_PEER_ADDRESS_MAX: u32 = 20;
/// Handshakes that are answered per second without a cookie at the address of a peer while there is
/// load. Ours: as many as a peer begins.
const HANDSHAKES_PER_PEER_ADDRESS_MAX: u32 = 2;
/// Version replies per window before there is load; beyond, they share the limits of cookie replies. Ours: as
/// many as initiations are read without a cookie.
const VERSION_REPLIES_WITHOUT_LOAD_MAX: u32 = 100;
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

/// On whose account a reply is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyShare {
    /// On that of a peer's address.
    PeerAddress,
    /// On that of all strangers.
    Strangers,
}

/// What is to be done with an initiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Read(SourceClass),
    Cookie(ReplyShare),
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
    replies: ReplyRateLimit,
    reply_requests: Option<ReplyRequestTable>,
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
    version_replies: u32,
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
        source: InitiationSource,
        with_cookie: bool,
        hash_seed: impl FnOnce() -> [u64; 3],
    ) -> Admission {
        if with_cookie {
            return match self.proven.admit(host(source.address)) {
                true => Admission::Read(SourceClass::Proven),
                false => Admission::Refused,
            };
        }
        // What others send in a peer's name must not shut it out: beyond its own share it is a stranger.
        if source.is_peer_address
            && let Some(admission) = self.admit_peer_address(source.address)
        {
            return admission;
        }
        match self.admit_stranger(now, source, hash_seed) {
            true => Admission::Cookie(ReplyShare::Strangers),
            false => Admission::Refused,
        }
    }

    /// Whether a stranger's initiation gets a reply.
    fn admit_stranger(
        &mut self,
        now: Instant,
        source: InitiationSource,
        hash_seed: impl FnOnce() -> [u64; 3],
    ) -> bool {
        let asking = host(source.address);
        let requests = self
            .reply_requests
            .get_or_insert_with(|| ReplyRequestTable::new(hash_seed()));
        let before = requests.on_request(asking);
        let is_admitted = self.replies.admit(now, source, before);
        if is_admitted {
            requests.on_answered(asking);
        }
        is_admitted
    }

    /// `None`: the address has used up its own share.
    fn admit_peer_address(&mut self, source: IpAddr) -> Option<Admission> {
        let counts = self.peer_addresses.entry(source).or_default();
        counts.handshakes = counts.handshakes.saturating_add(1);
        if counts.handshakes <= HANDSHAKES_PER_PEER_ADDRESS_MAX {
            return Some(Admission::Read(SourceClass::PeerAddress));
        }
        counts.cookies = counts.cookies.saturating_add(1);
        let has_share = counts.cookies <= REPLIES_PER_PEER_ADDRESS_MAX;
        has_share.then_some(Admission::Cookie(ReplyShare::PeerAddress))
    }

    /// Decides about an initiation of another version. `None`: it is not answered.
    pub(super) fn admit_version_reply(
        &mut self,
        now: Instant,
        source: InitiationSource,
        hash_seed: impl FnOnce() -> [u64; 3],
    ) -> Option<ReplyShare> {
        self.start_window(now);
        if source.is_peer_address {
            let counts = self.peer_addresses.entry(source.address).or_default();
            counts.version_replies = counts.version_replies.saturating_add(1);
            if counts.version_replies <= REPLIES_PER_PEER_ADDRESS_MAX {
                return Some(ReplyShare::PeerAddress);
            }
        }
        self.version_replies = self.version_replies.saturating_add(1);
        let is_admitted = self.version_replies <= VERSION_REPLIES_WITHOUT_LOAD_MAX
            || self.admit_stranger(now, source, hash_seed);
        is_admitted.then_some(ReplyShare::Strangers)
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
        self.replies.check_invariants();
    }

    fn start_window(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) < LOAD_WINDOW {
            return;
        }
        // Who asked is forgotten when a window passes in which it was not needed.
        let had_load = self.replies.was_used();
        *self = Self {
            since: now,
            reply_requests: self.reply_requests.take().filter(|_| had_load),
            replies: std::mem::take(&mut self.replies).into_next_second(),
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
