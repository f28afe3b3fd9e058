//! `keiro plan`: what the planner would do, from the running gateway or from a file.

use std::{collections::BTreeMap, process::ExitCode};

use keiro_control::{
    config::CostPerGb,
    protocol::{
        AssignedBy, DelayTerms, JudgedBy, ModelState, PathRole, PathTermsSnapshot, PlanInSite,
        PlanSnapshot, PlannedApp, Request, Response, StoreState, WhatIf,
    },
};
use keiro_units::Bandwidth;

use super::{
    Outcome, offline,
    query::{ask, show, unexpected},
    show::{known, met, planned_met, seconds, word},
};
use crate::{
    args,
    failure::Failure,
    output::{
        Style,
        human::{self, NONE},
        table::{Cell, Table},
    },
};

/// The plan differs from what is in force.
const CHANGES: u8 = 2;
/// A latency target would be missed on average, or an application is overloaded or has no path.
const INFEASIBLE: u8 = 3;

pub(super) fn plan(args: &args::Plan) -> Outcome {
    WhatIf::check(&args.what_if)
        .map_err(|twice| Failure::usage(twice.to_string(), "suppose each thing once"))?;
    let request = Request::Plan {
        anew: args.anew,
        what_if: args.what_if.clone(),
    };
    let snapshot = match &args.config {
        Some(file) => offline::plan(file, &args.what_if)?,
        None => match ask(&args.query.socket, &request)? {
            Response::Plan(snapshot) => snapshot,
            other => return Err(unexpected(&other)),
        },
    };
    let supposed = match args.what_if.is_empty() {
        true => Supposed::Nothing,
        false => Supposed::Something,
    };
    show(&args.query, &snapshot, |plan| text(plan, supposed))?;
    Ok(match &snapshot {
        plan if !plan.feasible => ExitCode::from(INFEASIBLE),
        plan if plan.changes > 0 => ExitCode::from(CHANGES),
        _ => ExitCode::SUCCESS,
    })
}

pub(super) fn apply(args: &args::Apply) -> Outcome {
    let request = Request::Apply { anew: args.anew };
    match ask(&args.query.socket, &request)? {
        Response::Plan(snapshot) => {
            show(&args.query, &snapshot, |plan| text(plan, Supposed::Nothing))?;
            Ok(ExitCode::SUCCESS)
        }
        other => Err(unexpected(&other)),
    }
}

/// Whether a plan is for the world as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supposed {
    Nothing,
    Something,
}

/// A table of the terms of every prediction, and a summary.
pub(super) fn text(plan: &PlanSnapshot, supposed: Supposed) -> String {
    let style = Style::of_stdout();
    let mut table = Table::new(&[
        "application",
        "path",
        if plan.applied { "before" } else { "now" },
        "T>",
        "L>",
        "W>",
        "Q>",
        "H eq. 3>",
        "H model>",
        "F>",
        "margin>",
        "met",
        "p99>",
        "at p99",
    ]);
    for app in &plan.apps {
        table.row(row(app, style));
    }
    let mut text = match table.is_empty() {
        true => "no applications are configured\n".to_owned(),
        false => format!("{table}\n{LEGEND}\n"),
    };
    text.push_str(&site_loads(plan));
    for line in verdict(plan, supposed, style) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The part of Q that other gateways of the site send, by path.
fn site_loads(plan: &PlanSnapshot) -> String {
    let load = |app: &PlannedApp| {
        let load = app.terms?.site_load_bits_per_second;
        Some((app.path.clone()?, load)).filter(|(_, load)| *load > 0.0)
    };
    let loads: BTreeMap<String, f64> = plan.apps.iter().filter_map(load).collect();
    let line = |(path, load)| {
        let load = rate(load);
        format!("{path}: {load} of Q is sent by other gateways of the site\n")
    };
    loads.into_iter().map(line).collect()
}

/// Explains the columns below the table.
const LEGEND: &str = "\
T propagation delay including retransmissions, L message length, W rate of the path, Q load of other
applications on it, other gateways' of the site included, H mean delay by equation 3 and by the scheduler's model, F latency target,
margin = F - H model. met: H model <= F. at p99: the model's 99th percentile <= F, as `keiro status`
judges. Both allow for the tolerance. Where enough delays are measured and the plan changes nothing,
measured delays are used instead.";

fn row(app: &PlannedApp, style: Style) -> Vec<Cell> {
    let terms = app.terms;
    let term = |show: fn(DelayTerms) -> String| Cell::from(known(terms, show));
    vec![
        Cell::from(app.name.as_str()),
        Cell::from(app.path.as_deref().unwrap_or(NONE)),
        Cell::from(app.path_now.as_deref().unwrap_or(NONE)),
        term(|t| seconds(t.propagation_seconds)),
        term(|t| human::bytes(t.length_bytes as u64)),
        term(|t| rate(t.rate_bits_per_second)),
        term(|t| rate(t.other_load_bits_per_second)),
        Cell::from(by_equation(terms)),
        Cell::from(by_model(terms, app.judged_by)),
        Cell::from(known(app.latency_target_seconds, seconds)),
        Cell::from(known(app.margin_seconds, seconds)),
        planned_met(style, app.target_met, app.judged_by),
        term(|t| known(t.predicted.p99_seconds, seconds)),
        met(style, app.target_met_at_p99),
    ]
}

/// Equation 3's mean; without one the path is overloaded.
pub(super) fn by_equation(terms: Option<DelayTerms>) -> String {
    known(terms, |t| {
        t.paper_delay_seconds.map_or_else(overloaded, seconds)
    })
}

/// The forecast's mean; without one the application is overloaded, if it is judged by forecast.
pub(super) fn by_model(terms: Option<DelayTerms>, judged_by: Option<JudgedBy>) -> String {
    match (terms.and_then(|t| t.predicted_delay_seconds), judged_by) {
        (Some(mean), _) => seconds(mean),
        (None, Some(JudgedBy::Forecast)) => overloaded(),
        (None, _) => NONE.to_owned(),
    }
}

/// How this plan and the site's plan relate.
fn site_lines(plan: &PlanSnapshot, site: &PlanInSite, supposed: Supposed) -> Vec<String> {
    let site_plan = match (site.plan_revision, &site.plan_made_by) {
        (Some(number), Some(by)) => format!("the site's plan (number {number}, by {by})"),
        (None, Some(by)) => format!("the site's plan (by {by})"),
        (_, None) => "the site's plan (none is known yet)".to_owned(),
    };
    let mut lines = vec![match (is_cut_off(plan), plan.alone, supposed) {
        (_, true, Supposed::Something) => {
            "plan of this gateway alone; the site would make its own plan when it happens"
                .to_owned()
        }
        (false, true, Supposed::Nothing) => format!(
            "plan of this gateway alone; {site_plan} is in force, and `keiro apply` does not change it"
        ),
        (false, false, _) => format!("{site_plan} decides the paths"),
        (true, true, Supposed::Nothing) => format!(
            "plan of this gateway alone; {site_plan} takes effect again when the site's store is back"
        ),
        (true, false, _) => format!(
            "the site's store is lost: {site_plan} stays in force, except for latency targets that it \
             leaves unmet and this gateway can meet alone"
        ),
    }];
    if !site.own.is_empty() {
        let own = some_of(&site.own);
        lines.push(format!(
            "assigned by this gateway until the site's plan includes them: {own}"
        ));
    }
    lines
}

/// Applications that the planner may not move.
fn fixed_lines(plan: &PlanSnapshot) -> impl Iterator<Item = String> {
    [
        (AssignedBy::Pin, "pinned by the configuration"),
        (AssignedBy::Operator, "assigned by an operator"),
    ]
    .into_iter()
    .filter_map(|(by, text)| {
        let apps = plan.apps.iter().filter(|app| app.assigned_by == by);
        let apps: Vec<&str> = apps.map(|app| app.name.as_str()).collect();
        (!apps.is_empty()).then(|| format!("{text}: {}", some_of(&apps)))
    })
}

fn verdict(plan: &PlanSnapshot, supposed: Supposed, style: Style) -> Vec<String> {
    let no_effect = |what: &String| format!("without effect: {what}");
    let mut lines: Vec<String> = plan.without_effect.iter().map(no_effect).collect();
    let site = plan.site.iter();
    lines.extend(site.flat_map(|site| site_lines(plan, site, supposed)));
    lines.extend(fixed_lines(plan));
    lines.extend(targets_line(plan, style));
    lines.extend(overload_lines(plan).map(|line| style.bad(&line)));
    lines.extend(loss_lines(plan).map(|line| style.bad(&line)));
    lines.extend(unreachable_lines(plan));
    lines.extend(terms_lines(plan));
    if !plan.newly_unmet.is_empty() {
        let apps = some_of(&plan.newly_unmet);
        lines.push(style.bad(&format!("missed only after the supposed change: {apps}")));
    }
    lines.extend(measured_line(plan));
    lines.extend(missed_at_p99_line(plan));
    lines.extend(no_forecast_lines(plan));
    lines.extend(moves_line(plan, supposed));
    lines.push(planner_line(plan));
    lines
}

fn planner_line(plan: &PlanSnapshot) -> String {
    let optimal = match plan.optimal {
        true => ", proven optimal by equation 3",
        false => "",
    };
    let model = match plan.model {
        ModelState::Valid => "measured delays agree with the model",
        ModelState::NotValid => "measured delays do not agree with the model",
        ModelState::Unverified => "too few measured delays to check the model",
        ModelState::Off | ModelState::Unknown => "whether the model is valid is not known",
    };
    format!(
        "planner {}{optimal}, tolerance {}, planned in {}; {model}",
        word(&plan.planner),
        human::percent(plan.tolerance_ratio),
        seconds(plan.planning_seconds),
    )
}

/// How many latency targets are met, and by how much the others are missed.
fn targets_line(plan: &PlanSnapshot, style: Style) -> Option<String> {
    let with_target = plan
        .apps
        .iter()
        .filter(|app| app.latency_target_seconds.is_some());
    let count = with_target.clone().count();
    let missed: Vec<_> = with_target
        .clone()
        .filter(|app| app.target_met == Some(false))
        .collect();
    if plan.feasible {
        let by_equation = |app: &PlannedApp| app.judged_by == Some(JudgedBy::Equation3);
        let caveat = match with_target.clone().any(by_equation) {
            true => ", some by equation 3 alone",
            false => "",
        };
        return Some(match count {
            0 => "no application has a latency target, and none is overloaded".to_owned(),
            _ => style.good(&format!("all latency targets are met on average{caveat}")),
        });
    }
    if missed.is_empty() {
        return None;
    }
    // An application without a path, or an overloaded one, has no finite delay.
    let unbounded = missed.iter();
    let unbounded = unbounded.filter(|app| app.overloaded || app.path.is_none());
    let unbounded = unbounded.count();
    let lateness = seconds(plan.lateness_seconds);
    let late = match (plan.lateness_seconds > 0.0, unbounded) {
        (false, _) => String::new(),
        (true, 0) => format!(" on average, by {lateness} in total"),
        (true, _) => format!(
            " on average: {} by {lateness} in total, {unbounded} without bound",
            missed.len() - unbounded
        ),
    };
    let line = format!(
        "{} of {count} latency targets would be missed{late}",
        missed.len()
    );
    Some(style.bad(&line))
}

/// Applications whose path loses more than they tolerate.
fn loss_lines(plan: &PlanSnapshot) -> impl Iterator<Item = String> {
    plan.apps.iter().filter_map(|app| {
        let (excess, path) = app.excess_loss.as_ref().zip(app.path.as_ref())?;
        Some(format!(
            "{} loses {} on {path}, tolerates {}",
            app.name,
            human::percent(excess.loss_ratio),
            human::percent(excess.tolerance_ratio)
        ))
    })
}

/// Applications on backups and on paths that cost something, by path.
fn terms_lines(plan: &PlanSnapshot) -> impl Iterator<Item = String> {
    let mut by_path: BTreeMap<&str, (PathTermsSnapshot, Vec<&str>)> = BTreeMap::new();
    for app in &plan.apps {
        let Some((path, terms)) = app.path.as_deref().zip(app.path_terms) else {
            continue;
        };
        let (_, apps) = by_path.entry(path).or_insert((terms, Vec::new()));
        apps.push(&app.name);
    }
    by_path.into_iter().filter_map(|(path, (terms, apps))| {
        let backup = (terms.role == PathRole::Backup).then(|| "a backup".to_owned());
        let cost = CostPerGb::new(terms.cost_per_gb).filter(|cost| *cost > CostPerGb::ZERO);
        let cost = cost.map(|cost| format!("at a cost of {cost} per GB"));
        let spent = terms.budget_spent.then(|| "beyond its budget".to_owned());
        let what: Vec<String> = [backup, cost, spent].into_iter().flatten().collect();
        (!what.is_empty()).then(|| format!("{} on {path}, {}", some_of(&apps), what.join(", ")))
    })
}

/// Overloaded applications, by reason.
fn overload_lines(plan: &PlanSnapshot) -> impl Iterator<Item = String> {
    let mut by_reason: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for app in plan.apps.iter().filter(|app| app.overloaded) {
        let why = match (&app.no_forecast, app.judged_by) {
            (Some(why), Some(JudgedBy::Forecast)) => why.clone(),
            _ => "overloaded by equation 3".to_owned(),
        };
        by_reason.entry(why).or_default().push(&app.name);
    }
    by_reason
        .into_iter()
        .map(|(why, apps)| format!("{}: {why}, so delays grow without bound", some_of(&apps)))
}

/// Applications without a path, by peer.
fn unreachable_lines(plan: &PlanSnapshot) -> impl Iterator<Item = String> {
    let mut by_peer: BTreeMap<(&str, bool), Vec<&str>> = BTreeMap::new();
    for app in plan.apps.iter().filter(|app| app.path.is_none()) {
        let is_denied = app.path_terms.is_some_and(|terms| terms.budget_spent);
        let apps = by_peer.entry((&app.peer, is_denied)).or_default();
        apps.push(&app.name);
    }
    by_peer.into_iter().map(|((peer, is_denied), apps)| {
        let but = match is_denied {
            true => " but those whose budget of the month is used up",
            false => "",
        };
        format!("{}: no path to {peer} is up{but}", some_of(&apps))
    })
}

/// Applications for which measurement and model disagree about the latency target.
fn measured_line(plan: &PlanSnapshot) -> Option<String> {
    let differs = |app: &&PlannedApp| {
        let by_model = app.margin_seconds.map(|margin| margin >= 0.0);
        app.target_met.is_some() && app.target_met != by_model
    };
    let apps: Vec<String> = plan
        .apps
        .iter()
        .filter(differs)
        .filter_map(|app| {
            let mean = app.measured_mean_seconds?;
            Some(format!("{} {}", app.name, seconds(mean)))
        })
        .collect();
    (!apps.is_empty()).then(|| {
        let apps = some_of(&apps);
        format!("measured mean, which takes precedence over the model: {apps}")
    })
}

/// Latency targets that are met on average, and missed at the 99th percentile.
fn missed_at_p99_line(plan: &PlanSnapshot) -> Option<String> {
    let apps: Vec<&str> = plan
        .apps
        .iter()
        .filter(|app| app.target_met == Some(true) && app.target_met_at_p99 == Some(false))
        .map(|app| app.name.as_str())
        .collect();
    (!apps.is_empty()).then(|| {
        format!(
            "met on average, but missed at the 99th percentile: {}",
            some_of(&apps)
        )
    })
}

/// Applications without a forecast, by reason and by what is used instead.
fn no_forecast_lines(plan: &PlanSnapshot) -> impl Iterator<Item = String> {
    let mut groups: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for app in &plan.apps {
        let instead = match app.judged_by {
            Some(JudgedBy::Equation3) => "equation 3 is used",
            Some(JudgedBy::Measurement) => "the measured delay is used",
            _ => continue,
        };
        if let Some(why) = &app.no_forecast {
            let apps = groups.entry((instead, why.clone())).or_default();
            apps.push(&app.name);
        }
    }
    groups.into_iter().map(|((instead, why), apps)| {
        let apps = some_of(&apps);
        format!("{apps}: no forecast, {instead}: {why}")
    })
}

fn moves_line(plan: &PlanSnapshot, supposed: Supposed) -> Option<String> {
    let path = |path: &Option<String>| path.clone().unwrap_or_else(|| "none".to_owned());
    let moves: Vec<String> = plan
        .apps
        .iter()
        .filter(|app| app.path_now.is_some() && app.path != app.path_now)
        // To be without a path is not a move that can be applied; it is listed as unreachable.
        .filter(|app| app.path.is_some() || supposed == Supposed::Something)
        .map(|app| {
            let (from, to) = (path(&app.path_now), path(&app.path));
            format!("{} {from} → {to}", app.name)
        })
        .collect();
    let text = some_of(&moves);
    match (plan.applied, moves.is_empty()) {
        (true, true) => Some("in force, no application moved".to_owned()),
        (true, false) => Some(format!("in force, moved: {text}")),
        (false, true) => None,
        (false, false) if supposed == Supposed::Something => {
            Some(format!("would move after the supposed change: {text}"))
        }
        (false, false) if plan.alone && !is_cut_off(plan) => {
            Some(format!("would move if this gateway planned alone: {text}"))
        }
        (false, false) if plan.alone => Some(format!(
            "would move: {text}; `keiro apply --anew` applies this plan"
        )),
        (false, false) => Some(format!(
            "would move: {text}; `keiro apply` applies this plan"
        )),
    }
}

/// The store of the gateway's site is lost.
fn is_cut_off(plan: &PlanSnapshot) -> bool {
    let site = plan.site.as_ref();
    site.is_some_and(|site| site.store == StoreState::Lost)
}

/// The first [`NAMES_MAX`] names, and how many more there are.
fn some_of<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_MAX).map(T::as_ref).collect();
    let mut text = shown.join(", ");
    if names.len() > NAMES_MAX {
        text.push_str(&format!(" and {} more", names.len() - NAMES_MAX));
    }
    text
}

/// Names in one line. Ours: the table has all of them.
const NAMES_MAX: usize = 12;

fn rate(bits_per_second: f64) -> String {
    human::rate(Bandwidth::from_bits_per_second(
        bits_per_second.round() as u64
    ))
}

fn overloaded() -> String {
    "overloaded".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_for_a_missing_forecast_is_shown() {
        let app = |name: &str, judged_by: &str, why: Option<&str>| {
            serde_json::json!({
                "name": name, "peer": "b", "path": "p1", "path_now": "p1", "assigned_by": "planner",
                "judged_by": judged_by, "no_forecast": why,
            })
        };
        let plan = serde_json::json!({
            "planner": "exact", "tolerance_ratio": 0.0, "feasible": true, "optimal": false,
            "model": "unverified", "applied": false, "changes": 0, "unmet": 0,
            "lateness_seconds": 0.0, "planning_seconds": 0.001,
            "apps": [
                app("known", "measurement", None),
                app("bulk", "measurement", Some("bursty")),
                app("video", "equation3", Some("too little data")),
                app("more", "measurement", Some("bursty")),
            ],
        });
        let plan: PlanSnapshot = serde_json::from_value(plan).unwrap();
        let text = text(&plan, Supposed::Nothing);
        for line in [
            "bulk, more: no forecast, the measured delay is used: bursty\n",
            "video: no forecast, equation 3 is used: too little data\n",
        ] {
            assert!(text.contains(line), "no `{line}` in:\n{text}");
        }
        assert!(!text.contains("known:"), "{text}");
    }

    #[test]
    fn an_application_without_a_path_does_not_move_by_applying() {
        let plan = serde_json::json!({
            "planner": "exact", "tolerance_ratio": 0.0, "feasible": false, "optimal": false,
            "model": "unverified", "applied": false, "changes": 0, "unmet": 1,
            "lateness_seconds": 0.0, "planning_seconds": 0.001,
            "apps": [{
                "name": "office", "peer": "b", "path_now": "wan0", "assigned_by": "unassigned",
            }],
        });
        let plan: PlanSnapshot = serde_json::from_value(plan).unwrap();
        let shown = text(&plan, Supposed::Nothing);
        assert!(!shown.contains("would move"), "{shown}");
        assert!(shown.contains("office: no path to b is up\n"), "{shown}");
        let shown = text(&plan, Supposed::Something);
        assert!(shown.contains("office wan0 → none\n"), "{shown}");
    }
}
