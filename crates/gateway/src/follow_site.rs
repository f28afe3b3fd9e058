//! What the control thread does with the plan store: follows the site's plan, publishes this
//! gateway's inputs, and plans for the site when this gateway leads it.

use std::{
    thread,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::{
    config::{AppIndex, PathIndex, Planner},
    protocol::{AssignedBy, EventKind},
};
use keiro_planner::steer::PlanMode;
use keiro_planning::{Plan, PlannerInput, PlanningProblem};

use crate::{
    data::command::DataThreadGone,
    gateway::Gateway,
    running_config::app_id,
    site_plan::{SitePlanner, SiteRole, inputs},
};

/// How long a start waits for the plan's file. Ours: it is read within some milliseconds, unless the
/// disk is in trouble.
const READ_TIME: Duration = Duration::from_millis(200);
const READ_STEP: Duration = Duration::from_millis(1);

impl Gateway {
    /// Waits until the plan of before the start has been read, if it is in a file. Otherwise traffic
    /// that enters before the first path is up would be sent by another plan.
    pub(crate) fn await_previous_plan(&mut self) -> Result<(), DataThreadGone> {
        let give_up = Stopwatch::now() + READ_TIME;
        while self.site.awaits_files() && Stopwatch::now() < give_up {
            thread::sleep(READ_STEP);
            self.on_store()?;
        }
        Ok(())
    }

    /// Takes updates of the store over, and leads the site or publishes inputs where that is due.
    pub(crate) fn on_store(&mut self) -> Result<(), DataThreadGone> {
        while let Some(update) = self.site.poll() {
            let change = self.site.on_update(update);
            self.planning.needs_replan |= change.needs_replan;
            for (app, path) in change.stored_paths {
                let app = self.config.app_named(&app);
                let app = app.map(|app| app_id(&self.config[app]));
                if let Some((app, path)) = app.zip(self.running_config.path_ids().id_of_name(&path))
                {
                    self.planning.steering.remember_path(app, path);
                }
            }
            if let Some(event) = change.event {
                self.publish(event);
            }
        }
        if self.site.are_others_outdated() {
            self.update_others();
        }
        match self.site.is_shared() || self.planning.needs_replan {
            true => {
                let planner = self.site_planner();
                self.site.lead(planner);
            }
            // A plan that was offered on top of an older one was refused: offer it once more.
            false => self.publish_to_site(),
        }
        Ok(())
    }

    /// Takes over what other gateways send over this one's paths.
    pub(crate) fn update_others(&mut self) {
        let paths = self.config.paths.iter();
        let lines = paths.map(|path| path.name.to_string()).collect();
        if let Some(text) = self.site.update_others(&lines) {
            self.publish(EventKind::StoreNotice { text });
        }
    }

    /// Plans alone while the site's leader does not answer, and reports when that begins and ends.
    pub(crate) fn check_leader(&mut self) {
        if let Some(text) = self.site.check_leader(Stopwatch::now()) {
            self.planning.needs_replan = true;
            tracing::warn!("plan store: {text}");
            self.publish(EventKind::StoreNotice { text });
        }
    }

    /// The planner's answer. In a site, applications that the site has placed, or is about to place,
    /// stay. Where that leaves a latency target unmet and the site's store is gone, or the site has
    /// not placed every application yet, this gateway plans alone if that leaves fewer unmet.
    pub(crate) fn plan_in_site(&self, input: &PlannerInput, plan_mode: PlanMode) -> Plan {
        let (mut kept, mut free) = (input.clone(), input.clone());
        match (self.site.role(), self.config.gateway.planner) {
            (SiteRole::Alone, _) | (_, Planner::Off) => return self.plan_alone(input, plan_mode),
            (SiteRole::Follows, _) => {
                for (app, path) in &input.now {
                    kept.site.entry(*app).or_insert(*path);
                }
            }
            (SiteRole::CutOff, _) => {
                free.site.clear();
                // An operator asked for a plan from scratch.
                if plan_mode == PlanMode::FromScratch {
                    return self.plan_alone(&free, plan_mode);
                }
            }
        }
        let answered = self.plan_alone(&kept, plan_mode);
        if answered.unmet() == 0 || kept.site == free.site {
            return answered;
        }
        let alone = self.plan_alone(&free, plan_mode);
        match alone.unmet() < answered.unmet() {
            true => alone,
            false => answered,
        }
    }

    /// The planner's answer, whatever a site has planned.
    pub(crate) fn plan_alone(&self, input: &PlannerInput, plan_mode: PlanMode) -> Plan {
        let begun = Stopwatch::now();
        let config = &self.planning.config;
        let problem = PlanningProblem::new(config, input);
        let plan = problem.answer(plan_mode, self.planning.steering.forecast_state());
        Plan {
            took: begun.elapsed(),
            ..plan
        }
    }

    /// Notes which applications the plan puts on other paths than the site's plan does: that one
    /// counts for them no longer.
    pub(crate) fn note_own_paths(&mut self) {
        if !self.site.knows_plan() {
            return;
        }
        for (number, planned) in self.planning.plan.apps.iter().enumerate() {
            let index = AppIndex(number);
            let (Some(path), AssignedBy::Planner) = (planned.path, planned.by) else {
                continue;
            };
            if self.planning.input.site.get(&index) != Some(&path) {
                self.planning.input.site.remove(&index);
                self.site.on_own_path(self.config[index].name.to_string());
            }
        }
        let config = &self.config;
        self.site.retain_own(|app| config.app_named(app).is_some());
    }

    /// Publishes what this gateway plans with and the resulting paths.
    pub(crate) fn publish_to_site(&mut self) {
        let paths = self.planning.plan.paths();
        let own_paths = self.site.is_shared().then_some(&paths);
        let (path_inputs, app_inputs) = inputs(&self.config, &self.planning.input, own_paths);
        let name = |(app, path): (AppIndex, PathIndex)| {
            let (app, path) = (&self.config[app], &self.config[path]);
            (app.name.to_string(), path.name.to_string())
        };
        let own = paths.into_iter().map(name).collect();
        self.site.publish(path_inputs, app_inputs, own);
        let planner = self.site_planner();
        self.site.lead(planner);
    }

    fn site_planner(&self) -> SitePlanner {
        SitePlanner {
            planner: self.config.gateway.planner,
            scheduler: self.config.gateway.scheduler,
            tolerance: self.config.gateway.tolerance,
        }
    }
}
