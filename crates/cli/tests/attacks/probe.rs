//! Honest traffic from spoke to hub: 500 datagrams a second, and one stream.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::network::Network;

/// From one datagram to the next.
const INTERVAL: Duration = Duration::from_millis(2);
/// How long what is under way may take.
const LATE: Duration = Duration::from_secs(1);

/// What an honest peer gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// Share of the datagrams.
    pub(crate) lost: f64,
    /// Bytes of the stream arrived until the end.
    pub(crate) stream_flows: bool,
}

/// What arrives within `time`.
pub(crate) fn measure(network: &Network, time: Duration) -> Figures {
    let begun = Instant::now();
    let (hub, spoke) = (network.host("hub"), network.host("spoke"));
    let receiver = hub.run(|| UdpSocket::bind("127.0.0.1:9001").expect("bound"));
    let receiver = receiver.expect("entered");
    let sender = spoke.run(|| UdpSocket::bind("127.0.0.1:0").expect("bound"));
    let sender = sender.expect("entered");
    sender.connect("127.0.0.1:5000").expect("connected");
    let listener = hub.run(|| TcpListener::bind("127.0.0.1:9002").expect("bound"));
    let listener = listener.expect("entered");
    let stream = spoke.run(|| TcpStream::connect("127.0.0.1:5001").expect("connected"));
    let stream = stream.expect("entered");
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, begun, &ends));
        let writing = scope.spawn(|| write(stream, &ends));
        let reading = scope.spawn(|| read(&listener, &ends));
        let sent = send(&sender, begun, time);
        thread::sleep(LATE);
        ends.store(true, Ordering::Relaxed);
        let mut delays = receiving.join().expect("it ends");
        writing.join().expect("it ends");
        let last = reading.join().expect("it ends");
        delays.sort();
        let at = |share: f64| {
            let place = (delays.len() as f64 * share) as usize;
            delays.get(place).copied().unwrap_or(Duration::MAX)
        };
        Figures {
            p50: at(0.5),
            p99: at(0.99),
            lost: 1.0 - delays.len() as f64 / sent as f64,
            stream_flows: last.is_some_and(|last| last.elapsed() < 2 * LATE),
        }
    })
}

/// How many were sent.
fn send(socket: &UdpSocket, begun: Instant, time: Duration) -> u64 {
    let from = begun.elapsed();
    let mut sent = 0;
    while begun.elapsed() < from + time {
        let now = u64::try_from(begun.elapsed().as_nanos()).expect("short");
        // An error is about one before.
        let _ = socket.send(&now.to_be_bytes());
        sent += 1;
        let next = from + INTERVAL * sent;
        thread::sleep(next.saturating_sub(begun.elapsed()));
    }
    u64::from(sent)
}

/// The delays of those that arrive.
fn receive(socket: &UdpSocket, begun: Instant, ends: &AtomicBool) -> Vec<Duration> {
    let wait = Some(Duration::from_millis(100));
    socket.set_read_timeout(wait).expect("set");
    let mut delays = Vec::new();
    let mut buffer = [0; 16];
    while !ends.load(Ordering::Relaxed) {
        if let Ok(8) = socket.recv(&mut buffer) {
            let sent = u64::from_be_bytes(buffer[..8].try_into().expect("8 bytes"));
            delays.push(begun.elapsed().saturating_sub(Duration::from_nanos(sent)));
        }
    }
    delays
}

fn write(mut stream: TcpStream, ends: &AtomicBool) {
    let wait = Some(Duration::from_millis(100));
    stream.set_write_timeout(wait).expect("set");
    while !ends.load(Ordering::Relaxed) {
        if let Err(error) = stream.write_all(&[7; 4000])
            && error.kind() != ErrorKind::WouldBlock
        {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// When bytes came last; `None`: none came.
fn read(listener: &TcpListener, ends: &AtomicBool) -> Option<Instant> {
    listener.set_nonblocking(true).expect("set");
    let mut accepted = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) if ends.load(Ordering::Relaxed) => return None,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    let wait = Some(Duration::from_millis(100));
    accepted.set_nonblocking(false).expect("set");
    accepted.set_read_timeout(wait).expect("set");
    let (mut last, mut buffer) = (None, vec![0; 1 << 16]);
    while !ends.load(Ordering::Relaxed) {
        match accepted.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => last = Some(Instant::now()),
            Err(_) => {}
        }
    }
    last
}
