//! The link itself: buffer, transmitter and wire in one queue of computed departures.
//!
//! Because the queue is first in, first out and the rate is known, a packet's departure is
//! computed when it arrives; a change of configuration computes it anew for the packets that have
//! not yet left the transmitter. Nothing therefore depends on how often the link is polled.

use std::collections::VecDeque;

use keiro_units::{Bandwidth, ByteCount, Instant};

use crate::{
    config::{Buffer, LinkConfig},
    impairment::{Corruption, Dice, Fate},
};

/// The most packets that one direction of a link holds, waiting and on the wire together,
/// whatever its buffer: enough for 1 s of 1 Gbit/s in packets of 120 bytes.
pub const PACKETS_MAX: usize = 1 << 20;

/// Bits times this, divided by a rate in bit/s, are nanoseconds.
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// One direction of one link. See the crate's documentation for what happens in which order.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    dice: Dice,
    /// The latest instant given to [`arrive`](Self::arrive) or [`apply`](Self::apply).
    clock: Instant,
    next_ticket: u64,
    /// The packet in service, then those that wait, by arrival. Lost packets are among them.
    service: VecDeque<Service>,
    /// Counted bytes of `service`, the packet in service included.
    service_bytes: u64,
    /// Packets to come out, by instant, then by arrival: on the wire or not yet sent.
    departures: VecDeque<Pending>,
    /// The latest departure of a packet that must not be overtaken.
    last_due: Instant,
    counters: Counters,
}

/// Names one packet that a link holds. A link's tickets count up from zero in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What became of an arriving packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Arrival {
    /// It will come out of [`Link::poll_departure`] unless [`Link::apply`] cuts the link before.
    Accepted(Ticket),
    /// It never comes out.
    Dropped(DropReason),
}

/// Why a packet never came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The link was down, or was cut while it held the packet.
    Down,
    /// The buffer was full.
    Buffer,
    /// Lost on the wire, after it took its time at the transmitter.
    Loss,
    /// The link held [`PACKETS_MAX`] packets.
    Overload,
}

/// A packet that comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The packet; this ticket will not be seen again.
    pub ticket: Ticket,
    /// When it is due: the end of its transmission plus its delay, rounded up to a nanosecond.
    pub at: Instant,
    /// A bit is to be flipped, and which.
    pub corruption: Option<Corruption>,
    /// Deliver it twice, back to back.
    pub duplicated: bool,
}

/// What a link has done so far. `arrived` = `departed` + all drops + packets still held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets given to [`Link::arrive`].
    pub arrived_packets: u64,
    /// Their lengths, without overhead.
    pub arrived_bytes: u64,
    /// Packets that came out, copies not counted.
    pub departed_packets: u64,
    /// Their lengths, without overhead.
    pub departed_bytes: u64,
    /// Packets that came out twice.
    pub duplicated_packets: u64,
    /// Packets that came out with a bit flipped.
    pub corrupted_packets: u64,
    /// Packets that never came out.
    pub drops: Drops,
    /// The most that ever waited, the packet in service not counted.
    pub queue_max: Queue,
}

/// Packets that never came out, by [`DropReason`].
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

/// What waits for the transmitter; the packet in service does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// In packets.
    pub packets: u64,
    /// In bytes, with the overhead per packet.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    ticket: Ticket,
    len: u64,
    fate: Fate,
}

#[derive(Clone, Copy, Debug)]
struct Service {
    packet: Packet,
    /// Length with overhead.
    counted: u64,
    /// Bits still to be sent when the rate was last set, times [`NANOS_PER_SECOND`].
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
    packet: Packet,
}

impl Link {
    /// An idle link. `seed` decides about loss, duplication, corruption, reordering and jitter.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self {
            config,
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

    /// A packet of `len` bytes arrives.
    ///
    /// `now` may lie before an instant given to [`poll_departure`](Self::poll_departure), which
    /// makes up for a late caller; before an earlier arrival or change it counts as that instant.
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
        let Pending { due, packet } = self.departures.pop_front()?;
        self.counters.departed_packets += 1;
        self.counters.departed_bytes += packet.len;
        self.counters.duplicated_packets += u64::from(packet.fate.duplicated);
        self.counters.corrupted_packets += u64::from(packet.fate.corruption.is_some());
        Some(Departure {
            ticket: packet.ticket,
            at: due,
            corruption: packet.fate.corruption,
            duplicated: packet.fate.duplicated,
        })
    }

    /// When the next packet is due; `None` if none will be without an arrival or a change.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.departures.front()?.due;
        (due < Instant::MAX).then_some(due)
    }

    /// Changes the link.
    ///
    /// Packets that have not left the transmitter get the new rate for what is left of them, and
    /// the new delay; packets on the wire keep theirs, and without permission to overtake later
    /// ones queue up behind them. Jitter, loss and the like of all packets held are those drawn
    /// at their arrival. A smaller buffer drops nothing that already waits.
    ///
    /// The result is what a cut ([`LinkConfig::down`]) destroyed, in order of departure; empty
    /// otherwise.
    #[must_use = "the caller keeps the bytes of the packets destroyed"]
    pub fn apply(&mut self, now: Instant, config: LinkConfig) -> Vec<Ticket> {
        self.advance(now);
        if let (Some(head), Some(rate)) = (self.service.front_mut(), self.config.rate) {
            head.work = head.finish.work_left(self.clock, rate, head.work);
        }
        self.config = config;
        if self.config.down {
            return self.cut();
        }
        self.reschedule();
        Vec::new()
    }

    /// What waits for the transmitter at `now` if nothing more arrives.
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

    /// Packets that the link holds and that will come out, waiting or on the wire.
    pub fn held_packets(&self) -> usize {
        self.departures.len()
    }

    /// What the link has done so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Moves the clock on and forgets transmissions that have ended.
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

    /// Puts a packet behind all others at the transmitter and computes its departure.
    fn transmit(&mut self, packet: Packet, counted: u64) {
        let work = u128::from(counted) * 8 * NANOS_PER_SECOND;
        let start = match self.service.back() {
            Some(last) => last.finish,
            None => Finish::at(self.clock),
        };
        let finish = start.after(work, self.config.rate);
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
        self.depart(packet, finish);
    }

    /// Computes when a packet comes out and puts it in its place among the departures.
    fn depart(&mut self, packet: Packet, finish: Finish) {
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
        let pending = Pending { due, packet };
        match self.departures.back() {
            Some(last) if last.due > due => {
                let position = self.departures.partition_point(|other| other.due <= due);
                self.departures.insert(position, pending);
            }
            _ => self.departures.push_back(pending),
        }
    }

    /// Computes anew what is in service or waits.
    fn reschedule(&mut self) {
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
            finish = finish.after(entry.work, self.config.rate);
            entry.finish = finish;
            let packet = entry.packet;
            self.depart(packet, finish);
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
    /// How many packets the link took in before this one, those lost on the wire included.
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

    /// How much of the transmission that ends here at `rate` is left at `now`, at most `work`.
    fn work_left(self, now: Instant, rate: Bandwidth, work: u128) -> u128 {
        if self.nanos == u64::MAX {
            return work;
        }
        let nanos = u128::from(self.nanos.saturating_sub(now.as_nanos()));
        let left = nanos * u128::from(rate.as_bits_per_second()) + u128::from(self.remainder);
        left.min(work)
    }
}
