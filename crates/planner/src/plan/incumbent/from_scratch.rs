//! A plan from scratch, whatever is in force.

use super::{
    Aim, Allowed, Hysteresis, Incumbent, Revision, RevisionBuilder, Settings, table::EQUATION,
};
use crate::{
    delay::{AppSpec, PathSpec},
    plan::{Budget, Problem, exact, frugal},
};

/// Up to so many applications that may go everywhere, [`exact()`] is asked as well: within its
/// usual budget it has something to add to that size.
const EXACT_APPS_MAX: usize = 300;

/// Work units after which a plan from scratch ends repairing, and improving: some fifty
/// milliseconds, reached with thousands of applications only.
const REPAIR_WORK: u64 = 2_000_000;
const IMPROVE_WORK: u64 = 4_000_000;

impl Incumbent {
    /// Plans from scratch, every gain counting and no move costing anything, and makes the moves
    /// to there; none if the plan in force is as good. With few applications that may go
    /// everywhere [`exact()`] (or [`frugal()`]) is asked as well, within `budget`.
    pub fn plan_from_scratch(&mut self, budget: Budget) -> Revision {
        let before = self.table.score();
        let places: Vec<Option<usize>> = self.table.apps.iter().map(|app| app.place).collect();
        for app in 0..places.len() {
            self.table.take(app);
            self.table.apps[app].fresh = true;
        }
        let settings = Settings {
            hysteresis: Hysteresis::NONE,
            ..self.settings
        };
        self.table.next_app_to_examine = 0;
        self.table.next_path_to_repair = None;
        let mut builder = RevisionBuilder::new(&mut self.table, settings, REPAIR_WORK);
        builder.place_unplaced();
        builder.repair();
        builder.allow(IMPROVE_WORK);
        builder.improve();
        self.ask_exact(budget);
        let order = self.settings.aim.order();
        if self.table.score().compare(&before, order).is_ge() {
            self.put_all(&places);
        }
        for path in &mut self.table.paths {
            path.mark_examined();
        }
        for app in &mut self.table.apps {
            app.fresh = false;
        }
        self.table.next_app_to_examine = 0;
        self.table.next_path_to_repair = None;
        self.has_changes = false;
        let mut builder = RevisionBuilder::new(&mut self.table, settings, 0);
        builder.touched = places.into_iter().enumerate().collect();
        let moves = builder.moves();
        self.revision(before, moves, true)
    }

    /// Takes over what the planners that know no restrictions find, if it is better.
    fn ask_exact(&mut self, budget: Budget) {
        let apps = &self.table.requirements;
        let is_free = |allowed: &Allowed| *allowed == Allowed::All;
        if apps.len() > EXACT_APPS_MAX || !apps.iter().all(|app| is_free(&app.allowed)) {
            return;
        }
        let paths: Vec<PathSpec> = self.table.paths.iter().map(|path| path.spec).collect();
        let apps: Vec<AppSpec> = apps.iter().map(|app| app.spec).collect();
        let Ok(problem) = Problem::new(&paths, &apps, &EQUATION) else {
            return;
        };
        let order = self.settings.aim.order();
        let problem = problem
            .with_tolerance(self.table.tolerance)
            .with_order(order);
        let plan = match self.settings.aim {
            Aim::LeastDelay => exact(&problem, budget).plan,
            Aim::Frugal => frugal(&problem, budget),
        };
        let is_better = match self.settings.aim {
            Aim::LeastDelay => plan.score.compare(&self.table.score(), order).is_lt(),
            Aim::Frugal => plan.score.unmet <= self.table.score().unmet,
        };
        if is_better {
            let places: Vec<Option<usize>> = plan.assignment.into_iter().map(Some).collect();
            self.put_all(&places);
        }
    }

    fn put_all(&mut self, places: &[Option<usize>]) {
        for (app, &place) in places.iter().enumerate() {
            if self.table.apps[app].place != place {
                self.table.take(app);
                if let Some(place) = place {
                    self.table.put(app, place);
                }
            }
        }
    }
}
