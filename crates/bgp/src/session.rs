//! One connection to a neighbour: state machine, timers, and messages out of a stream of octets.
//!
//! The state machine is a library's (`rustbgpd-fsm`); here are its timers on the caller's clock,
//! framing in a bounded buffer, and what was agreed upon in our own terms. What routes mean, and
//! which of two connections stays, is the speaker's.

use std::{net::Ipv4Addr, time::Duration};

use bytes::Bytes;
use keiro_units::Instant;
use rustbgpd_fsm::{self as fsm, Action, Event, TimerType};
use rustbgpd_wire::{
    self as codec, AddPathMode, Capability, Message, NotificationMessage, RouteRefreshMessage,
    RouteRefreshSubtype,
    notification::{NotificationCode, cease_subcode},
};

use crate::{
    address::Family,
    wire::{self, Encoding, Update},
};

/// What a session offers and latency targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Our AS.
    pub local_asn: u32,
    /// The neighbour's AS.
    pub remote_asn: u32,
    /// Our BGP identifier.
    pub router_id: Ipv4Addr,
    /// Seconds without a message after which the neighbour is gone: 0 (never) or from 3.
    pub hold_time: u16,
    /// What routes are exchanged.
    pub families: Vec<Family>,
    /// Take several paths per destination (RFC 7911).
    pub add_path: bool,
    /// Keep the neighbour's routes while it restarts, and ask it to keep ours for so many seconds
    /// (RFC 4724); `None`: neither.
    pub graceful_restart: Option<u16>,
    /// We have just restarted, and what we forwarded is still forwarded.
    pub restarted: bool,
}

/// What was agreed upon with a neighbour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Its BGP identifier; unspecified before there is a session.
    pub router_id: Option<Ipv4Addr>,
    /// Its AS.
    pub asn: u32,
    /// The families of which routes are exchanged.
    pub families: Vec<Family>,
    /// Those in which it sends several paths.
    pub add_path: Vec<Family>,
    /// The hold time, in seconds.
    pub hold_time: u16,
    /// It announces its routes again when asked (RFC 2918).
    pub route_refresh: bool,
    /// How long it may take to restart; `None`: its routes go with the session.
    pub restart_time: Option<Duration>,
    /// The families whose routes stay meanwhile.
    pub restart_families: Vec<Family>,
    /// The families of which it still forwards what it forwarded before it restarted.
    pub preserved: Vec<Family>,
    /// Its routes stay, too, when an error ends the session (RFC 8538).
    pub survives_notification: bool,
}

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not wanted, or waiting to try again.
    Idle,
    /// A connection is being made, or waited for.
    Connecting,
    /// The OPEN is out.
    OpenSent,
    /// Both have sent theirs.
    OpenConfirm,
    /// Routes are exchanged.
    Established,
}

/// What a session has to say to the speaker.
#[derive(Debug)]
pub(crate) enum Output {
    /// It wants a connection.
    Connect,
    /// Its connection is to be closed once what waits has been sent.
    Close,
    /// The neighbour has said who it is.
    Opened(Ipv4Addr),
    /// Routes can be exchanged.
    Up,
    /// It was up and is no longer.
    Down(Down),
    /// Routes.
    Update(Update),
    /// All routes of a family are wanted again.
    Refresh(Family),
    /// The neighbour begins to announce a family anew (RFC 7313).
    RefreshBegins(Family),
    /// It has done so.
    RefreshEnds(Family),
}

/// Why a session is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// The routes stay for a while.
    pub graceful: bool,
    /// In words.
    pub reason: String,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Session {
    fsm: fsm::Session,
    config: SessionConfig,
    timers: [Option<Instant>; 3],
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    terms: Terms,
    encoding: Encoding,
    /// What was agreed upon lets messages be so long.
    message_bytes_max: u16,
    /// The last reason why it went down.
    last_error: Option<String>,
}

impl Session {
    pub(crate) fn new(config: SessionConfig) -> Self {
        Self {
            fsm: fsm::Session::new(peer_config(&config)),
            config,
            timers: [None; 3],
            inbox: Vec::new(),
            outbox: Vec::new(),
            terms: Terms::default(),
            encoding: Encoding::default(),
            message_bytes_max: codec::MAX_MESSAGE_LEN,
            last_error: None,
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.fsm.state() {
            fsm::SessionState::Idle => State::Idle,
            fsm::SessionState::Connect | fsm::SessionState::Active => State::Connecting,
            fsm::SessionState::OpenSent => State::OpenSent,
            fsm::SessionState::OpenConfirm => State::OpenConfirm,
            fsm::SessionState::Established => State::Established,
        }
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// What is to be sent; who takes octets from its front clears them.
    pub(crate) fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.outbox.is_empty()
    }

    pub(crate) fn start(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.inbox.clear();
        self.outbox.clear();
        self.feed(now, Event::ManualStart, out);
    }

    /// Ends it with a NOTIFICATION that the neighbour's routes do not survive.
    pub(crate) fn stop(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.feed(now, Event::ManualStop { reason: None }, out);
    }

    pub(crate) fn connected(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.inbox.clear();
        self.outbox.clear();
        self.feed(now, Event::TcpConnectionConfirmed, out);
    }

    /// The connection could not be made, or is gone.
    pub(crate) fn disconnected(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.inbox.clear();
        self.outbox.clear();
        self.feed(now, Event::TcpConnectionFails, out);
    }

    /// Ends it with a NOTIFICATION of kind Cease.
    pub(crate) fn cease(&mut self, subcode: u8, reason: &str, out: &mut Vec<Output>) {
        let was_up = self.state() == State::Established;
        let cease = NotificationMessage::new(NotificationCode::Cease, subcode, Bytes::new());
        if self.state() as u8 >= State::OpenSent as u8 {
            wire::put_message(&Message::Notification(cease), &mut self.outbox);
        }
        self.fsm = fsm::Session::new(peer_config(&self.config));
        self.timers = [None; 3];
        self.last_error = Some(reason.to_owned());
        if was_up {
            out.push(Output::Down(Down {
                graceful: false,
                reason: reason.to_owned(),
            }));
        }
        out.push(Output::Close);
    }

    pub(crate) fn receive(&mut self, now: Instant, octets: &[u8], out: &mut Vec<Output>) {
        if self.inbox.is_empty() {
            let used = self.take_messages(now, octets, out);
            self.inbox.extend(&octets[used..]);
        } else {
            let mut inbox = std::mem::take(&mut self.inbox);
            inbox.extend(octets);
            let used = self.take_messages(now, &inbox, out);
            inbox.drain(..used);
            self.inbox = inbox;
        }
        // Less than one message is left, or nothing more is read from a session that has ended.
        debug_assert!(self.inbox.len() < usize::from(codec::EXTENDED_MAX_MESSAGE_LEN));
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Output>) {
        for (i, event) in [
            Event::ConnectRetryTimerExpires,
            Event::HoldTimerExpires,
            Event::KeepaliveTimerExpires,
        ]
        .into_iter()
        .enumerate()
        {
            if self.timers[i].is_some_and(|due| due <= now) {
                self.timers[i] = None;
                self.feed(now, event, out);
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.iter().flatten().min().copied()
    }

    /// Asks for all routes of a family again; whether the neighbour can be asked.
    pub(crate) fn ask_refresh(&mut self, family: Family) -> bool {
        if self.state() != State::Established || !self.terms.route_refresh {
            return false;
        }
        let (afi, safi) = codec_family(family);
        let message = Message::RouteRefresh(RouteRefreshMessage::new(afi, safi));
        wire::put_message(&message, &mut self.outbox);
        true
    }

    /// How many octets whole messages took.
    fn take_messages(&mut self, now: Instant, octets: &[u8], out: &mut Vec<Output>) -> usize {
        let mut used = 0;
        while !matches!(self.state(), State::Idle | State::Connecting) {
            let rest = &octets[used..];
            match codec::peek_message_length(rest, self.message_bytes_max) {
                Ok(Some(length)) if usize::from(length) <= rest.len() => {
                    let length = usize::from(length);
                    used += length;
                    let mut message = Bytes::copy_from_slice(&rest[..length]);
                    match codec::decode_message(&mut message, self.message_bytes_max) {
                        Ok(message) => self.take(now, message, out),
                        Err(error) => self.feed(now, Event::DecodeError(error), out),
                    }
                }
                Ok(_) => return used,
                Err(error) => self.feed(now, Event::DecodeError(error), out),
            }
        }
        octets.len()
    }

    fn take(&mut self, now: Instant, message: Message, out: &mut Vec<Output>) {
        match message {
            Message::Open(open) => {
                out.push(Output::Opened(open.bgp_identifier));
                self.feed(now, Event::OpenReceived(open), out);
            }
            Message::Keepalive => self.feed(now, Event::KeepaliveReceived, out),
            Message::Notification(notification) => {
                self.feed(now, Event::NotificationReceived(notification), out);
            }
            Message::Update(update) => {
                if self.state() != State::Established {
                    self.feed(now, Event::UpdateReceived, out);
                    return;
                }
                match wire::decode_update(&update, &self.encoding) {
                    Ok(update) => {
                        self.feed(now, Event::UpdateReceived, out);
                        out.push(Output::Update(update));
                    }
                    Err(fatal) => {
                        let notification = wire::update_error(&fatal);
                        self.last_error = Some(format!("bad UPDATE: {}", fatal.detail));
                        self.feed(now, Event::UpdateValidationError(notification), out);
                    }
                }
            }
            Message::RouteRefresh(refresh) => self.take_refresh(now, &refresh, out),
            _ => {}
        }
    }

    fn take_refresh(&mut self, now: Instant, refresh: &RouteRefreshMessage, out: &mut Vec<Output>) {
        if let (Some(afi), Some(safi)) = (refresh.afi(), refresh.safi()) {
            self.feed(now, Event::RouteRefreshReceived { afi, safi }, out);
        }
        let family = Family::of(refresh.afi_raw, refresh.safi_raw);
        let Some(family) = family.filter(|family| self.terms.families.contains(family)) else {
            return;
        };
        match refresh.subtype() {
            RouteRefreshSubtype::Normal => out.push(Output::Refresh(family)),
            RouteRefreshSubtype::BoRR => out.push(Output::RefreshBegins(family)),
            RouteRefreshSubtype::EoRR => out.push(Output::RefreshEnds(family)),
            _ => {}
        }
    }

    fn feed(&mut self, now: Instant, event: Event, out: &mut Vec<Output>) {
        let stopped = matches!(event, Event::ManualStop { .. });
        let down = self.down_by(&event);
        let was = self.state();
        for action in self.fsm.handle_event(event) {
            match action {
                Action::SendOpen(open) => {
                    let open = self.with_restart_flags(open);
                    wire::put_message(&Message::Open(open), &mut self.outbox);
                }
                Action::SendKeepalive => wire::put_message(&Message::Keepalive, &mut self.outbox),
                Action::SendNotification(notification) => {
                    let notification = match stopped && self.terms.survives_notification {
                        true => hard_reset(&notification),
                        false => notification,
                    };
                    wire::put_message(&Message::Notification(notification), &mut self.outbox);
                }
                Action::StartTimer(timer, seconds) => {
                    let delay = Duration::from_secs(u64::from(seconds));
                    self.timers[place(timer)] = Some(now + delay);
                }
                Action::StopTimer(timer) => self.timers[place(timer)] = None,
                Action::InitiateTcpConnection => out.push(Output::Connect),
                Action::CloseTcpConnection => out.push(Output::Close),
                Action::SessionEstablished(agreed) => {
                    self.agree(&agreed);
                    out.push(Output::Up);
                }
                Action::SessionDown => out.push(Output::Down(down.clone())),
                // The state is asked for; roles are not used.
                _ => {}
            }
        }
        if self.state() == State::Idle && was != State::Idle {
            self.timers = [None; 3];
            self.message_bytes_max = codec::MAX_MESSAGE_LEN;
            self.last_error = Some(down.reason);
        }
    }

    /// What it means for the routes if `event` ends the session.
    fn down_by(&self, event: &Event) -> Down {
        let terms = &self.terms;
        let (graceful, reason) = match event {
            Event::TcpConnectionFails => (true, "the connection is gone".to_owned()),
            Event::HoldTimerExpires => (
                terms.survives_notification,
                format!("nothing heard for {} s", terms.hold_time),
            ),
            Event::NotificationReceived(message) => {
                let hard = message.code == NotificationCode::Cease
                    && message.subcode == cease_subcode::HARD_RESET;
                let (code, subcode) = (message.code, message.subcode);
                let reason = format!("the neighbour ended it: {code}, subcode {subcode}");
                (terms.survives_notification && !hard, reason)
            }
            Event::DecodeError(error) => (false, format!("bad message: {error}")),
            Event::UpdateValidationError(_) => (
                false,
                self.last_error
                    .clone()
                    .unwrap_or_else(|| "bad UPDATE".to_owned()),
            ),
            Event::ManualStop { .. } => (false, "stopped here".to_owned()),
            Event::OpenReceived(open) => {
                let (asn, id) = (open.four_byte_as(), open.bgp_identifier);
                (
                    false,
                    format!("its OPEN was refused (AS {asn}, identifier {id})"),
                )
            }
            other => (false, format!("unexpected {}", other.name())),
        };
        Down {
            graceful: graceful && terms.restart_time.is_some(),
            reason,
        }
    }

    fn agree(&mut self, agreed: &fsm::NegotiatedSession) {
        let own = |list: Vec<(codec::Afi, codec::Safi)>| -> Vec<Family> {
            let family = |&(afi, safi): &_| Family::of(afi as u16, safi as u8);
            let list: Vec<Family> = list.iter().filter_map(family).collect();
            let ours = self.config.families.iter().copied();
            ours.filter(|family| list.contains(family)).collect()
        };
        let families = own(agreed.negotiated_families.clone());
        let receives =
            |mode: &AddPathMode| matches!(mode, AddPathMode::Receive | AddPathMode::Both);
        let add_path = agreed.add_path_families.iter();
        let add_path = own(add_path
            .filter(|(_, mode)| receives(mode))
            .map(|(family, _)| *family)
            .collect());
        let restarting = &agreed.peer_gr_families;
        let preserved = restarting
            .iter()
            .filter(|family| family.forwarding_preserved);
        let graceful = agreed.peer_gr_capable && self.config.graceful_restart.is_some();
        let seconds = u64::from(agreed.peer_restart_time);
        self.terms = Terms {
            router_id: Some(agreed.peer_router_id),
            asn: agreed.peer_asn,
            hold_time: agreed.hold_time,
            route_refresh: agreed.peer_route_refresh,
            restart_time: graceful.then(|| Duration::from_secs(seconds)),
            restart_families: own(restarting.iter().map(|f| (f.afi, f.safi)).collect()),
            preserved: own(preserved.map(|f| (f.afi, f.safi)).collect()),
            survives_notification: graceful && agreed.peer_notification_gr,
            add_path: add_path.clone(),
            families: families.clone(),
        };
        let ipv4 = codec_family(Family::Ipv4);
        self.encoding = Encoding {
            four_octet: agreed.four_octet_as,
            internal: self.config.local_asn == self.config.remote_asn,
            families,
            add_path,
            extended_next_hop: agreed.extended_nexthop_families.contains_key(&ipv4),
        };
        if agreed.peer_extended_message {
            self.message_bytes_max = codec::EXTENDED_MAX_MESSAGE_LEN;
        }
    }

    fn with_restart_flags(&self, mut open: codec::OpenMessage) -> codec::OpenMessage {
        for capability in &mut open.capabilities {
            if let Capability::GracefulRestart {
                restart_state,
                families,
                ..
            } = capability
            {
                *restart_state = self.config.restarted;
                for family in families {
                    family.forwarding_preserved = self.config.restarted;
                }
            }
        }
        open
    }
}

fn peer_config(config: &SessionConfig) -> fsm::PeerConfig {
    let mut peer = fsm::PeerConfig::new(config.local_asn, config.remote_asn, config.router_id);
    peer.hold_time = config.hold_time;
    peer.connect_retry_secs = CONNECT_RETRY_SECONDS;
    peer.families = config.families.iter().copied().map(codec_family).collect();
    peer.disable_ipv4_unicast = !config.families.contains(&Family::Ipv4);
    peer.add_path_receive = config.add_path;
    peer.graceful_restart = config.graceful_restart.is_some();
    peer.gr_restart_time = config.graceful_restart.unwrap_or_default();
    peer
}

fn codec_family(family: Family) -> (codec::Afi, codec::Safi) {
    match family {
        Family::Ipv4 => (codec::Afi::Ipv4, codec::Safi::Unicast),
        Family::Ipv6 => (codec::Afi::Ipv6, codec::Safi::Unicast),
        Family::Vpn6 => (codec::Afi::Ipv6, codec::Safi::MplsVpn),
    }
}

/// What a neighbour whose routes survive a NOTIFICATION is told so that they do not (RFC 8538 §3).
fn hard_reset(inner: &NotificationMessage) -> NotificationMessage {
    let mut data = vec![inner.code.as_u8(), inner.subcode];
    data.extend(&inner.data);
    NotificationMessage::new(
        NotificationCode::Cease,
        cease_subcode::HARD_RESET,
        data.into(),
    )
}

const fn place(timer: TimerType) -> usize {
    match timer {
        TimerType::ConnectRetry => 0,
        TimerType::Hold => 1,
        _ => 2,
    }
}

/// Between attempts to connect, doubled after each; RFC 4271 §10 suggests 120, which is long where
/// a peering is a few metres. Ours.
const CONNECT_RETRY_SECONDS: u32 = 5;
