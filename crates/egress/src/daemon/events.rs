//! Events of the speaker as lines of the log and as events of the control socket.

use keiro_bgp::{
    address::Family,
    rib::NeighbourId,
    speaker::{Event, NotAdvertised},
};

use super::{Daemon, Role};
use crate::{config::Neighbour, status::DaemonEvent};

/// Warns of what a neighbour's configuration leaves to defaults that an operator should not rely on.
pub(super) fn warn_of_defaults(neighbour: &Neighbour) {
    let peer = &neighbour.name;
    if neighbour.import.rules.is_empty() {
        tracing::warn!(peer, "nothing is taken from it: it has no `import`");
    }
    if let (true, Some(most)) = (neighbour.routes_max_is_default, neighbour.routes_max) {
        tracing::warn!(
            peer,
            "it has no `routes_max`, so that its session ends only beyond {most} routes of a family; write about \
             twice what it announces"
        );
    }
}

impl<R: Role> Daemon<R> {
    pub(super) fn log(&self, event: &Event) {
        let name = |id: &NeighbourId| self.name(*id);
        match event {
            Event::Up(id) => tracing::info!(peer = name(id), "session up"),
            Event::Down(id, down) => {
                let kept = if down.graceful {
                    ", routes stay for now"
                } else {
                    ""
                };
                tracing::warn!(peer = name(id), "session down: {}{kept}", down.reason);
            }
            Event::EndOfRib(id, family) => {
                let routes = self.routes(*id, *family);
                tracing::info!(peer = name(id), %family, routes, "all announced");
            }
            Event::MalformedUpdate(id, text) => {
                tracing::warn!(
                    peer = name(id),
                    "bad UPDATE, its routes are withdrawn: {text}"
                );
            }
            Event::NotAdvertised(id, what) => {
                tracing::error!(peer = name(id), "{}", not_advertised_text(what));
            }
            Event::NearMaxPrefix(id, family) => {
                let routes = self.routes(*id, *family);
                tracing::warn!(peer = name(id), %family, routes, "more than 80 % of `routes_max`");
            }
            Event::MaxPrefixExceeded(id, family) => {
                tracing::error!(peer = name(id), %family, "more routes than `routes_max`");
            }
        }
    }

    /// A neighbour does not say when it has announced all routes.
    pub(super) fn report_overdue(&mut self, id: NeighbourId, family: Family) {
        let neighbour = self.name(id).to_owned();
        let reason = format!(
            "no End-of-RIB of {family} in time: routes of an earlier run that it has not announced \
             again are removed; enable graceful restart there"
        );
        tracing::warn!(peer = neighbour, "{reason}");
        self.notify_monitors(&DaemonEvent::Complaint { neighbour, reason });
    }

    pub(super) fn daemon_event(&self, event: &Event) -> DaemonEvent {
        let name = |id: &NeighbourId| self.name(*id).to_owned();
        match event {
            Event::Up(id) => DaemonEvent::SessionUp {
                neighbour: name(id),
            },
            Event::Down(id, down) => DaemonEvent::SessionDown {
                neighbour: name(id),
                reason: down.reason.to_string(),
                routes_kept: down.graceful,
            },
            Event::EndOfRib(id, family) => DaemonEvent::AllAnnounced {
                neighbour: name(id),
                family: family.to_string(),
                routes: self.routes(*id, *family),
            },
            Event::MalformedUpdate(id, text) => DaemonEvent::Complaint {
                neighbour: name(id),
                reason: text.to_string(),
            },
            Event::NotAdvertised(id, what) => DaemonEvent::Complaint {
                neighbour: name(id),
                reason: not_advertised_text(what),
            },
            Event::NearMaxPrefix(id, family) => DaemonEvent::Complaint {
                neighbour: name(id),
                reason: format!("more than 80 % of `routes_max` routes of {family}"),
            },
            Event::MaxPrefixExceeded(id, family) => DaemonEvent::Complaint {
                neighbour: name(id),
                reason: format!("more routes of {family} than `routes_max`"),
            },
        }
    }
}

fn not_advertised_text(what: &NotAdvertised) -> String {
    let NotAdvertised {
        destination,
        routes,
        reason,
    } = what;
    match routes {
        1 => format!("{destination} is not advertised to it: {reason}"),
        _ => {
            let more = routes - 1;
            format!("{destination} and {more} more are not advertised to it: {reason}")
        }
    }
}
