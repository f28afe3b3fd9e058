//! What senders learn of their messages is true while gateways are killed (`kill -9`) and started again.

use std::{
    collections::BTreeMap,
    net::Shutdown,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use keiro_control::{
    config::Name,
    message_socket::{
        Outcome, Role,
        client::{AckReader, Connection, MessageReader, MessageWriter},
    },
};

use crate::{
    gateway::{Gateway, pair},
    harness::eventually,
};

/// Messages without ack at a time: enough to keep the paths busy, few enough that kills meet them.
const WAITING_MAX: u64 = 256;
/// A client tries again this long after its gateway was away.
const RETRY: Duration = Duration::from_millis(5);

/// How often each message arrived, by its number.
type Arrivals = Arc<Mutex<BTreeMap<u64, u64>>>;

/// What the sender knows of each message; `None`: its connection ended before the ack.
type Outcomes = Arc<Mutex<BTreeMap<u64, Option<Outcome>>>>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connect(socket: &Path, role: Role) -> Option<Connection> {
    let app = Name::new("orders").expect("a name");
    let connection = Connection::unix(socket, role, &app);
    if connection.is_err() {
        thread::sleep(RETRY);
    }
    connection.ok()
}

/// Receives until `ends`, from one run of the gateway after the other.
fn receive(socket: &Path, arrivals: &Arrivals, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        let Some(connection) = connect(socket, Role::Receive) else {
            continue;
        };
        let mut reader = MessageReader::new(connection);
        // What a gateway had written before it was killed is read to its end.
        while let Ok(Some(message)) = reader.next_message() {
            let number = message.body.try_into().map(u64::from_be_bytes);
            *lock(arrivals).entry(number.expect("a number")).or_default() += 1;
        }
    }
}

/// Sends the numbers below `count` once each, over one connection after the other.
fn send(socket: &Path, count: u64, outcomes: &Outcomes) {
    let mut next = 0;
    while next < count {
        let Some(connection) = connect(socket, Role::Send) else {
            continue;
        };
        let mut acks = AckReader::new(connection.try_clone().expect("a descriptor"));
        let (answer, answers) = mpsc::channel();
        let known = Arc::clone(outcomes);
        let reading = thread::spawn(move || {
            while let Ok(Some(ack)) = acks.next_ack() {
                let before = lock(&known).insert(ack.id, Some(ack.outcome));
                assert_eq!(before, Some(None), "one ack for each message");
                let _ = answer.send(());
            }
        });
        let mut writer = MessageWriter::new(connection);
        let mut waiting = 0;
        while next < count {
            if waiting == WAITING_MAX {
                if answers.recv().is_err() {
                    break;
                }
                waiting -= 1;
            }
            lock(outcomes).insert(next, None);
            let sent = writer.send(next, &next.to_be_bytes());
            next += 1;
            if sent.is_err() {
                break;
            }
            waiting += 1;
        }
        let _ = writer.stream().finish_sending();
        reading.join().expect("all acks were read");
        let _ = writer.stream().shutdown(Shutdown::Both);
    }
}

/// Kills the two in turn, each time after as many further messages.
fn kill_in_turn(gateways: &mut [Gateway; 2], kills: u64, count: u64, outcomes: &Outcomes) {
    for kill in 0..kills {
        let begun = count * (kill + 1) / (kills + 1);
        eventually("messages go on", || {
            (lock(outcomes).len() as u64 >= begun).then_some(())
        });
        gateways[kill as usize % 2].kill_and_start();
    }
}

fn assert_true_outcomes(kills: u64, count: u64) {
    let (sending, receiving) = pair();
    let [from, to]: [PathBuf; 2] =
        [&sending, &receiving].map(|gateway| gateway.site.path("message.sock"));
    let mut gateways = [receiving, sending];
    let (arrivals, outcomes) = (Arrivals::default(), Outcomes::default());
    let ends = Arc::new(AtomicBool::new(false));
    let (arrived, end) = (Arc::clone(&arrivals), Arc::clone(&ends));
    let receiver = thread::spawn(move || receive(&to, &arrived, &end));
    let ended = Arc::clone(&outcomes);
    let sender = thread::spawn(move || send(&from, count, &ended));
    kill_in_turn(&mut gateways, kills, count, &outcomes);
    sender.join().expect("all were sent");

    let outcomes = lock(&outcomes).clone();
    assert_eq!(outcomes.len() as u64, count, "every message has an entry");
    let of = |wanted: fn(&Option<Outcome>) -> bool| -> Vec<u64> {
        let found = outcomes.iter().filter(|(_, outcome)| wanted(outcome));
        found.map(|(number, _)| *number).collect()
    };
    let delivered = of(|outcome| matches!(outcome, Some(Outcome::Delivered)));
    let refused = of(|outcome| matches!(outcome, Some(Outcome::Refused(_))));
    let unknown = of(|outcome| matches!(outcome, Some(Outcome::Unknown(_))));
    let without_ack = of(Option::is_none);
    assert_eq!(
        delivered.len() + refused.len() + unknown.len() + without_ack.len(),
        outcomes.len()
    );
    eventually("the receiver has read what was delivered", || {
        let arrivals = lock(&arrivals);
        delivered
            .iter()
            .all(|number| arrivals.contains_key(number))
            .then_some(())
    });
    // Whatever a gateway still has for the receiver is read, too.
    ends.store(true, Ordering::Relaxed);
    drop(gateways);
    receiver.join().expect("all was read");
    let arrivals = lock(&arrivals);
    let arrived = |numbers: &[u64]| {
        let arrived = numbers
            .iter()
            .filter(|number| arrivals.contains_key(number));
        arrived.count()
    };
    println!(
        "{kills} kills, {count} messages: {} delivered; {} refused, {} of them arrived; {} unknown, {} of \
         them arrived; {} without ack, {} of them arrived; {} arrived twice",
        delivered.len(),
        refused.len(),
        arrived(&refused),
        unknown.len(),
        arrived(&unknown),
        without_ack.len(),
        arrived(&without_ack),
        arrivals.values().filter(|count| **count > 1).count(),
    );
    assert_eq!(arrived(&refused), 0, "what is refused does not arrive");
    assert!(
        arrivals.values().all(|count| *count == 1),
        "nothing arrives twice"
    );
}

#[test]
fn outcomes_are_true_while_gateways_are_killed() {
    assert_true_outcomes(6, 6_000);
}

#[test]
#[ignore = "takes half a minute: 100 kills under 60,000 messages"]
fn outcomes_are_true_over_100_kills_under_60_000_messages() {
    assert_true_outcomes(100, 60_000);
}
