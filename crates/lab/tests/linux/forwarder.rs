//! Two TUN devices joined by a loop, as a tunnel without paths between them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use keiro_ip::{
    Header, checksum, fragment,
    icmp::{self, REPLY_BYTES_MAX, Reason, ReplyFrom},
    mss,
    offload::{Coalescer, Segments, VNET_HEADER_BYTES, VnetHeader},
    ttl,
};
use keiro_linux::{
    epoll::{Epoll, Interest, ReadyList},
    route::{Address, Entry, Installed, Route, RouteSocket, TABLE_MAIN, Via},
    tun::{READ_BYTES_MAX, Tun, TunOptions},
};

use crate::{
    device::options,
    namespace::{Namespace, wait_until},
};

/// One end: a namespace with a device.
pub(crate) struct End {
    pub(crate) namespace: Namespace,
    pub(crate) tun: Tun,
    /// Its addresses and routes.
    _installed: Installed,
}

/// How the loop modifies packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Maximum length of forwarded packets, in bytes.
    pub(crate) mtu: u16,
    /// Clamps TCP's MSS to this.
    pub(crate) clamp: bool,
}

/// What the loop counted in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoopCounters {
    pub(crate) reads: u64,
    pub(crate) packets: u64,
    pub(crate) writes: u64,
    pub(crate) largest: usize,
    pub(crate) malformed: u64,
    pub(crate) too_big: u64,
    pub(crate) write_errors: u64,
}

pub(crate) struct Forwarder {
    pub(crate) ends: [Arc<End>; 2],
    stop: Arc<AtomicBool>,
    counters: Arc<Mutex<LoopCounters>>,
    thread: Option<JoinHandle<()>>,
}

/// Address of end `0` or `1` by IP version.
pub(crate) fn address(end: usize, v6: bool) -> &'static str {
    match (end, v6) {
        (0, false) => "10.70.0.1",
        (_, false) => "10.80.0.1",
        (0, true) => "fd00:70::1",
        (_, true) => "fd00:80::1",
    }
}

impl End {
    /// End `0` or `1`: its own addresses, routes to the other's.
    fn new(end: usize, offloads: bool, mtu: u32) -> Self {
        let namespace = Namespace::new();
        let wanted = TunOptions {
            offloads,
            ..options("tenant0")
        };
        let tun = Tun::open_in(&namespace.0, &wanted).unwrap();
        let mut socket = RouteSocket::open_in(&namespace.0).unwrap();
        socket.refuse_link_local(tun.index()).unwrap();
        tun.set_mtu(mtu).unwrap();
        tun.set_up().unwrap();
        let interface = tun.index();
        let mut entries = Vec::new();
        for v6 in [false, true] {
            let own = format!("{}/{}", address(end, v6), if v6 { 128 } else { 32 });
            let other = format!("{}/{}", address(1 - end, v6), if v6 { 64 } else { 24 });
            entries.push(Entry::Address(Address {
                interface,
                address: own.parse().unwrap(),
            }));
            entries.push(Entry::Route(Route {
                destination: other.parse().unwrap(),
                table: TABLE_MAIN,
                via: Via::Interface(interface),
                metric: 0,
            }));
        }
        let mut installed = Installed::new(socket);
        let done = installed.set(&entries).unwrap();
        assert!(done.foreign.is_empty() && done.errors.is_empty());
        // The kernel enables an IPv6 address asynchronously.
        let own = format!("local {}", address(end, true));
        wait_until("the address works", || {
            namespace.ip("-6 route show table local").contains(&own)
        });
        Self {
            namespace,
            tun,
            _installed: installed,
        }
    }
}

impl Forwarder {
    pub(crate) fn start(offloads: [bool; 2], mtus: [u32; 2], settings: Settings) -> Self {
        let ends = [0, 1].map(|end| Arc::new(End::new(end, offloads[end], mtus[end])));
        let stop = Arc::new(AtomicBool::new(false));
        let counters = Arc::default();
        let forwarding = Loop::new(ends.clone(), settings, Arc::clone(&counters));
        let stopping = Arc::clone(&stop);
        let thread = thread::spawn(move || forwarding.run(&stopping));
        Self {
            ends,
            stop,
            counters,
            thread: Some(thread),
        }
    }

    /// Stops forwarding. Packets written before are counted, because the receiver may have them already.
    pub(crate) fn end(&mut self) -> LoopCounters {
        self.join();
        *self.counters.lock().unwrap()
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let result = self.thread.take().map(JoinHandle::join);
        if let Some(Err(panic)) = result
            && !thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.join();
    }
}

struct Loop {
    ends: [Arc<End>; 2],
    settings: Settings,
    counters: Arc<Mutex<LoopCounters>>,
    /// Packets to write to each end.
    outgoing: [Coalescer; 2],
    segment: Vec<u8>,
}

impl Loop {
    fn new(ends: [Arc<End>; 2], settings: Settings, counters: Arc<Mutex<LoopCounters>>) -> Self {
        let outgoing = [0, 1].map(|end: usize| {
            let offloads = ends[end].tun.offloads();
            Coalescer::new(128, offloads.tcp, offloads.udp)
        });
        Self {
            ends,
            settings,
            counters,
            outgoing,
            segment: vec![0; READ_BYTES_MAX],
        }
    }

    fn run(mut self, stop: &AtomicBool) {
        let epoll = Epoll::new().unwrap();
        for (token, end) in self.ends.iter().enumerate() {
            let queue = &end.tun.queues()[0];
            epoll.add(queue, token as u64, Interest::Read).unwrap();
        }
        let mut ready = ReadyList::new(2);
        let mut buffer = vec![0; READ_BYTES_MAX];
        while !stop.load(Ordering::Relaxed) {
            epoll
                .wait(&mut ready, Some(Duration::from_millis(20)))
                .unwrap();
            for from in 0..2 {
                for _ in 0..64 {
                    let end = Arc::clone(&self.ends[from]);
                    match end.tun.queues()[0].read(&mut buffer) {
                        Ok(Some(length)) => self.take(from, &buffer[..length]),
                        Ok(None) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            self.write(0);
            self.write(1);
        }
    }

    fn take(&mut self, from: usize, bytes: &[u8]) {
        let (vnet, packet) = match self.ends[from].tun.offloads().vnet_header {
            true => VnetHeader::split(bytes).expect("a header that was asked for"),
            false => (VnetHeader::default(), bytes),
        };
        let mut segments = Segments::new(vnet, packet).expect("what the kernel sends can be cut");
        let count = segments.count() as u64;
        self.count(|counters| {
            counters.reads += 1;
            counters.packets += count;
        });
        let mut out = std::mem::take(&mut self.segment);
        while let Some(length) = segments.write_next(&mut out) {
            self.forward(from, &mut out[..length]);
        }
        self.segment = out;
    }

    fn forward(&mut self, from: usize, packet: &mut [u8]) {
        let Ok(header) = Header::parse(packet) else {
            self.count(|counters| counters.malformed += 1);
            return;
        };
        if !header.is_routable() {
            return;
        }
        assert_checksum(packet, &header);
        let mtu = self.settings.mtu;
        if ttl::decrement(packet, header.version()).is_err() {
            return self.answer(from, packet, &header, Reason::HopLimitExceeded);
        }
        if self.settings.clamp {
            mss::clamp(packet, &header, mtu);
        }
        let mut parts = Vec::new();
        match fragment::fragment(packet, &header, mtu, |part| parts.push(part.to_vec())) {
            Ok(()) => {}
            Err(_) => {
                self.count(|counters| counters.too_big += 1);
                return self.answer(from, packet, &header, Reason::TooBig { mtu });
            }
        }
        for part in parts {
            self.count(|counters| counters.largest = counters.largest.max(part.len()));
            self.push(1 - from, &part);
        }
    }

    fn answer(&mut self, to: usize, packet: &[u8], header: &Header, reason: Reason) {
        let from = ReplyFrom {
            v4: Some("10.90.0.1".parse().unwrap()),
            v6: Some("fd00:90::1".parse().unwrap()),
        };
        let mut out = [0; REPLY_BYTES_MAX];
        if let Ok(reply) = icmp::reply(packet, header, reason, from, &mut out) {
            self.push(to, reply);
        }
    }

    fn push(&mut self, to: usize, packet: &[u8]) {
        if self.outgoing[to].push(packet).is_err() {
            self.write(to);
            self.outgoing[to].push(packet).expect("there is room now");
        }
    }

    fn write(&mut self, to: usize) {
        let tun = &self.ends[to].tun;
        let skip = match tun.offloads().vnet_header {
            true => 0,
            false => VNET_HEADER_BYTES,
        };
        let (mut writes, mut errors) = (0, 0);
        self.outgoing[to].drain(|bytes| {
            writes += 1;
            if !matches!(tun.queues()[0].write(&bytes[skip..]), Ok(true)) {
                errors += 1;
            }
        });
        self.count(|counters| {
            counters.writes += writes;
            counters.write_errors += errors;
        });
    }

    fn count(&self, f: impl FnOnce(&mut LoopCounters)) {
        f(&mut self.counters.lock().unwrap());
    }
}

/// Segments have correct checksums, compared with a plain sum.
fn assert_checksum(packet: &[u8], header: &Header) {
    if header.fragment.is_none() && matches!(header.protocol, 6 | 17) {
        let segment = &packet[header.transport..];
        let sum = checksum::Sum::default()
            .pseudo_header(
                header.version(),
                packet,
                header.protocol,
                segment.len() as u32,
            )
            .bytes(segment);
        assert!(sum.is_valid(), "{header:?}");
    }
}
