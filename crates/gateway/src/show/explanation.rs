//! Why an application is where it is.

use std::{collections::BTreeMap, time::Duration};

use keiro_control::{
    config::{AppIndex, Class, PathIndex, Peer},
    protocol::{AssignedBy, Explanation, PathState, Response},
};
use keiro_core as core;
use keiro_planning::PlanningProblem;
use keiro_units::Probability;

use super::View;
use crate::{explain::Subject, path_ids::PeerPath};

impl View<'_> {
    pub(crate) fn explanation(&self, index: AppIndex) -> Response {
        let gateway = self.gateway;
        let config = &gateway.config;
        let app = &config[index];
        let planned = &gateway.planning.config;
        let problem = PlanningProblem::new(planned, &self.input);
        let input_alone = self.input.alone();
        let alone = PlanningProblem::new(planned, &input_alone);
        let candidates = problem.candidates(index, self.gateway.planning.steering.forecast_state());
        let shown = self.app(index, app);
        let measured = shown.delay.filter(|delay| delay.count > 0);
        let gathered = |on: &str| {
            let path = (0..config.paths.len())
                .map(PathIndex)
                .find(|path| config[*path].name.as_str() == on)?;
            let live = self.path(path, &config[app.peer])?.aggregation;
            live.filter(|_| app.class != Class::Message && gateway.may_be_aggregated(index))
        };
        let (place, path) = (self.last_place(index), self.path_in_use(index));
        let subject = Subject {
            config,
            app,
            index,
            path,
            last: match path {
                Some(_) => None,
                None => self.last_path(app.name.as_str(), place),
            },
            by: shown.assigned_by,
            candidates: &candidates,
            measured,
            workload: self.input.workloads.get(&index).copied(),
            loss: self.loss(index),
            move_triggers: &alone
                .thresholds(index, self.gateway.planning.steering.forecast_state()),
            in_site: self.input.site.contains_key(&index),
            assigned: match self.input.operator.get(&index) {
                Some(path) => Some((*path, AssignedBy::Operator)),
                None => app.path.map(|path| (path, AssignedBy::Pin)),
            },
            spent: self.spent(app.peer),
            assumed: self.assumed(&config[app.peer]),
            no_path: shown.no_path.as_deref(),
            hold_downs: self.hold_downs(&config[app.peer]),
            shared: &self.input.shared,
            store_lost: self.store_lost(),
            aggregation: shown.path.as_deref().and_then(gathered),
        };
        let state = |path: PathIndex| {
            let shown = self.path(path, &config[app.peer]);
            shown.map_or(PathState::Down, |shown| shown.state)
        };
        let status = self.gateway.status.app(app.name.as_str());
        Response::Explanation(Box::new(Explanation {
            app: app.name.to_string(),
            text: subject.text() + &self.gateway.tenants_of(index, shown.path.as_deref()),
            path: shown.path.clone(),
            assigned_by: shown.assigned_by,
            latency_target_seconds: shown
                .stats
                .latency_target
                .map(|target| target.as_secs_f64()),
            model: self.model(&self.apps()).0,
            candidates: subject.views(state),
            would_move: subject.would_move(),
            aggregation: subject.aggregation,
            delay: shown.delay,
            last_move: status.and_then(|status| status.last_move.clone()),
        }))
    }

    /// The paths to a peer that are on hold-down.
    fn hold_downs(&self, peer: &Peer) -> BTreeMap<PathIndex, Duration> {
        let peer = peer.name.as_str();
        let paths = self
            .session(peer)
            .map(|session| (session.peer, &session.paths));
        let paths = paths
            .into_iter()
            .flat_map(|(id, paths)| paths.iter().map(move |path| (id, path)));
        let known = |(id, live): (core::PeerId, &core::PathSnapshot)| {
            let path = PeerPath::new(id, live.id);
            let left = self.gateway.planning.steering.hold_down_left(path, live)?;
            Some((self.gateway.running_config.path_ids().index(live.id)?, left))
        };
        paths.filter_map(known).collect()
    }

    /// What is lost on the application's path, where anything is.
    fn loss(&self, index: AppIndex) -> Option<Probability> {
        let path = self.input.now.get(&index)?;
        let to_peer = (*path, self.gateway.config[index].peer);
        let sample = self.input.up.get(&to_peer)?.as_ref()?;
        Some(sample.loss).filter(|loss| loss.get() > 0.0)
    }
}
