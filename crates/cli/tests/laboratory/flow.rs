//! Messages that flow from tokyo to osaka while something happens, every one of them accounted for.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use keiro_control::{
    config::Name,
    message_socket::{
        Outcome, Role,
        client::{AckReader, ClientError, Connection, MessageReader, MessageWriter},
    },
};

use crate::{
    harness::eventually,
    pair::{APP, Pair},
};

/// How often the threads look whether they are to end.
const STEP: Duration = Duration::from_millis(50);

/// For this long nothing may come a second time. Ours: longer than any repair takes here.
const QUIET: Duration = Duration::from_millis(200);

/// A sender at tokyo and a receiver at osaka.
pub(crate) struct Flow {
    sending: Option<JoinHandle<u64>>,
    reading: Vec<JoinHandle<()>>,
    stop_sending: Arc<AtomicBool>,
    stop_reading: Arc<AtomicBool>,
    pub(crate) tally: Arc<Mutex<Tally>>,
}

/// What has become of the messages, by number.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// How often each came, and whether it was what was sent.
    pub(crate) received: BTreeMap<u64, u32>,
    pub(crate) garbled: Vec<u64>,
    pub(crate) acks: BTreeMap<u64, Outcome>,
}

impl Flow {
    /// Attaches both and sends `count` messages (`None`: until stopped) of `length` bytes, one
    /// every `interval`.
    pub(crate) fn start(
        pair: &Pair,
        length: usize,
        interval: Duration,
        count: Option<u64>,
    ) -> Self {
        let app = Name::new(APP).expect("a name");
        let tally = Arc::new(Mutex::new(Tally::default()));
        let stop_sending = Arc::new(AtomicBool::new(false));
        let stop_reading = Arc::new(AtomicBool::new(false));
        let connect = |gateway: &crate::pair::Gateway, role| {
            let connection = Connection::unix(&gateway.message_socket(), role, &app);
            let connection = connection.expect("the gateway accepts");
            // Of the one stream, for all its handles.
            connection.set_read_timeout(Some(STEP)).expect("a limit");
            connection
        };
        let receiver = connect(&pair.osaka, Role::Receive);
        pair.osaka.wait_for_receiver();
        let sender = connect(&pair.tokyo, Role::Send);
        let acks = sender.try_clone().expect("a second handle");
        let reading = vec![
            {
                let (tally, stop) = (Arc::clone(&tally), Arc::clone(&stop_reading));
                thread::spawn(move || read_messages(receiver, &tally, &stop))
            },
            {
                let (tally, stop) = (Arc::clone(&tally), Arc::clone(&stop_reading));
                thread::spawn(move || read_acks(acks, &tally, &stop))
            },
        ];
        let stop = Arc::clone(&stop_sending);
        let sending = thread::spawn(move || {
            send_messages(sender, length, interval, count.unwrap_or(u64::MAX), &stop)
        });
        Self {
            sending: Some(sending),
            reading,
            stop_sending,
            stop_reading,
            tally,
        }
    }

    pub(crate) fn received(&self) -> u64 {
        self.tally.lock().expect("not poisoned").received.len() as u64
    }

    /// Waits until `count` messages more have arrived.
    #[track_caller]
    pub(crate) fn wait_for_more(&self, count: u64) {
        let before = self.received();
        eventually("more messages arrive", || {
            (self.received() >= before + count).then_some(())
        });
    }

    /// Ends sending; how many messages were handed over whole.
    pub(crate) fn stop(&mut self) -> u64 {
        self.stop_sending.store(true, Ordering::Release);
        let sending = self.sending.take().expect("stopped once");
        sending.join().expect("the sender ends")
    }

    /// Ends sending and panics unless every message arrives whole, exactly once, and is
    /// acknowledged as delivered.
    pub(crate) fn finish(mut self) {
        let sent = self.stop();
        eventually("everything arrives and is acknowledged", || {
            let tally = self.tally.lock().expect("not poisoned");
            (tally.received.len() as u64 >= sent && tally.acks.len() as u64 >= sent).then_some(())
        });
        let tally = self.settle();
        let sent: Vec<u64> = (0..sent).collect();
        let received: Vec<u64> = tally.received.keys().copied().collect();
        assert_eq!(received, sent);
        tally.assert_once_and_whole();
        let lost = tally.acks.iter().find(|(_, o)| **o != Outcome::Delivered);
        assert_eq!(lost, None);
    }

    /// Waits until nothing comes any more, and gives what has come.
    pub(crate) fn settle(&mut self) -> Tally {
        let counts = || {
            let tally = self.tally.lock().expect("not poisoned");
            (tally.received.values().sum::<u32>(), tally.acks.len())
        };
        let (mut last, mut since) = (counts(), Instant::now());
        eventually("nothing comes any more", || {
            let now = counts();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            (since.elapsed() >= QUIET).then_some(())
        });
        self.stop_reading.store(true, Ordering::Release);
        for thread in self.reading.drain(..) {
            thread.join().expect("the reader ends");
        }
        std::mem::take(&mut self.tally.lock().expect("not poisoned"))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop_sending.store(true, Ordering::Release);
        self.stop_reading.store(true, Ordering::Release);
    }
}

impl Tally {
    #[track_caller]
    pub(crate) fn assert_once_and_whole(&self) {
        let twice: Vec<_> = self.received.iter().filter(|(_, n)| **n != 1).collect();
        assert!(twice.is_empty(), "came more than once: {twice:?}");
        assert!(self.garbled.is_empty(), "garbled: {:?}", self.garbled);
    }
}

/// The message of a number: no two are alike, and no part of one is like another's.
pub(crate) fn body(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        // xorshift64, Marsaglia 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()
    });
    words.flatten().take(length).collect()
}

fn send_messages(
    connection: Connection,
    length: usize,
    interval: Duration,
    count: u64,
    stop: &AtomicBool,
) -> u64 {
    let mut writer = MessageWriter::new(connection);
    let mut next = Instant::now();
    let mut sent = 0;
    while sent < count && !stop.load(Ordering::Acquire) {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        // A gateway that stops closes the connection.
        if writer.send(sent, &body(sent, length)).is_err() {
            break;
        }
        sent += 1;
        next += interval;
    }
    sent
}

fn read_messages(connection: Connection, tally: &Mutex<Tally>, stop: &AtomicBool) {
    let mut reader = MessageReader::new(connection);
    read_until(stop, || {
        let message = reader.next_message()?;
        let Some(message) = message else {
            return Ok(None);
        };
        let whole = message.body == body(message.id, message.body.len());
        let mut tally = tally.lock().expect("not poisoned");
        *tally.received.entry(message.id).or_default() += 1;
        tally.garbled.extend((!whole).then_some(message.id));
        Ok(Some(()))
    });
}

fn read_acks(connection: Connection, tally: &Mutex<Tally>, stop: &AtomicBool) {
    let mut reader = AckReader::new(connection);
    read_until(stop, || {
        let Some(ack) = reader.next_ack()? else {
            return Ok(None);
        };
        let mut tally = tally.lock().expect("not poisoned");
        assert_eq!(tally.acks.insert(ack.id, ack.outcome), None, "two acks");
        Ok(Some(()))
    });
}

/// Reads until the end of the stream, or until stopped while nothing arrives.
fn read_until(stop: &AtomicBool, mut read: impl FnMut() -> Result<Option<()>, ClientError>) {
    loop {
        match read() {
            Ok(Some(())) => {}
            Ok(None) => return,
            Err(ClientError::Io(error))
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                if stop.load(Ordering::Acquire) {
                    return;
                }
            }
            // The gateway has ended; the caller counts what is missing.
            Err(_) => return,
        }
    }
}
