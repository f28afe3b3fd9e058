//! Which EPE addresses each MPTCP connection is told of, and what becomes of its subflows when routes
//! change [egress §4.1.3].
//!
//! An address is announced to a client only if its egress peer's table leads to that client. Subflows
//! whose route is withdrawn become backups, so that data moves to others at once; when the route stays
//! away they are removed. Nothing here talks to the kernel: what happens goes in, what is to be done
//! comes out. How data is spread over the subflows is left to the kernel's scheduler.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU8,
    time::Duration,
};

use keiro_linux::mptcp_pm::{Ends, Event, Token};
use keiro_model::Instant;

use crate::forwarding::PeerIndex;

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
    /// By egress peer.
    addresses: Vec<Ipv6Addr>,
    connections: BTreeMap<Token, Connection>,
    /// Nothing that is astray has to be removed before.
    due: Option<Instant>,
    /// Connections beyond the bound, which have one path.
    pub left_out: u64,
}

#[derive(Debug)]
struct Connection {
    client: IpAddr,
    /// The address that it began with.
    own: IpAddr,
    /// By egress peer.
    peers: Vec<Use>,
}

/// What a connection does with an egress peer.
#[derive(Clone, Debug, Default)]
struct Use {
    announced: bool,
    subflows: Vec<Ends>,
    /// Since when its table has not led to the client; `None`: it does, or never did.
    astray: Option<Instant>,
}

impl Multipath {
    /// For the EPE addresses of a server, in the order of its egress peers; those beyond the 254th
    /// are not used.
    pub fn new(addresses: impl IntoIterator<Item = Ipv6Addr>) -> Self {
        Self {
            addresses: addresses.into_iter().take(NUMBERS_MAX).collect(),
            connections: BTreeMap::new(),
            due: None,
            left_out: 0,
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
                let connection = Connection {
                    client: ends.remote.ip(),
                    own: ends.local.ip(),
                    peers: vec![Use::default(); self.addresses.len()],
                };
                self.connections.insert(token, connection);
                self.follow(now, token, reaches)
            }
            Event::Closed(token) => {
                self.connections.remove(&token);
                Vec::new()
            }
            Event::SubflowEstablished(token, ends) => {
                if let Some(used) = self.used(token, ends)
                    && used.subflows.len() < SUBFLOWS_MAX
                    && !used.subflows.contains(&ends)
                {
                    used.subflows.push(ends);
                }
                // Its route may have gone while it was being made.
                match self.used(token, ends).and_then(|used| used.astray) {
                    Some(since) => {
                        self.is_astray(since);
                        vec![Act::Backup(token, ends, true)]
                    }
                    None => Vec::new(),
                }
            }
            Event::SubflowClosed(token, ends) => {
                if let Some(used) = self.used(token, ends) {
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
            .filter(|(_, connection)| concerns(connection.client))
            .map(|(token, _)| *token)
            .collect();
        let follow = |token: Token| self.follow(now, token, reaches);
        let mut acts: Vec<Act> = tokens.into_iter().flat_map(follow).collect();
        // What moves data comes first.
        acts.sort_by_key(|act| !matches!(act, Act::Backup(_, _, true)));
        acts
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due, perhaps for nothing; `None`: never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Removes what has been without a route for too long.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.due.is_none_or(|due| now < due) {
            return acts;
        }
        self.due = None;
        for (token, connection) in &mut self.connections {
            for (place, used) in connection.peers.iter_mut().enumerate() {
                let Some(due) = used.due() else {
                    continue;
                };
                if now < due {
                    self.due = Some(self.due.map_or(due, |first| first.min(due)));
                    continue;
                }
                if std::mem::take(&mut used.announced) {
                    acts.extend(number(place).map(|number| Act::Withdraw(*token, number)));
                }
                let subflows = std::mem::take(&mut used.subflows);
                acts.extend(subflows.into_iter().map(|ends| Act::End(*token, ends)));
            }
        }
        acts
    }

    fn is_astray(&mut self, since: Instant) {
        let due = since + ASTRAY_MAX;
        self.due = Some(self.due.map_or(due, |first| first.min(due)));
    }

    fn used(&mut self, token: Token, ends: Ends) -> Option<&mut Use> {
        let local = ends.local.ip();
        let place = self.addresses.iter().position(|own| local == *own)?;
        self.connections.get_mut(&token)?.peers.get_mut(place)
    }

    /// Brings a connection in line with the routes to its client.
    fn follow(
        &mut self,
        now: Instant,
        token: Token,
        reaches: &dyn Fn(PeerIndex, IpAddr) -> bool,
    ) -> Vec<Act> {
        let mut acts = Vec::new();
        let Some(connection) = self.connections.get_mut(&token) else {
            return acts;
        };
        for (place, own) in self.addresses.iter().enumerate() {
            let used = &mut connection.peers[place];
            let Some(number) = number(place).filter(|_| connection.own != *own) else {
                continue;
            };
            let leads = reaches(PeerIndex(place), connection.client);
            let backup = |backup| move |ends: &Ends| Act::Backup(token, *ends, backup);
            match (leads, used.astray) {
                (true, astray) => {
                    used.astray = None;
                    if astray.is_some() {
                        acts.extend(used.subflows.iter().map(backup(false)));
                    }
                    if !std::mem::replace(&mut used.announced, true) {
                        acts.push(Act::Announce(token, *own, number));
                    }
                }
                (false, Some(_)) => {}
                (false, None) if used.subflows.is_empty() => {
                    if std::mem::take(&mut used.announced) {
                        // Nobody should join where nothing leads back.
                        used.astray = Some(now);
                        acts.push(Act::Withdraw(token, number));
                    }
                }
                (false, None) => {
                    used.astray = Some(now);
                    acts.extend(used.subflows.iter().map(backup(true)));
                }
            }
        }
        if acts
            .iter()
            .any(|act| matches!(act, Act::Backup(_, _, true)))
        {
            self.is_astray(now);
        }
        acts
    }
}

impl Use {
    /// When it is to be removed; `None`: there is nothing to remove.
    fn due(&self) -> Option<Instant> {
        let since = self
            .astray
            .filter(|_| self.announced || !self.subflows.is_empty());
        since.map(|since| since + ASTRAY_MAX)
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
/// For how long a subflow without a route waits for it to come back, as a backup. Ours: longer than a
/// path hunts, shorter than TCP gives up.
const ASTRAY_MAX: Duration = Duration::from_secs(5);

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
        Multipath::new(["fd00::a", "fd00::b"].map(|own| own.parse().unwrap()))
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

    #[test]
    fn a_subflow_whose_route_goes_is_a_backup_until_it_is_back_or_removed() {
        let mut all = two();
        all.handle(
            at(0),
            Event::Established(TOKEN, ends("fd00::1")),
            &|_, _| true,
        );
        let on_a = ends("fd00::a");
        all.handle(at(1), Event::SubflowEstablished(TOKEN, on_a), &|_, _| true);
        let without_a = |peer: PeerIndex, _: IpAddr| peer.0 == 1;
        assert_eq!(
            all.on_routes(at(2), &|_| false, &without_a),
            [],
            "not concerned"
        );
        let acts = all.on_routes(at(2), &|_| true, &without_a);
        assert_eq!(acts, [Act::Backup(TOKEN, on_a, true)]);
        let acts = all.on_routes(at(3), &|_| true, &|_, _| true);
        assert_eq!(acts, [Act::Backup(TOKEN, on_a, false)]);
        all.on_routes(at(4), &|_| true, &without_a);
        assert_eq!(all.handle_timeout(at(5003)), []);
        assert_eq!(all.poll_timeout(), Some(at(5004)));
        let one = NonZeroU8::MIN;
        assert_eq!(
            all.handle_timeout(at(5004)),
            [Act::Withdraw(TOKEN, one), Act::End(TOKEN, on_a)]
        );
        assert_eq!((all.poll_timeout(), all.subflows(PeerIndex(0))), (None, 0));
        // When it comes back it is told of the address again.
        let acts = all.on_routes(at(6000), &|_| true, &|_, _| true);
        assert_eq!(acts, [announce("fd00::a", 1)]);
    }

    #[test]
    fn what_nobody_has_joined_is_taken_back_at_once() {
        let mut all = two();
        all.handle(
            at(0),
            Event::Established(TOKEN, ends("fd00::1")),
            &|_, _| true,
        );
        let acts = all.on_routes(at(1), &|_| true, &|peer, _| peer.0 == 0);
        assert_eq!(acts, [Act::Withdraw(TOKEN, NonZeroU8::new(2).unwrap())]);
        // A join that was under way is a backup from the start.
        let late = ends("fd00::b");
        let acts = all.handle(at(2), Event::SubflowEstablished(TOKEN, late), &|_, _| true);
        assert_eq!(acts, [Act::Backup(TOKEN, late, true)]);
        assert_eq!(all.handle_timeout(at(5001)), [Act::End(TOKEN, late)]);
    }
}
