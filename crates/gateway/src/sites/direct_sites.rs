//! Sessions of a branch with other branches: when one is asked for, tried, kept and given up.
//!
//! Decides, and sends nothing. Packets take the hub until a session is up and again when it is not, so that nothing
//! here is in a hurry.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::{PublicKey, config::Name, network::DirectSite};

/// Sessions that a branch has or tries at a time; others stay with the hub. Ours.
pub(crate) const DIRECT_MAX: usize = 16;
/// How long the hub may take to answer. Ours.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a session is tried, or may be down. Ours: five handshakes.
const TRY_TIME: Duration = Duration::from_secs(10);
/// A session that has carried nothing for so long ends. Ours: packets that are late pay one more introduction.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// After an attempt that has failed, the next one waits so long, and twice as long each time up to the most. Ours:
/// translators do not change often.
const RETRY_MIN: Duration = Duration::from_secs(60);
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// Introductions of a hub that are acted on within [`INTRODUCED_WINDOW`]; others are ignored, so that a hub makes a
/// branch send few handshakes to addresses of its choice. Ours: twice as many as there are sessions.
const INTRODUCED_MAX: usize = 2 * DIRECT_MAX;
const INTRODUCED_WINDOW: Duration = Duration::from_secs(10);

/// What becomes of each site that packets go to.
#[derive(Debug, Default)]
pub(crate) struct DirectSites {
    sites: BTreeMap<Name, Attempt>,
    /// When the window of introductions has begun, and how many there are in it.
    introduced: Option<(Stopwatch, usize)>,
}

#[derive(Debug)]
struct Attempt {
    state: State,
    /// Before the next one, if this one fails.
    wait: Duration,
}

#[derive(Debug)]
enum State {
    /// The hub has been asked.
    Asked { until: Stopwatch },
    /// A session is tried, or was up and is down.
    Trying {
        site: DirectSite,
        until: Stopwatch,
        was_up: bool,
    },
    Up {
        site: DirectSite,
        packets: u64,
        idle_at: Stopwatch,
    },
    /// There is none, and none is asked for before this time.
    Waiting { until: Stopwatch, why: EndReason },
}

/// Why there is no session any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The hub has not introduced the site.
    NotIntroduced,
    /// It has never been up.
    Unreachable {
        at: Vec<SocketAddr>,
    },
    /// The configuration with it could not be applied.
    NotApplied,
    /// It was up, and is silent.
    Silent,
    Idle,
}

/// How things are with one site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DirectSessionState {
    /// No session is wanted, or as many as there may be are there.
    None {
        is_full: bool,
    },
    Asked,
    Trying {
        at: Vec<SocketAddr>,
        was_up: bool,
    },
    Up,
    Waiting {
        why: EndReason,
        left: Duration,
    },
}

impl DirectSites {
    /// Packets go to a site. Whether to ask the hub, which is taken as asked.
    pub(crate) fn on_wanted(&mut self, now: Stopwatch, site: &Name) -> bool {
        let known = self.sites.get(site);
        let is_waiting =
            |of: &Attempt| matches!(of.state, State::Waiting { until, .. } if until <= now);
        if known.is_some_and(|of| !is_waiting(of)) || self.active() >= DIRECT_MAX {
            return false;
        }
        let wait = known.map_or(RETRY_MIN, |of| of.wait);
        let until = now + ANSWER_TIME;
        let state = State::Asked { until };
        self.sites.insert(site.clone(), Attempt { state, wait });
        true
    }

    /// The hub has introduced a site. Whether there is a session to be tried.
    pub(crate) fn on_introduced(&mut self, now: Stopwatch, site: DirectSite) -> bool {
        let known = self.sites.get(&site.name);
        let is_counted = known.is_some_and(Attempt::is_active);
        let is_full = !is_counted && self.active() >= DIRECT_MAX;
        // Each of two hubs may introduce two sites at once. Both sites keep the same introduction.
        let has_better = known.is_some_and(|of| match &of.state {
            State::Trying {
                site: before,
                until,
                was_up: false,
            } => *until > now && before.preshared_key.as_bytes() <= site.preshared_key.as_bytes(),
            State::Asked { .. }
            | State::Trying { .. }
            | State::Up { .. }
            | State::Waiting { .. } => false,
        });
        if site.endpoint.is_empty() || is_full || has_better || !self.admit_introduction(now) {
            return false;
        }
        let wait = self.sites.get(&site.name).map_or(RETRY_MIN, |of| of.wait);
        let name = site.name.clone();
        let state = State::Trying {
            site,
            until: now + TRY_TIME,
            was_up: false,
        };
        self.sites.insert(name, Attempt { state, wait });
        true
    }

    fn admit_introduction(&mut self, now: Stopwatch) -> bool {
        let in_window = |(since, _): &(Stopwatch, usize)| {
            now.saturating_duration_since(*since) < INTRODUCED_WINDOW
        };
        let (since, count) = self.introduced.filter(in_window).unwrap_or((now, 0));
        self.introduced = Some((since, count + 1));
        count < INTRODUCED_MAX
    }

    /// Follows a session: whether it is up, and how many packets it has carried.
    pub(crate) fn on_session(&mut self, now: Stopwatch, site: &Name, is_up: bool, packets: u64) {
        let Some(attempt) = self.sites.get_mut(site) else {
            return;
        };
        let Attempt { state, wait } = attempt;
        match state {
            State::Trying { site, .. } if is_up => {
                *wait = RETRY_MIN;
                *state = State::Up {
                    site: site.clone(),
                    packets,
                    idle_at: now + IDLE_TIME,
                };
            }
            // What the other end has closed is over.
            State::Up { site, idle_at, .. } if !is_up && *idle_at > now => {
                *state = State::Trying {
                    site: site.clone(),
                    until: now + TRY_TIME,
                    was_up: true,
                };
            }
            State::Up {
                packets: before,
                idle_at,
                ..
            } if *before != packets => {
                *before = packets;
                *idle_at = now + IDLE_TIME;
            }
            State::Asked { .. }
            | State::Trying { .. }
            | State::Up { .. }
            | State::Waiting { .. } => {}
        }
    }

    /// The other site has ended its session.
    pub(crate) fn on_closed(&mut self, now: Stopwatch, site: &str) {
        let mut sites = self.sites.iter_mut();
        let found = sites.find(|(name, _)| name.as_str() == site);
        if let Some((
            _,
            Attempt {
                state: State::Up { idle_at, .. },
                ..
            },
        )) = found
        {
            *idle_at = now;
        }
    }

    /// Ends what is over; the names of sessions that are to be removed, with the reason and the time until the next
    /// attempt.
    pub(crate) fn on_timeout(&mut self, now: Stopwatch) -> Vec<(Name, EndReason, Duration)> {
        let mut ended = Vec::new();
        for (name, Attempt { state, wait }) in &mut self.sites {
            let (why, left) = match state {
                // A hub does not introduce a site that is away. It may come at any time.
                State::Asked { until } if *until <= now => (EndReason::NotIntroduced, RETRY_MIN),
                State::Trying {
                    site,
                    until,
                    was_up,
                } if *until <= now => match was_up {
                    true => (EndReason::Silent, Duration::ZERO),
                    false => {
                        let at = site.endpoint.clone();
                        (EndReason::Unreachable { at }, *wait)
                    }
                },
                State::Up { idle_at, .. } if *idle_at <= now => (EndReason::Idle, Duration::ZERO),
                State::Asked { .. }
                | State::Trying { .. }
                | State::Up { .. }
                | State::Waiting { .. } => continue,
            };
            if matches!(why, EndReason::Unreachable { .. }) {
                *wait = (*wait * 2).min(RETRY_MAX);
            }
            *state = State::Waiting {
                until: now + left,
                why: why.clone(),
            };
            if why != EndReason::NotIntroduced {
                ended.push((name.clone(), why, left));
            }
        }
        ended
    }

    /// What was tried could not be applied.
    pub(crate) fn abandon(&mut self, now: Stopwatch) {
        for Attempt { state, .. } in self.sites.values_mut() {
            if matches!(state, State::Trying { was_up: false, .. }) {
                *state = State::Waiting {
                    until: now + RETRY_MAX,
                    why: EndReason::NotApplied,
                };
            }
        }
    }

    /// Follows sites that have another name.
    pub(crate) fn rename(&mut self, renamed: impl Fn(DirectSite) -> DirectSite) {
        let sites = std::mem::take(&mut self.sites).into_iter();
        let present = |(name, mut of): (Name, Attempt)| match &mut of.state {
            State::Trying { site, .. } | State::Up { site, .. } => {
                *site = renamed(site.clone());
                (site.name.clone(), of)
            }
            State::Asked { .. } | State::Waiting { .. } => (name, of),
        };
        self.sites = sites.map(present).collect();
    }

    /// Keeps only sites that may have a session: `key` is the public key of such a one.
    pub(crate) fn retain(&mut self, key: impl Fn(&Name) -> Option<PublicKey>) {
        self.sites.retain(|name, of| {
            let key = key(name);
            match &of.state {
                State::Trying { site, .. } | State::Up { site, .. } => key == Some(site.public_key),
                State::Asked { .. } | State::Waiting { .. } => key.is_some(),
            }
        });
    }

    /// The sessions that there are to be.
    pub(crate) fn wanted(&self) -> Vec<DirectSite> {
        let of = |attempt: &Attempt| match &attempt.state {
            State::Trying { site, .. } | State::Up { site, .. } => Some(site.clone()),
            State::Asked { .. } | State::Waiting { .. } => None,
        };
        self.sites.values().filter_map(of).collect()
    }

    pub(crate) fn session_state(&self, now: Stopwatch, site: &Name) -> DirectSessionState {
        let Some(attempt) = self.sites.get(site) else {
            let is_full = self.active() >= DIRECT_MAX;
            return DirectSessionState::None { is_full };
        };
        match &attempt.state {
            State::Asked { .. } => DirectSessionState::Asked,
            State::Trying { site, was_up, .. } => DirectSessionState::Trying {
                at: site.endpoint.clone(),
                was_up: *was_up,
            },
            State::Up { .. } => DirectSessionState::Up,
            State::Waiting { until, why } => DirectSessionState::Waiting {
                why: why.clone(),
                left: until.saturating_duration_since(now),
            },
        }
    }

    fn active(&self) -> usize {
        self.sites.values().filter(|of| of.is_active()).count()
    }
}

impl Attempt {
    fn is_active(&self) -> bool {
        !matches!(self.state, State::Waiting { .. })
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIntroduced => f.write_str(
                "the hub has not sent its addresses: the site is away, or has no session with that hub",
            ),
            Self::Unreachable { at } => write!(
                f,
                "no answer from {}: a firewall, or symmetric NAT (another port for each destination)",
                addresses(at)
            ),
            Self::NotApplied => f.write_str("the configuration with it could not be applied"),
            Self::Silent => f.write_str("the direct session was silent"),
            Self::Idle => f.write_str("the direct session has ended because it carried nothing"),
        }
    }
}

impl fmt::Display for DirectSessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None { is_full: false } => {
                f.write_str("no packets have asked for a direct session")
            }
            Self::None { is_full: true } => {
                write!(
                    f,
                    "this gateway has {DIRECT_MAX} direct sessions, which are the most"
                )
            }
            Self::Asked => f.write_str("the hub has been asked for its addresses"),
            Self::Trying { at, was_up: false } => write!(f, "trying {}", addresses(at)),
            Self::Trying { was_up: true, .. } => f.write_str("the direct session is silent"),
            Self::Up => f.write_str("a direct session is up"),
            Self::Waiting { why, .. } => why.fmt(f),
        }
    }
}

fn addresses(at: &[SocketAddr]) -> String {
    let texts: Vec<String> = at.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use keiro_control::PresharedKey;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn site_with(text: &str, preshared_key: u8) -> DirectSite {
        DirectSite {
            name: name(text),
            public_key: PublicKey::from_bytes([1; 32]),
            preshared_key: PresharedKey::from_bytes([preshared_key; 32]),
            endpoint: vec!["192.0.2.1:7600".parse().expect("an address")],
        }
    }

    fn site(text: &str) -> DirectSite {
        site_with(text, 2)
    }

    #[test]
    fn unreachable_sites_are_retried_with_backoff() {
        let (mut direct, start, kobe) = (DirectSites::default(), Stopwatch::now(), name("kobe"));
        let mut now = start;
        for wait in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert!(direct.on_wanted(now, &kobe));
            assert!(!direct.on_wanted(now, &kobe), "the hub is asked once");
            assert!(direct.on_introduced(now, site("kobe")));
            assert_eq!(direct.wanted().len(), 1);
            direct.on_session(now, &kobe, false, 0);
            assert!(direct.on_timeout(now).is_empty());
            now += TRY_TIME;
            let next_in = Duration::from_secs(wait);
            let why = EndReason::Unreachable {
                at: site("kobe").endpoint,
            };
            assert_eq!(direct.on_timeout(now), [(kobe.clone(), why, next_in)]);
            assert!(direct.wanted().is_empty());
            let standing = direct.session_state(now, &kobe);
            assert!(
                matches!(&standing, DirectSessionState::Waiting { left, .. } if *left == next_in)
            );
            assert!(
                standing.to_string().contains("192.0.2.1:7600"),
                "{standing}"
            );
            now += next_in;
            assert!(!direct.on_wanted(now - Duration::from_secs(1), &kobe));
        }
        // Nor is a hub that does not answer asked all the time.
        let nara = name("nara");
        for _ in 0..3 {
            assert!(direct.on_wanted(now, &nara));
            now += ANSWER_TIME;
            assert!(direct.on_timeout(now).is_empty());
            assert!(!direct.on_wanted(now, &nara));
            now += RETRY_MIN;
        }
    }

    #[test]
    fn a_session_ends_when_it_is_idle_or_stays_silent() {
        let (mut direct, start, kobe) = (DirectSites::default(), Stopwatch::now(), name("kobe"));
        let at = |seconds| start + Duration::from_secs(seconds);
        let ended = |why| [(name("kobe"), why, Duration::ZERO)];
        // The other one has asked.
        assert!(direct.on_introduced(at(0), site("kobe")));
        direct.on_session(at(1), &kobe, true, 0);
        assert_eq!(direct.session_state(at(1), &kobe), DirectSessionState::Up);
        direct.on_session(at(100), &kobe, true, 7);
        direct.on_session(at(219), &kobe, true, 7);
        assert!(direct.on_timeout(at(219)).is_empty());
        assert_eq!(direct.on_timeout(at(220)), ended(EndReason::Idle));
        assert!(direct.on_wanted(at(220), &kobe), "at once if it is needed");
        assert!(direct.on_introduced(at(220), site("kobe")));
        direct.on_session(at(221), &kobe, true, 0);
        direct.on_session(at(222), &kobe, false, 0);
        direct.on_session(at(231), &kobe, true, 0);
        direct.on_session(at(240), &kobe, false, 0);
        assert!(direct.on_timeout(at(249)).is_empty());
        assert_eq!(direct.on_timeout(at(250)), ended(EndReason::Silent));
        // What the other end closes is not waited for.
        assert!(direct.on_introduced(at(250), site("kobe")));
        direct.on_session(at(251), &kobe, true, 0);
        direct.on_closed(at(252), "kobe");
        direct.on_session(at(252), &kobe, false, 0);
        assert_eq!(direct.on_timeout(at(252)), ended(EndReason::Idle));
    }

    #[test]
    fn a_site_that_is_revoked_or_replaced_loses_its_session() {
        let (mut direct, now) = (DirectSites::default(), Stopwatch::now());
        for text in ["kobe", "nara"] {
            assert!(direct.on_introduced(now, site(text)));
        }
        assert!(direct.on_wanted(now, &name("oita")));
        let keys = [("nara", 9), ("oita", 1)];
        direct.retain(|of| {
            let found = keys.iter().find(|(text, _)| name(text) == *of);
            found.map(|(_, key)| PublicKey::from_bytes([*key; 32]))
        });
        let left: Vec<&str> = direct.sites.keys().map(Name::as_str).collect();
        assert_eq!(left, ["oita"]);
    }

    #[test]
    fn sessions_are_bounded_and_need_an_address() {
        let (mut direct, now) = (DirectSites::default(), Stopwatch::now());
        for number in 0..DIRECT_MAX {
            assert!(direct.on_introduced(now, site(&format!("s{number}"))));
        }
        assert!(!direct.on_introduced(now, site("one-more")));
        assert!(!direct.on_wanted(now, &name("one-more")));
        let standing = direct.session_state(now, &name("one-more"));
        assert_eq!(standing, DirectSessionState::None { is_full: true });
        direct.abandon(now);
        assert!(direct.wanted().is_empty());
        let nowhere = DirectSite {
            endpoint: Vec::new(),
            ..site("kobe")
        };
        assert!(!direct.on_introduced(now, nowhere));
    }

    #[test]
    fn of_two_introductions_at_once_both_sites_keep_the_same() {
        let now = Stopwatch::now();
        for order in [[3, 5], [5, 3]] {
            let mut direct = DirectSites::default();
            for preshared_key in order {
                direct.on_introduced(now, site_with("kobe", preshared_key));
            }
            let kept = direct.wanted().remove(0).preshared_key;
            assert_eq!(kept.as_bytes(), &[3; 32], "{order:?}");
            // The other end has restarted.
            direct.on_session(now, &name("kobe"), true, 0);
            assert!(direct.on_introduced(now, site_with("kobe", 7)));
        }
    }

    #[test]
    fn a_hub_that_introduces_all_the_time_is_ignored() {
        let (mut direct, now) = (DirectSites::default(), Stopwatch::now());
        // Each is better than the one before.
        let mut taken = |now| {
            let sites = (0..=255).rev().map(|key| site_with("kobe", key));
            sites
                .filter(|site| direct.on_introduced(now, site.clone()))
                .count()
        };
        assert_eq!(taken(now), INTRODUCED_MAX);
        assert_eq!(taken(now + INTRODUCED_WINDOW), INTRODUCED_MAX);
    }
}
