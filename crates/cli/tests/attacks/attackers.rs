//! What attacks a gateway: strangers with forged addresses, a peer that says wrong things, local clients.

use std::{
    io::IoSlice,
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use keiro_core::wire::{Frame, Reader};
use keiro_linux::{
    netns::Netns,
    packet::{PacketOptions, PacketSocket},
};
use socket2::{Domain, Socket, Type};

use crate::{
    network::{HOSTILE_KEYS, HUB, HUB_LISTENER, Network, SPOKE_SERVER, streams_of},
    support::{Hello, Raw, app, frame, message, varint},
};

/// Different initiations of a flood.
const INITIATIONS: u64 = 256;
/// Frames that are sent at a time.
const BATCH: usize = 32;
/// What a hostile peer may do, and its packets in a second.
pub(crate) type Kind = (&'static str, f64);

pub(crate) const STREAM_OPENS: Kind = ("stream opens", 400.0);
pub(crate) const GAPS: Kind = ("gaps", 5000.0);

/// The first is harmless, to compare with. The last does what the others do, in turn.
pub(crate) const HOSTILE: [Kind; 8] = [
    ("pings", 5000.0),
    STREAM_OPENS,
    ("path numbers", 5000.0),
    GAPS,
    ("parity", 5000.0),
    ("challenges", 2000.0),
    ("moving addresses", 500.0),
    ("mix", 2000.0),
];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Attack {
    /// Forged initiations with a right first MAC. `rate`: how many a second.
    Initiations { rate: f64 },
    /// So many connections of a local client of the hub.
    Connects { count: usize },
    /// One hostile peer, or two at once.
    Peers {
        first: Kind,
        second: Option<Kind>,
        /// They say that they go; else they are silent from one moment to the next.
        closes: bool,
    },
}

/// An attack that goes on until it is stopped.
pub(crate) struct Running {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Attack {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Initiations { rate } => format!("{rate} initiations/s"),
            Self::Connects { count } => format!("{count} local connects"),
            Self::Peers {
                first: (first, _),
                second,
                closes,
            } => {
                let second = second.map_or(String::new(), |(second, _)| format!(" + {second}"));
                let end = if closes { "" } else { ", silent" };
                format!("peer: {first}{second}{end}")
            }
        }
    }

    /// The packets that are to reach the hub in a second, or the connections in all.
    pub(crate) fn asked(self) -> f64 {
        match self {
            Self::Initiations { rate } => rate,
            Self::Peers { first, second, .. } => first.1 + second.map_or(0.0, |(_, rate)| rate),
            Self::Connects { count } => count as f64,
        }
    }

    pub(crate) fn start(self, network: &Network) -> Running {
        let ends = Arc::new(AtomicBool::new(false));
        let pace = || Pace {
            begun: Instant::now(),
            ends: Arc::clone(&ends),
            sent: AtomicU64::new(0),
        };
        let threads = match self {
            Self::Initiations { rate } => {
                let (flood, pace) = (Flood::open(network), pace());
                vec![thread::spawn(move || flood.run(rate, &pace))]
            }
            Self::Connects { count } => {
                let at = |host| Netns::open(network.host(host).namespace()).expect("it is there");
                let (hub, spoke) = (at("hub"), at("spoke"));
                let pace = pace();
                let server = spoke.run(|| never_accepts(count)).expect("entered");
                vec![thread::spawn(move || {
                    hub.run(|| connect(count, &pace)).expect("entered");
                    drop(server);
                })]
            }
            Self::Peers {
                first,
                second,
                closes,
            } => {
                let crowd = network.host("crowd");
                let bind = || UdpSocket::bind("10.90.3.2:0").expect("bound");
                let peers = [Some(first), second]
                    .into_iter()
                    .flatten()
                    .zip(HOSTILE_KEYS);
                // All are there before one of them begins.
                let peers: Vec<_> = peers
                    .map(|(kind, gateway)| {
                        let sockets = (0..64).map(|_| crowd.run(bind).expect("entered"));
                        (kind, Peer::connect(gateway, sockets.collect()))
                    })
                    .collect();
                let run = |(kind, peer): (Kind, Peer)| {
                    let pace = pace();
                    thread::spawn(move || peer.run(kind, closes, &pace))
                };
                peers.into_iter().map(run).collect()
            }
        };
        Running { ends, threads }
    }
}

impl Running {
    pub(crate) fn stop(self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("it ends");
        }
    }
}

/// When the next of something is due.
struct Pace {
    begun: Instant,
    ends: Arc<AtomicBool>,
    sent: AtomicU64,
}

impl Pace {
    /// Waits until the next is due at `rate`; `None`: the attack ends.
    fn wait(&self, rate: f64) -> Option<u64> {
        loop {
            if self.ends.load(Ordering::Relaxed) {
                return None;
            }
            let sent = self.sent.load(Ordering::Relaxed);
            let due = self.begun.elapsed().as_secs_f64() * rate;
            if (sent as f64) < due {
                return Some(sent);
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn on_sent(&self, count: u64) {
        self.sent.fetch_add(count, Ordering::Relaxed);
    }
}

/// Initiations of a stranger, from a different address each.
struct Flood {
    socket: PacketSocket,
    frames: Vec<Vec<u8>>,
}

impl Flood {
    fn open(network: &Network) -> Self {
        let options = PacketOptions {
            ring_frames: 32,
            outgoing: false,
        };
        let open = || PacketSocket::open("crowd", options).expect("opened");
        let socket = network.host("crowd").run(open).expect("entered");
        let [to, from] = ["hub", "crowd"].map(|host| mac(&network.ip(host, "-o link show crowd")));
        let payloads = (0..INITIATIONS).map(|number| Hello::new(9, 1, number + 1).initiate().1);
        let frames =
            payloads.map(|payload| [&to[..], &from, &[8, 0], &datagram(&payload)].concat());
        Self {
            socket,
            frames: frames.collect(),
        }
    }

    fn run(mut self, rate: f64, pace: &Pace) {
        let mut random = 12_345u32;
        while let Some(sent) = pace.wait(rate) {
            let due = pace.begun.elapsed().as_secs_f64() * rate - sent as f64;
            let count = (due as usize).clamp(1, BATCH);
            let first = sent as usize % (self.frames.len() - BATCH);
            for frame in &mut self.frames[first..first + count] {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                forge(frame, random);
            }
            let batch: Vec<IoSlice<'_>> = self.frames[first..first + count]
                .iter()
                .map(|frame| IoSlice::new(frame))
                .collect();
            let outcome = self.socket.send(&batch);
            pace.on_sent((outcome.sent + outcome.failed) as u64);
        }
    }
}

/// The address behind `link/ether` in what `ip link` prints.
fn mac(shown: &str) -> [u8; 6] {
    let (_, rest) = shown.split_once("link/ether ").expect("an address");
    let text = rest.split_whitespace().next().expect("an address");
    let bytes = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"));
    bytes.collect::<Vec<u8>>().try_into().expect("six bytes")
}

/// An IPv4 packet to the hub, without its source and checksum.
fn datagram(payload: &[u8]) -> Vec<u8> {
    let len = |more: usize| {
        u16::try_from(payload.len() + more)
            .expect("short")
            .to_be_bytes()
    };
    let mut packet = vec![0x45, 0];
    packet.extend(len(28));
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 10, 90, 1, 1, 0, 0]);
    packet.extend(7600u16.to_be_bytes());
    packet.extend(len(8));
    packet.extend([0, 0]);
    packet.extend_from_slice(payload);
    packet
}

/// Gives a frame another source, 10.200.0.0/15 and a port, and the checksum of its header.
fn forge(frame: &mut [u8], random: u32) {
    let [_, port, high, low] = random.to_be_bytes();
    let ip = &mut frame[14..];
    ip[10..12].fill(0);
    ip[12..16].copy_from_slice(&[10, 200 + (port & 1), high, low]);
    ip[20..22].copy_from_slice(&[0x40 | port >> 1, low | 1]);
    let words = ip[..20]
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    ip[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
}

/// Connections to a TCP listener of the hub, all kept.
fn connect(count: usize, pace: &Pace) {
    let to: SocketAddr = HUB_LISTENER.parse().expect("an address");
    let mut open = Vec::new();
    while !pace.ends.load(Ordering::Relaxed) && open.len() < count {
        open.extend(TcpStream::connect_timeout(&to, Duration::from_millis(500)));
    }
    while !pace.ends.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(10));
    }
}

/// A server whose kernel answers `count` clients, so that no descriptors of this process are needed for them.
fn never_accepts(count: usize) -> Socket {
    let server = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let address: SocketAddr = SPOKE_SERVER.parse().expect("an address");
    server.bind(&address.into()).expect("bound");
    server
        .listen(i32::try_from(count).expect("not many"))
        .expect("listens");
    server
}

/// An authenticated peer.
struct Peer {
    /// By its key.
    gateway: u8,
    sockets: Vec<UdpSocket>,
    raw: Arc<Mutex<Raw>>,
    ends: Arc<AtomicBool>,
    answering: JoinHandle<()>,
}

fn lock(raw: &Mutex<Raw>) -> MutexGuard<'_, Raw> {
    raw.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_nanos() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(time.expect("after 1970").as_nanos()).expect("before 2554")
}

impl Peer {
    fn connect(gateway: u8, sockets: Vec<UdpSocket>) -> Self {
        let wait = Some(Duration::from_millis(100));
        for socket in &sockets {
            socket.connect(HUB).expect("connected");
            socket.set_read_timeout(wait).expect("set");
        }
        let incarnation = unix_nanos();
        let mut buffer = [0; 2000];
        let raw = loop {
            let mut hello = Hello::new(gateway, 1, unix_nanos());
            hello.incarnation = incarnation;
            let (state, initiation) = hello.initiate();
            sockets[0].send(&initiation).expect("sent");
            match sockets[0].recv(&mut buffer) {
                Ok(120) if buffer[0] == 2 => break Raw::new(state, &buffer[..120]),
                _ => {}
            }
        };
        let (raw, ends) = (Arc::new(Mutex::new(raw)), Arc::new(AtomicBool::new(false)));
        let heard: Vec<UdpSocket> = sockets
            .iter()
            .map(|s| s.try_clone().expect("open"))
            .collect();
        let (shared, until) = (Arc::clone(&raw), Arc::clone(&ends));
        let answering = thread::spawn(move || answer(&heard, &shared, &until));
        let peer = Self {
            gateway,
            sockets,
            raw,
            ends,
            answering,
        };
        peer.say(0, 0, &[1]);
        thread::sleep(Duration::from_millis(300));
        peer
    }

    fn say(&self, socket: usize, path: u8, frames: &[u8]) {
        let packet = lock(&self.raw).packet_on(path, frames);
        // What the kernel does not take is lost.
        let _ = self.sockets[socket].send(&packet);
    }

    fn run(self, (kind, rate): Kind, closes: bool, pace: &Pace) {
        let streams = streams_of(self.gateway);
        while let Some(number) = pace.wait(rate) {
            // Each for a while, so that it has some effect.
            let kind = match kind {
                "mix" => HOSTILE[number as usize / 64 % (HOSTILE.len() - 1)].0,
                kind => kind,
            };
            let (path, frames) = said(kind, &streams, number);
            let socket = match kind {
                "moving addresses" => number as usize % self.sockets.len(),
                _ => 0,
            };
            self.say(socket, path, &frames);
            pace.on_sent(1);
        }
        if closes {
            self.say(0, 0, &frame(11, &[]));
        }
        self.ends.store(true, Ordering::Relaxed);
        self.answering.join().expect("it ends");
    }
}

/// Answers challenges, wherever they come, so that the path stays up.
fn answer(sockets: &[UdpSocket], raw: &Mutex<Raw>, ends: &AtomicBool) {
    for socket in sockets {
        socket.set_nonblocking(true).expect("set");
    }
    let mut buffer = [0; 2000];
    while !ends.load(Ordering::Relaxed) {
        let mut heard = false;
        for socket in sockets {
            while let Ok(len) = socket.recv(&mut buffer) {
                heard = true;
                if buffer[0] != 4 {
                    continue;
                }
                let clear = lock(raw).open(&buffer[..len]);
                let mut reader = Reader::new(&clear);
                while let Ok(Some(heard)) = Frame::decode(&mut reader) {
                    if let Frame::PathChallenge(token) = heard {
                        let packet = lock(raw).packet(&frame(4, &[&token.to_be_bytes()]));
                        let _ = socket.send(&packet);
                    }
                }
            }
        }
        if !heard {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Packet `number` of an attack: its path and its frames.
fn said(kind: &str, streams: &str, number: u64) -> (u8, Vec<u8>) {
    match kind {
        "stream opens" => {
            let opens = (number * 40..(number + 1) * 40)
                .flat_map(|stream| frame(12, &[&varint(stream << 1), &app(streams), &[0]]));
            (0, opens.collect())
        }
        "path numbers" => ((number % 256) as u8, vec![1]),
        "gaps" => {
            let (stream, part) = (varint((number / 8) << 1), number % 8);
            let byte = |offset: u64| frame(13, &[&stream, &varint(offset), &[1], b"x"]);
            let first = part * 32;
            (
                0,
                (first..first + 32)
                    .flat_map(|gap| byte(1 + gap * 2))
                    .collect(),
            )
        }
        "parity" => {
            let (group, index) = (number / 32, (number % 32) as u8);
            let shard = vec![index.wrapping_mul(37) ^ 5; 1250];
            let body = [&[0][..], &varint(group * 32), &[32, 64, index], &shard].concat();
            (0, frame(0x44, &[&varint(body.len() as u64), &body]))
        }
        "challenges" => {
            let many = (0..140u64).flat_map(|place| frame(3, &[&(number + place).to_be_bytes()]));
            (0, many.collect())
        }
        "pings" | "moving addresses" => (0, vec![1]),
        _ => (0, message(number, 1, 0, b"x")),
    }
}
