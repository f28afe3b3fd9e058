//! The sending side of TCP.
//!
//! Recovery is RFC 6675: a loss ends growth, the window is reduced once, and the segments that the scoreboard
//! calls missing are sent first, as far as the window has room in addition to the bytes in flight. When the
//! retransmission timer expires (RFC 6298 §5), everything that is not known to have arrived is missing and
//! the window begins with one segment.

use std::time::Duration;

use keiro_units::Instant;

use super::{
    LossDetection, TcpConfig, offset_of, receiver::clock, rtt::Rtt, scoreboard::Scoreboard,
    sequence_of, window::Window,
};
use crate::traffic::{
    activity::Activity,
    packet::{Ecn, Flags, SACK_BLOCKS_MAX, SackBlocks, TcpHeader, Timestamps},
};

/// Sends a number of bytes, or endless data, to one receiver.
#[derive(Clone, Debug)]
pub struct TcpSender {
    config: TcpConfig,
    ports: (u16, u16),
    /// Sequence number of the SYN.
    first: u32,
    /// Number of bytes to send; `None` for endless.
    length: Option<u64>,
    activity: Activity,
    state: State,
    board: Scoreboard,
    rtt: Rtt,
    window: Window,
    recovery: Recovery,
    /// The next retransmission may exceed the window (RFC 6675 §5 step 4.3).
    one_at_once: bool,
    /// End of the receiver's window.
    window_end: u64,
    /// The peer's last timestamp.
    timestamp: Option<u32>,
    congestion: Echo,
    /// When the retransmission timer expires.
    retransmit_at: Option<Instant>,
    /// When the timer fires; not after it expires. Most acknowledgements move the expiry, and following each
    /// of them would cost more in the host's timer queue than firing once in vain.
    looks_at: Option<Instant>,
    /// When the next period of activity begins.
    begins_at: Option<Instant>,
    last_sent: Option<Instant>,
    counts: SenderCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No SYN was sent yet.
    Closed,
    /// A SYN has to be sent.
    SynDue,
    /// A SYN was sent; when, and whether it was the only one.
    SynSent { at: Instant, once: bool },
    /// The connection is established; payload bytes per segment.
    Open { segment: u16, ecn: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    None,
    /// Fast recovery until this offset is acknowledged.
    Fast(u64),
    /// Timeout recovery until this offset is acknowledged.
    Timeout(u64),
}

/// State of ECN.
#[derive(Clone, Copy, Debug, Default)]
struct Echo {
    /// Next byte when the window was reduced. Further marks are ignored until it is acknowledged, because
    /// only the segment that it begins informs the receiver.
    until: u64,
    /// The next segment has to carry CWR.
    sends_cwr: bool,
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounts {
    /// Segments with payload that were sent, retransmissions included.
    pub segments: u64,
    pub retransmissions: u64,
    pub syns: u64,
    /// Losses detected without the timer.
    pub recoveries: u64,
    /// Expiries of the retransmission timer.
    pub timeouts: u64,
    /// Reductions of the window because of a mark.
    pub marks: u64,
    /// The longest time between two segments while there was data to send.
    pub longest_silence: Duration,
}

impl SenderCounts {
    /// Adds another sender's counters; the longest silence is the maximum.
    pub fn add(&mut self, other: &Self) {
        self.segments += other.segments;
        self.retransmissions += other.retransmissions;
        self.syns += other.syns;
        self.recoveries += other.recoveries;
        self.timeouts += other.timeouts;
        self.marks += other.marks;
        self.longest_silence = self.longest_silence.max(other.longest_silence);
    }
}

impl TcpSender {
    /// A sender with its own and its receiver's port. It opens the connection when `activity` begins, with
    /// sequence number `first`, and sends new bytes only during `activity`.
    pub fn new(
        config: TcpConfig,
        ports: (u16, u16),
        first: u32,
        length: Option<u64>,
        activity: Activity,
    ) -> Self {
        Self {
            ports,
            first,
            length,
            state: State::Closed,
            board: Scoreboard::new(),
            rtt: Rtt::default(),
            window: Window::new(config.congestion, config.initial_window),
            recovery: Recovery::None,
            one_at_once: false,
            window_end: 0,
            timestamp: None,
            congestion: Echo::default(),
            retransmit_at: None,
            looks_at: None,
            begins_at: activity.first_beginning(),
            last_sent: None,
            counts: SenderCounts::default(),
            config,
            activity,
        }
    }

    pub const fn acknowledged(&self) -> u64 {
        self.board.unacknowledged()
    }

    /// Whether all bytes are acknowledged; never for an endless sender.
    pub fn is_finished(&self) -> bool {
        self.length
            .is_some_and(|length| self.acknowledged() >= length)
    }

    pub const fn counts(&self) -> &SenderCounts {
        &self.counts
    }

    /// The congestion window, segments.
    pub const fn window_segments(&self) -> f64 {
        self.window.size()
    }

    /// The smoothed round trip; `None` before it was measured.
    pub const fn round_trip(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// The retransmission timeout now.
    pub fn timeout(&self) -> Duration {
        self.rtt.timeout(&self.config)
    }

    /// When the last segment was sent.
    pub const fn last_sent(&self) -> Option<Instant> {
        self.last_sent
    }

    /// Whether it will never send again although it has data to send, which is a bug.
    pub fn is_stuck(&self, now: Instant) -> bool {
        if self.retransmit_at.is_some() || self.begins_at.is_some() {
            return false;
        }
        let opening = matches!(self.state, State::SynDue | State::SynSent { .. });
        opening || self.has_outstanding() || self.activity.is_on(now) && !self.is_finished()
    }

    pub fn handle_segment(&mut self, now: Instant, header: &TcpHeader) {
        if header.source_port != self.ports.1 || !header.flags.ack {
            return;
        }
        match (self.state, header.flags.syn) {
            (State::SynSent { at, once }, true) => self.handle_syn_ack(now, header, at, once),
            (State::Open { ecn, .. }, false) => self.handle_ack(now, header, ecn),
            // A second answer to a repeated SYN has no new information.
            _ => {}
        }
    }

    /// The time of [`poll_timeout`](Self::poll_timeout) has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.begins_at.is_some_and(|at| at <= now) {
            self.begins_at = self.activity.next_beginning(now);
            if self.state == State::Closed && !self.is_finished() {
                self.state = State::SynDue;
            }
        }
        if self.retransmit_at.is_some_and(|at| at <= now) {
            self.expire();
        }
        if self.looks_at.is_some_and(|at| at <= now) {
            self.looks_at = self.retransmit_at;
        }
    }

    /// When its timer fires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (self.looks_at, self.begins_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The next segment to send now, with the ECN bits of its packet; `None` if there is none.
    pub fn poll_segment(&mut self, now: Instant) -> Option<(TcpHeader, Ecn)> {
        let busy = self.has_outstanding() || self.state == State::SynDue;
        let (header, ecn) = match self.state {
            State::Closed | State::SynSent { .. } => return None,
            State::SynDue => (self.syn(now), Ecn::NotCapable),
            State::Open { segment, ecn } => self.data(now, segment, ecn)?,
        };
        if let (Some(last), true) = (self.last_sent, busy) {
            self.counts.longest_silence = self.counts.longest_silence.max(now - last);
        }
        self.last_sent = Some(now);
        if self.retransmit_at.is_none() {
            self.set_timer(Some(now + self.timeout()));
        }
        Some((header, ecn))
    }

    fn handle_syn_ack(&mut self, now: Instant, header: &TcpHeader, sent_at: Instant, once: bool) {
        if header.acknowledgement != self.first.wrapping_add(1) {
            return;
        }
        if once {
            self.rtt.sample(now - sent_at);
        } else {
            // It is unknown which SYN was answered (Karn), and a lost SYN reduces the window to one segment
            // (RFC 5681 §3.1). The timeout is the initial one again; RFC 6298 §5.7 has 3 s.
            self.rtt = Rtt::default();
            self.window = Window::new(self.config.congestion, 1);
        }
        self.timestamp = header.timestamps.map(|timestamps| timestamps.value);
        let options = if self.timestamp.is_some() { 12 } else { 0 };
        let mss = header.mss.unwrap_or(MSS_DEFAULT).min(self.config.mss);
        self.state = State::Open {
            segment: mss.saturating_sub(options).max(1),
            ecn: self.config.ecn && header.flags.ece,
        };
        self.window_end = u64::from(header.window);
        self.set_timer(None);
    }

    fn handle_ack(&mut self, now: Instant, header: &TcpHeader, ecn: bool) {
        let first = self.first.wrapping_add(1);
        let near = self.board.unacknowledged();
        let Some(upto) = offset_of(header.acknowledgement, first, near) else {
            return;
        };
        if upto > self.board.next() {
            return;
        }
        let mut ranges = [(0, 0); SACK_BLOCKS_MAX];
        for (slot, (from, to)) in ranges.iter_mut().zip(header.sack.iter()) {
            if let (Some(from), Some(to)) =
                (offset_of(from, first, near), offset_of(to, first, near))
            {
                *slot = (from, to);
            }
        }
        self.window_end = self.window_end.max(upto + u64::from(header.window));
        let in_use = self.is_window_in_use();
        let shortest = self.rtt.min().unwrap_or_default();
        let progress = self.board.acknowledge(now, upto, &ranges, shortest);
        self.measure(now, header, progress.measured, progress.advanced > 0);
        self.board.find_lost();
        if let (LossDetection::SackAndTime, Some(latest)) =
            (self.config.loss_detection, progress.latest_sent)
        {
            self.board.find_lost_again(latest, shortest / 4);
        }
        if let Recovery::Fast(until) | Recovery::Timeout(until) = self.recovery
            && upto >= until
        {
            self.recovery = Recovery::None;
        }
        let growing = !matches!(self.recovery, Recovery::Fast(_));
        if ecn && header.flags.ece && upto > self.congestion.until && growing {
            self.heed_mark();
        } else if growing && in_use && progress.advanced > 0 && self.board.missing() == 0
            || matches!(self.recovery, Recovery::Timeout(_)) && progress.advanced > 0
        {
            let round_trip = self.rtt.smoothed().unwrap_or_default();
            let acked = progress.delivered as f64 / f64::from(self.segment());
            self.window.on_ack(now, acked, round_trip);
        }
        if self.recovery == Recovery::None && self.board.missing() > 0 {
            self.begin_recovery(now);
        }
        if progress.advanced > 0 {
            let outstanding = self.has_outstanding();
            self.set_timer(outstanding.then(|| now + self.timeout()));
        }
    }

    /// Takes a round-trip sample from a segment that was sent once, or from the timestamp of any other.
    fn measure(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        sent_at: Option<Instant>,
        advanced: bool,
    ) {
        if let (Some(timestamps), true) = (header.timestamps, self.timestamp.is_some()) {
            self.timestamp = Some(timestamps.value);
        }
        if let Some(sent_at) = sent_at {
            self.rtt.sample(now - sent_at);
        } else if let (Some(timestamps), true) = (header.timestamps, advanced) {
            let micros = clock(now).wrapping_sub(timestamps.echo);
            self.rtt.sample(Duration::from_micros(u64::from(micros)));
        }
    }

    fn begin_recovery(&mut self, now: Instant) {
        self.counts.recoveries += 1;
        let outstanding = self.outstanding_segments();
        self.window.reduce(outstanding);
        self.recovery = Recovery::Fast(self.board.next());
        self.congestion.until = self.board.next();
        self.one_at_once = true;
        // The first retransmission gets a timeout of its own.
        self.set_timer(Some(now + self.timeout()));
    }

    fn heed_mark(&mut self) {
        self.counts.marks += 1;
        let outstanding = self.outstanding_segments();
        self.window.reduce(outstanding);
        self.congestion = Echo {
            until: self.board.next(),
            sends_cwr: true,
        };
    }

    /// The retransmission timer expired.
    fn expire(&mut self) {
        self.retransmit_at = None;
        match self.state {
            State::SynSent { .. } => {
                self.counts.timeouts += 1;
                self.rtt.back_off();
                self.state = State::SynDue;
            }
            State::Open { .. } if self.has_outstanding() => self.time_out(),
            _ => {}
        }
    }

    fn set_timer(&mut self, at: Option<Instant>) {
        self.retransmit_at = at;
        self.looks_at = match (self.looks_at, at) {
            (Some(looks), Some(at)) => Some(looks.min(at)),
            (looks, at) => looks.or(at),
        };
    }

    fn time_out(&mut self) {
        self.counts.timeouts += 1;
        let outstanding = self.outstanding_segments();
        self.window.collapse(outstanding, self.rtt.is_backed_off());
        self.rtt.back_off();
        self.board.lose_all();
        self.recovery = Recovery::Timeout(self.board.next());
        self.congestion.until = self.board.next();
    }

    fn syn(&mut self, now: Instant) -> TcpHeader {
        self.state = State::SynSent {
            at: now,
            once: self.counts.syns == 0,
        };
        self.counts.syns += 1;
        TcpHeader {
            sequence: self.first,
            flags: Flags {
                syn: true,
                ack: false,
                ece: self.config.ecn,
                cwr: self.config.ecn,
            },
            timestamps: self.config.timestamps.then(|| Timestamps {
                value: clock(now),
                echo: 0,
            }),
            mss: Some(self.config.mss),
            ..self.header()
        }
    }

    fn data(&mut self, now: Instant, segment: u16, ecn: bool) -> Option<(TcpHeader, Ecn)> {
        let room = (self.window.size() * f64::from(segment)) as u64;
        let in_flight = self.board.in_flight();
        let (offset, payload, new) = if self.board.missing() > 0 {
            let (offset, len) = self.board.first_missing()?;
            let fits = in_flight + u64::from(len) <= room;
            if !fits && !std::mem::take(&mut self.one_at_once) {
                return None;
            }
            self.one_at_once = false;
            self.board.resend(now);
            self.counts.retransmissions += 1;
            (offset, len, false)
        } else {
            self.restart_after_idle(now);
            let len = self.new_bytes(now, segment)?;
            if in_flight > 0 && in_flight + u64::from(len) > room {
                return None;
            }
            let offset = self.board.next();
            self.board.send(now, len);
            (offset, len, true)
        };
        self.counts.segments += 1;
        let capable = ecn && new;
        let header = TcpHeader {
            sequence: sequence_of(offset, self.first.wrapping_add(1)),
            // The receiver sends one SYN and nothing else.
            acknowledgement: 1,
            flags: Flags {
                ack: true,
                cwr: capable && std::mem::take(&mut self.congestion.sends_cwr),
                ..Flags::default()
            },
            timestamps: self.timestamp.map(|echo| Timestamps {
                value: clock(now),
                echo,
            }),
            payload,
            ..self.header()
        };
        // Retransmissions are not ECN-capable (RFC 3168 §6.1.5).
        let ecn = if capable {
            Ecn::Capable
        } else {
            Ecn::NotCapable
        };
        Some((header, ecn))
    }

    fn header(&self) -> TcpHeader {
        TcpHeader {
            source_port: self.ports.0,
            destination_port: self.ports.1,
            window: self.config.window(),
            sack: SackBlocks::default(),
            ..TcpHeader::default()
        }
    }

    /// Length of the next new segment; `None` if there are no new bytes, or the receiver's window is full.
    fn new_bytes(&self, now: Instant, segment: u16) -> Option<u16> {
        if !self.activity.is_on(now) {
            return None;
        }
        let next = self.board.next();
        let left = self
            .length
            .map_or(u64::MAX, |length| length.saturating_sub(next));
        let usable = self.window_end.saturating_sub(next);
        let len = match left.min(u64::from(segment)) {
            len if len <= usable => len,
            // A window smaller than a segment is used if it is all there is (RFC 9293 §3.8.6.2.1).
            _ if !self.has_outstanding() => usable,
            _ => 0,
        };
        (len > 0).then_some(len as u16)
    }

    /// After an idle time of one timeout the window restarts (RFC 5681 §4.1).
    fn restart_after_idle(&mut self, now: Instant) {
        let paused = self
            .last_sent
            .is_some_and(|last| now - last > self.timeout());
        if paused && !self.has_outstanding() {
            self.window.restart(self.config.initial_window);
        }
    }

    fn is_window_in_use(&self) -> bool {
        let used = self.board.in_flight() as f64 / f64::from(self.segment());
        used + 1.0 >= self.window.size()
    }

    const fn has_outstanding(&self) -> bool {
        self.outstanding() > 0
    }

    const fn outstanding(&self) -> u64 {
        self.board.next() - self.board.unacknowledged()
    }

    fn outstanding_segments(&self) -> f64 {
        self.outstanding() as f64 / f64::from(self.segment())
    }

    /// Bytes of payload per segment.
    const fn segment(&self) -> u16 {
        match self.state {
            State::Open { segment, .. } => segment,
            State::Closed | State::SynDue | State::SynSent { .. } => self.config.mss,
        }
    }
}

/// The default maximum segment size of a peer (RFC 9293 §3.7.1).
const MSS_DEFAULT: u16 = 536;
