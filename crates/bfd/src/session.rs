//! One session: state machine (RFC 5880 §6.2, §6.8.6), timers (§6.8.2 to §6.8.4, §6.8.7) and Poll
//! Sequences (§6.5).

use std::time::Duration;

use keiro_units::Instant;
use rand_core::RngCore;

use crate::packet::{ControlPacket, Diagnostic, LENGTH, Micros, State};

/// What a session wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The shortest interval at which packets are sent and received; the neighbour may want a longer
    /// one.
    pub interval: Duration,
    /// The number of lost packets after which the neighbour takes the session down; 0 counts as 1.
    pub multiplier: u8,
}

/// A session came up or went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Up,
    Down(Failure),
    /// The neighbour has disabled its session; that says nothing about the path (RFC 5882 §4.2).
    DisabledByNeighbour,
}

/// How a session that was up failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// [`Diagnostic::DetectionTimeExpired`] or [`Diagnostic::NeighbourSignalledDown`].
    pub diagnostic: Diagnostic,
    /// The detection time that was in use.
    pub detection_time: Duration,
    /// The neighbour's sessions go on when its control plane fails (the C bit), so the failure is one
    /// of forwarding.
    pub control_plane_independent: bool,
    /// When the last packet came that left the session up.
    pub confirmed_at: Instant,
}

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub state: State,
    pub remote_state: State,
    /// Why it was last down; [`Diagnostic::None`]: it never was up.
    pub diagnostic: Diagnostic,
    /// The diagnostic in the neighbour's last packet.
    pub remote_diagnostic: Diagnostic,
    pub local_discriminator: u32,
    /// 0: not known.
    pub remote_discriminator: u32,
    /// The longest time between two packets sent; `None`: the neighbour wants no periodic packets.
    pub send_interval: Option<Duration>,
    /// The session goes down after this time without a packet; `None`: it is down.
    pub detection_time: Option<Duration>,
    /// Since when it has been in its state.
    pub since: Instant,
    /// How often it came up.
    pub times_up: u64,
    /// How often it failed; a neighbour that disabled its session does not count.
    pub failures: u64,
}

#[derive(Debug)]
pub(crate) struct Session {
    config: Config,
    local: u32,
    /// `None`: nothing is known of the neighbour's session.
    remote: Option<Remote>,
    state: State,
    diagnostic: Diagnostic,
    remote_diagnostic: Diagnostic,
    desired_min_tx: Agreed,
    required_min_rx: Agreed,
    poll: Poll,
    /// A packet with F is due.
    final_due: bool,
    /// The content of a packet has changed since the last one.
    changed: bool,
    /// A change is not sent before this time.
    changes_after: Instant,
    last_sent: Option<Instant>,
    /// When the next periodic packet is due, and the interval that this follows from.
    next: Option<(Instant, Duration)>,
    since: Instant,
    /// When the last packet came that left the session up.
    confirmed_at: Instant,
    times_up: u64,
    failures: u64,
}

/// What the neighbour's last packet said.
#[derive(Clone, Copy, Debug)]
struct Remote {
    discriminator: u32,
    state: State,
    min_tx: Duration,
    min_rx: Duration,
    multiplier: u8,
    demand: bool,
    control_plane_independent: bool,
    received_at: Instant,
}

/// An interval as advertised to the neighbour, and the one in use until the neighbour has answered.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    advertised: Duration,
    in_use: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poll {
    Idle,
    /// Packets have P until one with F arrives.
    Active,
    /// The values have changed since the Poll Sequence began, so that another one must follow.
    Repeat,
}

/// Between packets that are sent because their content has changed. Otherwise two routers on a link
/// that repeats and reorders packets would answer each change of state by another, without
/// end. Ours.
const CHANGES_APART: Duration = Duration::from_millis(10);
/// Not shorter than this while the session is not up (RFC 5880 §6.8.3).
const SLOW: Duration = Duration::from_secs(1);

impl Session {
    pub(crate) fn new(now: Instant, local: u32, config: Config) -> Self {
        let config = config.valid();
        Self {
            config,
            local,
            remote: None,
            state: State::Down,
            diagnostic: Diagnostic::None,
            remote_diagnostic: Diagnostic::None,
            desired_min_tx: Agreed::new(config.interval.max(SLOW)),
            required_min_rx: Agreed::new(config.interval),
            poll: Poll::Idle,
            final_due: false,
            changed: true,
            changes_after: now,
            last_sent: None,
            next: None,
            since: now,
            confirmed_at: now,
            times_up: 0,
            failures: 0,
        }
    }

    pub(crate) fn local_discriminator(&self) -> u32 {
        self.local
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Uses other intervals from now on. While the session is up, slower sending and faster detection
    /// wait for the end of the Poll Sequence (RFC 5880 §6.8.3).
    pub(crate) fn reconfigure(&mut self, now: Instant, config: Config, random: &mut impl RngCore) {
        let config = config.valid();
        self.changed |= config.multiplier != self.config.multiplier;
        self.config = config;
        let mut poll = self.set_desired_min_tx();
        if self.required_min_rx.advertised != config.interval {
            self.required_min_rx.advertised = config.interval;
            let faster = config.interval < self.required_min_rx.in_use;
            if !(faster && self.state == State::Up) {
                self.required_min_rx.in_use = config.interval;
            }
            poll = true;
        }
        if poll {
            self.begin_poll();
        }
        self.schedule(now, random);
    }

    /// Handles a packet for this session.
    pub(crate) fn handle_packet(
        &mut self,
        now: Instant,
        packet: &ControlPacket,
        random: &mut impl RngCore,
    ) -> Option<Change> {
        self.remote = Some(Remote {
            discriminator: packet.my_discriminator,
            state: packet.state,
            min_tx: packet.desired_min_tx.duration(),
            min_rx: packet.required_min_rx.duration(),
            multiplier: packet.multiplier,
            demand: packet.demand,
            control_plane_independent: packet.control_plane_independent,
            received_at: now,
        });
        self.remote_diagnostic = packet.diagnostic;
        if packet.is_final {
            self.on_final();
        }
        let change = self.follow(now, packet.state);
        if self.state == State::Up {
            self.confirmed_at = now;
        }
        self.final_due |= packet.poll;
        self.schedule(now, random);
        change
    }

    /// The state machine of RFC 5880 §6.2, as §6.8.6 writes it down.
    fn follow(&mut self, now: Instant, theirs: State) -> Option<Change> {
        match (self.state, theirs) {
            (State::Down, State::Down) => self.enter(now, State::Init, Diagnostic::None),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                self.enter(now, State::Up, Diagnostic::None)
            }
            (State::Init | State::Up, State::AdminDown) | (State::Up, State::Down) => {
                self.enter(now, State::Down, Diagnostic::NeighbourSignalledDown)
            }
            _ => None,
        }
    }

    fn enter(&mut self, now: Instant, state: State, why: Diagnostic) -> Option<Change> {
        let before = std::mem::replace(&mut self.state, state);
        debug_assert!(before != state, "a change of state");
        self.since = now;
        self.changed = true;
        if state == State::Down {
            self.diagnostic = why;
        }
        let failure = self.failure(why);
        if self.set_desired_min_tx() {
            self.begin_poll();
        }
        let disabled = self.remote.is_some_and(|it| it.state == State::AdminDown);
        match (before, state) {
            (_, State::Up) => {
                self.times_up += 1;
                Some(Change::Up)
            }
            (State::Up, _) if disabled => Some(Change::DisabledByNeighbour),
            (State::Up, _) => {
                self.failures += 1;
                Some(Change::Down(failure))
            }
            _ => None,
        }
    }

    fn failure(&self, diagnostic: Diagnostic) -> Failure {
        let remote = self.remote.as_ref();
        Failure {
            diagnostic,
            detection_time: remote.map(|it| self.detection_time(it)).unwrap_or_default(),
            control_plane_independent: remote.is_some_and(|it| it.control_plane_independent),
            confirmed_at: self.confirmed_at,
        }
    }

    /// Ends the session if no packet came in time.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        random: &mut impl RngCore,
    ) -> Option<Change> {
        if self.detection_ends().is_none_or(|at| at > now) {
            return None;
        }
        let change = match self.state {
            State::Init | State::Up => {
                self.enter(now, State::Down, Diagnostic::DetectionTimeExpired)
            }
            State::Down | State::AdminDown => None,
        };
        // RFC 5880 §6.8.1: the neighbour may have lost its state, so it is addressed as a stranger.
        self.remote = None;
        self.poll = Poll::Idle;
        self.desired_min_tx.settle();
        self.required_min_rx.settle();
        self.schedule(now, random);
        change
    }

    /// Whether a packet is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.final_due || self.next_packet().is_some_and(|at| at <= now)
    }

    /// The next packet that is due; `None`: there is none.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        random: &mut impl RngCore,
    ) -> Option<[u8; LENGTH]> {
        if !self.is_due(now) {
            return None;
        }
        let mut packet = self.packet();
        // An answer does not wait for the timer, and does not ask anything itself (RFC 5880 §6.5).
        if std::mem::take(&mut self.final_due) {
            packet.is_final = true;
            return Some(packet.encode());
        }
        packet.poll = self.poll != Poll::Idle;
        if std::mem::take(&mut self.changed) {
            self.changes_after = now + CHANGES_APART;
        }
        self.last_sent = Some(now);
        self.next = None;
        self.schedule(now, random);
        Some(packet.encode())
    }

    /// When a packet is due or the session ends; `None`: neither.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let answer = self.final_due.then_some(Instant::ZERO);
        let all = [answer, self.next_packet(), self.detection_ends()];
        all.into_iter().flatten().min()
    }

    /// When the next packet is due that answers none.
    fn next_packet(&self) -> Option<Instant> {
        let changed = self.changed.then_some(self.changes_after);
        let periodic = self.next.map(|(at, _)| at);
        [changed, periodic].into_iter().flatten().min()
    }

    /// Says that the session is disabled, so that the neighbour does not take its end as a failure.
    pub(crate) fn farewell(&self) -> [u8; LENGTH] {
        let packet = ControlPacket {
            state: State::AdminDown,
            diagnostic: Diagnostic::AdministrativelyDown,
            ..self.packet()
        };
        packet.encode()
    }

    pub(crate) fn status(&self) -> Status {
        let remote = self.remote.as_ref();
        let is_down = matches!(self.state, State::Down | State::AdminDown);
        Status {
            state: self.state,
            remote_state: remote.map_or(State::Down, |it| it.state),
            diagnostic: self.diagnostic,
            remote_diagnostic: self.remote_diagnostic,
            local_discriminator: self.local,
            remote_discriminator: remote.map_or(0, |it| it.discriminator),
            send_interval: self.send_interval(),
            detection_time: remote
                .filter(|_| !is_down)
                .map(|it| self.detection_time(it)),
            since: self.since,
            times_up: self.times_up,
            failures: self.failures,
        }
    }

    pub(crate) fn check_invariants(&self) {
        debug_assert!(self.local != 0, "a session has a discriminator");
        let up = matches!(self.state, State::Init | State::Up);
        debug_assert!(!up || self.remote.is_some(), "nothing is up unheard");
        debug_assert!(
            self.remote.is_some() || self.poll == Poll::Idle,
            "a stranger is asked nothing"
        );
        debug_assert!(
            self.state == State::Up || self.desired_min_tx.in_use >= SLOW,
            "slow while not up"
        );
    }

    fn packet(&self) -> ControlPacket {
        ControlPacket {
            diagnostic: match self.state {
                State::Up => Diagnostic::None,
                _ => self.diagnostic,
            },
            state: self.state,
            poll: false,
            is_final: false,
            // Sessions are of the daemon, and end with it.
            control_plane_independent: false,
            demand: false,
            multiplier: self.config.multiplier,
            my_discriminator: self.local,
            your_discriminator: self.remote.map_or(0, |it| it.discriminator),
            desired_min_tx: Micros::of(self.desired_min_tx.advertised),
            required_min_rx: Micros::of(self.required_min_rx.advertised),
            required_min_echo_rx: Micros(0),
        }
    }

    /// Whether the value is another one, of which the neighbour must hear.
    fn set_desired_min_tx(&mut self) -> bool {
        let wanted = match self.state {
            State::Up => self.config.interval,
            _ => self.config.interval.max(SLOW),
        };
        if self.desired_min_tx.advertised == wanted {
            return false;
        }
        self.desired_min_tx.advertised = wanted;
        let slower = wanted > self.desired_min_tx.in_use;
        if !(slower && self.state == State::Up) {
            self.desired_min_tx.in_use = wanted;
        }
        true
    }

    fn begin_poll(&mut self) {
        self.changed = true;
        if self.remote.is_some() {
            self.poll = match self.poll {
                Poll::Idle => Poll::Active,
                Poll::Active | Poll::Repeat => Poll::Repeat,
            };
        }
    }

    fn on_final(&mut self) {
        match self.poll {
            Poll::Idle => {}
            Poll::Active => {
                self.poll = Poll::Idle;
                self.desired_min_tx.settle();
                self.required_min_rx.settle();
            }
            Poll::Repeat => {
                self.poll = Poll::Active;
                self.changed = true;
            }
        }
    }

    /// RFC 5880 §6.8.2 and §6.8.7; `None`: no periodic packets.
    fn send_interval(&self) -> Option<Duration> {
        let Some(remote) = &self.remote else {
            return Some(self.desired_min_tx.in_use);
        };
        let both_up = self.state == State::Up && remote.state == State::Up;
        let asked_not_to = remote.demand && both_up && self.poll == Poll::Idle;
        if remote.min_rx.is_zero() || asked_not_to {
            return None;
        }
        Some(self.desired_min_tx.in_use.max(remote.min_rx))
    }

    /// RFC 5880 §6.8.4.
    fn detection_time(&self, remote: &Remote) -> Duration {
        self.required_min_rx.in_use.max(remote.min_tx) * u32::from(remote.multiplier)
    }

    fn detection_ends(&self) -> Option<Instant> {
        let remote = self.remote.as_ref()?;
        Some(remote.received_at + self.detection_time(remote))
    }

    /// Follows a change of the interval: a shorter one counts from the last packet sent.
    fn schedule(&mut self, now: Instant, random: &mut impl RngCore) {
        let Some(interval) = self.send_interval() else {
            self.next = None;
            return;
        };
        if self.next.is_some_and(|(_, of)| of == interval) {
            return;
        }
        let wait = jittered(interval, self.config.multiplier, random);
        let due = self.last_sent.map_or(now, |sent| (sent + wait).max(now));
        let due = self.next.map_or(due, |(at, _)| at.min(due));
        self.next = Some((due, interval));
    }
}

/// An interval reduced by up to a quarter, and by a tenth at least where a single lost packet ends the
/// session (RFC 5880 §6.8.7).
fn jittered(interval: Duration, multiplier: u8, random: &mut impl RngCore) -> Duration {
    let most = if multiplier == 1 { 900 } else { 1000 };
    let permille = JITTER_MIN + random.next_u32() % (most - JITTER_MIN + 1);
    interval / 1000 * permille
}

const JITTER_MIN: u32 = 750;

impl Config {
    /// What the fields of a packet can hold: a microsecond at least, and a multiplier of 1 at least.
    fn valid(self) -> Self {
        let micros = Micros::of(self.interval).0.max(1);
        Self {
            interval: Micros(micros).duration(),
            multiplier: self.multiplier.max(1),
        }
    }
}

impl Agreed {
    const fn new(interval: Duration) -> Self {
        Self {
            advertised: interval,
            in_use: interval,
        }
    }

    fn settle(&mut self) {
        self.in_use = self.advertised;
    }
}
