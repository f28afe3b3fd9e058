//! Sources and sinks, each a thread: messages are sent by the schedule and logged as they arrive.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use keiro_linux::{
    clock::monotonic_nanos,
    realtime::{self, FifoPriority},
};
use keiro_model::arrivals;
use keiro_units::Instant;

use super::{
    AppTraffic, MessageReceiver, MessageRecord, MessageSender, Received, TrafficError,
    body::{self, Header},
    log::quantile,
};
use crate::lab::lock;

/// Messages to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The applications, each with its own number.
    pub apps: Vec<AppTraffic>,
    /// Seed of the schedule; the same seed gives the same messages at the same times.
    pub seed: u64,
    /// Time during which messages are sent.
    pub duration: Duration,
    /// Time to wait for the last messages after that.
    pub drain: Duration,
}

/// Result of a plan.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// Every message that was sent, by application and sequence number.
    pub records: Vec<MessageRecord>,
    /// Duplicates that were received.
    pub duplicates: u64,
    /// Received messages that were damaged, or not of this plan.
    pub strangers: u64,
    /// Lateness of sources at the 99th percentile of all messages, unless the carrier held them up. It shows
    /// a machine that is too busy.
    pub source_lateness_p99: Duration,
    /// The greatest such lateness.
    pub source_lateness_max: Duration,
}

/// Sends the messages of `plan`, with one sender per application in their order, and logs arrivals.
/// `on_received` gets every message as it arrives. Once `stop` is set, no more messages are sent; those in
/// flight are still waited for.
///
/// # Errors
/// [`TrafficError::Plan`], or the first error of a sender or receiver.
pub fn exchange(
    plan: &Plan,
    senders: Vec<Box<dyn MessageSender>>,
    receivers: Vec<Box<dyn MessageReceiver>>,
    on_received: &(dyn Fn(&MessageRecord) + Sync),
    stop: &AtomicBool,
) -> Result<Exchange, TrafficError> {
    check(plan, senders.len())?;
    let run = Run {
        plan,
        start: now() + LEAD,
        stop,
        failed: Mutex::new(None),
        made: AtomicU64::new(0),
        received: AtomicU64::new(0),
        sources_ended: AtomicBool::new(false),
        on_received,
    };
    let (sent, arrived) = thread::scope(|scope| {
        let run = &run;
        let spawn_source = |(app, sender): (&AppTraffic, _)| {
            let app = app.clone();
            thread::Builder::new()
                .name(format!("source-{}", app.number))
                .spawn_scoped(scope, move || run.source(&app, sender))
                .map_err(TrafficError::System)
        };
        let spawn_sink = |receiver| {
            thread::Builder::new()
                .name("sink".into())
                .spawn_scoped(scope, move || run.sink(receiver))
                .map_err(TrafficError::System)
        };
        // Sinks first, so that nothing has to wait for its reader.
        let sinks: Vec<_> = receivers.into_iter().map(spawn_sink).collect();
        let sources: Vec<_> = plan.apps.iter().zip(senders).map(spawn_source).collect();
        let sent = join(run, sources);
        run.sources_ended.store(true, Ordering::Release);
        (sent, join(run, sinks))
    });
    match run.failed.into_inner().unwrap_or_default() {
        Some(error) => Err(error),
        None => Ok(merge(sent, arrived)),
    }
}

/// Time from the start of the threads to the schedule's zero; ours: ample for starting threads.
const LEAD: Duration = Duration::from_millis(50);

/// Period of checking whether a waiting sink or source should end.
const LOOK: Duration = Duration::from_millis(50);

/// Sources wake up this long before a message is due and poll the clock until then; ours, about the time to
/// wake a thread.
const SPIN: Duration = Duration::from_micros(60);

/// Priority below the emulator's, above ordinary threads; ours. Each activity of a source or sink takes well
/// under a millisecond.
const PRIORITY: FifoPriority = FifoPriority::new(10).unwrap();

/// State shared by all threads of one exchange.
struct Run<'a> {
    plan: &'a Plan,
    /// The schedule's zero on the monotonic clock.
    start: Instant,
    stop: &'a AtomicBool,
    failed: Mutex<Option<TrafficError>>,
    made: AtomicU64,
    received: AtomicU64,
    sources_ended: AtomicBool,
    on_received: &'a (dyn Fn(&MessageRecord) + Sync),
}

/// Messages of one source.
#[derive(Default)]
struct Sent {
    records: Vec<MessageRecord>,
    /// Only for messages that the carrier did not hold up.
    lateness: Vec<Duration>,
    /// Kept until the sinks are done: closing a connection early may lose data in flight.
    _sender: Option<Box<dyn MessageSender>>,
}

/// Messages of one sink.
#[derive(Default)]
struct Arrived {
    messages: Vec<(Header, u64)>,
    /// Application and sequence number of each; a duplicate does not count as one of those waited for.
    seen: BTreeSet<(u32, u64)>,
    damaged: u64,
}

impl Run<'_> {
    fn source(&self, app: &AppTraffic, mut sender: Box<dyn MessageSender>) -> Sent {
        be_punctual(None);
        let mut sent = Sent::default();
        let schedule = arrivals::schedule(
            self.plan.seed,
            app.number,
            app.mean_interval,
            self.plan.duration,
        );
        let length = usize::try_from(app.length.get()).unwrap_or(usize::MAX);
        for (seq, offset) in (0..).zip(schedule) {
            let made = self.start + Duration::from_nanos(offset.as_nanos());
            let made_ns = made.as_nanos();
            let header = Header {
                app: app.number,
                seq,
                made_ns,
            };
            // Before it is due, so that writing it does not make it late.
            let body = body::write(header, length);
            let was_early = now() < made;
            if !self.wait_until(made) {
                break;
            }
            if was_early {
                sent.lateness.push(now() - made);
            }
            sent.records.push(MessageRecord {
                app: app.number,
                seq,
                made_ns,
                received_ns: None,
                length: body.len() as u64,
            });
            self.made.fetch_add(1, Ordering::Relaxed);
            if let Err(source) = sender.send(body) {
                self.fail(TrafficError::Send {
                    app: app.name.clone(),
                    source,
                });
                return sent;
            }
        }
        if let Err(source) = sender.finish() {
            self.fail(TrafficError::Send {
                app: app.name.clone(),
                source,
            });
        }
        sent._sender = Some(sender);
        sent
    }

    /// Waits until the time; `false` if the exchange is to end.
    fn wait_until(&self, due: Instant) -> bool {
        loop {
            if self.is_stopped() {
                return false;
            }
            let left = due - now();
            if left.is_zero() {
                return true;
            }
            if left > SPIN {
                thread::sleep((left - SPIN).min(LOOK));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn sink(&self, mut receiver: Box<dyn MessageReceiver>) -> Arrived {
        be_punctual(None);
        let mut arrived = Arrived::default();
        // Set when the last message has been sent.
        let mut deadline = None;
        loop {
            match receiver.receive(LOOK) {
                Ok(Received::Message(body)) => {
                    let received = now();
                    self.take(&body, received, &mut arrived);
                }
                Ok(Received::TimedOut) => {}
                Ok(Received::Ended) => return arrived,
                Err(error) => {
                    self.fail(TrafficError::Receive(error));
                    return arrived;
                }
            }
            if self.sources_ended.load(Ordering::Acquire) {
                let deadline = *deadline.get_or_insert_with(|| now() + self.plan.drain);
                let all =
                    self.received.load(Ordering::Relaxed) >= self.made.load(Ordering::Relaxed);
                if all || now() >= deadline || lock(&self.failed).is_some() {
                    return arrived;
                }
            }
        }
    }

    fn take(&self, body: &[u8], received: Instant, arrived: &mut Arrived) {
        let Ok(header) = body::read(body) else {
            arrived.damaged += 1;
            return;
        };
        let received_ns = received.as_nanos();
        if arrived.seen.insert((header.app, header.seq)) {
            self.received.fetch_add(1, Ordering::Relaxed);
        }
        arrived.messages.push((header, received_ns));
        (self.on_received)(&MessageRecord {
            app: header.app,
            seq: header.seq,
            made_ns: header.made_ns,
            received_ns: Some(received_ns),
            length: body.len() as u64,
        });
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || lock(&self.failed).is_some()
    }

    /// Keeps the first failure, which ends the exchange.
    fn fail(&self, error: TrafficError) {
        lock(&self.failed).get_or_insert(error);
    }
}

/// Gives the calling thread real-time priority and no timer slack. If not permitted, it stays an ordinary
/// thread, and [`Exchange::source_lateness_max`] shows the difference.
pub(super) fn be_punctual(cpu: Option<usize>) {
    let _ = cpu.map(realtime::pin_to_cpu);
    let _ = realtime::set_timer_slack(Duration::from_nanos(1));
    let _ = realtime::schedule_fifo(PRIORITY);
}

pub(super) fn now() -> Instant {
    Instant::from_nanos(monotonic_nanos())
}

fn check(plan: &Plan, senders: usize) -> Result<(), TrafficError> {
    let fault = |app: &AppTraffic, what: String| TrafficError::Plan {
        app: app.name.clone(),
        what,
    };
    for (index, app) in plan.apps.iter().enumerate() {
        if let Some(what) = body::length_fault(app) {
            return Err(fault(app, what));
        }
        if plan.apps[..index]
            .iter()
            .any(|other| other.number == app.number)
        {
            return Err(fault(
                app,
                format!("number {} is another's too", app.number),
            ));
        }
        if index >= senders {
            return Err(fault(app, "nothing sends its messages".into()));
        }
    }
    Ok(())
}

/// Results of the threads; a panic in one of them propagates.
fn join<T: Default>(
    run: &Run<'_>,
    threads: Vec<Result<thread::ScopedJoinHandle<'_, T>, TrafficError>>,
) -> Vec<T> {
    let mut results = Vec::new();
    for thread in threads {
        match thread.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => results.push(result),
            Ok(Err(panic)) => {
                // The others must not be waited for in vain.
                run.sources_ended.store(true, Ordering::Release);
                run.fail(TrafficError::System(std::io::Error::other(
                    "a thread panicked",
                )));
                std::panic::resume_unwind(panic);
            }
            Err(error) => run.fail(error),
        }
    }
    results
}

/// Merges sent and received messages.
fn merge(sent: Vec<Sent>, arrived: Vec<Arrived>) -> Exchange {
    let mut exchange = Exchange::default();
    let mut messages = BTreeMap::new();
    let mut lateness = Vec::new();
    for source in sent {
        lateness.extend(source.lateness);
        messages.extend(
            source
                .records
                .into_iter()
                .map(|record| ((record.app, record.seq), record)),
        );
    }
    for sink in arrived {
        exchange.strangers += sink.damaged;
        for (header, received_ns) in sink.messages {
            match messages.get_mut(&(header.app, header.seq)) {
                Some(record) if record.made_ns != header.made_ns => exchange.strangers += 1,
                Some(record) if record.received_ns.is_none() => {
                    record.received_ns = Some(received_ns);
                }
                // Receivers are not merged in order of time; the first arrival counts.
                Some(record) => {
                    exchange.duplicates += 1;
                    record.received_ns = record.received_ns.min(Some(received_ns));
                }
                None => exchange.strangers += 1,
            }
        }
    }
    lateness.sort_unstable();
    exchange.source_lateness_p99 = quantile(&lateness, 99);
    exchange.source_lateness_max = lateness.last().copied().unwrap_or_default();
    exchange.records = messages.into_values().collect();
    exchange
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    };

    use keiro_units::ByteCount;

    use super::*;

    /// Delivers at once, each message `copies` times; loses every tenth.
    struct Pipe {
        out: Sender<Vec<u8>>,
        copies: usize,
        lossy: bool,
        sent: usize,
    }

    impl MessageSender for Pipe {
        fn send(&mut self, body: Vec<u8>) -> io::Result<()> {
            self.sent += 1;
            if self.lossy && self.sent.is_multiple_of(10) {
                return Ok(());
            }
            for _ in 0..self.copies {
                let _ = self.out.send(body.clone());
            }
            Ok(())
        }
    }

    struct Forward(Receiver<Vec<u8>>);

    impl MessageReceiver for Forward {
        fn receive(&mut self, timeout: Duration) -> io::Result<Received> {
            match self.0.recv_timeout(timeout) {
                Ok(body) => Ok(Received::Message(body)),
                Err(RecvTimeoutError::Timeout) => Ok(Received::TimedOut),
                Err(RecvTimeoutError::Disconnected) => Ok(Received::Ended),
            }
        }
    }

    fn plan() -> Plan {
        let app = |number| AppTraffic {
            number,
            name: format!("A{number}"),
            length: ByteCount::new(1000),
            mean_interval: Duration::from_millis(2),
        };
        Plan {
            apps: vec![app(1), app(2)],
            seed: 5,
            duration: Duration::from_millis(300),
            // Lost messages are waited for until the drain time is over; a delayed machine must not end the
            // wait.
            drain: Duration::from_secs(2),
        }
    }

    fn run(copies: usize, lossy: bool) -> Exchange {
        let (out, forward) = channel();
        let pipe = |out: &Sender<_>| -> Box<dyn MessageSender> {
            Box::new(Pipe {
                out: out.clone(),
                copies,
                lossy,
                sent: 0,
            })
        };
        let senders = vec![pipe(&out), pipe(&out)];
        drop(out);
        let receivers: Vec<Box<dyn MessageReceiver>> = vec![Box::new(Forward(forward))];
        exchange(
            &plan(),
            senders,
            receivers,
            &|_| {},
            &AtomicBool::new(false),
        )
        .unwrap()
    }

    #[test]
    fn every_message_of_the_schedule_is_logged() {
        let exchange = run(1, false);
        let plan = plan();
        for app in &plan.apps {
            let schedule =
                arrivals::schedule(plan.seed, app.number, app.mean_interval, plan.duration);
            let records: Vec<_> = exchange
                .records
                .iter()
                .filter(|r| r.app == app.number)
                .collect();
            assert_eq!(records.len(), schedule.len());
            let zero = records[0].made_ns - schedule[0].as_nanos();
            for (record, offset) in records.iter().zip(schedule) {
                assert_eq!(record.made_ns - zero, offset.as_nanos());
                assert!(record.received_ns.unwrap() >= record.made_ns);
            }
        }
        assert_eq!((exchange.duplicates, exchange.strangers), (0, 0));
    }

    #[test]
    fn lost_messages_stay_in_the_log_and_duplicates_are_counted() {
        let exchange = run(2, true);
        let lost = exchange
            .records
            .iter()
            .filter(|r| r.received_ns.is_none())
            .count();
        let received = exchange.records.len() - lost;
        assert!(lost > 0);
        assert_eq!(exchange.duplicates, received as u64);
    }

    #[test]
    fn impossible_plans_are_refused() {
        let refused = |change: &dyn Fn(&mut Plan)| {
            let mut plan = plan();
            change(&mut plan);
            let result = exchange(&plan, vec![], vec![], &|_| {}, &AtomicBool::new(false));
            result.unwrap_err().to_string()
        };
        let message = refused(&|plan| plan.apps[0].length = ByteCount::new(1));
        assert_eq!(
            message,
            "application `A1`: messages of 1 bytes; they must have 24 to 16777216"
        );
        let message = refused(&|_| {});
        assert_eq!(message, "application `A1`: nothing sends its messages");
    }

    #[test]
    fn failing_sender_ends_the_exchange_with_its_error() {
        struct Broken;
        impl MessageSender for Broken {
            fn send(&mut self, _: Vec<u8>) -> io::Result<()> {
                Err(io::Error::other("no way"))
            }
        }
        let (out, forward) = channel::<Vec<u8>>();
        let senders: Vec<Box<dyn MessageSender>> = vec![Box::new(Broken), Box::new(Broken)];
        let mut plan = plan();
        plan.duration = Duration::from_secs(60);
        let result = exchange(
            &plan,
            senders,
            vec![Box::new(Forward(forward))],
            &|_| {},
            &AtomicBool::new(false),
        );
        drop(out);
        let message = result.unwrap_err().to_string();
        assert!(message.ends_with("cannot send: no way"), "{message}");
    }
}
