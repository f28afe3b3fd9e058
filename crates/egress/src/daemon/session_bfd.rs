//! The daemon's side of [`crate::bfd`]: which sessions there are, and what follows when one fails.

use std::{collections::BTreeMap, time::Duration};

use keiro_bfd::{Change, Diagnostic, Failure, PORT};
use keiro_bgp::{rib::NeighbourId, speaker::Input};
use keiro_linux::bfd_socket::Target;
use keiro_units::Instant;

use super::{Daemon, Role, now};
use crate::{
    bfd::{Changes, SessionSnapshot, Wanted},
    config::Neighbour,
    status::{BfdStatus, DaemonEvent},
};

impl<R: Role> Daemon<R> {
    /// Begins and ends BFD sessions with the neighbours that are configured now. What fails is tried
    /// again by [`retry_bfd`](Self::retry_bfd).
    ///
    /// # Errors
    /// As [`Bfd::follow`](crate::bfd::Bfd::follow).
    pub(crate) fn configure_bfd(&mut self) -> Result<(), String> {
        let all = self.neighbours.iter().enumerate();
        let wanted = all.filter_map(|(place, neighbour)| {
            let id = NeighbourId(place as u16);
            let wanted = wanted(neighbour.as_ref()?, self.role.interface_of(id))?;
            Some((id, wanted))
        });
        let wanted: BTreeMap<NeighbourId, Wanted> = wanted.collect();
        let result = self.bfd.follow(wanted);
        self.bfd_retry_at = result.is_err().then(|| now() + RETRY_EVERY);
        result
    }

    /// Tries again what [`configure_bfd`](Self::configure_bfd) could not do, if that is due.
    pub(super) fn retry_bfd(&mut self) {
        if self.bfd_retry_at.is_some_and(|due| due <= now()) && self.configure_bfd().is_ok() {
            tracing::info!("BFD is as configured");
        }
    }

    /// Ends sessions whose neighbour is not reached, and tries those again whose is.
    pub(super) fn follow_bfd(&mut self) {
        for (id, Changes { failed, last }) in self.bfd.take_changes() {
            if let Some(failure) = failed {
                self.on_bfd_failure(id, &failure);
            }
            let neighbour = self.name(id).to_owned();
            match last {
                Some(Change::Up) => {
                    tracing::info!(peer = neighbour, "BFD is up");
                    self.inputs.push_back(Input::BfdUp(id));
                    self.notify_monitors(&DaemonEvent::BfdUp { neighbour });
                }
                Some(Change::DisabledByNeighbour) => {
                    let reason = "the neighbour has disabled BFD".to_owned();
                    match self.speaker.is_up(id) {
                        true => tracing::warn!(
                            peer = neighbour,
                            "{reason}; the session stays, and its hold time notices failures"
                        ),
                        false => tracing::info!(peer = neighbour, "{reason}"),
                    }
                    self.notify_monitors(&DaemonEvent::BfdDown { neighbour, reason });
                }
                Some(Change::Down(_)) | None => {}
            }
        }
    }

    fn on_bfd_failure(&mut self, id: NeighbourId, failure: &Failure) {
        let neighbour = self.name(id).to_owned();
        let reason = reason(failure);
        tracing::warn!(peer = neighbour, "BFD is down: {reason}");
        self.notify_monitors(&DaemonEvent::BfdDown { neighbour, reason });
        let neighbour = self.neighbours[usize::from(id.0)].as_ref();
        let session = BgpSession {
            up_since: self.speaker.status(id).up_since,
            restarts_gracefully: neighbour.is_some_and(|it| it.graceful_restart.is_some()),
        };
        if !session.may_have_restarted(failure) {
            self.inputs.push_back(Input::BfdDown(id));
        }
    }
}

/// What a failure of BFD is judged by.
struct BgpSession {
    up_since: Option<Instant>,
    restarts_gracefully: bool,
}

impl BgpSession {
    /// Whether the neighbour's control plane may only have restarted, which ends its BFD too, unless it
    /// says that it does not (RFC 5882 §4.3): there is no BGP session, or the session after a graceful
    /// restart is a later sign of the path than the last BFD packet.
    fn may_have_restarted(&self, failure: &Failure) -> bool {
        !failure.control_plane_independent
            && self
                .up_since
                .is_none_or(|since| self.restarts_gracefully && since > failure.confirmed_at)
    }
}

/// How often what failed is tried again, as a port that another program has. Ours.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// The session that a neighbour should have; `None`: none.
fn wanted(neighbour: &Neighbour, interface: Option<&str>) -> Option<Wanted> {
    Some(Wanted {
        config: neighbour.bfd?,
        target: Target {
            address: neighbour.address,
            port: PORT,
            local: neighbour.local,
            interface: interface.map(str::to_owned),
        },
    })
}

fn reason(failure: &Failure) -> String {
    match failure.diagnostic {
        Diagnostic::NeighbourSignalledDown => "the neighbour receives no packets".to_owned(),
        _ => {
            let millis = failure.detection_time.as_micros() as f64 / 1e3;
            format!("no packet came for {millis} ms")
        }
    }
}

pub(super) fn status(of: &SessionSnapshot, now: Instant) -> BfdStatus {
    let status = &of.status;
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    BfdStatus {
        state: status.state.name().to_owned(),
        remote_state: status.remote_state.name().to_owned(),
        diagnostic: status.diagnostic.name().to_owned(),
        remote_diagnostic: status.remote_diagnostic.name().to_owned(),
        send_interval_us: status.send_interval.map(micros),
        detection_time_us: status.detection_time.map(micros),
        last_change_seconds: (now - status.since).as_secs(),
        send_error: of.send_error.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_without_a_later_bgp_session_or_of_forwarding_alone_is_no_restart() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let confirmed = 1000;
        for (up_since, graceful, independent, expected) in [
            (None, false, false, true),
            (None, true, true, false),
            (Some(confirmed - 1), true, false, false),
            (Some(confirmed + 1), true, false, true),
            (Some(confirmed + 1), true, true, false),
            (Some(confirmed + 1), false, false, false),
        ] {
            let session = BgpSession {
                up_since: up_since.map(at),
                restarts_gracefully: graceful,
            };
            let failure = Failure {
                diagnostic: Diagnostic::DetectionTimeExpired,
                detection_time: Duration::from_millis(150),
                control_plane_independent: independent,
                confirmed_at: at(confirmed),
            };
            let case = (up_since, graceful, independent);
            assert_eq!(session.may_have_restarted(&failure), expected, "{case:?}");
        }
    }
}
