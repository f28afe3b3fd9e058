//! Every metric that Keiro declares.

use std::{collections::BTreeMap, sync::LazyLock};

use keiro_control::metrics;
use keiro_egress::stats::{
    ComparisonStats, EgressPeerStats, EgressStats, NeighbourStats, SteeringStats,
};
use keiro_flowstats::SegmentStats;
use keiro_stats::{
    AggregationStats, AppStats, CapacityStats, HandshakeStats, MessageClientStats, PathSocketStats,
    PathStats, PeerStats, StatSet, TcpForwardStats, TcpListenerStats, TenantPathStats,
    TenantPeerStats, TenantStats, UdpForwardStats, UdpListenerStats, Unit,
};

/// A metric as Prometheus has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub scale: Scale,
    pub labels: &'static [&'static str],
    /// One sentence without full stop.
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// Always 1; the information is in its labels.
    Info,
}

/// What the numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Bytes,
    Seconds,
    BitsPerSecond,
    /// From 0 to 1.
    Ratio,
    /// 0 or 1.
    Flag,
    /// Seconds since 1970.
    Time,
    Number,
}

/// The metric of this name; `None`: none is declared.
pub fn find(name: &str) -> Option<&'static Metric> {
    static BY_NAME: LazyLock<BTreeMap<&'static str, Metric>> = LazyLock::new(|| {
        let metrics = all().into_iter();
        metrics.map(|metric| (metric.name, metric)).collect()
    });
    BY_NAME.get(name)
}

/// All of them, in the order of their declarations.
pub fn all() -> Vec<Metric> {
    let mut all: Vec<Metric> = metrics::ALL.iter().map(of_gateway).collect();
    all.extend(set::<PathStats>());
    all.extend(set::<CapacityStats>());
    all.extend(set::<PathSocketStats>());
    all.extend(set::<HandshakeStats>());
    all.extend(set::<AggregationStats>());
    all.extend(set::<PeerStats>());
    all.extend(set::<AppStats>());
    all.extend(set::<UdpListenerStats>());
    all.extend(set::<UdpForwardStats>());
    all.extend(set::<TcpListenerStats>());
    all.extend(set::<TcpForwardStats>());
    all.extend(set::<TenantStats>());
    all.extend(set::<TenantPeerStats>());
    all.extend(set::<TenantPathStats>());
    all.extend(set::<MessageClientStats>());
    all.extend(set::<EgressStats>());
    all.extend(set::<NeighbourStats>());
    all.extend(set::<EgressPeerStats>());
    all.extend(set::<ComparisonStats>());
    all.extend(set::<SteeringStats>());
    all.extend(set::<SegmentStats>());
    all
}

/// The figures of a set.
pub fn set<S: StatSet>() -> Vec<Metric> {
    let metric = |stat: &keiro_stats::Stat| Metric {
        name: stat.metric,
        kind: match stat.kind {
            keiro_stats::Kind::Counter => Kind::Counter,
            keiro_stats::Kind::Gauge => Kind::Gauge,
        },
        scale: match stat.unit {
            Unit::Bytes => Scale::Bytes,
            Unit::Seconds => Scale::Seconds,
            Unit::BitsPerSecond => Scale::BitsPerSecond,
            Unit::Ratio => Scale::Ratio,
            Unit::Flag => Scale::Flag,
            Unit::Number | Unit::Count(_) => Scale::Number,
        },
        labels: S::LABELS,
        help: stat.help,
    };
    S::STATS.iter().map(metric).collect()
}

fn of_gateway(metric: &metrics::Metric) -> Metric {
    let name = metric.name;
    Metric {
        name,
        kind: match metric.kind {
            metrics::Kind::Counter => Kind::Counter,
            metrics::Kind::Gauge => Kind::Gauge,
            metrics::Kind::Histogram => Kind::Histogram,
            metrics::Kind::Info => Kind::Info,
        },
        // Their names end in their units.
        scale: match name.trim_end_matches("_total") {
            name if name.ends_with("_timestamp_seconds") => Scale::Time,
            name if name.ends_with("_seconds") => Scale::Seconds,
            name if name.ends_with("_bytes") => Scale::Bytes,
            name if name.ends_with("_up") || name.ends_with("_valid") => Scale::Flag,
            _ => Scale::Number,
        },
        labels: metric.labels,
        help: metric.help,
    }
}
