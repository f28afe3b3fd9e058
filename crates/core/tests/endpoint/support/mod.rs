//! A second implementation of the wire, made from `docs/wire-format.md` alone: what it can say to
//! an endpoint, and an endpoint can say to it, the document says.
//!
//! It can say wrong things too, which a real endpoint never would. And a driver that counts how
//! often an endpoint is polled.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use aws_lc_rs::aead::{
    AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use blake2::{
    Blake2s256, Blake2sMac, Digest,
    digest::{FixedOutput, Mac, consts::U16},
};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305,
    aead::{Aead, Payload},
};
use keiro_core::{
    AppConfig, AppId, DatagramMeta, Delivery, DeliveryClass, Endpoint, EndpointConfig, Event,
    Instant, PathConfig, PathId, PeerConfig, PeerId, PrivateKey, SocketId, StreamId, StreamSignal,
    TenantId, Transmit, TransmitBuf,
};
use keiro_units::Bandwidth;
use snow::{Builder, HandshakeState};

/// The application for messages.
pub(crate) const MESSAGES: &str = "messages";
/// The application for datagrams.
pub(crate) const DATAGRAMS: &str = "datagrams";
/// What one poll may be called at one time before the test calls it endless.
pub(crate) const POLLS_MAX: usize = 20_000;

/// The private key of gateway `number`.
pub(crate) fn key(number: u8) -> PrivateKey {
    PrivateKey::from_bytes([number; 32])
}

/// An address of its own for every number.
pub(crate) fn address(number: u16) -> SocketAddr {
    let [high, low] = number.to_be_bytes();
    SocketAddr::from(([10, 0, high, low], 7600))
}

/// A peer with both applications and one path, on socket 0.
pub(crate) fn peer(number: u8, remote: Option<SocketAddr>) -> PeerConfig {
    let mut peer = PeerConfig::new(key(number).public_key());
    peer.paths = vec![PathConfig {
        id: PathId(0),
        socket: SocketId(0),
        remote,
        rate: Some(Bandwidth::from_mbit_per_second(100)),
        mtu_max: 1500,
        probe_limit: None,
        terms: keiro_core::PathTerms::FREE,
    }];
    let app = |name, class| AppConfig {
        id: AppId::of_name(name),
        class,
        latency_target: None,
        lifetime: None,
        paths: vec![PathId(0)],
        tenant: TenantId::ZERO,
        is_spread: false,
    };
    peer.apps = vec![
        app(MESSAGES, DeliveryClass::Message),
        app(DATAGRAMS, DeliveryClass::Datagram),
    ];
    peer
}

/// Gateway `number` without peers.
pub(crate) fn endpoint(number: u8) -> Endpoint {
    Endpoint::new(
        Instant::ZERO,
        EndpointConfig::new(key(number)),
        [number; 32],
    )
}

/// Where and when a datagram arrived: on socket 0.
pub(crate) fn meta(now: Instant, remote: SocketAddr) -> DatagramMeta {
    DatagramMeta {
        socket: SocketId(0),
        remote,
        ecn: 0,
        received_at: now,
    }
}

/// Gives one datagram to an endpoint.
pub(crate) fn feed(end: &mut Endpoint, now: Instant, remote: SocketAddr, packet: &[u8]) {
    end.handle_datagram(now, meta(now, remote), &mut packet.to_vec());
    end.check_invariants();
}

/// What an endpoint gave out at one time.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// To, and the UDP payload.
    pub(crate) packets: Vec<(SocketAddr, Vec<u8>)>,
    pub(crate) messages: Vec<Vec<u8>>,
    pub(crate) datagrams: Vec<Vec<u8>>,
    pub(crate) events: Vec<Event>,
    pub(crate) signals: Vec<(StreamId, StreamSignal)>,
    /// Tenant, ECN bits, packet.
    pub(crate) ip_packets: Vec<(TenantId, u8, Vec<u8>)>,
}

/// Polls everything until it ends; panics if it does not.
pub(crate) fn drain(end: &mut Endpoint, now: Instant) -> Output {
    let mut output = Output::default();
    let mut buf = TransmitBuf::new(10);
    let mut polls = 0;
    let mut count = |what: &str| {
        polls += 1;
        assert!(polls <= POLLS_MAX, "{what} does not end at {now}");
    };
    while let Some(transmit) = end.poll_transmit(now, &mut buf) {
        count("poll_transmit");
        let Transmit {
            remote,
            len,
            segment_size,
            ..
        } = transmit;
        assert_eq!(len, buf.filled().len());
        let datagrams = buf.filled().chunks(segment_size);
        output
            .packets
            .extend(datagrams.map(|datagram| (remote, datagram.to_vec())));
    }
    let mut finished = Vec::new();
    while let Some(delivery) = end.poll_delivery() {
        count("poll_delivery");
        match delivery {
            Delivery::Message { peer, id, body, .. } => {
                finished.push((peer, id));
                output.messages.push(body);
            }
            Delivery::Datagram { data, .. } => output.datagrams.push(data.to_vec()),
            Delivery::Packet {
                tenant, ecn, data, ..
            } => output.ip_packets.push((tenant, ecn, data.to_vec())),
            Delivery::Stream { stream, signal, .. } => output.signals.push((stream, signal)),
        }
    }
    for (peer, id) in finished {
        end.finish_message(peer, id, None);
    }
    while let Some(event) = end.poll_event() {
        count("poll_event");
        output.events.push(event);
    }
    end.check_invariants();
    output
}

/// All drops of an endpoint, those of its peers included, by reason; zeros are left out.
pub(crate) fn drops(end: &Endpoint, peers: &[PeerId]) -> BTreeMap<&'static str, u64> {
    let of_peers = peers
        .iter()
        .filter_map(|peer| end.session(*peer))
        .map(|session| session.drops);
    let mut sums = BTreeMap::new();
    for counters in of_peers.chain([end.snapshot().drops]) {
        for (reason, count) in counters.by_reason() {
            *sums.entry(reason).or_default() += count;
        }
    }
    sums.retain(|_, count| *count > 0);
    sums
}

/// Two gateways, 1 and 2, and a wire of 2 ms between them.
pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) ends: [Endpoint; 2],
    pub(crate) peers: [PeerId; 2],
    /// Everything that has been sent so far, by sender.
    pub(crate) seen: Vec<(usize, Vec<u8>)>,
    pub(crate) received: [Vec<Vec<u8>>; 2],
    pub(crate) events: [Vec<Event>; 2],
    /// Handshakes are lost on the way.
    pub(crate) loses_handshakes: bool,
    /// What this side sends is lost: a firewall passes the other direction only.
    pub(crate) is_blocked: [bool; 2],
    wire: VecDeque<(Instant, usize, Vec<u8>)>,
}

impl Net {
    pub(crate) fn new() -> Self {
        Self::with([endpoint(1), endpoint(2)])
    }

    /// The same with these two gateways, which have no peers.
    pub(crate) fn with(ends: [Endpoint; 2]) -> Self {
        let peers = [(2, 2), (1, 1)].map(|(number, at)| peer(number, Some(address(at))));
        Self::with_peers(ends, peers)
    }

    /// The same, each with this peer.
    pub(crate) fn with_peers(
        mut ends: [Endpoint; 2],
        [of_first, of_second]: [PeerConfig; 2],
    ) -> Self {
        let first = ends[0].add_peer(Instant::ZERO, of_first);
        let second = ends[1].add_peer(Instant::ZERO, of_second);
        Self {
            now: Instant::ZERO,
            ends,
            peers: [first, second],
            seen: Vec::new(),
            received: Default::default(),
            events: Default::default(),
            loses_handshakes: false,
            is_blocked: [false; 2],
            wire: VecDeque::new(),
        }
    }

    /// What both ends have to give out now, goes onto the wire.
    pub(crate) fn drain(&mut self) {
        for side in 0..2 {
            self.ends[side].handle_timeout(self.now);
            let output = drain(&mut self.ends[side], self.now);
            self.received[side].extend(output.messages);
            self.events[side].extend(output.events);
            for (_, packet) in output.packets {
                self.seen.push((side, packet.clone()));
                if self.is_blocked[side] || self.loses_handshakes && packet[0] < 4 {
                    continue;
                }
                self.wire
                    .push_back((self.now + Duration::from_millis(2), 1 - side, packet));
            }
        }
    }

    /// Runs until `done`; `false` if virtual time passes `limit` before.
    pub(crate) fn run(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        while self.now < end {
            self.drain();
            if done(self) {
                return true;
            }
            let timers = self.ends.iter().filter_map(Endpoint::poll_timeout).min();
            let arrival = self.wire.front().map(|(at, _, _)| *at);
            let soonest = self.now + Duration::from_micros(1);
            let next = [timers, arrival, Some(end)].into_iter().flatten().min();
            self.now = next.unwrap_or(end).max(soonest);
            while self.wire.front().is_some_and(|(at, _, _)| *at <= self.now) {
                let (_, to, packet) = self.wire.pop_front().expect("there is one");
                feed(
                    &mut self.ends[to],
                    self.now,
                    address(2 - to as u16),
                    &packet,
                );
            }
        }
        false
    }

    pub(crate) fn is_up(&self) -> bool {
        (0..2).all(|side| {
            self.ends[side]
                .session(self.peers[side])
                .is_some_and(|s| s.up)
        })
    }

    /// Sends a message each way and waits for both.
    pub(crate) fn deliver(&mut self) -> bool {
        let marks = [0, 1].map(|side| {
            let body = format!("message at {} from {side}", self.now).into_bytes();
            let (now, app) = (self.now, AppId::of_name(MESSAGES));
            self.ends[side]
                .send_message(now, now, self.peers[side], app, body.clone())
                .expect("room");
            body
        });
        self.run(Duration::from_secs(30), |net| {
            net.received[1].contains(&marks[0]) && net.received[0].contains(&marks[1])
        })
    }
}

/// The variable-length integer of RFC 9000 §16.
pub(crate) fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..0x4000_0000 => (value as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (value | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}

/// A frame: its type and then its fields.
pub(crate) fn frame(kind: u64, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = varint(kind);
    for field in fields {
        bytes.extend_from_slice(field);
    }
    bytes
}

/// The first four bytes of the hash of an application's name.
pub(crate) fn app(name: &str) -> [u8; 4] {
    let hash = Blake2s256::digest(name.as_bytes());
    [hash[0], hash[1], hash[2], hash[3]]
}

/// A part of a message.
pub(crate) fn message(number: u64, total: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let fields: [&[u8]; 6] = [
        &varint(number),
        &app(MESSAGES),
        &varint(total),
        &varint(offset),
        &varint(data.len() as u64),
        data,
    ];
    frame(7, &fields)
}

/// A part of a long datagram.
pub(crate) fn fragment(number: u64, total: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let fields: [&[u8]; 7] = [
        &varint(number),
        &varint(total),
        &varint(offset),
        &app(DATAGRAMS),
        &varint(3 << 1),
        &varint(data.len() as u64),
        data,
    ];
    frame(6, &fields)
}

/// A part of an IP packet.
pub(crate) fn packet_part(tenant: u64, number: u64, place: [u8; 2], data: &[u8]) -> Vec<u8> {
    let [index, count] = place;
    let fields: [&[u8]; 4] = [&varint(tenant), &varint(number), &[count, index, 0], data];
    let body = fields.concat();
    frame(0x49, &[&varint(body.len() as u64), &body])
}

/// A tenant has more to send than it may.
pub(crate) fn tenant_limited(tenant: u64) -> Vec<u8> {
    let body = varint(tenant);
    frame(0x4a, &[&varint(body.len() as u64), &body])
}

/// What a weight of 1 gets, bit/s.
pub(crate) fn tenant_unit(unit: u64) -> Vec<u8> {
    let body = varint(unit);
    frame(0x4b, &[&varint(body.len() as u64), &body])
}

/// A message given up.
pub(crate) fn stranger_drops(path: u8, packets: u64) -> Vec<u8> {
    let fields = [vec![path], varint(packets)].concat();
    frame(0x4d, &[&varint(fields.len() as u64), &fields])
}

pub(crate) fn message_drop(number: u64, total: u64) -> Vec<u8> {
    frame(9, &[&varint(number), &varint(total)])
}

/// An acknowledgement of `largest` of path 0, alone.
pub(crate) fn acknowledgement(largest: u64) -> Vec<u8> {
    let (largest, zero, one) = (varint(largest), varint(0), varint(1));
    frame(2, &[&[0], &largest, &zero, &zero, &zero, &one, &zero])
}

/// What a raw initiation is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello {
    /// Gateway number of the initiator: its key.
    pub(crate) from: u8,
    /// Gateway number of the responder.
    pub(crate) to: u8,
    pub(crate) version: u8,
    pub(crate) index: u32,
    /// Also makes the ephemeral keys distinct.
    pub(crate) timestamp: u64,
    pub(crate) incarnation: u64,
    pub(crate) ciphers: u8,
    /// Bits of the feature set; 0.1.0 sends none.
    pub(crate) features: u16,
    pub(crate) cookie: Option<[u8; 16]>,
}

impl Hello {
    pub(crate) fn new(from: u8, to: u8, timestamp: u64) -> Self {
        Self {
            from,
            to,
            version: 1,
            index: 0x0a0b_0c0d,
            timestamp,
            incarnation: 7,
            ciphers: 1,
            features: 0,
            cookie: None,
        }
    }

    /// The packet, and the state that reads the response to it.
    pub(crate) fn initiate(&self) -> (HandshakeState, Vec<u8>) {
        let responder = key(self.to).public_key();
        let mut ephemeral = [self.from; 32];
        ephemeral[..8].copy_from_slice(&self.timestamp.to_be_bytes());
        let private = key(self.from);
        let mut state = Builder::new(
            "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"
                .parse()
                .expect("a known pattern"),
        )
        .prologue(b"keiro overlay 1")
        .and_then(|builder| builder.local_private_key(private.as_bytes()))
        .and_then(|builder| builder.remote_public_key(responder.as_bytes()))
        .and_then(|builder| builder.psk(2, &[0; 32]))
        .map(|builder| builder.fixed_ephemeral_key_for_testing_only(&ephemeral))
        .and_then(Builder::build_initiator)
        .expect("all parts are set once");
        let mut payload = vec![self.ciphers, 0];
        payload.extend(self.features.to_be_bytes());
        payload.extend(self.timestamp.to_be_bytes());
        payload.extend(self.incarnation.to_be_bytes());
        payload.extend((1u64 << 30).to_be_bytes());
        let mut packet = vec![1, self.version, 0, 0];
        packet.extend(self.index.to_be_bytes());
        let mut noise = [0; 200];
        let len = state
            .write_message(&payload, &mut noise)
            .expect("room for the message");
        packet.extend_from_slice(&noise[..len]);
        append_macs(&mut packet, self.to, self.cookie);
        assert_eq!(packet.len(), 164);
        (state, packet)
    }
}

/// Appends the two MACs of a handshake packet to gateway `to`.
pub(crate) fn append_macs(packet: &mut Vec<u8>, to: u8, cookie: Option<[u8; 16]>) {
    let first = keyed(&labelled(b"keiro mac 1", to), packet);
    packet.extend_from_slice(&first);
    let second = cookie.map_or([0; 16], |cookie| keyed(&cookie, packet));
    packet.extend_from_slice(&second);
}

/// Makes the first MAC of an altered handshake packet to gateway `to` right again.
pub(crate) fn mend_first_mac(packet: &mut [u8], to: u8) {
    if let Some(body) = packet.len().checked_sub(32) {
        let first = keyed(&labelled(b"keiro mac 1", to), &packet[..body]);
        packet[body..body + 16].copy_from_slice(&first);
    }
}

/// The cookie in the reply of gateway `from` to `initiation`.
pub(crate) fn open_cookie(reply: &[u8], initiation: &[u8], from: u8) -> [u8; 16] {
    assert_eq!((reply[0], reply.len()), (3, 64));
    assert_eq!(reply[4..8], initiation[4..8], "receiver index");
    let nonce: [u8; 24] = reply[8..32].try_into().expect("24 bytes");
    let sealed = Payload {
        msg: &reply[32..],
        aad: &initiation[132..148],
    };
    XChaCha20Poly1305::new(&labelled(b"keiro cookie 1", from).into())
        .decrypt(&nonce.into(), sealed)
        .expect("authentic cookie reply")
        .try_into()
        .expect("16 bytes")
}

/// A cookie reply of gateway `from` to `initiation`.
pub(crate) fn cookie_reply(cookie: [u8; 16], initiation: &[u8], from: u8) -> Vec<u8> {
    let nonce = [3; 24];
    let clear = Payload {
        msg: &cookie,
        aad: &initiation[132..148],
    };
    let sealed = XChaCha20Poly1305::new(&labelled(b"keiro cookie 1", from).into())
        .encrypt(&nonce.into(), clear)
        .expect("short enough");
    let mut reply = vec![3, 0, 0, 0];
    reply.extend_from_slice(&initiation[4..8]);
    reply.extend_from_slice(&nonce);
    reply.extend_from_slice(&sealed);
    reply
}

/// A version reply of gateway `from` to `initiation`: it speaks the versions from `oldest` to
/// `newest`.
pub(crate) fn version_reply(oldest: u8, newest: u8, initiation: &[u8], from: u8) -> Vec<u8> {
    let mut reply = vec![5, oldest, newest, 0];
    reply.extend_from_slice(&initiation[4..8]);
    let first_mac = &initiation[initiation.len() - 32..initiation.len() - 16];
    let mac = keyed(
        &labelled(b"keiro version 1", from),
        &[&reply, first_mac].concat(),
    );
    reply.extend_from_slice(&mac);
    reply
}

/// Gateway `to` reads an initiation and answers it with ChaCha20-Poly1305 chosen; also the
/// initiation's time.
pub(crate) fn respond(initiation: &[u8], to: u8, from: u8) -> (Raw, Vec<u8>, u64) {
    let private = key(to);
    let mut state = Builder::new(
        "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"
            .parse()
            .expect("a known pattern"),
    )
    .prologue(b"keiro overlay 1")
    .and_then(|builder| builder.local_private_key(private.as_bytes()))
    .and_then(|builder| builder.psk(2, &[0; 32]))
    .map(|builder| builder.fixed_ephemeral_key_for_testing_only(&[0x55; 32]))
    .and_then(Builder::build_responder)
    .expect("all parts are set once");
    let mut payload = [0; 64];
    let len = state
        .read_message(&initiation[8..132], &mut payload)
        .expect("authentic initiation");
    assert_eq!(len, 28);
    assert_eq!(
        state.get_remote_static(),
        Some(&key(from).public_key().as_bytes()[..])
    );
    let timestamp = u64::from_be_bytes(payload[4..12].try_into().expect("8 bytes"));
    let mut answer = vec![0; 12];
    answer.extend(9u64.to_be_bytes());
    answer.extend((1u64 << 20).to_be_bytes());
    let mut response = vec![2, 0, 0, 0, 0, 0, 0, 77];
    response.extend_from_slice(&initiation[4..8]);
    let mut noise = [0; 100];
    let len = state
        .write_message(&answer, &mut noise)
        .expect("room for the message");
    response.extend_from_slice(&noise[..len]);
    append_macs(&mut response, from, None);
    let (receive, send) = state.dangerously_get_raw_split();
    let key = |bytes: [u8; 32]| {
        LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &bytes).expect("32 bytes"))
    };
    let raw = Raw {
        seal: key(send),
        open: key(receive),
        remote_index: u32::from_be_bytes(initiation[4..8].try_into().expect("4 bytes")),
        features: u16::from_be_bytes([payload[2], payload[3]]),
        next: BTreeMap::new(),
    };
    (raw, response, timestamp)
}

/// Both MACs of an initiation to gateway `to` are right; the second with this cookie.
pub(crate) fn macs_are_right(initiation: &[u8], to: u8, cookie: Option<[u8; 16]>) -> bool {
    let mut expected = initiation[..132].to_vec();
    append_macs(&mut expected, to, cookie);
    initiation == expected
}

fn labelled(label: &[u8], number: u8) -> [u8; 32] {
    let mut hash = Blake2s256::new();
    hash.update(label);
    hash.update(key(number).public_key().as_bytes());
    hash.finalize().into()
}

fn keyed(key: &[u8], data: &[u8]) -> [u8; 16] {
    let mut mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(key).expect("a short key");
    mac.update(data);
    mac.finalize_fixed().into()
}

/// A session of this second implementation with an endpoint.
pub(crate) struct Raw {
    seal: LessSafeKey,
    open: LessSafeKey,
    remote_index: u32,
    /// Bits of the feature set that the endpoint sent in its response.
    pub(crate) features: u16,
    /// Next packet number of each path.
    pub(crate) next: BTreeMap<u8, u64>,
}

impl Raw {
    /// Reads the response to an initiation.
    pub(crate) fn new(mut state: HandshakeState, response: &[u8]) -> Self {
        assert_eq!((response[0], response.len()), (2, 120));
        let mut payload = [0; 64];
        let len = state
            .read_message(&response[12..88], &mut payload)
            .expect("authentic response");
        assert_eq!(len, 28);
        let algorithm: &Algorithm = if payload[0] & 1 == 1 {
            &AES_256_GCM
        } else {
            &CHACHA20_POLY1305
        };
        let (send, receive) = state.dangerously_get_raw_split();
        let key = |bytes: [u8; 32]| {
            LessSafeKey::new(UnboundKey::new(algorithm, &bytes).expect("32 bytes"))
        };
        Self {
            seal: key(send),
            open: key(receive),
            features: u16::from_be_bytes([payload[2], payload[3]]),
            remote_index: u32::from_be_bytes(response[4..8].try_into().expect("4 bytes")),
            next: BTreeMap::new(),
        }
    }

    /// The next packet of path 0.
    pub(crate) fn packet(&mut self, frames: &[u8]) -> Vec<u8> {
        self.packet_on(0, frames)
    }

    /// The next packet of a path.
    pub(crate) fn packet_on(&mut self, path: u8, frames: &[u8]) -> Vec<u8> {
        let next = self.next.entry(path).or_default();
        let number = *next;
        *next += 1;
        self.packet_at(path, number, frames)
    }

    /// Any packet.
    pub(crate) fn packet_at(&self, path: u8, number: u64, frames: &[u8]) -> Vec<u8> {
        let mut packet = vec![4, path];
        packet.extend(self.remote_index.to_be_bytes());
        packet.extend((number as u32).to_be_bytes());
        let mut body = frames.to_vec();
        let tag = self
            .seal
            .seal_in_place_separate_tag(nonce(path, number), Aad::from(&packet), &mut body)
            .expect("short enough");
        packet.extend(body);
        packet.extend_from_slice(tag.as_ref());
        packet
    }

    /// The frames of a data packet of the endpoint, with a packet number below 2^32.
    pub(crate) fn open(&self, packet: &[u8]) -> Vec<u8> {
        assert_eq!(packet[0], 4);
        let number = u32::from_be_bytes(packet[6..10].try_into().expect("4 bytes"));
        let mut body = packet[10..].to_vec();
        let clear = self
            .open
            .open_in_place(
                nonce(packet[1], number.into()),
                Aad::from(&packet[..10]),
                &mut body,
            )
            .expect("authentic packet");
        clear.to_vec()
    }
}

fn nonce(path: u8, number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3] = path;
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Gateway 1 and a raw peer of it, gateway 2, that came to it from `address(2)`.
pub(crate) struct Victim {
    pub(crate) now: Instant,
    pub(crate) end: Endpoint,
    pub(crate) peer: PeerId,
    pub(crate) raw: Raw,
    /// Data packets that it has sent.
    pub(crate) heard: u64,
}

impl Victim {
    /// The raw peer has a session, and its path is up.
    pub(crate) fn new() -> Self {
        Self::with(endpoint(1))
    }

    /// The same; `end` is gateway 1, without peers.
    pub(crate) fn with(end: Endpoint) -> Self {
        Self::with_hello(end, Hello::new(2, 1, 1))
    }

    /// The same with a handshake of gateway 2.
    pub(crate) fn with_hello(mut end: Endpoint, hello: Hello) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let id = end.add_peer(Instant::ZERO, peer(2, None));
        let (state, initiation) = hello.initiate();
        feed(&mut end, now, address(2), &initiation);
        let output = drain(&mut end, now);
        let (to, response) = output.packets.first().expect("a response");
        assert_eq!(*to, address(2));
        let mut victim = Self {
            now,
            peer: id,
            raw: Raw::new(state, response),
            heard: 0,
            end,
        };
        victim.inject(&[1]);
        victim.answer_challenges();
        let session = victim.end.session(id).expect("it exists");
        assert!(session.up);
        assert_eq!(victim.drops(), []);
        victim
    }

    /// Sends frames to the endpoint in one packet.
    pub(crate) fn inject(&mut self, frames: &[u8]) {
        let packet = self.raw.packet(frames);
        self.give(&packet);
    }

    /// Sends bytes to the endpoint.
    pub(crate) fn give(&mut self, packet: &[u8]) {
        feed(&mut self.end, self.now, address(2), packet);
    }

    /// Everything that the endpoint has to give out now: its data packets opened, others left out.
    pub(crate) fn hear(&mut self) -> Output {
        self.end.handle_timeout(self.now);
        let mut output = drain(&mut self.end, self.now);
        output.packets.retain(|(_, packet)| packet[0] == 4);
        self.heard += output.packets.len() as u64;
        for (_, packet) in &mut output.packets {
            *packet = self.raw.open(packet);
        }
        output
    }

    /// Has everything that arrived taken over, without sending anything.
    pub(crate) fn take_messages(&mut self) {
        let mut finished = Vec::new();
        while let Some(delivery) = self.end.poll_delivery() {
            if let Delivery::Message { peer, id, .. } = delivery {
                finished.push((peer, id));
            }
        }
        for (peer, id) in finished {
            self.end.finish_message(peer, id, None);
        }
    }

    /// Answers path challenges at the beginning of packets until none comes.
    pub(crate) fn answer_challenges(&mut self) {
        loop {
            let output = self.hear();
            let challenges = output.packets.iter().filter_map(|(_, frames)| {
                let at = frames.windows(1).position(|kind| kind == [3])?;
                frames.get(at + 1..at + 9).map(<[u8]>::to_vec)
            });
            let tokens: Vec<Vec<u8>> = challenges.collect();
            if tokens.is_empty() {
                return;
            }
            for token in tokens {
                self.inject(&frame(4, &[&token]));
            }
        }
    }

    /// All drops so far, by reason.
    pub(crate) fn drops(&self) -> Vec<(&'static str, u64)> {
        drops(&self.end, &[self.peer]).into_iter().collect()
    }

    /// The session still takes a message.
    pub(crate) fn assert_alive(&mut self) {
        // Above all numbers that a test uses.
        let number = (1 << 40) + self.raw.next[&0];
        let body = number.to_be_bytes();
        self.inject(&message(number, 8, 0, &body));
        assert!(self.hear().messages.contains(&body.to_vec()));
    }
}
