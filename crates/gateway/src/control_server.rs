//! The control socket: request lines in, response lines out, events to those who monitor.
//!
//! Knows clients and lines; what requests mean is the daemon's.

use std::{
    collections::BTreeMap,
    io,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
};

use keiro_control::protocol::{
    ErrorCode, ErrorResponse, Event, EventKind, LineDecoder, REQUEST_BYTES_MAX, Request, Response,
    Timestamp, encode_line,
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
    next: u64,
    buffer: Vec<u8>,
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
    /// Events that found the client's queue full.
    lost: u64,
}

/// Clients of each socket at once; further ones get an error. Those that only read take no place of the others.
const CLIENTS_MAX: usize = 64;
/// Events that wait for one client, bytes; more are counted and lost.
const EVENTS_BYTES_MAX: usize = 1 << 20;
/// Responses that wait: no further request is answered at more.
const OUTPUT_BYTES_MAX: usize = 64 << 20;

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
        } else if served >= CLIENTS_MAX {
            let message = format!("{CLIENTS_MAX} clients are served already");
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
            lost: 0,
        };
        self.clients.insert(number, client);
    }

    /// Serves client `number`; `answer` is asked for each of its requests.
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
        let mut open = true;
        if readable {
            open = match client.connection.read(&mut self.buffer) {
                Some(bytes) => {
                    client.lines.push(bytes);
                    client.handle_lines(&mut answer)
                }
                None => false,
            };
        }
        // What was answered before the end still leaves, if it goes at once.
        if !client.connection.flush(epoll) || !open {
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
            if client.monitors {
                client.publish(&line);
                client.connection.flush(epoll)
            } else {
                true
            }
        });
    }
}

impl Client {
    /// Answers what is there; `false`: the client is to be closed.
    fn handle_lines(&mut self, answer: &mut impl FnMut(&Request) -> Response) -> bool {
        loop {
            let response = match self.lines.next_line() {
                Ok(None) => return true,
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
                    return false;
                }
            };
            self.connection.push(&encode_line(&response));
            if self.connection.waiting() > OUTPUT_BYTES_MAX {
                return false;
            }
        }
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

        fn turn(&mut self) {
            let mut ready = ReadyList::new(8);
            self.epoll
                .wait(&mut ready, Some(Duration::from_secs(1)))
                .unwrap();
            for event in ready.iter() {
                let answer = |request: &Request| match request {
                    Request::Monitor {} => Response::Monitoring {},
                    _ => Response::Done {},
                };
                self.server
                    .serve(&self.epoll, event.token, event.readable, answer);
            }
        }

        fn ask(&mut self, client: &mut BufReader<UnixStream>, line: &str) -> String {
            writeln!(client.get_mut(), "{line}").unwrap();
            self.turn();
            let mut answer = String::new();
            client.read_line(&mut answer).unwrap();
            answer
        }
    }

    #[test]
    fn requests_are_answered_and_garbage_is_explained() {
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
    fn clients_that_only_read_take_no_place_of_the_others() {
        let mut served = Served::new();
        let readers: Vec<_> = (0..=CLIENTS_MAX)
            .map(|_| served.connect_to(Rights::Read))
            .collect();
        assert_eq!(served.server.clients(), CLIENTS_MAX);
        let mut client = served.connect();
        assert_eq!(
            served.ask(&mut client, r#"{"request": "status"}"#),
            "{\"response\":\"done\"}\n"
        );
        drop(readers);
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
