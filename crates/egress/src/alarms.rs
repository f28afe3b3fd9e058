//! Alarms: what is wrong, for as long as it is.
//!
//! The daemon looks for every [`Cause`] at short intervals. A cause that lasts is raised once, shown as
//! long as it lasts, and cleared once, whatever the number of routes or retries behind it.

use std::{collections::BTreeMap, fmt, time::Duration};

use keiro_units::Instant;
use serde::{Deserialize, Serialize};

/// What an alarm is about. The names stay the same over releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The host of a border router forwards no packets.
    ForwardingOff,
    /// A configured session is not established.
    SessionDown,
    /// Routes of a neighbour are kept although it has not announced them in its present session.
    StaleRoutes,
    /// A server keeps routes of its earlier run.
    EarlierRoutes,
    /// Another router uses the same locator.
    LocatorShared,
    /// No route leads to a segment.
    LocatorUnreachable,
    /// Packets through a segment get no answer.
    SegmentSilent,
    /// Two routers make VPN routes with one route distinguisher, which hide each other.
    DistinguisherShared,
    /// No route has the route target of an egress peer.
    TargetAbsent,
    /// Routes of an egress peer have no SID.
    NoSegment,
    /// The kernel refuses changes.
    NotForwarded,
}

impl Cause {
    pub const ALL: [Self; 11] = [
        Self::ForwardingOff,
        Self::SessionDown,
        Self::StaleRoutes,
        Self::EarlierRoutes,
        Self::LocatorShared,
        Self::LocatorUnreachable,
        Self::SegmentSilent,
        Self::DistinguisherShared,
        Self::TargetAbsent,
        Self::NoSegment,
        Self::NotForwarded,
    ];

    /// As in JSON and in the documentation.
    pub const fn id(self) -> &'static str {
        match self {
            Self::ForwardingOff => "forwarding_off",
            Self::SessionDown => "session_down",
            Self::StaleRoutes => "stale_routes",
            Self::EarlierRoutes => "earlier_routes",
            Self::LocatorShared => "locator_shared",
            Self::LocatorUnreachable => "locator_unreachable",
            Self::SegmentSilent => "segment_silent",
            Self::DistinguisherShared => "distinguisher_shared",
            Self::TargetAbsent => "target_absent",
            Self::NoSegment => "no_segment",
            Self::NotForwarded => "not_forwarded",
        }
    }

    /// How long it lasts before it is raised. What passes by itself while sessions come up is none. Ours.
    const fn hold_time(self) -> Duration {
        match self {
            Self::ForwardingOff | Self::SegmentSilent => Duration::ZERO,
            Self::SessionDown | Self::EarlierRoutes | Self::TargetAbsent => Duration::from_secs(10),
            _ => Duration::from_secs(4),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

/// Something that is wrong now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    pub cause: Cause,
    /// The neighbour, egress peer, router or segment that it is about.
    pub subject: String,
    /// What is wrong, what follows, and what to look at.
    pub text: String,
}

/// A raised alarm, for the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlarmStatus {
    pub cause: Cause,
    pub subject: String,
    pub text: String,
    /// For how long this has been so.
    pub for_seconds: u64,
}

/// What changed with a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    Raised(Alarm),
    Cleared {
        cause: Cause,
        subject: String,
        lasted: Duration,
    },
    /// There are more of this cause than are followed.
    Further(Cause),
}

/// All present causes, raised or not yet.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    present: BTreeMap<(Cause, String), Present>,
    /// By cause, how many more there are than are followed.
    further: BTreeMap<Cause, u64>,
}

#[derive(Debug)]
struct Present {
    since: Instant,
    text: String,
    raised: bool,
}

impl Alarms {
    /// Replaces what is wrong. Of one cause with more than [`ALARMS_MAX`] alarms those that are present stay, and the
    /// rest is counted.
    pub(crate) fn update(&mut self, now: Instant, found: Vec<Alarm>) -> Vec<Transition> {
        let mut found: BTreeMap<(Cause, String), String> = found
            .into_iter()
            .map(|alarm| ((alarm.cause, alarm.subject), alarm.text))
            .collect();
        let mut transitions = Vec::new();
        let mut followed: BTreeMap<Cause, usize> = BTreeMap::new();
        self.present.retain(|key, present| {
            let text = found.remove(key);
            let (cause, subject) = key;
            match text {
                Some(text) => {
                    present.text = text;
                    *followed.entry(*cause).or_default() += 1;
                    true
                }
                None if present.raised => {
                    transitions.push(Transition::Cleared {
                        cause: *cause,
                        subject: subject.clone(),
                        lasted: now - present.since,
                    });
                    false
                }
                None => false,
            }
        });
        let further = std::mem::take(&mut self.further);
        for ((cause, subject), text) in found {
            let followed = followed.entry(cause).or_default();
            if *followed >= ALARMS_MAX {
                *self.further.entry(cause).or_default() += 1;
                continue;
            }
            *followed += 1;
            let present = Present {
                since: now,
                text,
                raised: false,
            };
            self.present.insert((cause, subject), present);
        }
        for cause in self.further.keys() {
            if !further.contains_key(cause) {
                transitions.push(Transition::Further(*cause));
            }
        }
        for ((cause, subject), present) in &mut self.present {
            if !present.raised && now - present.since >= cause.hold_time() {
                present.raised = true;
                transitions.push(Transition::Raised(Alarm {
                    cause: *cause,
                    subject: subject.clone(),
                    text: present.text.clone(),
                }));
            }
        }
        transitions
    }

    /// Whether this is present, raised or not yet.
    pub(crate) fn has(&self, alarm: &Alarm) -> bool {
        let key = (alarm.cause, alarm.subject.clone());
        self.present.contains_key(&key)
    }

    /// By cause, how many more there are than [`raised`](Self::raised) has.
    pub(crate) fn further(&self) -> BTreeMap<Cause, u64> {
        self.further.clone()
    }

    pub(crate) fn raised(&self, now: Instant) -> Vec<AlarmStatus> {
        let raised = self.present.iter().filter(|(_, present)| present.raised);
        raised
            .map(|((cause, subject), present)| AlarmStatus {
                cause: *cause,
                subject: subject.clone(),
                text: present.text.clone(),
                for_seconds: (now - present.since).as_secs(),
            })
            .collect()
    }
}

/// Most alarms of one cause, so that many of one hide none of another. Each has a neighbour, peer, router or segment; a
/// site has far fewer. Ours.
const ALARMS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn alarm(cause: Cause, subject: &str) -> Alarm {
        Alarm {
            cause,
            subject: subject.to_owned(),
            text: "it is".to_owned(),
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_cause_is_raised_once_when_it_lasts_and_cleared_once() {
        let mut alarms = Alarms::default();
        let found = || vec![alarm(Cause::NoSegment, "transit-a")];
        assert_eq!(alarms.update(at(0), found()), []);
        assert_eq!(alarms.raised(at(1)), []);
        let raised = Transition::Raised(alarm(Cause::NoSegment, "transit-a"));
        assert_eq!(alarms.update(at(4), found()), [raised]);
        assert_eq!(alarms.update(at(6), found()), []);
        assert_eq!(alarms.raised(at(9))[0].for_seconds, 9);
        let cleared = Transition::Cleared {
            cause: Cause::NoSegment,
            subject: "transit-a".to_owned(),
            lasted: Duration::from_secs(10),
        };
        assert_eq!(alarms.update(at(10), Vec::new()), [cleared]);
        assert_eq!(alarms.update(at(11), Vec::new()), []);
    }

    #[test]
    fn transient_causes_raise_no_alarm() {
        let mut alarms = Alarms::default();
        alarms.update(at(0), vec![alarm(Cause::SessionDown, "rr1")]);
        assert_eq!(alarms.update(at(2), Vec::new()), []);
        alarms.update(at(3), vec![alarm(Cause::SessionDown, "rr1")]);
        let later = alarms.update(at(12), vec![alarm(Cause::SessionDown, "rr1")]);
        assert_eq!(later, [], "it began anew");
    }

    #[test]
    fn many_alarms_of_one_cause_hide_and_clear_no_other_and_are_counted() {
        let mut alarms = Alarms::default();
        let silent = || alarm(Cause::SegmentSilent, "2001:db8::1");
        let last = || alarm(Cause::ForwardingOff, "z");
        let raised = alarms.update(at(0), vec![silent(), last()]);
        assert_eq!(raised.len(), 2);
        let many = || {
            let many = (0..10 * ALARMS_MAX).map(|n| alarm(Cause::ForwardingOff, &n.to_string()));
            many.chain([last(), silent()]).collect()
        };
        let transitions = alarms.update(at(2), many());
        assert_eq!(transitions.len(), ALARMS_MAX);
        assert_eq!(transitions[0], Transition::Further(Cause::ForwardingOff));
        let raised = |alarms: &Alarms| alarms.raised(at(3)).len();
        assert_eq!(raised(&alarms), ALARMS_MAX + 1);
        let further = BTreeMap::from([(Cause::ForwardingOff, 9 * ALARMS_MAX as u64 + 1)]);
        assert_eq!(alarms.further(), further);
        assert_eq!(alarms.update(at(4), many()), []);
        let cleared = alarms.update(at(6), vec![silent()]);
        assert_eq!(cleared.len(), ALARMS_MAX);
        assert_eq!((raised(&alarms), alarms.further().len()), (1, 0));
    }

    #[test]
    fn every_cause_is_documented_by_its_name() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/egress.md");
        let page = std::fs::read_to_string(page).unwrap();
        for cause in Cause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.id());
            assert!(page.contains(&format!("| `{cause}` |")), "{cause}");
        }
    }
}
