//! Streams of gateways that are killed.

use std::{
    net::UdpSocket,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use keiro_control::message_socket::{Outcome, UnknownReason};
use keiro_gateway::{Gateway, Options};

use super::*;

/// Gives the child processes of the test below what to run.
const TO_BE_KILLED: &str = "KEIRO_TEST_GATEWAY_TO_BE_KILLED";

/// A gateway in a process of its own, which ends without a word.
struct Killed(Child);

impl Killed {
    fn start(site: &Site) -> Self {
        let test = "streams::killed::stream_cut_by_a_killed_gateway_is_reset";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(TO_BE_KILLED, site.file("gateway.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let started = Self(child.unwrap());
        wait_for("the gateway to answer", || {
            UnixStream::connect(site.file("control.sock")).is_ok()
        });
        started
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // SIGKILL; it fails only if the process has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes for ever; what was begun is never whole.
fn write_on(stream: &TcpStream) {
    let mut stream = stream.try_clone().unwrap();
    thread::spawn(move || while stream.write_all(&[7; 4096]).is_ok() {});
}

#[test]
fn stream_cut_by_a_killed_gateway_is_reset() {
    if let Some(config) = std::env::var_os(TO_BE_KILLED) {
        let gateway = Gateway::start(Path::new(&config), &Options::default());
        return gateway.unwrap().serve(None).unwrap();
    }
    let (listener, address) = server();
    let mut pair = pair(&address);
    pair.a.stop();
    pair.b.stop();
    let b = Killed::start(&pair.b);
    let a = Killed::start(&pair.a);
    pair.a.wait_up(2);
    pair.b.wait_up(2);
    let mut client = pair.connect_client();
    write_on(&accept(&listener));
    write_on(&pair.connect_client());
    let mut served = accept(&listener);
    for stream in [&mut client, &mut served] {
        stream.read_exact(&mut vec![0; 256 << 10]).unwrap();
    }
    // Neither has sent anything, and unread bytes alone would be a reset: this is the gateways' doing.
    drop(a);
    let seen = read_end(&mut client).map(|bytes| bytes.len());
    let seen = seen.map_err(|error| error.kind());
    assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    drop(b);
    let seen = read_end(&mut served).map(|bytes| bytes.len());
    let seen = seen.map_err(|error| error.kind());
    assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
}

/// `a` takes streams of `T`, datagrams of `D` and messages of `M`; `b` lets them out to these.
fn pair_of_all_classes(stream: &str, datagram: &UdpSocket, message: &UdpSocket) -> Pair {
    let (mut a, b) = (Site::new("a"), Site::new("b"));
    let classes = [("T", "stream"), ("D", "datagram"), ("M", "message")];
    let apps = |peer: &str| classes.map(|(name, class)| app(name, class, peer)).concat();
    let listeners = format!(
        "[[listener]]\napp = \"T\"\ntcp = \"{}\"\n[[listener]]\napp = \"D\"\nudp = \"{}\"\n",
        at(a.address, 7100),
        at(a.address, 7101),
    );
    let forward = |app: &str, protocol: &str, to: String| {
        format!("[[forward]]\napp = \"{app}\"\n{protocol} = \"{to}\"\nallow_local = true\n")
    };
    let forwards = forward("T", "tcp", stream.to_owned())
        + &forward("D", "udp", datagram.local_addr().unwrap().to_string())
        + &forward("M", "udp", message.local_addr().unwrap().to_string());
    a.write(&Pair::config_a(&a, &b, &(apps("b") + &listeners)));
    b.write(&Pair::config_b(&a, &b, &(apps("a") + &forwards)));
    a.start();
    Pair { a, b }
}

#[test]
fn when_the_peer_was_killed_streams_are_reset_and_datagrams_and_messages_go_on() {
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    };
    let (listener, address) = server();
    let (datagrams, messages, client) = (socket(), socket(), socket());
    let pair = pair_of_all_classes(&address, &datagrams, &messages);
    let b = Killed::start(&pair.b);
    pair.a.wait_up(2);
    let mut sender = pair.a.sender("M");
    let mut buffer = [0; 64];
    let mut all_go = |stream: &mut TcpStream, first: u64| {
        let mut served = accept(&listener);
        stream.write_all(b"x").unwrap();
        served.read_exact(&mut buffer[..1]).unwrap();
        client
            .send_to(&first.to_be_bytes(), at(pair.a.address, 7101))
            .unwrap();
        assert_eq!(datagrams.recv(&mut buffer).unwrap(), 8);
        assert_eq!(buffer[..8], first.to_be_bytes());
        served
    };
    let mut stream = pair.connect_client();
    let _served = all_go(&mut stream, 1);
    sender.send(1, &body(1, 40));
    assert_eq!(messages.recv(&mut [0; 64]).unwrap(), 40);
    assert_eq!(sender.ack().outcome, Outcome::Delivered);

    drop(b);
    let away = 2..=20;
    for number in away.clone() {
        sender.send(number, &body(number, 40));
    }
    let _b = Killed::start(&pair.b);
    let seen = read_end(&mut stream).map_err(|error| error.kind());
    assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    pair.a.wait_up(2);
    // What had left for the run that was killed is unknown and not sent again; the rest arrives.
    let mut wanted: Vec<Vec<u8>> = Vec::new();
    for _ in away {
        let ack = sender.ack();
        match ack.outcome {
            Outcome::Delivered => wanted.push(body(ack.id, 40)),
            outcome => assert_eq!(outcome, Outcome::Unknown(UnknownReason::PeerRestarted)),
        }
    }
    sender.send(21, &body(21, 40));
    wanted.push(body(21, 40));
    let mut arrived: Vec<Vec<u8>> = wanted
        .iter()
        .map(|_| {
            let mut message = [0; 64];
            let length = messages.recv(&mut message).unwrap();
            message[..length].to_vec()
        })
        .collect();
    assert_eq!(sender.ack().outcome, Outcome::Delivered);
    wanted.sort();
    arrived.sort();
    assert_eq!(arrived, wanted);
    let mut stream = pair.connect_client();
    let _served = all_go(&mut stream, 2);
}
