//! Of two hubs, which sites have a session with each.
//!
//! Each hub sends the other the names of its sites, so that `keiro sites` at either shows both. Nothing else follows from
//! it: a hub passes packets for a site that it does not have on to the other hub in any case.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::config::Name;
use keiro_core::PeerId;

/// How often the other hub is sent what has not changed: a document may be lost. Ours.
const REPEAT_EVERY: Duration = Duration::from_secs(30);

/// Sites that are up at this hub, and those that the other hub has reported.
#[derive(Debug, Default)]
pub(crate) struct HubSiteView {
    /// Peers of whatever kind.
    up: BTreeSet<PeerId>,
    heard: Option<BTreeSet<Name>>,
    sent: Option<Sent>,
}

#[derive(Debug)]
struct Sent {
    to: PeerId,
    sites: BTreeSet<Name>,
    at: Stopwatch,
}

impl HubSiteView {
    pub(crate) fn on_up(&mut self, peer: PeerId) {
        self.up.insert(peer);
        // The other hub may have restarted.
        self.sent = self.sent.take().filter(|sent| sent.to != peer);
    }

    pub(crate) fn on_down(&mut self, peer: PeerId) {
        self.up.remove(&peer);
        if self.sent.as_ref().is_some_and(|sent| sent.to == peer) {
            self.sent = None;
            self.heard = None;
        }
    }

    /// Forgets peers that are none any more.
    pub(crate) fn retain(&mut self, there: &BTreeSet<PeerId>) {
        self.up.retain(|peer| there.contains(peer));
    }

    pub(crate) fn is_up(&self, peer: PeerId) -> bool {
        self.up.contains(&peer)
    }

    /// The other hub has said which sites it has.
    pub(crate) fn on_heard(&mut self, sites: BTreeSet<Name>) {
        self.heard = Some(sites);
    }

    /// Whether a site is up at the other hub; `None`: it has not said so since it is up.
    pub(crate) fn at_other_hub(&self, site: &Name) -> Option<bool> {
        self.heard.as_ref().map(|sites| sites.contains(site))
    }

    /// Whether the other hub is to be sent that this one has `sites`, which is taken as sent.
    pub(crate) fn poll(&mut self, other: PeerId, sites: &BTreeSet<Name>, now: Stopwatch) -> bool {
        let is_known = self.sent.as_ref().is_some_and(|sent| {
            sent.to == other
                && sent.sites == *sites
                && now.saturating_duration_since(sent.at) < REPEAT_EVERY
        });
        if is_known || !self.is_up(other) {
            return false;
        }
        self.sent = Some(Sent {
            to: other,
            sites: sites.clone(),
            at: now,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_hub_is_sent_what_it_does_not_know() {
        let (mut seen, other, start) = (HubSiteView::default(), PeerId(9), Stopwatch::now());
        let sites = |names: &[&str]| -> BTreeSet<Name> {
            let names = names.iter().map(|name| Name::new(name).expect("a name"));
            names.collect()
        };
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!seen.poll(other, &sites(&[]), start), "it is away");
        seen.on_up(other);
        assert!(seen.poll(other, &sites(&["a"]), start));
        assert!(!seen.poll(other, &sites(&["a"]), at(29)));
        assert!(seen.poll(other, &sites(&["a"]), at(30)), "it may be lost");
        assert!(seen.poll(other, &sites(&["a", "b"]), at(31)));
        assert_eq!(seen.at_other_hub(&Name::new("a").expect("a name")), None);
        seen.on_heard(sites(&["a"]));
        let known = ["a", "b"].map(|name| seen.at_other_hub(&Name::new(name).expect("a name")));
        assert_eq!(known, [Some(true), Some(false)]);
        // It restarts.
        seen.on_down(other);
        assert_eq!(seen.at_other_hub(&Name::new("a").expect("a name")), None);
        seen.on_up(other);
        assert!(seen.poll(other, &sites(&["a", "b"]), at(32)));
    }
}
