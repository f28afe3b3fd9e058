//! One BGP session: state machine, timers, and framing.
//!
//! The state machine is the library `rustbgpd-fsm`. This module runs its timers on the caller's
//! clock, cuts messages out of a bounded buffer, and translates what was negotiated. The speaker
//! interprets routes and resolves connection collisions.

mod reasons;

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

/// What a session offers and requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    pub local_asn: u32,
    pub remote_asn: u32,
    pub router_id: Ipv4Addr,
    /// Hold time in seconds: 0 (disabled) or at least 3.
    pub hold_time: u16,
    pub families: Vec<Family>,
    /// Accept several paths per destination (RFC 7911).
    pub add_path: bool,
    /// Restart time in seconds to advertise; the neighbour's routes are kept as well while it
    /// restarts (RFC 4724). `None`: no graceful restart.
    pub graceful_restart: Option<u16>,
    /// This speaker has just restarted and preserved its forwarding state.
    pub restarted: bool,
    /// Offer messages of up to 65,535 octets (RFC 8654).
    pub extended_messages: bool,
}

/// What was negotiated with a neighbour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// The BGP identifier of the neighbour; `None`: there was no session yet.
    pub router_id: Option<Ipv4Addr>,
    pub asn: u32,
    pub families: Vec<Family>,
    /// The families in which the neighbour sends several paths.
    pub add_path: Vec<Family>,
    /// The hold time in use, in seconds.
    pub hold_time: u16,
    /// The neighbour supports route refresh (RFC 2918).
    pub route_refresh: bool,
    /// How long the neighbour may take to restart; `None`: its routes are dropped with the session.
    pub restart_time: Option<Duration>,
    /// The families whose routes are kept during a restart.
    pub restart_families: Vec<Family>,
    /// The families for which the neighbour preserved its forwarding state over its restart.
    pub preserved: Vec<Family>,
    /// Routes are also kept when a NOTIFICATION ends the session (RFC 8538).
    pub survives_notification: bool,
    /// Both sides take messages of up to 65,535 octets (RFC 8654).
    pub extended_messages: bool,
}

/// The state of a session. `Connecting` stands for Connect and Active of RFC 4271 §8.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    Connecting,
    OpenSent,
    OpenConfirm,
    Established,
}

/// What a session asks of the speaker.
#[derive(Debug)]
pub(crate) enum Output {
    Connect,
    /// Close the connection once the pending output is sent.
    Close,
    /// The neighbour's OPEN has arrived; its BGP identifier.
    Opened(Ipv4Addr),
    /// The session is established.
    Up,
    /// An established session went down.
    Down(Down),
    Update(Update),
    /// Route refresh request for a family (RFC 2918).
    Refresh(Family),
    /// Begin of an enhanced route refresh (RFC 7313).
    RefreshBegins(Family),
    /// End of an enhanced route refresh.
    RefreshEnds(Family),
}

/// Why a session is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Down {
    /// The neighbour's routes are kept for a graceful restart.
    pub graceful: bool,
    /// The reason as text.
    pub reason: String,
}

#[derive(Debug)]
pub(crate) struct Session {
    fsm: fsm::Session,
    config: SessionConfig,
    timers: [Option<Instant>; 3],
    receive_buffer: Vec<u8>,
    send_buffer: Vec<u8>,
    negotiated: Negotiated,
    encoding: Encoding,
    /// The longest message the neighbour may send: 4096, or more with extended messages (RFC 8654).
    message_bytes_max: u16,
    /// Why the session went down; `None`: it did not, or the speaker knows.
    last_error: Option<String>,
}

impl Session {
    pub(crate) fn new(config: SessionConfig) -> Self {
        Self {
            fsm: fsm::Session::new(peer_config(&config)),
            config,
            timers: [None; 3],
            receive_buffer: Vec::new(),
            send_buffer: Vec::new(),
            negotiated: Negotiated::default(),
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

    pub(crate) fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    pub(crate) fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// Why the session went down, once.
    pub(crate) fn take_error(&mut self) -> Option<String> {
        self.last_error.take()
    }

    /// Bytes to send; the caller removes what it has taken.
    pub(crate) fn send_buffer(&mut self) -> &mut Vec<u8> {
        &mut self.send_buffer
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.send_buffer.is_empty()
    }

    pub(crate) fn start(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.receive_buffer.clear();
        self.send_buffer.clear();
        self.handle_event(now, Event::ManualStart, out);
    }

    /// Ends the session with a NOTIFICATION after which the neighbour does not keep routes.
    pub(crate) fn stop(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.handle_event(now, Event::ManualStop { reason: None }, out);
    }

    pub(crate) fn connected(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.receive_buffer.clear();
        self.send_buffer.clear();
        self.handle_event(now, Event::TcpConnectionConfirmed, out);
    }

    /// The connection attempt failed, or the connection is lost.
    pub(crate) fn disconnected(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.receive_buffer.clear();
        self.send_buffer.clear();
        self.handle_event(now, Event::TcpConnectionFails, out);
    }

    /// Ends the session with a Cease NOTIFICATION.
    pub(crate) fn cease(&mut self, subcode: u8, reason: &str, out: &mut Vec<Output>) {
        let cease = NotificationMessage::new(NotificationCode::Cease, subcode, Bytes::new());
        if self.state() as u8 >= State::OpenSent as u8 {
            wire::put_message(&Message::Notification(cease), &mut self.send_buffer);
        }
        self.abandon(reason, out);
    }

    /// Ends the session without a NOTIFICATION, which would not arrive. The neighbour's routes are
    /// not kept.
    pub(crate) fn abandon(&mut self, reason: &str, out: &mut Vec<Output>) {
        let was_up = self.state() == State::Established;
        self.fsm = fsm::Session::new(peer_config(&self.config));
        self.timers = [None; 3];
        self.message_bytes_max = codec::MAX_MESSAGE_LEN;
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
        if self.receive_buffer.is_empty() {
            let used = self.read_messages(now, octets, out);
            self.receive_buffer.extend(&octets[used..]);
        } else {
            let mut receive_buffer = std::mem::take(&mut self.receive_buffer);
            receive_buffer.extend(octets);
            let used = self.read_messages(now, &receive_buffer, out);
            receive_buffer.drain(..used);
            self.receive_buffer = receive_buffer;
        }
        // What remains is less than a message, since nothing is read from an ended session.
        debug_assert!(self.receive_buffer.len() < usize::from(codec::EXTENDED_MAX_MESSAGE_LEN));
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
                self.handle_event(now, event, out);
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.iter().flatten().min().copied()
    }

    /// Sends a route refresh request; returns false if the neighbour does not support that.
    pub(crate) fn request_route_refresh(&mut self, family: Family) -> bool {
        if self.state() != State::Established || !self.negotiated.route_refresh {
            return false;
        }
        let (afi, safi) = codec_family(family);
        let message = Message::RouteRefresh(RouteRefreshMessage::new(afi, safi));
        wire::put_message(&message, &mut self.send_buffer);
        true
    }

    /// Handles all complete messages and returns the number of octets they took.
    fn read_messages(&mut self, now: Instant, octets: &[u8], out: &mut Vec<Output>) -> usize {
        let mut used = 0;
        while !matches!(self.state(), State::Idle | State::Connecting) {
            let rest = &octets[used..];
            match codec::peek_message_length(rest, self.message_bytes_max) {
                Ok(Some(length)) if usize::from(length) <= rest.len() => {
                    let length = usize::from(length);
                    used += length;
                    if is_malformed_refresh(&rest[..length]) {
                        self.refuse_refresh(now, &rest[..length], out);
                        continue;
                    }
                    match self.decode(&rest[..length]) {
                        Ok(message) => self.handle_message(now, message, out),
                        Err(error) => self.handle_event(now, Event::DecodeError(error), out),
                    }
                }
                Ok(_) => return used,
                Err(error) => self.handle_event(now, Event::DecodeError(error), out),
            }
        }
        octets.len()
    }

    /// RFC 7313 §5.
    fn refuse_refresh(&mut self, now: Instant, octets: &[u8], out: &mut Vec<Output>) {
        let notification = NotificationMessage::new(
            NotificationCode::RouteRefreshMessage,
            INVALID_REFRESH_LENGTH,
            Bytes::copy_from_slice(octets),
        );
        self.last_error = Some("bad ROUTE-REFRESH: its length is invalid".to_owned());
        self.handle_event(now, Event::UpdateValidationError(notification), out);
    }

    fn decode(&self, octets: &[u8]) -> Result<Message, codec::DecodeError> {
        // RFC 4271 §6.1: an error of the header, whatever the body would be.
        if octets.len() < least_bytes(octets[MESSAGE_TYPE]) {
            let length = octets.len() as u16;
            return Err(codec::DecodeError::InvalidLength { length });
        }
        let mut message = Bytes::copy_from_slice(octets);
        codec::decode_message(&mut message, self.message_bytes_max)
    }

    fn handle_message(&mut self, now: Instant, message: Message, out: &mut Vec<Output>) {
        match message {
            Message::Open(open) => {
                out.push(Output::Opened(open.bgp_identifier));
                self.handle_event(now, Event::OpenReceived(open), out);
            }
            Message::Keepalive => self.handle_event(now, Event::KeepaliveReceived, out),
            Message::Notification(notification) => {
                self.handle_event(now, Event::NotificationReceived(notification), out);
            }
            Message::Update(update) => {
                if self.state() != State::Established {
                    self.handle_event(now, Event::UpdateReceived, out);
                    return;
                }
                match wire::decode_update(&update, &self.encoding) {
                    Ok(update) => {
                        self.handle_event(now, Event::UpdateReceived, out);
                        out.push(Output::Update(update));
                    }
                    Err(error) => {
                        let notification = wire::update_notification(&error);
                        self.last_error = Some(format!("bad UPDATE: {}", error.detail));
                        self.handle_event(now, Event::UpdateValidationError(notification), out);
                    }
                }
            }
            Message::RouteRefresh(refresh) => self.handle_route_refresh(now, &refresh, out),
            _ => {}
        }
    }

    fn handle_route_refresh(
        &mut self,
        now: Instant,
        refresh: &RouteRefreshMessage,
        out: &mut Vec<Output>,
    ) {
        if let (Some(afi), Some(safi)) = (refresh.afi(), refresh.safi()) {
            self.handle_event(now, Event::RouteRefreshReceived { afi, safi }, out);
        }
        let family = Family::of(refresh.afi_raw, refresh.safi_raw);
        let Some(family) = family.filter(|family| self.negotiated.families.contains(family)) else {
            return;
        };
        match refresh.subtype() {
            RouteRefreshSubtype::Normal => out.push(Output::Refresh(family)),
            RouteRefreshSubtype::BoRR => out.push(Output::RefreshBegins(family)),
            RouteRefreshSubtype::EoRR => out.push(Output::RefreshEnds(family)),
            _ => {}
        }
    }

    fn handle_event(&mut self, now: Instant, event: Event, out: &mut Vec<Output>) {
        let stopped = matches!(event, Event::ManualStop { .. });
        let down = self.down_reason(&event);
        let was = self.state();
        for action in self.fsm.handle_event(event) {
            match action {
                Action::SendOpen(open) => {
                    let open = self.with_own_capabilities(open);
                    wire::put_message(&Message::Open(open), &mut self.send_buffer);
                }
                Action::SendKeepalive => {
                    wire::put_message(&Message::Keepalive, &mut self.send_buffer);
                }
                Action::SendNotification(notification) => {
                    let notification = match stopped && self.negotiated.survives_notification {
                        true => hard_reset(&notification),
                        false => notification,
                    };
                    wire::put_message(&Message::Notification(notification), &mut self.send_buffer);
                }
                Action::StartTimer(timer, seconds) => {
                    let delay = Duration::from_secs(u64::from(seconds));
                    self.timers[timer_index(timer)] = Some(now + delay);
                }
                Action::StopTimer(timer) => self.timers[timer_index(timer)] = None,
                Action::InitiateTcpConnection => out.push(Output::Connect),
                Action::CloseTcpConnection => out.push(Output::Close),
                Action::SessionEstablished(agreed) => {
                    self.on_established(&agreed);
                    out.push(Output::Up);
                }
                Action::SessionDown => out.push(Output::Down(down.clone())),
                // The other actions concern the state, which is polled, and BGP roles, which are
                // not used.
                _ => {}
            }
        }
        if self.state() == State::Idle && was != State::Idle {
            self.timers = [None; 3];
            self.message_bytes_max = codec::MAX_MESSAGE_LEN;
            self.last_error = Some(down.reason);
        }
    }

    /// The reason, and whether routes are kept, if `event` ends the session.
    fn down_reason(&self, event: &Event) -> Down {
        let negotiated = &self.negotiated;
        let (graceful, reason) = match event {
            Event::TcpConnectionFails => (true, "connection lost".to_owned()),
            Event::HoldTimerExpires => (
                negotiated.survives_notification,
                format!("hold timer expired ({} s)", negotiated.hold_time),
            ),
            Event::NotificationReceived(message) => {
                let hard = message.code == NotificationCode::Cease
                    && message.subcode == cease_subcode::HARD_RESET;
                let reason = reasons::notification(message);
                (negotiated.survives_notification && !hard, reason)
            }
            Event::DecodeError(error) => (false, format!("bad message: {error}")),
            Event::UpdateValidationError(_) => (
                false,
                self.last_error
                    .clone()
                    .unwrap_or_else(|| "bad UPDATE".to_owned()),
            ),
            Event::ManualStop { .. } => (false, "stopped here".to_owned()),
            Event::OpenReceived(open) => (false, reasons::refused_open(open, &self.config)),
            other => (false, format!("unexpected {}", other.name())),
        };
        Down {
            graceful: graceful && negotiated.restart_time.is_some(),
            reason,
        }
    }

    fn on_established(&mut self, agreed: &fsm::NegotiatedSession) {
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
        self.negotiated = Negotiated {
            router_id: Some(agreed.peer_router_id),
            asn: agreed.peer_asn,
            hold_time: agreed.hold_time,
            route_refresh: agreed.peer_route_refresh,
            restart_time: graceful.then(|| Duration::from_secs(seconds)),
            restart_families: own(restarting.iter().map(|f| (f.afi, f.safi)).collect()),
            preserved: own(preserved.map(|f| (f.afi, f.safi)).collect()),
            survives_notification: graceful && agreed.peer_notification_gr,
            extended_messages: agreed.peer_extended_message && self.config.extended_messages,
            add_path: add_path.clone(),
            families: families.clone(),
        };
        self.encoding = Encoding {
            four_octet: agreed.four_octet_as,
            internal: self.config.local_asn == self.config.remote_asn,
            families,
            add_path,
            extended_next_hop: [Family::Ipv4, Family::Vpn4]
                .into_iter()
                .filter(|of| {
                    agreed
                        .extended_nexthop_families
                        .contains_key(&codec_family(*of))
                })
                .collect(),
            extended_messages: self.negotiated.extended_messages,
        };
        if self.negotiated.extended_messages {
            self.message_bytes_max = codec::EXTENDED_MAX_MESSAGE_LEN;
        }
    }

    fn with_own_capabilities(&self, mut open: codec::OpenMessage) -> codec::OpenMessage {
        if !self.config.extended_messages {
            let others = |it: &Capability| !matches!(it, Capability::ExtendedMessage);
            open.capabilities.retain(others);
        }
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
        Family::Vpn4 => (codec::Afi::Ipv4, codec::Safi::MplsVpn),
    }
}

/// Wraps a Cease so that a neighbour with RFC 8538 §3 does not keep routes.
fn hard_reset(inner: &NotificationMessage) -> NotificationMessage {
    let mut data = vec![inner.code.as_u8(), inner.subcode];
    data.extend(&inner.data);
    NotificationMessage::new(
        NotificationCode::Cease,
        cease_subcode::HARD_RESET,
        data.into(),
    )
}

/// Begin and end of a refresh are four octets and the header (RFC 7313 §5).
fn is_malformed_refresh(octets: &[u8]) -> bool {
    const REFRESH: u8 = 5;
    let is_mark = matches!(octets.get(21), Some(1 | 2));
    octets[MESSAGE_TYPE] == REFRESH && is_mark && octets.len() != 23
}

/// The shortest message of a type: OPEN, UPDATE, NOTIFICATION, others (RFC 4271 §4).
const fn least_bytes(kind: u8) -> usize {
    match kind {
        1 => 29,
        2 => 23,
        3 => 21,
        _ => 19,
    }
}

const fn timer_index(timer: TimerType) -> usize {
    match timer {
        TimerType::ConnectRetry => 0,
        TimerType::Hold => 1,
        _ => 2,
    }
}

/// Subcode of ROUTE-REFRESH errors (RFC 7313 §5).
const INVALID_REFRESH_LENGTH: u8 = 1;
/// The place of the type in a message, which has at least 19 octets.
const MESSAGE_TYPE: usize = 18;
/// The interval between connection attempts, doubled after each. RFC 4271 §10 suggests 120 s, which
/// is long for a peering on a local link. Ours.
const CONNECT_RETRY_SECONDS: u32 = 5;
