//! A speaker in virtual time between neighbours, and what always holds of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use keiro_bgp::{
    address::{Destination, Family},
    policy::Policy,
    record,
    rib::{NeighbourId, Path, Source},
    speaker::{Action, ConnectionId, Direction, Input, NeighbourConfig, Speaker, SpeakerConfig},
};
use keiro_units::Instant;

use crate::wire::Offer;

/// The AS of the speaker and its mirror.
pub const OWN: u32 = 65000;
pub const FAMILIES: [Family; 3] = [Family::Ipv4, Family::Ipv6, Family::Vpn6];

/// A neighbour whose octets are the input's.
#[derive(Clone, Copy, Debug)]
pub struct Other {
    pub asn: u16,
    pub offer: Offer,
    /// It says OPEN and KEEPALIVE by itself.
    pub greets: bool,
}

pub struct Site {
    pub now: Instant,
    pub speaker: Speaker,
    mirror: Speaker,
    others: Vec<Other>,
    configs: Vec<NeighbourConfig>,
    /// Connections that are there.
    open: BTreeSet<ConnectionId>,
    mirrored: Option<ConnectionId>,
    log: Vec<String>,
}

/// The mirror's end of its only connection.
const AT_MIRROR: ConnectionId = ConnectionId::new(NeighbourId(0), Direction::Incoming);

impl Site {
    /// Everybody is connected.
    pub fn new(others: &[Other]) -> Self {
        let mut site = Self {
            now: Instant::from_nanos(1_000_000_000),
            speaker: Speaker::new(config(1)),
            mirror: Speaker::new(config(9)),
            others: others.to_vec(),
            configs: Vec::new(),
            open: BTreeSet::new(),
            mirrored: None,
            log: Vec::new(),
        };
        for (place, other) in others.iter().enumerate() {
            let mut config = neighbour(other.asn.into(), place as u8 + 2);
            config.add_path = true;
            config.graceful_restart = Some(60);
            config.track_routes = true;
            config.routes_max = Some(100);
            site.configs.push(config);
        }
        let mut of_mirror = neighbour(OWN, 9);
        of_mirror.next_hop_self = true;
        site.configs.push(of_mirror);
        for config in &site.configs {
            site.speaker.add_neighbour(config.clone());
        }
        let mut of_us = neighbour(OWN, 1);
        of_us.passive = true;
        site.mirror.add_neighbour(of_us);
        let now = site.now;
        site.mirror.handle(now, Input::Start(NeighbourId(0)));
        for number in 0..site.configs.len() {
            site.hand(Input::Start(NeighbourId(number as u16)));
        }
        assert!(site.speaker.is_up(site.mirror_id()), "the mirror is there");
        site
    }

    fn mirror_id(&self) -> NeighbourId {
        NeighbourId(self.others.len() as u16)
    }

    pub fn hand(&mut self, input: Input) {
        self.put(input);
        self.settle();
    }

    /// Has a neighbour say something, if it is connected.
    pub fn say(&mut self, number: usize, octets: Vec<u8>) {
        let connection = ConnectionId::new(NeighbourId(number as u16), Direction::Outgoing);
        if self.open.contains(&connection) {
            self.hand(Input::Received(connection, octets));
        }
    }

    /// Breaks a neighbour's connection.
    pub fn cut(&mut self, number: usize) {
        let connection = ConnectionId::new(NeighbourId(number as u16), Direction::Outgoing);
        if self.open.remove(&connection) {
            self.hand(Input::Disconnected(connection));
        }
    }

    /// Lets time pass, with all that is due meanwhile.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..10_000 {
            let due = [self.speaker.poll_timeout(), self.mirror.poll_timeout()];
            let Some(next) = due.into_iter().flatten().min().filter(|next| *next <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            if due[0].is_some_and(|due| due <= self.now) {
                self.put(Input::Timeout);
            }
            if due[1].is_some_and(|due| due <= self.now) {
                self.mirror.handle(self.now, Input::Timeout);
            }
            self.settle();
        }
        panic!("time stands still");
    }

    fn put(&mut self, input: Input) {
        self.log.push(record::write(self.now, &input));
        self.speaker.handle(self.now, input);
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut busy = false;
            while let Some(action) = self.speaker.poll_action() {
                busy = true;
                self.carry_out(action);
            }
            while self.speaker.poll_event().is_some() {}
            busy |= self.transmit();
            if !busy {
                return;
            }
        }
        panic!("it never ends");
    }

    fn carry_out(&mut self, action: Action) {
        let own = address(1);
        match action {
            Action::Connect(id) => {
                let connection = ConnectionId::new(id, Direction::Outgoing);
                if id == self.mirror_id() {
                    let now = self.now;
                    self.mirror
                        .handle(now, Input::IncomingConnection(NeighbourId(0)));
                    let accepted = std::iter::from_fn(|| self.mirror.poll_action());
                    let accepted = accepted.last() == Some(Action::Accept(NeighbourId(0)));
                    assert!(accepted, "the mirror takes it");
                    self.mirror
                        .handle(now, Input::Connected(AT_MIRROR, address(9)));
                    self.mirrored = Some(connection);
                    self.put(Input::Connected(connection, own));
                    return;
                }
                self.open.insert(connection);
                self.put(Input::Connected(connection, own));
                let other = self.others[usize::from(id.0)];
                if other.greets {
                    let greeting = other.offer.greeting(other.asn, id.0 as u8 + 2);
                    self.put(Input::Received(connection, greeting));
                }
            }
            Action::Accept(_) | Action::Refuse(_) => panic!("no peer connects to this speaker"),
            Action::Close(connection) => {
                let mut last = Vec::new();
                self.speaker.transmit(connection, &mut last, 4096);
                whole(&last);
                assert!(self.mirrored != Some(connection), "the mirror is lost");
                self.open.remove(&connection);
            }
        }
    }

    /// What the speaker sends goes to the mirror, or is looked at.
    fn transmit(&mut self) -> bool {
        let mut busy = false;
        for connection in self.open.clone() {
            let mut sent = Vec::new();
            self.speaker.transmit(connection, &mut sent, 4096);
            busy |= !sent.is_empty();
            whole(&sent);
        }
        let Some(connection) = self.mirrored else {
            return busy;
        };
        let mut sent = Vec::new();
        self.speaker.transmit(connection, &mut sent, 4096);
        if !sent.is_empty() {
            busy = true;
            whole(&sent);
            self.mirror
                .handle(self.now, Input::Received(AT_MIRROR, sent));
        }
        while let Some(action) = self.mirror.poll_action() {
            panic!("the mirror wants {action:?}");
        }
        while self.mirror.poll_event().is_some() {}
        let mut said = Vec::new();
        self.mirror.transmit(AT_MIRROR, &mut said, 4096);
        if !said.is_empty() {
            busy = true;
            self.put(Input::Received(connection, said));
        }
        busy
    }

    /// What always holds. `small`: no attributes are near the length of a message, so that all can be said.
    pub fn check(&self, small: bool) {
        self.check_table();
        self.check_neighbours();
        self.check_mirror(small);
    }

    fn check_table(&self) {
        let rib = self.speaker.rib();
        let mut counts: BTreeMap<(Source, Family), usize> = BTreeMap::new();
        for (destination, paths) in rib.iter() {
            let first = paths.first().expect("a destination has a path");
            let best = rib.best(destination);
            assert_eq!(best, first.reachable.then_some(first));
            let all: Vec<&Path> = paths.iter().collect();
            assert_eq!(self.speaker.best_among(&all), best, "{destination}");
            let mut seen = BTreeSet::new();
            for path in paths {
                assert!(
                    seen.insert((path.source, path.path_id)),
                    "{destination} twice"
                );
                *counts
                    .entry((path.source, destination.family()))
                    .or_default() += 1;
                assert!(
                    !path.attributes.as_path.contains(OWN),
                    "{destination} was here"
                );
                assert!(path.attributes.originator != Some([10, 0, 0, 1].into()));
            }
        }
        for ((source, family), count) in counts {
            assert_eq!(rib.count(source, family), count, "{source:?} {family}");
        }
    }

    fn check_neighbours(&self) {
        let rib = self.speaker.rib();
        for number in 0..self.others.len() {
            let id = NeighbourId(number as u16);
            let source = Source::Neighbour(id);
            let count: usize = FAMILIES.iter().map(|f| rib.count(source, *f)).sum();
            assert!(count <= 300, "more than it may");
            if self.speaker.is_up(id) || count == 0 {
                continue;
            }
            let restarts = self.speaker.status(id).negotiated.restart_time.is_some();
            let paths = rib.iter().flat_map(|(_, paths)| paths);
            let stale = paths
                .filter(|path| path.source == source)
                .all(|path| path.stale);
            assert!(restarts && stale, "routes without a peer");
        }
    }

    /// What the mirror has heard is what the speaker may send it, and nothing was said wrongly.
    fn check_mirror(&self, small: bool) {
        assert!(
            self.speaker.is_up(self.mirror_id()),
            "{:?}",
            self.mirror.status(NeighbourId(0))
        );
        let heard = self.mirror.status(NeighbourId(0));
        assert_eq!(
            (heard.malformed_updates, heard.times_up),
            (0, 1),
            "{:?}",
            heard.last_error
        );
        let sent = self.speaker.status(self.mirror_id()).advertised;
        assert_eq!(
            sent,
            self.mirror.rib().len(),
            "what was sent is what was heard"
        );
        let rib = self.speaker.rib();
        let unicast = |destination: &&Destination| !matches!(destination, Destination::Vpn6(..));
        for (destination, paths) in self.mirror.rib().iter() {
            assert_eq!(paths.len(), 1);
            if !unicast(&destination) {
                continue;
            }
            let best = rib
                .best(destination)
                .expect("it is sent only what there is");
            assert!(self.may_be_reported(best), "{destination}");
            assert_eq!(paths[0].attributes.as_path, best.attributes.as_path);
            assert_eq!(paths[0].attributes.med, best.attributes.med);
            assert_eq!(paths[0].attributes.origin, best.attributes.origin);
            assert_eq!(paths[0].attributes.next_hop, address(1));
        }
        let may = rib
            .iter()
            .map(|(destination, _)| destination)
            .filter(unicast);
        let may = may.filter(|d| rib.best(d).is_some_and(|best| self.may_be_reported(best)));
        // Next hops of IPv4 are of IPv4, and the speaker has none.
        let may = may.filter(|d| matches!(d, Destination::V6(_)));
        if small {
            for destination in may {
                assert!(
                    self.mirror.rib().best(destination).is_some(),
                    "{destination}"
                );
            }
        }
    }

    fn may_be_reported(&self, best: &Path) -> bool {
        let internal = match best.source {
            Source::Local => false,
            Source::Neighbour(id) => u32::from(self.others[usize::from(id.0)].asn) == OWN,
        };
        // NO_ADVERTISE (RFC 1997).
        !internal && !best.attributes.communities.contains(&0xffff_ff02)
    }

    /// What was recorded makes the same table again.
    pub fn check_replay(&self) {
        let mut again = Speaker::new(config(1));
        for config in &self.configs {
            again.add_neighbour(config.clone());
        }
        for line in &self.log {
            let (now, input) = record::read(line).expect("what was written");
            again.handle(now, input);
            while again.poll_action().is_some() {}
        }
        let table = |speaker: &Speaker| format!("{:?}", speaker.rib());
        assert_eq!(table(&again), table(&self.speaker));
    }
}

/// What is sent are whole messages.
fn whole(mut sent: &[u8]) {
    while !sent.is_empty() {
        assert_eq!(sent[..16], [0xff; 16]);
        let length = usize::from(u16::from_be_bytes([sent[16], sent[17]]));
        assert!((19..=4096).contains(&length) && (1..=5).contains(&sent[18]));
        sent = &sent[length..];
    }
}

pub fn address(number: u8) -> IpAddr {
    IpAddr::from([0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, number.into()])
}

fn config(number: u8) -> SpeakerConfig {
    SpeakerConfig {
        asn: OWN,
        router_id: [10, 0, 0, number].into(),
    }
}

fn neighbour(asn: u32, number: u8) -> NeighbourConfig {
    NeighbourConfig {
        address: address(number),
        asn,
        families: FAMILIES.to_vec(),
        import: Policy::permit_all(),
        export: Policy::permit_all(),
        passive: false,
        hold_time: 90,
        extended_messages: true,
        add_path: false,
        graceful_restart: None,
        restarted: false,
        routes_max: None,
        next_hop: None,
        next_hop_self: false,
        track_routes: false,
    }
}
