//! Path validation (RFC 9000 §8.2): a path is used after the peer has answered a challenge at the
//! address where it is used, and of the size that packets there will have.
//!
//! A challenge to an address that is known is as long as the base size (RFC 9000 §8.2.1). Where only
//! short ones are answered, some more of the base size follow, because the first may just have been
//! lost, and then some of the least size that a path has to carry. The path is used with the size that
//! was answered. Challenges to an address that is not known yet, and to a path that is down, are short:
//! the former could hit a stranger, the latter would cost much in the long run.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use keiro_units::Instant;
use rand_chacha::ChaCha20Rng;
use rand_core::RngCore;

use super::mtu::{MTU_BASE, MTU_LEAST};
use crate::snapshot::PathState;

/// Unanswered challenges before a path is reported unreachable.
const CHALLENGES_BEFORE_DOWN: u32 = 3;
/// Shortest time over which a path is challenged before it is reported unreachable. Ours: a near peer
/// that has just started, or that gets no processor, needs some time to answer.
const CHALLENGE_TIME_MIN: Duration = Duration::from_millis(300);
/// Time between the first challenges, beyond a round trip.
pub(crate) const CHALLENGE_BEYOND_RTT: Duration = Duration::from_millis(20);
/// The longest that an application waits for its preferred path to answer after another one has: two
/// challenges to a path of which nothing is known, an assumed round trip (RFC 9002 §6.2.2) and 20 ms
/// apart. A third would delay the first message by more than a second if the path is down.
pub(crate) const VALIDATION_TIME: Duration = Duration::from_millis(2 * (333 + 20));
/// Challenges of the base size to an address that answers short ones, before it is taken as too large. Ours:
/// at 10 % of loss one path in ten thousand begins with the least size, and finds the right one then.
const BASE_CHALLENGES: u32 = 4;
/// Challenges of the least size after these.
const LEAST_CHALLENGES: u32 = 3;
/// Time between the first challenges of a path that is abandoned; it doubles. Ours.
const ABANDONED_WAIT_MIN: Duration = Duration::from_secs(2);
/// Longest time between challenges of a path that is abandoned. Ours: nothing waits for it.
const ABANDONED_WAIT_MAX: Duration = Duration::from_secs(300);
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
    /// It has answered a challenge since its address was configured.
    has_answered: bool,
    /// It is challenged rarely: the wait before the next challenge.
    abandoned: Option<Duration>,
    /// The driver knows that the path is down.
    down_reported: bool,
    /// The socket has no local address: nothing is sent, and what arrives late is ignored.
    is_unbound: bool,
    /// Challenges that may still be answered, oldest first: a round trip may be longer than the
    /// interval at which they are repeated.
    challenges: VecDeque<Challenge>,
    /// Challenges in a row without a response.
    attempts: u32,
    /// When the next challenge is due; `None`: none is needed.
    challenge_at: Option<Instant>,
    sizes: Sizes,
    responses: VecDeque<PathChallenge>,
}

/// What is known of the sizes of challenges that a path carries that is not up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    /// Nothing was answered yet.
    Unknown,
    /// A short one was answered. `tried`: larger ones sent since. `again`: all of their sizes were tried before,
    /// in vain.
    ShortPasses { tried: u32, again: bool },
    /// Short ones are answered and none of the least size, so the path is of no use.
    TooSmall { again_at: Instant },
}

#[derive(Clone, Copy, Debug)]
struct Challenge {
    token: u64,
    remote: SocketAddr,
    sent_at: Instant,
    /// Its IP bytes; `None`: it was not padded.
    size: Option<u16>,
}

/// A challenge that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizedChallenge {
    pub(crate) challenge: PathChallenge,
    /// IP bytes to which it is padded; `None`: it is not.
    pub(crate) size: Option<u16>,
}

/// A token to be sent to an address, in a challenge or in the response to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathChallenge {
    pub(crate) token: u64,
    pub(crate) remote: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validated {
    pub(crate) rtt: Duration,
    pub(crate) remote: SocketAddr,
    /// The address before, if it has changed.
    pub(crate) moved_from: Option<Option<SocketAddr>>,
    /// The path is up now, and was not.
    pub(crate) came_up: bool,
    /// The size that was answered, IP bytes; `None`: the challenge was short.
    pub(crate) size: Option<u16>,
}

impl Validation {
    pub(crate) fn new(remote: Option<SocketAddr>) -> Self {
        Self {
            state: PathState::Validating,
            configured_remote: remote,
            remote,
            candidate: None,
            has_answered: false,
            abandoned: None,
            down_reported: false,
            is_unbound: false,
            challenges: VecDeque::new(),
            attempts: 0,
            challenge_at: Some(Instant::ZERO),
            sizes: Sizes::Unknown,
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

    /// Short packets are answered and none of the least size.
    pub(crate) fn is_too_small(&self) -> bool {
        matches!(self.sizes, Sizes::TooSmall { .. }) && !self.is_up()
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
        self.has_answered = false;
        self.remote = remote;
        true
    }

    /// The path has to answer again before it is used.
    pub(crate) fn restart(&mut self, now: Instant) {
        if self.is_unbound {
            return;
        }
        self.state = PathState::Validating;
        self.abandoned = None;
        self.down_reported = false;
        self.forget_challenges();
        self.challenge_at = Some(now);
    }

    /// Challenges the path rarely from now on, if it is down and has never answered; `false` if it is not, or was
    /// abandoned before.
    pub(crate) fn abandon(&mut self) -> bool {
        let was_never_answered = self.state == PathState::Down && !self.has_answered;
        if !was_never_answered || self.is_unbound || self.is_abandoned() {
            return false;
        }
        self.abandoned = Some(ABANDONED_WAIT_MIN);
        true
    }

    /// Challenges an abandoned path at once, and often as before; `false` if it is not abandoned.
    pub(crate) fn resume(&mut self, now: Instant) -> bool {
        let was_abandoned = self.abandoned.take().is_some();
        if was_abandoned {
            self.attempts = 0;
            self.challenge_at = Some(now);
        }
        was_abandoned
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.is_some()
    }

    /// The socket has a local address again, or another one: the path has to answer from there.
    pub(crate) fn on_bound(&mut self, now: Instant) {
        self.is_unbound = false;
        self.restart(now);
    }

    /// The socket has no local address any more.
    pub(crate) fn on_unbound(&mut self) {
        self.is_unbound = true;
        self.abandoned = None;
        self.state = PathState::Down;
        self.down_reported = true;
        self.responses.clear();
        self.forget_challenges();
    }

    pub(crate) fn is_unbound(&self) -> bool {
        self.is_unbound
    }

    /// The path was silent for too long.
    pub(crate) fn on_silent(&mut self, now: Instant) {
        self.state = PathState::Down;
        self.down_reported = true;
        self.forget_challenges();
        self.challenge_at = (!self.is_unbound).then_some(now);
    }

    /// The peer is back on another path: challenges this one at once, if it is down.
    pub(crate) fn revalidate(&mut self, now: Instant) {
        if self.state == PathState::Down && !self.is_unbound {
            self.abandoned = None;
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
        // A peer whose path is too small here as well would otherwise be challenged for each of its challenges.
        let is_settled = self.is_up() || matches!(self.sizes, Sizes::TooSmall { .. });
        let known = self.remote == Some(remote) && is_settled;
        self.abandoned = None;
        if known || self.candidate == Some(remote) || self.is_unbound {
            return;
        }
        self.candidate = Some(remote);
        self.attempts = 0;
        self.challenge_at = Some(now);
    }

    /// The peer challenges us from `remote`.
    pub(crate) fn on_challenged(&mut self, token: u64, remote: SocketAddr) {
        if self.is_unbound {
            return;
        }
        if self.responses.len() >= RESPONSES_MAX {
            self.responses.pop_front();
        }
        self.responses.push_back(PathChallenge { token, remote });
    }

    /// The response that is to be sent next.
    pub(crate) fn poll_response(&mut self) -> Option<PathChallenge> {
        self.responses.pop_front()
    }

    /// Challenges in a row without a response.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The challenge that is due. `rtt`: of the path, as far as it is known; `probe_down`: time between them while it is
    /// down.
    pub(crate) fn poll_challenge(
        &mut self,
        now: Instant,
        rtt: Duration,
        random: &mut ChaCha20Rng,
        probe_down: Duration,
    ) -> Option<SizedChallenge> {
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
        let size = self.next_size(now, remote);
        self.attempts += 1;
        let token = random.next_u64();
        if self.challenges.len() >= CHALLENGES_MAX {
            self.challenges.pop_front();
        }
        self.challenges.push_back(Challenge {
            token,
            remote,
            sent_at: now,
            size,
        });
        // Quickly at first: a lost challenge must not delay the start.
        let wait = match self.has_tried_enough(rtt) {
            false => challenge_interval(rtt),
            true => probe_down,
        };
        let mut wait = wait.min(probe_down);
        if let Some(rare) = &mut self.abandoned {
            wait = *rare;
            *rare = (*rare * 2).min(ABANDONED_WAIT_MAX);
        }
        self.challenge_at = Some(now + wait);
        Some(SizedChallenge {
            challenge: PathChallenge { token, remote },
            size,
        })
    }

    /// The size of the next challenge, to `remote`.
    fn next_size(&mut self, now: Instant, remote: SocketAddr) -> Option<u16> {
        if self.remote != Some(remote) || self.state != PathState::Validating {
            return None;
        }
        match &mut self.sizes {
            // Of three, one is short: so it is known soon whether the size is what is not answered.
            Sizes::Unknown => (self.attempts % 3 != 2).then_some(MTU_BASE),
            Sizes::ShortPasses { tried, .. } => {
                *tried += 1;
                Some(match *tried <= BASE_CHALLENGES {
                    true => MTU_BASE,
                    false => MTU_LEAST,
                })
            }
            Sizes::TooSmall { again_at } if *again_at <= now => {
                let (tried, again) = (1, true);
                self.sizes = Sizes::ShortPasses { tried, again };
                Some(MTU_BASE)
            }
            Sizes::TooSmall { .. } => None,
        }
    }

    /// As many challenges were sent as have to stay unanswered, and one more.
    fn has_tried_enough(&self, rtt: Duration) -> bool {
        match self.sizes {
            Sizes::ShortPasses { tried, .. } => tried > BASE_CHALLENGES + LEAST_CHALLENGES,
            Sizes::Unknown | Sizes::TooSmall { .. } => self.attempts > challenges_before_down(rtt),
        }
    }

    /// Declares the path down if as many challenges went unanswered as are sent before that. `None`:
    /// it goes on; otherwise whether the driver does not know it yet, or not why. `sizes_again`: after how long sizes
    /// are tried again of which none was answered.
    pub(crate) fn check_unreachable(
        &mut self,
        now: Instant,
        rtt: Duration,
        sizes_again: Duration,
    ) -> Option<bool> {
        let validating = self.state == PathState::Validating;
        if !validating || !self.has_tried_enough(rtt) {
            return None;
        }
        let mut is_news = !std::mem::replace(&mut self.down_reported, true);
        if let Sizes::ShortPasses { again, .. } = self.sizes {
            is_news |= !again;
            let again_at = now + sizes_again;
            self.sizes = Sizes::TooSmall { again_at };
        }
        self.state = PathState::Down;
        Some(is_news)
    }

    /// Takes the response to a challenge; `None` if it answers none of ours.
    pub(crate) fn on_response(
        &mut self,
        now: Instant,
        token: u64,
        received_at: Instant,
    ) -> Option<Validated> {
        let mut challenges = self.challenges.iter();
        let challenge = *challenges.find(|challenge| challenge.token == token)?;
        let was_up = self.is_up();
        let moved = self.remote != Some(challenge.remote);
        let validated = Validated {
            rtt: received_at.saturating_duration_since(challenge.sent_at),
            remote: challenge.remote,
            moved_from: moved.then_some(self.remote),
            came_up: !was_up && challenge.size.is_some(),
            size: challenge.size,
        };
        self.remote = Some(challenge.remote);
        self.has_answered = true;
        self.abandoned = None;
        if was_up || validated.came_up {
            self.forget_challenges();
            self.state = PathState::Up;
            self.down_reported = false;
        } else {
            self.on_short_answered(now, token, moved);
        }
        Some(validated)
    }

    /// A short challenge was answered on a path that is not up: its size is to be known.
    fn on_short_answered(&mut self, now: Instant, token: u64, moved: bool) {
        self.challenges.retain(|challenge| challenge.token != token);
        let (tries_sizes, again) = match self.sizes {
            Sizes::Unknown => (true, false),
            Sizes::ShortPasses { again, .. } => (moved, again && !moved),
            Sizes::TooSmall { again_at } => (moved || again_at <= now, !moved),
        };
        if tries_sizes {
            self.sizes = Sizes::ShortPasses { tried: 0, again };
            self.state = PathState::Validating;
            self.candidate = None;
            self.attempts = 0;
            self.challenge_at = Some(now);
        }
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
        assert!(
            !self.is_up() || self.sizes == Sizes::Unknown,
            "sizes of challenges are tried on a path that is not up"
        );
        let is_quiet = self.state == PathState::Down
            && self.challenge_at.is_none()
            && self.challenges.is_empty()
            && self.responses.is_empty();
        assert!(
            self.abandoned.is_none() || (self.state == PathState::Down && !self.has_answered),
            "an abandoned path is down and has never answered"
        );
        assert!(
            !self.is_unbound || is_quiet,
            "a path without a local address is down and sends nothing"
        );
    }

    fn forget_challenges(&mut self) {
        self.sizes = Sizes::Unknown;
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

#[cfg(test)]
mod tests;
