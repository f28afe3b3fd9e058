//! Instructions per packet and stage: `cargo bench -p keiro-core --bench instructions [-- CASE]`.
//!
//! Runs itself under valgrind's callgrind, so that the same source gives the same counts on every machine and beside
//! any load. Two endpoints hand packets to each other in memory. `queue` is what the driver calls with what is to be
//! sent, `transmit` and `receive` are `poll_transmit` and `handle_datagram` of both ends, so that acknowledgements are
//! included, `deliver` is `poll_delivery`, and `timers` are `poll_timeout` and `handle_timeout`. `cipher`, `copies` and
//! `memory` are what AES, memcpy and malloc take of all of these; `own` is the rest.

use std::{collections::BTreeMap, net::SocketAddr, path::Path, process::Command, time::Duration};

use keiro_core::{
    DatagramMeta, Delivery, DeliveryClass, Endpoint, FlowId, Instant, IpPacket, NewDatagram,
    PeerId, SocketId, StreamId, TenantConfig, TenantId, TransmitBuf,
};
use keiro_model::fairness::controller::ControllerConfig;
use keiro_units::Bandwidth;

mod ends;

use ends::APP;

const TENANT: TenantId = TenantId(1);
const RATE: Bandwidth = Bandwidth::from_mbit_per_second(10_000);
/// Turns before and while instructions are counted.
const WARM_UP: usize = 1500;
const COUNTED: usize = 300;
/// Items of so many turns that may be on their way: no queue grows, and no window is more than full.
const TURNS_AHEAD: usize = 3;
/// Functions of this file that are stages.
const STAGES: [&str; 5] = ["queue", "transmit", "receive", "deliver", "timers"];

/// What is sent, and how much of it in every turn.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    class: DeliveryClass,
    controller: Option<ControllerConfig>,
    /// Bytes of an item, and items per turn.
    len: usize,
    count: usize,
}

const CASES: [Case; 6] = [
    Case {
        name: "bulk",
        class: DeliveryClass::Datagram,
        controller: Some(ControllerConfig::Keiro { unit: Some(RATE) }),
        len: 1400,
        count: 46,
    },
    Case {
        name: "bulk-open",
        class: DeliveryClass::Datagram,
        controller: Some(ControllerConfig::Open),
        len: 1400,
        count: 46,
    },
    Case {
        name: "small",
        class: DeliveryClass::Datagram,
        controller: Some(ControllerConfig::Keiro { unit: Some(RATE) }),
        len: 92,
        count: 64,
    },
    Case {
        name: "datagrams",
        class: DeliveryClass::Datagram,
        controller: None,
        len: 1200,
        count: 46,
    },
    Case {
        name: "messages",
        class: DeliveryClass::Message,
        controller: None,
        len: 64 << 10,
        count: 1,
    },
    Case {
        name: "streams",
        class: DeliveryClass::Stream,
        controller: None,
        len: 64 << 10,
        count: 1,
    },
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name] = &args[..]
        && flag == "--count"
        && let Some(case) = CASES.iter().find(|case| case.name == name)
    {
        return run(*case);
    }
    let wanted: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    println!(
        "{:<10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "per packet",
        "queue",
        "transmit",
        "receive",
        "deliver",
        "timers",
        "all",
        "cipher",
        "copies",
        "memory",
        "own"
    );
    for case in CASES {
        if wanted.is_empty() || wanted.iter().any(|name| *name == case.name) {
            count(case);
        }
    }
}

/// Runs a case under callgrind and prints its counts.
fn count(case: Case) {
    let out = std::env::temp_dir().join(format!("keiro-callgrind-{}.out", std::process::id()));
    let program = std::env::current_exe().expect("this program has a path");
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--toggle-collect=*counted_turns*",
        ])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(["--count", case.name])
        .output()
        .expect("valgrind is installed");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let packets: f64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .expect("the program prints how many packets it has counted");
    let profile = Profile::read(&out);
    let _ = std::fs::remove_file(&out);
    let stages = STAGES.map(|stage| profile.inclusive(&format!("stage_{stage}")) / packets);
    let classes = ["cipher", "copies", "memory", "own"].map(|class| profile.own(class) / packets);
    let all: f64 = stages.iter().sum();
    let columns = stages.iter().chain([&all]).chain(&classes);
    let columns: Vec<String> = columns.map(|count| format!("{count:>8.0}")).collect();
    println!("{:<10} {}", case.name, columns.join(" "));
    if std::env::var_os("KEIRO_TOP").is_some() {
        for (name, cost) in profile.most(60) {
            println!("    {:>8.1}  {name}", cost / packets);
        }
    }
}

/// Costs of functions, from a file of callgrind.
struct Profile {
    own: BTreeMap<String, f64>,
    called: BTreeMap<String, f64>,
}

impl Profile {
    fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).expect("callgrind has written its file");
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        let mut profile = Self {
            own: BTreeMap::new(),
            called: BTreeMap::new(),
        };
        let mut name_of = |text: &str| {
            let (id, name) = text.split_once(' ').unwrap_or((text, ""));
            let known = names.entry(id.to_string()).or_default();
            if !name.is_empty() {
                *known = name.to_string();
            }
            known.clone()
        };
        let (mut function, mut callee) = (String::new(), None);
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                function = name_of(name);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = Some(name_of(name));
            } else if line
                .starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            {
                let cost: f64 = line
                    .split(' ')
                    .nth(1)
                    .and_then(|cost| cost.parse().ok())
                    .unwrap_or(0.0);
                match callee.take() {
                    // Callgrind numbers the levels of recursion.
                    Some(callee) => *profile.called.entry(callee).or_default() += cost,
                    None => *profile.own.entry(function.clone()).or_default() += cost,
                }
            }
        }
        profile
    }

    fn inclusive(&self, function: &str) -> f64 {
        let of = self
            .called
            .iter()
            .filter(|(name, _)| name.contains(function));
        of.map(|(_, cost)| cost).sum()
    }

    fn own(&self, class: &str) -> f64 {
        let of = self.own.iter().filter(|(name, _)| class_of(name) == class);
        of.map(|(_, cost)| cost).sum()
    }

    fn most(&self, count: usize) -> Vec<(&String, f64)> {
        let mut all: Vec<(&String, f64)> =
            self.own.iter().map(|(name, cost)| (name, *cost)).collect();
        all.sort_by(|one, two| two.1.total_cmp(&one.1));
        all.truncate(count);
        all
    }
}

fn class_of(function: &str) -> &'static str {
    let has = |parts: &[&str]| parts.iter().any(|part| function.contains(part));
    if has(&["aes_", "gcm", "ghash", "EVP_AEAD", "CRYPTO_", "aws_lc"]) {
        "cipher"
    } else if has(&["memcpy", "memmove", "memset"]) {
        "copies"
    } else if has(&[
        "malloc",
        "free",
        "realloc",
        "calloc",
        "_int_",
        "unlink_chunk",
    ]) {
        "memory"
    } else if has(&["counted_turns", "Pair::"]) {
        "harness"
    } else {
        "own"
    }
}

/// Runs a case; prints how many packets were delivered while instructions were counted.
fn run(case: Case) {
    let mut pair = Pair::new(case);
    for _ in 0..WARM_UP {
        pair.turn();
    }
    let before = pair.delivered_bytes;
    counted_turns(&mut pair);
    let bytes = pair.delivered_bytes - before;
    println!("{}", bytes as f64 / case.len.min(1400) as f64);
}

#[inline(never)]
fn counted_turns(pair: &mut Pair) {
    for _ in 0..COUNTED {
        pair.turn();
    }
}

struct Pair {
    case: Case,
    now: Instant,
    ends: [Endpoint; 2],
    peers: [PeerId; 2],
    buf: TransmitBuf,
    stream: Option<StreamId>,
    /// Bytes of the last batch, on their way.
    wire: Vec<u8>,
    item: Vec<u8>,
    sent_bytes: usize,
    delivered_bytes: usize,
}

impl Pair {
    fn new(case: Case) -> Self {
        let (mut ends, peers) = ends::configured(RATE, case.class);
        if let Some(controller) = case.controller {
            for (end, peer) in ends.iter_mut().zip(peers) {
                let config = TenantConfig {
                    controller,
                    ..TenantConfig::new(TENANT)
                };
                end.set_tenant(Instant::ZERO, peer, config)
                    .expect("within the limit");
            }
        }
        let mut pair = Self {
            case,
            now: Instant::ZERO,
            ends,
            peers,
            buf: TransmitBuf::new(64),
            stream: None,
            wire: Vec::new(),
            item: vec![0x45; case.len],
            sent_bytes: 0,
            delivered_bytes: 0,
        };
        for _ in 0..100 {
            pair.exchange();
        }
        assert!(pair.ends[0].is_up(pair.peers[0]));
        if case.class == DeliveryClass::Stream {
            let opened = pair.ends[0].open_stream(pair.now, pair.peers[0], APP, None);
            pair.stream = Some(opened.expect("the path is up"));
        }
        pair
    }

    fn turn(&mut self) {
        let Case { len, count, .. } = self.case;
        if self.sent_bytes - self.delivered_bytes < TURNS_AHEAD * len * count {
            self.sent_bytes += self.stage_queue();
        }
        self.exchange();
    }

    /// Bytes that were taken.
    #[inline(never)]
    fn stage_queue(&mut self) -> usize {
        let Case {
            class,
            controller,
            len,
            count,
            ..
        } = self.case;
        let (now, peer) = (self.now, self.peers[0]);
        let end = &mut self.ends[0];
        for _ in 0..count {
            match (class, controller) {
                (_, Some(_)) => {
                    let mut data = end.spare_buffer(len);
                    data.copy_from_slice(&self.item);
                    let packet = IpPacket {
                        flow_hash: 1,
                        ecn: 0,
                        needs_order: false,
                        data,
                    };
                    end.send_packet(now, peer, TENANT, APP, packet)
                        .expect("the path is up");
                }
                (DeliveryClass::Datagram, _) => {
                    let datagram = NewDatagram::new(APP, FlowId(1), now, &self.item);
                    end.send_datagram(now, peer, datagram)
                        .expect("the path is up");
                }
                (DeliveryClass::Message, _) => {
                    end.send_message(now, now, peer, APP, self.item.clone())
                        .expect("room");
                }
                (DeliveryClass::Stream, _) => {
                    let stream = self.stream.expect("it was opened");
                    return end.write_stream(now, peer, stream, &self.item).unwrap_or(0);
                }
            }
        }
        len * count
    }

    /// One turn of both drivers, 100 us apart, with no delay between them.
    fn exchange(&mut self) {
        self.now += Duration::from_micros(100);
        for side in 0..2 {
            self.stage_timers(side);
            while let Some(segment) = self.stage_transmit(side) {
                self.wire.clear();
                self.wire.extend_from_slice(self.buf.filled());
                self.stage_receive(side, segment);
            }
            self.stage_deliver(1 - side);
        }
    }

    #[inline(never)]
    fn stage_timers(&mut self, side: usize) {
        let end = &mut self.ends[side];
        if end.poll_timeout().is_some_and(|at| at <= self.now) {
            end.handle_timeout(self.now);
        }
    }

    #[inline(never)]
    fn stage_transmit(&mut self, side: usize) -> Option<usize> {
        let transmit = self.ends[side].poll_transmit(self.now, &mut self.buf)?;
        Some(transmit.segment_size)
    }

    #[inline(never)]
    fn stage_receive(&mut self, from: usize, segment: usize) {
        let meta = DatagramMeta {
            socket: SocketId(0),
            remote: SocketAddr::from(([192, 0, 2, from as u8 + 1], 7600)),
            ecn: 0,
            received_at: self.now,
        };
        self.ends[1 - from].handle_datagrams(self.now, meta, &mut self.wire, segment);
    }

    #[inline(never)]
    fn stage_deliver(&mut self, side: usize) {
        let mut finished = None;
        let mut readable = None;
        while let Some(delivery) = self.ends[side].poll_delivery() {
            self.delivered_bytes += match delivery {
                Delivery::Message { peer, id, body, .. } => {
                    finished = Some((peer, id));
                    body.len()
                }
                Delivery::Datagram { data, .. } | Delivery::Packet { data, .. } => data.len(),
                Delivery::Stream { peer, stream, .. } => {
                    readable = Some((peer, stream));
                    0
                }
            };
        }
        if let Some((peer, id)) = finished {
            self.ends[side].finish_message(peer, id, None);
        }
        if let Some((peer, stream)) = readable {
            let data = self.ends[side].stream_data(peer, stream);
            let bytes = data.map_or(0, |(first, second, _)| first.len() + second.len());
            self.ends[side].consume_stream(self.now, peer, stream, bytes);
            self.delivered_bytes += bytes;
        }
        while self.ends[side].poll_event().is_some() {}
    }
}
