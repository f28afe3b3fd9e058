//! All sessions of a router: which one a packet is for, and when which is due.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
};

use keiro_units::Instant;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::{
    TTL,
    packet::{ControlPacket, Discard, LENGTH},
    session::{Change, Config, Session, Status},
};

keiro_stats::reasons! {
    /// Discarded packets, by reason.
    pub struct Discards {
        /// The TTL or hop limit was not 255: the packet comes from behind another router (RFC 5881 §5).
        ttl,
        /// Less than 24 octets.
        too_short,
        /// Another version than 1.
        version,
        /// The length field is below the minimum, or beyond the datagram.
        length,
        /// The packet is authenticated, which is not supported.
        authentication,
        /// The detection multiplier is zero.
        zero_multiplier,
        /// The multipoint bit is set.
        multipoint,
        /// The sender's discriminator is zero.
        zero_discriminator,
        /// No session has the receiver's discriminator.
        unknown_discriminator,
        /// The receiver's discriminator is zero, in state Init or Up.
        missing_discriminator,
        /// The source address belongs to no neighbour with BFD.
        unknown_neighbour,
        /// The discriminator is that of a session with another address.
        wrong_address,
        /// The session is up on another interface.
        wrong_interface,
    }
}

/// The caller's number of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub u32);

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    pub from: IpAddr,
    /// Its TTL or hop limit on arrival; `None`: not known, which counts as wrong.
    pub ttl: Option<u8>,
    /// Index of the interface that it came by; `None`: not known.
    pub interface: Option<u32>,
    pub payload: &'a [u8],
}

/// A packet to send to port [`crate::PORT`] with TTL [`crate::TTL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    pub session: SessionId,
    pub to: IpAddr,
    pub payload: [u8; LENGTH],
}

/// A session came up or went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub session: SessionId,
    pub change: Change,
}

/// Why a session cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    #[error("more than {SESSIONS_MAX} BFD sessions")]
    Full,
    #[error("there is a BFD session of this number or with this address")]
    Exists,
}

/// The sessions; see the [crate].
#[derive(Debug)]
pub struct Sessions {
    all: BTreeMap<SessionId, Entry>,
    by_discriminator: BTreeMap<u32, SessionId>,
    by_address: BTreeMap<IpAddr, SessionId>,
    deadlines: BTreeSet<(Instant, SessionId)>,
    /// Sessions that may have a packet to send now.
    ready: BTreeSet<SessionId>,
    /// Packets of removed sessions.
    farewells: VecDeque<Transmit>,
    /// At most one of each call, or one of each session.
    events: VecDeque<Event>,
    random: ChaCha8Rng,
    discards: Discards,
}

#[derive(Debug)]
struct Entry {
    session: Session,
    address: IpAddr,
    /// The interface of the packet that brought the session up. That packet had our discriminator, which only
    /// the neighbour knows, so that it can be trusted.
    interface: Option<u32>,
    /// As in `deadlines`.
    deadline: Option<Instant>,
}

/// The most sessions. At 10 ms each that is 100,000 packets per second. Ours.
pub const SESSIONS_MAX: usize = 1024;
/// Copies of the packet that disables a session, of which one should arrive. Ours.
const FAREWELLS: u8 = 3;

impl Sessions {
    /// `seed`: discriminators and jitter follow from it; others must not be able to guess it.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            all: BTreeMap::new(),
            by_discriminator: BTreeMap::new(),
            by_address: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            ready: BTreeSet::new(),
            farewells: VecDeque::new(),
            events: VecDeque::new(),
            random: ChaCha8Rng::from_seed(seed),
            discards: Discards::default(),
        }
    }

    /// Begins a session with a neighbour, in the active role.
    ///
    /// # Errors
    /// See [`AddError`].
    pub fn add(
        &mut self,
        now: Instant,
        id: SessionId,
        address: IpAddr,
        config: Config,
    ) -> Result<(), AddError> {
        if self.all.contains_key(&id) || self.by_address.contains_key(&address) {
            return Err(AddError::Exists);
        }
        if self.all.len() >= SESSIONS_MAX {
            return Err(AddError::Full);
        }
        let discriminator = self.unused_discriminator();
        let entry = Entry {
            session: Session::new(now, discriminator, config),
            address,
            interface: None,
            deadline: None,
        };
        self.all.insert(id, entry);
        self.by_discriminator.insert(discriminator, id);
        self.by_address.insert(address, id);
        self.on_touched(now, id);
        Ok(())
    }

    /// Ends a session. [`poll_transmit`](Self::poll_transmit) then has packets that inform the neighbour
    /// that it was disabled and did not fail.
    pub fn remove(&mut self, id: SessionId) {
        let Some(entry) = self.all.remove(&id) else {
            return;
        };
        let discriminator = entry.session.local_discriminator();
        self.by_discriminator.remove(&discriminator);
        self.by_address.remove(&entry.address);
        self.ready.remove(&id);
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let farewell = Transmit {
            session: id,
            to: entry.address,
            payload: entry.session.farewell(),
        };
        self.farewells.extend((0..FAREWELLS).map(|_| farewell));
    }

    /// Changes intervals and multiplier of a session, which stays up.
    pub fn reconfigure(&mut self, now: Instant, id: SessionId, config: Config) {
        if let Some(entry) = self.all.get_mut(&id) {
            entry.session.reconfigure(now, config, &mut self.random);
            self.on_touched(now, id);
        }
    }

    /// Handles a received datagram; a discarded one is counted.
    ///
    /// # Errors
    /// Why it was discarded; the caller may ignore that.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        datagram: &Datagram<'_>,
    ) -> Result<SessionId, Discard> {
        let result = self.accept(now, datagram);
        if let Err(reason) = result {
            *self.discards.counter(reason) += 1;
        }
        result
    }

    fn accept(&mut self, now: Instant, datagram: &Datagram<'_>) -> Result<SessionId, Discard> {
        if datagram.ttl != Some(TTL) {
            return Err(Discard::Ttl);
        }
        let packet = ControlPacket::decode(datagram.payload)?;
        let id = self.session_of(&packet, datagram.from)?;
        let entry = self.all.get_mut(&id).expect("indices name sessions");
        let interfaces = entry.interface.zip(datagram.interface);
        if entry.session.is_up() && interfaces.is_some_and(|(own, other)| own != other) {
            return Err(Discard::WrongInterface);
        }
        let change = entry.session.handle_packet(now, &packet, &mut self.random);
        if change == Some(Change::Up) {
            entry.interface = datagram.interface;
        }
        self.report(id, change);
        self.on_touched(now, id);
        Ok(id)
    }

    /// The session that a packet is for (RFC 5880 §6.3, RFC 5881 §3).
    fn session_of(&self, packet: &ControlPacket, from: IpAddr) -> Result<SessionId, Discard> {
        use crate::packet::State;
        match packet.your_discriminator {
            0 if matches!(packet.state, State::Init | State::Up) => {
                Err(Discard::MissingDiscriminator)
            }
            0 => {
                let found = self.by_address.get(&from).copied();
                found.ok_or(Discard::UnknownNeighbour)
            }
            known => {
                let found = self.by_discriminator.get(&known).copied();
                let id = found.ok_or(Discard::UnknownDiscriminator)?;
                match self.all[&id].address == from {
                    true => Ok(id),
                    false => Err(Discard::WrongAddress),
                }
            }
        }
    }

    /// Handles everything that is due. Received datagrams should be handled before, so that a late
    /// caller does not take packets that wait for missing ones.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            let entry = self.all.get_mut(&id).expect("deadlines are of sessions");
            entry.deadline = None;
            let change = entry.session.handle_timeout(now, &mut self.random);
            let due = entry.session.is_due(now);
            self.report(id, change);
            match due {
                // Its deadline is set again once it has sent.
                true => _ = self.ready.insert(id),
                false => self.set_deadline(id),
            }
        }
    }

    /// The next packet to send now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        if let Some(farewell) = self.farewells.pop_front() {
            return Some(farewell);
        }
        while let Some(&id) = self.ready.first() {
            let entry = self.all.get_mut(&id).expect("only sessions are ready");
            let to = entry.address;
            let packet = entry.session.poll_transmit(now, &mut self.random);
            if !entry.session.is_due(now) {
                self.ready.remove(&id);
            }
            self.set_deadline(id);
            if let Some(payload) = packet {
                return Some(Transmit {
                    session: id,
                    to,
                    payload,
                });
            }
        }
        None
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None`: there is nothing to wait for.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The state of a session; `None`: there is no such session.
    pub fn status(&self, id: SessionId) -> Option<Status> {
        self.all.get(&id).map(|entry| entry.session.status())
    }

    pub fn discards(&self) -> &Discards {
        &self.discards
    }

    /// # Panics
    /// In debug builds, if the indices and the sessions differ.
    pub fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert_eq!(self.all.len(), self.by_discriminator.len());
        debug_assert_eq!(self.all.len(), self.by_address.len());
        let deadlines = self.all.values().filter(|entry| entry.deadline.is_some());
        debug_assert_eq!(deadlines.count(), self.deadlines.len());
        for (id, entry) in &self.all {
            entry.session.check_invariants();
            let discriminator = entry.session.local_discriminator();
            debug_assert_eq!(self.by_discriminator.get(&discriminator), Some(id));
            debug_assert_eq!(self.by_address.get(&entry.address), Some(id));
            let waits = entry.deadline.is_some() || self.ready.contains(id);
            debug_assert!(waits || entry.session.poll_timeout().is_none());
        }
    }

    fn report(&mut self, session: SessionId, change: Option<Change>) {
        self.events
            .extend(change.map(|change| Event { session, change }));
    }

    /// A session has changed.
    fn on_touched(&mut self, now: Instant, id: SessionId) {
        if self.all[&id].session.is_due(now) {
            self.ready.insert(id);
        }
        self.set_deadline(id);
    }

    fn set_deadline(&mut self, id: SessionId) {
        let entry = self.all.get_mut(&id).expect("deadlines are of sessions");
        let deadline = entry.session.poll_timeout();
        if entry.deadline == deadline {
            return;
        }
        if let Some(before) = std::mem::replace(&mut entry.deadline, deadline) {
            self.deadlines.remove(&(before, id));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, id));
        }
    }

    /// A random discriminator, not zero (RFC 5880 §10 recommends random ones).
    fn unused_discriminator(&mut self) -> u32 {
        loop {
            let number = self.random.next_u32();
            if number != 0 && !self.by_discriminator.contains_key(&number) {
                return number;
            }
        }
    }
}

impl Discards {
    fn counter(&mut self, reason: Discard) -> &mut u64 {
        match reason {
            Discard::Ttl => &mut self.ttl,
            Discard::TooShort => &mut self.too_short,
            Discard::Version => &mut self.version,
            Discard::Length => &mut self.length,
            Discard::Authentication => &mut self.authentication,
            Discard::ZeroMultiplier => &mut self.zero_multiplier,
            Discard::Multipoint => &mut self.multipoint,
            Discard::ZeroDiscriminator => &mut self.zero_discriminator,
            Discard::UnknownDiscriminator => &mut self.unknown_discriminator,
            Discard::MissingDiscriminator => &mut self.missing_discriminator,
            Discard::UnknownNeighbour => &mut self.unknown_neighbour,
            Discard::WrongAddress => &mut self.wrong_address,
            Discard::WrongInterface => &mut self.wrong_interface,
        }
    }
}
