//! The TLS thread: accepts connections, moves bytes between clients and the message socket, and ends what
//! takes too long.
//!
//! Handshakes and encryption cost time here and none of the data thread's. The work of a turn is bounded per
//! connection, and connections are bounded in all, per client and per network.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TryRecvError},
    },
    time::Duration,
};

use keiro_control::config::MESSAGE_TLS_CONNECTIONS_MAX;
use keiro_core::Instant;
use keiro_linux::{
    acceptor::Acceptor,
    epoll::{Epoll, Interest, ReadyList, Waker},
    tcp::Listener,
};

use super::{
    Figures, Settings,
    attach::Attach,
    clients::{ClientSettings, Clients},
    connection::{Connection, ConnectionContext, OPENING_TIME, Progress, STUCK_TIME},
    refusals::{Refusal, Refusals},
    sources::Sources,
    token::{self, Token},
};
use crate::data;

/// From the control thread.
pub(super) enum Command {
    /// Another configuration.
    ApplySettings(Settings),
    /// No client is permitted any more.
    Close,
    /// What is counted.
    Figures(SyncSender<Figures>),
}

pub(super) struct Server {
    epoll: Epoll,
    wake: Arc<Waker>,
    commands: Receiver<Command>,
    attach: Attach,
    listeners: BTreeMap<u64, Acceptor<Listener>>,
    tls: Arc<rustls::ServerConfig>,
    clients: Clients,
    sources: Sources,
    refusals: Refusals,
    /// By number, the oldest first.
    connections: BTreeMap<u64, Connection>,
    next: u64,
    next_sweep: Instant,
}

/// Connections that have not been accepted, of all networks. At more, the network that has most loses its
/// oldest. Ours.
const OPENING_MAX: usize = 64;
/// Time that a refused client has to read why.
const CLOSING_TIME: Duration = Duration::from_secs(2);
/// Connections accepted per turn.
const ACCEPTS_PER_TURN: usize = 8;
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const READY_MAX: usize = 64;
/// How long clients may take the last of what is for them when the gateway stops. Ours.
const FINISH_TIME: Duration = Duration::from_secs(1);

impl Server {
    pub(super) fn new(
        wake: Arc<Waker>,
        commands: Receiver<Command>,
        attach: Attach,
        listeners: Vec<Listener>,
        settings: Settings,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&*wake, token::WAKE, Interest::Read)?;
        let mut acceptors = BTreeMap::new();
        for (number, listener) in (1..).zip(listeners) {
            let acceptor = Acceptor::new(&epoll, listener, token::listener(number), "message TLS")?;
            acceptors.insert(number, acceptor);
        }
        let mut clients = Clients::default();
        clients.apply_settings(settings.clients);
        Ok(Self {
            epoll,
            wake,
            commands,
            attach,
            listeners: acceptors,
            tls: settings.tls,
            clients,
            sources: Sources::default(),
            refusals: Refusals::default(),
            connections: BTreeMap::new(),
            next: 0,
            next_sweep: data::now() + SWEEP_INTERVAL,
        })
    }

    /// Serves until the control thread's end of the commands is gone.
    pub(super) fn run(mut self) {
        let mut ready = ReadyList::new(READY_MAX);
        loop {
            let now = data::now();
            let left = self.next_sweep.saturating_duration_since(now);
            if let Err(error) = self.epoll.wait(&mut ready, Some(left)) {
                tracing::error!(%error, "message TLS: stopped");
                return;
            }
            if !self.turn(data::now(), &ready) {
                return self.finish(&mut ready);
            }
        }
    }

    /// The message socket has closed: what it said last still goes to the clients that take it.
    fn finish(&mut self, ready: &mut ReadyList) {
        self.listeners.clear();
        if self.epoll.remove(&*self.wake).is_err() {
            return;
        }
        let opening: Vec<u64> = self.opening().map(|(number, _)| *number).collect();
        for number in opening {
            self.remove(number);
        }
        let until = data::now() + FINISH_TIME;
        loop {
            let left = until.saturating_duration_since(data::now());
            if self.connections.is_empty() || left.is_zero() {
                return;
            }
            if self.epoll.wait(ready, Some(left)).is_err() {
                return;
            }
            self.turn(data::now(), ready);
        }
    }

    /// Serves what is ready; `false`: the control thread has gone.
    pub(super) fn turn(&mut self, now: Instant, ready: &ReadyList) -> bool {
        for event in ready.iter() {
            match Token::of(event.token) {
                Token::Wake => {
                    self.wake.reset();
                    if !self.take_commands(now) {
                        return false;
                    }
                }
                Token::Listener(number) => self.accept(now, number),
                Token::Client(number) => self.serve(now, number, event.hangup.then_some(true)),
                Token::Gateway(number) => self.serve(now, number, event.hangup.then_some(false)),
            }
        }
        self.serve_held(now);
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP_INTERVAL;
            self.sweep(now);
        }
        debug_assert!(self.check_invariants());
        true
    }

    fn take_commands(&mut self, now: Instant) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::ApplySettings(settings)) => self.apply_settings(now, settings),
                Ok(Command::Close) => self.apply_client_settings(now, ClientSettings::default()),
                Ok(Command::Figures(reply)) => {
                    let figures = Figures {
                        clients: self.clients.figures(),
                        closed_connections: self.refusals.counts(),
                        opening_connections: self.opening().count() as u64,
                    };
                    // The control thread may have stopped waiting.
                    let _ = reply.try_send(figures);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Connections that the new settings do not permit are closed; the others do not notice.
    fn apply_settings(&mut self, now: Instant, settings: Settings) {
        self.tls = settings.tls;
        self.apply_client_settings(now, settings.clients);
    }

    fn apply_client_settings(&mut self, now: Instant, settings: ClientSettings) {
        self.clients.apply_settings(settings);
        let clients = &self.clients;
        let removed = self
            .connections
            .iter()
            .filter(|(_, one)| !one.is_permitted(clients));
        let removed: Vec<u64> = removed.map(|(number, _)| *number).collect();
        for number in removed {
            let why = "the configuration does not permit it any more";
            self.refuse(now, number, Refusal::Removed, why);
        }
    }

    fn accept(&mut self, now: Instant, number: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get_mut(&number) else {
                return;
            };
            let Some((stream, source)) = listener.accept(&self.epoll, Listener::accept) else {
                return;
            };
            if let Err(refused) = self.sources.begin(now, source.ip()) {
                let (refusal, why) = match refused {
                    super::sources::Refused::Opening => (
                        Refusal::Limit,
                        "its network opens too many connections at once",
                    ),
                    super::sources::Refused::Failures => (
                        Refusal::Failures,
                        "its network has failed too often; it may try again in some seconds",
                    ),
                };
                self.refusals.on_refused(now, refusal, source, None, why);
                continue;
            }
            self.make_room(now);
            if self.connections.len() >= MESSAGE_TLS_CONNECTIONS_MAX + OPENING_MAX {
                self.sources.end(source.ip());
                let why = "there are as many connections as there may be";
                self.refusals
                    .on_refused(now, Refusal::Limit, source, None, why);
                continue;
            }
            self.next += 1;
            let tls = Arc::clone(&self.tls);
            match Connection::new(now, self.next, stream, source, tls, &self.epoll) {
                Ok(connection) => drop(self.connections.insert(self.next, connection)),
                Err(error) => {
                    self.sources.end(source.ip());
                    let why = error.to_string();
                    self.refusals
                        .on_refused(now, Refusal::Failed, source, None, &why);
                }
            }
        }
    }

    /// Connections that are not accepted yet, or refused and on their way out.
    fn opening(&self) -> impl Iterator<Item = (&u64, &Connection)> {
        self.connections
            .iter()
            .filter(|(_, one)| one.opening_since().is_some() || one.closing_since().is_some())
    }

    fn make_room(&mut self, now: Instant) {
        if self.opening().count() < OPENING_MAX {
            return;
        }
        let of_network = |one: &Connection| self.sources.opening(one.source().ip());
        let most = self.opening().map(|(_, one)| of_network(one)).max();
        let oldest = self
            .opening()
            .find(|(_, one)| Some(of_network(one)) == most);
        if let Some(number) = oldest.map(|(number, _)| *number) {
            let why = "too many connections wait to be accepted, most of them of its network";
            self.refuse(now, number, Refusal::Limit, why);
        }
    }

    /// Serves a connection. `hangup`: of the client's side, or of the other.
    fn serve(&mut self, now: Instant, number: u64, hangup: Option<bool>) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if let Some(is_outer) = hangup {
            connection.on_hangup(is_outer);
        }
        let source = connection.source();
        let was_closing = connection.closing_since().is_some();
        let mut context = ConnectionContext {
            now,
            epoll: &self.epoll,
            clients: &mut self.clients,
            attach: &self.attach,
        };
        let turn = connection.turn(&mut context);
        let closing = connection.closing_since().is_some();
        let opened = connection.take_opening(false);
        let gone = connection.take_connected(false);
        if opened {
            self.sources.end(source.ip());
        }
        if let Some(client) = gone {
            self.on_client_gone(&client);
        }
        match turn {
            Progress::Open => {}
            Progress::Done => self.remove(number),
            Progress::Refused(refusal, why) => {
                self.note_refusal(now, number, refusal, &why);
                // One that gets an answer stays until it has read it.
                if was_closing || !closing {
                    self.remove(number);
                }
            }
        }
    }

    /// A client has gone while outcomes are to come: it is not connected, and few such connections are kept.
    fn on_client_gone(&mut self, client: &str) {
        let Some(account) = self.clients.account(client) else {
            return;
        };
        account.on_disconnected();
        let kept = account.connections_max();
        let gone = self
            .connections
            .iter()
            .filter(|(_, one)| one.client_gone() == Some(client));
        let gone: Vec<u64> = gone.map(|(number, _)| *number).collect();
        for number in &gone[..gone.len().saturating_sub(kept)] {
            self.remove(*number);
        }
    }

    /// Serves those whose messages waited for room, if there may be some.
    fn serve_held(&mut self, now: Instant) {
        if !self.clients.take_finished() {
            return;
        }
        let held = self.connections.iter().filter(|(_, one)| one.is_held());
        let held: Vec<u64> = held.map(|(number, _)| *number).collect();
        for number in held {
            self.serve(now, number, None);
        }
    }

    /// Ends what takes too long.
    fn sweep(&mut self, now: Instant) {
        for listener in self.listeners.values_mut() {
            listener.rearm(&self.epoll);
        }
        let mut late = Vec::new();
        for (number, one) in &self.connections {
            let lasts = |since: Option<Instant>, limit: Duration| {
                since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
            };
            if lasts(one.opening_since(), OPENING_TIME) {
                late.push((
                    *number,
                    Some((Refusal::Timeout, "it did not say in time what it wants")),
                ));
            } else if lasts(one.closing_since(), CLOSING_TIME) {
                late.push((*number, None));
            } else if one.stuck_for(now) >= STUCK_TIME {
                late.push((
                    *number,
                    Some((Refusal::Stuck, "it takes nothing of what waits for it")),
                ));
            }
        }
        for (number, refusal) in late {
            match refusal {
                Some((refusal, why)) => self.refuse(now, number, refusal, why),
                None => self.remove(number),
            }
        }
    }

    /// Closes a connection and says why in the log.
    fn refuse(&mut self, now: Instant, number: u64, refusal: Refusal, why: &str) {
        self.note_refusal(now, number, refusal, why);
        self.remove(number);
    }

    fn note_refusal(&mut self, now: Instant, number: u64, refusal: Refusal, why: &str) {
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        let source = connection.source();
        if refusal.is_failure() {
            self.sources.on_failure(now, source.ip());
        }
        let client = connection.client();
        self.refusals.on_refused(now, refusal, source, client, why);
        if let Some(account) = client.and_then(|client| self.clients.account(client)) {
            account.on_error(source, why);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(mut connection) = self.connections.remove(&number) else {
            return;
        };
        if connection.take_opening(true) {
            self.sources.end(connection.source().ip());
        }
        let client = connection.take_connected(true);
        if let Some(account) = client.and_then(|name| self.clients.account(&name)) {
            account.on_disconnected();
        }
        connection.release(&mut self.clients);
    }

    /// What is ready at once.
    #[cfg(test)]
    pub(super) fn wait(&self, ready: &mut ReadyList) {
        self.epoll.wait(ready, Some(Duration::ZERO)).unwrap();
    }

    /// What always holds.
    fn check_invariants(&self) -> bool {
        let opening = self.opening().count();
        let counting = self.connections.values();
        let counting = counting.filter(|one| one.counts_as_opening()).count();
        let counted = opening == counting && counting == self.sources.all_opening();
        let connected = |name: &str| {
            let of = self
                .connections
                .values()
                .filter(|one| one.client() == Some(name));
            of.count() as u64
        };
        let figures = self.clients.figures();
        let accounts = figures
            .iter()
            .all(|one| one.stats.open_connections == connected(&one.name));
        counted
            && accounts
            && self.connections.len() <= MESSAGE_TLS_CONNECTIONS_MAX + OPENING_MAX + 1
    }
}
