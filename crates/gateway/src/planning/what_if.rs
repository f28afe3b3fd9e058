//! Configuration and facts as they would be after changes that have not happened.

use std::time::Duration;

use keiro_control::{
    config::{AppIndex, Config, Name, PATH_RATE_MAX, PATH_RATE_MIN},
    protocol::{ErrorCode, ErrorResponse, WHAT_IF_APPS_MAX, WHAT_IF_MAX, WhatIf},
    units::Text,
};
use keiro_model::{Bandwidth, Probability, steer::PathSample};

use super::{Facts, Planned};
use crate::requests::not_found;

/// Longer times make no sense, as in the configuration.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// What is supposed.
pub(crate) struct Supposed {
    pub(crate) config: Config,
    pub(crate) facts: Facts,
    /// Applications that are added.
    added: u64,
}

/// Makes the changes, in their order, to copies.
///
/// # Errors
/// A name that there is not, a value that makes no sense, or too much of it.
pub(crate) fn suppose(
    config: &Config,
    facts: &Facts,
    changes: &[WhatIf],
) -> Result<Supposed, ErrorResponse> {
    if changes.len() > WHAT_IF_MAX {
        let message = format!("{} changes are too many", changes.len());
        let hint = format!("try: at most {WHAT_IF_MAX}");
        return Err(ErrorResponse::new(ErrorCode::BadRequest, message, &hint));
    }
    let mut supposed = Supposed {
        config: config.clone(),
        facts: facts.clone(),
        added: 0,
    };
    for change in changes {
        supposed.make(change)?;
    }
    Ok(supposed)
}

impl Supposed {
    /// Who was met by `plan`, without what is supposed, and is not by `then`.
    pub(crate) fn newly_unmet(&self, plan: &Planned, then: &Planned) -> Vec<String> {
        let demands = |number: usize| self.config.apps[number].demand.is_some();
        let unmet = |plan: &Planned, number: usize| {
            let app = plan.apps.get(number);
            app.is_some_and(|app| app.is_unmet() || (app.path.is_none() && demands(number)))
        };
        (0..then.apps.len())
            .filter(|number| unmet(then, *number) && !unmet(plan, *number))
            .map(|number| self.config.apps[number].name.to_string())
            .collect()
    }

    fn make(&mut self, change: &WhatIf) -> Result<(), ErrorResponse> {
        match change {
            WhatIf::LosePath { path } => {
                let path = self.path(path)?;
                self.facts = self.facts.without(path);
            }
            WhatIf::AddApp { app, count } => {
                let like = self.app(app)?;
                self.add(like, *count)?;
            }
            WhatIf::SetPath {
                path,
                rate_bits_per_second,
                delay_seconds,
                loss_ratio,
            } => {
                let index = self.path(path)?;
                let rate = rate_bits_per_second.map(Bandwidth::from_bits_per_second);
                if rate == Some(Bandwidth::ZERO) {
                    return Err(refused("a path of 0 bit/s", "lose it instead"));
                }
                let possible = PATH_RATE_MIN..=PATH_RATE_MAX;
                if let Some(rate) = rate.filter(|rate| !possible.contains(rate)) {
                    let hint = format!("{} to {}", Text(PATH_RATE_MIN), Text(PATH_RATE_MAX));
                    return Err(refused(&format!("a path of {}", Text(rate)), &hint));
                }
                let delay = delay_seconds.map(duration).transpose()?;
                let loss = loss_ratio.map(|loss| {
                    Probability::new(loss)
                        .ok_or_else(|| refused(&format!("a loss of {loss}"), "0 to 1"))
                });
                let loss = loss.transpose()?;
                let path = &mut self.config.paths[index.0];
                path.rate = rate.unwrap_or(path.rate);
                path.delay = delay.or(path.delay);
                let to_peers = self.facts.up.iter_mut().filter(|((up, _), _)| *up == index);
                for (_, sample) in to_peers {
                    let before = *sample;
                    *sample = Some(PathSample {
                        bandwidth: rate
                            .or(before.map(|sample| sample.bandwidth))
                            .unwrap_or(path.rate),
                        delay: delay
                            .or(before.map(|sample| sample.delay))
                            .or(path.delay)
                            .unwrap_or_default(),
                        loss: loss
                            .or(before.map(|sample| sample.loss))
                            .unwrap_or(Probability::ZERO),
                    });
                }
            }
            WhatIf::SetDemand {
                app,
                demand_seconds,
            } => {
                let app = self.app(app)?;
                let demand = demand_seconds.map(duration).transpose()?;
                if demand == Some(Duration::ZERO) {
                    return Err(refused("a demand of 0 s", "`none`, or some time"));
                }
                self.config.apps[app.0].demand = demand;
            }
        }
        Ok(())
    }

    fn add(&mut self, like: AppIndex, count: u64) -> Result<(), ErrorResponse> {
        self.added = self.added.saturating_add(count);
        if count == 0 || self.added > WHAT_IF_APPS_MAX {
            let hint = format!("1 to {WHAT_IF_APPS_MAX} in all");
            return Err(refused(&format!("{} more applications", self.added), &hint));
        }
        let mut number = self.config.apps.len();
        for _ in 0..count {
            let mut app = self.config[like].clone();
            let free = loop {
                number += 1;
                let name = format!("new-{number}");
                if self.config.app_named(&name).is_none() {
                    break name;
                }
            };
            if let Ok(name) = Name::try_from(free) {
                app.name = name;
            }
            let index = AppIndex(self.config.apps.len());
            self.config.apps.push(app);
            if let Some(seen) = self.facts.workloads.get(&like).copied() {
                self.facts.workloads.insert(index, seen);
            }
            if let Some(evidence) = self.facts.evidence.get(&like).copied() {
                self.facts.evidence.insert(index, evidence);
            }
        }
        Ok(())
    }

    fn app(&self, name: &str) -> Result<AppIndex, ErrorResponse> {
        let found = self.config.app_named(name);
        found.ok_or_else(|| not_found("application", name))
    }

    fn path(&self, name: &str) -> Result<keiro_control::config::PathIndex, ErrorResponse> {
        let found = self.config.path_named(name);
        found.ok_or_else(|| not_found("path", name))
    }
}

fn duration(seconds: f64) -> Result<Duration, ErrorResponse> {
    let found = Duration::try_from_secs_f64(seconds).ok();
    let sane = found.filter(|found| *found <= TIME_MAX);
    sane.ok_or_else(|| refused(&format!("a time of {seconds} s"), "0 s to 24 h"))
}

fn refused(what: &str, try_instead: &str) -> ErrorResponse {
    let message = format!("{what} makes no sense here");
    ErrorResponse::new(
        ErrorCode::BadRequest,
        message,
        &format!("try: {try_instead}"),
    )
}
