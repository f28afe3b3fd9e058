//! Which EPE addresses are announced on each MPTCP connection, and what happens to its subflows
//! when routes change [egress §4.1.3].
//!
//! An address is announced only if its egress peer's table leads to the client. A subflow whose
//! route is withdrawn is closed at once: only then does the kernel retransmit its lost data on
//! other subflows. As a backup it would wait for its own retransmission timer, for hundreds of
//! milliseconds. Connections of a class that prefers some egress peers use all other subflows as
//! backups. Of the others, some get no announcement, to compare multipath with single path for
//! their clients ([`crate::comparison`]); where multipath is worse, none does.
//!
//! This module does no I/O: events go in, actions come out. The kernel's scheduler distributes data
//! over subflows.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU8, sync::Arc, time::Duration};

use keiro_linux::mptcp_pm::{Ends, Event, Token};
use keiro_units::Instant;

use crate::{
    accounts::{Accounts, Reading},
    comparison::{Assignment, Comparison, Settings},
    config::{Class, EpeAddresses},
    forwarding::PeerIndex,
    status::Compared,
};

/// An action on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathAction {
    /// Announce an address with its ID (ADD_ADDR, RFC 8684 §3.4.1).
    Announce(Token, IpAddr, NonZeroU8),
    /// Withdraw an address (REMOVE_ADDR).
    Withdraw(Token, NonZeroU8),
    /// Make a subflow a backup, or a regular one again (MP_PRIO).
    Backup(Token, Ends, bool),
    End(Token, Ends),
}

/// Settings that apply to new connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionSettings<'a> {
    /// The preferred peers are indices.
    pub classes: &'a [Class],
    pub comparison: Settings,
}

#[derive(Debug)]
pub struct Multipath {
    /// By egress peer; `None`: the peer was removed.
    addresses: Vec<Option<EpeAddresses>>,
    classes: Vec<Arc<Class>>,
    connections: BTreeMap<Token, Connection>,
    comparison: Comparison,
    accounts: Accounts,
    /// The earliest time at which a connection has something to do.
    due: Option<Instant>,
    /// Connections beyond the limit, which stay single-path.
    pub over_limit: u64,
}

#[derive(Debug)]
struct Connection {
    /// The first subflow, whose source address is the server's ordinary one.
    first: Ends,
    /// The first subflow is a backup, because another one uses the same path.
    first_is_backup: bool,
    /// When that changes; `None`: it does not.
    backup_change_due: Option<Instant>,
    /// The connection began on an EPE address, and so leaves by a particular peer.
    by_peer: bool,
    /// Its traffic class; `None`: all paths are equal.
    class: Option<Arc<Class>>,
    /// No address is ever announced on it.
    held_out: bool,
    /// By egress peer.
    peers: Vec<PeerUse>,
}

/// The state of one egress peer's address on a connection.
#[derive(Clone, Debug, Default)]
struct PeerUse {
    announced: bool,
    subflows: Vec<Ends>,
    /// Subflows were closed because their route was withdrawn, and the client may have missed it.
    ended: bool,
    again: Option<Reannounce>,
}

/// Repeated announcement of an address whose subflows were closed. A client that missed the
/// withdrawal, which is sent only once, believes that they exist and does not join again.
#[derive(Clone, Copy, Debug)]
struct Reannounce {
    due: Instant,
    /// The number of attempts left.
    left: u32,
}

impl Multipath {
    /// For the EPE addresses of a server, in the order of its egress peers; those beyond the 254th
    /// are not used. Connections of a class are not compared.
    pub fn new(
        addresses: impl IntoIterator<Item = EpeAddresses>,
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
            over_limit: 0,
        }
    }

    /// Replaces the egress peers: addresses of removed peers are withdrawn and their subflows
    /// closed. New peers are announced by the next [`on_routes`](Self::on_routes). A peer replaced
    /// under the same index counts as removed.
    pub fn set(
        &mut self,
        now: Instant,
        addresses: &BTreeMap<PeerIndex, EpeAddresses>,
        others: &ConnectionSettings<'_>,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<PathAction> {
        self.comparison.set(others.comparison);
        let stays = |peer: PeerIndex| addresses.contains_key(&peer);
        let actions = self.on_routes(now, &|_| true, &|peer, client| {
            stays(peer) && reaches(peer, client)
        });
        let last = addresses.last_key_value().map_or(0, |(peer, _)| peer.0 + 1);
        let count = self.addresses.len().max(last).min(NUMBERS_MAX);
        self.addresses = (0..count)
            .map(|place| addresses.get(&PeerIndex(place)).copied())
            .collect();
        for connection in self.connections.values_mut() {
            connection.peers.resize(count, PeerUse::default());
            let uses = connection.peers.iter_mut().zip(&self.addresses);
            for (used, _) in uses.filter(|(_, own)| own.is_none()) {
                *used = PeerUse::default();
            }
        }
        self.classes = others.classes.iter().cloned().map(Arc::new).collect();
        actions
    }

    pub fn comparison(&self) -> &Comparison {
        &self.comparison
    }

    /// The next decision about a client prefix.
    pub fn poll_decision(&mut self) -> Option<Compared> {
        self.comparison.poll_decision()
    }

    /// The next connection whose counters must be read, with its subflows; pass the result to
    /// [`on_read`](Self::on_read).
    pub fn poll_read(&self, now: Instant) -> Option<(Token, &[Ends])> {
        self.accounts.poll_read(now)
    }

    /// Takes the counters of the connection from [`poll_read`](Self::poll_read); `None`: it has
    /// ended.
    pub fn on_read(&mut self, now: Instant, reading: Option<&Reading>) {
        if let Some(ended) = self.accounts.on_read(now, reading) {
            self.comparison
                .record(now, ended.drawn, ended.bytes, ended.took);
        }
    }

    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The number of subflows on an egress peer's EPE address.
    pub fn subflows(&self, peer: PeerIndex) -> usize {
        let all = self.connections.values();
        all.filter_map(|connection| connection.peers.get(peer.0))
            .map(|used| used.subflows.len())
            .sum()
    }

    /// Handles an event of a connection. `reaches`: whether an egress peer's table leads to an
    /// address.
    pub fn handle(
        &mut self,
        now: Instant,
        event: Event,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<PathAction> {
        match event {
            Event::Established(token, ends) => self.on_established(now, token, ends, reaches),
            Event::Closed(token) => {
                self.connections.remove(&token);
                self.accounts.close(token);
                Vec::new()
            }
            Event::SubflowEstablished(token, ends) => {
                self.on_subflow_established(now, token, ends, reaches)
            }
            Event::SubflowClosed(token, ends) => {
                if let Some((peer, connection)) = self.find(token, ends) {
                    let used = &mut connection.peers[peer.0];
                    used.subflows.retain(|there| *there != ends);
                    let due = connection.schedule_backup_change(now);
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

    fn on_established(
        &mut self,
        now: Instant,
        token: Token,
        ends: Ends,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<PathAction> {
        if self.connections.len() >= CONNECTIONS_MAX {
            self.over_limit += 1;
            return Vec::new();
        }
        let port = ends.local.port();
        let mut classes = self.classes.iter();
        let class = classes.find(|class| class.ports.contains(&port)).cloned();
        let drawn = match class {
            None => self.draw(now, ends, reaches),
            // The class says which paths are preferred.
            Some(_) => Assignment::default(),
        };
        if drawn.counts.is_some() {
            self.accounts.begin(now, token, ends, drawn);
        }
        let local = ends.local.ip();
        let mut own = self.addresses.iter().flatten();
        let connection = Connection {
            first: ends,
            first_is_backup: false,
            backup_change_due: None,
            by_peer: own.any(|own| own.contains(local)),
            class: class.clone(),
            held_out: drawn.single,
            peers: vec![PeerUse::default(); self.addresses.len()],
        };
        self.connections.insert(token, connection);
        let mut actions = Vec::new();
        // The first subflow uses the best path, whichever that is.
        if class.is_some() {
            actions.push(PathAction::Backup(token, ends, true));
        }
        self.follow(now, token, reaches, &mut actions);
        actions
    }

    fn on_subflow_established(
        &mut self,
        now: Instant,
        token: Token,
        ends: Ends,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<PathAction> {
        let Some((peer, connection)) = self.find(token, ends) else {
            return Vec::new();
        };
        // Its route may have been withdrawn while it was being established.
        let client = connection.first.remote.ip().to_canonical();
        if !reaches(peer, client) {
            return vec![PathAction::End(token, ends)];
        }
        let used = &mut connection.peers[peer.0];
        (used.ended, used.again) = (false, None);
        if used.subflows.len() < SUBFLOWS_MAX && !used.subflows.contains(&ends) {
            used.subflows.push(ends);
        }
        let class = connection.class.as_ref();
        let preferred = class.is_none_or(|class| class.prefer.contains(&peer.0));
        let due = connection.schedule_backup_change(now);
        self.accounts.join(token, ends);
        due.into_iter().for_each(|due| self.wake_at(due));
        match preferred {
            true => Vec::new(),
            false => vec![PathAction::Backup(token, ends, true)],
        }
    }

    /// Handles changes of routes to the clients for which `concerns` is true.
    pub fn on_routes(
        &mut self,
        now: Instant,
        concerns: &dyn Fn(IpAddr) -> bool,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<PathAction> {
        let all = self.connections.iter();
        let tokens: Vec<Token> = all
            .filter(|(_, connection)| concerns(connection.first.remote.ip().to_canonical()))
            .map(|(token, _)| *token)
            .collect();
        let mut actions = Vec::new();
        for token in tokens {
            self.follow(now, token, reaches, &mut actions);
        }
        // Actions that move data go first.
        actions.sort_by_key(|action| matches!(action, PathAction::Announce(..)));
        actions
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_read`](Self::poll_read) is due;
    /// `None`: never. There may be nothing to do then.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = [self.due, self.accounts.poll_timeout()];
        waits.into_iter().flatten().min()
    }

    /// Carries out what is due: backup changes of first subflows, and repeated announcements.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<PathAction> {
        let mut actions = Vec::new();
        if self.due.is_none_or(|due| now < due) {
            return actions;
        }
        let mut next: Option<Instant> = None;
        for (token, connection) in &mut self.connections {
            if connection.backup_change_due.is_some_and(|due| due <= now) {
                connection.backup_change_due = None;
                connection.first_is_backup = connection.first_is_redundant();
                actions.push(PathAction::Backup(
                    *token,
                    connection.first,
                    connection.first_is_backup,
                ));
            }
            for (place, used) in connection.peers.iter_mut().enumerate() {
                let own = self.addresses[place];
                let own = own.and_then(|own| own.of_family(connection.first.remote.ip()));
                if let (Some(own), Some(number)) = (own, number(place)) {
                    actions.extend(used.retry_announcement(now, *token, own, number));
                }
            }
            connection.schedule_backup_change(now);
            let again = connection.peers.iter().filter_map(|used| used.again);
            let waits = again
                .map(|again| again.due)
                .chain(connection.backup_change_due);
            next = next.into_iter().chain(waits).min();
        }
        self.due = next;
        actions
    }

    /// Assigns a new connection to a group of the comparison.
    fn draw(
        &mut self,
        now: Instant,
        first: Ends,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Assignment {
        let client = first.remote.ip().to_canonical();
        let mut addresses = self.addresses.iter().enumerate();
        let is_announced = addresses.any(|(place, own)| {
            let own = own.and_then(|own| own.of_family(client));
            let other = own.is_some_and(|own| first.local.ip().to_canonical() != own);
            other && reaches(PeerIndex(place), client)
        });
        match is_announced {
            true => self.comparison.draw(now, client),
            // It is single-path anyway.
            false => Assignment::default(),
        }
    }

    fn wake_at(&mut self, due: Instant) {
        self.due = Some(self.due.map_or(due, |first| first.min(due)));
    }

    /// The connection of a subflow on an EPE address, and the peer of that address.
    fn find(&mut self, token: Token, ends: Ends) -> Option<(PeerIndex, &mut Connection)> {
        let local = ends.local.ip();
        let place = self
            .addresses
            .iter()
            .position(|own| own.is_some_and(|own| own.contains(local)))?;
        Some((PeerIndex(place), self.connections.get_mut(&token)?))
    }

    /// Updates a connection to the routes to its client.
    fn follow(
        &mut self,
        now: Instant,
        token: Token,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
        actions: &mut Vec<PathAction>,
    ) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.held_out {
            return;
        }
        let first = connection.first;
        let client = first.remote.ip().to_canonical();
        let withheld = connection.class.is_none() && self.comparison.withholds(client);
        let leads = |place| reaches(PeerIndex(place), client);
        let (mut gone, mut announcements) = (Vec::new(), Vec::new());
        let mut again = None;
        for (place, own) in self.addresses.iter().enumerate() {
            let used = &mut connection.peers[place];
            let own = own.and_then(|own| own.of_family(client));
            let Some((number, own)) = number(place).zip(own) else {
                continue;
            };
            if first.local.ip().to_canonical() == own {
                continue;
            }
            if leads(place) {
                if withheld && !used.announced {
                    continue;
                }
                if !std::mem::replace(&mut used.announced, true) {
                    announcements.push(PathAction::Announce(token, own, number));
                    used.again = used.ended.then_some(Reannounce {
                        due: now + JOIN_WAIT,
                        left: TRIES_MORE,
                    });
                    again = again.or(used.again.map(|again| again.due));
                }
                continue;
            }
            used.again = None;
            // Withdraw first: a closed subflow is no signal to the client, REMOVE_ADDR is.
            if std::mem::take(&mut used.announced) {
                gone.push(PathAction::Withdraw(token, number));
            }
            let subflows = std::mem::take(&mut used.subflows);
            used.ended |= !subflows.is_empty();
            gone.extend(
                subflows
                    .into_iter()
                    .map(|ends| PathAction::End(token, ends)),
            );
        }
        let ends = gone
            .iter()
            .any(|action| matches!(action, PathAction::End(..)));
        let others = connection
            .peers
            .iter()
            .any(|used| !used.subflows.is_empty());
        if ends && others && connection.class.is_none() && !connection.first_is_backup {
            // The best path may use the same peer, so retransmissions must not go there.
            connection.first_is_backup = true;
            actions.push(PathAction::Backup(token, first, true));
        }
        for due in connection
            .schedule_backup_change(now)
            .into_iter()
            .chain(again)
        {
            self.wake_at(due);
        }
        actions.extend(gone);
        actions.extend(announcements);
    }
}

impl Connection {
    /// Whether other subflows cover the path of the first one: the best path leads by some egress
    /// peer, and each announced address has a subflow.
    fn first_is_redundant(&self) -> bool {
        // While an announcement is being repeated it is not known whether the client joins.
        if self.peers.iter().any(|used| used.again.is_some()) {
            return self.first_is_backup;
        }
        let mut announced = self.peers.iter().filter(|used| used.announced);
        let there = self.peers.iter().any(|used| !used.subflows.is_empty());
        !self.by_peer && there && announced.all(|used| !used.subflows.is_empty())
    }

    /// Schedules the change of the first subflow to a backup, or back.
    ///
    /// A backup has no data in flight. So when the best path is withdrawn together with its peer's
    /// route, no data waits for the retransmission timer of the first subflow, which cannot be
    /// closed, since a connection needs one that is always reachable.
    fn schedule_backup_change(&mut self, now: Instant) -> Option<Instant> {
        if self.class.is_some() || self.first_is_backup == self.first_is_redundant() {
            self.backup_change_due = None;
        } else {
            self.backup_change_due.get_or_insert(now + SETTLED);
        }
        self.backup_change_due
    }
}

impl PeerUse {
    /// Withdraws an address that the client has not joined, or announces it again.
    fn retry_announcement(
        &mut self,
        now: Instant,
        token: Token,
        own: IpAddr,
        number: NonZeroU8,
    ) -> Option<PathAction> {
        let left = self.again.filter(|again| again.due <= now)?.left;
        if self.announced && left == 0 {
            self.again = None;
            return None;
        }
        if std::mem::take(&mut self.announced) {
            let due = now + REST;
            self.again = Some(Reannounce { due, left });
            return Some(PathAction::Withdraw(token, number));
        }
        self.announced = true;
        let left = left - 1;
        let due = now + JOIN_WAIT * 2_u32.pow(TRIES_MORE - left);
        self.again = Some(Reannounce { due, left });
        Some(PathAction::Announce(token, own, number))
    }
}

/// The MPTCP address ID; 0 is the first subflow's.
fn number(place: usize) -> Option<NonZeroU8> {
    u8::try_from(place + 1).ok().and_then(NonZeroU8::new)
}

/// Address IDs other than 0, and 255, which the kernel treats as none.
const NUMBERS_MAX: usize = 254;
/// The maximum number of connections; later ones stay single-path. Ours: some tens of megabytes.
const CONNECTIONS_MAX: usize = 100_000;
/// Subflows per connection and egress peer: a client has few addresses. Ours; the kernel permits
/// eight per connection.
const SUBFLOWS_MAX: usize = 8;
/// How long the other subflows must exist, or be missing, before the first one changes. Ours: short
/// transfers keep the congestion window of the first one, and best paths that come through a route
/// reflector arrive meanwhile.
const SETTLED: Duration = Duration::from_secs(1);
/// How long a client has to join a repeated announcement; doubles each time. Ours: some round
/// trips; a slower client misses a join.
const JOIN_WAIT: Duration = Duration::from_millis(250);
/// The pause between withdrawal and repeated announcement, so that a client handles them in order.
/// Ours.
const REST: Duration = Duration::from_millis(100);
/// The number of repeated announcements. Ours.
const TRIES_MORE: u32 = 4;

#[cfg(test)]
mod tests;
