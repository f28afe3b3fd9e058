//! TCP in at one gateway, out at the other.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use keiro_control::protocol::{Request, TcpForwardSnapshot, TcpListenerSnapshot};
use socket2::{Domain, SockRef, Socket, Type};

use crate::{
    control::scrape,
    site::{LIMIT, Pair, Site, app, at, body, wait_for},
};

mod killed;

/// `a` has a TCP listener of `T` at its port 7100; `b` connects `T` to `server`.
fn pair(server: &str) -> Pair {
    let (mut a, mut b) = (Site::new("a"), Site::new("b"));
    let listener = format!(
        "[[listener]]\napp = \"T\"\ntcp = \"{}\"\n",
        at(a.address, 7100)
    );
    let forward = format!("[[forward]]\napp = \"T\"\ntcp = \"{server}\"\nallow_local = true\n");
    a.write(&Pair::config_a(
        &a,
        &b,
        &(app("T", "stream", "b") + &listener),
    ));
    b.write(&Pair::config_b(
        &a,
        &b,
        &(app("T", "stream", "a") + &forward),
    ));
    b.start();
    a.start();
    a.wait_up(2);
    b.wait_up(2);
    Pair { a, b }
}

impl Pair {
    fn connect_client(&self) -> TcpStream {
        limited(TcpStream::connect(at(self.a.address, 7100)).unwrap())
    }

    fn tcp_listener(&self) -> TcpListenerSnapshot {
        self.a.app("T").tcp_listeners.remove(0)
    }

    fn tcp_forward(&self) -> TcpForwardSnapshot {
        self.b.app("T").tcp_forward.unwrap()
    }
}

fn limited(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream
}

/// A server on a port of its own.
fn server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Within [`LIMIT`].
fn accept(listener: &TcpListener) -> TcpStream {
    SockRef::from(listener)
        .set_read_timeout(Some(LIMIT))
        .unwrap();
    limited(listener.accept().unwrap().0)
}

fn read_end(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes)
}

#[test]
fn tcp_connection_is_carried_to_the_server() {
    let (listener, address) = server();
    let pair = pair(&address);
    let mut client = pair.connect_client();
    let mut served = accept(&listener);
    // The server speaks first.
    served.write_all(b"hello").unwrap();
    let mut greeting = [0; 5];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"hello");
    // Half-closed, the answer still comes.
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_end(&mut served).unwrap(), b"question");
    served.write_all(b"answer").unwrap();
    drop(served);
    assert_eq!(read_end(&mut client).unwrap(), b"answer");
    wait_for("both ends to close", || {
        (
            pair.tcp_listener().stats.open_connections,
            pair.tcp_forward().stats.open_connections,
        ) == (0, 0)
    });
    let listener = pair.tcp_listener();
    assert_eq!(
        (
            listener.stats.accepted_connections,
            listener.stats.reset_connections
        ),
        (1, 0)
    );
    assert_eq!(pair.tcp_forward().stats.accepted_connections, 1);
}

#[test]
fn a_long_transfer_arrives_whole_both_ways_at_once() {
    let (listener, address) = server();
    let pair = pair(&address);
    let (up, down) = (body(1, 20 << 20), body(2, 20 << 20));
    let mut client = pair.connect_client();
    let mut served = accept(&listener);
    thread::scope(|scope| {
        let send = |stream: &TcpStream, bytes: &[u8]| {
            let mut stream = stream.try_clone().unwrap();
            let bytes = bytes.to_vec();
            scope.spawn(move || {
                stream.write_all(&bytes).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
        };
        send(&client, &up);
        send(&served, &down);
        let got = scope.spawn(|| read_end(&mut served).unwrap());
        assert!(read_end(&mut client).unwrap() == down);
        assert!(got.join().unwrap() == up);
    });
}

#[test]
fn a_reset_is_seen_at_the_other_side() {
    let (listener, address) = server();
    let pair = pair(&address);
    let reset = |stream: TcpStream| {
        SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    };
    let client = pair.connect_client();
    let mut served = accept(&listener);
    reset(client);
    let seen = read_end(&mut served).unwrap_err();
    assert_eq!(seen.kind(), io::ErrorKind::ConnectionReset);
    let mut client = pair.connect_client();
    reset(accept(&listener));
    let seen = read_end(&mut client).unwrap_err();
    assert_eq!(seen.kind(), io::ErrorKind::ConnectionReset);
    eprintln!("{:?}", pair.tcp_listener());
    wait_for("both to be counted", || {
        let listener = pair.tcp_listener();
        (
            listener.stats.reset_connections,
            listener.stats.open_connections,
        ) == (2, 0)
    });
}

#[test]
fn connections_are_on_the_metrics_page_of_either_gateway() {
    let (listener, address) = server();
    let mut pair = pair(&address);
    let pages = [&mut pair.a, &mut pair.b].map(|site| {
        let page = at(site.address, 7200);
        let text = std::fs::read_to_string(site.file("gateway.toml")).unwrap();
        site.stop();
        site.write(&text.replace("[gateway]\n", &format!("[gateway]\nmetrics = \"{page}\"\n")));
        page
    });
    pair.b.start();
    pair.a.start();
    pair.a.wait_up(2);
    pair.b.wait_up(2);
    let _open = pair.connect_client();
    let _served = accept(&listener);
    let client = pair.connect_client();
    let mut served = accept(&listener);
    SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    assert!(read_end(&mut served).is_err());
    for (page, side) in pages.iter().zip(["listener", "forward"]) {
        let line = |figure: &str| format!("keiro_tcp_{side}_{figure}{{app=\"T\"}}");
        let wanted = [
            format!("{} 1", line("open_connections")),
            format!("{} 2", line("accepted_connections_total")),
            format!("{} 1", line("reset_connections_total")),
            format!("{} 0", line("failed_connections_total")),
        ];
        let mut last = String::new();
        wait_for("the page", || {
            last = scrape(page);
            wanted
                .iter()
                .all(|line| last.lines().any(|l| l.trim_end_matches(".0") == line))
        });
        let other = ["refused", "forbidden"]
            .map(|other| last.contains(&line(&format!("{other}_connections_total"))));
        assert_eq!(other, [true, side == "forward"], "{last}");
    }
}

#[test]
fn a_transparent_listener_at_all_addresses_refuses_who_asks_for_itself() {
    let (_listener, address) = server();
    let pair = pair(&address);
    // Free a moment ago.
    let free = TcpListener::bind("0.0.0.0:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let text = std::fs::read_to_string(pair.a.file("gateway.toml")).unwrap();
    let listener = format!("[[listener]]\napp = \"T\"\ntproxy = \"{free}\"\n");
    pair.a.write(&(text + &listener));
    let reloaded = pair.a.reload();
    eprintln!("{reloaded:?}");
    let client = TcpStream::connect((pair.a.address, free.port()));
    let seen = client.and_then(|client| read_end(&mut limited(client)));
    let kind = seen.map_err(|error| error.kind());
    assert_eq!(kind, Err(io::ErrorKind::ConnectionReset));
    let listeners = pair.a.app("T").tcp_listeners;
    let of_it = listeners
        .iter()
        .find(|listener| listener.transparent)
        .unwrap();
    let counts = (
        of_it.stats.refused_connections,
        of_it.stats.accepted_connections,
    );
    assert_eq!(counts, (1, 0));
}

#[test]
fn a_listener_that_is_to_become_transparent_must_be_removed_first() {
    let (_listener, address) = server();
    let pair = pair(&address);
    let text = std::fs::read_to_string(pair.a.file("gateway.toml")).unwrap();
    pair.a.write(&text.replace("\ntcp = ", "\ntproxy = "));
    let Err(error) = pair.a.client().request(&Request::Reload {}) else {
        panic!("it is reloaded")
    };
    let refused = error.to_string();
    assert!(
        refused.contains("is a `tcp` listener until now"),
        "{refused}"
    );
    assert!(
        refused.contains("reload without this listener first"),
        "{refused}"
    );
    assert!(!pair.tcp_listener().transparent);
    pair.connect_client();
}

#[test]
fn a_server_that_refuses_resets_the_client() {
    let (listener, address) = server();
    let pair = pair(&address);
    drop(listener);
    let mut client = pair.connect_client();
    let seen = read_end(&mut client).unwrap_err();
    assert_eq!(seen.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(pair.tcp_forward().stats.failed_connections, 1);
    assert_eq!(pair.tcp_listener().stats.failed_connections, 1);
}

#[test]
fn a_server_that_does_not_answer_resets_the_client_in_the_end() {
    // One connection fills its queue, and the kernel answers no other.
    let server = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    server.bind(&anywhere.into()).unwrap();
    server.listen(0).unwrap();
    let address = server.local_addr().unwrap().as_socket().unwrap();
    let _first = TcpStream::connect(address).unwrap();
    let pair = pair(&address.to_string());
    let begun = Instant::now();
    let mut client = pair.connect_client();
    client.write_all(b"anybody there?").unwrap();
    let seen = read_end(&mut client).unwrap_err();
    assert_eq!(seen.kind(), io::ErrorKind::ConnectionReset);
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(29), "{took:?}");
    let forward = pair.tcp_forward();
    assert_eq!(
        (
            forward.stats.failed_connections,
            forward.stats.accepted_connections
        ),
        (1, 0)
    );
    assert_eq!(pair.tcp_listener().stats.failed_connections, 1);
}

/// Closes it with a reset.
fn reset(stream: TcpStream) {
    SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(stream);
}

/// All bytes until a reset.
fn read_reset(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let seen = stream.read_to_end(&mut bytes).map_err(|e| e.kind());
    assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    bytes
}

#[test]
fn bytes_sent_before_a_reset_arrive_before_it() {
    let (listener, address) = server();
    let pair = pair(&address);
    let all = body(7, 5000);
    for _ in 0..40 {
        let mut client = pair.connect_client();
        let mut served = accept(&listener);
        served.write_all(&all).unwrap();
        reset(served);
        assert!(read_reset(&mut client) == all);
    }
    for _ in 0..40 {
        let mut client = pair.connect_client();
        let mut served = accept(&listener);
        client.write_all(&all).unwrap();
        reset(client);
        assert!(read_reset(&mut served) == all);
    }
    wait_for("all to end", || {
        pair.tcp_listener().stats.open_connections == 0
    });
}

#[test]
fn reset_waits_for_a_slow_reader() {
    let (listener, address) = server();
    let pair = pair(&address);
    // More than a client's kernel takes for it unread, less than that and the gateway's buffer for it.
    let all = body(8, 1 << 20);
    let mut client = pair.connect_client();
    let mut served = accept(&listener);
    served.write_all(&all).unwrap();
    wait_for("the gateway to have all", || {
        keiro_linux::tcp::unacknowledged(&served).unwrap() == 0
    });
    reset(served);
    wait_for("the stream to be over", || {
        pair.tcp_listener().stats.open_connections == 0
    });
    assert!(read_reset(&mut client) == all);
}

#[test]
fn a_server_that_answers_and_does_not_read_on_is_heard() {
    let (listener, address) = server();
    let pair = pair(&address);
    let answer = body(7, 5000);
    for _ in 0..10 {
        let mut client = pair.connect_client();
        let mut served = accept(&listener);
        let mut writer = client.try_clone().unwrap();
        thread::scope(|scope| {
            // Its error is that of a reset.
            scope.spawn(move || writer.write_all(&vec![1; 16 << 20]));
            served.read_exact(&mut [0; 1000]).unwrap();
            served.write_all(&answer).unwrap();
            // With bytes unread, this resets.
            drop(served);
            let mut heard = vec![0; answer.len()];
            client.read_exact(&mut heard).unwrap();
            assert!(heard == answer);
        });
    }
    wait_for("all to end", || {
        pair.tcp_forward().stats.open_connections == 0
    });
}

#[test]
fn a_reset_is_not_kept_waiting_by_a_client_that_never_reads() {
    let (listener, address) = server();
    let pair = pair(&address);
    let client = pair.connect_client();
    let served = accept(&listener);
    // Until nothing goes any more: every buffer on the way is full.
    served.set_nonblocking(true).unwrap();
    let mut full_since = Instant::now();
    while full_since.elapsed() < Duration::from_millis(500) {
        match (&served).write(&[1; 64 << 10]) {
            Ok(count) => {
                assert!(count > 0);
                full_since = Instant::now();
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                thread::yield_now();
            }
        }
    }
    reset(served);
    wait_for("both gateways to give it up", || {
        (
            pair.tcp_listener().stats.open_connections,
            pair.tcp_forward().stats.open_connections,
        ) == (0, 0)
    });
    drop(client);
}

#[test]
fn a_reset_in_the_middle_of_a_transfer_is_seen_at_the_other_side() {
    let (listener, address) = server();
    let pair = pair(&address);
    for resets in ["server", "client"] {
        let client = pair.connect_client();
        let served = accept(&listener);
        let (mut writes, mut ends) = match resets {
            "server" => (client, served),
            _ => (served, client),
        };
        let mut some = vec![0; 300_000];
        let failed = thread::scope(|scope| {
            let writer = scope.spawn(|| writes.write_all(&vec![1; 64 << 20]));
            ends.read_exact(&mut some).unwrap();
            SockRef::from(&ends)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(ends);
            writer.join().unwrap()
        });
        let kind = failed.unwrap_err().kind();
        let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
        assert!(kinds.contains(&kind), "{resets}: {kind:?}");
    }
}

#[test]
fn single_bytes_arrive_one_after_the_other() {
    let (listener, address) = server();
    let pair = pair(&address);
    let mut client = pair.connect_client();
    let mut served = accept(&listener);
    client.set_nodelay(true).unwrap();
    let all = body(3, 5000);
    thread::scope(|scope| {
        scope.spawn(|| {
            for byte in &all {
                client.write_all(&[*byte]).unwrap();
            }
            client.shutdown(Shutdown::Write).unwrap();
        });
        assert!(read_end(&mut served).unwrap() == all);
    });
}

/// Writes a byte, which is the next that comes.
fn bring_over(from: &mut TcpStream, to: &mut TcpStream, byte: u8) {
    from.write_all(&[byte]).unwrap();
    let mut read = [0; 64];
    assert_eq!(to.read(&mut read).unwrap(), 1);
    assert_eq!(read[0], byte);
}

/// Two bytes, the second when the first has come, and then an answer, over and over: how long each second
/// byte took, the shortest time first. Who has just answered is the one to acknowledge late.
fn second_bytes(from: &mut TcpStream, to: &mut TcpStream) -> Vec<Duration> {
    let mut took: Vec<Duration> = (0..100)
        .map(|round| {
            bring_over(from, to, round);
            let begun = Instant::now();
            bring_over(from, to, !round);
            let took = begun.elapsed();
            bring_over(to, from, round);
            took
        })
        .collect();
    took.sort_unstable();
    took
}

#[test]
fn a_byte_waits_for_no_acknowledgement_of_the_one_before() {
    /// The kernel acknowledges after 40 ms what nothing is said to.
    const HELD_BACK: Duration = Duration::from_millis(20);
    let (listener, address) = server();
    let pair = pair(&address);
    let mut client = pair.connect_client();
    let mut served = accept(&listener);
    for end in [&client, &served] {
        end.set_nodelay(true).unwrap();
    }
    // The forward writes the first of these, the listener the second.
    for took in [
        second_bytes(&mut client, &mut served),
        second_bytes(&mut served, &mut client),
    ] {
        assert!(took[took.len() / 2] < HELD_BACK, "{took:?}");
    }
}

#[test]
fn a_client_that_says_nothing_has_its_server_and_either_may_end_it() {
    let (listener, address) = server();
    let pair = pair(&address);
    let open = || {
        let (listener, forward) = (pair.tcp_listener(), pair.tcp_forward());
        (
            listener.stats.open_connections,
            forward.stats.open_connections,
        )
    };
    for client_ends in [true, false] {
        let silent = pair.connect_client();
        let heard = accept(&listener);
        // Others talk meanwhile, and it stays as it is.
        let mut client = pair.connect_client();
        let mut served = accept(&listener);
        second_bytes(&mut client, &mut served);
        drop((client, served));
        wait_for("the others to have ended", || open() == (1, 1));
        for mut end in [&silent, &heard] {
            end.set_nonblocking(true).unwrap();
            let seen = end.read(&mut [0]).map_err(|error| error.kind());
            assert_eq!(seen, Err(io::ErrorKind::WouldBlock));
            end.set_nonblocking(false).unwrap();
        }
        let (ends, mut sees) = match client_ends {
            true => (silent, heard),
            false => (heard, silent),
        };
        drop(ends);
        assert_eq!(read_end(&mut sees).unwrap(), b"");
        drop(sees);
        wait_for("nothing to be left", || open() == (0, 0));
    }
    let listener = pair.tcp_listener();
    let counts = (
        listener.stats.accepted_connections,
        listener.stats.reset_connections,
    );
    assert_eq!(counts, (4, 0));
    assert_eq!(pair.tcp_forward().stats.reset_connections, 0);
}

/// How long a byte takes there and back, of fifty.
fn median_exchange(client: &mut TcpStream, served: &mut TcpStream) -> Duration {
    let mut took: Vec<Duration> = (0..50)
        .map(|number| {
            let begun = Instant::now();
            let mut byte = [0];
            client.write_all(&[number]).unwrap();
            served.read_exact(&mut byte).unwrap();
            served.write_all(&byte).unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [number]);
            begun.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[25]
}

#[test]
fn a_client_that_stops_reading_stops_its_server_and_no_other() {
    let (listener, address) = server();
    let pair = pair(&address);
    let mut quick = pair.connect_client();
    let mut other = accept(&listener);
    let before = median_exchange(&mut quick, &mut other);
    let stalled = pair.connect_client();
    let mut served = accept(&listener);
    served.set_nonblocking(true).unwrap();
    let chunk = vec![0; 1 << 16];
    let mut written = 0;
    let mut last = Instant::now();
    // Until nothing is taken for half a second.
    while last.elapsed() < Duration::from_millis(500) {
        match served.write(&chunk) {
            Ok(count) => {
                written += count;
                last = Instant::now();
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(written < 100 << 20, "{written} bytes lie somewhere");
    }
    let beside = median_exchange(&mut quick, &mut other);
    assert!(
        beside < before + Duration::from_millis(1),
        "{beside:?}, {before:?} before"
    );
    drop(stalled);
}

#[test]
fn stopping_gateway_finishes_transfers_and_resets_idle_connections() {
    let (listener, address) = server();
    let mut pair = pair(&address);
    let mut silent = pair.connect_client();
    let _served = accept(&listener);
    silent.write_all(b"x").unwrap();
    let mut client = pair.connect_client();
    let mut served = accept(&listener);
    let (half, rest) = (body(1, 3 << 20), body(2, 3 << 20));
    client.write_all(&half).unwrap();
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            // The gateway is stopping meanwhile.
            thread::sleep(Duration::from_millis(300));
            client.write_all(&rest).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        let got = scope.spawn(|| {
            let got = read_end(&mut served).unwrap();
            served.shutdown(Shutdown::Write).unwrap();
            got
        });
        pair.b.stop();
        assert!(got.join().unwrap() == [&half[..], &rest[..]].concat());
    });
    let took = began.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(read_end(&mut client).unwrap().is_empty());
    assert!(read_end(&mut silent).is_err());
}

#[test]
fn a_gateway_that_goes_away_resets_and_new_connections_work_when_it_is_back() {
    let (listener, address) = server();
    let mut pair = pair(&address);
    let mut client = pair.connect_client();
    let mut served = accept(&listener);
    client.write_all(b"x").unwrap();
    served.read_exact(&mut [0]).unwrap();
    pair.b.stop();
    assert!(read_end(&mut client).is_err());
    assert!(read_end(&mut served).is_err());
    wait_for("the peer to be gone", || pair.a.status().paths_up == 0);
    // No server is there: the client does not have to wait.
    assert!(read_end(&mut pair.connect_client()).is_err());
    assert_eq!(pair.tcp_listener().stats.refused_connections, 1);
    pair.b.start();
    pair.a.wait_up(2);
    pair.b.wait_up(2);
    let mut client = pair.connect_client();
    let mut served = accept(&listener);
    client.write_all(b"y").unwrap();
    let mut byte = [0];
    served.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"y");
}
