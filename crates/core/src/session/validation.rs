//! Path validation (RFC 9000 §8.2): a path is used after the peer has answered a challenge at the
//! address where it is used.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use keiro_units::Instant;
use rand_chacha::ChaCha20Rng;
use rand_core::RngCore;

use crate::{config::TimingConfig, snapshot::PathState};

/// Unanswered challenges before a path is reported unreachable.
const CHALLENGES_BEFORE_DOWN: u32 = 3;
/// Shortest time over which a path is challenged before it is reported unreachable. Ours: a near peer
/// that has just started, or that gets no processor, needs some time to answer.
const CHALLENGE_TIME_MIN: Duration = Duration::from_millis(300);
/// Time between the first challenges, beyond a round trip.
const CHALLENGE_BEYOND_RTT: Duration = Duration::from_millis(20);
/// The longest that an application waits for its preferred path to answer after another one has: two
/// challenges to a path of which nothing is known, an assumed round trip (RFC 9002 §6.2.2) and 20 ms
/// apart. A third would delay the first message by more than a second if the path is dead.
pub(crate) const VALIDATION_TIME: Duration = Duration::from_millis(2 * (333 + 20));
/// Challenges remembered: 8 of them 0.5 s apart cover a round trip of 4 s.
const CHALLENGES_MAX: usize = 8;
/// Responses that wait at most; at the bound the oldest is dropped.
const RESPONSES_MAX: usize = 4;

/// Validation state of one path.
#[derive(Debug)]
pub(crate) struct Validation {
    state: PathState,
    /// The peer's address in the configuration.
    configured_remote: Option<SocketAddr>,
    /// The address that packets are sent to.
    remote: Option<SocketAddr>,
    /// An address that the peer sends from and that is not validated.
    candidate: Option<SocketAddr>,
    /// The driver knows that the path is down.
    down_reported: bool,
    /// Challenges that may still be answered, oldest first: a round trip may be longer than the
    /// interval at which they are repeated.
    challenges: VecDeque<Challenge>,
    /// Challenges in a row without a response.
    attempts: u32,
    /// When the next challenge is due; `None`: none is needed.
    challenge_at: Option<Instant>,
    responses: VecDeque<PathChallenge>,
}

#[derive(Clone, Copy, Debug)]
struct Challenge {
    token: u64,
    remote: SocketAddr,
    sent_at: Instant,
}

/// A token to be sent to an address, in a challenge or in the response to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathChallenge {
    pub(crate) token: u64,
    pub(crate) remote: SocketAddr,
}

/// An answered challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validated {
    pub(crate) rtt: Duration,
    pub(crate) remote: SocketAddr,
    /// The address before, if it has changed.
    pub(crate) moved_from: Option<Option<SocketAddr>>,
    pub(crate) came_up: bool,
}

impl Validation {
    pub(crate) fn new(remote: Option<SocketAddr>) -> Self {
        Self {
            state: PathState::Validating,
            configured_remote: remote,
            remote,
            candidate: None,
            down_reported: false,
            challenges: VecDeque::new(),
            attempts: 0,
            challenge_at: Some(Instant::ZERO),
            responses: VecDeque::new(),
        }
    }

    pub(crate) fn state(&self) -> PathState {
        self.state
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == PathState::Up
    }

    pub(crate) fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// When the next challenge is due; `None`: none is needed.
    pub(crate) fn challenge_at(&self) -> Option<Instant> {
        self.challenge_at
    }

    /// Takes another configured address, which is used at once; `false` if it is not another.
    pub(crate) fn set_remote(&mut self, remote: Option<SocketAddr>) -> bool {
        if remote == self.configured_remote || remote.is_none() {
            return false;
        }
        self.configured_remote = remote;
        self.remote = remote;
        true
    }

    /// The path has to answer again before it is used.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.state = PathState::Validating;
        self.down_reported = false;
        self.forget_challenges();
        self.challenge_at = Some(now);
    }

    /// The path was silent for too long.
    pub(crate) fn on_silent(&mut self, now: Instant) {
        self.state = PathState::Down;
        self.down_reported = true;
        self.forget_challenges();
        self.challenge_at = Some(now);
    }

    /// The peer is back on another path: challenges this one at once, if it is down.
    pub(crate) fn revalidate(&mut self, now: Instant) {
        if self.state == PathState::Down {
            self.state = PathState::Validating;
            self.attempts = 0;
            self.challenge_at = Some(now);
        }
    }

    /// The peer has closed the session: nothing is sent before it is back.
    pub(crate) fn on_peer_closed(&mut self) {
        if self.is_up() {
            self.state = PathState::Down;
        }
        self.challenge_at = None;
    }

    /// A packet of the peer came from `remote`; challenges it there if that is another address.
    pub(crate) fn on_packet_from(&mut self, now: Instant, remote: SocketAddr) {
        let known = self.remote == Some(remote) && self.is_up();
        if known || self.candidate == Some(remote) {
            return;
        }
        self.candidate = Some(remote);
        self.attempts = 0;
        self.challenge_at = Some(now);
    }

    /// The peer challenges us from `remote`.
    pub(crate) fn on_challenged(&mut self, token: u64, remote: SocketAddr) {
        if self.responses.len() >= RESPONSES_MAX {
            self.responses.pop_front();
        }
        self.responses.push_back(PathChallenge { token, remote });
    }

    /// The response that is to be sent next.
    pub(crate) fn poll_response(&mut self) -> Option<PathChallenge> {
        self.responses.pop_front()
    }

    /// The challenge that is due. `rtt`: of the path, as far as it is known.
    pub(crate) fn poll_challenge(
        &mut self,
        now: Instant,
        rtt: Duration,
        random: &mut ChaCha20Rng,
        timing: &TimingConfig,
    ) -> Option<PathChallenge> {
        self.challenge_at.filter(|at| *at <= now)?;
        // A candidate address is challenged a few times, then the one that was known.
        if self.attempts >= CHALLENGES_BEFORE_DOWN && self.remote.is_some() {
            self.candidate = None;
            if self.is_up() {
                self.challenge_at = None;
                return None;
            }
        }
        let Some(remote) = self.candidate.or(self.remote) else {
            self.challenge_at = None;
            return None;
        };
        self.attempts += 1;
        let token = random.next_u64();
        if self.challenges.len() >= CHALLENGES_MAX {
            self.challenges.pop_front();
        }
        self.challenges.push_back(Challenge {
            token,
            remote,
            sent_at: now,
        });
        // Quickly at first: a lost challenge must not delay the start.
        let wait = match self.attempts <= challenges_before_down(rtt) {
            true => challenge_interval(rtt),
            false => timing.probe_down,
        };
        self.challenge_at = Some(now + wait.min(timing.probe_down));
        Some(PathChallenge { token, remote })
    }

    /// Declares the path down if as many challenges went unanswered as are sent before that. `None`:
    /// it goes on; otherwise whether the driver does not know it yet.
    pub(crate) fn check_unreachable(&mut self, rtt: Duration) -> Option<bool> {
        let validating = self.state == PathState::Validating;
        if !validating || self.attempts <= challenges_before_down(rtt) {
            return None;
        }
        self.state = PathState::Down;
        Some(!std::mem::replace(&mut self.down_reported, true))
    }

    /// Takes the response to a challenge; `None` if it answers none of ours.
    pub(crate) fn on_response(&mut self, token: u64, received_at: Instant) -> Option<Validated> {
        let mut challenges = self.challenges.iter();
        let challenge = *challenges.find(|challenge| challenge.token == token)?;
        self.forget_challenges();
        let moved = self.remote != Some(challenge.remote);
        let validated = Validated {
            rtt: received_at.saturating_duration_since(challenge.sent_at),
            remote: challenge.remote,
            moved_from: moved.then_some(self.remote),
            came_up: !self.is_up(),
        };
        self.remote = Some(challenge.remote);
        self.state = PathState::Up;
        self.down_reported = false;
        Some(validated)
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(self.challenges.len() <= CHALLENGES_MAX, "challenges");
        assert!(self.responses.len() <= RESPONSES_MAX, "responses");
        assert!(
            !self.is_up() || self.remote.is_some(),
            "a path that is up has an address"
        );
        assert!(
            !(self.is_up() && self.down_reported),
            "a path that is up is not reported down"
        );
    }

    fn forget_challenges(&mut self) {
        self.challenges.clear();
        self.candidate = None;
        self.attempts = 0;
        self.challenge_at = None;
    }
}

/// How long an application waits for its preferred path to answer after another one has: two
/// challenges, so that one may get lost.
pub(crate) fn validation_time(rtt: Duration) -> Duration {
    (2 * challenge_interval(rtt)).min(VALIDATION_TIME)
}

/// Time between the first challenges.
fn challenge_interval(rtt: Duration) -> Duration {
    rtt + CHALLENGE_BEYOND_RTT
}

fn challenges_before_down(rtt: Duration) -> u32 {
    let interval = challenge_interval(rtt).as_micros();
    let in_time = CHALLENGE_TIME_MIN.as_micros().div_ceil(interval.max(1));
    CHALLENGES_BEFORE_DOWN.max(u32::try_from(in_time).unwrap_or(u32::MAX))
}
