//! The sentences of `keiro explain`.

use std::time::Duration;

use keiro_control::{
    config::{Class, CostPerGb, PathRole, PathTerms},
    protocol::{AssignedBy, DelaySummary},
    rounded::{bytes, duration, percent, rate},
    units::Text,
};
use keiro_model::path_rate::RATE_ASSUMED;
use keiro_planner::{delay::Margin, plan::incumbent::ParameterValue, queueing::NoForecast};
use keiro_planning::{Candidate, ExpectedDelay, MoveTrigger, WorkloadSource, workload_of};

use super::{Subject, aggregation, delay, loses_too_much};
use crate::workload::MEASURED_MIN;

impl Subject<'_> {
    /// Everything, as one paragraph.
    pub(crate) fn text(&self) -> String {
        let mut text = self.path_sentence();
        let current = self.candidates.iter();
        let current = current
            .clone()
            .find(|candidate| Some(candidate.path) == self.path);
        if let Some(current) = current {
            text.push_str(&self.equation_sentence(current));
            text.push_str(&self.forecast_sentence(current));
            text.push_str(&self.target_sentence(&current.expected));
            text.push_str(&self.loss_sentence(current));
            text.push_str(&self.terms_sentence(current));
            text.push_str(&self.assumed_sentence());
            text.push_str(&others_sentence(current));
        }
        text.push_str(&self.moves_sentence());
        if let Some(measured) = &self.measured {
            text.push_str(&measured_sentence(measured));
        }
        text.push_str(&self.workload_sentence());
        if let Some(aggregation) = &self.aggregation {
            text.push_str(&aggregation::text(aggregation));
        }
        let others = self.candidates.iter();
        for other in others.filter(|candidate| Some(candidate.path) != self.path) {
            let verdict = self.verdict(other);
            text.push_str(&format!(" {}: {verdict}.", self.name(other.path)));
        }
        text
    }

    fn path_sentence(&self) -> String {
        let app = &self.app.name;
        let Some(path) = self.path else {
            let last = self.last.map_or_else(String::new, |last| {
                format!("; its last path was {}", self.name(last))
            });
            let why = self.no_path.unwrap_or("it waits for one");
            return format!("{app} has no path: {why}{last}.");
        };
        let path = self.name(path);
        match self.by {
            AssignedBy::Planner => format!("{app} is on {path}, as planned."),
            AssignedBy::Pin => format!("{app} is on {path}, as configured."),
            AssignedBy::Operator => format!("{app} is on {path}, assigned by an operator."),
            AssignedBy::Fallback => match self.assigned {
                Some((assigned, by)) => {
                    let by = match by {
                        AssignedBy::Operator => "an operator",
                        _ => "the configuration",
                    };
                    let assigned = self.name(assigned);
                    format!("{app} is on {path} until {assigned} is up, to which {by} assigned it.")
                }
                None => format!("{app} is on {path}, the first path that is up."),
            },
            AssignedBy::Unassigned | AssignedBy::Unknown => format!("{app} is on {path}."),
        }
    }

    /// T + L/(W − Q) with its numbers [path-selection eq. 3].
    fn equation_sentence(&self, candidate: &Candidate) -> String {
        let terms = &candidate.prediction.terms;
        let loss = self.loss.map_or_else(String::new, |loss| {
            format!(", T and W adjusted for a loss of {}", percent(loss.get()))
        });
        format!(
            " Mean delay by equation 3: T + L/(W - Q) = {} + {}/({} - {}) = {}{loss}.{}",
            duration(terms.propagation),
            bytes(terms.length.get()),
            rate(terms.bandwidth),
            rate(terms.others),
            delay(candidate.prediction.delay),
            self.site_sentence(candidate),
        )
    }

    /// Of which paths W is assumed.
    fn assumed_sentence(&self) -> String {
        let of_candidates = self.candidates.iter().map(|candidate| candidate.path);
        let names: Vec<_> = of_candidates
            .filter(|path| self.assumed.contains(path))
            .map(|path| self.name(path))
            .collect();
        match names.is_empty() {
            true => String::new(),
            false => format!(
                " What {} carries has not shown yet: {} are assumed.",
                names.join(" or "),
                rate(RATE_ASSUMED)
            ),
        }
    }

    /// Other gateways' part of Q, and how much is known of them.
    fn site_sentence(&self, candidate: &Candidate) -> String {
        let uses = self.shared.of(candidate.path);
        let parts: Vec<String> = uses
            .iter()
            .map(|on_line| format!("{} by gateway {}", rate(on_line.load), on_line.gateway))
            .collect();
        let known = match parts.is_empty() {
            true => String::new(),
            false => format!(" Of Q, {}.", parts.join(", ")),
        };
        match self.store_lost {
            Some(lost) if parts.is_empty() => format!(
                " The plan store has not answered for {}: what other gateways send is not known.",
                duration(lost)
            ),
            Some(lost) => format!(
                "{known} The plan store has not answered for {}, and that is as old.",
                duration(lost)
            ),
            None => known,
        }
    }

    fn forecast_sentence(&self, candidate: &Candidate) -> String {
        let scheduler = self.config.gateway.scheduler.as_str();
        let model = format!("with headers and the {scheduler} scheduler");
        match candidate.forecast.map(|forecast| forecast.delay) {
            Some(Ok(forecast)) => format!(
                " Forecast {model}: {} on average, {} at the 99th percentile.",
                duration(forecast.mean),
                duration(forecast.p99),
            ),
            Some(Err(why @ NoForecast::Overloaded { .. })) => format!(" Forecast {model}: {why}."),
            Some(Err(why)) => format!(" No forecast: {why}."),
            None => " No forecast.".to_owned(),
        }
    }

    /// Whether the latency target is met, and by which number.
    fn target_sentence(&self, expected: &ExpectedDelay) -> String {
        let (Some(latency_target), Some(met)) = (self.app.latency_target, expected.met) else {
            return " It has no latency target.".to_owned();
        };
        let missed_at_p99 = met && expected.met_at_p99 == Some(false);
        let verdict = match (expected.measured, expected.margin) {
            (Some(mean), _) => format!(
                "{} with {} measured on average{}",
                met_or_missed(met),
                duration(mean),
                if missed_at_p99 {
                    ", missed at the 99th percentile"
                } else {
                    ""
                }
            ),
            (None, Some(Margin::Spare(spare))) => format!(
                "met on average, with {} to spare{}",
                duration(spare),
                match expected.met_at_p99 {
                    Some(false) => ", but missed at the 99th percentile, which decides",
                    _ => "",
                }
            ),
            (None, Some(Margin::Late(late))) => format!(
                "missed by {} on average{}",
                duration(late),
                if met { ", within the tolerance" } else { "" }
            ),
            (None, Some(_)) => "missed".to_owned(),
            (None, None) => format!("{} by equation 3 alone", met_or_missed(met)),
        };
        let latency_target = duration(latency_target);
        format!(" Latency target of {latency_target}: {verdict}.")
    }

    /// What is lost there without repair, where that is more than the application tolerates.
    fn loss_sentence(&self, candidate: &Candidate) -> String {
        let Some(excess) = &candidate.excess_loss else {
            return String::new();
        };
        let path = self.name(candidate.path);
        let what = match self.by {
            AssignedBy::Planner => "it stays as no other path serves it better",
            _ => "it stays as it is assigned to the path",
        };
        format!(" On {path} it {}; {what}.", loses_too_much(excess))
    }

    /// Role and cost of the path in use, where it has any.
    fn terms_sentence(&self, candidate: &Candidate) -> String {
        let PathTerms {
            role,
            cost,
            is_spent,
        } = candidate.terms;
        let path = self.name(candidate.path);
        let mut text = String::new();
        if role == PathRole::Backup {
            let why = match self.by {
                AssignedBy::Planner => self.why_on_backup(),
                _ => "it stays as it is assigned to the path",
            };
            text.push_str(&format!(" {path} is a backup: {why}."));
        }
        if cost > CostPerGb::ZERO {
            text.push_str(&format!(" {path} costs {cost} per GB."));
        }
        if is_spent {
            text.push_str(&format!(
                " The budget of {path} for this month is used up; it is essential and has no other path."
            ));
        }
        text
    }

    /// Why the planner has it on a backup.
    fn why_on_backup(&self) -> &'static str {
        let is_primary = |candidate: &&Candidate| {
            let terms = candidate.terms;
            terms.role == PathRole::Primary && !terms.is_spent
        };
        let primary = || self.candidates.iter().filter(is_primary);
        if primary().next().is_none() {
            return "no primary path is up";
        }
        if self.app.latency_target.is_none() {
            return "no primary path may be used yet, or each loses too much";
        }
        let meeting: Vec<&Candidate> = primary()
            .filter(|path| path.expected.met == Some(true))
            .collect();
        match meeting.iter().any(|path| path.newly_unmet.is_empty()) {
            true => {
                "a primary path meets its target, too; it goes there as soon as that leaves a fifth of the target to \
                 spare, or after five minutes"
            }
            false if !meeting.is_empty() => {
                "on a primary path it would cost other applications their targets"
            }
            false => "no primary path meets its target",
        }
    }

    fn moves_sentence(&self) -> String {
        // The least change is none: the next plan moves it.
        let mut triggers = self.move_triggers.iter();
        if let Some(trigger) = triggers.find(|trigger| trigger.now == trigger.at) {
            let to = self.name(trigger.to);
            return match self.in_site {
                true => {
                    format!(" The site's plan decides; this gateway alone would move it to {to}.")
                }
                false => format!(" The next plan would move it to {to}."),
            };
        }
        let mut own = self.candidates.iter();
        let own = own.find(|own| Some(own.path) == self.path && own.extrapolated.is_some());
        if let (Some(own), Some(_), AssignedBy::Planner) = (own, self.app.latency_target, self.by) {
            let subject = match self.in_site {
                true => "The site's plan decides; a plan of this gateway alone",
                false => "The plan",
            };
            let path = self.name(own.path);
            return format!(
                " {subject} extrapolates the delay measured on {path} to the other paths, so the \
                 change at which it would move is not known."
            );
        }
        let changes = self.move_triggers.iter();
        let changes: Vec<String> = changes.map(|trigger| self.trigger_text(trigger)).collect();
        let sentence = match (changes.is_empty(), self.by) {
            (true, AssignedBy::Planner) => "no single change would move it".to_owned(),
            (true, _) => return String::new(),
            (false, _) => format!("it would move {}", changes.join("; or ")),
        };
        match self.in_site {
            true => format!(" The site's plan decides; with this gateway alone {sentence}."),
            false => format!(" {}{}.", sentence[..1].to_uppercase(), &sentence[1..]),
        }
    }

    /// `to path1 if the delay of path2 were 77.3 ms (now 1 ms)`.
    fn trigger_text(&self, trigger: &MoveTrigger) -> String {
        let to = self.name(trigger.to);
        let path = trigger.path.map(|path| self.name(path));
        let (at, now) = distinct(trigger.at, trigger.now);
        match (path, trigger.now) {
            (Some(path), ParameterValue::Time(_)) => {
                format!("to {to} if the delay of {path} were {at} (now {now})")
            }
            (Some(path), ParameterValue::Rate(_)) => {
                format!("to {to} if the rate of {path} were {at} (now {now})")
            }
            (None, _) if self.app.latency_target.is_some() => {
                format!("to {to} if its latency target were {at} (now {now})")
            }
            (None, _) => format!("to {to} if it had a latency target of {at}"),
        }
    }

    fn workload_sentence(&self) -> String {
        let (workload, source) = workload_of(self.app, self.workload);
        let planned = format!(
            "{} every {}",
            bytes(workload.length.get()),
            duration(workload.interval)
        );
        match source {
            WorkloadSource::Configured => String::new(),
            WorkloadSource::Measured => {
                format!(" Planned workload: {planned}, measured where not configured.")
            }
            WorkloadSource::BeforeRestart => format!(
                " Planned workload: {planned}, where not configured as measured before the \
                 restart, until {MEASURED_MIN} new {} are measured.",
                match self.app.class {
                    Class::Message => "messages",
                    Class::Datagram => "datagrams",
                    Class::Stream => "pieces",
                }
            ),
            WorkloadSource::Stopped => {
                format!(" It has stopped sending. Planned workload: {planned}.")
            }
            WorkloadSource::Assumed => format!(
                " Planned workload: {planned}, assumed, since none is configured or measured yet; \
                 the delay by equation 3 is therefore a rough estimate."
            ),
        }
    }
}

fn met_or_missed(met: bool) -> &'static str {
    match met {
        true => "met",
        false => "missed",
    }
}

fn measured_sentence(measured: &DelaySummary) -> String {
    let [mean, p99] = [measured.mean_seconds, measured.p99_seconds]
        .map(|seconds| duration(Duration::try_from_secs_f64(seconds).unwrap_or_default()));
    format!(
        " Measured over {} messages: {mean} on average, {p99} at the 99th percentile.",
        measured.count
    )
}

/// How much more or less load by others the latency target allows.
fn others_sentence(current: &Candidate) -> String {
    let Some(max) = current.others_max else {
        return String::new();
    };
    let now = current.prediction.terms.others;
    match max.checked_sub(now) {
        Some(more) => format!(
            " By equation 3 it meets the target while other traffic on the path stays below {}, {} \
             more than now.",
            rate(max),
            rate(more)
        ),
        None => format!(
            " By equation 3 it would meet the target if other traffic on the path were below {}, {} \
             less than now.",
            rate(max),
            rate(now.saturating_sub(max))
        ),
    }
}

/// Two values with as few digits as distinguish them.
pub(super) fn distinct(a: ParameterValue, b: ParameterValue) -> (String, String) {
    match (rounded(a), rounded(b)) {
        (a_rounded, b_rounded) if a_rounded == b_rounded => (exact(a), exact(b)),
        rounded => rounded,
    }
}

fn rounded(value: ParameterValue) -> String {
    match value {
        ParameterValue::Time(time) => duration(time),
        ParameterValue::Rate(bandwidth) => rate(bandwidth),
    }
}

fn exact(value: ParameterValue) -> String {
    match value {
        ParameterValue::Time(time) => Text(time).to_string(),
        ParameterValue::Rate(bandwidth) => bandwidth.to_string(),
    }
}
