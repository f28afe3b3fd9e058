//! One flow in both directions: its class and what it has carried.

use std::time::Duration;

use super::{
    BuiltInClass, Evidence,
    cache::Aged,
    media::MediaProbe,
    names::{Named, PatternId},
};
use crate::{FlowKey, protocol};

/// What is known of a flow.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// As its first packet had it.
    pub(super) key: FlowKey,
    pub(super) class: Option<BuiltInClass>,
    pub(super) evidence: Evidence,
    /// The pattern of a rule that its name matches.
    pub(super) rule: Option<PatternId>,
    /// What is left to look at.
    pub(super) opening: Opening,
    /// Of a tunnel, what is inside is of any class.
    pub(super) is_tunnel: bool,
    pub(super) last: Duration,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Since the last pause.
    stretch_bytes: u64,
    /// The second that is counted.
    second_began: Duration,
    second_bytes: u64,
    fast_seconds: u8,
    minute_began: Duration,
    minute_bytes: u64,
}

/// How far a flow's begin has been looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Opening {
    /// UDP.
    Form(MediaProbe),
    /// TCP, whose client has not sent its handshake yet; how many packets with data came.
    Handshake(u8),
    Done,
}

/// What makes a flow bulk.
enum Limit {
    /// So many bytes without a pause, or twice as many in a minute with pauses.
    Stretch(u64),
    /// Seconds one after another that are faster than [`FAST_SECOND_BYTES`].
    Rate,
    Never,
}

/// A pause: what follows is another page or the next keystroke. Ours.
const PAUSE: Duration = Duration::from_secs(1);
/// Nine of ten web pages are smaller, with all of their connections (HTTP Archive, State of the Web 2024). Twice as
/// much in a minute is 2.2 Mbit/s, less than streamed video in HD has, which comes in pieces with pauses.
const WEB_STRETCH_BYTES: u64 = 8 << 20;
/// The web by a name that is listed as such: it is a large page rather than a download. Ours.
const NAMED_WEB_STRETCH_BYTES: u64 = 32 << 20;
const MINUTE: Duration = Duration::from_secs(60);
/// TCP without evidence. Ours: it has no target to lose.
const UNKNOWN_STRETCH_BYTES: u64 = 2 << 20;
/// SSH. Ours: a screen of text has 10 KB, and the output of a program may be long.
const SHELL_STRETCH_BYTES: u64 = 8 << 20;
/// 8 Mbit/s: a meeting in full HD has 4 Mbit/s, and a gallery of pictures somewhat more (requirements of Teams and Zoom).
const FAST_SECOND_BYTES: u64 = 1_000_000;
const FAST_SECONDS_MAX: u8 = 5;
const SSH: u16 = 22;

impl Flow {
    pub(super) fn new(now: Duration, key: FlowKey) -> Self {
        let opening = match key.protocol {
            protocol::UDP => Opening::Form(MediaProbe::default()),
            protocol::TCP => Opening::Handshake(0),
            _ => Opening::Done,
        };
        Self {
            key,
            class: None,
            evidence: Evidence::None,
            rule: None,
            opening,
            is_tunnel: false,
            last: now,
            packets: 0,
            bytes: 0,
            stretch_bytes: 0,
            second_began: now,
            second_bytes: 0,
            fast_seconds: 0,
            minute_began: now,
            minute_bytes: 0,
        }
    }

    /// Takes evidence, unless it has stronger one.
    pub(super) fn take(&mut self, class: BuiltInClass, evidence: Evidence) {
        if evidence.strength() > self.evidence.strength() {
            self.class = Some(class);
            self.evidence = evidence;
        }
    }

    pub(super) fn take_name(&mut self, named: Named, evidence: fn(&'static str) -> Evidence) {
        self.rule = named.rule.or(self.rule);
        if let Some((class, pattern)) = named.class {
            self.take(class, evidence(pattern));
        }
    }

    /// Counts a packet, and makes the flow bulk if it shows to be. Bulk it stays.
    pub(super) fn on_carried(
        &mut self,
        now: Duration,
        packets: u64,
        bytes: u64,
        may_be_bulk: bool,
    ) {
        if now.saturating_sub(self.last) >= PAUSE {
            self.stretch_bytes = 0;
        }
        self.last = now;
        self.packets += packets;
        self.bytes += bytes;
        self.stretch_bytes += bytes;
        let in_second = now.saturating_sub(self.second_began);
        if in_second >= Duration::from_secs(1) {
            // The second's bytes by its length: packets may be rare.
            let is_fast = u128::from(self.second_bytes) * 1_000
                > u128::from(FAST_SECOND_BYTES) * in_second.as_millis();
            self.fast_seconds = match is_fast {
                true => self.fast_seconds.saturating_add(1),
                false => 0,
            };
            self.second_began = now;
            self.second_bytes = 0;
        }
        self.second_bytes += bytes;
        if now.saturating_sub(self.minute_began) >= MINUTE {
            self.minute_began = now;
            self.minute_bytes = 0;
        }
        self.minute_bytes += bytes;
        if may_be_bulk && self.is_above_limit() {
            self.class = Some(BuiltInClass::Bulk);
            self.evidence = Evidence::Volume;
        }
    }

    fn has_name(&self) -> bool {
        matches!(self.evidence, Evidence::Dns(_) | Evidence::Sni(_))
    }

    fn is_above_limit(&self) -> bool {
        match self.limit() {
            Limit::Stretch(bytes_max) => {
                self.stretch_bytes > bytes_max || self.minute_bytes > 2 * bytes_max
            }
            Limit::Rate => self.fast_seconds >= FAST_SECONDS_MAX,
            Limit::Never => false,
        }
    }

    fn limit(&self) -> Limit {
        let is_udp = self.key.protocol == protocol::UDP;
        match self.class {
            Some(BuiltInClass::Bulk | BuiltInClass::Backup) => Limit::Never,
            None if self.is_tunnel => Limit::Never,
            // It may be the media of a meeting in a form of its vendor's.
            None if is_udp => Limit::Rate,
            None => Limit::Stretch(UNKNOWN_STRETCH_BYTES),
            Some(BuiltInClass::Interactive) if self.evidence == Evidence::Port(SSH) => {
                Limit::Stretch(SHELL_STRETCH_BYTES)
            }
            Some(BuiltInClass::Interactive) => Limit::Rate,
            Some(BuiltInClass::Voice | BuiltInClass::Games) if is_udp => Limit::Rate,
            Some(BuiltInClass::Web) if self.has_name() => Limit::Stretch(NAMED_WEB_STRETCH_BYTES),
            Some(BuiltInClass::Voice | BuiltInClass::Games | BuiltInClass::Web) => {
                Limit::Stretch(WEB_STRETCH_BYTES)
            }
        }
    }
}

impl Aged for Flow {
    fn age_rank(&self) -> u64 {
        self.last.as_nanos() as u64
    }
}
