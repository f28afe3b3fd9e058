//! How much loss applications tolerate, and in which unit it is counted.

use std::collections::BTreeSet;

use keiro_control::config::{AggregationMode, App, AppIndex, Class, Config, Tenant};
use keiro_planner::steer::LossUnit;
use keiro_units::Probability;

use crate::input::ExcessLoss;

/// The loss tolerances of one configuration's applications.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossNeeds {
    /// One for each of the configuration's applications; `None`: its losses are repaired, which costs time only,
    /// and the configuration sets no tolerance.
    needs: Vec<Option<LossNeed>>,
    /// Their tolerances, each once.
    tolerances: Vec<Probability>,
}

/// The need of an application whose losses are not repaired.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossNeed {
    /// The ratio that may be lost.
    pub tolerance: Probability,
    pub of: LossUnit,
}

/// Tolerance of traffic that is not repaired, in per cent. Ours: voice conceals as much, and beyond it TCP that
/// enters as IP packets gets a small part of the path's rate.
const TOLERANCE_PER_CENT: u64 = 1;

impl LossNeeds {
    pub fn of(config: &Config) -> Self {
        let tenants = config.tenants.iter();
        let with_packets: BTreeSet<AppIndex> = tenants.flat_map(apps_of_packets).collect();
        let listeners = config.listeners.iter().map(|listener| listener.app);
        let others: BTreeSet<AppIndex> = listeners
            .chain(config.forwards.iter().map(|forward| forward.app))
            .collect();
        let need = |(number, app): (usize, &App)| {
            let index = AppIndex(number);
            let has_packets = with_packets.contains(&index);
            let is_repaired = app.class != Class::Datagram && !has_packets;
            let default =
                || Probability::from_ratio(TOLERANCE_PER_CENT, 100).filter(|_| !is_repaired);
            let tolerance = app.loss.or_else(default)?;
            let has_copies = app.class == Class::Datagram
                && config.aggregation.mode != AggregationMode::Off
                && (!has_packets || others.contains(&index));
            let of = match has_copies {
                true => LossUnit::Aggregates,
                false => LossUnit::Packets,
            };
            Some(LossNeed { tolerance, of })
        };
        Self::new(config.apps.iter().enumerate().map(need).collect())
    }

    /// One need for each application.
    pub(crate) fn new(needs: Vec<Option<LossNeed>>) -> Self {
        let tolerances = needs.iter().flatten().map(|need| need.tolerance);
        let mut tolerances: Vec<Probability> = tolerances.collect();
        tolerances.sort_by(|a, b| a.get().total_cmp(&b.get()));
        tolerances.dedup();
        Self { needs, tolerances }
    }

    /// Adds an application whose need is that of another one.
    pub(crate) fn add_like(&mut self, app: AppIndex) {
        self.needs.push(self.get(app));
    }

    /// `None`: the application has no tolerance.
    pub fn get(&self, app: AppIndex) -> Option<LossNeed> {
        self.needs.get(app.0).copied().flatten()
    }

    /// The tolerances of all applications, each once.
    pub fn tolerances(&self) -> &[Probability] {
        &self.tolerances
    }
}

impl LossNeed {
    /// The application's loss on a path with packet loss `loss`, if it exceeds the tolerance. Aggregates count as sent
    /// twice.
    pub fn excess(&self, loss: Probability) -> Option<ExcessLoss> {
        let tolerance = self.tolerance;
        let loss = match self.of {
            LossUnit::Packets => loss,
            LossUnit::Aggregates => Probability::new(loss.get().powi(2))?,
        };
        (loss > tolerance).then_some(ExcessLoss { loss, tolerance })
    }
}

/// The applications that carry a tenant's IP packets.
pub fn apps_of_packets(tenant: &Tenant) -> impl Iterator<Item = AppIndex> {
    let whole = tenant.peers.iter().map(|peer| peer.app);
    let classes = tenant.class_apps.values().flatten().map(|of| of.app);
    whole
        .chain(tenant.rules.iter().map(|rule| rule.app))
        .chain(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerance_comes_from_the_class_unless_it_is_configured() {
        let app = |name: &str, class: &str, more: &str| {
            format!("[[app]]\nname = \"{name}\"\nclass = \"{class}\"\npeer = \"osaka\"\n{more}")
        };
        let apps = [
            app("voice", "datagram", ""),
            app("video", "datagram", "loss = \"0.1%\"\n"),
            app("any", "datagram", "loss = \"100%\"\n"),
            app("orders", "message", ""),
            app("web", "stream", ""),
            app("strict", "message", "loss = \"2%\"\n"),
        ];
        let config = crate::testing::with_apps(&apps.concat());
        let needs = LossNeeds::of(&config);
        let tolerances =
            (0..apps.len()).map(|app| needs.get(AppIndex(app)).map(|need| need.tolerance.get()));
        let tolerances: Vec<Option<f64>> = tolerances.collect();
        let expected = [Some(0.01), Some(0.001), Some(1.0), None, None, Some(0.02)];
        assert_eq!(tolerances, expected);
        assert_eq!(needs.get(AppIndex(0)).unwrap().of, LossUnit::Aggregates);
        assert_eq!(needs.get(AppIndex(5)).unwrap().of, LossUnit::Packets);
        assert_eq!(needs.tolerances().len(), 4);
    }
}
