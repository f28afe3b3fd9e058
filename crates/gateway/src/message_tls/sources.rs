//! What one network may do before it has shown a token: connections at once, and attempts that fail.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use keiro_core::Instant;

/// Connections of one network that have not been accepted. Ours.
const OPENING_MAX: usize = 16;
/// Failed attempts of one network in a row, and how often another is allowed. Ours: a person who tries a new
/// token again and again is not kept out for long, a guess every few seconds finds nothing.
const FAILURES_MAX: u32 = 10;
const FAILURE_INTERVAL: Duration = Duration::from_secs(6);
/// Networks that are remembered. At more, the one whose last failure is longest ago is forgotten.
const NETWORKS_MAX: usize = 4096;

/// By network: an IPv4 address, or the first 64 bits of an IPv6 address, which one host may have.
#[derive(Debug, Default)]
pub(super) struct Sources {
    networks: HashMap<IpAddr, Source>,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    opening: usize,
    failures: u32,
    /// Until when failures have been forgiven.
    since: Instant,
}

/// Why a connection is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Too many of its network are not accepted yet.
    Opening,
    /// Too many attempts of its network have failed.
    Failures,
}

impl Sources {
    /// A connection begins.
    ///
    /// # Errors
    /// Why it may not.
    pub(super) fn begin(&mut self, now: Instant, address: IpAddr) -> Result<(), Refused> {
        let source = self.source(now, address);
        if source.failures >= FAILURES_MAX {
            return Err(Refused::Failures);
        }
        if source.opening >= OPENING_MAX {
            return Err(Refused::Opening);
        }
        source.opening += 1;
        Ok(())
    }

    /// A connection that began is accepted, or has ended.
    pub(super) fn end(&mut self, address: IpAddr) {
        if let Some(source) = self.networks.get_mut(&network(address)) {
            source.opening = source.opening.saturating_sub(1);
            if source.opening == 0 && source.failures == 0 {
                self.networks.remove(&network(address));
            }
        }
    }

    /// A connection has failed to show a token.
    pub(super) fn on_failure(&mut self, now: Instant, address: IpAddr) {
        let source = self.source(now, address);
        if source.failures == 0 {
            source.since = now;
        }
        source.failures = (source.failures + 1).min(FAILURES_MAX);
    }

    /// Connections of a network that are not accepted yet.
    pub(super) fn opening(&self, address: IpAddr) -> usize {
        let source = self.networks.get(&network(address));
        source.map_or(0, |source| source.opening)
    }

    /// Connections of all networks that are not accepted yet.
    pub(super) fn all_opening(&self) -> usize {
        self.networks.values().map(|source| source.opening).sum()
    }

    fn source(&mut self, now: Instant, address: IpAddr) -> &mut Source {
        let network = network(address);
        if !self.networks.contains_key(&network) && self.networks.len() >= NETWORKS_MAX {
            let idle = self
                .networks
                .iter()
                .filter(|(_, source)| source.opening == 0);
            let oldest = idle
                .min_by_key(|(_, source)| source.since)
                .map(|(network, _)| *network);
            if let Some(oldest) = oldest {
                self.networks.remove(&oldest);
            }
        }
        let source = self.networks.entry(network).or_insert(Source {
            opening: 0,
            failures: 0,
            since: now,
        });
        let passed =
            now.saturating_duration_since(source.since).as_secs() / FAILURE_INTERVAL.as_secs();
        let forgiven = u32::try_from(passed)
            .unwrap_or(u32::MAX)
            .min(source.failures);
        source.failures -= forgiven;
        source.since += FAILURE_INTERVAL * forgiven;
        source
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let first = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(first))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn failures_of_a_network_keep_it_out_for_a_while_and_no_other() {
        let mut sources = Sources::default();
        let guesser: IpAddr = "2001:db8::1".parse().unwrap();
        let beside: IpAddr = "2001:db8::ffff:1".parse().unwrap();
        let other: IpAddr = "2001:db8:0:1::1".parse().unwrap();
        for _ in 0..FAILURES_MAX {
            assert_eq!(sources.begin(at(0), guesser), Ok(()));
            sources.end(guesser);
            sources.on_failure(at(0), guesser);
        }
        assert_eq!(sources.begin(at(5), guesser), Err(Refused::Failures));
        assert_eq!(sources.begin(at(5), beside), Err(Refused::Failures));
        assert_eq!(sources.begin(at(5), other), Ok(()));
        assert_eq!(sources.begin(at(6), guesser), Ok(()));
        sources.end(guesser);
        sources.on_failure(at(6), guesser);
        assert_eq!(sources.begin(at(7), guesser), Err(Refused::Failures));
        // After a minute all of them are forgotten.
        assert_eq!(sources.begin(at(100), guesser), Ok(()));
        let source = sources.networks[&network(guesser)];
        assert_eq!((source.failures, source.opening), (0, 1));
    }

    #[test]
    fn a_network_opens_few_connections_at_once() {
        let mut sources = Sources::default();
        let one: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        for _ in 0..OPENING_MAX {
            assert_eq!(sources.begin(at(0), one), Ok(()));
        }
        let same = "192.0.2.1".parse().unwrap();
        assert_eq!(sources.begin(at(0), same), Err(Refused::Opening));
        assert_eq!(sources.begin(at(0), "192.0.2.2".parse().unwrap()), Ok(()));
        assert_eq!(sources.opening(same), OPENING_MAX);
        sources.end(one);
        assert_eq!(sources.begin(at(0), one), Ok(()));
    }

    #[test]
    fn few_networks_are_remembered() {
        let mut sources = Sources::default();
        let address = |n: u32| IpAddr::from(std::net::Ipv4Addr::from(n));
        for number in 0..3 * NETWORKS_MAX as u32 {
            sources.on_failure(at(u64::from(number)), address(number));
        }
        assert!(sources.networks.len() <= NETWORKS_MAX);
        let last = 3 * NETWORKS_MAX as u32 - 1;
        assert!(sources.networks.contains_key(&address(last)));
        assert!(!sources.networks.contains_key(&address(0)));
        for number in 0..100 {
            assert_eq!(
                sources.begin(at(1 << 20), address(1 << 20 | number)),
                Ok(())
            );
            sources.end(address(1 << 20 | number));
        }
        assert!(sources.networks.len() <= NETWORKS_MAX);
    }
}
