//! What of a gateway's configuration planning needs.

use std::{ops::Index, time::Duration};

use keiro_control::config::{
    App, AppIndex, Config, CostPerGb, Name, PATH_RATE_MAX, Path, PathIndex, PathOrigin, PathRole,
    PathTerms, PeerIndex, Planner, Scheduler,
};
use keiro_model::path_rate::RATE_ASSUMED;
use keiro_planner::delay::Tolerance;
use keiro_units::{Bandwidth, Probability};

use crate::loss_need::LossNeeds;

/// The part of a configuration that plans depend on. Positions are those of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannerConfig {
    pub planner: Planner,
    pub scheduler: Scheduler,
    /// How far a delay may exceed the latency target and still meet it, relative to the target.
    pub tolerance: Probability,
    pub peers: Vec<Name>,
    pub paths: Vec<PlannedPath>,
    pub apps: Vec<App>,
    /// How much loss the applications tolerate.
    pub loss_needs: LossNeeds,
}

/// An uplink, as far as it is configured.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedPath {
    pub name: Name,
    pub origin: PathOrigin,
    /// What may be sent on it; `None`: what it carries.
    pub rate: Option<Bandwidth>,
    /// One-way propagation delay; `None`: measured.
    pub delay: Option<Duration>,
    pub role: PathRole,
    pub cost: CostPerGb,
}

impl PlannerConfig {
    pub fn of(config: &Config) -> Self {
        Self {
            planner: config.gateway.planner,
            scheduler: config.gateway.scheduler,
            tolerance: config.gateway.tolerance,
            peers: config.peers.iter().map(|peer| peer.name.clone()).collect(),
            paths: config.paths.iter().map(PlannedPath::of).collect(),
            apps: config.apps.clone(),
            loss_needs: LossNeeds::of(config),
        }
    }

    pub fn app_named(&self, name: &str) -> Option<AppIndex> {
        let found = self.apps.iter().position(|app| app.name.as_str() == name);
        found.map(AppIndex)
    }

    pub fn path_named(&self, name: &str) -> Option<PathIndex> {
        let found = self
            .paths
            .iter()
            .position(|path| path.name.as_str() == name);
        found.map(PathIndex)
    }

    /// A path with the further ones over the same uplink.
    pub(crate) fn with_further(&self, path: PathIndex) -> Vec<PathIndex> {
        let is_over =
            |index: &PathIndex| *index == path || self[*index].origin == PathOrigin::Further(path);
        let all = (0..self.paths.len()).map(PathIndex);
        all.filter(is_over).collect()
    }

    pub(crate) fn tolerance(&self) -> Tolerance {
        Tolerance::from_ratio(self.tolerance.get()).unwrap_or(Tolerance::STRICT)
    }
}

impl PlannedPath {
    fn of(path: &Path) -> Self {
        Self {
            name: path.name.clone(),
            origin: path.origin,
            rate: path.rate,
            delay: path.delay,
            role: path.role,
            cost: path.cost,
        }
    }

    /// As [`Path::rate_bound`].
    pub fn rate_bound(&self) -> Bandwidth {
        self.rate.unwrap_or(PATH_RATE_MAX)
    }

    /// As [`Path::rate_assumed`].
    pub fn rate_assumed(&self) -> Bandwidth {
        self.rate.unwrap_or(RATE_ASSUMED)
    }

    /// As [`Path::terms`].
    pub fn terms(&self) -> PathTerms {
        PathTerms {
            role: self.role,
            cost: self.cost,
            is_spent: false,
        }
    }
}

impl Index<PathIndex> for PlannerConfig {
    type Output = PlannedPath;

    fn index(&self, index: PathIndex) -> &PlannedPath {
        &self.paths[index.0]
    }
}

impl Index<PeerIndex> for PlannerConfig {
    type Output = Name;

    fn index(&self, index: PeerIndex) -> &Name {
        &self.peers[index.0]
    }
}

impl Index<AppIndex> for PlannerConfig {
    type Output = App;

    fn index(&self, index: AppIndex) -> &App {
        &self.apps[index.0]
    }
}
