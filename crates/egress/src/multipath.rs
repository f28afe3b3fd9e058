//! Which EPE addresses each MPTCP connection is told of, and what becomes of its subflows when routes
//! change [egress §4.1.3].
//!
//! An address is announced to a client only if its egress peer's table leads to that client. A subflow
//! whose route is withdrawn is ended at once: only then does the kernel send what was lost on it again by
//! others; as a mere backup it would wait for the subflow's own retransmission timer, for hundreds of
//! milliseconds. Connections of a class that prefers some egress peers have all other subflows as backups.
//! Of the others some are told of no address, so that it can be known whether multipath is good for their clients
//! ([`crate::comparison`]), and where it is not, none is.
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
use keiro_units::Instant;

use crate::{
    accounts::{Accounts, Reading},
    comparison::{Comparison, Drawn, Settings},
    config::Class,
    forwarding::PeerIndex,
    status::Compared,
};

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

/// What else of another configuration is of connections that begin from now on.
#[derive(Clone, Copy, Debug)]
pub struct Others<'a> {
    /// What they prefer is by indices.
    pub classes: &'a [Class],
    /// How multipath and single path are compared.
    pub comparison: Settings,
}

/// The connections of a server.
#[derive(Debug)]
pub struct Multipath {
    /// By egress peer; `None`: of one that is gone.
    addresses: Vec<Option<Ipv6Addr>>,
    classes: Vec<Arc<Class>>,
    connections: BTreeMap<Token, Connection>,
    comparison: Comparison,
    accounts: Accounts,
    /// Nothing that is astray has to be removed before.
    due: Option<Instant>,
    /// Connections beyond the bound, which have one path.
    pub left_out: u64,
}

#[derive(Debug)]
struct Connection {
    /// What it began with: the address that is there before all others, which ordinary routes lead from.
    first: Ends,
    /// The first subflow is a backup, because others go where it goes.
    spared: bool,
    /// When it becomes one, or none any more; `None`: it stays what it is.
    judged: Option<Instant>,
    /// It began with an EPE address, and so leads by a peer of its own.
    by_peer: bool,
    /// Its class when it began; `None`: all paths are alike.
    class: Option<Arc<Class>>,
    /// It is told of no address, whatever comes.
    held_out: bool,
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
    /// are not used. The classes prefer such peers; connections of a class are not compared.
    pub fn new(
        addresses: impl IntoIterator<Item = Ipv6Addr>,
        classes: Vec<Class>,
        comparison: Comparison,
    ) -> Self {
        let addresses = addresses.into_iter().take(NUMBERS_MAX);
        Self {
            classes: classes.into_iter().map(Arc::new).collect(),
            addresses: addresses.map(Some).collect(),
            connections: BTreeMap::new(),
            comparison,
            accounts: Accounts::default(),
            due: None,
            left_out: 0,
        }
    }

    /// Egress peers are others: of those that are gone connections are told, and their subflows
    /// ended; the new ones are for [`on_routes`](Self::on_routes). One under the number of another
    /// is none.
    pub fn set(
        &mut self,
        now: Instant,
        addresses: &BTreeMap<PeerIndex, Ipv6Addr>,
        others: &Others<'_>,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<Act> {
        self.comparison.set(others.comparison);
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
        self.classes = others.classes.iter().cloned().map(Arc::new).collect();
        acts
    }

    /// What is known of client prefixes.
    pub fn comparison(&self) -> &Comparison {
        &self.comparison
    }

    /// What was decided about client prefixes since it was asked last.
    pub fn poll_decision(&mut self) -> Option<Compared> {
        self.comparison.poll_decision()
    }

    /// A connection of which is to be read what it has carried, by its subflows; what was read is for
    /// [`on_read`](Self::on_read), before the next one.
    pub fn poll_read(&self, now: Instant) -> Option<(Token, &[Ends])> {
        self.accounts.poll_read(now)
    }

    /// The connection that was to be read has been; `None`: it is gone.
    pub fn on_read(&mut self, now: Instant, reading: Option<&Reading>) {
        if let Some(ended) = self.accounts.on_read(now, reading) {
            self.comparison
                .record(now, ended.drawn, ended.bytes, ended.took);
        }
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
                let drawn = match class {
                    None => self.draw(now, ends, reaches),
                    // It is said which paths it prefers.
                    Some(_) => Drawn::default(),
                };
                if drawn.counts.is_some() {
                    self.accounts.begin(now, token, ends, drawn);
                }
                let local = ends.local.ip();
                let mut own = self.addresses.iter().flatten();
                let connection = Connection {
                    first: ends,
                    spared: false,
                    judged: None,
                    by_peer: own.any(|own| local == *own),
                    class: class.clone(),
                    held_out: drawn.single,
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
                self.accounts.close(token);
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
                let due = connection.judge(now);
                self.accounts.join(token, ends);
                due.into_iter().for_each(|due| self.wake_at(due));
                match preferred {
                    true => Vec::new(),
                    false => vec![Act::Backup(token, ends, true)],
                }
            }
            Event::SubflowClosed(token, ends) => {
                if let Some((peer, connection)) = self.find(token, ends) {
                    let used = &mut connection.peers[peer.0];
                    used.subflows.retain(|there| *there != ends);
                    let due = connection.judge(now);
                    due.into_iter().for_each(|due| self.wake_at(due));
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

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_read`](Self::poll_read) is due, perhaps for
    /// nothing; `None`: never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = [self.due, self.accounts.poll_timeout()];
        waits.into_iter().flatten().min()
    }

    /// What was left for later: first subflows that become backups or are none any more, addresses that are
    /// announced once more.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.due.is_none_or(|due| now < due) {
            return acts;
        }
        let mut next: Option<Instant> = None;
        for (token, connection) in &mut self.connections {
            if connection.judged.is_some_and(|due| due <= now) {
                connection.judged = None;
                connection.spared = connection.is_doubled();
                acts.push(Act::Backup(*token, connection.first, connection.spared));
            }
            for (place, used) in connection.peers.iter_mut().enumerate() {
                if let (Some(own), Some(number)) = (self.addresses[place], number(place)) {
                    acts.extend(used.once_more(now, *token, own, number));
                }
            }
            connection.judge(now);
            let again = connection.peers.iter().filter_map(|used| used.again);
            let waits = again.map(|again| again.due).chain(connection.judged);
            next = next.into_iter().chain(waits).min();
        }
        self.due = next;
        acts
    }

    /// What a connection is drawn as that has just begun.
    fn draw(
        &mut self,
        now: Instant,
        first: Ends,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Drawn {
        let client = first.remote.ip();
        let mut addresses = self.addresses.iter().enumerate();
        let told = addresses.any(|(place, own)| {
            let other = own.is_some_and(|own| first.local.ip() != own);
            other && reaches(PeerIndex(place), client)
        });
        match told {
            true => self.comparison.draw(now, client),
            // It is single-path anyway.
            false => Drawn::default(),
        }
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
        if connection.held_out {
            return;
        }
        let first = connection.first;
        let withheld = connection.class.is_none() && self.comparison.withholds(first.remote.ip());
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
                if withheld && !used.announced {
                    continue;
                }
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
        if ends && others && connection.class.is_none() && !connection.spared {
            // The best path may have been the same, and its subflow as stuck; whatever is sent again must not
            // go there.
            connection.spared = true;
            acts.push(Act::Backup(token, first, true));
        }
        for due in connection.judge(now).into_iter().chain(again) {
            self.wake_at(due);
        }
        acts.extend(gone);
        acts.extend(told);
    }
}

impl Connection {
    /// Whether others go where the first subflow goes: the best path leads by some egress peer, and by each
    /// that the client is told of it has a subflow.
    fn is_doubled(&self) -> bool {
        // A client that is told once more comes in a moment, or never: then it is known.
        if self.peers.iter().any(|used| used.again.is_some()) {
            return self.spared;
        }
        let mut told = self.peers.iter().filter(|used| used.announced);
        let there = self.peers.iter().any(|used| !used.subflows.is_empty());
        !self.by_peer && there && told.all(|used| !used.subflows.is_empty())
    }

    /// When the first subflow is to become a backup, or none any more.
    ///
    /// A backup has nothing under way. When the best path is withdrawn with its peer's, nothing has to wait
    /// for the retransmission timer of a subflow that cannot be ended, because a connection needs one that is
    /// always reachable.
    fn judge(&mut self, now: Instant) -> Option<Instant> {
        if self.class.is_some() || self.spared == self.is_doubled() {
            self.judged = None;
        } else {
            self.judged.get_or_insert(now + SETTLED);
        }
        self.judged
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
/// For how long the other subflows have to be there, or to lack, before the first one becomes a backup or is
/// none any more. Ours: short transfers keep the window that it has grown, and a best path follows through a route
/// reflector meanwhile.
const SETTLED: Duration = Duration::from_secs(1);
/// How long a client has to join an address that it had been told of before; twice as long each time. Ours: some
/// round trips; too short for a client costs it a join.
const JOIN_WAIT: Duration = Duration::from_millis(250);
/// Between taking an address back and announcing it again, so that a client does the one before the other. Ours.
const REST: Duration = Duration::from_millis(100);
/// How often that is tried. Ours.
const TRIES_MORE: u32 = 4;

#[cfg(test)]
mod tests;
