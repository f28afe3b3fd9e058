//! One direction of one emulated link, as a state machine without clock or I/O.
//!
//! The simulator drives it in virtual time, the lab's emulator with the kernel's receive time stamps, so both
//! have the same definition of "100 Mbit/s, 2 ms, 50 packets". The crate handles packet lengths and instants
//! only: the caller keeps the bytes, by the [`Ticket`] that it gets.
//!
//! A packet passes three stages, in this order:
//!
//! 1. **Buffer**: drop-tail, bounded in packets or bytes. The packet in service does not count.
//! 2. **Transmitter**: one packet at a time at the configured rate, exact over any number of
//!    packets (the remainder below a nanosecond is carried).
//! 3. **Wire**: propagation delay, jitter, loss, duplication, corruption, reordering. A packet
//!    lost here has used the buffer and the transmitter.
//!
//! Instead of a rate the transmitter can replay a recorded line: a [`Trace`], by [`Link::replay`].
//!
//! Every arrival draws the same number of random words, whatever its fate. So the fate of the n-th packet
//! depends on the seed, on n and on the configuration in force when it arrived, never on timing or on how
//! often the link is polled.
#![forbid(unsafe_code)]

mod config;
mod impairment;
mod link;
mod recorded;

pub use config::{Buffer, GilbertElliott, LinkConfig, Loss, Reorder};
pub use impairment::Corruption;
pub use link::{Arrival, Counters, Departure, DropReason, Drops, Link, PACKETS_MAX, Queue, Ticket};
pub use recorded::{OPPORTUNITIES_MAX, OPPORTUNITY_BYTES, Trace, TraceError};
