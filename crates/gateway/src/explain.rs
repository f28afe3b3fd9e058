//! Why an application is on its path, in numbers and in sentences.

use std::{collections::BTreeMap, time::Duration};

use keiro_control::{
    config::{App, AppIndex, Class, Config, PathIndex, Planner},
    protocol::{
        AggregationParameters, AggregationSnapshot, AssignedBy, Candidate as CandidateView,
        DelaySummary, DelayTerms, MoveThreshold, PathState,
    },
    rounded::{bytes, duration, percent, rate},
    units::Text,
};
use keiro_planner::{
    delay::{Delay, Margin, Prediction},
    plan::incumbent::ParameterValue,
    queueing::Invalid,
};
use keiro_units::Probability;

use crate::{
    planning::{
        Candidate, ExpectedDelay, MeasuredWorkload, MoveTrigger, Workload, WorkloadSource,
        forecast::DelayForecast, workload_of,
    },
    workload::MEASURED_MIN,
};

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
    /// What is lost on the path in use, where that counts.
    pub(crate) loss: Option<Probability>,
    /// The measured delays, if there are any.
    pub(crate) measured: Option<DelaySummary>,
    /// What is known of what it sends by measurement.
    pub(crate) seen: Option<MeasuredWorkload>,
    /// At what changes it would move.
    pub(crate) move_triggers: &'a [MoveTrigger],
    /// A site's plan decides, not this gateway's own.
    pub(crate) in_site: bool,
    /// Where the configuration or an operator wants it.
    pub(crate) wanted: Option<(PathIndex, AssignedBy)>,
    /// Paths that are up but on hold-down, and how long that lasts.
    pub(crate) trusted_in: BTreeMap<PathIndex, Duration>,
    /// How its thin traffic is gathered there; `None`: it is not.
    pub(crate) aggregation: Option<AggregationSnapshot>,
}

/// Why size, interval and copies of aggregates are what they are, with `controller = "none"`.
pub(crate) const NO_CONTROLLER: &str = "no controller changes it";

/// The terms of a prediction, for the protocol.
pub(crate) fn delay_terms(
    prediction: &Prediction,
    forecast: Option<&DelayForecast>,
    expected: &ExpectedDelay,
) -> DelayTerms {
    let terms = &prediction.terms;
    DelayTerms {
        propagation_seconds: terms.propagation.as_secs_f64(),
        length_bytes: terms.length.get() as f64,
        rate_bits_per_second: terms.bandwidth.as_bits_per_second() as f64,
        other_load_bits_per_second: terms.others.as_bits_per_second() as f64,
        paper_delay_seconds: prediction.delay.finite().map(|delay| delay.as_secs_f64()),
        predicted_delay_seconds: expected.predicted_seconds(),
        predicted: forecast.map(DelayForecast::percentiles).unwrap_or_default(),
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
            if let Some(sentence) = others_sentence(current) {
                text.push_str(&sentence);
            }
        }
        text.push_str(&self.moves_sentence());
        if let Some(measured) = &self.measured {
            let told = |seconds| duration(Duration::try_from_secs_f64(seconds).unwrap_or_default());
            text.push_str(&format!(
                " Measured over {} messages: {} on average, {} at the 99th percentile.",
                measured.count,
                told(measured.mean_seconds),
                told(measured.p99_seconds),
            ));
        }
        let (
            Workload {
                length, interval, ..
            },
            origin,
        ) = workload_of(self.app, self.seen);
        let planned = format!("{} every {}", bytes(length.get()), duration(interval));
        text.push_str(&match origin {
            WorkloadSource::Configured => String::new(),
            WorkloadSource::Measured => format!(
                " It is planned with {planned}; what is not configured of that is measured."
            ),
            WorkloadSource::BeforeRestart => format!(
                " It is planned with {planned}; what is not configured of that is remembered from \
                 before the restart, until {MEASURED_MIN} {} are measured anew.",
                match self.app.class {
                    Class::Message => "messages",
                    Class::Datagram => "datagrams",
                    Class::Stream => "pieces",
                }
            ),
            WorkloadSource::Stopped => {
                format!(" It has stopped sending, and is planned with {planned}.")
            }
            WorkloadSource::Assumed => format!(
                " What it sends is neither configured nor measured yet; {planned} is assumed, so \
                 equation 3's number is a guess."
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

    fn moves_sentence(&self) -> String {
        if self.config.gateway.planner == Planner::Greedy && self.by == AssignedBy::Planner {
            return " At what change the greedy planner, which plans from scratch, would move it is \
                    not known."
                .to_owned();
        }
        // The least change is none: the next plan moves it.
        if let Some(moves) = self
            .move_triggers
            .iter()
            .find(|moves| moves.now == moves.at)
        {
            let to = self.name(moves.to);
            return match self.in_site {
                true => {
                    format!(" The site's plan decides; this gateway's alone would move it to {to}.")
                }
                false => format!(" The next plan would move it to {to}."),
            };
        }
        let mut own = self.candidates.iter();
        let own = own.find(|own| Some(own.path) == self.path && own.extrapolated.is_some());
        if let (Some(own), Some(_), true) =
            (own, self.app.latency_target, self.by == AssignedBy::Planner)
        {
            let whose = match self.in_site {
                true => "The site's plan decides; this gateway's alone",
                false => "The plan",
            };
            return format!(
                " {whose} goes by what is measured on {}, and carries that over to the other paths: \
                 at what change it would move is not known beforehand.",
                self.name(own.path)
            );
        }
        let change = |moves: &MoveTrigger| {
            let to = self.name(moves.to);
            let of = moves.path.map(|path| self.name(path));
            let (at, now) = apart(moves.at, moves.now);
            match (of, moves.now) {
                (Some(path), ParameterValue::Time(_)) => {
                    format!("{path}'s delay were {at} (it is {now}), to {to}")
                }
                (Some(path), ParameterValue::Rate(_)) => {
                    format!("{path} carried {at} (it carries {now}), to {to}")
                }
                (None, _) => match self.app.latency_target {
                    Some(_) => format!("its latency target were {at} (it is {now}), to {to}"),
                    None => format!("it planner_specs {at}, to {to}"),
                },
            }
        };
        let changes: Vec<String> = self.move_triggers.iter().map(change).collect();
        let sentence = match (changes.is_empty(), self.by) {
            (true, AssignedBy::Planner) => "no single change would move it".to_owned(),
            (true, _) => return String::new(),
            (false, _) => format!("it would move if {}", changes.join("; or if ")),
        };
        match self.in_site {
            true => format!(" The site's plan decides; by this gateway's alone {sentence}."),
            false => format!(" {}{}.", sentence[..1].to_uppercase(), &sentence[1..]),
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
                terms: candidate
                    .map(|c| delay_terms(&c.prediction, c.forecast.as_ref(), &c.expected)),
                margin_seconds: candidate.and_then(|c| c.expected.margin_seconds()),
                target_met: candidate.and_then(|c| c.expected.met),
                judged_by: candidate.map(|c| c.expected.judged_by),
                no_forecast: candidate
                    .and_then(|c| c.forecast)
                    .and_then(|forecast| forecast.why_not()),
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
            let last = self.last.map_or_else(String::new, |last| {
                format!("; it was on {} last", self.name(last))
            });
            return format!(
                "{app} has no path: none to {} is up{last}.",
                self.config[self.app.peer].name
            );
        };
        let path = self.name(path);
        match self.by {
            AssignedBy::Planner => format!("{app} is on {path}, as planned."),
            AssignedBy::Pin => format!("{app} is on {path}, since the configuration says so."),
            AssignedBy::Operator => format!("{app} is on {path}, since an operator put it there."),
            AssignedBy::Fallback => match self.wanted {
                Some((wanted, by)) => {
                    let who = match by {
                        AssignedBy::Operator => "an operator",
                        _ => "the configuration",
                    };
                    let wanted = self.name(wanted);
                    format!("{app} is on {path} until {wanted} is up, where {who} wants it.")
                }
                None => format!("{app} is on {path}, the first path that is up."),
            },
            AssignedBy::Unassigned | AssignedBy::Unknown => format!("{app} is on {path}."),
        }
    }

    /// T + L/(W − Q) with its numbers [path-selection eq. 3], and the forecast.
    fn prediction_sentence(&self, candidate: &Candidate) -> String {
        let terms = &candidate.prediction.terms;
        let mut text = format!(
            " By equation 3 its mean delay there is T + L/(W - Q) = {} + {}/({} - {}) = {}{}.",
            duration(terms.propagation),
            bytes(terms.length.get()),
            rate(terms.bandwidth),
            rate(terms.others),
            delay(candidate.prediction.delay),
            self.loss.map_or_else(String::new, |loss| format!(
                ", T and W with what a loss of {} costs",
                percent(loss.get())
            )),
        );
        let scheduler = self.config.gateway.scheduler.as_str();
        let forecast = candidate.forecast.map(|forecast| forecast.delay);
        text.push_str(&match forecast {
            Some(Ok(told)) => format!(
                " With headers and the {scheduler} scheduler {} is predicted, and {} at the 99th \
                 percentile",
                duration(told.mean),
                duration(told.p99),
            ),
            Some(Err(why @ Invalid::Overloaded { .. })) => {
                format!(" With headers and the {scheduler} scheduler it is {why}")
            }
            Some(Err(why)) => format!(" The model gives no number ({why})"),
            None => " The model gives no number".to_owned(),
        });
        text.push_str(&self.target_clause(&candidate.expected));
        text.push('.');
        text
    }

    /// Whether the latency target is met, and by which number.
    fn target_clause(&self, expected: &ExpectedDelay) -> String {
        let (Some(latency_target), Some(met)) = (self.app.latency_target, expected.met) else {
            return "; it demands nothing".to_owned();
        };
        let latency_target = duration(latency_target);
        if let Some(mean) = expected.measured {
            return format!(
                "; {} measured, its latency target of {latency_target} is {} on average{}",
                duration(mean),
                if met { "met" } else { "missed" },
                match (met, expected.met_at_p99) {
                    (true, Some(false)) => ", but not at the 99th percentile",
                    _ => "",
                }
            );
        }
        match (expected.margin, met) {
            (Some(Margin::Spare(spare)), _) => format!(
                ": its latency target of {latency_target} is met on average, with {} to spare{}",
                duration(spare),
                match expected.met_at_p99 {
                    Some(false) => ", but not at the 99th percentile, by which it is judged",
                    _ => "",
                }
            ),
            (Some(Margin::Late(late)), met) => format!(
                ": its latency target of {latency_target} is missed by {} on average{}",
                duration(late),
                if met { ", within the tolerance" } else { "" }
            ),
            (Some(_), _) => format!("; its latency target of {latency_target} is missed"),
            (None, true) => {
                format!("; by equation 3 alone its latency target of {latency_target} is met")
            }
            (None, false) => {
                format!("; by equation 3 alone its latency target of {latency_target} is missed")
            }
        }
    }

    fn verdict(&self, candidate: &Candidate) -> String {
        let chosen = Some(candidate.path) == self.path;
        let (expected, prediction) = (&candidate.expected, &candidate.prediction);
        // Where there is no forecast, and nothing measured elsewhere, eq. 3 is all that there is to say,
        // by its name.
        let (mean, margin) = match (expected.measured, expected.predicted, expected.margin) {
            (None, None, _) if candidate.extrapolated.is_some() => {
                let extrapolated = candidate
                    .extrapolated
                    .map_or(Duration::ZERO, |delay| delay.mean);
                let mean = format!(
                    "no forecast, {} by what is measured",
                    duration(extrapolated)
                );
                (
                    mean,
                    Margin::of(Delay::Finite(extrapolated), prediction.latency_target),
                )
            }
            (Some(mean), ..) => {
                let margin = Margin::of(Delay::Finite(mean), prediction.latency_target);
                (format!("{} measured", duration(mean)), margin)
            }
            (None, Some(mean), Some(margin)) => (format!("{} predicted", delay(mean)), margin),
            _ => {
                let mean = format!("no forecast, {} by equation 3", delay(prediction.delay));
                (mean, prediction.margin())
            }
        };
        let mut verdict = match margin {
            Margin::Overloaded => "overloaded: more would arrive than it carries".to_owned(),
            Margin::NoTarget => mean,
            Margin::Spare(spare) => format!("{mean}, {} to spare", duration(spare)),
            Margin::Late(late) => format!(
                "{mean}, {} late{}",
                duration(late),
                match expected.met {
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
            let who = spoilt.join(", ");
            verdict.push_str(&match spoilt.len() {
                1 => format!("; by equation 3 {who} would miss its latency target"),
                _ => format!("; by equation 3 {who} would miss their latency targets"),
            });
        }
        if let Some(left) = self.trusted_in.get(&candidate.path) {
            let left = duration(*left);
            verdict.push_str(&format!(
                "; died of late, trusted if it stays up for {left}"
            ));
        }
        if chosen {
            verdict.push_str("; in use");
        }
        verdict
    }
}

/// How much more, or less, load by others its latency target bears there.
fn others_sentence(current: &Candidate) -> Option<String> {
    let max = current.others_max?;
    let now = current.prediction.terms.others;
    Some(match max.checked_sub(now) {
        Some(more) => format!(
            " By equation 3 its latency target holds there while others send at most {}, {} more than now.",
            rate(max),
            rate(more)
        ),
        None => format!(
            " By equation 3 its latency target would hold there if others sent at most {}, {} less than now.",
            rate(max),
            rate(now.saturating_sub(max))
        ),
    })
}

/// Two settings with as few digits as distinguish them.
fn apart(a: ParameterValue, b: ParameterValue) -> (String, String) {
    let rounded = |setting: ParameterValue| match setting {
        ParameterValue::Time(time) => duration(time),
        ParameterValue::Rate(bandwidth) => rate(bandwidth),
    };
    let exact = |setting: ParameterValue| match setting {
        ParameterValue::Time(time) => Text(time).to_string(),
        ParameterValue::Rate(bandwidth) => bandwidth.to_string(),
    };
    match (rounded(a), rounded(b)) {
        (a_rounded, b_rounded) if a_rounded == b_rounded => (exact(a), exact(b)),
        rounded => rounded,
    }
}

/// In which aggregates thin packets travel, and why.
fn gathered(aggregation: &AggregationSnapshot) -> String {
    if aggregation.stats.paused {
        let why = aggregation.why.as_deref().unwrap_or_default();
        return format!(" Nothing is gathered there by the clock, packets travel singly: {why}.");
    }
    let copies = match (aggregation.spread.as_str(), aggregation.fec) {
        _ if aggregation.stats.copies < 2 => String::new(),
        ("" | "back-to-back", _) => String::new(),
        ("paths", None) => ", the copies on different paths".to_owned(),
        ("paths", Some(_)) => ", the parity on different paths".to_owned(),
        (gap, None) => format!(", {gap} between the copies"),
        (gap, Some(_)) => format!(", {gap} between the parity packets"),
    };
    let mut text = format!(
        " What is thin of it travels there in aggregates, {}: {}{copies}.",
        aggregation.mode,
        setting(&AggregationParameters {
            size_bytes: aggregation.stats.size_bytes,
            interval_seconds: aggregation.stats.interval.as_secs_f64(),
            copies: aggregation.stats.copies,
        })
    );
    if let Some(fec) = aggregation.fec {
        text.push_str(&format!(
            " Parity takes the place of copies: {} packets for each {} aggregates.",
            fec.parity_packets, fec.group_aggregates
        ));
    }
    match (aggregation.controller.as_str(), &aggregation.why) {
        ("none", Some(why)) if why == NO_CONTROLLER => {
            text.push_str(" No controller changes that.");
        }
        ("none", Some(why)) => {
            text.push_str(&format!(
                " With controller none only the bandwidth changes that: {why}."
            ));
        }
        (controller, Some(why)) => {
            let controller = match controller {
                "" => String::new(),
                controller => format!(", by controller {controller}"),
            };
            text.push_str(&format!(
                " The last decision about that{controller}: {why}."
            ));
        }
        (controller, None) if !controller.is_empty() => {
            text.push_str(&format!(
                " Controller {controller} has decided nothing about that yet."
            ));
        }
        (_, None) => {}
    }
    if let Some(change) = &aggregation.last_change {
        let ago = Duration::from_secs_f64(change.age_seconds.max(0.0));
        text.push_str(&format!(
            " It was {} until {ago:.0?} ago: {}.",
            setting(&change.before),
            change.why
        ));
    }
    if aggregation.stats.sent_aggregates > 0 {
        text.push_str(&format!(
            " Of {} aggregates {} were lost, of {} copies {}.",
            aggregation.stats.sent_aggregates,
            aggregation.stats.lost_aggregates,
            aggregation.stats.sent_copies,
            aggregation.stats.lost_copies
        ));
    }
    text
}

fn setting(parameters: &AggregationParameters) -> String {
    let interval = duration(Duration::from_secs_f64(parameters.interval_seconds));
    let copies = match parameters.copies {
        1 => "once each".to_owned(),
        copies => format!("{copies} times each"),
    };
    let size = bytes(parameters.size_bytes);
    format!("at most {size} every {interval}, sent {copies}")
}

fn delay(delay: Delay) -> String {
    match delay {
        Delay::Finite(delay) => duration(delay),
        Delay::Overloaded => "no finite delay".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use keiro_control::config::PeerIndex;
    use keiro_planner::steer::PathSample;

    use super::*;
    use crate::planning::{
        PlannerInput, PlanningProblem,
        forecast::ForecastState,
        tests::{bursty_a5, paper, placed},
    };

    /// The explanation of the application of this number where the input put it.
    fn explained(
        config: &Config,
        input: &PlannerInput,
        number: usize,
    ) -> (String, Vec<CandidateView>) {
        let index = AppIndex(number);
        let problem = PlanningProblem::new(config, input);
        let candidates = problem.candidates(index, &ForecastState::default());
        let path = input.now[&index];
        let sample = input.up[&(path, PeerIndex(0))];
        let subject = Subject {
            config,
            app: &config[index],
            index,
            path: Some(path),
            last: None,
            by: AssignedBy::Planner,
            candidates: &candidates,
            loss: sample
                .map(|sample| sample.loss)
                .filter(|loss| loss.get() > 0.0),
            measured: None,
            seen: None,
            move_triggers: &problem.thresholds(index, &ForecastState::default()),
            in_site: false,
            wanted: None,
            trusted_in: BTreeMap::new(),
            aggregation: None,
        };
        (subject.text(), subject.views(|_| PathState::Up))
    }

    #[test]
    fn measured_delays_are_told_with_their_tail() {
        let config = paper("", "");
        let measured = DelaySummary {
            count: 500,
            mean_seconds: 0.0123,
            min_seconds: 0.01,
            p50_seconds: 0.0121,
            p90_seconds: 0.014,
            p95_seconds: 0.015,
            p99_seconds: 0.0201,
            p999_seconds: 0.03,
            max_seconds: 0.04,
        };
        let subject = Subject {
            config: &config,
            app: &config[AppIndex(2)],
            index: AppIndex(2),
            path: None,
            last: None,
            by: AssignedBy::Planner,
            candidates: &[],
            loss: None,
            measured: Some(measured),
            seen: None,
            move_triggers: &[],
            in_site: false,
            wanted: None,
            trusted_in: BTreeMap::new(),
            aggregation: None,
        };
        let text = subject.text();
        let told =
            "Measured over 500 messages: 12.3 ms on average, 20.1 ms at the 99th percentile.";
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn numbers_have_three_digits_and_names() {
        let mut config = paper("", "");
        config.apps[4].length = Some(keiro_units::ByteCount::new(10_007));
        let (text, _) = explained(&config, &placed([0, 0, 1, 0, 1]), 2);
        for part in [
            "A3 is on path2, as planned.",
            "By equation 3 its mean delay there is T + L/(W - Q) = 2 ms + 100 kB/(100 Mbit/s - 801 \
             kbit/s) = 10.1 ms.",
            "With headers and the deadline scheduler 10.",
            " is predicted, and 1",
            " ms at the 99th percentile: its latency target of 20 ms is met on average, with 9.",
            " ms to spare.",
            "path1: 1",
        ] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
        assert!(!text.contains("0.0 "), "{text}");
    }

    #[test]
    fn verdict_and_margin_are_the_forecasts() {
        // By eq. 3 A4 is 1.5 ms late on path 1, by the forecast some 38.
        let config = paper("scheduler = \"fifo\"", "");
        let (text, views) = explained(&config, &placed([0, 0, 1, 0, 1]), 3);
        assert!(
            text.contains("its latency target of 100 ms is missed by 3"),
            "{text}"
        );
        let on_path_1 = &views[0];
        let terms = on_path_1.terms.unwrap();
        let predicted = terms.predicted_delay_seconds.unwrap();
        let margin = on_path_1.margin_seconds.unwrap();
        assert!(
            (0.1 - predicted - margin).abs() < 1e-9 && margin < -0.03,
            "{margin}"
        );
        assert!(
            on_path_1.verdict.contains(" predicted, 3"),
            "{}",
            on_path_1.verdict
        );
    }

    #[test]
    fn thresholds_are_told_apart_or_said_to_be_reached() {
        let time = |micros| ParameterValue::Time(Duration::from_micros(micros));
        let told = |a, b| apart(time(a), time(b));
        assert_eq!(told(77_300, 1_000), ("77.3 ms".into(), "1 ms".into()));
        assert_eq!(told(100_200, 100_000), ("100.2ms".into(), "100ms".into()));
        // A4 is late on path 1 by eq. 3.
        let (text, _) = explained(&paper("", ""), &placed([0, 0, 1, 0, 1]), 3);
        assert!(
            text.contains(" The next plan would move it to path2."),
            "{text}"
        );
        assert!(!text.contains("would move if"), "{text}");
    }

    #[test]
    fn an_overload_is_said_in_words_and_met_by_nobody() {
        let mut config = paper("", "");
        config.paths[0].rate = keiro_units::Bandwidth::from_mbit_per_second(50);
        let (text, views) = explained(&config, &placed([0, 0, 1, 1, 1]), 0);
        assert!(
            text.contains(
                "With headers and the deadline scheduler it is overloaded: 101 % of the path's \
                 rate is asked for; its latency target of 1 s is missed."
            ),
            "{text}"
        );
        assert_eq!(views[0].target_met, Some(false));
        assert_eq!(views[0].margin_seconds, None);
        assert!(
            views[0].verdict.starts_with("overloaded: "),
            "{}",
            views[0].verdict
        );
    }

    #[test]
    fn what_has_no_forecast_is_told_by_equation_3_under_its_name() {
        let mut config = paper("", "");
        config.apps[2].length = None;
        let (text, views) = explained(&config, &placed([0, 0, 1, 0, 1]), 2);
        for part in [
            "The model gives no number (too little data: 0 of 100 messages seen); by equation 3 \
             alone its latency target of 20 ms is met.",
            "a guess",
        ] {
            assert!(text.contains(part), "no `{part}` in {text}");
        }
        let on_path_2 = &views[1];
        assert_eq!(on_path_2.terms.unwrap().predicted_delay_seconds, None);
        assert_eq!(on_path_2.margin_seconds, None);
        assert!(
            on_path_2.verdict.starts_with("no forecast, ")
                && on_path_2.verdict.contains("by equation 3"),
            "{}",
            on_path_2.verdict
        );
        assert!(on_path_2.no_forecast.is_some());
    }

    #[test]
    fn who_goes_by_measured_delays_is_not_told_what_equation_3_would_move_it_at() {
        let (mut config, mut input) = bursty_a5(23);
        input.up.values_mut().for_each(|sample| {
            *sample = Some(PathSample {
                bandwidth: keiro_units::Bandwidth::from_mbit_per_second(100),
                delay: Duration::from_millis(20),
                loss: Probability::ZERO,
            });
        });
        let (text, views) = explained(&config, &input, 4);
        let extrapolated = "The plan goes by what is measured on path2, and carries that over to the \
                       other paths: at what change it would move is not known beforehand.";
        assert!(text.contains(extrapolated), "{text}");
        assert!(!text.contains("would move if"), "{text}");
        let problem = PlanningProblem::new(&config, &input);
        let thresholds = problem.thresholds(AppIndex(4), &ForecastState::default());
        assert!(thresholds.is_empty(), "{thresholds:?}");
        // 23 ms and a fifth on a path that is as long.
        let verdict = &views[0].verdict;
        let by_measurement = "no forecast, 27.6 ms by what is measured, 2.6 ms late";
        assert!(verdict.starts_with(by_measurement), "{verdict}");
        // Who demands nothing goes by equation 3.
        config.apps[4].latency_target = None;
        let (text, _) = explained(&config, &input, 4);
        assert!(!text.contains("not known beforehand"), "{text}");
    }

    #[test]
    fn what_loss_costs_is_named_beside_the_terms() {
        let config = paper("", "");
        let mut input = placed([0, 0, 1, 0, 1]);
        let lossy = PathSample {
            bandwidth: keiro_units::Bandwidth::from_mbit_per_second(100),
            delay: Duration::from_millis(2),
            loss: Probability::new(0.05).unwrap(),
        };
        input.up.insert((PathIndex(1), PeerIndex(0)), Some(lossy));
        let (text, _) = explained(&config, &input, 2);
        assert!(
            text.contains(", T and W with what a loss of 5 % costs."),
            "{text}"
        );
    }
}
