//! A path's middle that can become slow: a UDP relay on loopback.

use std::{
    collections::VecDeque,
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Passes datagrams on between whoever sends to its front and one address, the way there with a delay.
/// It ends with the value.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    delay_micros: AtomicU64,
    stop: AtomicBool,
}

impl Relay {
    /// From `front` to `to`, which sees `back`.
    pub(crate) fn start(front: &str, back: &str, to: &str) -> Self {
        let bind = |address: &str| {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let (front, back) = (bind(front), bind(back));
        let to = to.parse().unwrap();
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = thread::spawn(move || pass_on(&of_thread, &front, &back, to));
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// From now on the way there takes so long.
    pub(crate) fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap();
        self.shared.delay_micros.store(micros, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn pass_on(shared: &Shared, front: &UdpSocket, back: &UdpSocket, to: SocketAddr) {
    let mut buffer = vec![0; 65_536];
    let mut under_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut from = None;
    while !shared.stop.load(Ordering::Relaxed) {
        let mut idle = true;
        while let Some((length, sender)) = receive(front, &mut buffer) {
            let delay = Duration::from_micros(shared.delay_micros.load(Ordering::Relaxed));
            under_way.push_back((Instant::now() + delay, buffer[..length].to_vec()));
            from = Some(sender);
            idle = false;
        }
        while let (Some((length, _)), Some(from)) = (receive(back, &mut buffer), from) {
            // A full buffer loses it, as lines do.
            let _ = front.send_to(&buffer[..length], from);
            idle = false;
        }
        let is_due = |(due, _): &(Instant, Vec<u8>)| *due <= Instant::now();
        while under_way.front().is_some_and(is_due) {
            let (_, datagram) = under_way.pop_front().expect("it is the first");
            let _ = back.send_to(&datagram, to);
            idle = false;
        }
        if idle {
            // Its clock; nothing is waited for.
            thread::sleep(Duration::from_micros(200));
        }
    }
}

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    match socket.recv_from(buffer) {
        Ok(received) => Some(received),
        // Nothing is there, or nobody was at the other end.
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => None,
        Err(error) => panic!("{error}"),
    }
}
