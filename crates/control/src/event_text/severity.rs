//! How much attention an event needs.

use super::fell_below_base;
use crate::protocol::EventKind;

/// How much attention an event needs: the gateway's log, `keiro top` and the pages of `keiro web` agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something does not work, or does not as configured.
    Warning,
    /// Something works, or works again.
    Recovery,
    /// A change that is neither.
    Info,
    /// What happens all the time.
    Debug,
}

/// The severity of an event; of one that this release does not know, [`Severity::Info`].
pub fn severity(kind: &EventKind) -> Severity {
    match kind {
        EventKind::PeerDown { .. }
        | EventKind::VersionMismatch { .. }
        | EventKind::ClockBehind { .. }
        | EventKind::DuplicateKey { .. }
        | EventKind::KeyRefused { .. }
        | EventKind::WrongKey { .. }
        | EventKind::HandshakeUnanswered { .. }
        | EventKind::PathUnanswered { .. }
        | EventKind::AppMismatch { .. }
        | EventKind::PathDown { .. }
        | EventKind::LocalChanged {
            problem: Some(_), ..
        }
        | EventKind::TargetMissed { .. }
        | EventKind::MessageExpired { .. }
        | EventKind::ConfigRejected { .. }
        | EventKind::PrefixMismatch { .. }
        | EventKind::PrefixWithheld { .. }
        | EventKind::DeviceLost { .. }
        | EventKind::DeviceDown { .. }
        | EventKind::TenantUnknown { .. }
        | EventKind::TenantRefused { .. }
        | EventKind::UnitContradicted { .. }
        | EventKind::StoreLost { .. }
        | EventKind::StoreNotice { .. }
        | EventKind::BudgetWarning { .. }
        | EventKind::BudgetSpent { .. }
        | EventKind::JoinRefused { .. }
        | EventKind::EventsLost { .. } => Severity::Warning,
        EventKind::MtuChanged {
            from_bytes,
            to_bytes,
            ..
        } if fell_below_base(*from_bytes, *to_bytes) => Severity::Warning,
        EventKind::PathUp { .. }
        | EventKind::PeerUp { .. }
        | EventKind::TargetMet { .. }
        | EventKind::DeviceUp { .. }
        | EventKind::DeviceRestored { .. }
        | EventKind::PrefixRouted { .. }
        | EventKind::StoreConnected { .. }
        | EventKind::BudgetRenewed { .. }
        | EventKind::Started { .. }
        | EventKind::SiteJoined { .. } => Severity::Recovery,
        EventKind::KeyChanged { .. } | EventKind::MtuChanged { .. } => Severity::Debug,
        EventKind::Draining { .. }
        | EventKind::Reloaded { .. }
        | EventKind::PeerRenamed { .. }
        | EventKind::AppMoved { .. }
        | EventKind::AggregationChanged { .. }
        | EventKind::AggregationPaused { .. }
        | EventKind::AggregationResumed { .. }
        | EventKind::RemoteChanged { .. }
        | EventKind::LocalChanged { .. }
        | EventKind::Unknown => Severity::Info,
    }
}
