//! Looks for what is wrong at short intervals, and reports when it begins and ends.

use std::{collections::BTreeMap, time::Duration};

use keiro_bgp::{rib::NeighbourId, session::State};
use keiro_units::Instant;

use super::{Daemon, Role, now};
use crate::{
    alarms::{Alarm, AlarmStatus, Alarms, Cause, Transition},
    census::Census,
    forwarding::ForwardingError,
    status::DaemonEvent,
};

/// What a daemon knows about faults.
#[derive(Debug)]
pub(crate) struct Health {
    pub(super) census: Census,
    alarms: Alarms,
    refusals: Refusals,
    check_at: Instant,
    /// When the census goes on, so that it takes a small part of the time however often the loop runs.
    census_at: Instant,
}

/// Refused changes of forwarding by the kernel's reason, so that a thousand changes that are refused and
/// tried again for one reason are one alarm.
#[derive(Debug, Default)]
struct Refusals(BTreeMap<String, Refusal>);

#[derive(Debug)]
struct Refusal {
    /// The first refused change.
    what: String,
    changes: u64,
    last: Instant,
}

impl Health {
    pub(super) fn new() -> Self {
        Self {
            census: Census::default(),
            alarms: Alarms::default(),
            refusals: Refusals::default(),
            check_at: now() + CHECK_INTERVAL,
            census_at: Instant::ZERO,
        }
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        match self.census.is_due() {
            // The count goes on between other work.
            true => self.check_at.min(self.census_at),
            false => self.check_at,
        }
    }

    pub(super) fn raised(&self) -> Vec<AlarmStatus> {
        self.alarms.raised(now())
    }

    /// By cause, how many more alarms there are.
    pub(super) fn further(&self) -> BTreeMap<Cause, u64> {
        self.alarms.further()
    }

    /// Records failed changes; returns a line for each reason that is new.
    pub(super) fn note_refusals(&mut self, errors: &[ForwardingError]) -> Vec<String> {
        self.refusals.note(now(), errors)
    }
}

impl Refusals {
    fn note(&mut self, now: Instant, errors: &[ForwardingError]) -> Vec<String> {
        let mut new: BTreeMap<&str, (&str, u64)> = BTreeMap::new();
        for error in errors {
            if let Some(known) = self.0.get_mut(&error.reason) {
                known.changes += 1;
                known.last = now;
            } else if new.contains_key(error.reason.as_str())
                || self.0.len() + new.len() < REASONS_MAX
            {
                new.entry(&error.reason).or_insert((&error.what, 0)).1 += 1;
            }
        }
        let mut lines = Vec::new();
        for (reason, (what, changes)) in new {
            let more = match changes {
                1 => String::new(),
                _ => format!(" and {} more", changes - 1),
            };
            lines.push(format!("{what}{more}: {reason}"));
            let refusal = Refusal {
                what: what.to_owned(),
                changes,
                last: now,
            };
            self.0.insert(reason.to_owned(), refusal);
        }
        lines
    }

    /// Forgets reasons that are over. A refused change is tried again within half a minute.
    fn forget(&mut self, now: Instant, in_step: bool) {
        let kept = match in_step {
            true => CHECK_INTERVAL,
            false => REASON_TIME,
        };
        self.0.retain(|_, refusal| now - refusal.last < kept);
    }

    fn alarms(&self) -> impl Iterator<Item = Alarm> + '_ {
        self.0.iter().map(|(reason, refusal)| Alarm {
            cause: Cause::NotForwarded,
            subject: reason.clone(),
            text: format!(
                "changes are refused and tried again, the first: {}; {} refusals so far",
                refusal.what, refusal.changes
            ),
        })
    }
}

impl<R: Role> Daemon<R> {
    /// Does what is due.
    pub(super) fn tend_health(&mut self) {
        let now = now();
        if self.health.census.is_due() && self.health.census_at <= now {
            self.health.census.step(&self.speaker);
            self.health.census_at = now
                + match self.health.census.is_under_way() {
                    true => CENSUS_PAUSE,
                    false => CENSUS_INTERVAL,
                };
        }
        let groups = self.health.census.groups();
        let forwarding = &mut *self.forwarding;
        let errors = self.role.tend(now, &self.speaker, groups, forwarding);
        self.report_errors(&errors);
        if self.health.check_at > now {
            return;
        }
        self.health.check_at = now + CHECK_INTERVAL;
        let in_step = self.forwarding.in_step();
        self.health.refusals.forget(now, in_step);
        let mut found: Vec<Alarm> = self.session_alarms(now);
        found.extend(self.health.refusals.alarms());
        let groups = self.health.census.groups();
        let forwarding = &mut *self.forwarding;
        found.extend(self.role.alarms(now, &self.speaker, groups, forwarding));
        if !self.health.census.is_complete() {
            // Routes with the target may be among those that are not counted.
            let alarms = &self.health.alarms;
            found.retain(|alarm| alarm.cause != Cause::TargetAbsent || alarms.has(alarm));
        }
        for transition in self.health.alarms.update(now, found) {
            self.report_transition(transition);
        }
    }

    fn report_transition(&mut self, transition: Transition) {
        match transition {
            Transition::Raised(Alarm {
                cause,
                subject,
                text,
            }) => {
                tracing::warn!(%cause, subject, "{text}");
                self.notify_monitors(&DaemonEvent::AlarmRaised {
                    cause,
                    subject,
                    text,
                });
            }
            Transition::Further(cause) => tracing::warn!(
                %cause,
                "there are more alarms of this cause, which are counted only"
            ),
            Transition::Cleared {
                cause,
                subject,
                lasted,
            } => {
                let lasted_seconds = lasted.as_secs();
                tracing::info!(%cause, subject, lasted_seconds, "alarm cleared");
                self.notify_monitors(&DaemonEvent::AlarmCleared {
                    cause,
                    subject,
                    lasted_seconds,
                });
            }
        }
    }

    /// Sessions that are down, and routes that are kept although they may be gone.
    fn session_alarms(&self, now: Instant) -> Vec<Alarm> {
        let mut all = Vec::new();
        for (place, config) in self.neighbours.iter().enumerate() {
            let Some(config) = config else { continue };
            let status = self.speaker.status(NeighbourId(place as u16));
            let (name, address) = (&config.name, config.address);
            let down = status.state != State::Established;
            if down {
                let why = status.last_error.as_deref();
                let why =
                    why.unwrap_or("no connection so far; is it reachable, and does it listen?");
                all.push(Alarm {
                    cause: Cause::SessionDown,
                    subject: name.clone(),
                    text: format!("the session with {address} is down: {why}"),
                });
            }
            if let (Some(until), 1..) = (status.stale_until, status.stale) {
                let left = until.saturating_duration_since(now).as_secs();
                let why = match down {
                    true => "its session is down",
                    false => "it has not announced them again",
                };
                all.push(Alarm {
                    cause: Cause::StaleRoutes,
                    subject: name.clone(),
                    text: format!(
                        "{} of its routes are used although {why}; they are removed in {left} s at the latest",
                        status.stale
                    ),
                });
            }
        }
        all
    }
}

/// Between checks. Ours.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Between steps of the census: it takes about a twentieth of the time. Ours.
const CENSUS_PAUSE: Duration = Duration::from_millis(20);
/// Between counts while routes change. Ours.
const CENSUS_INTERVAL: Duration = Duration::from_secs(1);
/// Distinct reasons of refusals that are kept. Ours.
const REASONS_MAX: usize = 32;
/// How long a reason is present after its last refusal: longer than the longest pause between attempts.
/// Ours.
const REASON_TIME: Duration = Duration::from_secs(45);

#[cfg(test)]
mod tests {
    use super::*;

    fn error(what: &str, reason: &str) -> ForwardingError {
        ForwardingError {
            what: what.to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn many_refusals_for_one_reason_are_one_alarm_until_they_end() {
        let mut refusals = Refusals::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let both = [error("route 1", "no memory"), error("route 2", "no memory")];
        assert_eq!(
            refusals.note(at(0), &both),
            ["route 1 and 1 more: no memory"]
        );
        assert_eq!(refusals.note(at(30), &both), Vec::<String>::new());
        assert_eq!(refusals.alarms().count(), 1);
        let text = refusals.alarms().next().unwrap().text;
        assert!(text.contains("the first: route 1; 4 refusals"), "{text}");
        refusals.forget(at(60), false);
        assert_eq!(refusals.alarms().count(), 1, "the next attempt may be due");
        refusals.forget(at(60), true);
        assert_eq!(refusals.alarms().count(), 0);
    }

    #[test]
    fn reasons_are_bounded() {
        let mut refusals = Refusals::default();
        let many: Vec<_> = (0..1000).map(|n| error("route", &n.to_string())).collect();
        refusals.note(Instant::ZERO, &many);
        assert_eq!(refusals.alarms().count(), REASONS_MAX);
    }
}
