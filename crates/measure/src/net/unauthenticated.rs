//! Connections that have not authenticated themselves: a bounded number, in which a newer one takes
//! the place of an older one. So neither idle connections nor many from one network keep others out.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Maximum of unauthenticated connections, in total and per network. Ours.
pub(super) const UNAUTHENTICATED_MAX: usize = 32;
const PER_NETWORK_MAX: usize = 8;
/// Refusals reported in each [`REPORT_WINDOW`]; further ones are counted. Ours.
const REPORTS_MAX: u64 = 5;
const REPORT_WINDOW: Duration = Duration::from_secs(10);

/// The connections, each with a handle that closes it.
#[derive(Debug)]
pub(super) struct Unauthenticated<T> {
    /// By age.
    entries: BTreeMap<u64, (IpAddr, T)>,
    next: u64,
}

impl<T> Default for Unauthenticated<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<T> Unauthenticated<T> {
    /// Adds a connection; its number, and the one that has to close for it.
    pub(super) fn push(&mut self, from: IpAddr, handle: T) -> (u64, Option<T>) {
        let network = network(from);
        let own = self.oldest_of(network);
        let closes = match own {
            Some((oldest, count)) if count >= PER_NETWORK_MAX => Some(oldest),
            _ if self.entries.len() >= UNAUTHENTICATED_MAX => self.oldest_of_most(),
            _ => None,
        };
        let closed = closes.and_then(|number| self.entries.remove(&number));
        let number = self.next;
        self.next += 1;
        self.entries.insert(number, (network, handle));
        (number, closed.map(|(_, handle)| handle))
    }

    /// A connection has ended, or has authenticated itself; `false` if another took its place.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        self.entries.remove(&number).is_some()
    }

    /// The oldest connection of a network, and how many it has.
    fn oldest_of(&self, network: IpAddr) -> Option<(u64, usize)> {
        let mut own = self.entries.iter().filter(|(_, (of, _))| *of == network);
        let oldest = *own.next()?.0;
        Some((oldest, own.count() + 1))
    }

    /// The oldest connection of the network that has most.
    fn oldest_of_most(&self) -> Option<u64> {
        let networks = self.entries.values().map(|(network, _)| *network);
        let oldest = networks.filter_map(|network| self.oldest_of(network));
        let most = oldest.max_by_key(|(number, count)| (*count, std::cmp::Reverse(*number)));
        most.map(|(number, _)| number)
    }
}

/// A host that has one IPv6 address usually has its whole /64.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & !u128::from(u64::MAX)).into()),
    }
}

/// How many refusals were reported lately.
#[derive(Debug, Default)]
pub(super) struct RefusalReports {
    since: Option<Instant>,
    count: u64,
}

/// What is to be reported of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefusalReport {
    /// The refusal itself.
    pub(super) is_due: bool,
    /// Earlier ones that were not reported.
    pub(super) unreported: u64,
}

impl RefusalReports {
    pub(super) fn on_refused(&mut self, now: Instant) -> RefusalReport {
        let since = *self.since.get_or_insert(now);
        let mut unreported = 0;
        if now.saturating_duration_since(since) >= REPORT_WINDOW {
            unreported = self.count.saturating_sub(REPORTS_MAX);
            *self = Self {
                since: Some(now),
                count: 0,
            };
        }
        self.count += 1;
        RefusalReport {
            is_due: self.count <= REPORTS_MAX,
            unreported,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(network: u16, host: u16) -> IpAddr {
        IpAddr::from([0x2001, 0xdb8, 0, network, 0, 0, 0, host])
    }

    #[test]
    fn a_network_gives_way_to_itself_and_the_largest_one_to_others() {
        let mut table = Unauthenticated::default();
        // Four networks with many hosts each take all of it.
        let mut closed = 0;
        for number in 0..100 {
            let from = ip(number % 4, number);
            closed += usize::from(table.push(from, from).1.is_some());
        }
        assert_eq!(table.entries.len(), UNAUTHENTICATED_MAX);
        assert_eq!(closed, 100 - UNAUTHENTICATED_MAX);
        // Another one gets in, and stays while they go on.
        let honest = ip(99, 1);
        let (number, closed) = table.push(honest, honest);
        assert_eq!(closed.map(network), Some(ip(0, 0)), "the oldest");
        for other in 0..1000 {
            let from = ip(other % 4, other);
            assert_ne!(table.push(from, from).1, Some(honest));
            assert!(table.entries.len() <= UNAUTHENTICATED_MAX);
        }
        assert!(table.remove(number));
        assert!(!table.remove(number));
        assert!(!table.remove(0), "another took its place");
    }

    #[test]
    fn networks_are_ipv6_64_and_single_ipv4_addresses() {
        assert_eq!(network(ip(3, 9)), ip(3, 0));
        let v4 = IpAddr::from([192, 0, 2, 7]);
        assert_eq!(network(v4), v4);
        assert_eq!(network("::ffff:192.0.2.7".parse().unwrap()), v4);
    }

    #[test]
    fn refusals_are_reported_five_times_in_ten_seconds_and_then_counted() {
        let mut reports = RefusalReports::default();
        let begun = Instant::now();
        let mut at = |seconds| reports.on_refused(begun + Duration::from_secs(seconds));
        let due = (0..2000).filter(|_| at(1).is_due).count();
        assert_eq!(due, 5);
        let expected = RefusalReport {
            is_due: true,
            unreported: 1995,
        };
        assert_eq!(at(11), expected);
        assert_eq!(at(12).unreported, 0);
    }
}
