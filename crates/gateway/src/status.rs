//! Since when and why peers, paths and applications are in their state, and the events that report
//! changes.
//!
//! Turns the core's events, which know numbers, into the control protocol's, which know names.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use keiro_control::{
    PublicKey,
    config::Class,
    event_text::{clock_behind, key_fault},
    protocol::{
        AggregationParameters, AssignedBy, DownReason, Event, EventKind, KeyFault, MoveReason,
        PathRef, Side, Timestamp, VersionRange,
    },
    rounded::duration,
};
use keiro_core::{
    self as core, DeliveryClass, DuplicateKey, Instant, PathDownReason, PathId, PeerId,
    wire::Versions,
};
use keiro_model::aggregation::Parameters;

use crate::{
    path_down_cause::PathDownCause,
    path_ids::PeerPath,
    running_config::{Renamed, RunningConfig},
    target_monitor,
};

fn class_of(class: DeliveryClass) -> Class {
    match class {
        DeliveryClass::Message => Class::Message,
        DeliveryClass::Datagram => Class::Datagram,
        DeliveryClass::Stream => Class::Stream,
    }
}

/// The state of peers, paths and applications.
#[derive(Default)]
pub(crate) struct StatusTable {
    peers: BTreeMap<String, PeerStatus>,
    paths: BTreeMap<PeerPath, PathStatus>,
    apps: BTreeMap<String, AppStatus>,
}

/// A version mismatch or a wrong key is the reason why a peer is down for this long after its report, which
/// comes once a minute as long as it lasts.
const CAUSE_VALID: Duration = Duration::from_secs(150);

/// Two gateways with one key are shown for this long after the other one was last seen: a refused one
/// tries again after a few seconds.
const DUPLICATE_VALID: Duration = Duration::from_secs(60);

/// What is added to why a peer is up or down while two gateways use its key; `None`: there is one.
pub(crate) fn duplicate_key(now: Instant, duplicate: Option<DuplicateKey>) -> Option<String> {
    let duplicate = duplicate?;
    let age = now.saturating_duration_since(duplicate.seen_at);
    let DuplicateKey { served, other, .. } = duplicate;
    (age < DUPLICATE_VALID)
        .then(|| format!("two gateways use its key: {served} is served, {other} is not"))
}

/// Unanswered handshakes are logged from then on. Ours: the other gateway may be starting as well.
const UNANSWERED_WARNED_AFTER: Duration = Duration::from_secs(5);

/// A peer's present state.
#[derive(Clone, Debug)]
pub(crate) struct PeerStatus {
    pub(crate) up: bool,
    pub(crate) since: Instant,
    pub(crate) why: String,
    /// The last report of a cause why handshakes fail, and when it was; `None`: it was up since.
    cause: Option<(Instant, String)>,
    /// Handshakes without an answer since the peer was last up, and all that had one.
    pub(crate) handshakes_started: u64,
    key_changes: u64,
    /// Unanswered handshakes at the last warning since it was up; `None`: there was none.
    warned_attempts: Option<u32>,
}

/// A path's present state.
#[derive(Clone, Debug)]
pub(crate) struct PathStatus {
    pub(crate) since: Instant,
    pub(crate) why: String,
    mtu_bytes: Option<u16>,
    moves: MoveReports,
    /// What its packets show; `None`: it is up, or it is too soon to say.
    path_down_cause: Option<PathDownCause>,
}

/// How often it was reported lately that the peer has moved to another address. A peer can do so all the
/// time.
#[derive(Clone, Copy, Debug, Default)]
struct MoveReports {
    since: Option<Instant>,
    count: u32,
}

/// The history of an application.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppStatus {
    pub(crate) last_move: Option<Event>,
    /// Moves by reason.
    pub(crate) switches: BTreeMap<&'static str, u64>,
    pub(crate) latency_target: target_monitor::TargetState,
    expired: u64,
}

/// An application leaves a path, takes one, or both.
pub(crate) struct AppMove<'a> {
    pub(crate) app: &'a str,
    pub(crate) from: Option<PathId>,
    pub(crate) to: Option<PathId>,
}

/// Predictions for an application on the path that it leaves and the one that it takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MoveNumbers {
    pub(crate) by: Option<AssignedBy>,
    pub(crate) from_predicted: Option<f64>,
    pub(crate) to_predicted: Option<f64>,
    pub(crate) latency_target: Option<f64>,
}

/// The consequences of an event.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    /// The event to publish.
    pub(crate) event: Option<EventKind>,
    /// The planner's inputs have changed.
    pub(crate) replan: bool,
}

impl PeerStatus {
    /// Whether to log that handshakes are not answered: when it has lasted a while, and then at
    /// doubling counts.
    fn warns_of_unanswered(&mut self, at: Instant, attempts: u32) -> bool {
        let lasts = at.saturating_duration_since(self.since) >= UNANSWERED_WARNED_AFTER;
        let is_due = self
            .warned_attempts
            .is_none_or(|warned| attempts < warned || attempts >= warned.saturating_mul(2));
        let warns = lasts && is_due;
        if warns {
            self.warned_attempts = Some(attempts);
        }
        warns
    }
}

impl StatusTable {
    pub(crate) fn peer(&self, name: &str) -> Option<&PeerStatus> {
        self.peers.get(name)
    }

    pub(crate) fn path(&self, path: PeerPath) -> Option<&PathStatus> {
        self.paths.get(&path)
    }

    pub(crate) fn app(&self, name: &str) -> Option<&AppStatus> {
        self.apps.get(name)
    }

    pub(crate) fn app_mut(&mut self, name: &str) -> &mut AppStatus {
        self.apps.entry(name.to_owned()).or_default()
    }

    /// Follows a new configuration: `paths` lead to `peers`.
    pub(crate) fn apply_config(
        &mut self,
        now: Instant,
        peers: &[String],
        paths: &[PeerPath],
        apps: &[String],
    ) {
        self.peers.retain(|name, _| peers.contains(name));
        self.paths.retain(|path, _| paths.contains(path));
        self.apps.retain(|name, _| apps.contains(name));
        for peer in peers {
            self.peers
                .entry(peer.clone())
                .or_insert_with(|| PeerStatus {
                    up: false,
                    since: now,
                    why: "no handshake yet".into(),
                    cause: None,
                    handshakes_started: 0,
                    key_changes: 0,
                    warned_attempts: None,
                });
        }
        for path in paths {
            self.paths.entry(*path).or_insert_with(|| PathStatus {
                since: now,
                why: "not answered yet".into(),
                mtu_bytes: None,
                moves: MoveReports::default(),
                path_down_cause: None,
            });
        }
    }

    /// Follows peers and applications that have another name.
    pub(crate) fn rename(&mut self, renamed: &Renamed) {
        let peers = std::mem::take(&mut self.peers).into_iter();
        self.peers = peers
            .map(|(name, of)| (renamed.peer(&name).to_owned(), of))
            .collect();
        let apps = std::mem::take(&mut self.apps).into_iter();
        self.apps = apps
            .map(|(name, of)| (renamed.app(&name).to_owned(), of))
            .collect();
    }

    /// Forgets a peer that was removed, so that it begins anew if it comes back. Its paths are
    /// forgotten by [`apply_config`](Self::apply_config).
    pub(crate) fn forget_peer(&mut self, name: &str) {
        self.peers.remove(name);
    }

    /// Handles an event of the core. `numbers` predicts for applications that move.
    pub(crate) fn on_event(
        &mut self,
        running_config: &RunningConfig,
        at: Instant,
        event: &core::Event,
        numbers: impl FnOnce(&AppMove<'_>) -> MoveNumbers,
    ) -> Effect {
        let kind = match event {
            core::Event::PathUp { .. }
            | core::Event::PathDown { .. }
            | core::Event::PathMoved { .. }
            | core::Event::PathAbandoned { .. }
            | core::Event::MtuChanged { .. } => self.on_path_event(running_config, at, event),
            core::Event::AggregationChanged { .. }
            | core::Event::AggregationPaused { .. }
            | core::Event::AggregationResumed { .. } => aggregation_event(running_config, event),
            core::Event::AppMoved {
                peer,
                app,
                from,
                to,
                reason,
            } => running_config.app_name(*peer, *app).map(|app| {
                let moved = AppMove {
                    app,
                    from: *from,
                    to: *to,
                };
                let numbers = numbers(&moved);
                self.on_app_moved(running_config, &moved, *reason, numbers)
            }),
            core::Event::PeerUp { .. }
            | core::Event::PeerDown { .. }
            | core::Event::HandshakeUnanswered { .. }
            | core::Event::WrongKey { .. }
            | core::Event::VersionMismatch { .. }
            | core::Event::ClockBehind { .. }
            | core::Event::DuplicateKey { .. }
            | core::Event::RefusedDuplicateKey { .. }
            | core::Event::AppMismatch { .. }
            | core::Event::KeyChanged { .. } => self.on_peer_event(running_config, at, event),
            // The data thread handles the first, the code for uplinks the second, that for tenants the others.
            core::Event::MessageDone { .. }
            | core::Event::PathsWanted { .. }
            | core::Event::TenantUnknown { .. }
            | core::Event::TenantRefused { .. }
            | core::Event::UnitContradicted { .. }
            | core::Event::PacketsRefused { .. } => None,
        };
        let replan = matches!(
            event,
            core::Event::PathUp { .. } | core::Event::PathDown { .. }
        );
        Effect {
            event: kind,
            replan,
        }
    }

    fn on_peer_event(
        &mut self,
        running_config: &RunningConfig,
        at: Instant,
        event: &core::Event,
    ) -> Option<EventKind> {
        let name = |peer: PeerId| running_config.peer_name(peer).map(str::to_owned);
        match event {
            core::Event::PeerUp { peer } => {
                Some(self.on_peer_up(running_config, at, *peer, name(*peer)?))
            }
            core::Event::PeerDown {
                peer,
                closed_by_peer,
            } => Some(self.on_peer_down(at, name(*peer)?, *closed_by_peer)),
            core::Event::HandshakeUnanswered {
                peer,
                attempts,
                remotes,
            } => self.on_unanswered(at, &name(*peer)?, *attempts, remotes),
            core::Event::WrongKey { peer, .. } => self.on_wrong_key(at, peer.and_then(name), event),
            core::Event::VersionMismatch {
                peer,
                remote,
                theirs,
                ours,
            } => {
                let peer = peer.and_then(name);
                Some(self.on_version_mismatch(at, peer, *remote, *theirs, *ours))
            }
            core::Event::ClockBehind {
                peer,
                remote,
                behind,
            } => Some(self.on_clock_behind(at, name(*peer)?, *remote, *behind)),
            core::Event::DuplicateKey {
                peer,
                served,
                other,
            } => Some(EventKind::DuplicateKey {
                peer: name(*peer)?,
                served: served.to_string(),
                other: other.to_string(),
            }),
            core::Event::RefusedDuplicateKey { peer } => {
                let peer = name(*peer)?;
                if let Some(status) = self.peers.get_mut(&peer) {
                    status.why = "the peer serves another gateway that has this one's key".into();
                }
                Some(EventKind::KeyRefused { peer })
            }
            core::Event::AppMismatch {
                peer,
                app,
                class,
                seen_by,
            } => Some(EventKind::AppMismatch {
                peer: name(*peer)?,
                app: running_config.configured_name(*app).map(str::to_owned),
                class: class_of(*class),
                seen_by: match seen_by {
                    core::MismatchSeenBy::Us => Side::Us,
                    core::MismatchSeenBy::Peer => Side::Peer,
                },
                configured_peer: running_config.configured_peer(*app).map(str::to_owned),
                configured_class: running_config.configured_class(*app).map(class_of),
            }),
            core::Event::KeyChanged { peer } => Some(self.on_key_changed(name(*peer)?)),
            _ => None,
        }
    }

    fn on_clock_behind(
        &mut self,
        at: Instant,
        peer: String,
        remote: SocketAddr,
        behind: Duration,
    ) -> EventKind {
        let (remote, behind_seconds) = (remote.to_string(), behind.as_secs_f64());
        let status = self.peers.get_mut(&peer);
        if let Some(status) = status.filter(|status| !status.up) {
            let why = clock_behind(&remote, behind_seconds);
            status.why = why.clone();
            status.cause = Some((at, why));
        }
        EventKind::ClockBehind {
            peer,
            remote,
            behind_seconds,
        }
    }

    fn on_key_changed(&mut self, peer: String) -> EventKind {
        let status = self.peers.get_mut(&peer);
        let key_changes = status.map_or(0, |status| {
            status.key_changes += 1;
            status.handshakes_started += 1;
            status.key_changes
        });
        EventKind::KeyChanged { peer, key_changes }
    }

    fn on_path_event(
        &mut self,
        running_config: &RunningConfig,
        at: Instant,
        event: &core::Event,
    ) -> Option<EventKind> {
        match event {
            core::Event::PathUp {
                peer,
                path,
                remote,
                rtt,
            } => {
                let on = path_ref(running_config, *peer, *path)?;
                let why = format!("{remote} answered after {}", duration(*rtt));
                self.on_path_change(at, PeerPath::new(*peer, *path), why);
                Some(EventKind::PathUp {
                    on,
                    remote: remote.to_string(),
                    rtt_seconds: rtt.as_secs_f64(),
                })
            }
            core::Event::PathDown { peer, path, reason } => {
                let on = path_ref(running_config, *peer, *path)?;
                Some(self.on_path_down(at, PeerPath::new(*peer, *path), on, *reason))
            }
            core::Event::PathMoved {
                peer,
                path,
                from,
                to,
            } => {
                let status = self.paths.get_mut(&PeerPath::new(*peer, *path));
                if !status.is_none_or(|status| status.moves.admit(at)) {
                    return None;
                }
                Some(EventKind::RemoteChanged {
                    on: path_ref(running_config, *peer, *path)?,
                    from: from.map_or_else(|| "unknown".into(), |from| from.to_string()),
                    to: to.to_string(),
                })
            }
            core::Event::PathAbandoned { peer, path } => {
                let on = path_ref(running_config, *peer, *path)?;
                tracing::info!(
                    path = on.path,
                    peer = on.peer,
                    "this address of the peer has never answered on this uplink, and another one does; it is \
                     tried rarely from now on"
                );
                if let Some(status) = self.paths.get_mut(&PeerPath::new(*peer, *path)) {
                    status.why = "it has never answered, and another address does".into();
                }
                None
            }
            core::Event::MtuChanged { peer, path, mtu } => {
                let on = path_ref(running_config, *peer, *path)?;
                self.on_mtu(PeerPath::new(*peer, *path), on, *mtu)
            }
            _ => None,
        }
    }

    /// Counts a message that outlived its lifetime, and returns the event.
    pub(crate) fn on_expired(&mut self, app: &str, age: Duration, length_bytes: u64) -> EventKind {
        let status = self.app_mut(app);
        status.expired += 1;
        EventKind::MessageExpired {
            app: app.to_owned(),
            age_seconds: age.as_secs_f64(),
            length_bytes,
            expired_messages: status.expired,
        }
    }

    fn on_peer_up(
        &mut self,
        running_config: &RunningConfig,
        at: Instant,
        id: PeerId,
        peer: String,
    ) -> EventKind {
        let mut paths = self.paths.iter();
        let path = paths.find(|(path, status)| path.peer == id && status.mtu_bytes.is_some());
        let path = path.and_then(|(path, _)| running_config.path_ids().name(path.path));
        if let Some(status) = self.peers.get_mut(&peer) {
            status.up = true;
            status.since = at;
            status.why = "session keys are agreed".into();
            status.cause = None;
            status.warned_attempts = None;
            status.handshakes_started += 1;
        }
        EventKind::PeerUp {
            peer,
            path: path.unwrap_or_default().to_owned(),
        }
    }

    fn on_peer_down(&mut self, at: Instant, peer: String, closed_by_peer: bool) -> EventKind {
        let (reason, why) = match closed_by_peer {
            true => (DownReason::PeerClosed, "the peer closed the session"),
            false => (DownReason::Silent, "no path to it is left"),
        };
        if let Some(status) = self.peers.get_mut(&peer) {
            status.up = false;
            status.since = at;
            status.why = why.into();
        }
        EventKind::PeerDown { peer, reason }
    }

    fn on_version_mismatch(
        &mut self,
        at: Instant,
        peer: Option<String>,
        remote: SocketAddr,
        theirs: Versions,
        ours: Versions,
    ) -> EventKind {
        let status = peer.as_ref().and_then(|peer| self.peers.get_mut(peer));
        // A session that is up proves that the versions agree, whatever an unauthenticated packet says.
        if let Some(status) = status.filter(|status| !status.up) {
            let why = format!("version_mismatch: peer speaks {theirs}, we speak {ours}");
            status.why = why.clone();
            status.cause = Some((at, why));
        }
        EventKind::VersionMismatch {
            peer,
            remote: remote.to_string(),
            peer_versions: version_range(theirs),
            our_versions: version_range(ours),
        }
    }

    fn on_wrong_key(
        &mut self,
        at: Instant,
        peer: Option<String>,
        event: &core::Event,
    ) -> Option<EventKind> {
        let core::Event::WrongKey {
            remote,
            at_peer_address,
            fault,
            ..
        } = event
        else {
            return None;
        };
        let remote = remote.to_string();
        let (fault, public_key) = fault_of(*fault);
        let status = peer.as_ref().and_then(|peer| self.peers.get_mut(peer));
        if let Some(status) = status.filter(|status| !status.up) {
            let why = key_fault(&remote, fault, public_key.as_deref());
            status.why = why.clone();
            status.cause = Some((at, why));
        }
        Some(EventKind::WrongKey {
            peer,
            remote,
            at_peer_address: *at_peer_address,
            fault,
            public_key,
        })
    }

    /// Notes what the packets on a path show; whether that is news.
    pub(crate) fn on_answer_fault(
        &mut self,
        path: PeerPath,
        path_down_cause: Option<PathDownCause>,
    ) -> bool {
        let Some(status) = self.paths.get_mut(&path) else {
            return false;
        };
        let before = std::mem::replace(&mut status.path_down_cause, path_down_cause);
        path_down_cause.is_some() && path_down_cause != before
    }

    /// An event if it has lasted for a while, and then at doubling counts.
    fn on_unanswered(
        &mut self,
        at: Instant,
        peer: &str,
        attempts: u32,
        remotes: &[SocketAddr],
    ) -> Option<EventKind> {
        let status = self.peers.get_mut(peer)?;
        status.handshakes_started += 1;
        let cause = status
            .cause
            .as_ref()
            .filter(|(reported_at, _)| at.saturating_duration_since(*reported_at) < CAUSE_VALID);
        status.why = match cause {
            Some((_, why)) => why.clone(),
            None => format!("{attempts} handshakes without an answer"),
        };
        let since = at.saturating_duration_since(status.since);
        // Several uplinks lead to one address.
        let remotes: BTreeSet<&SocketAddr> = remotes.iter().collect();
        status
            .warns_of_unanswered(at, attempts)
            .then(|| EventKind::HandshakeUnanswered {
                peer: peer.to_owned(),
                remotes: remotes.iter().map(ToString::to_string).collect(),
                sent_initiations: u64::from(attempts),
                unanswered_seconds: since.as_secs_f64(),
            })
    }

    fn on_path_change(&mut self, at: Instant, path: PeerPath, why: String) {
        if let Some(status) = self.paths.get_mut(&path) {
            status.since = at;
            status.why = why;
        }
    }

    fn on_path_down(
        &mut self,
        at: Instant,
        path: PeerPath,
        on: PathRef,
        reason: PathDownReason,
    ) -> EventKind {
        let (reason, silent, limit) = match reason {
            PathDownReason::Silent { silent, limit } => {
                (DownReason::Silent, Some(silent), Some(limit))
            }
            PathDownReason::ChallengeUnanswered => (DownReason::NotValidated, None, None),
            PathDownReason::TooSmall { .. } => (DownReason::TooSmall, None, None),
            PathDownReason::Removed => (DownReason::Removed, None, None),
            PathDownReason::KeysExpired => (DownReason::KeysExpired, None, None),
            PathDownReason::NoLocalAddress => (DownReason::LocalError, None, None),
        };
        let why = match (silent, limit) {
            (Some(silent), Some(limit)) => {
                format!(
                    "no packet was received for {} (limit {})",
                    duration(silent),
                    duration(limit)
                )
            }
            _ if reason == DownReason::NotValidated => "path validation failed".into(),
            _ if reason == DownReason::TooSmall => {
                "short packets pass and long ones do not (its MTU)".into()
            }
            _ if reason == DownReason::KeysExpired => {
                "the keys have expired, and no handshake gets through".into()
            }
            _ if reason == DownReason::LocalError => "it has no local address".into(),
            _ => "it was removed from the configuration".into(),
        };
        self.on_path_change(at, path, why);
        EventKind::PathDown {
            on,
            reason,
            silent_seconds: silent.map(|silent| silent.as_secs_f64()),
            limit_seconds: limit.map(|limit| limit.as_secs_f64()),
        }
    }

    /// `None`: a path that came up again has the MTU that it had before.
    fn on_mtu(&mut self, path: PeerPath, on: PathRef, mtu: u16) -> Option<EventKind> {
        let status = self.paths.get_mut(&path);
        let before = status.and_then(|status| status.mtu_bytes.replace(mtu));
        (before != Some(mtu)).then(|| EventKind::MtuChanged {
            on,
            // Before the first probe: what every path of IPv6 carries.
            from_bytes: before.map_or(keiro_control::config::MTU_MIN, u64::from),
            to_bytes: u64::from(mtu),
        })
    }

    fn on_app_moved(
        &mut self,
        running_config: &RunningConfig,
        moved: &AppMove<'_>,
        reason: core::MoveReason,
        numbers: MoveNumbers,
    ) -> EventKind {
        let status = self.app_mut(moved.app);
        let reason = match reason {
            _ if moved.from.is_none() && status.last_move.is_none() => MoveReason::First,
            core::MoveReason::PathDown => MoveReason::PathDown,
            core::MoveReason::PathUp => MoveReason::PathUp,
            core::MoveReason::Assigned => match numbers.by {
                Some(AssignedBy::Pin) => MoveReason::Pin,
                Some(AssignedBy::Operator) => MoveReason::Operator,
                _ => MoveReason::Plan,
            },
        };
        *status.switches.entry(reason_name(reason)).or_default() += 1;
        let name = |path: PathId| running_config.path_ids().name(path).map(str::to_owned);
        let kind = EventKind::AppMoved {
            app: moved.app.to_owned(),
            from: moved.from.and_then(name),
            to: moved.to.and_then(name),
            reason,
            from_predicted_seconds: numbers.from_predicted,
            to_predicted_seconds: numbers.to_predicted,
            latency_target_seconds: numbers.latency_target,
        };
        status.last_move = Some(event_now(kind.clone()));
        kind
    }
}

/// The names of a path to a peer, for an event; `None`: it is not configured any more.
fn path_ref(running_config: &RunningConfig, peer: PeerId, path: PathId) -> Option<PathRef> {
    Some(PathRef {
        path: running_config.path_ids().name(path)?.to_owned(),
        peer: running_config.peer_name(peer)?.to_owned(),
    })
}

fn aggregation_event(running_config: &RunningConfig, event: &core::Event) -> Option<EventKind> {
    match event {
        core::Event::AggregationChanged {
            peer,
            path,
            decision,
        } => Some(EventKind::AggregationChanged {
            on: path_ref(running_config, *peer, *path)?,
            before: aggregation_parameters(decision.before),
            after: aggregation_parameters(decision.parameters),
            why: decision.cause.to_string(),
        }),
        core::Event::AggregationPaused {
            peer,
            path,
            too_narrow,
        } => Some(EventKind::AggregationPaused {
            on: path_ref(running_config, *peer, *path)?,
            bandwidth_bits_per_second: too_narrow.bandwidth.as_bits_per_second(),
            needed_bits_per_second: too_narrow.needed().as_bits_per_second(),
            why: too_narrow.to_string(),
        }),
        core::Event::AggregationResumed {
            peer,
            path,
            bandwidth,
            parameters,
        } => Some(EventKind::AggregationResumed {
            on: path_ref(running_config, *peer, *path)?,
            bandwidth_bits_per_second: bandwidth.as_bits_per_second(),
            after: aggregation_parameters(*parameters),
        }),
        _ => None,
    }
}

pub(crate) fn aggregation_parameters(parameters: Parameters) -> AggregationParameters {
    AggregationParameters {
        size_bytes: parameters.size().get(),
        interval_seconds: parameters.interval().as_secs_f64(),
        copies: u64::from(parameters.copies()),
    }
}

fn version_range(versions: Versions) -> VersionRange {
    VersionRange {
        oldest: versions.oldest(),
        newest: versions.newest(),
    }
}

/// An event of this moment.
pub(crate) fn event_now(kind: EventKind) -> Event {
    Event {
        time: Timestamp(SystemTime::now()),
        kind,
    }
}

/// As in the protocol and the metrics.
fn reason_name(reason: MoveReason) -> &'static str {
    match reason {
        MoveReason::First => "first",
        MoveReason::PathDown => "path_down",
        MoveReason::PathUp => "path_up",
        MoveReason::Plan => "plan",
        MoveReason::Pin => "pin",
        MoveReason::Operator => "operator",
        MoveReason::Unknown => "unknown",
    }
}

/// Moves of a path that are reported in [`MOVES_WINDOW`]. Ours: a network address translator that forgets
/// a path at once causes one in some seconds.
const MOVES_REPORTED_MAX: u32 = 5;
const MOVES_WINDOW: Duration = Duration::from_secs(10);

impl MoveReports {
    /// Whether another move is to be reported.
    fn admit(&mut self, at: Instant) -> bool {
        let since = self.since.get_or_insert(at);
        if at.saturating_duration_since(*since) >= MOVES_WINDOW {
            *since = at;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.count <= MOVES_REPORTED_MAX
    }
}

/// A fault of a key in the control protocol's types, with the key that was used.
fn fault_of(fault: core::KeyFault) -> (KeyFault, Option<String>) {
    match fault {
        core::KeyFault::NotOurs => (KeyFault::NotOurs, None),
        core::KeyFault::NotOfPeer(key) => {
            let key = PublicKey::from_bytes(*key.as_bytes());
            (KeyFault::NotOfPeer, Some(key.to_string()))
        }
        core::KeyFault::Preshared => (KeyFault::Preshared, None),
    }
}
