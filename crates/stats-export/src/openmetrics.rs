//! Declared counters and gauges as families of a metrics page.

use std::sync::atomic::AtomicU64;

use keiro_stats::{Kind, StatSet};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Label names with values.
pub type Labels = Vec<(&'static str, String)>;
/// A gauge for each set of labels.
pub type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;
/// A counter for each set of labels.
pub type Counters = Family<Labels, Counter>;

/// Registers every figure of a set, with a value for each of `objects` that has one.
pub fn register_stats<'a, S: StatSet + 'a>(
    registry: &mut Registry,
    objects: impl IntoIterator<Item = (Labels, &'a S)>,
) {
    let objects: Vec<_> = objects.into_iter().collect();
    for (index, stat) in S::STATS.iter().enumerate() {
        let values = objects
            .iter()
            .filter_map(|(labels, stats)| Some((labels, stats.value(index)?)));
        match stat.kind {
            Kind::Counter => {
                let family = Counters::default();
                for (labels, value) in values {
                    family.get_or_create(labels).inc_by(value.as_u64());
                }
                registry.register(stat.registered_metric(), stat.help, family);
            }
            Kind::Gauge => {
                let family = Gauges::default();
                for (labels, value) in values {
                    family.get_or_create(labels).set(value.as_f64());
                }
                registry.register(stat.registered_metric(), stat.help, family);
            }
        }
    }
}
