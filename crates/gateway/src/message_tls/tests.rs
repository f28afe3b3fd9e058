//! The TLS thread with clients of this process and a message socket that a test plays. Time is an argument.

mod hostile;
mod metering;

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::{Arc, mpsc::Sender},
};

use keiro_control::{
    config::Name,
    message_socket::{Answer, AnswerDecoder, Hello, RefusalReason, Role, VERSION, encode_token},
};
use keiro_core::Instant;
use keiro_linux::epoll::ReadyList;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, ServerName},
};
use socket2::SockRef;

use super::{clients::Permit, server::*, *};

/// A client's token, and another's.
const TOKEN: &str = "ZyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=";
const OTHER: &str = "AyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=";
const APP: &str = "A3";
/// Nothing here takes longer, on a busy machine either.
const LIMIT: Duration = Duration::from_secs(60);

struct Served {
    server: Server,
    commands: Sender<Command>,
    wake: Arc<Waker>,
    attached: Attached,
    address: SocketAddr,
    server_tls: Arc<ServerConfig>,
    client_tls: Arc<ClientConfig>,
    now: Instant,
}

/// A client with its own end of TLS.
struct Client {
    stream: TcpStream,
    tls: ClientConnection,
    /// What has come.
    plain: Vec<u8>,
    closed: bool,
}

fn permit() -> Permit {
    Permit {
        send: BTreeSet::from([APP.to_owned()]),
        receive: BTreeSet::from([APP.to_owned()]),
        connections_max: 4,
        messages_max: 8,
        bytes_max: 32 << 20,
    }
}

fn tls_configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

impl Served {
    fn new(clients: &[(&str, &str, Permit)]) -> Self {
        let (server_tls, client_tls) = tls_configs();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), Mode::Plain).unwrap();
        let address = listener.local();
        let (attach, attached) = attach::channel().unwrap();
        let wake = Arc::new(Waker::new().unwrap());
        let (commands, receiver) = channel();
        let settings = Settings {
            tls: Arc::clone(&server_tls),
            clients: ClientSettings::of(clients),
        };
        let listeners = vec![listener];
        let server = Server::new(Arc::clone(&wake), receiver, attach, listeners, settings);
        Self {
            server: server.unwrap(),
            commands,
            wake,
            attached,
            address,
            server_tls,
            client_tls,
            now: crate::data::now(),
        }
    }

    /// One client, `one`, with [`TOKEN`].
    fn with_one() -> Self {
        Self::new(&[("one", TOKEN, permit())])
    }

    fn turn(&mut self) {
        let mut ready = ReadyList::new(64);
        self.server.wait(&mut ready);
        assert!(self.server.turn(self.now, &ready));
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.turn();
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        Client {
            stream,
            tls: ClientConnection::new(Arc::clone(&self.client_tls), name).unwrap(),
            plain: Vec::new(),
            closed: false,
        }
    }

    /// Turns until `done` says so.
    #[track_caller]
    fn until(&mut self, client: &mut Client, what: &str, done: impl Fn(&Client) -> bool) {
        self.eventually(what, |served| {
            client.turn();
            served.turn();
            done(client)
        });
    }

    /// Turns until `done` says so.
    #[track_caller]
    fn eventually(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let began = std::time::Instant::now();
        while !done(self) {
            assert!(began.elapsed() < LIMIT, "never: {what}");
            thread::yield_now();
            self.turn();
        }
    }

    /// A client that was accepted, and the message socket's end of its connection.
    #[track_caller]
    fn attach(&mut self, token: &str, role: Role) -> (Client, UnixStream) {
        let mut client = self.connect();
        client.send(&opening(token, role, APP));
        let mut end = None;
        self.eventually("it is handed over", |served| {
            client.turn();
            end = served.attached.accept().ok();
            end.is_some()
        });
        let mut end = end.unwrap();
        let mut hello = vec![0; 9];
        end.read_exact(&mut hello).unwrap();
        let app = Name::new(APP).unwrap();
        assert_eq!(hello, Hello::new(role, app).encode());
        end.write_all(&Answer::Accepted.encode(VERSION)).unwrap();
        self.until(&mut client, "it is accepted", |client| {
            client.plain.len() == 8
        });
        client.plain.clear();
        end.set_nonblocking(true).unwrap();
        (client, end)
    }

    fn figures(&mut self) -> Figures {
        let (reply, figures) = sync_channel(1);
        self.commands.send(Command::Figures(reply)).unwrap();
        self.wake.wake();
        self.turn();
        figures.try_recv().unwrap()
    }

    fn closed(&mut self, reason: &str) -> u64 {
        self.figures().closed_connections[reason]
    }

    fn apply_settings(&mut self, clients: &[(&str, &str, Permit)]) {
        let settings = Settings {
            tls: Arc::clone(&self.server_tls),
            clients: ClientSettings::of(clients),
        };
        self.commands
            .send(Command::ApplySettings(settings))
            .unwrap();
        self.wake.wake();
        self.turn();
    }

    /// A message from `client` reaches the message socket, and its ack the client.
    #[track_caller]
    fn serves(&mut self, client: &mut Client, end: &mut UnixStream) {
        let bytes = message(77, b"still served");
        client.send(&bytes);
        let mut came = Vec::new();
        self.eventually("the message comes", |_| {
            client.turn();
            drain(end, &mut came);
            came.len() >= bytes.len()
        });
        assert_eq!(came, bytes);
        let before = client.plain.len();
        end.write_all(&ack(77, 0, 0)).unwrap();
        self.until(client, "the ack comes", |client| {
            client.plain.len() == before + 18
        });
    }
}

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).unwrap();
    }

    /// Moves what there is.
    fn turn(&mut self) {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.closed = true;
                    break;
                }
            }
        }
        match self.tls.read_tls(&mut self.stream) {
            Ok(0) => self.closed = true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.closed = true,
        }
        if self.tls.process_new_packets().is_err() {
            self.closed = true;
        }
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = self.tls.reader().read(&mut bytes) {
            self.plain.extend_from_slice(&bytes[..count]);
        }
    }

    /// The refusal that has come.
    fn refusal(&self) -> Option<(RefusalReason, String)> {
        match AnswerDecoder::default().decode(&mut &self.plain[..]) {
            Ok(Some(Answer::Refused { reason, text })) => Some((reason, text)),
            _ => None,
        }
    }
}

fn opening(token: &str, role: Role, app: &str) -> Vec<u8> {
    let mut bytes = encode_token(token).unwrap().to_vec();
    let app = Name::new(app).unwrap();
    bytes.extend_from_slice(&Hello::new(role, app).encode());
    bytes
}

fn message(id: u64, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_be_bytes()[..], &id.to_be_bytes(), body].concat()
}

fn ack(id: u64, outcome: u8, reason: u8) -> Vec<u8> {
    [&id.to_be_bytes()[..], &[outcome, reason], &[0; 8]].concat()
}

fn drain(end: &mut UnixStream, to: &mut Vec<u8>) {
    let mut bytes = [0; 64 << 10];
    while let Ok(count @ 1..) = end.read(&mut bytes) {
        to.extend_from_slice(&bytes[..count]);
    }
}

#[test]
fn a_client_is_attached_and_its_outcomes_come_back() {
    let mut served = Served::with_one();
    let (mut client, mut end) = served.attach(TOKEN, Role::Send);
    served.serves(&mut client, &mut end);
    let figures = served.figures();
    let one = &figures.clients[0];
    assert_eq!(
        (one.stats.open_connections, one.stats.sent_messages),
        (1, 1)
    );
    assert_eq!(
        (one.stats.delivered_messages, one.stats.unfinished_messages),
        (1, 0)
    );
    assert_eq!(one.last_address, Some(client.stream.local_addr().unwrap()));
    // The client leaves, and so does its end at the message socket.
    drop(client);
    served.eventually("the message socket sees it", |_| {
        matches!(end.read(&mut [0; 1]), Ok(0))
    });
    drop(end);
    served.eventually("it is gone", |served| {
        served.figures().clients[0].stats.open_connections == 0
    });
}

#[test]
fn a_receiver_gets_messages_and_they_are_counted() {
    let mut served = Served::with_one();
    let (mut client, mut end) = served.attach(TOKEN, Role::Receive);
    let bytes = message(5, &[7; 100_000]);
    let mut rest = &bytes[..];
    served.eventually("all of it comes", |_| {
        if let Ok(count) = end.write(rest) {
            rest = &rest[count..];
        }
        client.turn();
        client.plain.len() == bytes.len()
    });
    assert!(client.plain == bytes);
    let stats = &served.figures().clients[0].stats;
    assert_eq!(
        (stats.received_messages, stats.received_bytes),
        (1, 100_000)
    );
}

#[test]
fn outcomes_of_a_client_that_has_gone_are_still_counted() {
    let mut served = Served::with_one();
    let (mut client, mut end) = served.attach(TOKEN, Role::Send);
    client.send(&message(1, b"x"));
    let mut came = Vec::new();
    served.eventually("the message comes", |_| {
        client.turn();
        drain(&mut end, &mut came);
        came.len() == 13
    });
    drop(client);
    served.eventually("the message socket sees it", |_| {
        matches!(end.read(&mut [0; 1]), Ok(0))
    });
    end.write_all(&ack(1, 0, 0)).unwrap();
    drop(end);
    served.eventually("it is gone", |served| {
        let stats = &served.figures().clients[0].stats;
        (stats.open_connections, stats.unfinished_messages) == (0, 0)
    });
    let stats = &served.figures().clients[0].stats;
    assert_eq!((stats.delivered_messages, stats.unknown_messages), (1, 0));
}

#[test]
fn a_reload_closes_what_it_removes_and_nothing_else() {
    let mut served = Served::new(&[("one", TOKEN, permit()), ("two", OTHER, permit())]);
    let (mut one, mut end) = served.attach(TOKEN, Role::Send);
    let (mut two, _end_of_two) = served.attach(OTHER, Role::Send);
    served.apply_settings(&[("one", TOKEN, permit())]);
    served.until(&mut two, "the removed client is closed", |client| {
        client.closed
    });
    served.serves(&mut one, &mut end);
    assert_eq!(served.closed("removed"), 1);
    // Its token is a wrong one now.
    let mut again = served.connect();
    again.send(&opening(OTHER, Role::Send, APP));
    served.until(&mut again, "it is refused", |client| {
        client.refusal().is_some()
    });
    assert_eq!(again.refusal().unwrap().0, RefusalReason::BadToken);
    // Another token for the same client closes connections with the old one.
    served.apply_settings(&[("one", OTHER, permit())]);
    served.until(&mut one, "the old token is closed", |client| client.closed);
    let (mut one, mut end) = served.attach(OTHER, Role::Send);
    // An application that is taken away closes who uses it.
    served.serves(&mut one, &mut end);
    let mut less = permit();
    less.send.clear();
    served.apply_settings(&[("one", OTHER, less)]);
    served.until(&mut one, "it may not send any more", |client| client.closed);
}

/// A client whose handshake is over, so that all that it sends next comes in one turn.
fn shaken(served: &mut Served) -> Client {
    let mut client = served.connect();
    served.until(&mut client, "the handshake ends", |client| {
        !client.tls.is_handshaking()
    });
    for _ in 0..8 {
        client.turn();
        served.turn();
    }
    client
}

#[test]
fn clients_that_attach_and_end_at_once_are_counted_no_more() {
    let ends: [(&str, Role, &[u8]); 3] = [
        ("a receiver that leaves", Role::Receive, b""),
        ("a receiver that sends", Role::Receive, b"x"),
        ("a message that is too long", Role::Send, &[0xff; 12]),
    ];
    let mut served = Served::with_one();
    for (what, role, more) in ends {
        // More than a network may open at once, and than a client may have.
        for _ in 0..20 {
            let mut client = shaken(&mut served);
            client.send(&opening(TOKEN, role, APP));
            client.send(more);
            client.tls.send_close_notify();
            client.turn();
            let mut kept = Vec::new();
            served.eventually(what, |served| {
                kept.extend(served.attached.accept().ok());
                client.turn();
                client.closed
            });
            drop((client, kept));
            // Failures are forgiven after a while.
            served.pass(Duration::from_secs(6));
        }
        served.eventually("it is counted no more", |served| {
            served.figures().clients[0].stats.open_connections == 0
        });
        let (mut client, mut end) = served.attach(TOKEN, Role::Send);
        served.serves(&mut client, &mut end);
        drop((client, end));
    }
}

#[test]
fn clients_that_reset_behind_their_hello_are_counted_no_more() {
    let mut served = Served::with_one();
    for _ in 0..20 {
        let mut client = shaken(&mut served);
        client.send(&opening(TOKEN, Role::Send, APP));
        client.turn();
        SockRef::from(&client.stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(client);
        served.eventually("it is gone", |served| {
            let figures = served.figures();
            while let Ok(end) = served.attached.accept() {
                drop(end);
            }
            figures.opening_connections == 0 && figures.clients[0].stats.open_connections == 0
        });
    }
    let (mut client, mut end) = served.attach(TOKEN, Role::Send);
    served.serves(&mut client, &mut end);
}

#[test]
fn all_that_comes_before_a_close_notice_is_passed_on() {
    for length in (16_300..18_400).step_by(150) {
        let mut served = Served::with_one();
        let (mut client, mut end) = served.attach(TOKEN, Role::Send);
        let bytes = message(1, &vec![7; length]);
        client.send(&bytes);
        client.tls.send_close_notify();
        client.turn();
        let mut came = Vec::new();
        served.eventually("all of it comes", |_| {
            client.turn();
            drain(&mut end, &mut came);
            came.len() >= bytes.len()
        });
        assert_eq!(came, bytes);
        end.write_all(&ack(1, 0, 0)).unwrap();
        drop(end);
        served.until(&mut client, "the ack comes", |client| {
            client.plain.len() == 18
        });
    }
}
