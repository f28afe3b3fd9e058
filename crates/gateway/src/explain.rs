//! Why an application is where it is, in numbers and in sentences.

use std::time::Duration;

use keiro_control::{
    config::{App, AppIndex, Config, PathIndex},
    protocol::{
        AggregationParameters, AggregationSnapshot, AssignedBy, Candidate as CandidateView,
        DelayTerms, MoveThreshold, PathState,
    },
};
use keiro_model::{
    Bandwidth,
    delay::{Delay, Margin, Prediction},
    plan::incumbent::Setting,
};

use crate::{
    planning::{Candidate, MovesAt, Origin, Seen, Workload, outlook::Outlook, workload_of},
    replan::MEASURED_MIN,
    state::millis,
};

/// What is known about one application.
pub(crate) struct Subject<'a> {
    pub(crate) config: &'a Config,
    pub(crate) app: &'a App,
    pub(crate) index: AppIndex,
    /// The path in use.
    pub(crate) path: Option<PathIndex>,
    pub(crate) by: AssignedBy,
    /// Of the paths that are up.
    pub(crate) candidates: &'a [Candidate],
    /// Mean of the measured delays and how many there are.
    pub(crate) measured: Option<(Duration, u64)>,
    /// What is known of what it sends by measurement.
    pub(crate) seen: Option<Seen>,
    /// At what changes it would move.
    pub(crate) moves_at: &'a [MovesAt],
    /// How its thin traffic is gathered there; `None`: it is not.
    pub(crate) aggregation: Option<AggregationSnapshot>,
}

/// The terms of a prediction, for the protocol.
pub(crate) fn delay_terms(prediction: &Prediction, outlook: Option<&Outlook>) -> DelayTerms {
    let mean = outlook.and_then(Outlook::mean).unwrap_or(prediction.delay);
    let terms = &prediction.terms;
    DelayTerms {
        propagation_seconds: terms.propagation.as_secs_f64(),
        length_bytes: terms.length.get() as f64,
        rate_bits_per_second: terms.bandwidth.as_bits_per_second() as f64,
        other_load_bits_per_second: terms.others.as_bits_per_second() as f64,
        paper_delay_seconds: prediction.delay.finite().map(|delay| delay.as_secs_f64()),
        predicted_delay_seconds: mean.finite().map(|delay| delay.as_secs_f64()),
        predicted: outlook.map(Outlook::percentiles).unwrap_or_default(),
    }
}

/// The demand minus the predicted delay, seconds; `None` without demand or finite delay.
pub(crate) fn margin_seconds(prediction: &Prediction) -> Option<f64> {
    match prediction.margin() {
        Margin::Spare(spare) => Some(spare.as_secs_f64()),
        Margin::Late(late) => Some(-late.as_secs_f64()),
        Margin::NoDemand | Margin::Overloaded => None,
    }
}

impl Subject<'_> {
    /// The whole story.
    pub(crate) fn text(&self) -> String {
        let mut text = self.where_and_who();
        let current = self
            .candidates
            .iter()
            .find(|candidate| Some(candidate.path) == self.path);
        if let Some(current) = current {
            text.push_str(&self.prediction_sentence(current));
            if let Some(sentence) = self.others_sentence(current) {
                text.push_str(&sentence);
            }
        }
        text.push_str(&self.moves_sentence());
        if let Some((mean, count)) = self.measured {
            text.push_str(&format!(
                " Measured over {count} messages: {} on average.",
                millis(mean)
            ));
        }
        let (
            Workload {
                length, interval, ..
            },
            origin,
        ) = workload_of(self.app, self.seen);
        let planned = format!("{length} every {}", millis(interval));
        text.push_str(&match origin {
            Origin::Configured => String::new(),
            Origin::Measured => format!(
                " It is planned with {planned}; what is not configured of that is measured."
            ),
            Origin::Remembered => format!(
                " It is planned with {planned}; what is not configured of that is remembered from \
                 before the restart, until {MEASURED_MIN} messages are measured anew."
            ),
            Origin::Stopped => format!(" It has stopped sending, and is planned with {planned}."),
            Origin::Unknown => format!(
                " What it sends is neither configured nor measured yet; {planned} is assumed, so \
                 the prediction is a guess."
            ),
        });
        if let Some(aggregation) = &self.aggregation {
            text.push_str(&gathered(aggregation));
        }
        let others = self
            .candidates
            .iter()
            .filter(|candidate| Some(candidate.path) != self.path);
        for other in others {
            text.push_str(&format!(
                " {}: {}.",
                self.name(other.path),
                self.verdict(other)
            ));
        }
        text
    }

    /// At what changes it would move, for the protocol.
    pub(crate) fn would_move(&self) -> Vec<MoveThreshold> {
        let threshold = |moves: &MovesAt| {
            let to = self.name(moves.to).to_owned();
            let path = moves.path.map(|path| self.name(path).to_owned());
            match (path, moves.now, moves.at) {
                (Some(path), Setting::Time(now), Setting::Time(at)) => MoveThreshold::PathDelay {
                    path,
                    now_seconds: now.as_secs_f64(),
                    at_seconds: at.as_secs_f64(),
                    to,
                },
                (Some(path), Setting::Rate(now), Setting::Rate(at)) => MoveThreshold::PathRate {
                    path,
                    now_bits_per_second: now.as_bits_per_second(),
                    at_bits_per_second: at.as_bits_per_second(),
                    to,
                },
                (None, Setting::Time(now), Setting::Time(at)) => MoveThreshold::Demand {
                    now_seconds: now.as_secs_f64(),
                    at_seconds: at.as_secs_f64(),
                    to,
                },
                _ => MoveThreshold::Unknown,
            }
        };
        self.moves_at.iter().map(threshold).collect()
    }

    fn moves_sentence(&self) -> String {
        let change = |moves: &MovesAt| {
            let to = self.name(moves.to);
            let of = moves.path.map(|path| self.name(path));
            match (of, moves.now, moves.at) {
                (Some(path), Setting::Time(now), Setting::Time(at)) => {
                    let (at, now) = (millis(at), millis(now));
                    format!("{path}'s delay were {at} (it is {now}), to {to}")
                }
                (Some(path), Setting::Rate(now), Setting::Rate(at)) => {
                    let (at, now) = (rounded(at), rounded(now));
                    format!("{path} carried {at} (it carries {now}), to {to}")
                }
                (_, Setting::Time(now), Setting::Time(at)) => {
                    let (at, now) = (millis(at), millis(now));
                    match self.app.demand {
                        Some(_) => format!("its demand were {at} (it is {now}), to {to}"),
                        None => format!("it demanded {at}, to {to}"),
                    }
                }
                _ => String::new(),
            }
        };
        let changes: Vec<String> = self.moves_at.iter().map(change).collect();
        match (changes.is_empty(), self.by) {
            (true, AssignedBy::Planner) => " No single change would move it.".to_owned(),
            (true, _) => String::new(),
            (false, _) => format!(" It would move if {}.", changes.join("; or if ")),
        }
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
                None if state == PathState::Validating => "has not answered yet".into(),
                None => "is down".into(),
            };
            CandidateView {
                path: self.name(path).to_owned(),
                state,
                chosen: self.path == Some(path),
                terms: candidate.map(|c| delay_terms(&c.prediction, c.outlook.as_ref())),
                margin_seconds: candidate.and_then(|c| margin_seconds(&c.prediction)),
                demand_met: candidate.and_then(|c| c.met),
                verdict,
            }
        };
        (0..self.config.paths.len()).map(view).collect()
    }

    fn name(&self, path: PathIndex) -> &str {
        self.config[path].name.as_str()
    }

    fn where_and_who(&self) -> String {
        let app = &self.app.name;
        let Some(path) = self.path else {
            return format!(
                "{app} has no path: none to {} is up.",
                self.config[self.app.peer].name
            );
        };
        let path = self.name(path);
        match self.by {
            AssignedBy::Planner => format!("{app} is on {path}, as planned."),
            AssignedBy::Pin => format!("{app} is on {path}, since the configuration says so."),
            AssignedBy::Operator => format!("{app} is on {path}, since an operator put it there."),
            AssignedBy::Fallback => {
                format!("{app} is on {path}, the first path that is up; no better one was chosen.")
            }
            AssignedBy::Nobody | AssignedBy::Unknown => format!("{app} is on {path}."),
        }
    }

    /// T + L/(W − Q) with its numbers [path-selection eq. 3].
    fn prediction_sentence(&self, candidate: &Candidate) -> String {
        let terms = &candidate.prediction.terms;
        let mut text = format!(
            " Predicted there: T + L/(W - Q) = {} + {}/({} - {}) = {}",
            millis(terms.propagation),
            terms.length,
            terms.bandwidth,
            rounded(terms.others),
            delay(candidate.prediction.delay),
        );
        let scheduler = self.config.gateway.scheduler.as_str();
        match candidate.outlook.map(|outlook| outlook.delay) {
            Some(Ok(told)) => text.push_str(&format!(
                "; with headers and the {scheduler} scheduler {} on average, {} at the 99th percentile",
                millis(told.mean),
                millis(told.p99),
            )),
            Some(Err(why)) => text.push_str(&format!("; no better forecast ({why})")),
            None => {}
        }
        match candidate.prediction.margin() {
            Margin::Spare(spare) => text.push_str(&format!(
                "; the demand of {} is met with {} to spare.",
                millis(self.app.demand.unwrap_or_default()),
                millis(spare)
            )),
            Margin::Late(late) => text.push_str(&format!(
                "; the demand of {} is missed by {}{}.",
                millis(self.app.demand.unwrap_or_default()),
                millis(late),
                match candidate.met {
                    Some(true) => ", within the tolerance",
                    _ => "",
                }
            )),
            Margin::Overloaded => text.push_str("; more arrives than the path carries."),
            Margin::NoDemand => text.push_str("; it demands nothing."),
        }
        text
    }

    /// What would move it.
    fn others_sentence(&self, current: &Candidate) -> Option<String> {
        let max = current.others_max?;
        let now = current.prediction.terms.others;
        let path = self.name(current.path);
        Some(match max.checked_sub(now) {
            Some(more) => format!(
                " It stays while others send at most {} on {path}: {} more than now.",
                rounded(max),
                rounded(more)
            ),
            None => format!(
                " Its demand would hold there if others sent at most {}, {} less than now.",
                rounded(max),
                rounded(now.saturating_sub(max))
            ),
        })
    }

    fn verdict(&self, candidate: &Candidate) -> String {
        let chosen = Some(candidate.path) == self.path;
        let predicted = delay(candidate.prediction.delay);
        let mut verdict = match candidate.prediction.margin() {
            Margin::Overloaded => "overloaded: more would arrive than it carries".to_owned(),
            Margin::NoDemand => format!("{predicted} predicted"),
            Margin::Spare(spare) => format!("{predicted} predicted, {} to spare", millis(spare)),
            Margin::Late(late) => format!(
                "{predicted} predicted, {} late{}",
                millis(late),
                match candidate.met {
                    Some(true) => " but within the tolerance",
                    _ => "",
                }
            ),
        };
        let spoilt = candidate
            .newly_unmet
            .iter()
            .filter(|app| **app != self.index);
        let spoilt: Vec<&str> = spoilt.map(|app| self.config[*app].name.as_str()).collect();
        if !spoilt.is_empty() {
            verdict.push_str(&format!("; {} would miss its demand", spoilt.join(", ")));
        }
        if chosen {
            verdict.push_str("; in use");
        }
        verdict
    }
}

/// In which aggregates thin packets travel, and why.
fn gathered(aggregation: &AggregationSnapshot) -> String {
    if aggregation.paused {
        let why = aggregation.why.as_deref().unwrap_or_default();
        return format!(" Nothing is gathered there by the clock, packets travel singly: {why}.");
    }
    let mut text = format!(
        " What is thin of it travels there in aggregates, {}: {}.",
        aggregation.mode,
        setting(&aggregation.parameters)
    );
    if let Some(fec) = aggregation.fec {
        text.push_str(&format!(
            " Parity takes the place of copies: {} packets for each {} aggregates.",
            fec.parity_packets, fec.group_aggregates
        ));
    }
    if let Some(why) = &aggregation.why {
        text.push_str(&format!(" The last decision about that: {why}."));
    }
    if let Some(change) = &aggregation.last_change {
        let ago = Duration::from_secs_f64(change.age_seconds.max(0.0));
        text.push_str(&format!(
            " It was {} until {ago:.0?} ago: {}.",
            setting(&change.before),
            change.why
        ));
    }
    if aggregation.sent_aggregates > 0 {
        text.push_str(&format!(
            " Of {} aggregates {} were lost, of {} copies {}.",
            aggregation.sent_aggregates,
            aggregation.lost_aggregates,
            aggregation.sent_copies,
            aggregation.lost_copies
        ));
    }
    text
}

fn setting(parameters: &AggregationParameters) -> String {
    let interval = Duration::from_secs_f64(parameters.interval_seconds);
    let copies = match parameters.copies {
        1 => "once each".to_owned(),
        copies => format!("{copies} times each"),
    };
    let size = parameters.size_bytes;
    format!("at most {size} B every {interval:?}, sent {copies}")
}

fn delay(delay: Delay) -> String {
    match delay {
        Delay::Finite(delay) => millis(delay),
        Delay::Overloaded => "no finite delay".to_owned(),
    }
}

/// Mbit/s with one digit after the point: rates of applications are rounded up to odd bit/s.
fn rounded(rate: Bandwidth) -> String {
    format!("{:.1} Mbit/s", rate.as_bits_per_second() as f64 * 1e-6)
}
