//! One tenant on one path: what waits, what is in flight, and what its controller lets leave.

use std::time::Duration;

use keiro_model::fairness::{
    common_unit::REPORT_INTERVAL,
    controller::{Controller, ControllerConfig, Feedback, Line, RoundTrip, SendAllowance, Weight},
};
use keiro_stats::TenantPathStats;
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};

use super::{
    FirstPacket,
    flows::{DequeuedPacket, Flows, QueuedPacket},
    parts::{LeavingPart, SplitPacket},
};
use crate::{
    id::PathId,
    session::recovery::Lost,
    tenant::{TenantConfig, TenantPathSnapshot},
};

/// Most that a tenant's rate makes up for after a pause: as long as the path's pacer.
const CATCH_UP_MAX: Duration = Duration::from_millis(1);
/// Most that leaves ahead of a rate, so that fast ones are kept in bursts and not packet by packet: a
/// wake-up costs more than a packet does. Below 100 Mbit/s a full packet takes longer. Ours.
const AHEAD_MAX: Duration = Duration::from_micros(100);
/// A controller is notified when a tenant sends again after a pause as long.
const REST: Duration = Duration::from_secs(1);
/// A unit that contradicts what is found for as long is reported. Ours: what is found while tenants begin is not
/// what they get.
const CONTRADICTED_FOR: Duration = Duration::from_secs(5);
/// Over which the acknowledged rate is counted.
const RATE_SPAN: Duration = Duration::from_secs(1);

/// Whether a tenant has turns on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Nothing waits, or its window is full. An arrival or an acknowledgement makes it ready again.
    Blocked,
    /// It has a turn, in the order of this start tag.
    Ready(u64),
    /// Waits for its rate.
    Timed(Instant),
}

/// Acknowledged and lost packets of one tenant on one path, of one acknowledgement or one detection of
/// losses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeliveryReport {
    pub(crate) acked_bytes: u64,
    pub(crate) acked: u64,
    pub(crate) lost: Lost,
    pub(crate) marked: u64,
    /// Bytes that are no longer in flight.
    pub(crate) no_longer_in_flight: u64,
    pub(crate) round_trip: Option<RoundTrip>,
}

/// Charge of a sent packet in start-time fair queueing.
#[derive(Clone, Copy, Debug)]
pub(super) struct SfqCharge {
    /// IP bytes.
    pub(super) bytes: u64,
    /// Virtual time at which it begins, unless the tenant's last packet finishes later.
    pub(super) start_tag: u64,
    /// Virtual time that the bytes take at the tenant's weight.
    pub(super) virtual_time: u64,
}

#[derive(Debug)]
pub(super) struct TenantPath {
    pub(super) flows: Flows,
    /// The packet whose turn has come and that has not left yet.
    staged: Option<DequeuedPacket>,
    /// How it leaves where it does not fit into one datagram.
    parts: Option<SplitPacket>,
    /// Messages, streams or datagrams wait, as far as is known here.
    has_backlog: bool,
    /// These were served last: it is its IP packets' turn.
    items_were_last: bool,
    controller: Option<Box<dyn Controller>>,
    allowance: Option<SendAllowance>,
    readiness: Readiness,
    /// Virtual time at which its last packet finishes: the finish tag of start-time fair queueing.
    virtual_finish: u64,
    next_at: Instant,
    sent_at: Instant,
    in_flight: u64,
    /// Its window or its rate has held something back since the last feedback.
    controller_limited: bool,
    /// The same, since the peer was last informed, and when that was.
    limited_news: bool,
    informed_at: Option<Instant>,
    line: Line,
    /// Since when the configured unit contradicts the found one.
    contradicted_since: Option<Instant>,
    packets_sent: u64,
    bytes_sent: u64,
    acked: u64,
    lost: u64,
    marked: u64,
    round_trip: Option<Duration>,
    span: RateWindow,
}

/// Bytes acknowledged in this and in the last span.
#[derive(Clone, Copy, Debug, Default)]
struct RateWindow {
    since: Instant,
    bytes: u64,
    last: u64,
}

impl RateWindow {
    fn add(&mut self, now: Instant, bytes: u64) {
        let age = now.saturating_duration_since(self.since);
        if age >= RATE_SPAN {
            self.last = if age < RATE_SPAN * 2 { self.bytes } else { 0 };
            self.since = now;
            self.bytes = 0;
        }
        self.bytes += bytes;
    }

    /// The rate of the last whole span; 0 after a pause.
    fn rate(&self, now: Instant) -> Bandwidth {
        let bytes = match now.saturating_duration_since(self.since) {
            age if age < RATE_SPAN => self.last,
            age if age < RATE_SPAN * 2 => self.bytes,
            _ => 0,
        };
        ByteCount::new(bytes).rate_over_floor(RATE_SPAN)
    }
}

impl TenantPath {
    /// `packet`: largest wire packet of its path, bytes. `in_flight`: what a tenant of the same
    /// name had on the way when it was removed.
    pub(super) fn new(now: Instant, config: &TenantConfig, packet: u64, in_flight: u64) -> Self {
        let controller = config
            .controller
            .begin(now, config.weight, ByteCount::new(packet));
        Self {
            flows: Flows::default(),
            staged: None,
            parts: None,
            has_backlog: false,
            items_were_last: false,
            allowance: controller.as_ref().map(|controller| controller.allowance()),
            controller,
            readiness: Readiness::Blocked,
            virtual_finish: 0,
            next_at: Instant::ZERO,
            sent_at: now,
            in_flight,
            controller_limited: false,
            limited_news: false,
            informed_at: None,
            line: Line::default(),
            contradicted_since: None,
            packets_sent: 0,
            bytes_sent: 0,
            acked: 0,
            lost: 0,
            marked: 0,
            round_trip: None,
            span: RateWindow::default(),
        }
    }

    /// Another controller from now on, or the same from the beginning.
    pub(super) fn set_controller(
        &mut self,
        now: Instant,
        controller: &ControllerConfig,
        weight: Weight,
        packet: u64,
    ) {
        self.controller = controller.begin(now, weight, ByteCount::new(packet));
        self.allowance = self
            .controller
            .as_ref()
            .map(|controller| controller.allowance());
        let line = std::mem::take(&mut self.line);
        self.on_line(line);
    }

    /// Takes what is known of the line.
    pub(super) fn on_line(&mut self, line: Line) {
        if self.line == line {
            return;
        }
        self.line = line;
        if let Some(controller) = &mut self.controller {
            controller.on_line(line);
            self.allowance = Some(controller.allowance());
        }
    }

    /// The found unit, if the configured one has contradicted it for a while.
    pub(super) fn mismatched_unit(&mut self, now: Instant) -> Option<Bandwidth> {
        let found = self.controller.as_ref().and_then(|of| of.found_unit());
        let Some(found) = found.filter(|found| found.contradicts_configured) else {
            self.contradicted_since = None;
            return None;
        };
        let since = *self.contradicted_since.get_or_insert(now);
        let lasts = now.saturating_duration_since(since) >= CONTRADICTED_FOR;
        lasts.then_some(found.found)
    }

    /// More waited than was let go, and the peer is to be informed.
    pub(super) fn take_limited(&mut self, now: Instant) -> bool {
        let rested = |at| now.saturating_duration_since(at) >= REPORT_INTERVAL;
        let is_news = self.limited_news && self.informed_at.is_none_or(rested);
        if is_news {
            self.limited_news = false;
            self.informed_at = Some(now);
        }
        is_news
    }

    /// Without a window from now on.
    pub(super) fn remove_controller(&mut self) {
        self.controller = None;
        self.allowance = None;
    }

    pub(super) fn set_weight(&mut self, weight: Weight) {
        if let Some(controller) = &mut self.controller {
            controller.set_weight(weight);
            self.allowance = Some(controller.allowance());
        }
    }

    /// Memory of what waits.
    pub(super) fn cost(&self) -> u64 {
        self.flows.cost() + self.staged.as_ref().map_or(0, |taken| taken.packet.cost())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.staged.is_none() && self.flows.is_empty() && !self.has_backlog
    }

    /// The packet whose turn it is; CoDel may drop some before it.
    pub(super) fn head(&mut self, now: Instant) -> Option<&DequeuedPacket> {
        if self.staged.is_none() {
            self.staged = self.flows.pop(now);
        }
        self.staged.as_ref()
    }

    /// Length and ECN bits of the packet whose turn it is.
    pub(super) fn first_packet(&mut self, now: Instant) -> Option<FirstPacket> {
        Some(self.head(now)?.packet.as_first())
    }

    /// The same of one that was looked at before; `None`: none was.
    pub(super) fn staged_packet(&self) -> Option<FirstPacket> {
        Some(self.staged.as_ref()?.packet.as_first())
    }

    /// Packets that CoDel has dropped since the last call.
    pub(super) fn take_delayed(&mut self) -> u64 {
        std::mem::take(&mut self.flows.delayed)
    }

    /// What keeps a packet of `needed` IP bytes from leaving; `None`: it may leave.
    pub(super) fn held_back(&mut self, now: Instant, needed: u64) -> Option<Readiness> {
        if self.room() < needed {
            self.on_limited();
            return Some(Readiness::Blocked);
        }
        if self.waits_for_rate(now) {
            self.on_limited();
            return Some(Readiness::Timed(self.next_at()));
        }
        None
    }

    pub(super) fn take(&mut self) -> Option<DequeuedPacket> {
        self.parts = None;
        self.staged.take()
    }

    /// Length of the next part of the packet whose turn it is, at most `room` bytes. `number`: for a packet of which
    /// nothing has left; whether it was used. `None`: the packet is too long for that.
    pub(super) fn next_part_len(&mut self, number: u64, room: usize) -> Option<(usize, bool)> {
        let len = self.staged.as_ref()?.packet.data.len();
        // If the path carries less than when the first part left, the packet begins anew.
        let begun = self
            .parts
            .filter(|parts| parts.next_range(len).len() <= room);
        self.parts = begun.or_else(|| SplitPacket::new(number, len, room));
        let parts = self.parts.as_ref()?;
        Some((parts.next_range(len).len(), begun.is_none()))
    }

    /// The next part of the packet whose turn it is leaves. With the last one the packet is to be taken.
    pub(super) fn poll_part(&mut self) -> Option<LeavingPart<'_>> {
        let taken = self.staged.as_ref()?;
        let parts = self.parts.as_mut()?;
        let range = parts.next_range(taken.packet.data.len());
        Some(LeavingPart {
            number: parts.number(),
            count: parts.count(),
            index: parts.advance(),
            marked: taken.marked,
            data: &taken.packet.data[range],
        })
    }

    pub(super) fn take_all(&mut self) -> Vec<QueuedPacket> {
        self.parts = None;
        let staged = self.staged.take().map(|taken| taken.packet);
        self.flows.take_all().into_iter().chain(staged).collect()
    }

    /// Wire bytes that the window has room for. A window that is smaller than a packet lets one go
    /// at a time.
    pub(super) fn room(&self) -> u64 {
        let Some(allowance) = self.allowance else {
            return u64::MAX;
        };
        if self.in_flight == 0 {
            return u64::MAX;
        }
        allowance.window.get().saturating_sub(self.in_flight)
    }

    /// The rate at which its window and its rate let it send; `None`: neither holds it back, as far as is known.
    pub(super) fn allowed_rate(&self) -> Option<Bandwidth> {
        let allowance = self.allowance?;
        let round_trip = self.round_trip.filter(|time| !time.is_zero());
        let by_window = round_trip.map(|time| allowance.window.rate_over_floor(time));
        by_window.into_iter().chain(allowance.rate).min()
    }

    /// Its window or its rate holds a packet back.
    pub(super) fn on_limited(&mut self) {
        self.controller_limited = true;
        self.limited_news = true;
    }

    /// When its rate lets the next packet go; in the past: at once.
    pub(super) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Its rate lets no packet go before [`next_at`](Self::next_at).
    pub(super) fn waits_for_rate(&self, now: Instant) -> bool {
        self.next_at > now + AHEAD_MAX
    }

    /// It might have sent for that long and had nothing to send. (Waiting for a slow rate is
    /// no rest.)
    fn has_rested(&self, now: Instant) -> bool {
        self.in_flight == 0 && now >= self.sent_at.max(self.next_at) + REST
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.has_backlog
    }

    /// Messages, streams or datagrams of it may leave.
    pub(super) fn set_has_backlog(&mut self, has_backlog: bool) {
        self.has_backlog = has_backlog;
    }

    /// It is the turn of its items. `has_packets`: an IP packet waits too.
    pub(super) fn is_items_turn(&self, has_packets: bool) -> bool {
        self.has_backlog && !(has_packets && self.items_were_last)
    }

    /// Its turn was used.
    pub(super) fn on_turn(&mut self, by_items: bool) {
        self.items_were_last = by_items;
    }

    pub(super) fn readiness(&self) -> Readiness {
        self.readiness
    }

    /// It gets turns from now on; its start tag. `virtual_time`: of the path. A tenant that had nothing to send has
    /// saved up nothing.
    pub(super) fn on_ready(&mut self, virtual_time: u64) -> u64 {
        let start_tag = self.virtual_finish.max(virtual_time);
        self.readiness = Readiness::Ready(start_tag);
        start_tag
    }

    /// It gets no turns until what `to` says; what it waited for before.
    pub(super) fn on_held_back(&mut self, to: Readiness) -> Readiness {
        std::mem::replace(&mut self.readiness, to)
    }

    /// IP bytes.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Nothing in flight is waited for.
    pub(super) fn on_in_flight_forgotten(&mut self) {
        self.in_flight = 0;
    }

    /// A packet leaves.
    pub(super) fn on_sent(&mut self, now: Instant, service: SfqCharge) {
        let SfqCharge {
            bytes,
            start_tag,
            virtual_time,
        } = service;
        self.virtual_finish = self.virtual_finish.max(start_tag) + virtual_time;
        if self.has_rested(now)
            && let Some(controller) = &mut self.controller
        {
            controller.on_resume(now);
            self.allowance = Some(controller.allowance());
        }
        self.sent_at = now;
        self.in_flight += bytes;
        self.packets_sent += 1;
        self.bytes_sent += bytes;
        if let Some(rate) = self.allowance.and_then(|allowance| allowance.rate) {
            let time = rate.transmission_time_ceil(ByteCount::new(bytes));
            // Slower than that is a window of one packet.
            let time = time.min(Duration::from_secs(1));
            self.next_at = self.next_at.max(now - CATCH_UP_MAX) + time;
        }
    }

    pub(super) fn on_delivery_report(
        &mut self,
        now: Instant,
        report: &DeliveryReport,
        packet: u64,
    ) {
        self.in_flight = self.in_flight.saturating_sub(report.no_longer_in_flight);
        self.acked += report.acked;
        self.lost += report.lost.by_congestion;
        self.marked += report.marked;
        self.span.add(now, report.acked_bytes);
        if let Some(RoundTrip { sample, .. }) = report.round_trip {
            let known = self.round_trip;
            self.round_trip = Some(known.map_or(sample, |known| (known * 7 + sample) / 8));
        }
        let Some(controller) = &mut self.controller else {
            return;
        };
        controller.on_feedback(&Feedback {
            now,
            acked: ByteCount::new(report.acked_bytes + report.lost.excused_bytes),
            acked_packets: report.acked + report.lost.non_path_losses,
            lost_packets: report.lost.by_congestion,
            marked_packets: report.marked,
            round_trip: report.round_trip,
            in_flight: ByteCount::new(self.in_flight),
            // A tenant that waits for its rate is limited by it.
            limited: self.controller_limited || matches!(self.readiness, Readiness::Timed(_)),
            packet: ByteCount::new(packet),
        });
        self.controller_limited = false;
        self.allowance = Some(controller.allowance());
    }

    pub(super) fn snapshot(
        &self,
        now: Instant,
        path: PathId,
        configured_unit: Option<Bandwidth>,
    ) -> TenantPathSnapshot {
        let window = self.allowance.map(|allowance| allowance.window);
        let found = self.controller.as_ref().and_then(|of| of.found_unit());
        let packet = self.bytes_sent.checked_div(self.packets_sent);
        let window_packets = window
            .zip(packet)
            .map(|(window, packet)| window.get() / packet.max(1));
        TenantPathSnapshot {
            path,
            stats: TenantPathStats {
                window_bytes: window.map(ByteCount::get),
                window_packets,
                rate: self.allowance.and_then(|allowance| allowance.rate),
                acked_rate: self.span.rate(now),
                configured_unit,
                found_unit: found.map(|found| found.found),
                srtt: self.round_trip,
                loss: Probability::from_ratio(self.lost, self.acked + self.lost),
                in_flight_bytes: self.in_flight,
                queued_bytes: self.cost(),
                sent_packets: self.packets_sent,
                sent_bytes: self.bytes_sent,
                acked_packets: self.acked,
                lost_packets: self.lost,
                acked_ce_packets: self.marked,
            },
            flows: self.flows.len(),
            terms: self
                .controller
                .as_ref()
                .map_or(Vec::new(), |controller| controller.terms()),
        }
    }
}
