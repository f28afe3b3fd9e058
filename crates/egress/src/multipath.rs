//! Which EPE addresses each MPTCP connection is told of, and what becomes of its subflows when routes
//! change [egress §4.1.3].
//!
//! An address is announced to a client only if its egress peer's table leads to that client. A subflow
//! whose route is withdrawn is ended at once: only then does the kernel send what was lost on it again by
//! others; as a mere backup it would wait for the subflow's own retransmission timer, for hundreds of
//! milliseconds. Connections of a class that prefers some egress peers have all other subflows as backups.
//! Nothing here talks to the kernel: what happens goes in, what is to be done comes out. How data is spread
//! over the subflows is left to the kernel's scheduler.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU8,
    sync::Arc,
    time::Duration,
};

use keiro_linux::mptcp_pm::{Ends, Event, Token};
use keiro_model::Instant;

use crate::{config::Class, forwarding::PeerIndex};

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// Tell the client of an address, with its number.
    Announce(Token, Ipv6Addr, NonZeroU8),
    /// Take it back.
    Withdraw(Token, NonZeroU8),
    /// Make a subflow a backup, or an ordinary one again.
    Backup(Token, Ends, bool),
    /// End a subflow.
    End(Token, Ends),
}

/// The connections of a server.
#[derive(Debug)]
pub struct Multipath {
    /// By egress peer; `None`: of one that is gone.
    addresses: Vec<Option<Ipv6Addr>>,
    classes: Vec<Arc<Class>>,
    connections: BTreeMap<Token, Connection>,
    /// Nothing that is astray has to be removed before.
    due: Option<Instant>,
    /// Connections beyond the bound, which have one path.
    pub left_out: u64,
}

#[derive(Debug)]
struct Connection {
    /// What it began with: the address that is there before all others, which ordinary routes lead from.
    first: Ends,
    /// Until when the first subflow is a backup; `None`: it is none, or always.
    aside: Option<Instant>,
    /// Its class when it began; `None`: all paths are alike.
    class: Option<Arc<Class>>,
    /// By egress peer.
    peers: Vec<Use>,
}

/// What a connection does with an egress peer.
#[derive(Clone, Debug, Default)]
struct Use {
    announced: bool,
    subflows: Vec<Ends>,
    /// Subflows were ended for want of a route, and the client may not know it.
    ended: bool,
    again: Option<Again>,
}

/// An address is announced again after subflows to it were ended. A client that still believes in them
/// joins nothing: it missed that the address was taken back, which is said only once.
#[derive(Clone, Copy, Debug)]
struct Again {
    due: Instant,
    /// So many times more it is taken back and announced.
    left: u32,
}

impl Multipath {
    /// For the EPE addresses of a server, in the order of its egress peers; those beyond the 254th
    /// are not used. The classes prefer such peers.
    pub fn new(addresses: impl IntoIterator<Item = Ipv6Addr>, classes: Vec<Class>) -> Self {
        let addresses = addresses.into_iter().take(NUMBERS_MAX);
        Self {
            classes: classes.into_iter().map(Arc::new).collect(),
            addresses: addresses.map(Some).collect(),
            connections: BTreeMap::new(),
            due: None,
            left_out: 0,
        }
    }

    /// Egress peers are others: of those that are gone connections are told, and their subflows
    /// ended; the new ones are for [`on_routes`](Self::on_routes). One under the number of another
    /// is none. Classes are of connections that begin from now on.
    pub fn set(
        &mut self,
        now: Instant,
        addresses: &BTreeMap<PeerIndex, Ipv6Addr>,
        classes: Vec<Class>,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<Act> {
        let stays = |peer: PeerIndex| addresses.contains_key(&peer);
        let acts = self.on_routes(now, &|_| true, &|peer, client| {
            stays(peer) && reaches(peer, client)
        });
        let last = addresses.last_key_value().map_or(0, |(peer, _)| peer.0 + 1);
        let count = self.addresses.len().max(last).min(NUMBERS_MAX);
        self.addresses = (0..count)
            .map(|place| addresses.get(&PeerIndex(place)).copied())
            .collect();
        for connection in self.connections.values_mut() {
            connection.peers.resize(count, Use::default());
            let uses = connection.peers.iter_mut().zip(&self.addresses);
            for (used, _) in uses.filter(|(_, own)| own.is_none()) {
                *used = Use::default();
            }
        }
        self.classes = classes.into_iter().map(Arc::new).collect();
        acts
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// How many subflows on EPE addresses an egress peer has.
    pub fn subflows(&self, peer: PeerIndex) -> usize {
        let all = self.connections.values();
        all.filter_map(|connection| connection.peers.get(peer.0))
            .map(|used| used.subflows.len())
            .sum()
    }

    /// Something has happened to a connection. `reaches`: whether an egress peer's table leads to an
    /// address.
    pub fn handle(
        &mut self,
        now: Instant,
        event: Event,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<Act> {
        match event {
            Event::Established(token, ends) => {
                if self.connections.len() >= CONNECTIONS_MAX {
                    self.left_out += 1;
                    return Vec::new();
                }
                let port = ends.local.port();
                let mut classes = self.classes.iter();
                let class = classes.find(|class| class.ports.contains(&port)).cloned();
                let connection = Connection {
                    first: ends,
                    aside: None,
                    class: class.clone(),
                    peers: vec![Use::default(); self.addresses.len()],
                };
                self.connections.insert(token, connection);
                let mut acts = Vec::new();
                // It leads by the best path, whichever that is.
                if class.is_some() {
                    acts.push(Act::Backup(token, ends, true));
                }
                self.follow(now, token, reaches, &mut acts);
                acts
            }
            Event::Closed(token) => {
                self.connections.remove(&token);
                Vec::new()
            }
            Event::SubflowEstablished(token, ends) => {
                let Some((peer, connection)) = self.find(token, ends) else {
                    return Vec::new();
                };
                // Its route may have gone while it was being made.
                if !reaches(peer, connection.first.remote.ip()) {
                    return vec![Act::End(token, ends)];
                }
                let used = &mut connection.peers[peer.0];
                (used.ended, used.again) = (false, None);
                if used.subflows.len() < SUBFLOWS_MAX && !used.subflows.contains(&ends) {
                    used.subflows.push(ends);
                }
                let class = connection.class.as_ref();
                let preferred = class.is_none_or(|class| class.prefer.contains(&peer.0));
                match preferred {
                    true => Vec::new(),
                    false => vec![Act::Backup(token, ends, true)],
                }
            }
            Event::SubflowClosed(token, ends) => {
                if let Some((peer, connection)) = self.find(token, ends) {
                    let used = &mut connection.peers[peer.0];
                    used.subflows.retain(|there| *there != ends);
                }
                Vec::new()
            }
            Event::Created(..)
            | Event::Announced(..)
            | Event::Removed(..)
            | Event::SubflowPriority(..) => Vec::new(),
        }
    }

    /// Routes have changed; `concerns` says of which clients.
    pub fn on_routes(
        &mut self,
        now: Instant,
        concerns: &dyn Fn(IpAddr) -> bool,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<Act> {
        let all = self.connections.iter();
        let tokens: Vec<Token> = all
            .filter(|(_, connection)| concerns(connection.first.remote.ip()))
            .map(|(token, _)| *token)
            .collect();
        let mut acts = Vec::new();
        for token in tokens {
            self.follow(now, token, reaches, &mut acts);
        }
        // What moves data comes before what only tells.
        acts.sort_by_key(|act| matches!(act, Act::Announce(..)));
        acts
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due, perhaps for nothing; `None`: never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// What was left for later: first subflows that are no longer backups, addresses that are announced once
    /// more.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.due.is_none_or(|due| now < due) {
            return acts;
        }
        let mut next: Option<Instant> = None;
        for (token, connection) in &mut self.connections {
            if connection.aside.is_some_and(|until| until <= now) {
                connection.aside = None;
                acts.push(Act::Backup(*token, connection.first, false));
            }
            for (place, used) in connection.peers.iter_mut().enumerate() {
                if let (Some(own), Some(number)) = (self.addresses[place], number(place)) {
                    acts.extend(used.once_more(now, *token, own, number));
                }
            }
            let again = connection.peers.iter().filter_map(|used| used.again);
            let waits = again.map(|again| again.due).chain(connection.aside);
            next = next.into_iter().chain(waits).min();
        }
        self.due = next;
        acts
    }

    fn wake_at(&mut self, due: Instant) {
        self.due = Some(self.due.map_or(due, |first| first.min(due)));
    }

    /// The connection of a subflow on an EPE address, and whose address that is.
    fn find(&mut self, token: Token, ends: Ends) -> Option<(PeerIndex, &mut Connection)> {
        let local = ends.local.ip();
        let place = self
            .addresses
            .iter()
            .position(|own| own.is_some_and(|own| local == own))?;
        Some((PeerIndex(place), self.connections.get_mut(&token)?))
    }

    /// Brings a connection in line with the routes to its client.
    fn follow(
        &mut self,
        now: Instant,
        token: Token,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
        acts: &mut Vec<Act>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let first = connection.first;
        let leads = |place| reaches(PeerIndex(place), first.remote.ip());
        let (mut gone, mut told) = (Vec::new(), Vec::new());
        let mut again = None;
        for (place, own) in self.addresses.iter().enumerate() {
            let used = &mut connection.peers[place];
            let Some((number, own)) = number(place).zip(*own) else {
                continue;
            };
            if first.local.ip() == own {
                continue;
            }
            if leads(place) {
                if !std::mem::replace(&mut used.announced, true) {
                    told.push(Act::Announce(token, own, number));
                    used.again = used.ended.then_some(Again {
                        due: now + JOIN_WAIT,
                        left: TRIES_MORE,
                    });
                    again = again.or(used.again.map(|again| again.due));
                }
                continue;
            }
            used.again = None;
            // While the subflow is there: what is lost by it tells nobody, but the client closes its side.
            if std::mem::take(&mut used.announced) {
                gone.push(Act::Withdraw(token, number));
            }
            let subflows = std::mem::take(&mut used.subflows);
            used.ended |= !subflows.is_empty();
            gone.extend(subflows.into_iter().map(|ends| Act::End(token, ends)));
        }
        let ends = gone.iter().any(|act| matches!(act, Act::End(..)));
        let others = connection
            .peers
            .iter()
            .any(|used| !used.subflows.is_empty());
        if ends && others && connection.class.is_none() {
            // The best path may have been the same, and its subflow as stuck; whatever is sent again must not
            // go there. It leads by some egress peer, so that nothing is lost by sparing it.
            if connection.aside.replace(now + ASIDE).is_none() {
                acts.push(Act::Backup(token, first, true));
            }
            self.wake_at(now + ASIDE);
        }
        if let Some(due) = again {
            self.wake_at(due);
        }
        acts.extend(gone);
        acts.extend(told);
    }
}

impl Use {
    /// Takes an address back to which nobody has come, or announces it once more.
    fn once_more(
        &mut self,
        now: Instant,
        token: Token,
        own: Ipv6Addr,
        number: NonZeroU8,
    ) -> Option<Act> {
        let left = self.again.filter(|again| again.due <= now)?.left;
        if self.announced && left == 0 {
            self.again = None;
            return None;
        }
        if std::mem::take(&mut self.announced) {
            let due = now + REST;
            self.again = Some(Again { due, left });
            return Some(Act::Withdraw(token, number));
        }
        self.announced = true;
        let left = left - 1;
        let due = now + JOIN_WAIT * 2_u32.pow(TRIES_MORE - left);
        self.again = Some(Again { due, left });
        Some(Act::Announce(token, own, number))
    }
}

/// An address's number in the protocol: 0 is the connection's first one.
fn number(place: usize) -> Option<NonZeroU8> {
    u8::try_from(place + 1).ok().and_then(NonZeroU8::new)
}

/// Numbers of addresses that there are beside 0, and 255, which the kernel uses for none.
const NUMBERS_MAX: usize = 254;
/// Connections that are looked after; later ones have one path. Ours: some tens of megabytes.
const CONNECTIONS_MAX: usize = 100_000;
/// Subflows of one connection by one egress peer: a client has few addresses. Ours; the kernel admits
/// eight of a connection.
const SUBFLOWS_MAX: usize = 8;
/// For how long the first subflow is spared when another one has lost its route. Ours: until the best path has
/// followed through a route reflector, and the first subflow has sent again what it lost.
const ASIDE: Duration = Duration::from_secs(1);
/// How long a client has to join an address that it had been told of before; twice as long each time. Ours: some
/// round trips; too short for a client costs it a join.
const JOIN_WAIT: Duration = Duration::from_millis(250);
/// Between taking an address back and announcing it again, so that a client does the one before the other. Ours.
const REST: Duration = Duration::from_millis(100);
/// How often that is tried. Ours.
const TRIES_MORE: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token(7);

    fn ends(local: &str) -> Ends {
        Ends {
            local: format!("[{local}]:80").parse().unwrap(),
            remote: "[2001:db8:c1::1]:4000".parse().unwrap(),
        }
    }

    fn two() -> Multipath {
        let own = ["fd00::a", "fd00::b"].map(|own| own.parse().unwrap());
        let class = Class {
            name: "video".to_owned(),
            ports: [443].into(),
            prefer: [1].into(),
        };
        Multipath::new(own, vec![class])
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn announce(own: &str, id: u8) -> Act {
        Act::Announce(TOKEN, own.parse().unwrap(), NonZeroU8::new(id).unwrap())
    }

    #[test]
    fn only_addresses_whose_tables_lead_to_the_client_are_announced() {
        let mut all = two();
        let only_b = |peer: PeerIndex, _: IpAddr| peer.0 == 1;
        let acts = all.handle(at(0), Event::Established(TOKEN, ends("fd00::1")), &only_b);
        assert_eq!(acts, [announce("fd00::b", 2)]);
        let acts = all.on_routes(at(1), &|_| true, &|_, _| true);
        assert_eq!(acts, [announce("fd00::a", 1)]);
        assert_eq!(all.on_routes(at(2), &|_| true, &|_, _| true), []);
        all.handle(at(3), Event::Closed(TOKEN), &only_b);
        assert_eq!(all.on_routes(at(4), &|_| true, &only_b), []);
    }

    #[test]
    fn a_connection_that_began_with_an_address_is_not_told_of_it() {
        let mut all = two();
        let acts = all.handle(
            at(0),
            Event::Established(TOKEN, ends("fd00::a")),
            &|_, _| true,
        );
        assert_eq!(acts, [announce("fd00::b", 2)]);
    }

    /// A connection of which a subflow on each EPE address is there.
    fn joined(all: &mut Multipath) -> [Ends; 3] {
        let three = [ends("fd00::1"), ends("fd00::a"), ends("fd00::b")];
        let [first, others @ ..] = three;
        all.handle(at(0), Event::Established(TOKEN, first), &|_, _| true);
        for on in others {
            let acts = all.handle(at(1), Event::SubflowEstablished(TOKEN, on), &|_, _| true);
            assert_eq!(acts, []);
        }
        three
    }

    fn without_a(peer: PeerIndex, _: IpAddr) -> bool {
        peer.0 != 0
    }

    const ONE: NonZeroU8 = NonZeroU8::MIN;

    #[test]
    fn a_subflow_whose_route_goes_is_ended_at_once_and_the_first_one_spared_meanwhile() {
        let mut all = two();
        let [first, on_a, _] = joined(&mut all);
        let acts = all.on_routes(at(2), &|_| false, &without_a);
        assert_eq!(acts, [], "not concerned");
        let acts = all.on_routes(at(2), &|_| true, &without_a);
        let expected = [
            Act::Backup(TOKEN, first, true),
            Act::Withdraw(TOKEN, ONE),
            Act::End(TOKEN, on_a),
        ];
        assert_eq!(acts, expected);
        assert_eq!(all.subflows(PeerIndex(0)), 0);
        assert_eq!(all.on_routes(at(3), &|_| true, &without_a), []);
        assert_eq!(all.handle_timeout(at(1001)), []);
        assert_eq!(all.poll_timeout(), Some(at(1002)));
        let acts = all.handle_timeout(at(1002));
        assert_eq!(acts, [Act::Backup(TOKEN, first, false)]);
        assert_eq!(all.poll_timeout(), None);
    }

    #[test]
    fn the_first_subflow_carries_what_no_other_can() {
        let mut all = two();
        let [_, on_a, on_b] = joined(&mut all);
        all.handle(at(2), Event::SubflowClosed(TOKEN, on_b), &|_, _| true);
        let acts = all.on_routes(at(3), &|_| true, &without_a);
        assert_eq!(acts, [Act::Withdraw(TOKEN, ONE), Act::End(TOKEN, on_a)]);
        assert_eq!(all.poll_timeout(), None);
    }

    #[test]
    fn an_address_that_is_back_is_announced_until_the_client_joins_it() {
        let mut all = two();
        let [first, on_a, _] = joined(&mut all);
        all.on_routes(at(2), &|_| true, &without_a);
        let acts = all.on_routes(at(100), &|_| true, &|_, _| true);
        assert_eq!(acts, [announce("fd00::a", 1)]);
        // The client has missed that its subflow is no more.
        assert_eq!(all.poll_timeout(), Some(at(350)));
        assert_eq!(all.handle_timeout(at(350)), [Act::Withdraw(TOKEN, ONE)]);
        assert_eq!(all.poll_timeout(), Some(at(450)));
        assert_eq!(all.handle_timeout(at(450)), [announce("fd00::a", 1)]);
        assert_eq!(all.poll_timeout(), Some(at(950)));
        all.handle(at(460), Event::SubflowEstablished(TOKEN, on_a), &|_, _| {
            true
        });
        assert_eq!(all.handle_timeout(at(950)), []);
        assert_eq!(all.poll_timeout(), Some(at(1002)));
        let acts = all.handle_timeout(at(1002));
        assert_eq!(acts, [Act::Backup(TOKEN, first, false)]);
        assert_eq!((all.poll_timeout(), all.subflows(PeerIndex(0))), (None, 1));
    }

    #[test]
    fn a_client_that_never_joins_again_is_left_alone_after_some_tries() {
        let mut all = two();
        joined(&mut all);
        all.on_routes(at(2), &|_| true, &without_a);
        all.on_routes(at(3), &|_| true, &|_, _| true);
        let mut announced = 0;
        while let Some(due) = all.poll_timeout() {
            let acts = all.handle_timeout(due);
            announced += acts
                .iter()
                .filter(|act| matches!(act, Act::Announce(..)))
                .count();
        }
        assert_eq!(announced, 4);
        // It may still come.
        let acts = all.on_routes(at(60_000), &|_| true, &without_a);
        assert_eq!(acts, [Act::Withdraw(TOKEN, ONE)]);
    }

    #[test]
    fn what_nobody_has_joined_is_taken_back_and_a_late_join_ended() {
        let mut all = two();
        all.handle(
            at(0),
            Event::Established(TOKEN, ends("fd00::1")),
            &|_, _| true,
        );
        let acts = all.on_routes(at(1), &|_| true, &without_a);
        assert_eq!(acts, [Act::Withdraw(TOKEN, ONE)]);
        let late = ends("fd00::a");
        let acts = all.handle(at(2), Event::SubflowEstablished(TOKEN, late), &without_a);
        assert_eq!(acts, [Act::End(TOKEN, late)]);
        assert_eq!((all.poll_timeout(), all.subflows(PeerIndex(0))), (None, 0));
    }

    #[test]
    fn peers_that_go_are_taken_back_and_new_ones_announced_to_connections_that_are_there() {
        let mut all = two();
        let [first, on_a, _] = joined(&mut all);
        let peers = |of: &[(usize, &str)]| -> BTreeMap<PeerIndex, Ipv6Addr> {
            let of = of.iter();
            of.map(|(at, own)| (PeerIndex(*at), own.parse().unwrap()))
                .collect()
        };
        let everywhere = |_: PeerIndex, _: IpAddr| true;
        // B stays, A goes, and C comes under a number of its own.
        let now = peers(&[(1, "fd00::b"), (2, "fd00::c")]);
        let acts = all.set(at(2), &now, Vec::new(), &everywhere);
        let expected = [
            Act::Backup(TOKEN, first, true),
            Act::Withdraw(TOKEN, ONE),
            Act::End(TOKEN, on_a),
        ];
        assert_eq!(acts, expected);
        let acts = all.on_routes(at(3), &|_| true, &everywhere);
        assert_eq!(acts, [announce("fd00::c", 3)]);
        // Whoever comes by the old address is nobody's.
        let acts = all.handle(at(4), Event::SubflowEstablished(TOKEN, on_a), &everywhere);
        assert_eq!(acts, []);
        assert_eq!(all.subflows(PeerIndex(0)), 0);
        all.handle(
            at(5),
            Event::SubflowEstablished(TOKEN, ends("fd00::c")),
            &everywhere,
        );
        assert_eq!([1, 2].map(|at| all.subflows(PeerIndex(at))), [1, 1]);
        // A connection that begins now knows them as well.
        let other = Token(8);
        let acts = all.handle(
            at(6),
            Event::Established(other, ends("fd00::1")),
            &everywhere,
        );
        assert_eq!(acts.len(), 2);
        assert_eq!(
            all.set(at(7), &peers(&[]), Vec::new(), &everywhere).len(),
            6
        );
    }

    #[test]
    fn a_class_has_all_but_its_preferred_peers_as_backups() {
        let of_class = |local: &str| Ends {
            local: format!("[{local}]:443").parse().unwrap(),
            ..ends(local)
        };
        let [first, on_a, on_b] = ["fd00::1", "fd00::a", "fd00::b"].map(of_class);
        let mut all = two();
        let acts = all.handle(at(0), Event::Established(TOKEN, first), &|_, _| true);
        assert_eq!(acts[0], Act::Backup(TOKEN, first, true));
        assert_eq!(acts.len(), 3);
        let acts = all.handle(at(1), Event::SubflowEstablished(TOKEN, on_a), &|_, _| true);
        assert_eq!(acts, [Act::Backup(TOKEN, on_a, true)]);
        let acts = all.handle(at(1), Event::SubflowEstablished(TOKEN, on_b), &|_, _| true);
        assert_eq!(acts, []);
        // The first one is spared anyway, and stays so.
        let acts = all.on_routes(at(2), &|_| true, &without_a);
        assert_eq!(acts, [Act::Withdraw(TOKEN, ONE), Act::End(TOKEN, on_a)]);
        assert_eq!(all.poll_timeout(), None);
    }
}
