//! An hour of an office: what its flows look like, and how much of it is sorted rightly.
//!
//! Sizes, rates and times are of the kind that vendors and measurements state: page weights as in the HTTP Archive, voice of
//! 50 packets per second, meetings of up to 4 Mbit/s, video in pieces every five seconds. A fifth of the bytes is of servers
//! that no list has, or whose names cannot be seen, as with DNS over HTTPS and encrypted ClientHello. A
//! backup to such a server is an upload as any other. What is in another tunnel has no right class.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    net::IpAddr,
    time::Duration,
};

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::packets::{Pair, answer, client_hello, query, quic_initial, rtp, stun};
use crate::{
    builtin_classes::{BuiltInClass, FlowClassifier, Sorting},
    flow::FlowSeed,
    protocol,
};

const HOUR: f64 = 3600.0;
const PEOPLE: u8 = 12;
/// Of a page of a site that was visited already: the rest is in the browser's cache.
const UNCACHED: f64 = 0.4;

/// How a server's name is seen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Visibility {
    /// By DNS, and in a list.
    Listed(&'static str),
    /// By the handshake alone, and in a list.
    Handshake(&'static str),
    /// By DNS, and in no list.
    Unlisted(&'static str),
    /// Not at all.
    Hidden,
    /// By its port or its form.
    Plain,
}

/// What a flow sends and when.
#[derive(Clone, Copy, Debug)]
enum Model {
    /// Sound of 50 packets per second both ways, and a picture of so many bit/s up and down, in RTP or another form.
    Meeting { up: f64, down: f64, is_rtp: bool },
    /// Small packets both ways at random times, and now and then an output of so many bytes.
    Typing { output: f64 },
    /// Bytes at a rate, with a pause, repeatedly; both vary. From the second time on a part of them.
    Pages {
        bytes: f64,
        again: f64,
        spread: f64,
        rate: f64,
        pause: f64,
    },
    /// All bytes at a rate.
    Transfer { bytes: f64, rate: f64, is_up: bool },
    /// Updates of a game both ways, so many per second.
    Game { per_second: f64 },
}

/// A flow to be.
#[derive(Clone, Copy, Debug)]
struct Plan {
    truth: Option<BuiltInClass>,
    visibility: Visibility,
    model: Model,
    protocol: u8,
    port: u16,
    /// Seconds from the begin of the hour.
    begins: f64,
    lasts: f64,
}

/// A flow that runs.
struct Running {
    plan: Plan,
    pair: Pair,
    sent_packets: u64,
    /// Bytes that are left of the piece that is being sent.
    left: f64,
    frames: [u16; 4],
}

/// Bytes by what became of them.
#[derive(Debug, Default)]
struct Score {
    all: u64,
    seen: u64,
    seen_right: u64,
    wrong: u64,
    by_kind: BTreeMap<String, [u64; 3]>,
}

/// What a flow sends next.
struct Sent {
    /// Seconds until the one after it.
    gap: f64,
    is_up: bool,
    begin: Vec<u8>,
    /// At least that of `begin`.
    length: usize,
}

/// What the kernel gives at once.
const LARGE_BYTES: usize = 22_000;

impl Sent {
    fn new(gap: f64, is_up: bool, packet: Vec<u8>) -> Self {
        let length = packet.len();
        Self {
            gap,
            is_up,
            begin: packet,
            length,
        }
    }
}

struct Office {
    random: ChaCha12Rng,
    plans: Vec<Plan>,
}

impl Office {
    fn unit(&mut self) -> f64 {
        (f64::from(self.random.next_u32()) + 0.5) / 4_294_967_296.0
    }

    /// From an exponential distribution.
    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    /// From a log-normal distribution.
    fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let (a, b) = (self.unit(), self.unit());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        median * (sigma * normal).exp()
    }

    fn add(&mut self, plan: Plan) {
        self.plans.push(plan);
    }

    fn plan_all(&mut self) {
        self.plan_meetings();
        self.plan_pages();
        self.plan_transfers();
        self.plan_shells_and_games();
    }

    fn plan_meetings(&mut self) {
        use Visibility::{Hidden, Listed, Plain};
        let kinds = [
            (Listed("eu01.zoom.us"), 8801, false, 3),
            (Listed("worldaz.tr.teams.microsoft.com"), 3479, true, 3),
            (Plain, 10_000, true, 2),
            // A vendor's own form on a port of no list.
            (Hidden, 20_123, false, 1),
        ];
        for (visibility, port, is_rtp, count) in kinds {
            for _ in 0..count {
                let model = Model::Meeting {
                    up: 0.6e6 + 1.4e6 * self.unit(),
                    down: 1e6 + 3e6 * self.unit(),
                    is_rtp,
                };
                let (begins, lasts) = (2_400.0 * self.unit(), 600.0 + 600.0 * self.unit());
                self.add(Plan {
                    truth: Some(BuiltInClass::Voice),
                    visibility,
                    model,
                    protocol: protocol::UDP,
                    port,
                    begins,
                    lasts,
                });
            }
        }
        for _ in 0..8 {
            let model = Model::Meeting {
                up: 0.0,
                down: 0.0,
                is_rtp: true,
            };
            let (begins, lasts) = (3_300.0 * self.unit(), self.exponential(240.0));
            let port = 16_000 + 2 * (1000.0 * self.unit()) as u16;
            self.add(Plan {
                truth: Some(BuiltInClass::Voice),
                visibility: Plain,
                model,
                protocol: protocol::UDP,
                port,
                begins,
                lasts,
            });
        }
    }

    /// Visits of sites, each with some connections and some pages.
    fn plan_pages(&mut self) {
        use Visibility::{Handshake, Hidden, Listed, Unlisted};
        const SITES: [Visibility; 8] = [
            Listed("outlook.office365.com"),
            Listed("contoso.sharepoint.com"),
            Listed("www.google.com"),
            Listed("en.wikipedia.org"),
            Handshake("github.com"),
            Handshake("app.slack.com"),
            Unlisted("www.shop.example"),
            Hidden,
        ];
        for visit in 0..PEOPLE as usize * 24 {
            let visibility = SITES[visit % SITES.len()];
            let is_quic = self.unit() < 0.3 && !matches!(visibility, Handshake(_));
            let begins = 3_500.0 * self.unit();
            let lasts = 20.0 + self.exponential(180.0);
            let pause = 5.0 + self.exponential(25.0);
            // Of a page's 2.3 MB, by connection.
            for part in [0.5, 0.25, 0.15, 0.1] {
                let model = Model::Pages {
                    bytes: 2.3e6 * part,
                    again: UNCACHED,
                    spread: 1.0,
                    rate: 5e6 + 45e6 * self.unit(),
                    pause,
                };
                let begins = begins + self.unit();
                self.add(Plan {
                    truth: Some(BuiltInClass::Web),
                    visibility,
                    model,
                    protocol: if is_quic {
                        protocol::UDP
                    } else {
                        protocol::TCP
                    },
                    port: 443,
                    begins,
                    lasts,
                });
            }
        }
    }

    fn plan_transfers(&mut self) {
        use BuiltInClass::{Backup, Bulk};
        use Visibility::{Handshake, Hidden, Listed, Plain, Unlisted};
        let kinds = [
            (
                Bulk,
                Listed("7.tlu.dl.delivery.mp.microsoft.com"),
                443,
                6,
                150e6,
                false,
            ),
            (Bulk, Listed("archive.ubuntu.com"), 80, 6, 40e6, false),
            (
                Bulk,
                Handshake("objects.githubusercontent.com"),
                443,
                5,
                60e6,
                false,
            ),
            (Bulk, Unlisted("files.partner.example"), 443, 3, 80e6, false),
            (Bulk, Hidden, 443, 3, 80e6, true),
            (Backup, Listed("f003.backblazeb2.com"), 443, 1, 500e6, true),
            (Backup, Plain, 873, 1, 400e6, true),
            // Files over SSH.
            (Bulk, Plain, 22, 1, 300e6, true),
        ];
        for (truth, visibility, port, count, median, is_up) in kinds {
            for _ in 0..count {
                let model = Model::Transfer {
                    bytes: self.log_normal(median, 0.8),
                    rate: 10e6 + 50e6 * self.unit(),
                    is_up,
                };
                let begins = 3_000.0 * self.unit();
                self.add(Plan {
                    truth: Some(truth),
                    visibility,
                    model,
                    protocol: protocol::TCP,
                    port,
                    begins,
                    lasts: HOUR,
                });
            }
        }
        // Streamed video: five seconds of 5 Mbit/s at once.
        let videos = [
            (Listed("rr3---sn.googlevideo.com"), 3),
            (Unlisted("cdn.video.example"), 1),
        ];
        for (visibility, count) in videos {
            for _ in 0..count {
                let (begins, lasts) = (2_400.0 * self.unit(), 300.0 + 600.0 * self.unit());
                self.add(Plan {
                    truth: Some(Bulk),
                    visibility,
                    model: Model::Pages {
                        bytes: 3.1e6,
                        again: 1.0,
                        spread: 0.3,
                        rate: 40e6,
                        pause: 4.4,
                    },
                    protocol: protocol::UDP,
                    port: 443,
                    begins,
                    lasts,
                });
            }
        }
    }

    fn plan_shells_and_games(&mut self) {
        use Visibility::{Hidden, Plain};
        for number in 0..10 {
            let (begins, lasts) = (1_800.0 * self.unit(), 300.0 + self.exponential(1_200.0));
            let (port, output) = match number % 2 {
                0 => (22, 20e3),
                // Pictures of a remote desktop.
                _ => (3389, 300e3),
            };
            self.add(Plan {
                truth: Some(BuiltInClass::Interactive),
                visibility: Plain,
                model: Model::Typing { output },
                protocol: protocol::TCP,
                port,
                begins,
                lasts,
            });
        }
        for (visibility, port) in [(Plain, 27_015), (Plain, 3074), (Hidden, 31_000)] {
            let begins = 2_000.0 * self.unit();
            self.add(Plan {
                truth: Some(BuiltInClass::Games),
                visibility,
                model: Model::Game { per_second: 40.0 },
                protocol: protocol::UDP,
                port,
                begins,
                lasts: 900.0,
            });
        }
        let tunnel = Model::Transfer {
            bytes: 30e6,
            rate: 4e6,
            is_up: false,
        };
        self.add(Plan {
            truth: None,
            visibility: Hidden,
            model: tunnel,
            protocol: protocol::UDP,
            port: 51_820,
            begins: 100.0,
            lasts: HOUR,
        });
    }

    /// `None`: it ends.
    fn next(&mut self, flow: &mut Running) -> Option<Sent> {
        flow.sent_packets += 1;
        let number = flow.sent_packets;
        let pair = flow.pair;
        match flow.plan.model {
            Model::Meeting { up, down, is_rtp } => {
                if number == 1 && is_rtp {
                    return Some(Sent::new(0.0, true, pair.packet(&stun(), 0)));
                }
                Some(self.media(flow, [up, down], is_rtp))
            }
            Model::Typing { output } => {
                let is_up = number % 3 == 1;
                let length = match is_up {
                    true => 90.0,
                    false => self.log_normal(100.0, 0.5),
                };
                // One keystroke in twenty has an output.
                let length = match number % 60 {
                    2 => self.log_normal(output, 1.0).min(4e6),
                    _ => length,
                };
                let gap = self.exponential(0.15);
                Some(self.piece(flow, length, 20e6, gap, is_up))
            }
            Model::Pages {
                bytes,
                again,
                spread,
                rate,
                pause,
            } => {
                let more = flow.left > 0.0;
                let gap = if more || number == 1 {
                    0.0
                } else {
                    self.exponential(pause) + 1.0
                };
                let median = match number {
                    1 => bytes,
                    _ => bytes * again,
                };
                let length = if more {
                    flow.left
                } else {
                    self.log_normal(median, spread)
                };
                Some(self.piece(flow, length, rate, gap, false))
            }
            Model::Transfer { bytes, rate, is_up } => {
                if number > 1 && flow.left <= 0.0 {
                    return None;
                }
                let length = if number == 1 { bytes } else { flow.left };
                Some(self.piece(flow, length, rate, 0.0, is_up))
            }
            Model::Game { per_second } => {
                let is_up = number.is_multiple_of(2);
                let length = if is_up {
                    90
                } else {
                    150 + (200.0 * self.unit()) as usize
                };
                let gap = 0.5 / per_second * (0.5 + self.unit());
                Some(Sent::new(
                    gap,
                    is_up,
                    pair.packet(&[0, 0, 0, number as u8], length),
                ))
            }
        }
    }

    /// A packet of sound or picture, in either direction.
    fn media(&mut self, flow: &mut Running, rates: [f64; 2], is_rtp: bool) -> Sent {
        let per_second = [50.0, 50.0, rates[0] / 8.0 / 1100.0, rates[1] / 8.0 / 1100.0];
        let all: f64 = per_second.iter().sum();
        let mut place = self.unit() * all;
        let mut stream = 0;
        while stream < 3 && place >= per_second[stream] {
            place -= per_second[stream];
            stream += 1;
        }
        let is_up = stream % 2 == 0;
        flow.frames[stream] = flow.frames[stream].wrapping_add(1);
        let length = match stream {
            0 | 1 => 120 + (120.0 * self.unit()) as usize,
            _ => 900 + (400.0 * self.unit()) as usize,
        };
        let begin = match is_rtp {
            true => rtp(1000 + stream as u32, flow.frames[stream], 96 + stream as u8),
            false => vec![5, 16, 1, stream as u8],
        };
        let gap = (0.5 + self.unit()) / all;
        Sent::new(gap, is_up, flow.pair.packet(&begin, length))
    }

    /// As much of `length` bytes as the kernel gives at once, after `gap`.
    fn piece(&mut self, flow: &mut Running, length: f64, rate: f64, gap: f64, is_up: bool) -> Sent {
        let here = length.min(LARGE_BYTES as f64);
        flow.left = length - here;
        let gap = gap + here * 8.0 / rate;
        Sent {
            gap,
            is_up,
            begin: flow.pair.packet(&[], 0),
            length: 60.max(here as usize),
        }
    }
}

/// Where a plan's server is, and its client.
fn pair_of(plan: &Plan, number: usize) -> Pair {
    let [a, b] = (number as u16).to_be_bytes();
    let server = match plan.visibility {
        Visibility::Listed(name) | Visibility::Handshake(name) | Visibility::Unlisted(name) => {
            // A few addresses for each name.
            let sum = name
                .bytes()
                .fold(7u16, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into()));
            let [c, d] = sum.to_be_bytes();
            IpAddr::from([198, c, d, number as u8 % 3])
        }
        Visibility::Hidden | Visibility::Plain => IpAddr::from([203, 0, a, b]),
    };
    Pair {
        client: IpAddr::from([10, 1, 0, 1 + number as u8 % PEOPLE]),
        server,
        protocol: plan.protocol,
        client_port: 33_000 + number as u16,
        server_port: plan.port,
    }
}

/// What passes before a flow's own packets: its name.
fn introduce(classifier: &mut FlowClassifier, now: Duration, flow: &Running) {
    let pair = flow.pair;
    let resolves = |name: &str, classifier: &mut FlowClassifier| {
        let dns = Pair {
            server: IpAddr::from([192, 0, 2, 53]),
            protocol: protocol::UDP,
            server_port: 53,
            ..pair
        };
        let sent = dns.packet(&query(5, name), 0);
        classifier.on_packet(now, &dns.header(true), &sent, 1);
        let got = dns.packet(&answer(5, name, &[], &[pair.server]), 0);
        classifier.on_packet(now, &dns.header(false), &got, 1);
    };
    let hello = match flow.plan.visibility {
        Visibility::Listed(name) | Visibility::Unlisted(name) => {
            resolves(name, classifier);
            name
        }
        Visibility::Handshake(name) => name,
        // The name of the provider that hides it.
        Visibility::Hidden => "cover.example",
        Visibility::Plain => return,
    };
    let header = pair.header(true);
    match flow.plan.protocol {
        protocol::TCP => {
            classifier.on_packet(now, &header, &pair.segment(1, 2, &[]), 1);
            let packet = pair.segment(2, 0x18, &client_hello(hello, 500));
            classifier.on_packet(now, &header, &packet, 1);
        }
        _ if flow.plan.truth != Some(BuiltInClass::Voice) && flow.plan.port == 443 => {
            classifier.on_packet(now, &header, &pair.packet(&quic_initial(), 0), 1);
        }
        _ => {}
    }
}

fn run(seed: u64) -> Score {
    let mut office = Office {
        random: ChaCha12Rng::seed_from_u64(seed),
        plans: Vec::new(),
    };
    office.plan_all();
    let sorting = Sorting {
        has_classes: true,
        ..Sorting::default()
    };
    let mut classifier = FlowClassifier::new(FlowSeed::new(&[9; 16]), sorting);
    let mut flows = Vec::new();
    let mut due = BinaryHeap::new();
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    for (number, plan) in std::mem::take(&mut office.plans).into_iter().enumerate() {
        due.push(Reverse((nanos(plan.begins), number)));
        flows.push(Running {
            plan,
            pair: pair_of(&plan, number),
            sent_packets: 0,
            left: 0.0,
            frames: [0; 4],
        });
    }
    let mut score = Score::default();
    let mut buffer = vec![0x5a; LARGE_BYTES];
    while let Some(Reverse((at, number))) = due.pop() {
        let flow = &mut flows[number];
        if at > nanos(flow.plan.begins + flow.plan.lasts) || at > nanos(HOUR) {
            continue;
        }
        let now = Duration::from_nanos(at);
        if flow.sent_packets == 0 {
            introduce(&mut classifier, now, flow);
        }
        let Some(sent) = office.next(flow) else {
            continue;
        };
        buffer[..sent.begin.len()].copy_from_slice(&sent.begin);
        let packet = &buffer[..sent.length.max(sent.begin.len())];
        let header = flow.pair.header(sent.is_up);
        let found = classifier.on_packet(now, &header, packet, 1).class;
        score.add(&flow.plan, found, packet.len() as u64);
        due.push(Reverse((at + nanos(sent.gap), number)));
    }
    score
}

impl Score {
    fn add(&mut self, plan: &Plan, found: Option<BuiltInClass>, bytes: u64) {
        let is_seen = !matches!(
            plan.visibility,
            Visibility::Hidden | Visibility::Unlisted(_)
        );
        let (is_right, is_wrong) = (found == plan.truth, found.is_some() && found != plan.truth);
        self.all += bytes;
        self.seen += if is_seen { bytes } else { 0 };
        self.seen_right += if is_seen && is_right { bytes } else { 0 };
        self.wrong += if is_wrong { bytes } else { 0 };
        let name = plan.truth.map_or("tunnel", BuiltInClass::name);
        let kind = format!("{name} {:?}", plan.visibility);
        let row = self.by_kind.entry(kind).or_default();
        row[0] += bytes;
        row[1] += if is_right { bytes } else { 0 };
        row[2] += if is_wrong { bytes } else { 0 };
    }
}

#[test]
fn an_office_hour_is_sorted_rightly() {
    for seed in 1..=2 {
        let score = run(seed);
        let part = |some: u64, of: u64| some as f64 / of as f64;
        let unseen = 1.0 - part(score.seen, score.all);
        let right = part(score.seen_right, score.seen);
        let wrong = part(score.wrong, score.all);
        let text = format!("seed {seed}: {right:.4} right, {wrong:.4} wrong, {unseen:.2} unseen");
        println!("{text}, {} MB", score.all / 1_000_000);
        for (kind, [all, right, wrong]) in &score.by_kind {
            println!(
                "{kind:60} {:8} {:8} {:8} kB",
                all / 1000,
                right / 1000,
                wrong / 1000
            );
        }
        assert!((0.16..0.25).contains(&unseen), "{text}");
        assert!(right >= 0.95, "{text}");
        assert!(wrong <= 0.01, "{text}");
    }
}
