//! Declared counters and gauges as families of a metrics page.

use std::{fmt::Debug, sync::atomic::AtomicU64};

use keiro_stats::{Kind, Stat, StatSet};
use prometheus_client::{
    encoding::EncodeMetric,
    metrics::{TypedMetric, counter::Counter, family::Family, gauge::Gauge},
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
                register(registry, stat, family, S::LABELS.is_empty());
            }
            Kind::Gauge => {
                let family = Gauges::default();
                for (labels, value) in values {
                    family.get_or_create(labels).set(value.as_f64());
                }
                register(registry, stat, family, S::LABELS.is_empty());
            }
        }
    }
}

/// A figure without labels is registered alone: as a family it would be written with `{}`.
fn register<M>(registry: &mut Registry, stat: &Stat, family: Family<Labels, M>, is_alone: bool)
where
    M: Clone + EncodeMetric + TypedMetric + Debug + Send + Sync + 'static,
    Family<Labels, M>: EncodeMetric,
{
    let (name, help) = (stat.registered_metric(), stat.help);
    let alone = family.get(&Labels::new()).map(|metric| metric.clone());
    match alone.filter(|_| is_alone) {
        Some(metric) => registry.register(name, help, metric),
        None => registry.register(name, help, family),
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    keiro_stats::stats! {
        /// A set without labels.
        pub struct AloneStats: "alone" [] {
            counter refused: count, "Refused";
            gauge routes: [count], "Routes";
        }

        /// A set with a label.
        pub struct NamedStats: "named" ["name"] {
            counter refused: count, "Refused";
        }
    }

    #[test]
    fn figures_have_their_labels() {
        let mut registry = Registry::default();
        let alone = AloneStats {
            refused: 3,
            routes: Some(2),
        };
        register_stats(&mut registry, [(Vec::new(), &alone)]);
        let named = NamedStats { refused: 4 };
        register_stats(&mut registry, [(vec![("name", "a".to_owned())], &named)]);
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        for line in [
            "keiro_alone_refused_total 3",
            "keiro_alone_routes 2.0",
            "keiro_named_refused_total{name=\"a\"} 4",
        ] {
            assert!(page.lines().any(|there| there == line), "{line}: {page}");
        }
    }
}
