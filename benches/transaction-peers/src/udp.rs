//! Bare datagrams: the connection's number, then the data read from it. Nothing is encrypted, acknowledged or
//! retransmitted, so the line must lose nothing. What remains is the cost of any two relays in user space:
//! two more wake-ups, and the kernel's part.

use std::{
    collections::HashMap,
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
};

use anyhow::Context;
use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream, UdpSocket},
};

use crate::{Relay, ready};

const LISTENER: Token = Token(0);
const DATAGRAMS: Token = Token(1);
/// The token of the first connection.
const FIRST: usize = 2;

/// Larger than any message of the experiment.
const READ_MAX: usize = 1200;
const NUMBER_LEN: usize = 4;

struct Carrier {
    poll: Poll,
    udp: UdpSocket,
    connections: HashMap<usize, TcpStream>,
}

impl Carrier {
    fn new(mut udp: UdpSocket) -> anyhow::Result<Self> {
        let poll = Poll::new().context("no poll")?;
        poll.registry()
            .register(&mut udp, DATAGRAMS, Interest::READABLE)?;
        Ok(Self {
            poll,
            udp,
            connections: HashMap::new(),
        })
    }

    fn add(&mut self, number: usize, mut tcp: TcpStream) -> anyhow::Result<()> {
        tcp.set_nodelay(true)?;
        self.poll
            .registry()
            .register(&mut tcp, Token(number), Interest::READABLE)?;
        self.connections.insert(number, tcp);
        Ok(())
    }

    /// Sends the data of a connection, a datagram per read; an empty one marks the end.
    fn from_tcp(&mut self, number: usize, send: impl Fn(&UdpSocket, &[u8])) {
        let Some(tcp) = self.connections.get_mut(&number) else {
            return;
        };
        let mut datagram = [0; NUMBER_LEN + READ_MAX];
        datagram[..NUMBER_LEN].copy_from_slice(&(number as u32).to_be_bytes());
        loop {
            match tcp.read(&mut datagram[NUMBER_LEN..]) {
                Ok(read) => {
                    send(&self.udp, &datagram[..NUMBER_LEN + read]);
                    if read == 0 {
                        self.connections.remove(&number);
                        return;
                    }
                    // Later data wakes the poll again only if all of it was read.
                    if read < READ_MAX && tcp_is_empty(tcp) {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.connections.remove(&number);
                    return;
                }
            }
        }
    }

    /// A message of the experiment is small, and a local connection accepts it at once.
    fn to_tcp(&mut self, number: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            self.connections.remove(&number);
        } else if let Some(tcp) = self.connections.get_mut(&number)
            && let Err(error) = tcp.write_all(bytes)
        {
            eprintln!("a connection ended: {error}");
            self.connections.remove(&number);
        }
    }
}

/// Edge-triggered polls report only new events, so one more read must show that nothing is left.
fn tcp_is_empty(tcp: &TcpStream) -> bool {
    matches!(tcp.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn number_of(datagram: &[u8]) -> Option<(usize, &[u8])> {
    let (number, bytes) = datagram.split_first_chunk::<NUMBER_LEN>()?;
    Some((u32::from_be_bytes(*number) as usize, bytes))
}

fn wait(poll: &mut Poll, events: &mut Events) -> io::Result<()> {
    loop {
        match poll.poll(events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

pub(crate) fn client(relay: &Relay) -> anyhow::Result<()> {
    let udp = UdpSocket::bind(SocketAddr::new([0, 0, 0, 0].into(), 0))?;
    udp.connect(relay.connect)?;
    let mut listener = TcpListener::bind(relay.listen)
        .with_context(|| format!("cannot listen at {}", relay.listen))?;
    let mut carrier = Carrier::new(udp)?;
    carrier
        .poll
        .registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    ready()?;
    let mut events = Events::with_capacity(64);
    let mut next = FIRST;
    let mut datagram = [0; 2048];
    loop {
        wait(&mut carrier.poll, &mut events)?;
        for event in &events {
            match event.token() {
                LISTENER => {
                    while let Ok((tcp, _)) = listener.accept() {
                        carrier.add(next, tcp)?;
                        next += 1;
                    }
                }
                DATAGRAMS => {
                    while let Ok(len) = carrier.udp.recv(&mut datagram) {
                        if let Some((number, bytes)) = number_of(&datagram[..len]) {
                            carrier.to_tcp(number, bytes);
                        }
                    }
                }
                Token(number) => carrier.from_tcp(number, |udp, bytes| {
                    let _ = udp.send(bytes);
                }),
            }
        }
    }
}

pub(crate) fn server(relay: &Relay) -> anyhow::Result<()> {
    let udp = UdpSocket::bind(relay.listen)
        .with_context(|| format!("cannot listen at {}", relay.listen))?;
    let mut carrier = Carrier::new(udp)?;
    ready()?;
    let mut events = Events::with_capacity(64);
    let mut client = None;
    let mut datagram = [0; 2048];
    loop {
        wait(&mut carrier.poll, &mut events)?;
        for event in &events {
            let Token(number) = event.token();
            if event.token() != DATAGRAMS {
                carrier.from_tcp(number, |udp, bytes| {
                    let _ = client.map(|client| udp.send_to(bytes, client));
                });
                continue;
            }
            while let Ok((len, from)) = carrier.udp.recv_from(&mut datagram) {
                client = Some(from);
                let Some((number, bytes)) = number_of(&datagram[..len]) else {
                    continue;
                };
                if !bytes.is_empty() && !carrier.connections.contains_key(&number) {
                    // The server is a neighbour; it answers at once.
                    let tcp = std::net::TcpStream::connect(relay.connect)?;
                    tcp.set_nonblocking(true)?;
                    carrier.add(number, TcpStream::from_std(tcp))?;
                }
                carrier.to_tcp(number, bytes);
            }
        }
    }
}
