//! Hypothetical plans, made in this process from what a gateway plans with.
//!
//! The gateway is asked for that once for all viewers. A thread plans, one question after another, and rests after each
//! ([`super::ask`]), so that viewers take neither the gateway's time nor much of this machine's.

use std::{sync::Arc, time::Instant};

use keiro_control::protocol::{PlanSnapshot, Response, WhatIf};
use keiro_planning::{PlanMode, ReceivedInput, Situation, paths_in_use};

use super::{Fault, Shared, ask::Answer, unexpected};

/// What to suppose, and the gateway's answer to start from.
#[derive(Debug)]
pub(super) struct Supposition {
    pub(super) input: Arc<Response>,
    pub(super) changes: Vec<WhatIf>,
}

/// The plan without changes and that with them, both by forecasts.
#[derive(Debug)]
pub(crate) struct Plans {
    pub(crate) now: Arc<PlanSnapshot>,
    pub(crate) then: PlanSnapshot,
}

/// The input of the last question: viewers ask many of one.
struct Known {
    response: Arc<Response>,
    received: ReceivedInput,
    now: Arc<PlanSnapshot>,
}

/// Answers suppositions.
pub(super) fn planner() -> impl FnMut(&Shared, &Supposition) -> Answer<Plans> + Send + 'static {
    let mut known: Option<Known> = None;
    move |_, supposition| {
        let same = |known: &Known| Arc::ptr_eq(&known.response, &supposition.input);
        let known = match known.take().filter(same) {
            Some(same) => known.insert(same),
            None => known.insert(Known::of(&supposition.input)?),
        };
        let then = plan(&known.received, &supposition.changes)?;
        Ok(Arc::new(Plans {
            now: Arc::clone(&known.now),
            then,
        }))
    }
}

impl Known {
    fn of(response: &Arc<Response>) -> Result<Self, Fault> {
        let Response::PlannerInput(snapshot) = &**response else {
            return Err(unexpected(response));
        };
        let received = ReceivedInput::try_from(&**snapshot).map_err(|invalid| {
            let hint = "install `keiro-web` and the gateway from one version";
            Fault::new(invalid.to_string(), hint)
        })?;
        Ok(Self {
            response: Arc::clone(response),
            now: Arc::new(plan(&received, &[])?),
            received,
        })
    }
}

fn plan(received: &ReceivedInput, changes: &[WhatIf]) -> Result<PlanSnapshot, Fault> {
    let begun = Instant::now();
    let situation = Situation {
        config: &received.config,
        input: &received.input,
        forecast_state: &received.forecast_state,
        plan_mode: PlanMode::Revise,
        now: &paths_in_use(&received.config, &received.input),
    };
    let plan = situation.plan_after(changes);
    let plan = plan.map_err(|refused| {
        Fault::new(refused.message, refused.hint.as_deref().unwrap_or_default())
    })?;
    Ok(PlanSnapshot {
        planning_seconds: begun.elapsed().as_secs_f64(),
        alone: received.alone,
        ..plan
    })
}
