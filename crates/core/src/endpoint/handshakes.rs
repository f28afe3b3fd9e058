//! Handshakes of an endpoint: answers those of peers, begins its own, installs the keys.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use keiro_units::Instant;
use rand_core::RngCore;

use super::{
    DatagramMeta, Endpoint,
    handshake_load::{Admission, ReplyShare, SourceClass},
    handshake_queue::WaitingInitiation,
    peer_addresses::PeerAddress,
    peer_reports::Sender,
    replies::UnpacedPacket,
    reply_rate_limit::InitiationSource,
};
use crate::{
    config::Cipher,
    crypto::{KeyLimits, KeyUse, PacketKeys},
    event::{Event, KeyFault},
    handshake::{
        Agreed, CookieJar, Initiation, InitiationHeader, MacCheck, Responder, ResponseHeader,
        cookie_reply, open_cookie_reply, open_version_reply, version_reply,
    },
    id::{PeerId, SocketId},
    session::{ConfirmedEpoch, Epoch, HandshakeDecision, HandshakeOffer, PendingHandshake},
    wire::{
        COOKIE_LEN, Features, HandshakePayload, RESPONSE_LEN, VERSION, VERSION_REPLY_LEN, Versions,
    },
};

/// Handshake packets that wait to be sent at most; more are dropped, their senders try again.
pub(super) const OUTBOX_MAX: usize = 256;
/// Of the peers behind one address, so many are looked at to say which one has sent. Ours: a look takes some
/// 100 ns.
const SUSPECTS_MAX: usize = 64;

/// Keys that a handshake has agreed on.
#[derive(Clone, Copy)]
struct NewEpoch {
    /// Of ours, for packets to us.
    index: u32,
    ours: HandshakeOffer,
    aes: bool,
    initiator: bool,
}

/// An initiation of ours that a peer has answered.
#[derive(Clone, Copy)]
struct AnsweredInitiation {
    peer: PeerId,
    /// Our index of the session.
    index: u32,
    offer: HandshakeOffer,
}

impl Endpoint {
    /// Whether it will be read: it is of a stranger if not.
    pub(super) fn handle_initiation(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        packet: &[u8],
    ) -> bool {
        let Some(header) = InitiationHeader::decode(packet) else {
            self.drops.truncated += 1;
            return false;
        };
        if header.version != VERSION {
            self.on_other_version(now, meta, header, packet);
            return false;
        }
        let Ok(waiting) = packet.try_into() else {
            self.drops.truncated += 1;
            return false;
        };
        self.cookies.refresh(now, &mut self.random);
        let check = self.mac_keys.check(now, packet, meta.remote, &self.cookies);
        if check == MacCheck::Invalid {
            self.drops.bad_mac += 1;
            self.on_wrong_key(now, meta.remote, KeyFault::NotOurs);
            return false;
        }
        let with_cookie = check == MacCheck::WithCookie;
        if self.peers.is_empty() {
            self.drops.foreign_key += 1;
            return false;
        }
        if self.answer_copy(now, meta, packet) {
            return true;
        }
        match self.admit_initiation(now, meta, with_cookie) {
            Admission::Read(standing) => {
                let waiting = WaitingInitiation {
                    meta,
                    packet: waiting,
                };
                let has_room = self.waiting.push(standing, waiting);
                self.drops.rate_limited += u64::from(!has_room);
                self.answer_waiting(now);
                true
            }
            Admission::Cookie(share) => {
                self.send_cookie(meta, share, header.sender, packet);
                false
            }
            Admission::Refused => {
                self.drops.rate_limited += 1;
                false
            }
        }
    }

    fn admit_initiation(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        with_cookie: bool,
    ) -> Admission {
        let without_load_max = self.config.handshakes_per_second_max;
        if !self.load.on_initiation(now, without_load_max) {
            return Admission::Read(match with_cookie {
                true => SourceClass::Proven,
                false => SourceClass::Stranger,
            });
        }
        let source = self.initiation_source(now, meta);
        let random = &mut self.random;
        let hash_seed = || [0; 3].map(|_: u64| random.next_u64());
        self.load
            .admit_under_load(now, source, with_cookie, hash_seed)
    }

    fn initiation_source(&mut self, now: Instant, meta: DatagramMeta) -> InitiationSource {
        let address = meta.remote.ip();
        InitiationSource {
            address,
            is_peer_address: self.is_peer_address(now, address),
            socket: meta.socket,
            uplink: self.uplinks.rate(meta.socket),
        }
    }

    pub(super) fn is_peer_address(&mut self, now: Instant, address: IpAddr) -> bool {
        if self.peer_addresses.is_stale(now) {
            let addresses = self.peers.iter().flat_map(|(id, session)| {
                let remotes = session.remotes().into_iter();
                remotes.map(|(_, remote)| PeerAddress::new(remote, *id))
            });
            self.peer_addresses.collect(now, addresses);
        }
        self.peer_addresses.contains(address)
    }

    /// Which peer has sent from an address that is a peer's, preferably one with the same port: a NAT may have
    /// changed it. `None`: a peer that is up is at this address, or only such ones are behind it.
    pub(super) fn suspect(&self, remote: SocketAddr) -> Option<Sender> {
        let is_up =
            |known: &&PeerAddress| self.peers.get(&known.peer).is_none_or(|peer| peer.is_up());
        let exact = self.peer_addresses.at(remote);
        if exact.iter().take(SUSPECTS_MAX).any(|known| is_up(&known)) {
            return None;
        }
        // Others may be behind the same NAT.
        let known = match exact.is_empty() {
            true => self.peer_addresses.at_ip(remote.ip()),
            false => exact,
        };
        let known = known.iter().take(SUSPECTS_MAX);
        let mut suspects = known.filter(|known| !is_up(known)).map(|known| known.peer);
        let first = suspects.next()?;
        Some(match suspects.all(|other| other == first) {
            true => Sender::Peer(first),
            false => Sender::Shared,
        })
    }

    /// Reads the initiation whose turn it is, if it is time.
    pub(super) fn answer_waiting(&mut self, now: Instant) {
        if let Some(WaitingInitiation { meta, packet }) = self.waiting.poll(now) {
            self.answer_initiation(now, meta, &packet);
        }
    }

    /// Answers a further copy of an initiation that was answered where its first copy came from; `false`: it is
    /// none.
    fn answer_copy(&mut self, now: Instant, meta: DatagramMeta, packet: &[u8]) -> bool {
        let source = (meta.socket, meta.remote);
        let Some((id, response)) = self.response_cache.take_for_copy(now, source, packet) else {
            return false;
        };
        debug_assert!(response.len() < packet.len(), "a copy amplifies nothing");
        if let Some(session) = self.peers.get_mut(&id) {
            session.on_handshake_received(now, meta, packet.len());
        }
        self.stats.answered_copies += 1;
        self.debit(now, id, meta.socket, meta.remote, response.len());
        self.push_out(meta.socket, meta.remote, response);
        true
    }

    fn answer_initiation(&mut self, now: Instant, meta: DatagramMeta, packet: &[u8]) {
        // It may have waited beside the first copy.
        if self.answer_copy(now, meta, packet) {
            return;
        }
        let seed = self.draw_seed();
        self.stats.read_initiations += 1;
        let Some(responder) = Responder::read(&self.config.private_key, packet, seed) else {
            self.drops.unauthentic += 1;
            return;
        };
        let Some(id) = self.by_key.get(&responder.peer).copied() else {
            self.drops.foreign_key += 1;
            let fault = KeyFault::NotOfPeer(responder.peer);
            self.on_wrong_key(now, meta.remote, fault);
            return;
        };
        let index = self.draw_index();
        let session = self
            .peers
            .get_mut(&id)
            .expect("by_key names peers that exist");
        let HandshakePayload {
            incarnation: theirs,
            timestamp,
            ..
        } = responder.payload;
        if !session.incarnations.admit_initiation(theirs, timestamp) {
            session.drops.stale_handshake += 1;
            if !session.is_up() && session.incarnations.report_clock(now, theirs) {
                let behind = self.unix_nanos(now).saturating_sub(timestamp);
                self.events.push_back(Event::ClockBehind {
                    peer: id,
                    remote: meta.remote,
                    behind: Duration::from_nanos(behind),
                });
            }
            return;
        }
        session.on_handshake_received(now, meta, packet.len());
        let ours = HandshakeOffer {
            incarnation: session.incarnations.for_response(theirs, &mut self.random),
            credit: session.credit_for_handshake(),
        };
        let aes = self.config.cipher == Cipher::Aes256Gcm && responder.payload.ciphers & 1 == 1;
        let payload = HandshakePayload {
            ciphers: u8::from(aes),
            timestamp: 0,
            features: Features::SUPPORTED,
            incarnation: ours.incarnation,
            credit: ours.credit,
        };
        let Some((mut response, agreed)) =
            responder.answer(session.preshared_key.as_bytes(), index, &payload)
        else {
            self.drops.unauthentic += 1;
            return;
        };
        // Only initiations are ever answered by a cookie: this jar is not needed again.
        session
            .handshake
            .mac_keys
            .append(now, &mut response, &mut CookieJar::default());
        let new = NewEpoch {
            index,
            ours,
            aes,
            initiator: false,
        };
        self.add_epoch(now, id, &agreed, new);
        self.stats.accepted_messages += 1;
        let source = (meta.socket, meta.remote);
        self.response_cache
            .on_answered(now, id, source, packet, &response);
        self.debit(now, id, meta.socket, meta.remote, response.len());
        self.push_out(meta.socket, meta.remote, response);
    }

    pub(super) fn handle_response(&mut self, now: Instant, meta: DatagramMeta, packet: &[u8]) {
        let Some(header) = ResponseHeader::decode(packet) else {
            self.drops.truncated += 1;
            return;
        };
        let Some(id) = self.by_index.get(&header.receiver).copied() else {
            self.drops.unknown_index += 1;
            return;
        };
        let remote = SocketAddr::from(([0, 0, 0, 0], 0));
        if self.mac_keys.check(now, packet, remote, &self.cookies) == MacCheck::Invalid {
            self.drops.bad_mac += 1;
            return;
        }
        let session = self
            .peers
            .get_mut(&id)
            .expect("by_index names peers that exist");
        let Some(pending) = session
            .handshake
            .pending
            .take_if(|pending| pending.local_index == header.receiver)
        else {
            // The peer answers on every path on which our initiation reaches it.
            match session.keys.by_index(header.receiver).is_some() {
                true => session.drops.stale_handshake += 1,
                false => session.drops.unknown_index += 1,
            }
            return;
        };
        let offer = pending.offer;
        match pending.initiation.finish(packet) {
            Ok(agreed) => {
                let answered = AnsweredInitiation {
                    peer: id,
                    index: header.receiver,
                    offer,
                };
                self.on_response(now, meta, answered, &agreed);
            }
            Err(initiation) => {
                session.drops.unauthentic += 1;
                session.handshake.pending = Some(PendingHandshake {
                    initiation: *initiation,
                    ..pending
                });
                self.on_preshared_key_differs(now, id, meta.remote);
            }
        }
    }

    /// A peer has answered our initiation.
    fn on_response(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        answered: AnsweredInitiation,
        agreed: &Agreed,
    ) {
        let AnsweredInitiation {
            peer: id,
            index,
            offer: ours,
        } = answered;
        let confirmed = ConfirmedEpoch {
            incarnation: agreed.payload.incarnation,
            ours,
            credit: agreed.payload.credit,
        };
        let session = self.peers.get_mut(&id).expect("found before");
        session.on_handshake_received(now, meta, RESPONSE_LEN);
        if session.decide_on_response(now, meta, confirmed) != HandshakeDecision::Accept {
            session.drops.duplicate_key += 1;
            self.by_index.remove(&index);
            return;
        }
        let new = NewEpoch {
            index,
            ours,
            aes: agreed.payload.ciphers & 1 == 1,
            initiator: true,
        };
        self.add_epoch(now, id, agreed, new);
        self.stats.accepted_messages += 1;
        let session = self.peers.get_mut(&id).expect("found above");
        session.on_epoch_confirmed(now, confirmed);
        for index in session.retired.drain(..) {
            self.by_index.remove(&index);
        }
    }

    pub(super) fn handle_cookie_reply(&mut self, now: Instant, packet: &[u8]) {
        if packet.len() != COOKIE_LEN {
            self.drops.truncated += 1;
            return;
        }
        let index = u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]]);
        let session = self
            .by_index
            .get(&index)
            .and_then(|id| self.peers.get_mut(id));
        let Some(session) = session else {
            self.drops.unknown_index += 1;
            return;
        };
        let handshake = &mut session.handshake;
        match open_cookie_reply(&handshake.mac_keys, &handshake.cookie, packet) {
            Some(cookie) => {
                handshake.cookie.put(now, cookie);
                // Try again at once, now with the cookie; once per attempt.
                if handshake.pending.is_some() {
                    handshake.next_at = Some(now);
                }
            }
            None => session.drops.unauthentic += 1,
        }
    }

    /// An initiation of a version that we do not speak. It is answered with the versions that we
    /// do, if its sender knows our public key, and reported.
    ///
    /// Who sent it is encrypted in a way that this version cannot read, so the peer is guessed by
    /// its address. A guess is never acted upon, only reported.
    fn on_other_version(
        &mut self,
        now: Instant,
        meta: DatagramMeta,
        header: InitiationHeader,
        packet: &[u8],
    ) {
        if self.mac_keys.check(now, packet, meta.remote, &self.cookies) == MacCheck::Invalid {
            self.drops.bad_mac += 1;
            return;
        }
        self.drops.version += 1;
        if self.peers.is_empty() {
            return;
        }
        let source = self.initiation_source(now, meta);
        let suspect = self.suspect(meta.remote).filter(|_| source.is_peer_address);
        let sender = suspect.unwrap_or(Sender::Stranger);
        self.report_mismatch(now, sender, meta.remote, Versions::only(header.version));
        let random = &mut self.random;
        let hash_seed = || [0; 3].map(|_: u64| random.next_u64());
        let Some(share) = self.load.admit_version_reply(now, source, hash_seed) else {
            return;
        };
        if let Some(reply) = version_reply(&self.mac_keys, packet, header.sender) {
            debug_assert!(reply.len() < packet.len(), "a reply amplifies nothing");
            let reply = UnpacedPacket::from((meta.socket, meta.remote, reply));
            let sent = self.replies.push(share, reply);
            self.stats.sent_version_replies += u64::from(sent);
            self.drops.rate_limited += u64::from(!sent);
        }
    }

    /// The answer of a peer that does not speak our version. The handshake goes on: the answer may
    /// be forged by a host on the path, and the peer may be upgraded at any time.
    pub(super) fn handle_version_reply(&mut self, now: Instant, meta: DatagramMeta, packet: &[u8]) {
        if packet.len() != VERSION_REPLY_LEN {
            self.drops.truncated += 1;
            return;
        }
        let index = u32::from_be_bytes([packet[4], packet[5], packet[6], packet[7]]);
        let id = self.by_index.get(&index).copied();
        let Some((id, session)) = id.and_then(|id| Some((id, self.peers.get_mut(&id)?))) else {
            self.drops.unknown_index += 1;
            return;
        };
        let handshake = &session.handshake;
        let pending = handshake.pending.as_ref();
        if pending.is_none_or(|pending| pending.local_index != index) {
            session.drops.unknown_index += 1;
            return;
        }
        match open_version_reply(&handshake.mac_keys, &handshake.cookie, packet) {
            None => session.drops.unauthentic += 1,
            // RFC 9000 §6.2: a list that has the version we began with answers something else.
            Some(theirs) if theirs.contains(VERSION) => session.drops.malformed += 1,
            Some(theirs) => {
                session.drops.version += 1;
                self.report_mismatch(now, Sender::Peer(id), meta.remote, theirs);
            }
        }
    }

    fn report_mismatch(
        &mut self,
        now: Instant,
        sender: Sender,
        remote: SocketAddr,
        theirs: Versions,
    ) {
        if self.mismatch_reports.admit(now, sender) {
            self.events.push_back(Event::VersionMismatch {
                peer: sender.peer(),
                remote,
                theirs,
                ours: Versions::SUPPORTED,
            });
        }
    }

    /// Unix time in nanoseconds.
    fn unix_nanos(&self, now: Instant) -> u64 {
        nanos(self.config.unix_time_at_zero).saturating_add(now.as_nanos())
    }

    /// Sends an initiation over every path: a first one that is down must not block the start.
    pub(super) fn begin_handshake(&mut self, now: Instant, id: PeerId) {
        let seed = self.draw_seed();
        let index = self.draw_index();
        let jitter = Duration::from_millis(u64::from(self.random.next_u32() % 100));
        let next = self.last_timestamp.saturating_add(1);
        self.last_timestamp = self.unix_nanos(now).max(next);
        let timing = self.config.timing;
        let Some(session) = self.peers.get(&id) else {
            return;
        };
        let remotes = match session.answers_only {
            true => Vec::new(),
            false => session.remotes(),
        };
        if remotes.is_empty() {
            // It must come to us. Peers of one start are looked at apart.
            self.postpone_handshake(id, now + timing.handshake_retry_max + jitter);
            return;
        }
        let Some(pending) = self.new_initiation(id, index, seed) else {
            self.postpone_handshake(id, now + timing.handshake_retry_max);
            return;
        };
        let Some(session) = self.peers.get_mut(&id) else {
            return;
        };
        let handshake = &mut session.handshake;
        if handshake.attempts > 0 {
            let remotes = remotes.iter().map(|(_, remote)| *remote).collect();
            session.events.push_back(Event::HandshakeUnanswered {
                peer: id,
                attempts: handshake.attempts,
                remotes,
            });
        }
        let wait = timing.handshake_retry * (1 << handshake.attempts.min(10));
        handshake.next_at = Some(now + wait.min(timing.handshake_retry_max) + jitter);
        handshake.attempts += 1;
        let mut packet = pending.initiation.body.clone();
        handshake
            .mac_keys
            .append(now, &mut packet, &mut handshake.cookie);
        if let Some(old) = handshake.pending.replace(pending) {
            self.by_index.remove(&old.local_index);
        }
        self.by_index.insert(index, id);
        for (socket, remote) in remotes {
            self.debit(now, id, socket, remote, packet.len());
            self.push_out(socket, remote, packet.clone());
        }
    }

    /// The next handshake of a peer begins at `next_at`. An earlier one is not waited for any longer, nor its
    /// secrets kept.
    fn postpone_handshake(&mut self, id: PeerId, next_at: Instant) {
        let Some(session) = self.peers.get_mut(&id) else {
            return;
        };
        session.handshake.next_at = Some(next_at);
        if let Some(old) = session.handshake.pending.take() {
            self.by_index.remove(&old.local_index);
        }
    }

    /// An initiation for a peer, of the time in `last_timestamp`. `None`: the peer's public key allows none.
    fn new_initiation(
        &mut self,
        id: PeerId,
        index: u32,
        seed: [u8; 32],
    ) -> Option<PendingHandshake> {
        let session = self.peers.get_mut(&id)?;
        let offer = HandshakeOffer {
            incarnation: session.incarnations.for_initiation(&mut self.random),
            credit: session.credit_for_handshake(),
        };
        let payload = HandshakePayload {
            ciphers: u8::from(self.config.cipher == Cipher::Aes256Gcm),
            timestamp: self.last_timestamp,
            features: Features::SUPPORTED,
            incarnation: offer.incarnation,
            credit: offer.credit,
        };
        let initiation = Initiation::new(
            &self.config.private_key,
            &session.public_key,
            session.preshared_key.as_bytes(),
            index,
            &payload,
            seed,
        )?;
        Some(PendingHandshake {
            initiation,
            local_index: index,
            offer,
        })
    }

    /// A handshake packet leaves beside the pacer, which pays for it like for all others.
    fn debit(
        &mut self,
        now: Instant,
        id: PeerId,
        socket: SocketId,
        remote: SocketAddr,
        len: usize,
    ) {
        if let Some(session) = self.peers.get_mut(&id) {
            session.on_unpaced_sent(now, socket, remote, len);
        }
    }

    /// Answers a gateway that is not served. Its path's pacer pays without being asked.
    pub(super) fn send_beside_pacer(&mut self, now: Instant, id: PeerId, packet: UnpacedPacket) {
        let (socket, remote, len) = (packet.socket, packet.remote, packet.bytes.len());
        match self.replies.push(ReplyShare::PeerAddress, packet) {
            true => self.debit(now, id, socket, remote, len),
            false => self.drops.rate_limited += 1,
        }
    }

    fn add_epoch(&mut self, now: Instant, id: PeerId, agreed: &Agreed, new: NewEpoch) {
        let NewEpoch {
            index,
            ours,
            aes,
            initiator,
        } = new;
        let cipher = if aes {
            Cipher::Aes256Gcm
        } else {
            Cipher::ChaCha20Poly1305
        };
        let session = self
            .peers
            .get_mut(&id)
            .expect("keys are agreed with peers that exist");
        let epoch = Epoch {
            local_index: index,
            remote_index: agreed.remote_index,
            keys: PacketKeys::new(cipher, &agreed.keys.send, &agreed.keys.receive),
            incarnation: agreed.payload.incarnation,
            ours,
            credit: agreed.payload.credit,
            features: agreed.payload.features.intersection(Features::SUPPORTED),
            since: now,
            initiator,
            confirmed: initiator,
            used: KeyUse::default(),
            limits: KeyLimits::of(cipher).lowered_to(&self.config.timing),
        };
        self.mismatch_reports.forget(id);
        self.wrong_keys.forget(id);
        let retired = session.keys.push(epoch);
        self.by_index.insert(index, id);
        for index in retired {
            self.by_index.remove(&index);
        }
    }

    fn send_cookie(&mut self, meta: DatagramMeta, share: ReplyShare, sender: u32, packet: &[u8]) {
        let reply = cookie_reply(
            &self.mac_keys,
            &self.cookies,
            packet,
            sender,
            meta.remote,
            &mut self.random,
        );
        if let Some(reply) = reply {
            let reply = UnpacedPacket::from((meta.socket, meta.remote, reply));
            let sent = self.replies.push(share, reply);
            self.stats.sent_cookies += u64::from(sent);
            self.drops.rate_limited += u64::from(!sent);
        }
    }

    fn push_out(&mut self, socket: SocketId, remote: SocketAddr, packet: Vec<u8>) {
        if self.outbox.len() < OUTBOX_MAX {
            self.outbox.push_back(UnpacedPacket {
                socket,
                remote,
                bytes: packet,
            });
        } else {
            self.drops.rate_limited += 1;
        }
    }

    fn draw_seed(&mut self) -> [u8; 32] {
        self.seeds.draw(&mut self.random)
    }

    /// An index that no session of ours has.
    fn draw_index(&mut self) -> u32 {
        loop {
            let index = self.random.next_u32();
            if !self.by_index.contains_key(&index) {
                return index;
            }
        }
    }
}

/// A Unix time as handshakes have it.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
