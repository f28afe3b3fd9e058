//! Why an application is on its path, in numbers and in sentences: here the numbers of the control
//! protocol and a verdict for each path, in `text` the sentences.

mod aggregation;
#[cfg(test)]
mod tests;
mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_control::{
    config::{App, AppIndex, Config, CostPerGb, PathIndex, PathRole, PathTerms},
    protocol::{
        AggregationSnapshot, AssignedBy, Candidate as CandidateView, DelaySummary, LineUseSnapshot,
        MoveThreshold, PathState, PathTermsSnapshot, SharedLineSnapshot,
    },
    rounded::{duration, percent},
};
use keiro_planner::{
    delay::{Delay, Margin},
    plan::incumbent::ParameterValue,
};
use keiro_planning::{
    Candidate, ExcessLoss, LineUse, MeasuredWorkload, MoveTrigger, SharedLines, delay_terms,
    excess_loss, rate_of_messages,
};
use keiro_units::Probability;

/// The inputs of an explanation.
pub(crate) struct Subject<'a> {
    pub(crate) config: &'a Config,
    pub(crate) app: &'a App,
    pub(crate) index: AppIndex,
    /// The path in use; `None`: no path to the peer is up.
    pub(crate) path: Option<PathIndex>,
    /// The path that was in use last, where none is.
    pub(crate) last: Option<PathIndex>,
    pub(crate) by: AssignedBy,
    /// Of the paths that are up.
    pub(crate) candidates: &'a [Candidate],
    /// Loss on the path in use; `None`: none.
    pub(crate) loss: Option<Probability>,
    /// The measured delays, if there are any.
    pub(crate) measured: Option<DelaySummary>,
    /// Its measured workload; `None`: nothing was measured.
    pub(crate) workload: Option<MeasuredWorkload>,
    /// The smallest single changes at which it would move.
    pub(crate) move_triggers: &'a [MoveTrigger],
    /// A site's plan decides, not this gateway's own.
    pub(crate) in_site: bool,
    /// The path that the configuration or an operator assigned to it.
    pub(crate) assigned: Option<(PathIndex, AssignedBy)>,
    /// Paths that are up and whose budget of the month is used up.
    pub(crate) spent: BTreeSet<PathIndex>,
    /// Paths whose rate is assumed.
    pub(crate) assumed: BTreeSet<PathIndex>,
    /// Why it is on none; `None`: it is on one.
    pub(crate) no_path: Option<&'a str>,
    /// Paths that are up but on hold-down, and how long that lasts.
    pub(crate) hold_downs: BTreeMap<PathIndex, Duration>,
    /// What other gateways of the site send over the paths.
    pub(crate) shared: &'a SharedLines,
    /// How long the site's store does not answer; `None`: it does, or there is no site.
    pub(crate) store_lost: Option<Duration>,
    /// How its small packets are aggregated there; `None`: they are not.
    pub(crate) aggregation: Option<AggregationSnapshot>,
}

const BUDGET_SPENT: &str = "its budget of the month is used up";
/// Why size, interval and copies of aggregates are what they are, with `controller = "none"`.
pub(crate) const NO_CONTROLLER: &str = "no controller changes it";

impl Subject<'_> {
    /// [`Self::move_triggers`] for the protocol.
    pub(crate) fn would_move(&self) -> Vec<MoveThreshold> {
        let threshold = |moves: &MoveTrigger| {
            let to = self.name(moves.to).to_owned();
            let path = moves.path.map(|path| self.name(path).to_owned());
            match (path, moves.now, moves.at) {
                (Some(path), ParameterValue::Time(now), ParameterValue::Time(at)) => {
                    MoveThreshold::PathDelay {
                        path,
                        now_seconds: now.as_secs_f64(),
                        at_seconds: at.as_secs_f64(),
                        to,
                    }
                }
                (Some(path), ParameterValue::Rate(now), ParameterValue::Rate(at)) => {
                    MoveThreshold::PathRate {
                        path,
                        now_bits_per_second: now.as_bits_per_second(),
                        at_bits_per_second: at.as_bits_per_second(),
                        to,
                    }
                }
                (None, ParameterValue::Time(now), ParameterValue::Time(at)) => {
                    MoveThreshold::LatencyTarget {
                        now_seconds: now.as_secs_f64(),
                        at_seconds: at.as_secs_f64(),
                        to,
                    }
                }
                _ => MoveThreshold::Unknown,
            }
        };
        self.move_triggers.iter().map(threshold).collect()
    }

    /// One entry per path of the configuration to the application's peer.
    pub(crate) fn views(&self, state: impl Fn(PathIndex) -> PathState) -> Vec<CandidateView> {
        let view = |number: usize| {
            let path = PathIndex(number);
            let state = state(path);
            let candidate = self
                .candidates
                .iter()
                .find(|candidate| candidate.path == path);
            let verdict = match candidate {
                Some(candidate) => self.verdict(candidate),
                None if self.spent.contains(&path) => BUDGET_SPENT.to_owned(),
                None if state == PathState::Validating => "has not answered yet".into(),
                None => "is down".into(),
            };
            CandidateView {
                path: self.name(path).to_owned(),
                state,
                chosen: self.path == Some(path),
                terms: candidate.map(|c| {
                    let site_load = rate_of_messages(self.shared.of(c.path));
                    delay_terms(&c.prediction, c.forecast.as_ref(), &c.expected, site_load)
                }),
                margin_seconds: candidate.and_then(|c| c.expected.margin_seconds()),
                target_met: candidate.and_then(|c| c.expected.met),
                judged_by: candidate.map(|c| c.expected.judged_by),
                excess_loss: candidate.and_then(|c| c.excess_loss).map(excess_loss),
                path_terms: candidate.and_then(|c| PathTermsSnapshot::of(c.terms)),
                no_forecast: candidate
                    .and_then(|c| c.forecast)
                    .and_then(|forecast| forecast.why_not()),
                shared_line: shared_line(self.shared.of(path), self.store_lost),
                verdict,
            }
        };
        (0..self.config.paths.len()).map(view).collect()
    }

    fn name(&self, path: PathIndex) -> &str {
        self.config[path].name.as_str()
    }

    fn verdict(&self, candidate: &Candidate) -> String {
        let mut verdict = self.delay_verdict(candidate);
        let others = candidate.newly_unmet.iter();
        let others: Vec<&str> = others
            .filter(|app| **app != self.index)
            .map(|app| self.config[*app].name.as_str())
            .collect();
        if !others.is_empty() {
            let targets = match others.len() {
                1 => "its latency target",
                _ => "their latency targets",
            };
            let others = others.join(", ");
            verdict.push_str(&format!("; by equation 3 {others} would miss {targets}"));
        }
        if let Some(excess) = &candidate.excess_loss {
            verdict.push_str(&format!("; {}", loses_too_much(excess)));
        }
        verdict.push_str(&self.price_verdict(candidate));
        if let Some(left) = self.hold_downs.get(&candidate.path) {
            let left = duration(*left);
            verdict.push_str(&format!(
                "; on hold-down after an outage, released if it stays up for {left}"
            ));
        }
        if Some(candidate.path) == self.path {
            verdict.push_str("; in use");
        }
        verdict
    }

    /// What a path costs beside the one in use.
    fn price_verdict(&self, candidate: &Candidate) -> String {
        let terms = candidate.terms;
        let mut current = self.candidates.iter();
        let current = current.find(|current| Some(current.path) == self.path);
        let now = current.map_or(PathTerms::FREE, |current| current.terms);
        let mut verdict = String::new();
        if terms.is_spent {
            verdict.push_str(&format!("; {BUDGET_SPENT}"));
        }
        if terms.role == PathRole::Backup && Some(candidate.path) != self.path {
            let also_meets = candidate.expected.met == Some(true) && now.role == PathRole::Primary;
            verdict.push_str(match also_meets {
                true => "; meets the target too, but is a backup",
                false => "; is a backup",
            });
        }
        let [more, less] = [
            terms.cost.saturating_sub(now.cost),
            now.cost.saturating_sub(terms.cost),
        ];
        if more > CostPerGb::ZERO {
            verdict.push_str(&format!("; costs {more} per GB more"));
        }
        if less > CostPerGb::ZERO {
            verdict.push_str(&format!("; costs {less} per GB less"));
        }
        verdict
    }

    fn delay_verdict(&self, candidate: &Candidate) -> String {
        let (mean, margin) = mean_and_margin(candidate);
        match margin {
            Margin::Overloaded => "overloaded: the offered load exceeds its rate".to_owned(),
            Margin::NoTarget => mean,
            Margin::Spare(spare) => format!("{mean}, {} to spare", duration(spare)),
            Margin::Late(late) => {
                let tolerated = match candidate.expected.met {
                    Some(true) => ", within the tolerance",
                    _ => "",
                };
                format!("{mean}, {} late{tolerated}", duration(late))
            }
        }
    }
}

fn loses_too_much(ExcessLoss { loss, tolerance }: &ExcessLoss) -> String {
    let (loss, tolerance) = (percent(loss.get()), percent(tolerance.get()));
    format!("loses {loss}, tolerates {tolerance}")
}

/// Other gateways on a path, for the protocol. `None`: there is none, and the site's store answers.
pub(crate) fn shared_line(
    uses: &[LineUse],
    store_lost: Option<Duration>,
) -> Option<SharedLineSnapshot> {
    let is_known = !uses.is_empty() || store_lost.is_some();
    is_known.then(|| SharedLineSnapshot {
        gateways: uses
            .iter()
            .map(|on_line| LineUseSnapshot {
                gateway: on_line.gateway.clone(),
                apps: on_line.apps,
                load_bits_per_second: on_line.load.as_bits_per_second() as f64,
            })
            .collect(),
        age_seconds: store_lost.map(|lost| lost.as_secs_f64()),
    })
}

/// The mean delay on a path with its source, and how far it is from the latency target. Without
/// forecast and measurement that is equation 3's delay.
fn mean_and_margin(candidate: &Candidate) -> (String, Margin) {
    let (expected, prediction) = (&candidate.expected, &candidate.prediction);
    let margin_of = |mean| Margin::of(Delay::Finite(mean), prediction.latency_target);
    match (expected.measured, expected.predicted, expected.margin) {
        (None, None, _) if candidate.extrapolated.is_some() => {
            let extrapolated = candidate.extrapolated.as_ref();
            let mean = extrapolated.map_or(Duration::ZERO, |delay| delay.mean);
            let text = format!(
                "no forecast, {} extrapolated from measurements",
                duration(mean)
            );
            (text, margin_of(mean))
        }
        (Some(mean), ..) => (format!("{} measured", duration(mean)), margin_of(mean)),
        (None, Some(mean), Some(margin)) => (format!("{} predicted", delay(mean)), margin),
        _ => {
            let mean = format!("no forecast, {} by equation 3", delay(prediction.delay));
            (mean, prediction.margin())
        }
    }
}

fn delay(delay: Delay) -> String {
    match delay {
        Delay::Finite(delay) => duration(delay),
        Delay::Overloaded => "no finite delay".to_owned(),
    }
}
