//! Host names of peers' endpoints, and the addresses that they have.
//!
//! [`Endpoints`] decides what is asked and what an answer means; it does not ask. [`Resolver`] asks in threads,
//! because the system's resolver waits, and [`kept`] keeps the addresses at which peers were reached, so that a peer
//! that has not moved is reached without DNS.
//!
//! A wrong answer does no harm beyond a path that does not come up: peers are known by their keys. The addresses
//! at which a peer was reached last are tried as long as no other works.

mod host_names;
mod kept;
mod refusal;
mod resolver;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::config::{HostName, PEER_ENDPOINTS_MAX};

pub(crate) use self::host_names::HostNames;
use self::refusal::refusal;
use self::{
    kept::KeptEndpoints,
    resolver::{Resolver, SystemResolver},
};

/// Addresses of a name are asked for again after this time. Ours: a hub that moves is found by its outage, and
/// this only adds and removes further addresses.
const ASK_EVERY: Duration = Duration::from_secs(300);
/// The same while no path to a peer of this name is up. Ours: the time to live of such names is a minute.
const ASK_EVERY_WHILE_DOWN: Duration = Duration::from_secs(5);
/// Addresses of one name that are used.
const ADDRESSES_MAX: usize = PEER_ENDPOINTS_MAX;

/// The host names of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    hosts: BTreeMap<HostName, Host>,
}

#[derive(Debug, Default)]
struct Host {
    /// In use now, in the order of the paths.
    addresses: Vec<IpAddr>,
    /// Those of the last answer that are of use.
    answer: Vec<IpAddr>,
    /// At which a peer was reached last.
    good: Vec<IpAddr>,
    /// At which a path to a peer is up.
    up: Vec<IpAddr>,
    /// Every peer of this name is up, wherever it is reached.
    is_up: bool,
    /// When it was asked for last; `None`: never.
    asked_at: Option<Stopwatch>,
    is_being_asked: bool,
    /// Why the last answer was of no use.
    failure: Option<String>,
}

/// What an answer has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerEffect {
    /// Other addresses are in use.
    pub(crate) is_changed: bool,
    /// To be logged: a failure that was not there before, or its end.
    pub(crate) report: Option<String>,
}

impl Endpoints {
    /// Follows a configuration. New names begin with what was kept.
    pub(crate) fn set_names(&mut self, names: &BTreeSet<HostName>, kept: &KeptEndpoints) {
        self.hosts.retain(|name, _| names.contains(name));
        for name in names {
            self.hosts.entry(name.clone()).or_insert_with(|| {
                let good = kept.addresses(name).to_vec();
                Host {
                    addresses: good.clone(),
                    good,
                    ..Host::default()
                }
            });
        }
        self.check_invariants();
    }

    /// The addresses of each name.
    pub(crate) fn addresses(&self) -> BTreeMap<HostName, Vec<IpAddr>> {
        let known = self
            .hosts
            .iter()
            .filter(|(_, host)| !host.addresses.is_empty());
        known
            .map(|(name, host)| (name.clone(), host.addresses.clone()))
            .collect()
    }

    /// The addresses at which peers were reached last.
    pub(crate) fn good(&self) -> BTreeMap<HostName, Vec<IpAddr>> {
        let reached = self.hosts.iter().filter(|(_, host)| !host.good.is_empty());
        reached
            .map(|(name, host)| (name.clone(), host.good.clone()))
            .collect()
    }

    /// Names whose addresses are to be asked for now; an answer follows for each.
    pub(crate) fn poll_questions(&mut self, now: Stopwatch) -> Vec<HostName> {
        let mut due = Vec::new();
        for (name, host) in &mut self.hosts {
            if host.is_due(now) {
                host.is_being_asked = true;
                host.asked_at = Some(now);
                due.push(name.clone());
            }
        }
        due
    }

    /// Paths to peers of this name are up at these addresses, some of which may not be the name's. `is_up`: every such
    /// peer is.
    pub(crate) fn on_reached(&mut self, name: &HostName, is_up: bool, up: &BTreeSet<IpAddr>) {
        if let Some(host) = self.hosts.get_mut(name) {
            let of_name = host.addresses.iter().filter(|ip| up.contains(ip));
            host.up = of_name.copied().collect();
            host.is_up = is_up;
            if !host.up.is_empty() {
                host.good.clone_from(&host.up);
            }
        }
        self.check_invariants();
    }

    /// An answer has come. `own`: this machine's addresses.
    pub(crate) fn on_answer(
        &mut self,
        name: &HostName,
        answer: Result<Vec<IpAddr>, String>,
        own: &[IpAddr],
    ) -> AnswerEffect {
        let Some(host) = self.hosts.get_mut(name) else {
            return AnswerEffect::default();
        };
        host.is_being_asked = false;
        let found = answer.and_then(|answer| of_use(&answer, own));
        let failure = found.as_ref().err().cloned();
        let report = match (&host.failure, &failure) {
            (before, Some(why)) if before.as_ref() != Some(why) => {
                Some(format!("endpoint {name}: {why}{}", host.remedy()))
            }
            (Some(_), None) => Some(format!("endpoint {name}: its addresses are known again")),
            _ => None,
        };
        host.failure = failure;
        let before = host.addresses.clone();
        if let Ok(found) = found {
            host.answer = found;
            host.choose();
        }
        let is_changed = host.addresses != before;
        self.check_invariants();
        AnswerEffect { is_changed, report }
    }

    /// What keeps names from addresses, and what to try, one line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let problem = |(name, host): (&HostName, &Host)| match &host.failure {
            Some(why) => Some(format!("endpoint {name}: {why}{}", host.remedy())),
            None if host.addresses.is_empty() => Some(format!(
                "endpoint {name}: its addresses are being asked for"
            )),
            None => None,
        };
        self.hosts.iter().filter_map(problem).collect()
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        for host in self.hosts.values() {
            let lists = [&host.addresses, &host.answer, &host.good, &host.up];
            for list in lists {
                assert!(list.len() <= ADDRESSES_MAX, "addresses of a name");
                let distinct: BTreeSet<&IpAddr> = list.iter().collect();
                assert_eq!(distinct.len(), list.len(), "each address is there once");
            }
        }
    }
}

impl Host {
    fn is_due(&self, now: Stopwatch) -> bool {
        let every = match self.is_up {
            true => ASK_EVERY,
            false => ASK_EVERY_WHILE_DOWN,
        };
        let waited = |at: Stopwatch| now.saturating_duration_since(at) >= every;
        !self.is_being_asked && self.asked_at.is_none_or(waited)
    }

    /// Addresses at which the peer is reached keep their places; then come those of the answer, and where none is
    /// reached those at which it was.
    fn choose(&mut self) {
        let reached = self.addresses.iter().filter(|ip| self.up.contains(ip));
        let mut chosen: Vec<IpAddr> = reached.copied().collect();
        let before = match self.up.is_empty() {
            true => &self.good[..],
            false => &[],
        };
        for ip in self.answer.iter().chain(before) {
            if !chosen.contains(ip) && chosen.len() < ADDRESSES_MAX {
                chosen.push(*ip);
            }
        }
        let set = |list: &[IpAddr]| list.iter().copied().collect::<BTreeSet<_>>();
        // Many servers answer in another order every time.
        if set(&chosen) != set(&self.addresses) {
            self.addresses = chosen;
        }
    }

    fn remedy(&self) -> &'static str {
        match self.addresses.is_empty() {
            true => {
                "; the peer is not reached by this name: check DNS (`getent ahosts`), or write an address"
            }
            false => "; the previous addresses are used",
        }
    }
}

/// The addresses of an answer that a peer can have, each once.
fn of_use(answer: &[IpAddr], own: &[IpAddr]) -> Result<Vec<IpAddr>, String> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut refused = None;
    for ip in answer {
        let ip = ip.to_canonical();
        match refusal(ip, own) {
            Some(why) => refused = refused.or(Some(format!("{ip} is {why}"))),
            None if found.contains(&ip) || found.len() >= ADDRESSES_MAX => {}
            None => found.push(ip),
        }
    }
    match (found.is_empty(), refused) {
        (false, _) => Ok(found),
        (true, Some(why)) => Err(format!("it has no address of use: {why}")),
        (true, None) => Err("it has no address".to_owned()),
    }
}
