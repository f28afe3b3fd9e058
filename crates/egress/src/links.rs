//! Links to directly connected neighbours: a session ends when its link does, and not only when the
//! hold time is over.
//!
//! A link is known once a session came up over it. Then the loss of the carrier, the removal of the
//! interface, and the removal of the session's local address count. The session is tried again when
//! the link is back.

use std::{collections::BTreeMap, net::IpAddr};

use keiro_bgp::{rib::NeighbourId, speaker::Input};
use keiro_linux::interface::Interface;

/// What is known of the links of neighbours in other ASes.
#[derive(Debug, Default)]
pub(crate) struct Links {
    known: BTreeMap<NeighbourId, Known>,
}

/// A neighbour whose link matters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched<'a> {
    pub(crate) id: NeighbourId,
    pub(crate) address: IpAddr,
    /// The configured interface.
    pub(crate) interface: Option<&'a str>,
    /// The local address of its session; `None`: it is down.
    pub(crate) local: Option<IpAddr>,
}

/// A change of a neighbour's link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkChange {
    pub(crate) id: NeighbourId,
    pub(crate) interface: String,
    /// Why the neighbour is not reached; `None`: the link is up again.
    pub(crate) lost: Option<&'static str>,
}

#[derive(Debug)]
struct Known {
    index: u32,
    name: String,
    is_up: bool,
    /// The local address of the session, if an interface had it.
    local: Option<IpAddr>,
}

impl Links {
    /// A session came up: remembers the link that it uses.
    pub(crate) fn on_session_up(&mut self, neighbour: Watched<'_>, links: &[Interface]) {
        let Some(link) = link_of(neighbour, links) else {
            self.known.remove(&neighbour.id);
            return;
        };
        let listed = |local: &IpAddr| links.iter().any(|link| link.has(*local));
        let known = Known {
            index: link.index,
            name: link.name.clone(),
            is_up: link.is_running(),
            local: neighbour.local.filter(listed),
        };
        self.known.insert(neighbour.id, known);
    }

    /// Whether no neighbour has a link that matters.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The neighbour was removed or replaced.
    pub(crate) fn forget(&mut self, id: NeighbourId) {
        self.known.remove(&id);
    }

    /// Whether a link is known to be down.
    pub(crate) fn is_down(&self, id: NeighbourId) -> bool {
        self.known.get(&id).is_some_and(|known| !known.is_up)
    }

    /// Links or addresses have changed: what follows for the neighbours.
    pub(crate) fn on_change(
        &mut self,
        neighbours: &[Watched<'_>],
        links: &[Interface],
    ) -> Vec<LinkChange> {
        let mut changes = Vec::new();
        for neighbour in neighbours {
            let Some(known) = self.known.get_mut(&neighbour.id) else {
                continue;
            };
            // Made anew, an interface has another number.
            let same = links.iter().find(|link| link.index == known.index);
            let lost = match same {
                None => Some("is gone"),
                Some(link) if !link.is_running() => Some("has no carrier, or is set down"),
                Some(_) => None,
            };
            let change = |known: &Known, lost| LinkChange {
                id: neighbour.id,
                interface: known.name.clone(),
                lost,
            };
            if known.is_up && lost.is_some() {
                known.is_up = false;
                changes.push(change(known, lost));
            }
            if !known.is_up {
                let found = link_of(*neighbour, links).or(same);
                if let Some(link) = found.filter(|link| link.is_running()) {
                    (known.index, known.name) = (link.index, link.name.clone());
                    known.is_up = true;
                    changes.push(change(known, None));
                }
                continue;
            }
            let is_there = |local: IpAddr| links.iter().any(|link| link.has(local));
            if known
                .local
                .is_some_and(|local| neighbour.local == Some(local) && !is_there(local))
            {
                known.local = None;
                // The session may come back from another address.
                changes.push(change(known, Some("has lost the session's local address")));
                changes.push(change(known, None));
            }
        }
        changes
    }

    pub(crate) fn check_invariants(&self) {
        for known in self.known.values() {
            debug_assert!(known.index > 0, "{}: an interface has a number", known.name);
        }
    }
}

impl LinkChange {
    pub(crate) fn input(&self) -> Input {
        match self.lost {
            Some(_) => Input::LinkDown(self.id),
            None => Input::LinkUp(self.id),
        }
    }
}

/// The link that leads to a neighbour: the configured one, or the one with its prefix; `None`: it is
/// behind another router.
fn link_of<'a>(neighbour: Watched<'_>, links: &'a [Interface]) -> Option<&'a Interface> {
    match neighbour.interface {
        Some(name) => links.iter().find(|link| link.name == name),
        None => {
            // A prefix may be on several links, of which the running one is used.
            let near = links.iter().filter(|link| link.reaches(neighbour.address));
            near.max_by_key(|link| link.is_running())
        }
    }
}

#[cfg(test)]
mod tests {
    use keiro_linux::interface::Address;

    use super::*;

    const ID: NeighbourId = NeighbourId(3);

    fn link(name: &str, index: u32, addresses: &[&str]) -> Interface {
        let address = |text: &&str| Address {
            ip: text.parse().unwrap(),
            prefix_len: 64,
            peer: None,
            ready: true,
            passing: false,
        };
        Interface {
            name: name.to_owned(),
            index,
            up: true,
            carrier: true,
            addresses: addresses.iter().map(address).collect(),
            ..Interface::default()
        }
    }

    fn down(mut link: Interface) -> Interface {
        link.carrier = false;
        link
    }

    fn neighbour(interface: Option<&str>, is_up: bool) -> Watched<'_> {
        Watched {
            id: ID,
            address: "fd00:a::2".parse().unwrap(),
            interface,
            local: is_up.then(|| "fd00:a::1".parse().unwrap()),
        }
    }

    /// `-`: lost; `+`: back.
    fn signs(changes: &[LinkChange]) -> String {
        let signs = changes.iter().map(|change| match change.lost {
            Some(_) => '-',
            None => '+',
        });
        signs.collect()
    }

    #[test]
    fn a_session_ends_with_its_link_and_is_tried_when_the_link_is_back() {
        let pa = || link("pa", 7, &["fd00:a::1"]);
        let pb = || link("pb", 8, &["fd00:b::1"]);
        for interface in [None, Some("pa")] {
            for (what, gone) in [
                ("no carrier", vec![down(pa()), pb()]),
                (
                    "no carrier, and its addresses are gone",
                    vec![down(link("pa", 7, &[])), pb()],
                ),
                ("removed", vec![pb()]),
                (
                    "made anew without an address",
                    vec![pb(), down(link("pa", 9, &[]))],
                ),
            ] {
                let mut links = Links::default();
                links.on_session_up(neighbour(interface, true), &[pa(), pb()]);
                let mut on_change = |is_up, now: &[Interface]| {
                    let changes = links.on_change(&[neighbour(interface, is_up)], now);
                    links.check_invariants();
                    (signs(&changes), links.is_down(ID))
                };
                assert_eq!(
                    on_change(true, &[pa(), pb()]),
                    (String::new(), false),
                    "{what}"
                );
                assert_eq!(on_change(true, &gone), ("-".to_owned(), true), "{what}");
                assert_eq!(on_change(false, &gone), (String::new(), true), "{what}");
                let anew = [link("pa", 12, &["fd00:a::1"]), pb()];
                assert_eq!(on_change(false, &anew), ("+".to_owned(), false), "{what}");
                assert_eq!(on_change(false, &anew), (String::new(), false), "{what}");
            }
        }
    }

    #[test]
    fn a_flap_that_is_over_when_it_is_noticed_ends_nothing_unless_the_interface_is_another() {
        let mut links = Links::default();
        links.on_session_up(neighbour(None, true), &[link("pa", 7, &["fd00:a::1"])]);
        let now = [link("pa", 7, &["fd00:a::1"])];
        assert_eq!(links.on_change(&[neighbour(None, true)], &now), []);
        // A rename is none.
        let now = [link("wan", 7, &["fd00:a::1"])];
        assert_eq!(links.on_change(&[neighbour(None, true)], &now), []);
        let now = [link("pa", 9, &["fd00:a::1"])];
        let changes = links.on_change(&[neighbour(None, true)], &now);
        assert_eq!(signs(&changes), "-+");
    }

    #[test]
    fn a_session_ends_with_its_local_address() {
        let mut links = Links::default();
        let both = [link("pa", 7, &["fd00:a::1", "fd00:a::7"])];
        links.on_session_up(neighbour(None, true), &both);
        let other = [link("pa", 7, &["fd00:a::7"])];
        let changes = links.on_change(&[neighbour(None, true)], &other);
        assert_eq!(signs(&changes), "-+");
        assert_eq!(links.on_change(&[neighbour(None, true)], &other), []);
        // An address that no interface ever had decides nothing.
        links.on_session_up(neighbour(None, true), &other);
        assert_eq!(links.on_change(&[neighbour(None, true)], &other), []);
    }

    #[test]
    fn neighbours_behind_other_routers_have_no_link() {
        let mut links = Links::default();
        let far = [link("up", 5, &["fd00:1::1"])];
        links.on_session_up(neighbour(None, true), &far);
        assert_eq!(links.on_change(&[neighbour(None, true)], &[]), []);
        // Nor has one whose configured interface does not exist.
        links.on_session_up(neighbour(Some("pa"), true), &far);
        assert_eq!(links.on_change(&[neighbour(Some("pa"), true)], &[]), []);
        // A link is forgotten with its neighbour.
        links.on_session_up(neighbour(None, true), &[link("pa", 7, &["fd00:a::1"])]);
        links.forget(ID);
        assert_eq!(links.on_change(&[neighbour(None, false)], &[]), []);
    }
}
