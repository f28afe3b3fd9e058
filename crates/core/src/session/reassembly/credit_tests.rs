//! Credit for messages over a line, in virtual time: senders as greedy as they may be, receivers that take
//! messages at once or slowly.

use super::*;
use crate::session::receive_memory::{MemoryUse, ReceiveMemory};

const MIB: usize = 1 << 20;
const BUDGET: u64 = 48 << 20;
/// Bytes per second of the line.
const RATE: f64 = 25e6;
/// Windows have grown by then, and slow receivers have given back what they took before others came.
const BEGUN: Duration = Duration::from_secs(8);
const END: Duration = Duration::from_secs(12);
/// What messages of an application may have begun, in parts of the credit that is free.
const SHARE_OF_FREE: u64 = 3;

/// An application that always has a message to send.
#[derive(Clone, Copy, Debug)]
struct Sending {
    length: usize,
    /// How long its receiver takes for each message, one after the other.
    taking: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    /// The line is free again.
    Idle,
    /// The first byte of a message, and all of it.
    Begin(u64, usize),
    Whole(u64, usize),
    /// The receiver of an application has taken a message.
    Taken(usize, u64),
    /// At the sender.
    Done(usize),
    Credit(u64),
    /// Credit may be due.
    Look,
}

struct Line {
    rtt: Duration,
    apps: Vec<Sending>,
    memory: ReceiveMemory,
    reassembly: Reassembly,
    now: Instant,
    events: BTreeMap<(Instant, u64), Item>,
    order: u64,
    line_free_at: Instant,
    /// At the sender.
    granted: u64,
    used: u64,
    begun: Vec<u64>,
    next_app: usize,
    next_id: u64,
    /// When the receiver of each application has taken what it has.
    taken_at: Vec<Instant>,
    /// Bytes of each that its receiver has taken since the beginning.
    taken: Vec<usize>,
    grants: u32,
}

impl Line {
    fn new(rtt: Duration, apps: &[Sending]) -> Self {
        let memory = ReceiveMemory::new(BUDGET);
        Self {
            rtt,
            apps: apps.to_vec(),
            memory,
            reassembly: Reassembly::new(memory.messages_initial()),
            now: Instant::ZERO,
            events: BTreeMap::from([((Instant::ZERO, 0), Item::Idle)]),
            order: 0,
            line_free_at: Instant::ZERO,
            granted: memory.messages_initial(),
            used: 0,
            begun: vec![0; apps.len()],
            next_app: 0,
            next_id: 0,
            taken_at: vec![Instant::ZERO; apps.len()],
            taken: vec![0; apps.len()],
            grants: 0,
        }
    }

    fn at(&mut self, at: Instant, item: Item) {
        self.order += 1;
        self.events.insert((at, self.order), item);
    }

    /// Begins the message of the next application that may.
    fn send(&mut self) {
        if self.line_free_at > self.now {
            return;
        }
        for _ in 0..self.apps.len() {
            let app = self.next_app;
            self.next_app = (app + 1) % self.apps.len();
            let charge = charge(self.apps[app].length);
            let free = self.granted - self.used;
            if charge > free || self.begun[app] + charge > SHARE_OF_FREE * free {
                continue;
            }
            self.used += charge;
            self.begun[app] += charge;
            let takes = Duration::from_secs_f64(self.apps[app].length as f64 / RATE);
            self.line_free_at = self.now + takes;
            let (id, arrives) = (self.next_id, self.now + self.rtt / 2);
            self.next_id += 1;
            self.at(arrives, Item::Begin(id, app));
            self.at(arrives + takes, Item::Whole(id, app));
            self.at(self.line_free_at, Item::Idle);
            return;
        }
    }

    fn part(&mut self, id: u64, app: usize, len: usize) -> Option<ReassembledMessage> {
        let total = self.apps[app].length;
        let part = MessagePart {
            id,
            app: AppId(app as u32),
            total,
            offset: total - len,
            data: &vec![7; len],
        };
        let taken = self.reassembly.on_part(self.now, part);
        taken.expect("it is within the credit")
    }

    fn handle(&mut self, item: Item) {
        let now = self.now;
        match item {
            Item::Idle | Item::Look => {}
            Item::Begin(id, app) => {
                // Its last byte comes first: the place does not matter.
                assert!(self.part(id, app, 1).is_none());
            }
            Item::Whole(id, app) => {
                let len = self.apps[app].length;
                let whole = self.part(id, app, len).expect("it is whole");
                let taken = self.taken_at[app].max(now) + self.apps[app].taking;
                self.taken_at[app] = taken;
                self.at(taken, Item::Taken(app, whole.number));
            }
            Item::Taken(app, number) => {
                self.reassembly.on_finished(number);
                if now >= Instant::ZERO + BEGUN {
                    self.taken[app] += self.apps[app].length;
                }
                self.at(now + self.rtt / 2, Item::Done(app));
            }
            Item::Done(app) => self.begun[app] -= charge(self.apps[app].length),
            Item::Credit(granted) => self.granted = self.granted.max(granted),
        }
    }

    fn grant(&mut self) {
        let is_due = self
            .reassembly
            .credit_due()
            .is_some_and(|at| at <= self.now);
        if !is_due && !self.reassembly.has_credit_to_grant() {
            if let Some(at) = self.reassembly.credit_due() {
                self.at(at, Item::Look);
            }
            return;
        }
        let used = MemoryUse {
            messages: self.reassembly.memory_of_messages(),
            ..MemoryUse::default()
        };
        let at = CreditTime {
            now: self.now,
            rtt: self.rtt,
        };
        let spare = self.memory.spare(used, false);
        if let Some(granted) = self.reassembly.credit_to_grant(at, spare) {
            self.at(self.now + self.rtt / 2, Item::Credit(granted));
            self.grants += 1;
        }
        let messages = self.reassembly.memory_of_messages();
        self.memory.check_invariants(MemoryUse { messages, ..used });
    }

    /// Bytes per second that the receiver of each application has taken.
    fn run(&mut self) -> Vec<f64> {
        while let Some(((at, _), item)) = self.events.pop_first() {
            if at > Instant::ZERO + END {
                break;
            }
            self.now = at;
            self.handle(item);
            self.grant();
            self.send();
        }
        self.reassembly.check_invariants();
        let seconds = (END - BEGUN).as_secs_f64();
        self.taken
            .iter()
            .map(|bytes| *bytes as f64 / seconds)
            .collect()
    }
}

/// The shortest are many: they are sent over one of the lines only.
const SHORTEST: usize = 1000;
const LENGTHS: [usize; 5] = [SHORTEST, 64 << 10, MIB, 5 * MIB, 16 * MIB];
const RTTS: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
];

#[test]
fn messages_of_any_length_have_the_rate_of_a_long_line() {
    for rtt in RTTS {
        for length in LENGTHS {
            if length == SHORTEST && rtt != RTTS[3] {
                continue;
            }
            let taking = Duration::ZERO;
            let mut line = Line::new(rtt, &[Sending { length, taking }]);
            let rate = line.run()[0];
            // Of the longest, only one fits into three quarters of the credit.
            let alone = length as f64 / (length as f64 / RATE + rtt.as_secs_f64());
            let most = if length > 15 * MIB { alone } else { RATE };
            assert!(rate > 0.9 * most, "{length} bytes, {rtt:?}: {rate} byte/s");
            let per_rtt = f64::from(line.grants) / (END.as_secs_f64() / rtt.as_secs_f64());
            assert!(per_rtt < 10.0, "{length} bytes, {rtt:?}: {per_rtt} grants");
        }
    }
}

#[test]
fn a_receiver_that_holds_much_leaves_others_the_rate_of_the_line() {
    for rtt in RTTS {
        for length in [SHORTEST, 64 << 10, MIB] {
            if length == SHORTEST && rtt != RTTS[1] {
                continue;
            }
            let fast = Sending {
                length,
                taking: Duration::ZERO,
            };
            let slow = Sending {
                length: MIB,
                taking: Duration::from_millis(500),
            };
            // Two that hold much leave a third of the credit; over the longest line one holds up others until it
            // has taken what was sent before they came.
            for (apps, part) in [
                (&[fast, slow][..], 0.9),
                (&[slow, fast, fast], 0.9),
                (&[slow, slow, fast], 0.6),
            ] {
                let mut line = Line::new(rtt, apps);
                let rates = line.run();
                let sum: f64 = rates.iter().sum();
                assert!(
                    sum > if rtt == RTTS[3] { 0.6 } else { part } * RATE,
                    "{length} bytes, {rtt:?}, {} applications: {rates:?}",
                    apps.len()
                );
            }
        }
    }
}

#[test]
fn slow_receivers_are_never_without_a_message_while_there_is_room() {
    for rtt in RTTS {
        for length in LENGTHS {
            // Between what the line brings in a round trip and much more.
            for taking in [20, 200, 2000].map(Duration::from_millis) {
                let mut line = Line::new(rtt, &[Sending { length, taking }]);
                let rate = line.run()[0];
                let by_receiver = length as f64 / taking.as_secs_f64();
                let alone = length as f64
                    / (length as f64 / RATE + rtt.as_secs_f64() + taking.as_secs_f64());
                let most = match length > 15 * MIB {
                    true => alone,
                    false => by_receiver.min(RATE),
                };
                // A message may be under way at the beginning and at the end.
                let most = most - length as f64 / (END - BEGUN).as_secs_f64();
                assert!(
                    rate >= 0.9 * most,
                    "{length} bytes, {rtt:?}, {taking:?}: {rate} of {most} byte/s"
                );
            }
        }
    }
}
