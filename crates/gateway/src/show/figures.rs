//! Figures of the core and the data thread in the control protocol's types.

use super::*;

pub(super) fn path_state(state: core::PathState) -> PathState {
    match state {
        core::PathState::Up => PathState::Up,
        core::PathState::Down => PathState::Down,
        core::PathState::Validating => PathState::Validating,
    }
}

pub(super) fn summary(delay: &DelayQuantiles) -> DelaySummary {
    DelaySummary {
        count: delay.count,
        mean_seconds: delay.mean_seconds,
        min_seconds: delay.min_seconds,
        p50_seconds: delay.p50_seconds,
        p90_seconds: delay.p90_seconds,
        p95_seconds: delay.p95_seconds,
        p99_seconds: delay.p99_seconds,
        p999_seconds: delay.p999_seconds,
        max_seconds: delay.max_seconds,
    }
}

/// The core's counters of an application with those of the data thread.
pub(super) fn with_local_figures(counted: AppStats, figures: &AppFigures) -> AppStats {
    AppStats {
        refused_messages: counted.refused_messages + figures.refused_here,
        received_messages: counted.received_messages + figures.received_packets,
        received_bytes: counted.received_bytes + figures.received_packet_bytes,
        senders: figures.senders,
        receivers: figures.receivers,
        ..counted
    }
}

pub(super) fn listeners(figures: &AppFigures) -> Vec<ListenerSnapshot> {
    let listener = |listener: &crate::data::figures::ListenerFigures| ListenerSnapshot {
        udp: listener.address.to_string(),
        stats: Stats(listener.stats),
    };
    figures.listeners.iter().map(listener).collect()
}

pub(super) fn forward(figures: &AppFigures) -> Option<ForwardSnapshot> {
    figures.forward.as_ref().map(|forward| ForwardSnapshot {
        udp: forward.to.to_string(),
        stats: Stats(forward.stats),
    })
}

pub(super) fn tcp_listeners(figures: &AppFigures) -> Vec<TcpListenerSnapshot> {
    let listener = |listener: &TcpListenerFigures| TcpListenerSnapshot {
        tcp: listener.address.to_string(),
        transparent: listener.mode == Mode::Transparent,
        stats: Stats(listener.stats),
    };
    figures.tcp_listeners.iter().map(listener).collect()
}

pub(super) fn tcp_forward(figures: &AppFigures) -> Option<TcpForwardSnapshot> {
    figures
        .tcp_forward
        .as_ref()
        .map(|forward| TcpForwardSnapshot {
            tcp: forward.destination.to_string(),
            stats: Stats(forward.stats),
        })
}

pub(super) fn aggregation(
    live: &core::AggregationSnapshot,
    now: core::Instant,
) -> AggregationSnapshot {
    let mode = match live.mode {
        core::AggregationMode::Eager => "eager",
        core::AggregationMode::Fixed => "fixed",
        core::AggregationMode::Off => "off",
    };
    let change = |(at, decision): (core::Instant, Decision)| AggregationChange {
        age_seconds: now.saturating_duration_since(at).as_secs_f64(),
        before: aggregation_parameters(decision.before),
        after: aggregation_parameters(decision.parameters),
        why: decision.cause.to_string(),
    };
    let spread = match live.spread {
        core::CopySpread::BackToBack => "back-to-back".to_owned(),
        core::CopySpread::Paths => "paths".to_owned(),
        core::CopySpread::Spaced(gap) => Text(gap).to_string(),
    };
    let decisions = live.decisions.iter();
    let narrow = live.too_narrow.as_ref().map(ToString::to_string);
    let cause = match (live.controller, live.cause) {
        // It decides nothing but what the bandwidth leaves.
        (ControllerKind::None, None | Some(Cause::Steady)) => Some(NO_CONTROLLER.to_owned()),
        (_, cause) => cause.map(|cause| cause.to_string()),
    };
    AggregationSnapshot {
        mode: mode.to_owned(),
        controller: live.controller.name().to_owned(),
        spread,
        stats: Stats(live.stats),
        fec: match live.redundancy {
            core::Redundancy::Copies => None,
            core::Redundancy::Parity(parity) => Some(FecSnapshot {
                group_aggregates: u64::from(parity.group()),
                parity_packets: u64::from(parity.packets())
                    * u64::from(live.parameters.copies().saturating_sub(1)),
            }),
        },
        last_change: live.last_change.map(change),
        decisions: decisions
            .map(|(cause, count)| ((*cause).to_owned(), *count))
            .collect(),
        why: narrow.or(cause),
        bandwidth_source: live.bandwidth.map(|estimate| estimate.source.to_string()),
    }
}
