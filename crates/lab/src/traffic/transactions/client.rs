//! The clients: begin transactions by the schedule and log when each ends.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use keiro_linux::epoll::{Epoll, Interest, ReadyList};
use keiro_units::{ByteCount, Instant};

use super::{
    Carried, Due, MESSAGE_BYTES_MAX, TransactionRecord, Transactions,
    message::{HEADER_BYTES, Message},
};
use crate::{
    lab::{Host, LabError},
    traffic::{
        Connections, Protocol, TrafficError,
        exchange::{be_punctual, now},
        log::quantile,
        stream,
    },
};

/// Connections of clients in one or more hosts, each used once before the first transaction.
#[derive(Debug)]
pub struct Clients {
    streams: Vec<TcpStream>,
}

impl Clients {
    /// Connects `each` clients in every host to `server`, with TCP_NODELAY and with the congestion control
    /// `congestion` (`None`: the host's default).
    ///
    /// # Errors
    /// [`TrafficError::Connect`], or a host cannot be entered.
    pub fn connect(
        hosts: &[&Host],
        each: usize,
        server: SocketAddr,
        congestion: Option<&str>,
    ) -> Result<Self, TrafficError> {
        let connections = Connections {
            protocol: Protocol::Tcp,
            congestion: congestion.map(str::to_owned),
            local: match server {
                SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            },
            remote: server,
            count: each,
        };
        let mut streams = Vec::new();
        for host in hosts {
            let opened = host
                .run(|| {
                    let all = (0..each).map(|_| stream::open(&connections, server));
                    all.collect::<io::Result<Vec<_>>>()
                })
                .map_err(LabError::from)?;
            let to = server;
            streams.extend(opened.map_err(|source| TrafficError::Connect { to, source })?);
        }
        Ok(Self { streams })
    }

    /// Adds the other connections.
    pub fn append(&mut self, mut others: Self) {
        self.streams.append(&mut others.streams);
    }

    /// Sends a message of `length` on every connection and waits for its echo. Returns the number of
    /// connections that broke, returned something else, or nothing in time.
    ///
    /// # Errors
    /// [`TrafficError::Transactions`] if the length is invalid.
    pub fn use_once(&self, length: ByteCount) -> Result<usize, TrafficError> {
        let bytes = length.get();
        if !(HEADER_BYTES as u64..=MESSAGE_BYTES_MAX).contains(&bytes) {
            let what = format!("messages of {bytes} bytes");
            return Err(TrafficError::Transactions { what });
        }
        let mut message = vec![0; bytes as usize];
        let mut answer = message.clone();
        let mut broken = 0;
        for (part, streams) in self.streams.chunks(USED_AT_ONCE).enumerate() {
            let first = part * USED_AT_ONCE;
            let of = |number: usize| Message {
                client: (first + number) as u32,
                transaction: GREETING,
                exchange: 0,
            };
            let mut is_sent = Vec::new();
            for (number, mut stream) in streams.iter().enumerate() {
                of(number).write(&mut message);
                let waits = stream
                    .set_nonblocking(false)
                    .and_then(|()| stream.set_read_timeout(Some(GREETING_WAIT)));
                is_sent.push(waits.and_then(|()| stream.write_all(&message)).is_ok());
            }
            for (number, mut stream) in streams.iter().enumerate() {
                of(number).write(&mut message);
                let is_back = is_sent[number] && stream.read_exact(&mut answer).is_ok();
                broken += usize::from(!is_back || answer != message);
            }
        }
        Ok(broken)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.streams.len()
    }
}

/// Runs transactions and logs each; ends when all have ended or the drain time is over.
///
/// Every connection is used once first, so that the whole path to the server is established. `on_begin` is
/// called before the schedule's zero, `on_ended` for every transaction as it ends. Once `stop` is set no more
/// begin, and those in flight are still waited for. The message length must be the server's.
///
/// # Errors
/// [`TrafficError::Transactions`] if the plan is invalid; [`TrafficError::Client`] with the first connection
/// that broke or received something unexpected.
pub fn carry(
    plan: &Transactions,
    clients: Clients,
    on_begin: &mut (dyn FnMut() + Send),
    on_ended: &(dyn Fn(&TransactionRecord) + Sync),
    stop: &AtomicBool,
) -> Result<Carried, TrafficError> {
    if let Some(what) = plan.fault(clients.count()) {
        return Err(TrafficError::Transactions { what });
    }
    let schedule = plan.schedule(clients.count());
    let mut run = Run::new(plan, &schedule, clients, on_ended, stop)?;
    // In a separate thread, which becomes a real-time one.
    thread::scope(|scope| {
        let driver = thread::Builder::new()
            .name("transactions".into())
            .spawn_scoped(scope, || {
                be_punctual(plan.cpu);
                run.greet()?;
                on_begin();
                run.carry()
            })
            .map_err(TrafficError::System)?;
        match driver.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Time from the greetings to the schedule's zero; ours: for their after-effects to end.
const LEAD: Duration = Duration::from_millis(100);

/// Timeout of a connection's first use; ours: a relay may have to connect to the server, and to retransmit.
const GREETING_WAIT: Duration = Duration::from_secs(10);

/// Connections that are used at once in the first round; ours: a burst that every queue takes.
/// queue takes.
const USED_AT_ONCE: usize = 64;

/// Period of checking whether to end.
const LOOK: Duration = Duration::from_millis(50);

/// Maximum of ready connections per wait; ours: few, so that no transaction is delayed by many responses.
const READY_MAX: usize = 8;

struct Run<'a> {
    plan: &'a Transactions,
    schedule: &'a [Due],
    clients: Vec<Client>,
    epoll: Epoll,
    /// The schedule's zero on the monotonic clock.
    zero: Instant,
    /// Transactions that wait for a free client, in order; at most the whole schedule.
    waiting: VecDeque<usize>,
    open: usize,
    records: Vec<TransactionRecord>,
    waited: u64,
    lateness: Vec<Duration>,
    on_ended: &'a (dyn Fn(&TransactionRecord) + Sync),
    stop: &'a AtomicBool,
}

struct Client {
    stream: TcpStream,
    /// The message that was sent last, and is expected back.
    expected: Vec<u8>,
    response: Vec<u8>,
    filled: usize,
    current: Option<Current>,
}

/// A transaction in progress.
#[derive(Clone, Copy)]
struct Current {
    transaction: usize,
    exchange: u32,
}

/// The number of a greeting, which no transaction has.
const GREETING: u64 = u64::MAX;

impl<'a> Run<'a> {
    fn new(
        plan: &'a Transactions,
        schedule: &'a [Due],
        clients: Clients,
        on_ended: &'a (dyn Fn(&TransactionRecord) + Sync),
        stop: &'a AtomicBool,
    ) -> Result<Self, TrafficError> {
        let length = usize::try_from(plan.message.get()).unwrap_or(usize::MAX);
        let epoll = Epoll::new().map_err(TrafficError::System)?;
        let client = |stream| Client {
            stream,
            expected: vec![0; length],
            response: vec![0; length],
            filled: 0,
            current: None,
        };
        let record = |due: &Due| TransactionRecord {
            client: due.client,
            scheduled_ns: due.at.as_nanos(),
            started_ns: None,
            ended_ns: None,
        };
        Ok(Self {
            plan,
            schedule,
            clients: clients.streams.into_iter().map(client).collect(),
            epoll,
            zero: Instant::ZERO,
            waiting: VecDeque::new(),
            open: 0,
            records: schedule.iter().map(record).collect(),
            waited: 0,
            lateness: Vec::new(),
            on_ended,
            stop,
        })
    }

    /// Uses every connection once, then adds it to the epoll set.
    fn greet(&mut self) -> Result<(), TrafficError> {
        for (number, client) in self.clients.iter_mut().enumerate() {
            let greeted = client.greet(number).and_then(|()| {
                let stream = &client.stream;
                self.epoll.add(stream, number as u64, Interest::Read)
            });
            greeted.map_err(|source| failed(number, source))?;
        }
        Ok(())
    }

    fn carry(&mut self) -> Result<Carried, TrafficError> {
        self.zero = now() + LEAD;
        let mut ready = ReadyList::new(READY_MAX);
        let mut next = 0;
        let mut deadline = None;
        loop {
            let at = now();
            while self
                .schedule
                .get(next)
                .is_some_and(|due| self.due(due) <= at)
            {
                self.begin(next)?;
                next += 1;
            }
            if self.stop.load(Ordering::Relaxed) {
                next = self.schedule.len();
                self.waiting.clear();
            }
            let mut patience = LOOK;
            if let Some(due) = self.schedule.get(next) {
                patience = patience.min(self.due(due) - at);
            } else {
                let deadline = *deadline.get_or_insert(at + self.plan.drain);
                if self.open == 0 || at >= deadline {
                    return Ok(self.finish());
                }
            }
            self.epoll
                .wait(&mut ready, Some(patience))
                .map_err(TrafficError::System)?;
            for event in ready.iter() {
                self.take(event.token as usize)?;
            }
        }
    }

    fn due(&self, due: &Due) -> Instant {
        self.zero + Duration::from_nanos(due.at.as_nanos())
    }

    /// Begins a transaction with its client or the next free one; queues it if there is none.
    fn begin(&mut self, transaction: usize) -> Result<(), TrafficError> {
        let (count, first) = (self.clients.len(), self.schedule[transaction].client);
        let free = (0..count)
            .map(|step| (first + step) % count)
            .find(|&client| self.clients[client].current.is_none());
        match free {
            Some(client) => {
                let started = self.start(transaction, client)?;
                let scheduled = Duration::from_nanos(self.records[transaction].scheduled_ns);
                self.lateness.push(started.saturating_sub(scheduled));
            }
            None => {
                self.waited += 1;
                self.waiting.push_back(transaction);
            }
        }
        Ok(())
    }

    /// Sends a transaction's first request; returns the time since the schedule's zero.
    fn start(&mut self, transaction: usize, client: usize) -> Result<Duration, TrafficError> {
        let started = now().saturating_duration_since(self.zero);
        self.open += 1;
        self.records[transaction].client = client;
        self.records[transaction].started_ns = Some(nanos(started));
        self.clients[client].current = Some(Current {
            transaction,
            exchange: 0,
        });
        self.request(client)?;
        Ok(started)
    }

    /// Sends the request of a client's current exchange.
    fn request(&mut self, number: usize) -> Result<(), TrafficError> {
        let client = &mut self.clients[number];
        let Some(current) = client.current else {
            return Ok(());
        };
        let message = Message {
            client: number as u32,
            transaction: current.transaction as u64,
            exchange: current.exchange,
        };
        client.send(message).map_err(|e| failed(number, e))
    }

    /// Reads what a client has received, and continues if it is a complete response.
    fn take(&mut self, number: usize) -> Result<(), TrafficError> {
        let client = &mut self.clients[number];
        if !client.receive().map_err(|e| failed(number, e))? {
            return Ok(());
        }
        let Some(current) = &mut client.current else {
            return Ok(());
        };
        current.exchange += 1;
        if current.exchange < self.plan.round_trips {
            return self.request(number);
        }
        let transaction = current.transaction;
        client.current = None;
        self.open -= 1;
        let record = &mut self.records[transaction];
        record.ended_ns = Some(nanos(now().saturating_duration_since(self.zero)));
        (self.on_ended)(record);
        if let Some(waiting) = self.waiting.pop_front() {
            self.start(waiting, number)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Carried {
        self.lateness.sort_unstable();
        Carried {
            records: std::mem::take(&mut self.records),
            waited: self.waited,
            lateness_p99: quantile(&self.lateness, 99),
            lateness_max: self.lateness.last().copied().unwrap_or_default(),
        }
    }
}

impl Client {
    fn greet(&mut self, number: usize) -> io::Result<()> {
        self.stream.set_read_timeout(Some(GREETING_WAIT))?;
        self.send(Message {
            client: number as u32,
            transaction: GREETING,
            exchange: 0,
        })?;
        while !self.receive_some()? {}
        self.check()?;
        self.stream.set_nonblocking(true)
    }

    fn send(&mut self, message: Message) -> io::Result<()> {
        message.write(&mut self.expected);
        // The response to the last request shows that the socket's send buffer is empty.
        self.stream.write_all(&self.expected)
    }

    /// Whether a complete response has arrived.
    fn receive(&mut self) -> io::Result<bool> {
        if self.current.is_none() {
            // No response is due, so it is an end, an error, or unexpected data.
            self.stream.read_exact(&mut [0])?;
            return Err(stranger());
        }
        match self.receive_some() {
            Ok(false) => Ok(false),
            Ok(true) => self.check().map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads once; returns whether the response is complete.
    fn receive_some(&mut self) -> io::Result<bool> {
        match self.stream.read(&mut self.response[self.filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(self.filled == self.response.len())
    }

    fn check(&mut self) -> io::Result<()> {
        self.filled = 0;
        match self.response == self.expected {
            true => Ok(()),
            false => Err(stranger()),
        }
    }
}

fn stranger() -> io::Error {
    let message = "something else arrived than what was sent to the server";
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn failed(client: usize, source: io::Error) -> TrafficError {
    TrafficError::Client { client, source }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
