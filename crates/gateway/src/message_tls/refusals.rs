//! Connections that were refused, by reason: counted, and logged now and then.

use std::{collections::BTreeMap, net::SocketAddr};

use keiro_core::Instant;

use crate::data::log_throttle::LogThrottle;

/// Why a connection was refused or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// No connection is left, in all or for its network.
    Limit,
    /// Its network has failed too often.
    Failures,
    /// It did not say in time what it wants.
    Timeout,
    /// It does not speak TLS 1.3, or does not trust the certificate.
    Tls,
    /// No client has its token.
    Token,
    /// Its client may not do that, or has as many connections as it may.
    Client,
    /// It broke the message protocol.
    Protocol,
    /// It took nothing of what waited for it.
    Stuck,
    /// Its client is gone from the configuration, or may not do that any more.
    Removed,
    /// The gateway itself could not go on.
    Failed,
}

impl Refusal {
    pub(crate) const ALL: [Self; 10] = [
        Self::Limit,
        Self::Failures,
        Self::Timeout,
        Self::Tls,
        Self::Token,
        Self::Client,
        Self::Protocol,
        Self::Stuck,
        Self::Removed,
        Self::Failed,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Failures => "failures",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Token => "token",
            Self::Client => "client",
            Self::Protocol => "protocol",
            Self::Stuck => "stuck",
            Self::Removed => "removed",
            Self::Failed => "failed",
        }
    }

    /// It counts against the network that it came from.
    pub(super) const fn is_failure(self) -> bool {
        matches!(self, Self::Timeout | Self::Tls | Self::Token)
    }
}

#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: BTreeMap<Refusal, u64>,
    throttles: BTreeMap<Refusal, (LogThrottle, u64)>,
}

impl Refusals {
    pub(super) fn on_refused(
        &mut self,
        now: Instant,
        refusal: Refusal,
        source: SocketAddr,
        client: Option<&str>,
        why: &str,
    ) {
        *self.counts.entry(refusal).or_default() += 1;
        let (throttle, unlogged) = self.throttles.entry(refusal).or_default();
        if !throttle.is_due(now) {
            *unlogged += 1;
            return;
        }
        let others = std::mem::take(unlogged);
        tracing::warn!(
            %source,
            client,
            why,
            reason = refusal.as_str(),
            others_since = others,
            "message TLS: a connection is closed"
        );
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        let count = |refusal: Refusal| {
            let count = self.counts.get(&refusal).copied().unwrap_or_default();
            (refusal.as_str(), count)
        };
        Refusal::ALL.into_iter().map(count).collect()
    }
}
