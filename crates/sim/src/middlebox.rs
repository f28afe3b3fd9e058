//! An on-path attacker.
//!
//! It sees every datagram but has no keys. A link loses, delays and corrupts at random; this node does what
//! takes intent: replay, truncate, forge, reflect.

use std::{collections::VecDeque, net::SocketAddr};

use keiro_units::{Instant, Probability};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use crate::{
    node::{Node, Outbox},
    packet::Packet,
};

/// Datagrams that an attacker stores for replay. Ours: beyond a replay window, with little memory.
const REMEMBERED_MAX: usize = 4096;

/// Packets that an attacker injects, each with this probability per forwarded datagram. The datagram itself
/// is always forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attack {
    /// Random bytes of random length up to 1400.
    pub garbage: Probability,
    /// A prefix of the datagram of random length.
    pub truncated: Probability,
    /// The datagram with one byte changed.
    pub altered: Probability,
    /// One of the datagrams that passed before.
    pub replayed: Probability,
    /// The datagram back to its sender.
    pub reflected: Probability,
    /// The datagram from another source address, before the original.
    pub stolen: Probability,
    /// A datagram of a gateway that the receiver does not know.
    pub foreign: Probability,
}

/// Injected datagrams, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// [`Attack::garbage`].
    pub garbage: u64,
    /// [`Attack::truncated`].
    pub truncated: u64,
    /// [`Attack::altered`].
    pub altered: u64,
    /// [`Attack::replayed`].
    pub replayed: u64,
    /// [`Attack::reflected`].
    pub reflected: u64,
    /// [`Attack::stolen`].
    pub stolen: u64,
    /// [`Attack::foreign`].
    pub foreign: u64,
}

/// The attacker, between interface 0 and interface 1.
#[derive(Debug)]
pub struct Middlebox {
    attack: Attack,
    random: ChaCha12Rng,
    /// Source address of stolen datagrams.
    elsewhere: SocketAddr,
    /// Foreign datagrams, taken in turn.
    foreign: Vec<Vec<u8>>,
    /// Indexed by direction.
    remembered: [VecDeque<Packet>; 2],
    injected: Injected,
}

impl Middlebox {
    /// An attacker with `elsewhere` as the source of stolen datagrams, and with these foreign datagrams.
    pub fn new(attack: Attack, seed: u64, elsewhere: SocketAddr, foreign: Vec<Vec<u8>>) -> Self {
        Self {
            attack,
            random: ChaCha12Rng::seed_from_u64(seed),
            elsewhere,
            foreign,
            remembered: Default::default(),
            injected: Injected::default(),
        }
    }

    /// Changes its behaviour.
    pub const fn set_attack(&mut self, attack: Attack) {
        self.attack = attack;
    }

    /// Its injected datagrams.
    pub const fn injected(&self) -> Injected {
        self.injected
    }

    fn happens(&mut self, probability: Probability) -> bool {
        // Always draws, so that one kind does not shift the others.
        let unit = (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        unit < probability.get()
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.random.next_u64() % bound.max(1) as u64) as usize
    }

    fn garbage(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.below(1401)];
        self.random.fill_bytes(&mut bytes);
        bytes
    }
}

impl Node for Middlebox {
    fn handle_packet(
        &mut self,
        _: Instant,
        interface: usize,
        packet: &mut Packet,
        out: &mut Outbox<'_>,
    ) {
        let (onward, attack) = (1 - interface, self.attack);
        let with = |payload: Vec<u8>| Packet {
            payload,
            ..packet.clone()
        };
        if self.happens(attack.stolen) {
            self.injected.stolen += 1;
            out.send_from(
                onward,
                self.elsewhere,
                packet.destination,
                packet.ecn,
                &packet.payload,
            );
        }
        if self.happens(attack.garbage) {
            self.injected.garbage += 1;
            out.forward(onward, &with(self.garbage()));
        }
        if self.happens(attack.foreign) && !self.foreign.is_empty() {
            let index = self.injected.foreign as usize % self.foreign.len();
            self.injected.foreign += 1;
            out.forward(onward, &with(self.foreign[index].clone()));
        }
        if self.happens(attack.truncated) {
            self.injected.truncated += 1;
            let len = self.below(packet.payload.len());
            out.forward(onward, &with(packet.payload[..len].to_vec()));
        }
        if self.happens(attack.altered) && !packet.payload.is_empty() {
            self.injected.altered += 1;
            let mut payload = packet.payload.clone();
            payload[self.below(packet.payload.len())] ^= 1 + self.below(255) as u8;
            out.forward(onward, &with(payload));
        }
        out.forward(onward, packet);
        if self.happens(attack.replayed) {
            let index = self.below(self.remembered[interface].len());
            if let Some(old) = self.remembered[interface].get(index) {
                self.injected.replayed += 1;
                out.forward(onward, old);
            }
        }
        if self.happens(attack.reflected) {
            self.injected.reflected += 1;
            out.send_from(
                interface,
                packet.destination,
                packet.source,
                packet.ecn,
                &packet.payload,
            );
        }
        if attack.replayed > Probability::ZERO {
            if self.remembered[interface].len() == REMEMBERED_MAX {
                self.remembered[interface].pop_front();
            }
            self.remembered[interface].push_back(packet.clone());
        }
    }

    fn handle_timeout(&mut self, _: Instant, _: &mut Outbox<'_>) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
