//! The message server with clients of this process and a peer that never answers.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use keiro_control::{
    config::Name,
    message_socket::{Answer, MessageDecoder, VERSION},
};
use keiro_core::{
    AppConfig, AppId, Endpoint, EndpointConfig, PeerConfig, PrivateKey, PublicKey, SendError,
    TenantId,
};
use keiro_linux::epoll::ReadyList;

use super::{
    tag::{TAG_BYTES, tagged_body},
    *,
};
use crate::data::{
    quota::Quota,
    route::{AppRoute, Routes},
    token::Token,
    tunnels::Tunnels,
};

fn test_app() -> AppId {
    AppId::of_name("M")
}

struct Served {
    epoll: Epoll,
    endpoint: Endpoint,
    routes: Routes,
    server: MessageServer,
    now: Instant,
    peer: PeerId,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Served {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("message.sock");
        let epoll = Epoll::new().unwrap();
        let mut server = MessageServer::new();
        let listener = keiro_linux::unix::listen(&path, None).unwrap();
        let listener = Listener::Unix {
            listener,
            path: path.clone(),
        };
        server.listen(&epoll, listener).unwrap();
        let now = Instant::ZERO + Duration::from_secs(1000);
        let config = EndpointConfig::new(PrivateKey::from_bytes([1; 32]));
        let mut endpoint = Endpoint::new(now, config, [3; 32]);
        let key = PrivateKey::from_bytes([2; 32]).public_key();
        let peer = endpoint.add_peer(now, PeerConfig::new(PublicKey::from_bytes(*key.as_bytes())));
        let config = AppConfig {
            id: AppId::of_name("M"),
            class: DeliveryClass::Message,
            latency_target: None,
            lifetime: None,
            paths: Vec::new(),
            tenant: TenantId::ZERO,
            is_spread: false,
        };
        endpoint.set_app(peer, config.clone());
        let mut routes = Routes::default();
        routes.insert(AppRoute {
            name: "M".to_owned(),
            peer,
            config,
            has_forward: false,
        });
        Self {
            epoll,
            endpoint,
            routes,
            server,
            now,
            peer,
            path,
            _directory: directory,
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut MessageServer, &mut Context<'_>) -> T) -> T {
        let mut context = Context {
            now: self.now,
            epoll: &self.epoll,
            routes: &self.routes,
            tunnels: &Tunnels::new(&[0; 16], Quota::new(usize::MAX)),
            endpoint: &mut self.endpoint,
        };
        act(&mut self.server, &mut context)
    }

    /// Serves ready clients until none is; fails if that has no end.
    fn turn(&mut self) {
        const TURNS_MAX: usize = 1000;
        let mut ready = ReadyList::new(64);
        for _ in 0..TURNS_MAX {
            self.epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            if ready.is_empty() {
                return;
            }
            for event in ready.iter() {
                match Token::of(event.token) {
                    Some(Token::Client(number)) => self.with(|s, c| s.serve(c, number, event)),
                    Some(Token::MessageListener(number)) => self.with(|s, c| s.accept(c, number)),
                    _ => panic!("{event:?}"),
                }
            }
        }
        panic!("a client is always ready");
    }

    /// A client that has said hello.
    fn connect(&mut self, role: Role) -> UnixStream {
        let mut stream = UnixStream::connect(&self.path).unwrap();
        let app = Name::new("M").unwrap();
        stream.write_all(&Hello::new(role, app).encode()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        self.turn();
        stream
    }

    /// One whose hello was accepted.
    fn attach(&mut self, role: Role) -> UnixStream {
        let mut stream = self.connect(role);
        let accepted = Answer::Accepted.encode(VERSION);
        let mut answer = vec![0; accepted.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, accepted);
        stream
    }

    fn queued(&self) -> usize {
        self.endpoint
            .session(self.peer)
            .unwrap()
            .stats
            .waiting_messages as usize
    }

    fn deliver(&mut self, id: u64, length: usize) -> Option<MessageResult> {
        let held = PendingMessage {
            peer: self.peer,
            id: MessageId(id),
            bytes: tagged_body(id, &vec![7; length]),
        };
        self.with(|server, context| server.deliver(context, AppId::of_name("M"), held))
    }
}

fn message(id: u64, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_be_bytes()[..], &id.to_be_bytes(), body].concat()
}

#[test]
fn senders_that_send_and_quit_leave_room_for_others() {
    let mut served = Served::new();
    for id in 0..CLIENTS_MAX as u64 + 50 {
        let mut sender = served.attach(Role::Send);
        sender.write_all(&message(id, b"last words")).unwrap();
        drop(sender);
        served.turn();
        assert!(served.server.clients.is_empty());
    }
    assert_eq!(served.queued(), CLIENTS_MAX + 50);
    assert_eq!(served.server.unfinished.len(), CLIENTS_MAX + 50);
}

#[test]
fn messages_sent_before_a_sender_quit_are_taken_over() {
    let mut served = Served::new();
    let mut sender = UnixStream::connect(&served.path).unwrap();
    let (role, app) = (Role::Send, Name::new("M").unwrap());
    // The answer is never read.
    let mut said = Hello::new(role, app).encode();
    for id in 0..100 {
        said.extend(message(id, &[1; 500]));
    }
    // The number is in use: a refusal that cannot be sent.
    said.extend(message(0, b"again"));
    said.extend(message(100, b"end"));
    sender.write_all(&said).unwrap();
    drop(sender);
    served.turn();
    assert_eq!(served.queued(), 101);
    assert!(served.server.clients.is_empty());
    let (peer, id) = *served.server.unfinished.keys().next().unwrap();
    let ended = served.with(|server, context| {
        let outcome = MessageOutcome::Delivered;
        server.on_message_done(context, peer, id, outcome, Duration::ZERO)
    });
    assert!(ended.is_some());
}

#[test]
fn a_sender_that_quits_while_it_waits_for_an_ack_is_forgotten() {
    let mut served = Served::new();
    let mut sender = served.attach(Role::Send);
    sender.write_all(&message(1, b"x")).unwrap();
    sender.shutdown(std::net::Shutdown::Write).unwrap();
    served.turn();
    assert_eq!(served.server.clients.len(), 1);
    drop(sender);
    served.turn();
    assert!(served.server.clients.is_empty());
}

#[test]
fn senders_that_only_wait_for_acks_do_not_keep_others_out() {
    let mut served = Served::new();
    let mut waiting = Vec::new();
    for id in 0..(CLIENTS_MAX + LEAVING_MAX) as u64 {
        let mut sender = served.attach(Role::Send);
        sender.write_all(&message(id, b"x")).unwrap();
        sender.shutdown(std::net::Shutdown::Write).unwrap();
        served.turn();
        waiting.push(sender);
    }
    // Their number is bounded, too: the oldest of them see the end.
    assert!(served.server.clients.len() <= LEAVING_MAX + 2);
    assert_eq!(waiting[0].read(&mut [0; 1]).unwrap(), 0);
    assert_eq!(served.queued(), CLIENTS_MAX + LEAVING_MAX);
    served.attach(Role::Receive);
}

#[test]
fn a_sender_that_quits_with_a_message_that_found_the_queue_full_is_not_busy_work() {
    let mut served = Served::new();
    let now = served.now;
    let app = AppId::of_name("M");
    let full = loop {
        let body = tagged_body(0, &[0; 1 << 20]);
        if let Err((error, _)) = served
            .endpoint
            .send_message(now, now, served.peer, app, body)
        {
            break error;
        }
    };
    assert_eq!(full, SendError::QueueFull);
    let mut sender = served.attach(Role::Send);
    sender.write_all(&message(1, &[0; 100_000])).unwrap();
    served.turn();
    sender.write_all(&message(2, b"x")).unwrap();
    drop(sender);
    // Ends only if nothing is ready any more.
    served.turn();
    assert!(served.server.clients.values().all(Client::is_leaving));
    served.routes.remove(test_app());
    served.with(MessageServer::retry_stalled);
    served.turn();
    assert!(served.server.clients.is_empty());
}

#[test]
fn stalled_receiver_is_closed() {
    let mut served = Served::new();
    let receiver = served.attach(Role::Receive);
    // More than its socket's buffers hold.
    for id in 0..3 {
        assert_eq!(served.deliver(id, 8 << 20), None);
    }
    served.turn();
    let attached = served.now;
    while !served.server.clients.is_empty() {
        served.now += Duration::from_secs(1);
        served.with(MessageServer::sweep);
        // The first ones fill what room the socket still has.
        assert!(served.now <= attached + 2 * STUCK_TIME);
    }
    assert!(served.now >= attached + STUCK_TIME);
    assert_eq!(served.server.figures(test_app()).receivers, 0);
    // Messages that no receiver got wait for another one, within bounds.
    assert!(served.server.holds.contains_key(&test_app()));
    served.now += Duration::from_secs(10);
    served.with(MessageServer::sweep);
    assert!(served.server.holds.is_empty());
    drop(receiver);
}

/// Whole messages that a receiver has read, by their numbers, until it has `count`.
fn read_messages(served: &mut Served, receiver: &mut UnixStream, count: usize) -> Vec<u64> {
    let mut ids = Vec::new();
    receiver.set_nonblocking(true).unwrap();
    let mut decoder = MessageDecoder::default();
    let mut buffer = vec![0; 64 << 10];
    while ids.len() < count {
        let before = ids.len();
        while let Ok(read @ 1..) = receiver.read(&mut buffer) {
            let mut input = &buffer[..read];
            while let Some(message) = decoder.decode(&mut input).unwrap() {
                ids.push(message.id);
            }
        }
        served.turn();
        assert!(ids.len() > before || before < count, "{before} of {count}");
    }
    ids
}

#[test]
fn messages_are_refused_only_once_a_receiver_is_overdue() {
    const COUNT: usize = 5000;
    // After a start, and after the last receiver has left.
    for was_attached in [false, true] {
        let mut served = Served::new();
        if was_attached {
            drop(served.attach(Role::Receive));
            served.turn();
            served.now += ABSENCE_MAX / 2;
        }
        for id in 0..COUNT {
            assert_eq!(served.deliver(id as u64, 100), None, "{id}");
        }
        served.now += ABSENCE_MAX / 2 - Duration::from_millis(1);
        served.with(MessageServer::sweep);
        let mut receiver = served.attach(Role::Receive);
        let ids = read_messages(&mut served, &mut receiver, COUNT);
        assert!(ids.iter().copied().eq(0..COUNT as u64));
        assert!(served.server.holds.is_empty());
    }
}

#[test]
fn slow_receiver_refuses_no_messages() {
    const COUNT: usize = 2000;
    let mut served = Served::new();
    let mut receiver = served.attach(Role::Receive);
    // More than sockets and the receiver's queue hold.
    for id in 0..COUNT {
        assert_eq!(served.deliver(id as u64, 20_000), None, "{id}");
    }
    assert!(served.server.holds.contains_key(&test_app()));
    for _ in 0..3 {
        served.now += 2 * ABSENCE_MAX;
        served.with(MessageServer::sweep);
        assert_eq!(served.deliver(COUNT as u64, 1), None);
        let held = served.server.holds[&test_app()].len();
        assert!(held > COUNT / 2, "{held}");
        // It reads a little, and is not stuck.
        receiver.read_exact(&mut [0; 100_000]).unwrap();
    }
}

#[test]
fn little_is_held_for_a_receiver_that_is_overdue() {
    let mut served = Served::new();
    for id in 0..1000 {
        assert_eq!(served.deliver(id, 100), None);
    }
    served.now += ABSENCE_MAX;
    let refused = served.deliver(1000, 100).expect("a result");
    assert_eq!(refused.refused, Some(RefusalReason::NoReceiver));
    // Those that waited end, too, and a few wait again.
    served.with(MessageServer::sweep);
    assert!(served.server.holds.is_empty());
    let refused = (0..1000).filter(|id| served.deliver(2000 + id, 100).is_some());
    assert_eq!(refused.count(), 1000 - 64);
}

#[test]
fn slow_receiver_is_not_closed() {
    let mut served = Served::new();
    let mut receiver = served.attach(Role::Receive);
    assert_eq!(served.deliver(1, 8 << 20), None);
    served.turn();
    let mut some = vec![0; 300_000];
    for _ in 0..8 {
        // Too little for the socket to be reported as writable.
        receiver.read_exact(&mut some).unwrap();
        served.now += STUCK_TIME - Duration::from_secs(1);
        served.with(MessageServer::sweep);
        assert_eq!(served.server.clients.len(), 1);
    }
    // Nothing waits: it may take its time.
    let mut rest = vec![0; (8 << 20) + 12 - 8 * some.len()];
    let reading = std::thread::spawn(move || {
        receiver.read_exact(&mut rest).unwrap();
        receiver
    });
    while !reading.is_finished() {
        served.turn();
        std::thread::yield_now();
    }
    let _receiver = reading.join().unwrap();
    served.turn();
    served.now += 2 * STUCK_TIME;
    served.with(MessageServer::sweep);
    assert_eq!(served.server.clients.len(), 1);
}

const LONG: usize = 16 << 20;

/// Writes as much of `bytes` as the gateway takes; what is left.
fn push<'a>(served: &mut Served, client: &mut UnixStream, mut bytes: &'a [u8]) -> &'a [u8] {
    client.set_nonblocking(true).unwrap();
    loop {
        let before = bytes.len();
        while let Ok(count) = client.write(bytes) {
            bytes = &bytes[count..];
            if bytes.is_empty() {
                break;
            }
        }
        served.turn();
        if bytes.len() == before || bytes.is_empty() {
            return bytes;
        }
    }
}

#[test]
fn long_messages_of_many_senders_share_a_bounded_memory_and_all_get_through() {
    let mut served = Served::new();
    let bytes = message(1, &vec![7; LONG]);
    let mut clients: Vec<UnixStream> = (0..12).map(|_| served.attach(Role::Send)).collect();
    let last = bytes.len() - 1;
    let mut left: Vec<&[u8]> = Vec::new();
    for client in &mut clients {
        left.push(push(&mut served, client, &bytes[..last]));
    }
    let (all, own) = served.server.held_memory(test_app());
    assert_eq!(all, own);
    assert!(own > memory::APP_BYTES_MAX / 2, "{own}");
    assert!(own <= memory::APP_BYTES_MAX + LONG + TAG_BYTES, "{own}");
    let waiting = left.iter().filter(|left| !left.is_empty()).count();
    assert!(waiting >= 6, "{waiting} wait");
    // A sender that has written all but the last byte ends first; the others get its memory.
    for _ in 0..clients.len() {
        for (client, left) in clients.iter_mut().zip(&mut left) {
            *left = push(&mut served, client, left);
        }
        for (client, left) in clients.iter_mut().zip(&left) {
            if left.is_empty() {
                push(&mut served, client, &bytes[last..]);
            }
        }
    }
    assert!(left.iter().all(|left| left.is_empty()));
    assert_eq!(served.server.unfinished.len(), clients.len());
    assert_eq!(served.server.held_memory(test_app()), (0, 0));
}

#[test]
fn sender_that_stops_within_a_long_message_gives_way_to_those_that_wait() {
    let mut served = Served::new();
    let bytes = message(1, &vec![7; LONG]);
    let mut idle: Vec<UnixStream> = (0..8).map(|_| served.attach(Role::Send)).collect();
    for client in &mut idle {
        push(&mut served, client, &bytes[..bytes.len() - 1]);
    }
    served.now += memory::IDLE_MAX / 2;
    let mut honest = served.attach(Role::Send);
    let mut left = push(&mut served, &mut honest, &bytes);
    assert!(!left.is_empty());
    // Those that waited themselves get memory first, and their own time.
    for _ in 0..idle.len() {
        served.now += memory::IDLE_MAX;
        served.with(MessageServer::sweep);
        left = push(&mut served, &mut honest, left);
    }
    assert!(left.is_empty(), "{}", left.len());
    assert_eq!(served.server.unfinished.len(), 1);
}

#[test]
fn clients_on_other_hosts_and_local_ones_take_none_of_each_others_places() {
    let mut served = Served::new();
    let (attach, attached) = crate::message_tls::attach::channel().unwrap();
    let Served { epoll, server, .. } = &mut served;
    server.listen(epoll, Listener::Tls(attached)).unwrap();
    let app = Name::new("M").unwrap();
    let role = Role::Send;
    let hello = Hello::new(role, app).encode();
    let accepted = Answer::Accepted.encode(VERSION);
    let remote = |served: &mut Served| {
        let (mut own, other) = UnixStream::pair().unwrap();
        attach.send(other).unwrap();
        own.write_all(&hello).unwrap();
        served.turn();
        let mut answer = vec![0; accepted.len()];
        own.read_exact(&mut answer).unwrap();
        assert_eq!(answer, accepted);
        own
    };
    let kept: Vec<UnixStream> = (0..CLIENTS_MAX + 1).map(|_| remote(&mut served)).collect();
    let local: Vec<UnixStream> = (0..CLIENTS_MAX)
        .map(|_| served.attach(Role::Send))
        .collect();
    // All local places are taken now.
    let mut refused = served.connect(Role::Send);
    let mut answer = [0; 6];
    refused.read_exact(&mut answer).unwrap();
    assert_eq!(answer[5], 5, "busy");
    remote(&mut served);
    drop((kept, local));
    // When the gateway stops, nothing more is handed over.
    served.server.drain();
    let (_, other) = UnixStream::pair().unwrap();
    assert!(attach.send(other).is_err());
}
