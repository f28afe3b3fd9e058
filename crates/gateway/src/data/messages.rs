//! The message socket: local applications hand messages over and receive them.
//!
//! It lives on the data thread, in the same epoll set as the WAN: a hand-over to another thread
//! would cost a wake-up of some 30 µs at both gateways for every message. What a client may take of
//! a turn is bounded, so that pacing does not wait for a long body.
//!
//! - A sender's message is read straight into the buffer that the core takes over. Where the queue
//!   towards the peer is full, nothing more is read from that client until there is room.
//! - A receiver's message is written from the buffer that the core gave out. Every receiver of the
//!   application gets it; when the sockets of all have it, it is acknowledged to the peer.
//! - While a receiver is slow, or is expected after a start or after the last one has left, messages are held:
//!   the peer gets no more credit, and nothing is refused. One that does not come in time is overdue, and little
//!   is held for it. A receiver that takes nothing for long is closed.
//! - Long messages that are not whole, or found the queue full, share a bounded memory: see [`memory`].
//! - A client that closes is forgotten as soon as what it sent is read; its messages go on.
//!
//! The sender's own number of a message travels in front of its body, [`tag`], since
//! the receiver gets it too.

mod client;
mod memory;
mod queue;
pub(crate) mod tag;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixListener,
    },
    path::PathBuf,
    time::Duration,
};

use keiro_control::message_socket::{
    Ack, Hello, Outcome, RefusalReason as HelloRefusal, RefusedReason, Role, UnknownReason,
};
use keiro_core::{
    AppId, DeliveryClass, Instant, MessageId, MessageOutcome, PeerId, RefusalReason, UnknownCause,
};
use keiro_linux::{
    acceptor::Acceptor,
    epoll::{Epoll, Ready},
    limit,
    unix::{PeerCredentials, owning_group},
};

pub(crate) use self::queue::PendingMessage;
use self::{
    client::{Client, ClientMessage, Progress, Stream},
    queue::{ABSENCE_MAX, HoldQueue, SharedMessage},
    tag::untagged_body,
};
use super::{context::Context, token};
use crate::{access, message_tls::attach::Attached};

/// A socket where local applications attach.
pub(crate) enum Listener {
    /// Mode 0660, credentials checked.
    Unix {
        listener: UnixListener,
        path: PathBuf,
    },
    /// A loopback address.
    Tcp(TcpListener),
    /// Connections of clients on other hosts, which the TLS thread hands over. It bounds their number.
    Tls(Attached),
}

/// The message socket's listeners, clients and queues.
pub(crate) struct MessageServer {
    listeners: HashMap<u64, Acceptor<Listener>>,
    clients: HashMap<u64, Client>,
    /// Clients that wait for an ack, by message.
    unfinished: HashMap<(PeerId, MessageId), MessageOrigin>,
    /// Messages that wait for a receiver, by application.
    holds: BTreeMap<AppId, HoldQueue>,
    /// Since when an application has had no receiver: since the last one left, or a message came.
    absences: BTreeMap<AppId, Instant>,
    figures: HashMap<AppId, AppMessages>,
    /// Senders that wait for memory, the one that waits longest first.
    memory_waiters: VecDeque<u64>,
    next: u64,
    draining: bool,
}

/// Where a message of ours came from.
struct MessageOrigin {
    client: u64,
    id: u64,
    app: AppId,
}

/// What the message socket counts for an application.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AppMessages {
    pub(crate) senders: u64,
    pub(crate) receivers: u64,
    pub(crate) refused: u64,
}

/// The result of a message from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageResult {
    pub(crate) peer: PeerId,
    pub(crate) id: MessageId,
    pub(crate) refused: Option<RefusalReason>,
}

/// Attached clients; further ones are refused and closed.
const CLIENTS_MAX: usize = 256;
/// Senders that have finished or hung up, beside [`CLIENTS_MAX`]. At more the oldest connection of
/// them is closed: its messages go on, its acks are not given.
const LEAVING_MAX: usize = 256;
/// Clients beyond [`CLIENTS_MAX`] that get a refusal; further ones are closed without one.
const REFUSED_CLIENTS_MAX: usize = 16;
/// A client says hello within this time.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// A receiver takes something of what waits for it within this time, or is closed. Ours: longer than
/// a program pauses, and a bound on how long one that hangs can stop the peer's other messages.
const STUCK_TIME: Duration = Duration::from_secs(30);
/// Messages of one client without an outcome; nothing is read from it at more.
const UNACKED_MAX: usize = 1 << 16;
/// Bytes of whole messages taken from one client before others have their turn.
const TAKEN_PER_TURN: usize = 256 << 10;
/// What a message counts beside its bytes: system calls and bookkeeping.
const MESSAGE_COST: usize = 4 << 10;
/// Connections accepted per turn.
const ACCEPTS_PER_TURN: usize = 8;

impl MessageServer {
    pub(crate) fn new() -> Self {
        Self {
            listeners: HashMap::new(),
            clients: HashMap::new(),
            unfinished: HashMap::new(),
            holds: BTreeMap::new(),
            absences: BTreeMap::new(),
            figures: HashMap::new(),
            memory_waiters: VecDeque::new(),
            next: 0,
            draining: false,
        }
    }

    pub(crate) fn listen(&mut self, epoll: &Epoll, listener: Listener) -> io::Result<()> {
        let number = self.number();
        let key = token::message_listener(number);
        let acceptor = Acceptor::new(epoll, listener, key, "message socket")?;
        self.listeners.insert(number, acceptor);
        Ok(())
    }

    /// Lets listeners that rest accept again.
    pub(crate) fn rearm(&mut self, epoll: &Epoll) {
        for listener in self.listeners.values_mut() {
            listener.rearm(epoll);
        }
    }

    /// Takes no new clients; refuses new messages from now on.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.listeners.clear();
    }

    /// Whether everything that came for local receivers has been given to them.
    pub(crate) fn is_drained(&self) -> bool {
        self.clients
            .values()
            .all(|client| client.queued_messages() == 0)
    }

    /// Accepts clients that wait at listener `number`.
    pub(crate) fn accept(&mut self, context: &mut Context<'_>, number: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get_mut(&number) else {
                return;
            };
            let Some((stream, allowed)) = listener.accept(context.epoll, Listener::accept) else {
                return;
            };
            let is_local = listener.listener().is_local();
            self.close_oldest_leaving(context, is_local);
            let counts = |client: &&Client| client.is_local() && !client.is_leaving();
            let clients = match is_local {
                true => self.clients.values().filter(counts).count(),
                false => 0,
            };
            // Refused after the hello: a client that is still writing it would not read the answer.
            let refusal = if !allowed {
                let text = "only root, the gateway's user and members of the socket's group may";
                Some((HelloRefusal::Forbidden, text))
            } else if clients >= CLIENTS_MAX {
                Some((HelloRefusal::Busy, "too many clients; close some first"))
            } else {
                None
            };
            if clients >= CLIENTS_MAX + REFUSED_CLIENTS_MAX {
                continue;
            }
            let Ok(client) = Client::new(context.now, stream, is_local, refusal) else {
                continue;
            };
            let key = self.number();
            if client.register(context.epoll, key).is_ok() {
                self.clients.insert(key, client);
            }
        }
    }

    /// Of local clients and those on other hosts apart, so that neither closes the other's.
    fn close_oldest_leaving(&mut self, context: &mut Context<'_>, is_local: bool) {
        let leaves = |(number, client): (&u64, &Client)| {
            (client.is_leaving() && client.is_local() == is_local).then_some(*number)
        };
        let mut leaving: Vec<u64> = self.clients.iter().filter_map(leaves).collect();
        leaving.sort_unstable();
        let surplus = leaving.len().saturating_sub(LEAVING_MAX);
        for number in &leaving[..surplus] {
            self.close(context, *number);
        }
    }

    /// Serves client `number`, whose socket is ready.
    pub(crate) fn serve(&mut self, context: &mut Context<'_>, number: u64, ready: Ready) {
        let mut open = true;
        if ready.hangup
            && let Some(client) = self.clients.get_mut(&number)
        {
            client.on_hangup();
        }
        if ready.writable {
            open = self.write(context, number);
        }
        if open && ready.readable {
            open = self.read(context, number);
        }
        if !open {
            self.close(context, number);
            return;
        }
        self.wait_for(context, number);
        self.go_on_after_writing(context, number, ready);
        self.give_memory(context);
    }

    /// A receiver that took something may have room again.
    fn go_on_after_writing(&mut self, context: &mut Context<'_>, number: u64, ready: Ready) {
        let app = self.clients.get(&number).and_then(Client::receives);
        if let Some(app) = app.filter(|app| ready.writable && self.holds.contains_key(app)) {
            self.give_held(context, app);
        }
    }

    /// Delivers a message from the peer. Returns the result if it is refused at once.
    pub(crate) fn deliver(
        &mut self,
        context: &mut Context<'_>,
        app: AppId,
        held: PendingMessage,
    ) -> Option<MessageResult> {
        let finished = |peer, id, refused| Some(MessageResult { peer, id, refused });
        if untagged_body(&held.bytes).is_none() {
            return finished(held.peer, held.id, Some(RefusalReason::Other));
        }
        let receivers = self.receivers_of(app);
        let waits = self.holds.contains_key(&app)
            || receivers.is_empty()
            || receivers
                .iter()
                .any(|number| !self.has_room(*number, held.bytes.len()));
        if !waits {
            self.give(context, &receivers, held);
            return None;
        }
        if receivers.is_empty() {
            return self.hold_for_absent(context.now, app, held);
        }
        self.holds.entry(app).or_default().push(context.now, held);
        None
    }

    /// Holds a message of an application without a receiver, or whose forward takes nothing. Returns the result if it
    /// is refused at once.
    pub(crate) fn hold_for_absent(
        &mut self,
        now: Instant,
        app: AppId,
        held: PendingMessage,
    ) -> Option<MessageResult> {
        let absent_since = *self.absences.entry(app).or_insert(now);
        let is_overdue = now.saturating_duration_since(absent_since) >= ABSENCE_MAX;
        let hold = self.holds.entry(app).or_default();
        if !is_overdue {
            hold.push(now, held);
            return None;
        }
        let held = hold.push_overdue(now, held).err()?;
        Some(MessageResult {
            peer: held.peer,
            id: held.id,
            refused: Some(RefusalReason::NoReceiver),
        })
    }

    /// Whether messages of an application are held.
    pub(crate) fn holds(&self, app: AppId) -> bool {
        self.holds.contains_key(&app)
    }

    /// Applications of which messages are held.
    pub(crate) fn held_apps(&self) -> Vec<AppId> {
        self.holds.keys().copied().collect()
    }

    /// The oldest message of an application that is held.
    pub(crate) fn first_held(&self, app: AppId) -> Option<&PendingMessage> {
        self.holds.get(&app)?.first()
    }

    /// The forward of an application takes messages.
    pub(crate) fn on_forward_open(&mut self, app: AppId) {
        self.absences.remove(&app);
    }

    /// The forward of an application has taken the oldest message.
    pub(crate) fn on_forwarded(&mut self, app: AppId) {
        self.absences.remove(&app);
        if let Some(hold) = self.holds.get_mut(&app) {
            hold.pop();
            if hold.is_empty() {
                self.holds.remove(&app);
            }
        }
    }

    /// Acknowledges a message to its sender. Returns the application; `None` if the message was not
    /// this socket's.
    pub(crate) fn on_message_done(
        &mut self,
        context: &mut Context<'_>,
        peer: PeerId,
        id: MessageId,
        outcome: MessageOutcome,
        after: Duration,
    ) -> Option<AppId> {
        let origin = self.unfinished.remove(&(peer, id))?;
        let (outcome, delay) = match outcome {
            MessageOutcome::Delivered => (Outcome::Delivered, after),
            MessageOutcome::Expired => (Outcome::Expired, after),
            MessageOutcome::Refused(reason) => {
                let reason = refused_reason(reason, self.draining);
                (Outcome::Refused(reason), Duration::ZERO)
            }
            MessageOutcome::Unknown(cause) => {
                let reason = unknown_reason(cause, self.draining);
                (Outcome::Unknown(reason), Duration::ZERO)
            }
        };
        let ack = Ack {
            id: origin.id,
            outcome,
            delay,
        };
        if let Some(client) = self.clients.get_mut(&origin.client) {
            client.acknowledge(ack);
            self.write_or_close(context, origin.client);
        }
        Some(origin.app)
    }

    /// Hands over what found the queue full before; call it when messages have ended.
    pub(crate) fn retry_stalled(&mut self, context: &mut Context<'_>) {
        let stalled = |(number, client): (&u64, &Client)| client.is_stalled().then_some(*number);
        let numbers: Vec<u64> = self.clients.iter().filter_map(stalled).collect();
        for number in numbers {
            let Some(taken) = self.clients.get_mut(&number).and_then(Client::unstall) else {
                continue;
            };
            self.hand_over(context, number, taken);
            self.wait_for(context, number);
        }
        self.give_memory(context);
    }

    /// Ends what waited too long: held messages, clients without hello, receivers that are stuck.
    pub(crate) fn sweep(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        for (app, hold) in &mut self.holds {
            // Of one that has a receiver, the peer's credit bounds what is held.
            let Some(absent_since) = self.absences.get(app) else {
                continue;
            };
            let reason = Some(RefusalReason::NoReceiver);
            for held in hold.expired(now, *absent_since) {
                context.endpoint.finish_message(held.peer, held.id, reason);
            }
        }
        self.holds.retain(|_, hold| !hold.is_empty());
        let silent: Vec<u64> = self
            .clients
            .iter()
            .filter(|(_, client)| client.waits_for_hello_since(now) > HELLO_TIME)
            .map(|(number, _)| *number)
            .collect();
        for number in silent {
            self.close(context, number);
        }
        self.close_stuck_receivers(context);
        self.close_idle_senders(context);
        self.give_memory(context);
    }

    fn close_stuck_receivers(&mut self, context: &mut Context<'_>) {
        let waits = |(number, client): (&u64, &Client)| {
            (!client.stuck_for(context.now).is_zero()).then_some(*number)
        };
        let waiting: Vec<u64> = self.clients.iter().filter_map(waits).collect();
        for number in waiting {
            // A socket is not reported as writable until much of its buffer is free, but takes
            // something as soon as the client has read a little: slow is not stuck.
            self.write_or_close(context, number);
            let app = self.clients.get(&number).and_then(Client::receives);
            if let Some(app) = app {
                self.give_held(context, app);
            }
            let client = self.clients.get(&number);
            let Some(client) = client.filter(|c| c.stuck_for(context.now) >= STUCK_TIME) else {
                continue;
            };
            tracing::warn!(
                app = client.receives().map(|app| context.routes.name(app)),
                messages = client.queued_messages(),
                "closing a receiver that has taken nothing for {STUCK_TIME:?}"
            );
            self.close(context, number);
        }
    }

    /// Ends the clients of an application that is gone, and its held messages.
    pub(crate) fn forget_app(&mut self, context: &mut Context<'_>, app: AppId) {
        self.absences.remove(&app);
        if let Some(mut hold) = self.holds.remove(&app) {
            for held in hold.take_all() {
                let reason = Some(RefusalReason::UnknownApplication);
                context.endpoint.finish_message(held.peer, held.id, reason);
            }
        }
        // Senders stay until their messages have ended and get a refusal for new ones.
        let receives =
            |(number, client): (&u64, &Client)| (client.receives() == Some(app)).then_some(*number);
        let receivers: Vec<u64> = self.clients.iter().filter_map(receives).collect();
        for number in receivers {
            self.close(context, number);
        }
    }

    /// Forgets what was held of a peer that is gone.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        for hold in self.holds.values_mut() {
            hold.forget_peer(peer);
        }
    }

    pub(crate) fn figures(&self, app: AppId) -> AppMessages {
        self.figures.get(&app).copied().unwrap_or_default()
    }

    /// Attached senders and receivers of all applications.
    pub(crate) fn client_counts(&self) -> (u64, u64) {
        self.figures
            .values()
            .fold((0, 0), |(senders, receivers), figures| {
                (senders + figures.senders, receivers + figures.receivers)
            })
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn figures_of(&mut self, app: AppId) -> &mut AppMessages {
        self.figures.entry(app).or_default()
    }

    fn receivers_of(&self, app: AppId) -> Vec<u64> {
        let receives =
            |(number, client): (&u64, &Client)| (client.receives() == Some(app)).then_some(*number);
        let mut receivers: Vec<u64> = self.clients.iter().filter_map(receives).collect();
        receivers.sort_unstable();
        receivers
    }

    fn has_room(&self, number: u64, length: usize) -> bool {
        self.clients
            .get(&number)
            .is_some_and(|client| client.has_room(length))
    }

    /// Gives a message to every one of `receivers`, which have room.
    fn give(&mut self, context: &mut Context<'_>, receivers: &[u64], held: PendingMessage) {
        let shared = SharedMessage::new(held);
        for number in receivers {
            if let Some(client) = self.clients.get_mut(number) {
                client.enqueue(context.now, shared.clone());
            }
        }
        // Only the queues hold it from here on.
        drop(shared);
        for number in receivers {
            self.write_or_close(context, *number);
        }
    }

    /// Gives what was held to the receivers, as far as all of them have room.
    fn give_held(&mut self, context: &mut Context<'_>, app: AppId) {
        while let Some(length) = self.holds.get(&app).and_then(HoldQueue::first_length) {
            let receivers = self.receivers_of(app);
            if receivers.is_empty() || receivers.iter().any(|n| !self.has_room(*n, length)) {
                return;
            }
            if let Some(held) = self.holds.get_mut(&app).and_then(HoldQueue::pop) {
                self.give(context, &receivers, held);
            }
        }
        self.holds.remove(&app);
    }

    fn write_or_close(&mut self, context: &mut Context<'_>, number: u64) {
        if !self.write(context, number) {
            self.close(context, number);
        } else {
            self.wait_for(context, number);
        }
    }

    /// Waits for what client `number` can go on with; one that cannot be waited for is closed.
    fn wait_for(&mut self, context: &mut Context<'_>, number: u64) {
        let client = self.clients.get_mut(&number);
        let waited = client.map(|client| client.update_interest(context.epoll, number));
        if let Some(Err(error)) = waited {
            tracing::warn!(%error, "message socket: cannot wait for a client");
            self.close(context, number);
        }
    }

    /// Writes what waits for a client; `false` if it is gone.
    fn write(&mut self, context: &mut Context<'_>, number: u64) -> bool {
        let Some(client) = self.clients.get_mut(&number) else {
            return true;
        };
        let open = client.write(context.now, |peer, id| {
            context.endpoint.finish_message(peer, id, None);
        });
        open && !client.is_done()
    }

    /// Reads what a client sent, as much as it may per turn; `false` if it is gone.
    fn read(&mut self, context: &mut Context<'_>, number: u64) -> bool {
        let mut taken_bytes = 0;
        while taken_bytes < TAKEN_PER_TURN {
            if !self.may_read_on(number) {
                return true;
            }
            let Some(client) = self.clients.get_mut(&number) else {
                return true;
            };
            match client.read(context.now) {
                Progress::Hello(hello) => {
                    if !self.welcome(context, number, &hello) {
                        return false;
                    }
                }
                Progress::Message(taken) => {
                    taken_bytes += taken.bytes.len() + MESSAGE_COST;
                    self.hand_over(context, number, taken);
                }
                Progress::BadHello(reason, text) => {
                    tracing::warn!(why = text, "message socket: a connection is refused");
                    client.refuse(reason, &text);
                    return false;
                }
                Progress::Waiting => return !client.is_done(),
                Progress::Gone => return false,
            }
        }
        true
    }

    /// Answers a hello; `false` if it was refused.
    fn welcome(&mut self, context: &mut Context<'_>, number: u64, hello: &Hello) -> bool {
        let name = hello.app.as_str();
        let Some(client) = self.clients.get_mut(&number) else {
            return false;
        };
        let route = context.routes.named(name);
        let refusal = match route {
            _ if client.refusal().is_some() => client
                .refusal()
                .map(|(reason, text)| (reason, text.to_owned())),
            _ if self.draining => Some((HelloRefusal::Stopping, "the gateway stops".to_owned())),
            None => {
                let text = format!("there is no application `{name}`; `keiro show app` lists them");
                Some((HelloRefusal::UnknownApp, text))
            }
            Some(route) if route.config.class != DeliveryClass::Message => {
                let text = match route.config.class {
                    DeliveryClass::Stream => {
                        format!("`{name}` is of class stream; use its TCP listener")
                    }
                    _ => format!("`{name}` is of class datagram; use its UDP listener"),
                };
                Some((HelloRefusal::NotAvailable, text))
            }
            Some(route) if route.has_forward && hello.role == Role::Receive => {
                let text = format!("messages of `{name}` leave by its forward; remove that first");
                Some((HelloRefusal::NotAvailable, text))
            }
            Some(_) => None,
        };
        if let Some((reason, text)) = refusal {
            client.refuse(reason, &text);
            return false;
        }
        let Some(app) = route.map(|route| route.config.id) else {
            return false;
        };
        client.welcome(context.now, app, hello);
        let figures = self.figures_of(app);
        match hello.role {
            Role::Send => figures.senders += 1,
            Role::Receive => figures.receivers += 1,
        }
        if !self.write(context, number) {
            return false;
        }
        if hello.role == Role::Receive {
            self.absences.remove(&app);
            self.give_held(context, app);
        }
        self.clients.contains_key(&number)
    }

    /// Gives a sender's message to the core.
    fn hand_over(&mut self, context: &mut Context<'_>, number: u64, taken: ClientMessage) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        let Some(app) = client.sends() else {
            return;
        };
        let ClientMessage { id, made, bytes } = taken;
        let refusal = match context.routes.get(app) {
            _ if self.draining => RefusedReason::Stopping,
            None => RefusedReason::AppRemoved,
            Some(_) if !client.expect_ack(id) => RefusedReason::DuplicateId,
            Some(route) => {
                let (now, peer) = (context.now, route.peer);
                match context
                    .endpoint
                    .send_message(now, made, peer, route.config.id, bytes)
                {
                    Ok(message) => {
                        if client.unacked() >= UNACKED_MAX {
                            client.pause_reading();
                        }
                        let origin = MessageOrigin {
                            client: number,
                            id,
                            app,
                        };
                        self.unfinished.insert((peer, message), origin);
                        return;
                    }
                    Err((keiro_core::SendError::QueueFull, bytes)) => {
                        client.forget_ack(id);
                        client.stall(ClientMessage { id, made, bytes });
                        return;
                    }
                    Err((error, _)) => {
                        client.forget_ack(id);
                        match error {
                            keiro_core::SendError::Length { .. } => RefusedReason::TooLong,
                            keiro_core::SendError::UnknownPeer => RefusedReason::PeerGone,
                            _ => RefusedReason::AppRemoved,
                        }
                    }
                }
            }
        };
        client.refuse_message(id, refusal);
        self.figures_of(app).refused += 1;
        // What cannot be written now leaves when the socket has room.
        let _ = self.write(context, number);
    }

    fn close(&mut self, context: &mut Context<'_>, number: u64) {
        let Some(mut client) = self.clients.remove(&number) else {
            return;
        };
        if let Some(app) = client.sends() {
            self.figures_of(app).senders -= 1;
        }
        let Some(app) = client.receives() else {
            return;
        };
        self.figures_of(app).receivers -= 1;
        if self.receivers_of(app).is_empty() && context.routes.get(app).is_some() {
            self.absences.insert(app, context.now);
        }
        for shared in client.take_queue() {
            let Some((held, received)) = shared.last() else {
                continue;
            };
            let (peer, id) = (held.peer, held.id);
            // Messages that no receiver got whole wait for another.
            let refused = match context.routes.get(app).is_some() {
                _ if received => None,
                false => Some(RefusalReason::UnknownApplication),
                true => match self.deliver(context, app, held) {
                    None => continue,
                    Some(finished) => finished.refused,
                },
            };
            context.endpoint.finish_message(peer, id, refused);
        }
        self.give_held(context, app);
    }
}

impl Listener {
    fn is_local(&self) -> bool {
        !matches!(self, Self::Tls(_))
    }

    /// A client, and whether it may be one.
    fn accept(&self) -> io::Result<(Stream, bool)> {
        match self {
            Self::Unix { listener, path } => {
                let stream = limit::outside_reserve(listener.accept()?.0)?;
                let group = owning_group(path);
                let client = PeerCredentials::of(&stream);
                let allowed = client.is_ok_and(|c| access::is_allowed(&c, group));
                Ok((Stream::Unix(stream), allowed))
            }
            Self::Tls(attached) => Ok((Stream::Unix(attached.accept()?), true)),
            Self::Tcp(listener) => {
                let stream = limit::outside_reserve(listener.accept()?.0)?;
                Ok((Stream::Tcp(stream), true))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { listener, .. } => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
            Self::Tls(attached) => attached.as_fd(),
        }
    }
}

/// The reason of a refusal, as a client gets it. `stops`: the gateway does, and closes all sessions.
fn refused_reason(reason: RefusalReason, stops: bool) -> RefusedReason {
    match reason {
        RefusalReason::NotSent if stops => RefusedReason::Stopping,
        RefusalReason::NotSent => RefusedReason::PeerGone,
        RefusalReason::UnknownApplication => RefusedReason::UnknownToPeer,
        RefusalReason::ReceiverFull => RefusedReason::QueueFull,
        RefusalReason::NoReceiver => RefusedReason::NoReceiver,
        RefusalReason::Other => RefusedReason::PeerRefused,
    }
}

/// The reason why an outcome is unknown, as a client gets it.
fn unknown_reason(cause: UnknownCause, stops: bool) -> UnknownReason {
    match cause {
        UnknownCause::PeerRestarted => UnknownReason::PeerRestarted,
        UnknownCause::PeerRemoved if stops => UnknownReason::Stopping,
        UnknownCause::PeerRemoved => UnknownReason::PeerGone,
    }
}
