//! A network of speakers in virtual time that records all inputs.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use keiro_bgp::{
    address::Family,
    policy::Policy,
    record,
    rib::NeighbourId,
    speaker::{
        Action, ConnectionId, Direction, Event, Input, NeighbourConfig, Speaker, SpeakerConfig,
    },
};
use keiro_units::Instant;

pub(crate) struct Network {
    pub(crate) now: Instant,
    pub(crate) nodes: Vec<Node>,
    /// The other end of each connection: node and connection.
    ends: BTreeMap<(usize, ConnectionId), (usize, ConnectionId)>,
    /// Maps each neighbour of a node to the node and its neighbour number there.
    peers: BTreeMap<(usize, NeighbourId), (usize, NeighbourId)>,
}

pub(crate) struct Node {
    pub(crate) speaker: Speaker,
    pub(crate) address: IpAddr,
    pub(crate) events: Vec<Event>,
    pub(crate) neighbours: Vec<NeighbourConfig>,
    pub(crate) log: Vec<String>,
    pub(crate) config: SpeakerConfig,
    /// What this node would send is lost; the test sends in its name.
    pub(crate) mute: Mute,
    /// Nothing connects this node any more.
    pub(crate) deaf: bool,
    accepted: Vec<(NeighbourId, usize, ConnectionId)>,
}

/// Which messages of a node are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mute {
    Nothing,
    Updates,
    Everything,
}

pub(crate) fn neighbour(asn: u32, families: &[Family]) -> NeighbourConfig {
    NeighbourConfig {
        address: IpAddr::from([0; 4]),
        asn,
        families: families.to_vec(),
        import: Policy::permit_all(),
        export: Policy::permit_all(),
        passive: false,
        hold_time: 90,
        add_path: false,
        graceful_restart: None,
        restarted: false,
        extended_messages: true,
        routes_max: None,
        next_hop: None,
        next_hop_self: false,
        track_routes: false,
    }
}

impl Network {
    pub(crate) fn new() -> Self {
        Self {
            now: Instant::from_nanos(1_000_000_000),
            nodes: Vec::new(),
            ends: BTreeMap::new(),
            peers: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, asn: u32) -> usize {
        let number = self.nodes.len() as u8 + 1;
        let config = SpeakerConfig {
            asn,
            router_id: [10, 0, 0, number].into(),
        };
        self.nodes.push(Node {
            speaker: Speaker::new(config),
            address: format!("2001:db8:ffff::{number}").parse().unwrap(),
            events: Vec::new(),
            neighbours: Vec::new(),
            log: Vec::new(),
            config,
            mute: Mute::Nothing,
            deaf: false,
            accepted: Vec::new(),
        });
        self.nodes.len() - 1
    }

    /// Makes two nodes neighbours; `of_b` is the configuration of `b` at `a`.
    pub(crate) fn join(
        &mut self,
        a: usize,
        b: usize,
        of_b: NeighbourConfig,
        of_a: NeighbourConfig,
    ) -> (NeighbourId, NeighbourId) {
        let b_at_a = self.know(a, b, of_b);
        let a_at_b = self.know(b, a, of_a);
        self.peers.insert((a, b_at_a), (b, a_at_b));
        self.peers.insert((b, a_at_b), (a, b_at_a));
        (b_at_a, a_at_b)
    }

    fn know(&mut self, node: usize, other: usize, mut config: NeighbourConfig) -> NeighbourId {
        config.address = self.nodes[other].address;
        let node = &mut self.nodes[node];
        node.neighbours.push(config.clone());
        node.speaker.add_neighbour(config)
    }

    pub(crate) fn start_all(&mut self) {
        for node in 0..self.nodes.len() {
            for number in 0..self.nodes[node].neighbours.len() {
                self.hand(node, Input::Start(NeighbourId(number as u16)));
            }
        }
        self.settle();
    }

    pub(crate) fn hand(&mut self, node: usize, input: Input) {
        let now = self.now;
        let node = &mut self.nodes[node];
        node.log.push(record::write(now, &input));
        node.speaker.handle(now, input);
    }

    pub(crate) fn connection_of(&self, node: usize, id: NeighbourId) -> ConnectionId {
        let sessions = self
            .ends
            .keys()
            .filter(|(at, connection)| *at == node && connection.neighbour == id);
        sessions
            .map(|(_, connection)| *connection)
            .next()
            .expect("they are connected")
    }

    /// Breaks all connections of a node with a neighbour without a NOTIFICATION.
    pub(crate) fn cut(&mut self, node: usize, id: NeighbourId) {
        let mine: Vec<_> = self.ends.keys().copied().collect();
        for (at, connection) in mine {
            if at == node && connection.neighbour == id {
                self.disconnect(at, connection);
                self.hand(at, Input::Disconnected(connection));
            }
        }
    }

    fn disconnect(&mut self, node: usize, connection: ConnectionId) {
        if let Some((other, other_connection)) = self.ends.remove(&(node, connection)) {
            self.ends.remove(&(other, other_connection));
            self.hand(other, Input::Disconnected(other_connection));
        }
    }

    /// Runs until nothing happens any more at the current time.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut busy = false;
            for node in 0..self.nodes.len() {
                busy |= self.turn(node);
            }
            if !busy {
                return;
            }
        }
        panic!("it never ends");
    }

    /// Advances the time and handles all timers that expire meanwhile.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let due = self.nodes.iter().filter_map(|n| n.speaker.poll_timeout());
            let Some(next) = due.min().filter(|next| *next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            for node in 0..self.nodes.len() {
                let due = self.nodes[node].speaker.poll_timeout();
                if due.is_some_and(|due| due <= self.now) {
                    self.hand(node, Input::Timeout);
                }
            }
        }
        self.now = end;
    }

    fn turn(&mut self, at: usize) -> bool {
        let mut busy = false;
        while let Some(action) = self.nodes[at].speaker.poll_action() {
            busy = true;
            self.carry_out(at, action);
        }
        while let Some(event) = self.nodes[at].speaker.poll_event() {
            self.nodes[at].events.push(event);
        }
        let mine: Vec<ConnectionId> = self
            .ends
            .keys()
            .filter(|end| end.0 == at)
            .map(|e| e.1)
            .collect();
        for connection in mine {
            busy |= self.send(at, connection);
        }
        busy
    }

    fn send(&mut self, at: usize, connection: ConnectionId) -> bool {
        let mut out = Vec::new();
        self.nodes[at]
            .speaker
            .transmit(connection, &mut out, 10_000);
        if out.is_empty() {
            return false;
        }
        match self.nodes[at].mute {
            Mute::Nothing => {}
            Mute::Updates => out = without_updates(&out),
            Mute::Everything => out.clear(),
        }
        if let Some(&(other, other_connection)) = self.ends.get(&(at, connection)) {
            // TCP may split messages anywhere.
            for piece in out.chunks(1447) {
                self.hand(other, Input::Received(other_connection, piece.to_vec()));
            }
        }
        true
    }

    fn carry_out(&mut self, at: usize, action: Action) {
        match action {
            Action::Connect(id) => {
                let (other, back) = self.peers[&(at, id)];
                let connection = ConnectionId::new(id, Direction::Outgoing);
                if self.nodes[at].deaf || self.nodes[other].deaf {
                    self.hand(at, Input::Disconnected(connection));
                    return;
                }
                self.nodes[other].accepted.push((back, at, connection));
                self.hand(other, Input::IncomingConnection(back));
            }
            Action::Accept(id) => {
                let waiting = &mut self.nodes[at].accepted;
                let place = waiting.iter().position(|w| w.0 == id).expect("offered");
                let (_, other, other_connection) = waiting.remove(place);
                let connection = ConnectionId::new(id, Direction::Incoming);
                self.ends
                    .insert((at, connection), (other, other_connection));
                self.ends
                    .insert((other, other_connection), (at, connection));
                let (here, there) = (self.nodes[at].address, self.nodes[other].address);
                self.hand(at, Input::Connected(connection, here));
                self.hand(other, Input::Connected(other_connection, there));
            }
            Action::Refuse(id) => {
                let waiting = &mut self.nodes[at].accepted;
                let place = waiting.iter().position(|w| w.0 == id).expect("offered");
                let (_, other, other_connection) = waiting.remove(place);
                self.hand(other, Input::Disconnected(other_connection));
            }
            Action::Close(connection) => {
                self.send(at, connection);
                self.disconnect(at, connection);
            }
        }
    }
}

/// Whole messages without the UPDATEs among them.
fn without_updates(mut octets: &[u8]) -> Vec<u8> {
    let mut left = Vec::new();
    while let [head @ .., _] = octets.get(..19).unwrap_or_default() {
        let length = usize::from(u16::from_be_bytes([head[16], head[17]]));
        let (message, after) = octets.split_at(length);
        if message[18] != 2 {
            left.extend(message);
        }
        octets = after;
    }
    left
}

impl Node {
    pub(crate) fn prefixes(&self) -> Vec<String> {
        let all = self.speaker.rib().iter();
        all.map(|(destination, _)| destination.to_string())
            .collect()
    }
}
