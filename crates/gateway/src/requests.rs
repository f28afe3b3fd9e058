//! Handlers of the control socket's requests.

use std::time::Instant as Stopwatch;

use keiro_control::{
    config::{AppIndex, Membership, PathIndex, Planner},
    protocol::{ErrorCode, ErrorResponse, PlanSnapshot, Request, Response, WhatIf},
};
use keiro_planning::{PlanMode, Situation, paths_in_use, planner_input_snapshot};

use crate::{
    error_response::{internal, not_found},
    gateway::Gateway,
    reload::Reloaded,
    running_config::app_id,
    site_plan::SiteRole,
};

type Answer = Result<Response, ErrorResponse>;

impl Gateway {
    pub(crate) fn answer(&mut self, request: &Request) -> Response {
        let answer = match request {
            Request::Version {} => Ok(Response::Version(self.version())),
            Request::Status {} => {
                self.with_view(|view| Ok(Response::Status(Box::new(view.status()))))
            }
            Request::ShowPath { name } => self.show_paths(name.as_deref()),
            Request::ShowApp { name } => self.show_apps(name.as_deref()),
            Request::ShowPeer { name } => self.show_peers(name.as_deref()),
            Request::ShowTenant { name } => self.show_tenants(name.as_deref()),
            Request::ShowNetwork {} => self.network().map(Response::Network),
            Request::ShowMessageClient { name } => self.show_message_clients(name.as_deref()),
            Request::History {
                kind,
                name,
                past_seconds,
            } => self.history_of(*kind, name, *past_seconds),
            Request::Monitor {} => Ok(Response::Monitoring {}),
            Request::Qlog { peer, from } => self.qlog_of(peer, *from),
            Request::Plan { anew, what_if } => self.plan_now(plan_mode(*anew), what_if),
            Request::PlannerInput {} => self.planner_input_snapshot(),
            Request::Apply { anew } => self.apply_plan(plan_mode(*anew)),
            Request::Explain { app } => self
                .app_index(app)
                .and_then(|app| self.with_view(|view| Ok(view.explanation(app)))),
            Request::Reload {} => self.reload().map(
                |Reloaded {
                     changes,
                     needs_restart,
                     problems,
                     warnings,
                 }| Response::Reloaded {
                    changes,
                    needs_restart,
                    problems,
                    warnings,
                },
            ),
            Request::FollowRegistry {} => self.follow_registry_now(),
            Request::Assign { app, path } => self.assign(app, path.as_deref()),
        };
        answer.unwrap_or_else(Response::Error)
    }

    /// Applies the registry of a hub.
    fn follow_registry_now(&mut self) -> Answer {
        let is_hub = matches!(self.sites.of_file().network, Some(Membership::Hub(_)));
        let (why, hint) = match (is_hub, self.draining) {
            (false, _) => (
                "this gateway is no hub, so it has no registry".to_owned(),
                "`keiro reload` reads its configuration",
            ),
            (true, true) => (
                "the gateway is stopping".to_owned(),
                "it reads the registry when it starts",
            ),
            (true, false) => {
                self.follow_registry();
                match self.sites.rejected() {
                    None => return Ok(Response::Done {}),
                    Some(why) => (
                        why.to_owned(),
                        "correct the registry; `keiro config check` checks it too",
                    ),
                }
            }
        };
        Err(ErrorResponse::new(ErrorCode::ConfigRejected, why, hint))
    }

    fn show_paths(&self, name: Option<&str>) -> Answer {
        let wanted = name.map(|name| self.path_index(name)).transpose()?;
        self.with_view(|view| {
            let mut paths = view.paths();
            if let Some(path) = wanted {
                paths.retain(|shown| shown.name == self.config[path].name.as_str());
            }
            Ok(Response::Paths { paths })
        })
    }

    fn show_apps(&self, name: Option<&str>) -> Answer {
        let wanted = name.map(|name| self.app_index(name)).transpose()?;
        self.with_view(|view| {
            let mut apps = view.apps();
            if let Some(app) = wanted {
                apps.retain(|shown| shown.name == self.config[app].name.as_str());
            }
            Ok(Response::Apps { apps })
        })
    }

    fn show_peers(&self, name: Option<&str>) -> Answer {
        if let Some(name) = name
            && self.config.peer_named(name).is_none()
        {
            return Err(not_found("peer", name));
        }
        self.with_view(|view| {
            let mut peers = view.peers();
            peers.retain(|peer| name.is_none_or(|name| peer.name == name));
            Ok(Response::Peers { peers })
        })
    }

    fn show_tenants(&self, name: Option<&str>) -> Answer {
        if let Some(name) = name
            && self.config.tenant_named(name).is_none()
        {
            return Err(not_found("tenant", name));
        }
        let tenants = self.tenants(name).map_err(internal)?;
        Ok(Response::Tenants { tenants })
    }

    fn show_message_clients(&self, name: Option<&str>) -> Answer {
        if let Some(name) = name
            && self.config.message_client_named(name).is_none()
        {
            return Err(not_found("client", name));
        }
        let mut answer = self.message_clients();
        answer
            .clients
            .retain(|client| name.is_none_or(|name| client.name == name));
        Ok(Response::MessageClients(answer))
    }

    fn plan_now(&self, plan_mode: PlanMode, what_if: &[WhatIf]) -> Answer {
        self.refuse_without_planner()?;
        self.with_view(|view| {
            // For hypothetical changes the other gateways' plans are unknown, so this gateway plans
            // alone.
            let alone = plan_mode == PlanMode::FromScratch || !what_if.is_empty();
            let alone = alone && self.site.role() != SiteRole::Alone;
            let site = self.site.in_plan();
            let input = match alone {
                true => view.input.alone(),
                false => view.input.clone(),
            };
            if what_if.is_empty() {
                let plan = match alone {
                    true => self.plan_alone(&input, plan_mode),
                    false => self.plan_in_site(&input, plan_mode),
                };
                let plan = view.plan(&plan, None);
                return Ok(Response::Plan(PlanSnapshot {
                    alone,
                    site,
                    ..plan
                }));
            }
            let config = &self.planning.config;
            let situation = Situation {
                config,
                input: &input,
                forecast_state: self.planning.steering.forecast_state(),
                plan_mode,
                now: &paths_in_use(config, &view.input),
            };
            let begun = Stopwatch::now();
            let plan = situation.plan_after(what_if)?;
            Ok(Response::Plan(PlanSnapshot {
                planning_seconds: begun.elapsed().as_secs_f64(),
                alone,
                site,
                ..plan
            }))
        })
    }

    fn planner_input_snapshot(&self) -> Answer {
        self.refuse_without_planner()?;
        self.with_view(|view| {
            let alone = self.site.role() != SiteRole::Alone;
            Ok(Response::PlannerInput(Box::new(planner_input_snapshot(
                &self.planning.config,
                &view.input,
                self.planning.steering.forecast_state(),
                alone,
            ))))
        })
    }

    fn apply_plan(&mut self, plan_mode: PlanMode) -> Answer {
        self.refuse_without_planner()?;
        let before = self.data.snapshot().map_err(internal)?;
        let before = self.planner_input(&before);
        self.replan_as(Some(plan_mode)).map_err(internal)?;
        self.with_view(|view| {
            Ok(Response::Plan(PlanSnapshot {
                site: self.site.in_plan(),
                alone: plan_mode == PlanMode::FromScratch && self.site.role() == SiteRole::CutOff,
                ..view.plan(&self.planning.plan, Some(&before))
            }))
        })
    }

    fn assign(&mut self, app: &str, path: Option<&str>) -> Answer {
        let app = app_id(&self.config[self.app_index(app)?]);
        match path {
            Some(path) => {
                let index = self.path_index(path)?;
                if let Some(path) = self.running_config.path_ids().id(index) {
                    self.planning.operator_paths.insert(app, path);
                }
            }
            None => {
                self.planning.operator_paths.remove(&app);
            }
        }
        self.replan().map_err(internal)?;
        Ok(Response::Done {})
    }

    fn refuse_without_planner(&self) -> Result<(), ErrorResponse> {
        match self.config.gateway.planner {
            Planner::Off => Err(ErrorResponse::new(
                ErrorCode::Unavailable,
                "the planner is off",
                "write planner = \"frugal\" in [gateway] and reload",
            )),
            Planner::Frugal | Planner::Exact => Ok(()),
        }
    }

    fn app_index(&self, name: &str) -> Result<AppIndex, ErrorResponse> {
        self.config
            .app_named(name)
            .ok_or_else(|| self.no_application(name))
    }

    fn path_index(&self, name: &str) -> Result<PathIndex, ErrorResponse> {
        self.config
            .path_named(name)
            .ok_or_else(|| not_found("path", name))
    }
}

fn plan_mode(anew: bool) -> PlanMode {
    match anew {
        true => PlanMode::FromScratch,
        false => PlanMode::Revise,
    }
}
