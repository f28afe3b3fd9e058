//! The state of tenants' devices, and the events that report its changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use keiro_control::protocol::{DeviceState, EventKind};
use keiro_linux::tun;

/// Of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceHealth {
    Up,
    /// It exists but was set down or renamed.
    Down {
        state: DeviceState,
        why: String,
    },
    Lost {
        why: String,
    },
}

/// Reported problems by tenant: a tenant's device may be another one after a reload.
#[derive(Debug, Default)]
pub(super) struct DeviceEvents {
    problems: BTreeMap<String, Problem>,
}

#[derive(Debug)]
struct Problem {
    state: DeviceHealth,
    since: Instant,
}

/// The reason for a device that the data thread has not lost.
pub(super) const ABSENT: &str = "the TUN device was moved to another network namespace";

impl DeviceHealth {
    /// As the kernel has it; `name` is the configuration's.
    pub(super) fn of(found: tun::DeviceState, name: &str) -> Self {
        let (state, why) = match found {
            tun::DeviceState::Up => return Self::Up,
            tun::DeviceState::Down => (
                DeviceState::Down,
                format!("it was set down (`ip link set {name} up`)"),
            ),
            tun::DeviceState::Renamed { name: now } => (
                DeviceState::Renamed,
                format!(
                    "it was renamed to `{now}`, and rules by its name do not find it (`ip link set {now} down`, \
                     `ip link set {now} name {name}`)"
                ),
            ),
            tun::DeviceState::Absent => {
                return Self::Lost {
                    why: ABSENT.to_owned(),
                };
            }
        };
        Self::Down { state, why }
    }

    pub(crate) fn state(&self) -> DeviceState {
        match self {
            Self::Up => DeviceState::Up,
            Self::Down { state, .. } => *state,
            Self::Lost { .. } => DeviceState::Missing,
        }
    }

    /// Why it is not up.
    pub(crate) fn why(&self) -> Option<&str> {
        match self {
            Self::Up => None,
            Self::Down { why, .. } | Self::Lost { why } => Some(why),
        }
    }
}

impl DeviceEvents {
    /// Events for a tenant whose device is in state `now`.
    pub(super) fn update(
        &mut self,
        tenant: &str,
        device: &str,
        now: &DeviceHealth,
    ) -> Vec<EventKind> {
        let before = self.problems.remove(tenant);
        let is_events = before.as_ref().is_some_and(|b| is_same(&b.state, now));
        let since = match (&before, is_events) {
            (Some(before), true) => before.since,
            _ => Instant::now(),
        };
        if *now != DeviceHealth::Up {
            let trouble = Problem {
                state: now.clone(),
                since,
            };
            self.problems.insert(tenant.to_owned(), trouble);
        }
        match is_events {
            true => Vec::new(),
            false => events_between(tenant, device, before, now),
        }
    }

    /// Forgets tenants that are not configured.
    pub(super) fn retain(&mut self, tenants: &BTreeSet<&str>) {
        self.problems
            .retain(|name, _| tenants.contains(name.as_str()));
    }
}

/// The reason why a lost device cannot be opened may change; that is only logged.
fn is_same(before: &DeviceHealth, now: &DeviceHealth) -> bool {
    match (before, now) {
        (DeviceHealth::Lost { .. }, DeviceHealth::Lost { .. }) => true,
        (before, now) => before == now,
    }
}

fn events_between(
    tenant: &str,
    device: &str,
    before: Option<Problem>,
    now: &DeviceHealth,
) -> Vec<EventKind> {
    let (tenant, device) = (tenant.to_owned(), device.to_owned());
    let mut events = Vec::new();
    if let Some(Problem { state, since }) = before {
        let seconds = since.elapsed().as_secs_f64();
        match state {
            DeviceHealth::Lost { .. } => events.push(EventKind::DeviceRestored {
                tenant: tenant.clone(),
                device: device.clone(),
                lost_seconds: seconds,
            }),
            DeviceHealth::Down { .. } if *now == DeviceHealth::Up => {
                events.push(EventKind::DeviceUp {
                    tenant: tenant.clone(),
                    device: device.clone(),
                    down_seconds: seconds,
                });
            }
            DeviceHealth::Down { .. } | DeviceHealth::Up => {}
        }
    }
    match now {
        DeviceHealth::Up => {}
        DeviceHealth::Down { why, .. } => events.push(EventKind::DeviceDown {
            tenant,
            device,
            reason: why.clone(),
        }),
        DeviceHealth::Lost { why } => events.push(EventKind::DeviceLost {
            tenant,
            device,
            reason: why.clone(),
        }),
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down(state: DeviceState) -> DeviceHealth {
        let why = "because".to_owned();
        DeviceHealth::Down { state, why }
    }

    fn lost(why: &str) -> DeviceHealth {
        let why = why.to_owned();
        DeviceHealth::Lost { why }
    }

    #[test]
    fn device_problems_begin_and_end_with_one_event_each() {
        let mut events = DeviceEvents::default();
        let mut names = |device: &str, now: &DeviceHealth| -> Vec<&'static str> {
            let events_between = events.update("blue", device, now);
            events_between.iter().map(EventKind::name).collect()
        };
        assert_eq!(names("t0", &DeviceHealth::Up), [""; 0]);
        assert_eq!(names("t0", &down(DeviceState::Down)), ["device_down"]);
        assert_eq!(names("t0", &down(DeviceState::Down)), [""; 0]);
        assert_eq!(names("t0", &down(DeviceState::Renamed)), ["device_down"]);
        assert_eq!(names("t0", &DeviceHealth::Up), ["device_up"]);
        assert_eq!(names("t0", &lost("removed")), ["device_lost"]);
        assert_eq!(names("t0", &lost("the name is taken")), [""; 0]);
        // The configuration names another one.
        assert_eq!(names("t1", &DeviceHealth::Up), ["device_restored"]);
        assert_eq!(names("t1", &down(DeviceState::Renamed)), ["device_down"]);
        assert_eq!(names("t1", &lost("removed")), ["device_lost"]);
        let both = ["device_restored", "device_down"];
        assert_eq!(names("t1", &down(DeviceState::Down)), both);
    }

    #[test]
    fn a_tenant_removed_and_added_again_has_no_reported_problems() {
        let mut events = DeviceEvents::default();
        events.update("blue", "t0", &lost("removed"));
        events.retain(&BTreeSet::from(["red"]));
        assert_eq!(events.update("blue", "t0", &DeviceHealth::Up), []);
    }
}
