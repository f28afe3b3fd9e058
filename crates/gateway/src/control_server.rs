//! The control socket: request lines in, response lines out, events to those who monitor.
//!
//! Knows clients and lines; what requests mean is the daemon's.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    time::Instant as Stopwatch,
};

use keiro_control::protocol::{
    ErrorCode, ErrorResponse, Event, EventKind, LineDecoder, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX,
    Request, Response, Timestamp, encode_line,
};
use keiro_linux::{
    acceptor::Acceptor,
    connection::Connection,
    epoll::Epoll,
    unix::{PeerCredentials, owning_group},
};

use crate::access;

/// The control socket, the one for programs that may only look, and the clients of both.
pub(crate) struct ControlServer {
    sockets: Vec<ControlSocket>,
    clients: BTreeMap<u64, Client>,
    readers: Readers,
    next: u64,
    buffer: Vec<u8>,
}

/// Clients that only read and wait for their turn. They get half of the thread's time at most: after each answer they
/// wait as long as it took.
#[derive(Default)]
struct Readers {
    turns: VecDeque<u64>,
    /// `None`: no answer yet.
    rest_until: Option<Stopwatch>,
}

struct ControlSocket {
    listener: Acceptor<UnixListener>,
    path: PathBuf,
    rights: Rights,
}

/// What clients of a socket may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    All,
    /// What [`Request::only_reads`].
    Read,
}

struct Client {
    rights: Rights,
    connection: Connection<UnixStream>,
    lines: LineDecoder,
    monitors: bool,
    /// It is in [`Readers::turns`].
    has_turn: bool,
    /// Events that found the client's queue full.
    lost: u64,
}

/// Clients at once; further ones get an error. Those that only read take no place of the others.
const CLIENTS_MAX: usize = 64;
/// Clients that only read. Ours: `keiro web` has three connections.
const READERS_MAX: usize = 16;
/// Events that wait for one client, bytes; more are counted and lost.
const EVENTS_BYTES_MAX: usize = 1 << 20;
/// Bytes that wait for all clients that only read; beyond, the one with most of them is closed. Ours: two of the longest
/// answers.
const READERS_BYTES_MAX: usize = 2 * RESPONSE_BYTES_MAX;

impl Rights {
    fn clients_max(self) -> usize {
        match self {
            Self::All => CLIENTS_MAX,
            Self::Read => READERS_MAX,
        }
    }
}

impl Readers {
    /// When the next turn is due; `None`: nothing waits.
    fn due(&self) -> Option<Stopwatch> {
        self.turns.front()?;
        Some(self.rest_until.unwrap_or_else(Stopwatch::now))
    }

    fn poll(&mut self, now: Stopwatch) -> Option<u64> {
        match self.rest_until.is_none_or(|until| until <= now) {
            true => self.turns.pop_front(),
            false => None,
        }
    }

    fn on_turn(&mut self, began: Stopwatch, ended: Stopwatch) {
        self.rest_until = Some(ended + ended.saturating_duration_since(began));
    }
}

impl ControlServer {
    /// Takes a listener over; it is `listener_token` in the epoll set.
    pub(crate) fn new(
        epoll: &Epoll,
        listener: UnixListener,
        path: PathBuf,
        listener_token: u64,
    ) -> io::Result<Self> {
        let listener = Acceptor::new(epoll, listener, listener_token, "control socket")?;
        let socket = ControlSocket {
            listener,
            path,
            rights: Rights::All,
        };
        Ok(Self {
            sockets: vec![socket],
            clients: BTreeMap::new(),
            readers: Readers::default(),
            next: 0,
            buffer: Vec::new(),
        })
    }

    /// Takes over a listener for clients that may only read; it is `listener_token` in the epoll set.
    pub(crate) fn listen_readonly(
        &mut self,
        epoll: &Epoll,
        listener: UnixListener,
        path: PathBuf,
        listener_token: u64,
    ) -> io::Result<()> {
        let listener = Acceptor::new(epoll, listener, listener_token, "read-only control socket")?;
        self.sockets.push(ControlSocket {
            listener,
            path,
            rights: Rights::Read,
        });
        Ok(())
    }

    /// How many clients there are.
    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Lets a listener that rests accept again.
    pub(crate) fn rearm(&mut self, epoll: &Epoll) {
        for socket in &mut self.sockets {
            socket.listener.rearm(epoll);
        }
    }

    /// Accepts waiting clients; `token` makes a client's token from its number.
    pub(crate) fn accept(&mut self, epoll: &Epoll, token: impl Fn(u64) -> u64) {
        for index in 0..self.sockets.len() {
            while let Some((stream, _)) = self.sockets[index]
                .listener
                .accept(epoll, UnixListener::accept)
            {
                self.admit(epoll, index, stream, &token);
            }
        }
    }

    fn admit(
        &mut self,
        epoll: &Epoll,
        index: usize,
        stream: UnixStream,
        token: impl Fn(u64) -> u64,
    ) {
        let socket = &self.sockets[index];
        let (rights, group) = (socket.rights, owning_group(&socket.path));
        let allowed = PeerCredentials::of(&stream).is_ok_and(|c| access::is_allowed(&c, group));
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let number = self.next;
        self.next += 1;
        let Ok(mut connection) = Connection::new(epoll, token(number), stream) else {
            return;
        };
        let served = self.clients.values();
        let served = served.filter(|client| client.rights == rights).count();
        let refusal = if !allowed {
            let hint = "only root, the gateway's user and members of the socket's group may";
            Some(ErrorResponse::new(
                ErrorCode::Forbidden,
                "not permitted",
                hint,
            ))
        } else if served >= rights.clients_max() {
            let message = format!("{} clients are served already", rights.clients_max());
            Some(ErrorResponse::new(
                ErrorCode::Busy,
                message,
                "close some of them",
            ))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            connection.push(&encode_line(&Response::Error(refusal)));
            connection.flush(epoll);
            return;
        }
        let client = Client {
            rights,
            connection,
            lines: LineDecoder::new(REQUEST_BYTES_MAX),
            monitors: false,
            has_turn: false,
            lost: 0,
        };
        self.clients.insert(number, client);
    }

    /// Serves client `number`; `answer` is asked for each of its requests. Those of a client that only reads may have to
    /// wait for [`serve_readers`](Self::serve_readers).
    pub(crate) fn serve(
        &mut self,
        epoll: &Epoll,
        number: u64,
        readable: bool,
        mut answer: impl FnMut(&Request) -> Response,
    ) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        // Before a client's turn its end is all that is reported as input.
        let has_ended = client.has_turn && readable;
        if has_ended || !client.connection.flush(epoll) {
            self.clients.remove(&number);
        } else if client.connection.waiting() > 0 {
            client.connection.set_reading(epoll, false);
        } else if client.has_turn {
            // Its events have left.
        } else if client.rights == Rights::Read {
            client.has_turn = true;
            client.connection.set_reading(epoll, false);
            self.readers.turns.push_back(number);
            self.serve_readers(epoll, answer);
        } else if !client.serve_all(epoll, readable, &mut self.buffer, &mut answer) {
            self.clients.remove(&number);
        }
    }

    /// When [`serve_readers`](Self::serve_readers) is to be called; `None`: there is nothing to do.
    pub(crate) fn readers_due(&self) -> Option<Stopwatch> {
        self.readers.due()
    }

    /// Answers clients that only read, one request in a turn, as far as they may have the thread's time now.
    pub(crate) fn serve_readers(
        &mut self,
        epoll: &Epoll,
        mut answer: impl FnMut(&Request) -> Response,
    ) {
        while let Some(number) = self.readers.poll(Stopwatch::now()) {
            let began = Stopwatch::now();
            let Some(client) = self.clients.get_mut(&number) else {
                continue;
            };
            client.has_turn = false;
            match client.serve_one(epoll, &mut self.buffer, &mut answer) {
                None => {
                    self.clients.remove(&number);
                }
                // There may be more.
                Some(true) if client.connection.waiting() == 0 => {
                    client.has_turn = true;
                    self.readers.turns.push_back(number);
                }
                Some(true) => {}
                Some(false) => client.connection.set_reading(epoll, true),
            }
            self.readers.on_turn(began, Stopwatch::now());
            self.bound_readers();
        }
    }

    /// Closes the client that leaves most of its answers unread where they are too many.
    fn bound_readers(&mut self) {
        let readers = self.clients.iter();
        let readers = readers.filter(|(_, client)| client.rights == Rights::Read);
        let waiting = readers.map(|(number, client)| (client.connection.waiting(), *number));
        let most = waiting.clone().max();
        if waiting.map(|(bytes, _)| bytes).sum::<usize>() > READERS_BYTES_MAX
            && let Some((_, number)) = most
        {
            self.clients.remove(&number);
        }
    }

    /// Sends an event to all clients that monitor.
    pub(crate) fn publish(&mut self, epoll: &Epoll, event: &Event) {
        if !self.clients.values().any(|client| client.monitors) {
            return;
        }
        let line = encode_line(event);
        self.clients.retain(|_, client| {
            if !client.monitors {
                return true;
            }
            client.publish(&line);
            let is_open = client.connection.flush(epoll);
            if client.connection.waiting() == 0 && !client.has_turn {
                client.connection.set_reading(epoll, true);
            }
            is_open
        });
    }
}

impl Client {
    /// Answers what has come, and reads more if `readable`; `false`: the client is to be closed.
    fn serve_all(
        &mut self,
        epoll: &Epoll,
        readable: bool,
        buffer: &mut Vec<u8>,
        answer: &mut impl FnMut(&Request) -> Response,
    ) -> bool {
        let mut reads = readable;
        // While an answer waits for its reader no other one is made.
        while self.connection.waiting() == 0 {
            match self.answer_next(epoll, answer) {
                None => return false,
                Some(true) => {}
                Some(false) if !std::mem::take(&mut reads) => break,
                Some(false) => match self.connection.read(buffer) {
                    Some(bytes) => self.lines.push(bytes),
                    None => return false,
                },
            }
        }
        let reads = self.connection.waiting() == 0;
        self.connection.set_reading(epoll, reads);
        true
    }

    /// Answers one request; whether there was one. `None`: the client is to be closed.
    fn serve_one(
        &mut self,
        epoll: &Epoll,
        buffer: &mut Vec<u8>,
        answer: &mut impl FnMut(&Request) -> Response,
    ) -> Option<bool> {
        if self.answer_next(epoll, answer)? {
            return Some(true);
        }
        let bytes = self.connection.read(buffer)?;
        let is_empty = bytes.is_empty();
        self.lines.push(bytes);
        // Part of a line may have come, and the rest be there.
        Some(self.answer_next(epoll, answer)? || !is_empty)
    }

    /// Answers the next request that has come; whether there was one. `None`: the client is to be closed.
    fn answer_next(
        &mut self,
        epoll: &Epoll,
        answer: &mut impl FnMut(&Request) -> Response,
    ) -> Option<bool> {
        let response = match self.lines.next_line() {
            Ok(None) => return Some(false),
            Ok(Some(line)) => match Request::parse(line) {
                Ok(_) if self.monitors => {
                    let message = "this connection monitors";
                    let hint = "open another one for requests";
                    Response::Error(ErrorResponse::new(ErrorCode::BadRequest, message, hint))
                }
                Ok(request) if self.rights == Rights::Read && !request.only_reads() => {
                    let message = "this socket answers what only reads";
                    let hint = "ask at the control socket; its group may";
                    Response::Error(ErrorResponse::new(ErrorCode::Forbidden, message, hint))
                }
                Ok(request) => {
                    let response = answer(&request);
                    self.monitors = matches!(response, Response::Monitoring {});
                    response
                }
                Err(error) => Response::Error(error),
            },
            Err(error) => {
                let code = ErrorCode::BadRequest;
                let error = ErrorResponse::new(code, error.to_string(), "");
                self.connection.push(&encode_line(&Response::Error(error)));
                // It leaves if it goes at once.
                self.connection.flush(epoll);
                return None;
            }
        };
        self.connection.push(&encode_line(&response));
        self.connection.flush(epoll).then_some(true)
    }

    fn publish(&mut self, line: &[u8]) {
        if self.connection.waiting() + line.len() > EVENTS_BYTES_MAX {
            self.lost += 1;
            return;
        }
        if self.lost > 0 {
            let notice = Event {
                time: Timestamp(std::time::SystemTime::now()),
                kind: EventKind::EventsLost { count: self.lost },
            };
            self.connection.push(&encode_line(&notice));
            self.lost = 0;
        }
        self.connection.push(line);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        time::Duration,
    };

    use keiro_linux::epoll::ReadyList;

    use super::*;

    /// More than a socket takes.
    const LONG_BYTES: usize = 8 << 20;

    struct Served {
        epoll: Epoll,
        server: ControlServer,
        _directory: tempfile::TempDir,
    }

    impl Served {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("control.sock");
            let listener = keiro_linux::unix::listen(&path, None).unwrap();
            let epoll = Epoll::new().unwrap();
            let mut server = ControlServer::new(&epoll, listener, path, u64::MAX).unwrap();
            let path = directory.path().join("readonly.sock");
            let listener = keiro_linux::unix::listen(&path, None).unwrap();
            server
                .listen_readonly(&epoll, listener, path, u64::MAX - 1)
                .unwrap();
            Self {
                epoll,
                server,
                _directory: directory,
            }
        }

        fn connect(&mut self) -> BufReader<UnixStream> {
            self.connect_to(Rights::All)
        }

        fn connect_to(&mut self, rights: Rights) -> BufReader<UnixStream> {
            let mut sockets = self.server.sockets.iter();
            let socket = sockets.find(|socket| socket.rights == rights).unwrap();
            let stream = UnixStream::connect(&socket.path).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            self.server.accept(&self.epoll, |number| number);
            BufReader::new(stream)
        }

        /// How many requests were answered.
        fn turn(&mut self) -> usize {
            let mut ready = ReadyList::new(64);
            let until = Stopwatch::now() + Duration::from_millis(10);
            let until = self.server.readers_due().unwrap_or(until);
            let left = until.saturating_duration_since(Stopwatch::now());
            self.epoll.wait(&mut ready, Some(left)).unwrap();
            let mut answered = 0;
            let mut answer = |request: &Request| {
                answered += 1;
                match request {
                    Request::Monitor {} => Response::Monitoring {},
                    Request::Explain { .. } => Response::Error(ErrorResponse::new(
                        ErrorCode::Internal,
                        "x".repeat(LONG_BYTES),
                        "",
                    )),
                    _ => Response::Done {},
                }
            };
            for event in ready.iter() {
                self.server
                    .serve(&self.epoll, event.token, event.readable, &mut answer);
            }
            self.server.serve_readers(&self.epoll, &mut answer);
            answered
        }

        fn waiting(&self) -> usize {
            let clients = self.server.clients.values();
            clients.map(|client| client.connection.waiting()).sum()
        }

        fn ask(&mut self, client: &mut BufReader<UnixStream>, line: &str) -> String {
            writeln!(client.get_mut(), "{line}").unwrap();
            client.get_mut().set_nonblocking(true).unwrap();
            let mut answer = String::new();
            loop {
                self.turn();
                match client.read_line(&mut answer) {
                    Ok(_) => break,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            client.get_mut().set_nonblocking(false).unwrap();
            answer
        }
    }

    #[test]
    fn garbage_requests_get_an_explanation() {
        let mut served = Served::new();
        let mut client = served.connect();
        assert_eq!(
            served.ask(&mut client, r#"{"request": "status"}"#),
            "{\"response\":\"done\"}\n"
        );
        let answer = served.ask(&mut client, "what?");
        assert!(answer.contains("bad_request"), "{answer}");
        assert_eq!(
            served.ask(&mut client, r#"{"request": "plan"}"#),
            "{\"response\":\"done\"}\n"
        );
    }

    #[test]
    fn the_read_only_socket_refuses_what_changes_the_gateway() {
        let mut served = Served::new();
        let mut client = served.connect_to(Rights::Read);
        for refused in [
            r#"{"request": "reload"}"#,
            r#"{"request": "apply"}"#,
            r#"{"request": "assign", "app": "A3", "path": "path2"}"#,
            r#"{"request": "follow_registry"}"#,
            r#"{"request": "qlog", "peer": "osaka"}"#,
        ] {
            let answer = served.ask(&mut client, refused);
            assert!(answer.contains("forbidden"), "{refused}: {answer}");
        }
        let done = "{\"response\":\"done\"}\n";
        for answered in ["status", "plan"] {
            let line = format!(r#"{{"request": "{answered}"}}"#);
            assert_eq!(served.ask(&mut client, &line), done, "{answered}");
        }
        let mut client = served.connect();
        assert_eq!(served.ask(&mut client, r#"{"request": "reload"}"#), done);
    }

    #[test]
    fn read_only_clients_have_their_own_limit() {
        let mut served = Served::new();
        let readers: Vec<_> = (0..=READERS_MAX)
            .map(|_| served.connect_to(Rights::Read))
            .collect();
        assert_eq!(served.server.clients(), READERS_MAX);
        let mut client = served.connect();
        assert_eq!(
            served.ask(&mut client, r#"{"request": "status"}"#),
            "{\"response\":\"done\"}\n"
        );
        drop(readers);
    }

    #[test]
    fn a_client_that_leaves_answers_unread_gets_no_further_one_until_it_has_read() {
        for rights in [Rights::All, Rights::Read] {
            let mut served = Served::new();
            let mut client = served.connect_to(rights);
            let requests = "{\"request\": \"explain\", \"app\": \"A\"}\n".repeat(3);
            client.get_mut().write_all(requests.as_bytes()).unwrap();
            while served.waiting() == 0 {
                served.turn();
            }
            // What would come would come at once.
            assert_eq!((0..5).map(|_| served.turn()).sum::<usize>(), 0);
            let reader = std::thread::spawn(move || {
                let mut lines = (&mut client).lines();
                let read = (0..3).map(|_| lines.next().unwrap().unwrap().len());
                read.min()
            });
            while !reader.is_finished() {
                served.turn();
            }
            let shortest = reader.join().unwrap().unwrap();
            assert!(shortest > LONG_BYTES, "{shortest}");
            assert_eq!(served.waiting(), 0);
        }
    }

    #[test]
    fn clients_that_only_read_cannot_make_the_gateway_keep_more_than_a_few_answers() {
        let mut served = Served::new();
        let mut clients: Vec<_> = (0..READERS_MAX)
            .map(|_| served.connect_to(Rights::Read))
            .collect();
        for client in &mut clients {
            writeln!(client.get_mut(), r#"{{"request": "explain", "app": "A"}}"#).unwrap();
        }
        while served.server.clients() > READERS_BYTES_MAX / LONG_BYTES {
            served.turn();
            let waiting = served.waiting();
            assert!(waiting <= READERS_BYTES_MAX, "{waiting}");
        }
        let mut client = served.connect_to(Rights::Read);
        let done = "{\"response\":\"done\"}\n";
        assert_eq!(served.ask(&mut client, r#"{"request": "status"}"#), done);
    }

    #[test]
    fn clients_that_only_read_have_one_request_answered_and_wait_as_long_as_that_took() {
        let mut served = Served::new();
        let mut client = served.connect_to(Rights::Read);
        let requests = "{\"request\": \"plan\"}\n".repeat(100);
        client.get_mut().write_all(requests.as_bytes()).unwrap();
        let mut answered = 0;
        while answered < 100 {
            answered += served.turn();
        }
        for _ in 0..100 {
            let mut line = String::new();
            client.read_line(&mut line).unwrap();
            assert_eq!(line, "{\"response\":\"done\"}\n");
        }
        let mut readers = Readers::default();
        readers.turns.extend([1, 2]);
        let began = Stopwatch::now();
        assert_eq!(readers.poll(began), Some(1));
        let ended = began + Duration::from_secs(3);
        readers.on_turn(began, ended);
        let free = ended + Duration::from_secs(3);
        assert_eq!(readers.due(), Some(free));
        assert_eq!(readers.poll(ended), None);
        assert_eq!(readers.poll(free), Some(2));
        assert_eq!(readers.due(), None);
    }

    #[test]
    fn monitors_get_events_and_slow_ones_learn_what_they_missed() {
        let mut served = Served::new();
        let mut client = served.connect();
        served.ask(&mut client, r#"{"request": "monitor"}"#);
        let answer = served.ask(&mut client, r#"{"request": "status"}"#);
        assert!(answer.contains("bad_request"), "{answer}");
        let event = Event {
            time: Timestamp(std::time::SystemTime::UNIX_EPOCH),
            kind: EventKind::Started {
                version: "x".repeat(10_000),
            },
        };
        for _ in 0..200 {
            served.server.publish(&served.epoll, &event);
        }
        let mut seen = 0;
        let mut lost = None;
        while seen + lost.unwrap_or(0) < 201 {
            if lost.is_none() {
                // Makes the notice come once there is room.
                served.server.publish(&served.epoll, &event);
            }
            let mut line = String::new();
            client.read_line(&mut line).unwrap();
            match serde_json::from_str::<Event>(&line).unwrap().kind {
                EventKind::EventsLost { count } => lost = Some(count),
                _ => seen += 1,
            }
            if lost.is_some() {
                break;
            }
        }
        assert!(lost.is_some_and(|lost| lost > 0), "{seen} {lost:?}");
    }

    #[test]
    fn a_line_that_is_too_long_ends_the_connection() {
        let mut served = Served::new();
        let mut client = served.connect();
        let long = vec![b'x'; REQUEST_BYTES_MAX + 1];
        let mut rest = &long[..];
        client.get_mut().set_nonblocking(true).unwrap();
        while !rest.is_empty() && served.server.clients() == 1 {
            match client.get_mut().write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            served.turn();
        }
        while served.server.clients() == 1 {
            served.turn();
        }
        client.get_mut().set_nonblocking(false).unwrap();
        let mut answer = String::new();
        client.read_line(&mut answer).unwrap();
        assert!(answer.contains("longer than"), "{answer}");
    }
}
