//! The link itself: buffer, transmitter and wire in one queue of computed departures.
//!
//! Because the queue is first in, first out and the rate is known, a packet's departure is computed when it
//! arrives. A change of configuration recomputes it for the packets that have not left the transmitter. So
//! nothing depends on how often the link is polled.

use std::{collections::VecDeque, time::Duration};

use keiro_units::{Bandwidth, ByteCount, Instant};

use crate::{
    config::{Buffer, LinkConfig},
    impairment::{Corruption, Dice, Fate},
    recorded::{Replay, Trace},
};

/// Maximum of packets in one direction of a link, queued and in flight together, whatever its buffer: enough
/// for 1 s of 1 Gbit/s in packets of 120 bytes.
pub const PACKETS_MAX: usize = 1 << 20;

/// Bits times this, divided by a rate in bit/s, are nanoseconds.
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// One direction of one link. The crate's documentation defines the order of its stages.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    /// The recording that the transmitter replays; `None` for the configured rate.
    replay: Option<Replay>,
    dice: Dice,
    /// The latest instant given to [`arrive`](Self::arrive) or [`apply`](Self::apply).
    clock: Instant,
    next_ticket: u64,
    /// The packet in transmission, then the queued ones, by arrival. Lost packets are included.
    service: VecDeque<Service>,
    /// Counted bytes of `service`, the packet in transmission included.
    service_bytes: u64,
    /// Packets that will leave, by instant, then by arrival: in flight or not yet sent.
    departures: VecDeque<Pending>,
    /// The latest departure of a packet that must not be overtaken.
    last_due: Instant,
    counters: Counters,
}

/// Identifies one packet in a link. A link's tickets count up from zero in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Fate of an arriving packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Arrival {
    /// [`Link::poll_departure`] will return it unless [`Link::apply`] cuts the link before.
    Accepted(Ticket),
    /// It will never leave the link.
    Dropped(DropReason),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The link was down, or was cut while it contained the packet.
    Down,
    /// The buffer was full.
    Buffer,
    /// Lost in flight, after its transmission.
    Loss,
    /// The link contained [`PACKETS_MAX`] packets.
    Overload,
}

/// A packet that leaves the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Its ticket, which will not be returned again.
    pub ticket: Ticket,
    /// When it is due: the end of its transmission plus its delay, rounded up to a nanosecond.
    pub at: Instant,
    /// The bit to flip, if any.
    pub corruption: Option<Corruption>,
    /// Deliver it twice, back to back.
    pub duplicated: bool,
    /// What it waited for packets before it: later than an idle link would have sent it.
    pub waited: Duration,
}

/// Counters of a link. `arrived` = `departed` + all drops + packets still in the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets passed to [`Link::arrive`].
    pub arrived_packets: u64,
    /// Their lengths, without overhead.
    pub arrived_bytes: u64,
    /// Packets that left, duplicates not counted.
    pub departed_packets: u64,
    /// Their lengths, without overhead.
    pub departed_bytes: u64,
    /// Packets that left twice.
    pub duplicated_packets: u64,
    /// Packets that left with a bit flipped.
    pub corrupted_packets: u64,
    /// Packets that were dropped.
    pub drops: Drops,
    /// Maximum of the queue, the packet in transmission not counted.
    pub queue_max: Queue,
}

/// Dropped packets, by [`DropReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// [`DropReason::Down`].
    pub down: u64,
    /// [`DropReason::Buffer`].
    pub buffer: u64,
    /// [`DropReason::Loss`].
    pub loss: u64,
    /// [`DropReason::Overload`].
    pub overload: u64,
}

/// Content of the transmitter's queue; the packet in transmission does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Length in packets.
    pub packets: u64,
    /// In bytes, with the overhead per packet.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    ticket: Ticket,
    len: u64,
    arrived: Instant,
    fate: Fate,
}

#[derive(Clone, Copy, Debug)]
struct Service {
    packet: Packet,
    /// Length with the link's overhead.
    counted: u64,
    /// Bits that remained to be sent when the rate was last set, times [`NANOS_PER_SECOND`].
    work: u128,
    finish: Finish,
}

/// The end of a transmission: `nanos` + `remainder`/rate nanoseconds after the epoch.
#[derive(Clone, Copy, Debug)]
struct Finish {
    nanos: u64,
    remainder: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    due: Instant,
    waited: Duration,
    packet: Packet,
}

impl Link {
    /// An idle link. `seed` determines loss, duplication, corruption, reordering and jitter.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self {
            config,
            replay: None,
            dice: Dice::new(seed),
            clock: Instant::ZERO,
            next_ticket: 0,
            service: VecDeque::new(),
            service_bytes: 0,
            departures: VecDeque::new(),
            last_due: Instant::ZERO,
            counters: Counters::default(),
        }
    }

    /// The configuration in force.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Handles the arrival of a packet of `len` bytes.
    ///
    /// `now` may precede an instant passed to [`poll_departure`](Self::poll_departure), which compensates for
    /// a late caller. If it precedes an earlier arrival or change, it counts as that instant.
    pub fn arrive(&mut self, now: Instant, len: ByteCount) -> Arrival {
        self.advance(now);
        self.counters.arrived_packets += 1;
        self.counters.arrived_bytes += len.get();
        let fate = self.dice.throw(&self.config);
        let counted = self.config.counted(len).get();

        let drops = &mut self.counters.drops;
        if self.config.down {
            drops.down += 1;
            return Arrival::Dropped(DropReason::Down);
        }
        if self.service.len().max(self.departures.len()) >= PACKETS_MAX {
            drops.overload += 1;
            return Arrival::Dropped(DropReason::Overload);
        }
        if !self.has_room_for(counted) {
            self.counters.drops.buffer += 1;
            return Arrival::Dropped(DropReason::Buffer);
        }

        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let packet = Packet {
            ticket,
            len: len.get(),
            arrived: self.clock,
            fate,
        };
        self.transmit(packet, counted);
        if fate.lost {
            self.counters.drops.loss += 1;
            return Arrival::Dropped(DropReason::Loss);
        }
        Arrival::Accepted(ticket)
    }

    /// The next packet that is due at `now`, in order of departure; `None` if none is.
    pub fn poll_departure(&mut self, now: Instant) -> Option<Departure> {
        if self.poll_timeout()? > now {
            return None;
        }
        let Pending {
            due,
            waited,
            packet,
        } = self.departures.pop_front()?;
        self.counters.departed_packets += 1;
        self.counters.departed_bytes += packet.len;
        self.counters.duplicated_packets += u64::from(packet.fate.duplicated);
        self.counters.corrupted_packets += u64::from(packet.fate.corruption.is_some());
        Some(Departure {
            ticket: packet.ticket,
            at: due,
            corruption: packet.fate.corruption,
            duplicated: packet.fate.duplicated,
            waited,
        })
    }

    /// When the next packet is due; `None` if none will be without an arrival or a change.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.departures.front()?.due;
        (due < Instant::MAX).then_some(due)
    }

    /// Changes the configuration.
    ///
    /// Packets that have not left the transmitter get the new rate for their remaining bits, and the new
    /// delay. Packets in flight keep theirs, and unless overtaking is allowed later ones queue behind them.
    /// Jitter, loss and other random impairments of all packets in the link are those drawn at their arrival.
    /// A smaller buffer drops no queued packet.
    ///
    /// Returns the packets that a cut ([`LinkConfig::down`]) destroyed, in order of departure; empty
    /// otherwise.
    #[must_use = "the caller keeps the bytes of the packets destroyed"]
    pub fn apply(&mut self, now: Instant, config: LinkConfig) -> Vec<Ticket> {
        self.advance(now);
        if self.replay.is_none()
            && let (Some(head), Some(rate)) = (self.service.front_mut(), self.config.rate)
        {
            head.work = head.finish.work_left(self.clock, rate, head.work);
        }
        self.config = config;
        if self.config.down {
            return self.cut();
        }
        self.reschedule(false);
        Vec::new()
    }

    /// Lets the transmitter replay a recording from its beginning, instead of the configured rate; `None`
    /// returns to the rate. Packets that have not left the transmitter are served anew.
    pub fn replay(&mut self, now: Instant, trace: Option<Trace>) {
        self.advance(now);
        self.replay = trace.map(|trace| Replay::new(trace, self.clock));
        self.reschedule(true);
    }

    /// Content of the transmitter's queue at `now` if nothing more arrives.
    pub fn queue(&self, now: Instant) -> Queue {
        let waiting = self
            .service
            .iter()
            .skip_while(|entry| entry.finish.rounded_up() <= now)
            .skip(1);
        waiting.fold(Queue::default(), |queue, entry| Queue {
            packets: queue.packets + 1,
            bytes: queue.bytes + entry.counted,
        })
    }

    /// Packets in the link that will leave it, queued or in flight.
    pub fn held_packets(&self) -> usize {
        self.departures.len()
    }

    /// What the link has done so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Advances the clock and removes completed transmissions.
    fn advance(&mut self, now: Instant) {
        self.clock = self.clock.max(now);
        while let Some(entry) = self.service.front() {
            if entry.finish.rounded_up() > self.clock {
                break;
            }
            self.service_bytes -= entry.counted;
            self.service.pop_front();
        }
    }

    fn has_room_for(&self, counted: u64) -> bool {
        let Some(in_service) = self.service.front() else {
            return true;
        };
        match self.config.buffer {
            Buffer::Unlimited => true,
            Buffer::Packets(max) => self.service.len() - 1 < max as usize,
            Buffer::Bytes(max) => self.service_bytes - in_service.counted + counted <= max.get(),
        }
    }

    /// Queues a packet at the transmitter and computes its departure.
    fn transmit(&mut self, packet: Packet, counted: u64) {
        let work = u128::from(counted) * 8 * NANOS_PER_SECOND;
        let start = match self.service.back() {
            Some(last) => last.finish,
            None => Finish::at(self.clock),
        };
        let is_idle = self.service.is_empty();
        let finish = match &mut self.replay {
            Some(replay) if is_idle => Finish::at(replay.serve_idle(self.clock, counted)),
            Some(replay) => Finish::at(replay.serve(counted)),
            None => start.after(work, self.config.rate),
        };
        let waited = self.waited(&packet, counted, start, finish);
        if finish.rounded_up() > self.clock {
            self.service.push_back(Service {
                packet,
                counted,
                work,
                finish,
            });
            self.service_bytes += counted;
            let queue_max = &mut self.counters.queue_max;
            let waiting = self.service.len() as u64 - 1;
            let waiting_bytes = self.service_bytes - self.service[0].counted;
            queue_max.packets = queue_max.packets.max(waiting);
            queue_max.bytes = queue_max.bytes.max(waiting_bytes);
        }
        self.depart(packet, finish, waited);
    }

    /// What a packet waits for those before it, whose transmission ends at `start`.
    fn waited(&self, packet: &Packet, counted: u64, start: Finish, finish: Finish) -> Duration {
        match &self.replay {
            Some(replay) => {
                let alone = replay.alone(packet.arrived, counted);
                finish.rounded_up().saturating_duration_since(alone)
            }
            None => start.rounded_up().saturating_duration_since(packet.arrived),
        }
    }

    /// Computes when a packet leaves and inserts it into the departures.
    fn depart(&mut self, packet: Packet, finish: Finish, waited: Duration) {
        let Fate {
            lost, jitter, held, ..
        } = packet.fate;
        if lost {
            return;
        }
        let mut due = finish.rounded_up() + self.config.delay + jitter;
        if !self.config.jitter_overtakes {
            due = due.max(self.last_due);
        }
        match held {
            Some(extra) => due += extra,
            None => self.last_due = self.last_due.max(due),
        }
        let pending = Pending {
            due,
            waited,
            packet,
        };
        match self.departures.back() {
            Some(last) if last.due > due => {
                let position = self.departures.partition_point(|other| other.due <= due);
                self.departures.insert(position, pending);
            }
            _ => self.departures.push_back(pending),
        }
    }

    /// Recomputes the packets in transmission and in the queue. `is_anew` if a recording has just begun: a
    /// recording is not changed by a configuration.
    fn reschedule(&mut self, is_anew: bool) {
        let Some(first) = self.service.front().map(|entry| entry.packet.ticket) else {
            return;
        };
        self.departures
            .retain(|pending| pending.packet.ticket < first);
        self.last_due = self
            .departures
            .iter()
            .filter(|pending| pending.packet.fate.held.is_none())
            .map(|pending| pending.due)
            .fold(self.clock, Instant::max);
        let mut finish = Finish::at(self.clock);
        for index in 0..self.service.len() {
            let entry = &mut self.service[index];
            let start = finish;
            finish = match &mut self.replay {
                Some(replay) if is_anew => Finish::at(replay.serve(entry.counted)),
                Some(_) => entry.finish,
                None => start.after(entry.work, self.config.rate),
            };
            entry.finish = finish;
            let (packet, counted) = (entry.packet, entry.counted);
            let waited = self.waited(&packet, counted, start, finish);
            self.depart(packet, finish, waited);
        }
        self.advance(self.clock);
    }

    fn cut(&mut self) -> Vec<Ticket> {
        self.service.clear();
        self.service_bytes = 0;
        self.last_due = self.clock;
        self.counters.drops.down += self.departures.len() as u64;
        self.departures
            .drain(..)
            .map(|pending| pending.packet.ticket)
            .collect()
    }
}

impl Ticket {
    /// Number of packets that arrived before this one, including lost ones.
    pub const fn index(self) -> u64 {
        self.0
    }
}

impl Finish {
    const NEVER: Self = Self {
        nanos: u64::MAX,
        remainder: 0,
    };

    const fn at(now: Instant) -> Self {
        Self {
            nanos: now.as_nanos(),
            remainder: 0,
        }
    }

    /// The end of `work` that starts here; both at the same rate.
    fn after(self, work: u128, rate: Option<Bandwidth>) -> Self {
        let rate = match rate.map(Bandwidth::as_bits_per_second) {
            None => return self,
            Some(0) => return Self::NEVER,
            Some(rate) => u128::from(rate),
        };
        let total = work + u128::from(self.remainder);
        match u64::try_from(u128::from(self.nanos) + total / rate) {
            // The remainder is below the rate, which is a u64.
            Ok(nanos) => Self {
                nanos,
                remainder: (total % rate) as u64,
            },
            Err(_) => Self::NEVER,
        }
    }

    /// The first whole nanosecond at which the transmission is over.
    const fn rounded_up(self) -> Instant {
        Instant::from_nanos(self.nanos.saturating_add((self.remainder > 0) as u64))
    }

    /// The part of the transmission ending here at `rate` that remains at `now`, at most `work`.
    fn work_left(self, now: Instant, rate: Bandwidth, work: u128) -> u128 {
        if self.nanos == u64::MAX {
            return work;
        }
        let nanos = u128::from(self.nanos.saturating_sub(now.as_nanos()));
        let left = nanos * u128::from(rate.as_bits_per_second()) + u128::from(self.remainder);
        left.min(work)
    }
}
