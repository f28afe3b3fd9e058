//! One client of the message socket: its hello, what it sends, what it gets.
//!
//! Knows the framing and the socket; what messages mean is the parent's.

use std::{
    collections::{HashSet, VecDeque},
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::TcpStream,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use keiro_control::message_socket::{
    Ack, Answer, BODY_BYTES_MAX, FramingError, Hello, HelloDecoder, MESSAGE_HEADER_BYTES, Outcome,
    RefusalReason, RefusedReason, Role, VERSION_MIN,
};
use keiro_core::{AppId, Instant, MessageId, PeerId};
use keiro_linux::epoll::{Epoll, Interest};

use super::{queue::SharedMessage, tag::TAG_BYTES};
use crate::data::{
    epoll_registration::{EpollRegistration, interest},
    token,
};

pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

pub(super) struct Client {
    stream: Stream,
    state: State,
    /// Answer and acks that wait to be written.
    output: Vec<u8>,
    /// The version of its hello; the oldest one before it.
    version: u8,
    opened: Instant,
    /// After a hang-up, what it sent before is still read, and nothing is sent to it.
    watch: EpollRegistration,
    refusal: Option<(RefusalReason, &'static str)>,
    /// Not of a client on another host.
    is_local: bool,
}

enum State {
    Hello(HelloDecoder),
    Sender(Sender),
    Receiver(Receiver),
}

struct Sender {
    app: AppId,
    /// The application's name, for the log.
    app_name: String,
    header: [u8; MESSAGE_HEADER_BYTES],
    header_filled: usize,
    body: Option<Body>,
    /// A whole message that found the queue full.
    stalled: Option<ClientMessage>,
    /// The client's numbers of messages without outcome.
    unacked: HashSet<u64>,
    paused: bool,
    /// Nothing is read until there is memory for more of the body.
    waits_for_memory: bool,
    finished: bool,
}

/// A body that has not come whole.
struct Body {
    id: u64,
    made: Instant,
    /// Its bytes and those of the tag.
    length: usize,
    bytes: Vec<u8>,
    /// When something of it came last.
    progress: Instant,
}

/// A long body that needs more memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryRequest {
    pub(super) app: AppId,
    pub(super) bytes: usize,
}

struct Receiver {
    app: AppId,
    queue: VecDeque<SharedMessage>,
    queued_bytes: usize,
    /// Bytes of the first one that are written, header included.
    written: usize,
    /// When its socket last took something, or the queue was empty.
    progress: Instant,
}

/// A whole message of a sender.
pub(super) struct ClientMessage {
    /// The client's number for it.
    pub(super) id: u64,
    /// When its first bytes were seen.
    pub(super) made: Instant,
    /// The number and the body.
    pub(super) bytes: Vec<u8>,
}

/// What came of a read.
pub(super) enum Progress {
    /// The client said what it wants.
    Hello(Hello),
    /// A message is whole.
    Message(ClientMessage),
    /// What the client said cannot be understood.
    BadHello(RefusalReason, String),
    /// Nothing more now.
    Waiting,
    /// The client is gone or broke the protocol.
    Gone,
}

/// Bytes of bodies read from one client before others have their turn: some 15 µs of copying.
const READ_PER_TURN: usize = 128 << 10;
/// Bytes written to one client before others have their turn.
const WRITE_PER_TURN: usize = 256 << 10;
/// Acks that wait, in bytes; nothing is read from a client that does not take its acks.
const OUTPUT_MAX: usize = 64 << 10;
/// Messages that wait for one receiver.
const QUEUE_MESSAGES_MAX: usize = 256;
/// Their bytes: at least one message of the largest length fits besides another.
const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Our end's send buffer: a message of 1 MB without waking up in between.
const SEND_BUFFER_BYTES: usize = 2 << 20;

impl Client {
    /// With a `refusal` the client is refused after its hello.
    pub(super) fn new(
        now: Instant,
        stream: Stream,
        is_local: bool,
        refusal: Option<(RefusalReason, &'static str)>,
    ) -> io::Result<Self> {
        stream.prepare()?;
        Ok(Self {
            stream,
            state: State::Hello(HelloDecoder::default()),
            output: Vec::new(),
            version: VERSION_MIN,
            opened: now,
            watch: EpollRegistration::new(Interest::Read),
            refusal,
            is_local,
        })
    }

    pub(super) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Why it may not attach.
    pub(super) fn refusal(&self) -> Option<(RefusalReason, &'static str)> {
        self.refusal
    }

    pub(super) fn register(&self, epoll: &Epoll, number: u64) -> io::Result<()> {
        self.watch.begin(epoll, &self.stream, token::client(number))
    }

    /// Since when it has not said what it wants; zero if it has.
    pub(super) fn waits_for_hello_since(&self, now: Instant) -> Duration {
        match self.state {
            State::Hello(_) => now.saturating_duration_since(self.opened),
            _ => Duration::ZERO,
        }
    }

    /// Sends a refusal; the caller closes. What the socket does not take at once is dropped.
    pub(super) fn refuse(&mut self, reason: RefusalReason, text: &str) {
        let text = text.to_owned();
        let answer = Answer::Refused { reason, text }.encode(self.version);
        let _ = self.stream.write(&answer);
    }

    pub(super) fn welcome(&mut self, now: Instant, app: AppId, hello: &Hello) {
        let answer = Answer::Accepted.encode(self.version);
        self.output.extend_from_slice(&answer);
        self.state = match hello.role {
            Role::Send => State::Sender(Sender {
                app,
                app_name: hello.app.to_string(),
                header: [0; MESSAGE_HEADER_BYTES],
                header_filled: 0,
                body: None,
                stalled: None,
                unacked: HashSet::new(),
                paused: false,
                waits_for_memory: false,
                finished: false,
            }),
            Role::Receive => State::Receiver(Receiver {
                app,
                queue: VecDeque::new(),
                queued_bytes: 0,
                written: 0,
                progress: now,
            }),
        };
    }

    /// The application that it sends for.
    pub(super) fn sends(&self) -> Option<AppId> {
        match &self.state {
            State::Sender(sender) => Some(sender.app),
            _ => None,
        }
    }

    /// The application that it receives for.
    pub(super) fn receives(&self) -> Option<AppId> {
        match &self.state {
            State::Receiver(receiver) => Some(receiver.app),
            _ => None,
        }
    }

    /// Reads on; call it until it says [`Progress::Waiting`] or [`Progress::Gone`].
    pub(super) fn read(&mut self, now: Instant) -> Progress {
        let output_full = self.output.len() > OUTPUT_MAX;
        match &mut self.state {
            State::Hello(decoder) => {
                let progress = read_hello(&mut self.stream, decoder);
                if let Progress::Hello(hello) = &progress {
                    self.version = hello.version;
                }
                progress
            }
            State::Sender(sender) if sender.may_read() && !output_full => {
                sender.read(now, &mut self.stream)
            }
            State::Sender(_) => Progress::Waiting,
            State::Receiver(_) => read_nothing(&mut self.stream),
        }
    }

    /// Writes what waits, as far as the bound of a turn allows, and says which messages the client's socket has
    /// whole. `false` if the client is gone and has nothing left to be read.
    pub(super) fn write(&mut self, now: Instant, finished: impl FnMut(PeerId, MessageId)) -> bool {
        let open = self.write_what_waits(now, finished);
        if open || !matches!(self.state, State::Sender(_)) {
            return open;
        }
        self.on_hangup();
        true
    }

    fn write_what_waits(
        &mut self,
        now: Instant,
        mut finished: impl FnMut(PeerId, MessageId),
    ) -> bool {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return false,
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        match &mut self.state {
            State::Receiver(receiver) => receiver.write(now, &mut self.stream, &mut finished),
            _ => true,
        }
    }

    /// The client has closed both ways. Unlike a client that shuts down its writing side it waits
    /// for no ack.
    pub(super) fn on_hangup(&mut self) {
        self.watch.hang_up();
        self.output = Vec::new();
    }

    /// Waits for what it can go on with. An error: it is not waited for.
    pub(super) fn update_interest(&mut self, epoll: &Epoll, number: u64) -> io::Result<()> {
        let (read, write) = match &self.state {
            State::Hello(_) => (true, false),
            State::Sender(sender) => (sender.may_read() && self.output.len() <= OUTPUT_MAX, false),
            State::Receiver(receiver) => (true, !receiver.queue.is_empty()),
        };
        let write = write || !self.output.is_empty();
        let key = token::client(number);
        let interest = interest(read, write);
        self.watch.update(epoll, &self.stream, key, interest)
    }

    /// A sender that has sent everything and got all its acks.
    pub(super) fn is_done(&self) -> bool {
        match &self.state {
            State::Sender(sender) => {
                let is_answered = sender.unacked.is_empty() && self.output.is_empty();
                sender.finished
                    && sender.stalled.is_none()
                    && (is_answered || self.watch.is_hung_up())
            }
            _ => false,
        }
    }

    /// A sender that sends nothing more: it waits for acks, or for its last messages to be
    /// accepted.
    pub(super) fn is_leaving(&self) -> bool {
        match &self.state {
            State::Sender(sender) => sender.finished || self.watch.is_hung_up(),
            _ => false,
        }
    }

    // A sender's messages.

    /// Notes that message `id` will get an ack; `false` if one of that number waits already.
    pub(super) fn expect_ack(&mut self, id: u64) -> bool {
        match &mut self.state {
            State::Sender(sender) => sender.unacked.insert(id),
            _ => false,
        }
    }

    pub(super) fn forget_ack(&mut self, id: u64) {
        if let State::Sender(sender) = &mut self.state {
            sender.unacked.remove(&id);
        }
    }

    pub(super) fn unacked(&self) -> usize {
        match &self.state {
            State::Sender(sender) => sender.unacked.len(),
            _ => 0,
        }
    }

    /// Reads nothing more until an ack has been given.
    pub(super) fn pause_reading(&mut self) {
        if let State::Sender(sender) = &mut self.state {
            sender.paused = true;
        }
    }

    /// Sends the ack of a message.
    pub(super) fn acknowledge(&mut self, ack: Ack) {
        if let State::Sender(sender) = &mut self.state {
            sender.unacked.remove(&ack.id);
            sender.paused = false;
            self.write_ack(ack);
        }
    }

    /// Refuses a message. An earlier one of the same number still waits.
    pub(super) fn refuse_message(&mut self, id: u64, reason: RefusedReason) {
        let ack = Ack {
            id,
            outcome: Outcome::Refused(reason),
            delay: Duration::ZERO,
        };
        self.write_ack(ack);
    }

    fn write_ack(&mut self, ack: Ack) {
        if !self.watch.is_hung_up() {
            self.output.extend_from_slice(&ack.encode(self.version));
        }
    }

    /// Keeps a message that found the queue full, and reads nothing more until it is handed over.
    pub(super) fn stall(&mut self, taken: ClientMessage) {
        if let State::Sender(sender) = &mut self.state {
            sender.stalled = Some(taken);
        }
    }

    // The memory of a sender's long messages. Short ones are not counted: what they take is bounded by the
    // number of clients.

    /// The memory of the message that is not handed over, of its application; `None`: it is short.
    pub(super) fn held_memory(&self) -> Option<(AppId, usize)> {
        let State::Sender(sender) = &self.state else {
            return None;
        };
        let body = sender.body.as_ref().map(|body| body.bytes.capacity());
        let stalled = sender.stalled.as_ref().map(|one| one.bytes.capacity());
        let bytes = body.unwrap_or(0) + stalled.unwrap_or(0);
        (bytes > READ_PER_TURN).then_some((sender.app, bytes))
    }

    /// What reading on would take; `None`: it needs no more than a short message.
    pub(super) fn memory_request(&self) -> Option<MemoryRequest> {
        let State::Sender(sender) = &self.state else {
            return None;
        };
        let body = sender.body.as_ref()?;
        let bytes = body.growth()?;
        (body.bytes.capacity() + bytes > READ_PER_TURN).then_some(MemoryRequest {
            app: sender.app,
            bytes,
        })
    }

    /// Its long message that is not whole: of which application, and since when.
    pub(super) fn long_body(&self) -> Option<(AppId, Instant)> {
        let State::Sender(sender) = &self.state else {
            return None;
        };
        let body = sender.body.as_ref()?;
        let is_long = self.held_memory().is_some() || self.memory_request().is_some();
        is_long.then_some((sender.app, body.made))
    }

    /// Reads nothing more, or reads on.
    pub(super) fn set_waits_for_memory(&mut self, waits: bool) {
        if let State::Sender(sender) = &mut self.state {
            sender.waits_for_memory = waits;
        }
    }

    pub(super) fn waits_for_memory(&self) -> bool {
        matches!(&self.state, State::Sender(sender) if sender.waits_for_memory)
    }

    /// For how long nothing has come of a long body that could be read.
    pub(super) fn body_idle_for(&self, now: Instant) -> Duration {
        match &self.state {
            State::Sender(sender) if self.long_body().is_some() && sender.may_read() => {
                let body = sender.body.as_ref();
                body.map_or(Duration::ZERO, |body| {
                    now.saturating_duration_since(body.progress)
                })
            }
            _ => Duration::ZERO,
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        matches!(&self.state, State::Sender(sender) if sender.stalled.is_some())
    }

    pub(super) fn unstall(&mut self) -> Option<ClientMessage> {
        match &mut self.state {
            State::Sender(sender) => sender.stalled.take(),
            _ => None,
        }
    }

    // A receiver's messages.

    pub(super) fn has_room(&self, length: usize) -> bool {
        match &self.state {
            State::Receiver(receiver) => {
                receiver.queue.len() < QUEUE_MESSAGES_MAX
                    && receiver.queued_bytes + length <= QUEUE_BYTES_MAX
            }
            _ => false,
        }
    }

    pub(super) fn enqueue(&mut self, now: Instant, shared: SharedMessage) {
        if let State::Receiver(receiver) = &mut self.state {
            if receiver.queue.is_empty() {
                receiver.progress = now;
            }
            receiver.queued_bytes += shared.bytes().len();
            receiver.queue.push_back(shared);
        }
    }

    /// For how long its socket has taken nothing of what waits; zero if nothing waits.
    pub(super) fn stuck_for(&self, now: Instant) -> Duration {
        match &self.state {
            State::Receiver(receiver) if !receiver.queue.is_empty() => {
                now.saturating_duration_since(receiver.progress)
            }
            _ => Duration::ZERO,
        }
    }

    pub(super) fn queued_messages(&self) -> usize {
        match &self.state {
            State::Receiver(receiver) => receiver.queue.len(),
            _ => 0,
        }
    }

    pub(super) fn take_queue(&mut self) -> VecDeque<SharedMessage> {
        match &mut self.state {
            State::Receiver(receiver) => std::mem::take(&mut receiver.queue),
            _ => VecDeque::new(),
        }
    }
}

impl Sender {
    fn may_read(&self) -> bool {
        !self.finished && !self.paused && !self.waits_for_memory && self.stalled.is_none()
    }

    fn read(&mut self, now: Instant, stream: &mut Stream) -> Progress {
        if self.body.is_none() {
            match self.read_header(now, stream) {
                Ok(true) => {}
                Ok(false) => return Progress::Waiting,
                Err(progress) => return progress,
            }
        }
        let Some(body) = &mut self.body else {
            return Progress::Waiting;
        };
        // One call per turn reads at most this; bytes go straight to their place.
        let missing = body.length - body.bytes.len();
        let wanted = missing.min(READ_PER_TURN);
        let before = body.bytes.len();
        if let Some(growth) = body.growth() {
            body.bytes
                .reserve_exact(body.bytes.capacity() + growth - before);
        }
        let result = stream.append_to(&mut body.bytes, wanted as u64);
        let came = body.bytes.len() - before;
        if came > 0 {
            body.progress = now;
        }
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Progress::Gone,
            // The client closed within a message.
            Ok(_) if came < wanted => {
                let (came, length) = (body.bytes.len() - TAG_BYTES, body.length - TAG_BYTES);
                tracing::warn!(
                    app = self.app_name,
                    "message socket: a sender closed after {came} bytes of a message of {length}"
                );
                return Progress::Gone;
            }
            Ok(_) => {}
        }
        if body.bytes.len() < body.length {
            return Progress::Waiting;
        }
        let taken = self.body.take().map(|body| ClientMessage {
            id: body.id,
            made: body.made,
            bytes: body.bytes,
        });
        taken.map_or(Progress::Waiting, Progress::Message)
    }

    /// Whether the header is whole.
    fn read_header(&mut self, now: Instant, stream: &mut Stream) -> Result<bool, Progress> {
        while self.header_filled < MESSAGE_HEADER_BYTES {
            match stream.read(&mut self.header[self.header_filled..]) {
                Ok(0) if self.header_filled == 0 => {
                    // It sends nothing more, and may still read acks.
                    self.finished = true;
                    return Ok(false);
                }
                Ok(0) => {
                    tracing::warn!(
                        app = self.app_name,
                        "message socket: a sender closed within a message's header"
                    );
                    return Err(Progress::Gone);
                }
                Ok(count) => self.header_filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(_) => return Err(Progress::Gone),
            }
        }
        self.header_filled = 0;
        let (length, id) = self.header.split_at(size_of::<u32>());
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n: u64, b| n << 8 | u64::from(*b));
        let length = number(length) as usize;
        if length == 0 || length > BODY_BYTES_MAX {
            let error = FramingError::BodyLength(length as u64);
            tracing::warn!(
                app = self.app_name,
                %error,
                "message socket: a sender's connection is closed"
            );
            return Err(Progress::Gone);
        }
        let length = TAG_BYTES + length;
        let mut bytes = Vec::with_capacity(length.min(READ_PER_TURN));
        bytes.extend_from_slice(id);
        self.body = Some(Body {
            id: number(id),
            made: now,
            length,
            bytes,
            progress: now,
        });
        Ok(true)
    }
}

impl Body {
    /// By how much its memory has to grow before more is read; `None`: there is room. It grows with what
    /// comes, not with what was announced: doubling, at most to the length.
    fn growth(&self) -> Option<usize> {
        let before = self.bytes.len();
        let wanted = (self.length - before).min(READ_PER_TURN);
        let capacity = self.bytes.capacity();
        (capacity - before < wanted)
            .then(|| (2 * before).clamp(before + wanted, self.length) - capacity)
    }
}

impl Receiver {
    fn write(
        &mut self,
        now: Instant,
        stream: &mut Stream,
        finished: &mut impl FnMut(PeerId, MessageId),
    ) -> bool {
        const LENGTH_BYTES: usize = size_of::<u32>();
        let mut budget = WRITE_PER_TURN;
        while let Some(first) = self.queue.front()
            && budget > 0
        {
            // The header is the body's length and the sender's number, which stands first in
            // `bytes`: length, then `bytes` as they are.
            let bytes = first.bytes();
            let body_bytes = bytes.len() - TAG_BYTES;
            let length = u32::try_from(body_bytes).unwrap_or(u32::MAX).to_be_bytes();
            let total = LENGTH_BYTES + bytes.len();
            let header = &length[self.written.min(LENGTH_BYTES)..];
            let rest = &bytes[self.written.saturating_sub(LENGTH_BYTES)..];
            let rest = &rest[..rest.len().min(budget)];
            match stream.write_vectored(&[IoSlice::new(header), IoSlice::new(rest)]) {
                Ok(0) => return false,
                Ok(count) => {
                    self.written += count;
                    self.progress = now;
                    budget = budget.saturating_sub(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            if self.written == total {
                self.written = 0;
                if let Some(whole) = self.queue.pop_front() {
                    self.queued_bytes -= whole.bytes().len();
                    if let Some((peer, id)) = whole.received() {
                        finished(peer, id);
                    }
                }
            }
        }
        true
    }
}

/// Byte by byte: what follows a hello is read elsewhere, and there is one per connection.
fn read_hello(stream: &mut Stream, decoder: &mut HelloDecoder) -> Progress {
    let mut byte = [0];
    loop {
        match stream.read(&mut byte) {
            Ok(0) => return Progress::Gone,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Waiting,
            Err(_) => return Progress::Gone,
        }
        match decoder.decode(&mut byte.as_slice()) {
            Ok(None) => {}
            Ok(Some(hello)) => return Progress::Hello(hello),
            Err(error @ FramingError::Version(_)) => {
                return Progress::BadHello(RefusalReason::Version, error.to_string());
            }
            Err(error) => return Progress::BadHello(RefusalReason::BadHello, error.to_string()),
        }
    }
}

/// A receiver has nothing to say; when it closes, it is gone.
fn read_nothing(stream: &mut Stream) -> Progress {
    match stream.read(&mut [0; 1]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Progress::Waiting,
        Err(error) if error.kind() == ErrorKind::Interrupted => Progress::Waiting,
        _ => Progress::Gone,
    }
}

impl Stream {
    fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_nonblocking(true)?,
            Self::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
            }
        }
        keiro_linux::unix::enlarge_send_buffer(self, SEND_BUFFER_BYTES);
        Ok(())
    }

    /// Appends what there is, at most `bytes_max`, to `bytes`. The standard library's own streams
    /// let the kernel fill spare capacity that was not zeroed before.
    fn append_to(&self, bytes: &mut Vec<u8>, bytes_max: u64) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.take(bytes_max).read_to_end(bytes),
            Self::Tcp(stream) => stream.take(bytes_max).read_to_end(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write_vectored(slices),
            Self::Tcp(stream) => stream.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
