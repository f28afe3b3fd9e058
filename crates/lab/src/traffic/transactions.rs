//! Transactions: short request-response exchanges of many clients with one server, begun at random times.
//!
//! A transaction is a number of round trips of small messages on a persistent TCP connection [aggregation
//! §4]. Clients connect to an address; the caller decides how the connection reaches the server from there.
//!
//! **Clients.** The paper has client processes. Here every client is a connection from its host's namespace,
//! and one thread drives all of them, as another does on the server's side. There is no difference on the
//! wire. Processes would be woken some 10,000 times per second on the CPUs that carry the measured traffic,
//! and their waiting for a CPU would be measured, too.
//!
//! **Load is open.** The schedule does not depend on how long transactions take. A transaction whose client
//! is still busy uses the next free one, so that the rate is constant. If none is free it waits, and its time
//! counts from its scheduled start. The lateness of transactions with a free client is the generator's fault
//! and is reported ([`Carried::lateness_max`]).

mod client;
mod message;
mod server;
mod stalled;

use std::{collections::BTreeSet, time::Duration};

use keiro_units::{ByteCount, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

pub use client::{Clients, carry};
pub use message::HEADER_BYTES;
pub use server::{CONNECTIONS_MAX, Server};
pub use stalled::Stalled;

/// Maximum length of a message; ours: transactions use small messages, which a socket takes in one write.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 14;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transactions {
    /// Number of transactions per second, at random times in it [aggregation §4]; at least one.
    pub per_second: u32,
    /// Sequential exchanges of a request and a response; at least one.
    pub round_trips: u32,
    /// The length of a request and of a response, [`HEADER_BYTES`] to [`MESSAGE_BYTES_MAX`].
    pub message: ByteCount,
    /// Seed of the times and the clients.
    pub seed: u64,
    /// Time during which transactions begin; a fraction of a second at the end counts in proportion.
    pub duration: Duration,
    /// Time to wait for the last ones after that.
    pub drain: Duration,
    /// The CPU of the clients, counted from zero; `None` for any.
    pub cpu: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionRecord {
    /// The client that ran it; the scheduled one, if it never began.
    pub client: usize,
    /// Scheduled start, ns since the schedule's zero.
    pub scheduled_ns: u64,
    /// When its first request was sent; `None` if no client became free.
    pub started_ns: Option<u64>,
    /// When its last response was complete; `None` if it never was.
    pub ended_ns: Option<u64>,
}

/// Result of all transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// All scheduled transactions, in order of their times.
    pub records: Vec<TransactionRecord>,
    /// Transactions that found no free client.
    pub waited: u64,
    /// Lateness of the others at the 99th percentile: the generator's own lateness.
    pub lateness_p99: Duration,
    /// The greatest such lateness.
    pub lateness_max: Duration,
}

impl TransactionRecord {
    /// From its scheduled start until its end; `None` if it never ended.
    pub fn duration(&self) -> Option<Duration> {
        let nanos = self.ended_ns?.saturating_sub(self.scheduled_ns);
        Some(Duration::from_nanos(nanos))
    }
}

/// A scheduled transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    /// Time since the schedule's zero.
    at: Instant,
    client: usize,
}

impl Transactions {
    /// Why this plan is invalid with this number of clients; `None` if it is valid.
    fn fault(&self, clients: usize) -> Option<String> {
        let (low, high) = (HEADER_BYTES as u64, MESSAGE_BYTES_MAX);
        if self.per_second == 0 || self.round_trips == 0 || clients == 0 {
            return Some("there must be a client, a transaction a second and a round trip".into());
        }
        if !(low..=high).contains(&self.message.get()) {
            let length = self.message.get();
            return Some(format!(
                "messages of {length} bytes; they must have {low} to {high}"
            ));
        }
        (self.scheduled_max() > SCHEDULED_MAX)
            .then(|| format!("more than {SCHEDULED_MAX} transactions; make it shorter or slower"))
    }

    fn scheduled_max(&self) -> u128 {
        u128::from(self.per_second) * (u128::from(self.duration.as_secs()) + 1)
    }

    /// Times and clients of transactions, in ascending order: in every second the required number,
    /// independently and uniformly distributed.
    fn schedule(&self, clients: usize) -> Vec<Due> {
        let mut random = ChaCha12Rng::seed_from_u64(self.seed);
        let end = u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX);
        let mut schedule = Vec::new();
        let mut second = 0_u64;
        while second < end {
            let mut times = BTreeSet::new();
            while times.len() < self.per_second.min(PER_SECOND_MAX) as usize {
                times.insert(second + below(&mut random, NANOS_PER_SECOND));
            }
            for at in times {
                let client = below(&mut random, clients as u64) as usize;
                if at < end {
                    let at = Instant::from_nanos(at);
                    schedule.push(Due { at, client });
                }
            }
            second = second.saturating_add(NANOS_PER_SECOND);
        }
        schedule
    }
}

/// Ours: an hour at 1000 transactions a second and more, in some hundred megabytes.
const SCHEDULED_MAX: u128 = 4_000_000;

/// Ours: far fewer than nanoseconds in a second, so that distinct times are found quickly.
const PER_SECOND_MAX: u32 = 4_000_000;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A number below `bound`, uniform up to one part in 2^32.
fn below(random: &mut ChaCha12Rng, bound: u64) -> u64 {
    let wide = u128::from(random.next_u64()) * u128::from(bound);
    (wide >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Transactions {
        Transactions {
            per_second: 400,
            round_trips: 6,
            message: ByteCount::new(64),
            seed: 7,
            duration: Duration::from_secs(3),
            drain: Duration::from_secs(1),
            cpu: None,
        }
    }

    #[test]
    fn every_second_has_as_many_as_asked_for() {
        let schedule = plan().schedule(64);
        assert_eq!(schedule.len(), 1200);
        assert!(schedule.is_sorted_by_key(|due| due.at));
        for second in 0..3 {
            let of_second = |due: &&Due| due.at.as_nanos() / NANOS_PER_SECOND == second;
            assert_eq!(schedule.iter().filter(of_second).count(), 400);
        }
        let mut counts = [0; 64];
        schedule.iter().for_each(|due| counts[due.client] += 1);
        assert!(
            counts.iter().all(|count| (4..=40).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn schedule_follows_from_the_seed() {
        assert_eq!(plan().schedule(64), plan().schedule(64));
        let other = Transactions { seed: 8, ..plan() };
        assert_ne!(plan().schedule(64), other.schedule(64));
        let shorter = Transactions {
            duration: Duration::from_millis(1500),
            ..plan()
        };
        let schedule = shorter.schedule(64);
        assert!((500..700).contains(&schedule.len()));
        assert_eq!(schedule[..], plan().schedule(64)[..schedule.len()]);
    }

    #[test]
    fn invalid_plans_are_refused() {
        assert_eq!(plan().fault(64), None);
        let refused = |plan: Transactions| plan.fault(64).unwrap();
        let nothing = Transactions {
            round_trips: 0,
            ..plan()
        };
        assert!(refused(nothing).contains("a round trip"));
        let short = Transactions {
            message: ByteCount::new(8),
            ..plan()
        };
        assert!(refused(short).contains("8 bytes"));
        let long = Transactions {
            duration: Duration::from_secs(100_000),
            ..plan()
        };
        assert!(refused(long).contains("transactions"));
        assert!(plan().fault(0).is_some());
    }
}
