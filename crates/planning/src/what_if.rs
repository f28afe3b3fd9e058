//! The plan after changes that have not happened.

use std::{collections::BTreeMap, time::Duration};

use keiro_control::{
    config::{AppIndex, CostPerGb, Name, PathIndex, PathRole, PathTerms},
    protocol::{
        self, ErrorCode, ErrorResponse, PlanSnapshot, WHAT_IF_APPS_MAX, WHAT_IF_MAX, WhatIf,
    },
    rounded,
};
use keiro_planner::steer::{PathSample, PlanMode};
use keiro_units::{Bandwidth, Probability};

use crate::{
    config::PlannerConfig, forecast::ForecastState, input::PlannerInput, plan::Plan,
    problem::PlanningProblem, snapshot::plan_snapshot,
};

/// What hypothetical changes start from.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    pub config: &'a PlannerConfig,
    pub input: &'a PlannerInput,
    pub forecast_state: &'a ForecastState,
    pub plan_mode: PlanMode,
    /// The path that each application is on.
    pub now: &'a BTreeMap<AppIndex, PathIndex>,
}

impl Situation<'_> {
    /// The plan after `changes`, and which targets it misses that are met without them. Both plans go by forecasts,
    /// since nothing is measured of what has not happened. Without changes, the plan of now, by the same.
    ///
    /// The caller fills in what only it knows: the time that this took, and what a site has to do with it.
    ///
    /// # Errors
    /// What in `changes` cannot be supposed.
    pub fn plan_after(&self, changes: &[WhatIf]) -> Result<PlanSnapshot, ErrorResponse> {
        let input = self.input.unmeasured();
        let supposed = suppose(self.config, &input, changes)?;
        let then = self.plan(&supposed.config, &supposed.input);
        let newly_unmet = match changes.is_empty() {
            true => Vec::new(),
            false => supposed.newly_unmet(&self.plan(self.config, &input), &then),
        };
        Ok(PlanSnapshot {
            newly_unmet,
            without_effect: supposed.without_effect,
            ..plan_snapshot(&supposed.config, &then, self.now, &supposed.input.shared)
        })
    }

    fn plan(&self, config: &PlannerConfig, input: &PlannerInput) -> Plan {
        PlanningProblem::new(config, input).answer(self.plan_mode, self.forecast_state)
    }
}

/// A hypothetical configuration and its inputs.
pub(crate) struct Supposed {
    pub(crate) config: PlannerConfig,
    pub(crate) input: PlannerInput,
    /// Changes without effect, and why.
    pub(crate) without_effect: Vec<String>,
    /// Applications that are added.
    added: u64,
}

/// Applies changes, in their order, to copies.
///
/// An unknown name, an invalid value, one thing changed twice, or too many changes.
pub(crate) fn suppose(
    config: &PlannerConfig,
    input: &PlannerInput,
    changes: &[WhatIf],
) -> Result<Supposed, ErrorResponse> {
    if changes.len() > WHAT_IF_MAX {
        let message = format!("{} changes are too many", changes.len());
        let hint = format!("try: at most {WHAT_IF_MAX}");
        return Err(ErrorResponse::new(ErrorCode::BadRequest, message, &hint));
    }
    WhatIf::check(changes).map_err(|twice| {
        let hint = "try: suppose each thing once";
        ErrorResponse::new(ErrorCode::BadRequest, twice.to_string(), hint)
    })?;
    let mut supposed = Supposed {
        config: config.clone(),
        input: input.clone(),
        without_effect: Vec::new(),
        added: 0,
    };
    for change in changes {
        supposed.make(change)?;
    }
    Ok(supposed)
}

impl Supposed {
    /// Applications whose target `plan` meets and the hypothetical plan `then` does not.
    pub(crate) fn newly_unmet(&self, plan: &Plan, then: &Plan) -> Vec<String> {
        let latency_targets = |number: usize| self.config.apps[number].latency_target.is_some();
        let unmet = |plan: &Plan, number: usize| {
            let app = plan.apps.get(number);
            app.is_some_and(|app| app.is_unmet() || (app.path.is_none() && latency_targets(number)))
        };
        (0..then.apps.len())
            .filter(|number| unmet(then, *number) && !unmet(plan, *number))
            .map(|number| self.config.apps[number].name.to_string())
            .collect()
    }

    fn make(&mut self, change: &WhatIf) -> Result<(), ErrorResponse> {
        change.validate().map_err(|invalid| {
            ErrorResponse::new(ErrorCode::BadRequest, invalid.to_string(), "")
        })?;
        let idle = match change {
            WhatIf::LosePath { path } => {
                // With its uplink, all paths over it are lost.
                let lost = self.config.with_further(self.path(path)?);
                let was_up = lost.iter().any(|index| self.is_up(*index));
                for index in lost {
                    self.input = self.input.without(index);
                }
                (!was_up).then(|| format!("{path} is down already"))
            }
            WhatIf::AddApp { app, count } => {
                let like = self.app(app)?;
                self.add(like, *count)?;
                None
            }
            WhatIf::SetPath {
                path,
                rate_bits_per_second,
                delay_seconds,
                loss_ratio,
                role,
                cost_per_gb,
                budget_spent,
            } => {
                let index = self.path(path)?;
                let set = Set {
                    role: role.as_ref().map(|role| match role {
                        protocol::PathRole::Backup => PathRole::Backup,
                        protocol::PathRole::Primary | protocol::PathRole::Unknown => {
                            PathRole::Primary
                        }
                    }),
                    cost: cost_per_gb.and_then(CostPerGb::new),
                    is_spent: *budget_spent,
                    rate: rate_bits_per_second.map(Bandwidth::from_bits_per_second),
                    delay: delay_seconds.and_then(duration),
                    loss: loss_ratio.and_then(Probability::new),
                };
                let idle = match self.is_up(index) {
                    true => self.idle(index, &set),
                    false => Some(format!("{path} is down")),
                };
                self.set(index, &set);
                idle
            }
            WhatIf::SetTarget {
                app,
                latency_target_seconds,
            } => {
                let index = self.app(app)?;
                let latency_target = latency_target_seconds.and_then(duration);
                let now = std::mem::replace(
                    &mut self.config.apps[index.0].latency_target,
                    latency_target,
                );
                (now == latency_target).then(|| match now {
                    Some(now) => {
                        let now = rounded::duration(now);
                        format!("the latency target of {app} is {now} already")
                    }
                    None => format!("{app} has no latency target already"),
                })
            }
        };
        self.without_effect
            .extend(idle.map(|why| format!("{change}: {why}")));
        Ok(())
    }

    /// Which of a path's properties already have the new value.
    fn idle(&self, index: PathIndex, set: &Set) -> Option<String> {
        let path = &self.config[index];
        let samples = || self.samples(index);
        let is = |same: &dyn Fn(Option<&PathSample>) -> bool| samples().all(same);
        let rate = set.rate.filter(|rate| {
            is(&|sample| {
                let bound = path.rate_bound();
                let now = sample.map_or(path.rate_assumed(), |s| s.bandwidth.min(bound));
                now == *rate
            })
        });
        let delay = set.delay.filter(|delay| {
            is(&|sample| sample.map(|s| s.delay).or(path.delay).unwrap_or_default() == *delay)
        });
        let loss = set
            .loss
            .filter(|loss| is(&|sample| sample.map_or(Probability::ZERO, |s| s.loss) == *loss));
        let role = set.role.filter(|role| path.role == *role);
        let cost = set.cost.filter(|cost| path.cost == *cost);
        let same = [
            rate.map(|rate| format!("a rate of {}", rounded::rate(rate))),
            delay.map(|delay| format!("a delay of {}", rounded::duration(delay))),
            loss.map(|loss| format!("a loss of {}", rounded::percent(loss.get()))),
            role.map(|_| "this role".to_owned()),
            cost.map(|cost| format!("a cost of {cost} per GB")),
        ];
        let same: Vec<String> = same.into_iter().flatten().collect();
        let asked = [
            set.rate.is_some(),
            set.delay.is_some(),
            set.loss.is_some(),
            set.role.is_some(),
            set.cost.is_some(),
            set.is_spent.is_some(),
        ];
        let asked = asked.into_iter().filter(|is_set| *is_set).count();
        let part = if same.len() < asked {
            "in part, for "
        } else {
            ""
        };
        let same = (!same.is_empty()).then(|| same.join(" and "));
        same.map(|same| format!("{part}{} has {same} already", path.name))
    }

    fn set(&mut self, index: PathIndex, set: &Set) {
        let path = &mut self.config.paths[index.0];
        path.rate = set.rate.or(path.rate);
        path.delay = set.delay.or(path.delay);
        let is_other = set.rate.is_some() || set.delay.is_some() || set.loss.is_some();
        let to_peers = self.input.up.iter_mut();
        let to_peers = to_peers.filter(|((up, _), _)| *up == index && is_other);
        for (_, sample) in to_peers {
            let before = *sample;
            *sample = Some(PathSample {
                bandwidth: set
                    .rate
                    .or(before.map(|sample| sample.bandwidth))
                    .unwrap_or(path.rate_assumed()),
                delay: set
                    .delay
                    .or(before.map(|sample| sample.delay))
                    .or(path.delay)
                    .unwrap_or_default(),
                loss: set
                    .loss
                    .or(before.map(|sample| sample.loss))
                    .unwrap_or(Probability::ZERO),
            });
        }
        if let Some(loss) = set.loss {
            self.set_excess_losses(index, loss);
        }
        self.set_terms(index, set);
    }

    /// With its uplink, all paths over it are used on these terms.
    fn set_terms(&mut self, index: PathIndex, set: &Set) {
        for index in self.config.with_further(index) {
            let path = &mut self.config.paths[index.0];
            path.role = set.role.unwrap_or(path.role);
            path.cost = set.cost.unwrap_or(path.cost);
            let Some(is_spent) = set.is_spent else {
                continue;
            };
            let to_peers = self.input.up.keys().filter(|(up, _)| *up == index);
            for key in to_peers.copied().collect::<Vec<_>>() {
                let terms = self.input.terms.entry(key).or_insert(PathTerms::FREE);
                terms.is_spent = is_spent;
            }
        }
    }

    /// A path loses so much of its packets.
    fn set_excess_losses(&mut self, path: PathIndex, loss: Probability) {
        let losses = &mut self.input.excess_losses;
        losses.retain(|(_, lossy), _| *lossy != path);
        for app in (0..self.config.apps.len()).map(AppIndex) {
            let need = self.config.loss_needs.get(app);
            let excess = need.and_then(|need| need.excess(loss));
            losses.extend(excess.map(|excess| ((app, path), excess)));
        }
    }

    /// Levels of a path, for each peer to which it is up.
    fn samples(&self, index: PathIndex) -> impl Iterator<Item = Option<&PathSample>> {
        let of_path = self
            .input
            .up
            .iter()
            .filter(move |((up, _), _)| *up == index);
        of_path.map(|(_, sample)| sample.as_ref())
    }

    fn is_up(&self, index: PathIndex) -> bool {
        self.samples(index).next().is_some()
    }

    fn add(&mut self, like: AppIndex, count: u64) -> Result<(), ErrorResponse> {
        self.added = self.added.saturating_add(count);
        if count == 0 || self.added > WHAT_IF_APPS_MAX {
            let hint = format!("1 to {WHAT_IF_APPS_MAX} in all");
            return Err(refused(&format!("{} more applications", self.added), &hint));
        }
        let mut number = 1;
        for _ in 0..count {
            let mut app = self.config[like].clone();
            // Terminates: every number gives another name, and the number of applications is
            // bounded.
            app.name = loop {
                number += 1;
                let name = another(&self.config[like].name, number);
                if self.config.app_named(name.as_str()).is_none() {
                    break name;
                }
            };
            let index = AppIndex(self.config.apps.len());
            self.config.apps.push(app);
            self.config.loss_needs.add_like(like);
            if let Some(seen) = self.input.workloads.get(&like).copied() {
                self.input.workloads.insert(index, seen);
            }
            if self.input.sending.contains(&like) {
                self.input.sending.insert(index);
            }
            let losses = &mut self.input.excess_losses;
            let of_like = losses.iter().filter(|((app, _), _)| *app == like);
            let of_like = of_like.map(|((_, path), excess)| ((index, *path), *excess));
            let of_like: Vec<_> = of_like.collect();
            losses.extend(of_like);
            if let Some(window) = self.input.traffic_windows.get(&like).copied() {
                self.input.traffic_windows.insert(index, window);
            }
        }
        Ok(())
    }

    fn app(&self, name: &str) -> Result<AppIndex, ErrorResponse> {
        let names = self.config.apps.iter().map(|app| app.name.as_str());
        let found = self.config.app_named(name);
        found.ok_or_else(|| not_there("application", name, names))
    }

    fn path(&self, name: &str) -> Result<PathIndex, ErrorResponse> {
        let names = self.config.paths.iter().map(|path| path.name.as_str());
        let found = self.config.path_named(name);
        found.ok_or_else(|| not_there("path", name, names))
    }
}

/// The name of the `number`-th application that is like `name`.
fn another(name: &Name, number: usize) -> Name {
    let short = || Name::try_from(format!("new-{number}")).expect("a name of a few letters");
    Name::try_from(format!("{name}-{number}")).unwrap_or_else(|_| short())
}

/// New properties of a path; `None`: unchanged.
struct Set {
    rate: Option<Bandwidth>,
    delay: Option<Duration>,
    loss: Option<Probability>,
    role: Option<PathRole>,
    cost: Option<CostPerGb>,
    is_spent: Option<bool>,
}

/// Lists the names in the error, since `keiro plan` also works without a running gateway.
fn not_there<'a>(kind: &str, name: &str, names: impl Iterator<Item = &'a str>) -> ErrorResponse {
    let names: Vec<&str> = names.take(NAMES_MAX).collect();
    let hint = match names.is_empty() {
        true => "none is configured".to_owned(),
        false => format!("try: one of {}", names.join(", ")),
    };
    ErrorResponse::new(
        ErrorCode::NotFound,
        format!("there is no {kind} `{name}`"),
        &hint,
    )
}

/// Names that are listed. Ours.
const NAMES_MAX: usize = 20;

/// `None`: no time, which [`WhatIf::validate`] has refused.
fn duration(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

fn refused(what: &str, try_instead: &str) -> ErrorResponse {
    let message = format!("{what} cannot be supposed");
    ErrorResponse::new(
        ErrorCode::BadRequest,
        message,
        &format!("try: {try_instead}"),
    )
}
