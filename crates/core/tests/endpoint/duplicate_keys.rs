//! Several gateways that use one private key: a spare that is tested, a cloned image, a standby.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use keiro_core::{
    AppId, Endpoint, EndpointConfig, Event, Instant, MessageId, MessageOutcome, PeerId,
    UnknownCause,
};

use crate::support::{MESSAGES, address, drain, drops, feed, key, peer};

const SECOND: Duration = Duration::from_secs(1);
/// Every datagram takes this long.
const DELAY: Duration = Duration::from_millis(2);

/// One gateway of a [`Site`].
struct Gateway {
    end: Endpoint,
    peer: PeerId,
    address: SocketAddr,
    /// What it sends and what is sent to it is lost.
    cut_off: bool,
    events: Vec<Event>,
    received: Vec<Vec<u8>>,
    /// Its messages that have not ended.
    sent: BTreeMap<MessageId, Vec<u8>>,
    sent_packets: u64,
}

/// The hub, gateway 1, and any number of gateways with the private key of gateway 2.
struct Site {
    now: Instant,
    hub: Gateway,
    branches: Vec<Gateway>,
    /// When it arrives, from, to, datagram.
    wire: VecDeque<(Instant, SocketAddr, SocketAddr, Vec<u8>)>,
}

impl Gateway {
    fn new(now: Instant, number: u8, port: u16, clock_ahead: Duration, remote: u8) -> Self {
        let unix_time = Duration::from_secs(1_000_000) + clock_ahead;
        Self::with_clock(now, number, port, [unix_time, Duration::ZERO], remote)
    }

    /// `clock`: Unix time at zero, and what its handshakes are later than.
    fn with_clock(now: Instant, number: u8, port: u16, clock: [Duration; 2], remote: u8) -> Self {
        let mut config = EndpointConfig::new(key(number));
        [config.unix_time_at_zero, config.handshake_time_floor] = clock;
        let mut seed = [number; 32];
        seed[1..3].copy_from_slice(&port.to_be_bytes());
        seed[3..11].copy_from_slice(&now.as_nanos().to_be_bytes());
        let mut end = Endpoint::new(now, config, seed);
        // The branches know the hub's address; the hub learns theirs.
        let known = (remote == 1).then(|| address(1));
        let peer = end.add_peer(now, peer(remote, known));
        let address = SocketAddr::new(address(number.into()).ip(), port);
        Self {
            end,
            peer,
            address,
            cut_off: false,
            events: Vec::new(),
            received: Vec::new(),
            sent: BTreeMap::new(),
            sent_packets: 0,
        }
    }

    fn is_up(&self) -> bool {
        self.end.is_up(self.peer)
    }

    /// The pairs of addresses of which it said that they use one key: the served one, the other.
    fn duplicates(&self) -> Vec<(SocketAddr, SocketAddr)> {
        let of_event = |event: &Event| match event {
            Event::DuplicateKey { served, other, .. } => Some((*served, *other)),
            _ => None,
        };
        self.events.iter().filter_map(of_event).collect()
    }

    fn refusals(&self) -> usize {
        let is_refusal = |event: &&Event| matches!(event, Event::RefusedDuplicateKey { .. });
        self.events.iter().filter(is_refusal).count()
    }

    fn send(&mut self, now: Instant, body: &[u8]) {
        let app = AppId::of_name(MESSAGES);
        let sent = self
            .end
            .send_message(now, now, self.peer, app, body.to_vec());
        self.sent.insert(sent.expect("room"), body.to_vec());
    }

    /// Sends again what may have been lost with the gateway that was served before.
    fn on_event(&mut self, now: Instant, event: &Event) {
        let Event::MessageDone { id, outcome, .. } = event else {
            return;
        };
        let body = self.sent.remove(id).expect("it has not ended");
        if *outcome == MessageOutcome::Unknown(UnknownCause::PeerRestarted) {
            self.send(now, &body);
        }
    }

    fn remote(&self) -> Option<SocketAddr> {
        self.end.paths(self.peer).first()?.remote
    }
}

impl Site {
    fn new() -> Self {
        Self {
            now: Instant::ZERO,
            hub: Gateway::new(Instant::ZERO, 1, 7600, Duration::ZERO, 2),
            branches: Vec::new(),
            wire: VecDeque::new(),
        }
    }

    /// Starts a gateway with the branch's key at this port; its index.
    fn start(&mut self, port: u16) -> usize {
        self.start_with_clock(port, Duration::ZERO)
    }

    fn start_with_clock(&mut self, port: u16, ahead: Duration) -> usize {
        let branch = Gateway::new(self.now, 2, port, ahead, 1);
        self.branches.push(branch);
        self.branches.len() - 1
    }

    /// The branch is gone without a word.
    fn kill(&mut self, index: usize) {
        self.branches[index].cut_off = true;
    }

    fn drain(&mut self) {
        let arrives = self.now + DELAY;
        for gateway in self.branches.iter_mut().chain([&mut self.hub]) {
            gateway.end.handle_timeout(self.now);
            let output = drain(&mut gateway.end, self.now);
            for event in &output.events {
                gateway.on_event(self.now, event);
            }
            gateway.events.extend(output.events);
            gateway.received.extend(output.messages);
            gateway.sent_packets += output.packets.len() as u64;
            for (to, packet) in output.packets {
                if !gateway.cut_off {
                    let datagram = (arrives, gateway.address, to, packet);
                    self.wire.push_back(datagram);
                }
            }
        }
    }

    fn run(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        while self.now < end {
            self.drain();
            if done(self) {
                return true;
            }
            let all = self.branches.iter().chain([&self.hub]);
            let timers = all.filter_map(|gateway| gateway.end.poll_timeout()).min();
            let arrival = self.wire.front().map(|(at, ..)| *at);
            let soonest = self.now + Duration::from_micros(1);
            let next = [timers, arrival, Some(end)].into_iter().flatten().min();
            self.now = next.unwrap_or(end).max(soonest);
            while self.wire.front().is_some_and(|(at, ..)| *at <= self.now) {
                let (_, from, to, packet) = self.wire.pop_front().expect("there is one");
                let mut all = self.branches.iter_mut().chain([&mut self.hub]);
                let receiver = all.find(|gateway| gateway.address == to && !gateway.cut_off);
                if let Some(gateway) = receiver {
                    feed(&mut gateway.end, self.now, from, &packet);
                }
            }
        }
        false
    }

    fn pass(&mut self, time: Duration) {
        self.run(time, |_| false);
    }

    /// Sends a message from the hub and one from the branch, and waits for both.
    fn delivers(&mut self, branch: usize, limit: Duration) -> bool {
        let down = format!("down at {}", self.now).into_bytes();
        let up = format!("up at {}", self.now).into_bytes();
        self.hub.send(self.now, &down);
        self.branches[branch].send(self.now, &up);
        self.run(limit, |site| {
            site.branches[branch].received.contains(&down) && site.hub.received.contains(&up)
        })
    }

    fn is_up(&mut self, branch: usize) -> bool {
        self.run(5 * SECOND, |site| {
            site.branches[branch].is_up() && site.hub.is_up()
        })
    }

    /// A branch that has exchanged many packets with the hub.
    fn established() -> Self {
        let mut site = Self::new();
        let first = site.start(7600);
        assert!(site.is_up(first));
        for _ in 0..50 {
            assert!(site.delivers(first, SECOND));
        }
        site
    }
}

#[test]
fn gateway_works_again_after_another_used_its_key_and_has_gone() {
    let mut site = Site::established();
    // The first one is not reachable for a while, so that the spare takes its place.
    site.branches[0].cut_off = true;
    site.pass(2 * SECOND);
    let spare = site.start(7610);
    assert!(site.is_up(spare));
    assert!(site.delivers(spare, SECOND));
    site.pass(5 * SECOND);
    site.kill(spare);
    site.branches[0].cut_off = false;
    assert!(
        site.delivers(0, 6 * SECOND),
        "locked out: {:?}",
        drops(&site.branches[0].end, &[site.branches[0].peer])
    );
    assert_eq!(site.hub.remote(), Some(site.branches[0].address));
    let addresses = (site.branches[0].address, site.branches[spare].address);
    assert_eq!(site.hub.duplicates(), [addresses]);
    // And it goes on over changes of keys.
    site.pass(300 * SECOND);
    assert!(site.delivers(0, SECOND));
    let replayed = drops(&site.branches[0].end, &[site.branches[0].peer]);
    assert_eq!(replayed.get("replayed"), None, "{replayed:?}");
}

/// In turns, more often than incarnations are remembered.
#[test]
fn two_gateways_with_one_key_may_alternate_forever() {
    let mut site = Site::established();
    let spare = site.start(7610);
    site.branches[spare].cut_off = true;
    for turn in 0..20 {
        let (on, off) = if turn % 2 == 0 {
            (spare, 0)
        } else {
            (0, spare)
        };
        site.branches[off].cut_off = true;
        site.pass(3 * SECOND);
        site.branches[on].cut_off = false;
        assert!(site.delivers(on, 8 * SECOND), "turn {turn}");
    }
}

#[test]
fn restarts_of_a_spare_do_not_lock_out_the_first_gateway() {
    let mut site = Site::established();
    site.branches[0].cut_off = true;
    site.pass(2 * SECOND);
    for port in 7610..7630 {
        let spare = site.start(port);
        assert!(site.delivers(spare, 8 * SECOND), "spare at {port}");
        site.kill(spare);
    }
    site.branches[0].cut_off = false;
    assert!(site.delivers(0, 8 * SECOND));
}

#[test]
fn clock_of_a_duplicate_does_not_lock_out_a_gateway() {
    let mut site = Site::established();
    site.branches[0].cut_off = true;
    site.pass(2 * SECOND);
    let spare = site.start_with_clock(7610, Duration::from_secs(86_400));
    assert!(site.delivers(spare, SECOND));
    site.kill(spare);
    site.branches[0].cut_off = false;
    assert!(site.delivers(0, 8 * SECOND));
    // Nor does it lock out one that starts anew.
    site.kill(0);
    site.pass(3 * SECOND);
    let restarted = site.start(7600);
    assert!(site.delivers(restarted, 8 * SECOND));
}

#[test]
fn older_of_two_running_gateways_is_served_and_both_are_named() {
    let mut site = Site::established();
    let spare = site.start(7610);
    let before = site.hub.sent_packets;
    for _ in 0..30 {
        assert!(site.delivers(0, SECOND), "the older is served all the time");
        site.pass(SECOND);
        assert!(!site.branches[spare].is_up());
    }
    let addresses = (site.branches[0].address, site.branches[spare].address);
    assert_eq!(site.hub.duplicates(), [addresses], "once a minute");
    assert_eq!(site.branches[spare].refusals(), 1, "once a minute");
    assert!(site.hub.sent_packets - before < 1_000);
    let session = site.hub.end.session(site.hub.peer).expect("a peer");
    let duplicate = session.duplicate_key.expect("it lasts");
    assert_eq!((duplicate.served, duplicate.other), addresses);
    site.pass(60 * SECOND);
    assert_eq!(site.hub.duplicates().len(), 2);
    // The older one is gone: the spare takes its place.
    site.kill(0);
    assert!(site.delivers(spare, 10 * SECOND));
    let peer = site.branches[spare].peer;
    let lost = drops(&site.branches[spare].end, &[peer]);
    assert_eq!(lost.get("replayed"), None, "{lost:?}");
}

#[test]
fn older_gateway_is_served_again_when_it_comes_back() {
    let mut site = Site::established();
    site.branches[0].cut_off = true;
    site.pass(2 * SECOND);
    let standby = site.start(7610);
    assert!(site.delivers(standby, SECOND));
    site.branches[0].cut_off = false;
    let is_back = |site: &Site| site.hub.remote() == Some(site.branches[0].address);
    assert!(site.run(8 * SECOND, is_back));
    for _ in 0..30 {
        site.pass(SECOND);
        assert!(site.delivers(0, SECOND));
    }
    assert!(!site.branches[standby].is_up());
    let addresses = (site.branches[0].address, site.branches[standby].address);
    assert_eq!(site.hub.duplicates(), [addresses]);
    assert_eq!(site.branches[standby].refusals(), 1);
}

#[test]
fn restart_is_not_taken_for_a_duplicate() {
    let mut site = Site::established();
    for (at_once, port) in [(true, 7600), (false, 7600), (true, 7601), (false, 7602)] {
        let old = site.branches.len() - 1;
        site.kill(old);
        if !at_once {
            site.pass(3 * SECOND);
        }
        let restarted = site.start(port);
        let began = site.now;
        assert!(site.delivers(restarted, 2 * SECOND), "port {port}");
        // At its address it is served at once, at another one once the old one is silent.
        let limit = if port == 7600 { 100 } else { 800 };
        assert!(site.now - began < Duration::from_millis(limit), "{port}");
    }
    // It says goodbye before it starts again.
    let old = site.branches.len() - 1;
    let now = site.now;
    site.branches[old].end.close(now);
    site.drain();
    site.kill(old);
    let restarted = site.start(7603);
    let began = site.now;
    assert!(site.delivers(restarted, SECOND));
    assert!(site.now - began < Duration::from_millis(100));
    assert_eq!(site.hub.duplicates(), []);
    assert!(site.branches.iter().all(|branch| branch.refusals() == 0));
    // Neither is a restart of the hub.
    let events: usize = site.branches.iter().map(|b| b.duplicates().len()).sum();
    assert_eq!(events, 0);
}

#[test]
fn replayed_initiations_of_other_incarnations_change_nothing() {
    let mut site = Site::new();
    let mut initiations = Vec::new();
    for port in 7600..7605 {
        let branch = site.start(port);
        site.drain();
        let sent = site.wire.iter().filter(|(.., packet)| packet[0] == 1);
        initiations.extend(sent.map(|(.., packet)| packet.clone()));
        assert!(site.delivers(branch, 8 * SECOND));
        site.kill(branch);
    }
    let last = site.start(7605);
    assert!(site.delivers(last, 8 * SECOND));
    site.hub.events.clear();
    for packet in initiations.iter().cycle().take(200) {
        feed(&mut site.hub.end, site.now, address(99), packet);
        assert!(site.delivers(last, SECOND));
    }
    let is_change = |event: &Event| {
        !matches!(
            event,
            Event::MessageDone { .. } | Event::MtuChanged { .. } | Event::KeyChanged { .. }
        )
    };
    site.hub.events.retain(is_change);
    assert_eq!(site.hub.events, []);
}

#[test]
fn clock_that_goes_back_locks_nothing_out_that_has_kept_its_time_and_is_named_otherwise() {
    let right = Duration::from_secs(1_700_000_000);
    for back in [7200 * SECOND, 50 * 365 * 86_400 * SECOND] {
        let mut site = Site::new();
        site.hub = Gateway::with_clock(site.now, 1, 7600, [right, Duration::ZERO], 2);
        let mut port = 7600;
        let mut start = |site: &mut Site, clock| {
            if let Some(last) = site.branches.len().checked_sub(1) {
                site.kill(last);
            }
            site.pass(3 * SECOND);
            port += 1;
            let branch = Gateway::with_clock(site.now, 2, port, clock, 1);
            site.branches.push(branch);
            site.branches.len() - 1
        };
        // More restarts than the hub remembers incarnations.
        for restart in 0..20 {
            let branch = start(&mut site, [right, Duration::ZERO]);
            assert!(site.is_up(branch), "restart {restart}");
        }
        let behind = |site: &Site| -> Vec<Duration> {
            let of_event = |event: &Event| match event {
                Event::ClockBehind { behind, .. } => Some(*behind),
                _ => None,
            };
            site.hub.events.iter().filter_map(of_event).collect()
        };
        assert_eq!(behind(&site), []);
        let lost = start(&mut site, [right - back, Duration::ZERO]);
        site.pass(55 * SECOND);
        assert!(!site.branches[lost].is_up(), "its state directory is lost");
        let reports = behind(&site);
        assert_eq!(reports.len(), 1, "once a minute: {reports:?}");
        assert!(reports[0].abs_diff(back) < 60 * SECOND, "{reports:?}");
        let kept = start(&mut site, [right - back, right + 3600 * SECOND]);
        assert!(site.is_up(kept), "{back:?}: it has kept its time");
        assert!(site.delivers(kept, SECOND));
    }
}
