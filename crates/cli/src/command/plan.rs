//! `keiro plan`: what the planner would do, from the running gateway or from a file.

use std::{collections::BTreeMap, process::ExitCode};

use keiro_control::protocol::{
    AssignedBy, DelayTerms, JudgedBy, ModelState, PlanInSite, PlanSnapshot, PlannedApp, Request,
    Response, StoreState, WhatIf,
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

/// Whether a plan is for the world as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supposed {
    Nothing,
    Something,
}

/// A table of the terms of every prediction, and what it comes to.
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
    for line in verdict(plan, supposed, style) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// What the columns are, below the table.
const LEGEND: &str = "\
T delay of the path and what its losses cost, L message length, W rate of the path, Q load by others
on it, H mean delay by equation 3 and by the model of the scheduler, F latency target, margin F less
H model; met: H model is at most F; at p99: the model's 99th percentile is, as `keiro status` judges.
Measured delays count instead where there are enough and the plan changes nothing. Both allow for the
tolerance.";

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

/// The forecast's mean; where that judges and gives none, the application is overloaded.
pub(super) fn by_model(terms: Option<DelayTerms>, judged_by: Option<JudgedBy>) -> String {
    match (terms.and_then(|t| t.predicted_delay_seconds), judged_by) {
        (Some(mean), _) => seconds(mean),
        (None, Some(JudgedBy::Forecast)) => overloaded(),
        (None, _) => NONE.to_owned(),
    }
}

/// What the site's plan has to do with it.
fn of_site(plan: &PlanSnapshot, site: &PlanInSite, supposed: Supposed) -> Vec<String> {
    let whose = match (site.plan_revision, &site.plan_made_by) {
        (Some(number), Some(by)) => format!("the site's plan (number {number}, by {by})"),
        (None, Some(by)) => format!("the site's plan (by {by})"),
        (_, None) => "the site's plan, of which none is known yet,".to_owned(),
    };
    let mut lines = vec![match (is_cut_off(plan), plan.alone, supposed) {
        (_, true, Supposed::Something) => {
            "this gateway by itself; the site's plan would be made when it happens".to_owned()
        }
        (false, true, Supposed::Nothing) => {
            format!("this gateway by itself; {whose} decides, and `keiro apply` does not change it")
        }
        (false, false, _) => format!("{whose} decides who is where"),
        (true, true, Supposed::Nothing) => {
            format!("this gateway by itself; {whose} counts again when the site's store is back")
        }
        (true, false, _) => format!(
            "the site's store is lost: {whose} stays in force where it leaves no latency target unmet that \
             this gateway can meet by itself"
        ),
    }];
    if !site.own.is_empty() {
        let own = some_of(&site.own);
        lines.push(format!(
            "placed by this gateway until the site has planned with that: {own}"
        ));
    }
    lines
}

/// Who is not the planner's to place.
fn wanted(plan: &PlanSnapshot) -> Vec<String> {
    let by = |who: AssignedBy| -> Vec<String> {
        let apps = plan.apps.iter().filter(|app| app.assigned_by == who);
        apps.map(|app| app.name.clone()).collect()
    };
    let line = |(who, what): (AssignedBy, &str)| {
        let apps = by(who);
        (!apps.is_empty()).then(|| format!("{what}: {}", some_of(&apps)))
    };
    [
        (AssignedBy::Pin, "pinned by the configuration"),
        (AssignedBy::Operator, "put where they are by an operator"),
    ]
    .into_iter()
    .filter_map(line)
    .collect()
}

fn verdict(plan: &PlanSnapshot, supposed: Supposed, style: Style) -> Vec<String> {
    let no_effect = |what: &String| format!("without effect: {what}");
    let mut lines: Vec<String> = plan.without_effect.iter().map(no_effect).collect();
    lines.extend(
        plan.site
            .iter()
            .flat_map(|site| of_site(plan, site, supposed)),
    );
    lines.extend(wanted(plan));
    lines.extend(latency_targets(plan, style));
    lines.extend(overloads(plan).map(|line| style.bad(&line)));
    lines.extend(stranded(plan));
    if !plan.newly_unmet.is_empty() {
        let who = some_of(&plan.newly_unmet);
        lines.push(style.bad(&format!("unmet because of what is supposed: {who}")));
    }
    lines.extend(measured_otherwise(plan));
    lines.extend(beyond_the_mean(plan));
    lines.extend(no_numbers(plan));
    lines.extend(moves(plan, supposed));
    lines.push(format!(
        "planner {}{}, tolerance {}, planned in {}; {}",
        word(&plan.planner),
        if plan.optimal {
            ", proven the best by equation 3"
        } else {
            ""
        },
        human::percent(plan.tolerance_ratio),
        seconds(plan.planning_seconds),
        match plan.model {
            ModelState::Valid => "measured delays agree with the model",
            ModelState::NotValid => "measured delays do not agree with the model",
            ModelState::Unverified => "nothing measured confirms the model",
            ModelState::Off | ModelState::Unknown => "whether the model holds is not known",
        }
    ));
    lines
}

/// How many demands are met, and how many there are.
fn latency_targets(plan: &PlanSnapshot, style: Style) -> Option<String> {
    let demanding = plan
        .apps
        .iter()
        .filter(|app| app.latency_target_seconds.is_some());
    let count = demanding.clone().count();
    let is_guess = |app: &PlannedApp| app.judged_by == Some(JudgedBy::Equation3);
    let far = match demanding.clone().any(is_guess) {
        true => ", as far as can be told",
        false => "",
    };
    let missed = demanding
        .clone()
        .filter(|app| app.target_met == Some(false))
        .count();
    // Who has no path, or is overloaded, is not late by any time.
    let endless = demanding
        .filter(|app| app.target_met == Some(false))
        .filter(|app| app.overloaded || app.path.is_none())
        .count();
    let late = match (plan.lateness_seconds > 0.0, endless) {
        (false, _) => String::new(),
        (true, 0) => format!(" on average, by {} in all", seconds(plan.lateness_seconds)),
        (true, _) => format!(
            " on average: {} by {} in all, {endless} without end",
            missed - endless,
            seconds(plan.lateness_seconds)
        ),
    };
    match (plan.feasible, count, missed) {
        (true, 0, _) => Some("nobody demands a delay, and nobody is overloaded".to_owned()),
        (true, ..) => Some(style.good(&format!("every latency target is met on average{far}"))),
        (false, _, 0) => None,
        (false, ..) => {
            let missed = format!("{missed} of {count} demands would be missed{late}");
            Some(style.bad(&missed))
        }
    }
}

/// Who is overloaded, by what is said of it.
fn overloads(plan: &PlanSnapshot) -> impl Iterator<Item = String> {
    let mut whom: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for app in plan.apps.iter().filter(|app| app.overloaded) {
        let why = match (&app.no_forecast, app.judged_by) {
            (Some(why), Some(JudgedBy::Forecast)) => why.clone(),
            _ => "overloaded by equation 3".to_owned(),
        };
        whom.entry(why).or_default().push(&app.name);
    }
    whom.into_iter().map(|(why, whom)| {
        let whom = some_of(&whom);
        format!("{whom}: {why}, so that delays grow without end")
    })
}

/// Who has no path, by peer.
fn stranded(plan: &PlanSnapshot) -> impl Iterator<Item = String> {
    let mut whom: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for app in plan.apps.iter().filter(|app| app.path.is_none()) {
        whom.entry(&app.peer).or_default().push(&app.name);
    }
    whom.into_iter()
        .map(|(peer, whom)| format!("{}: no path to {peer} is up", some_of(&whom)))
}

/// Who is judged by measurement, and would not be judged so by the model.
fn measured_otherwise(plan: &PlanSnapshot) -> Option<String> {
    let differs = |app: &&PlannedApp| {
        let by_model = app.margin_seconds.map(|margin| margin >= 0.0);
        app.target_met.is_some() && app.target_met != by_model
    };
    let apps = plan.apps.iter().filter(differs);
    let who: Vec<String> = apps
        .filter_map(|app| {
            let mean = app.measured_mean_seconds?;
            Some(format!("{} {}", app.name, seconds(mean)))
        })
        .collect();
    (!who.is_empty()).then(|| {
        let who = some_of(&who);
        format!("measured on average, which counts before the model: {who}")
    })
}

/// Whose demand holds on average, and not by 99 of 100 messages.
fn beyond_the_mean(plan: &PlanSnapshot) -> Option<String> {
    let met = |app: &&PlannedApp| (app.target_met, app.target_met_at_p99);
    let who = plan
        .apps
        .iter()
        .filter(|app| met(app) == (Some(true), Some(false)));
    let who: Vec<&str> = who.map(|app| app.name.as_str()).collect();
    (!who.is_empty()).then(|| {
        format!(
            "met on average, but not by 99 of 100 messages: {}",
            some_of(&who)
        )
    })
}

/// Applications without a forecast, by reason and by what counts instead.
fn no_numbers(plan: &PlanSnapshot) -> impl Iterator<Item = String> {
    let mut whom: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    for app in &plan.apps {
        let instead = match app.judged_by {
            Some(JudgedBy::Equation3) => "equation 3 stands in",
            Some(JudgedBy::Measurement) => "what was measured counts",
            _ => continue,
        };
        if let Some(why) = &app.no_forecast {
            let whom = whom.entry((instead, why.clone())).or_default();
            whom.push(&app.name);
        }
    }
    whom.into_iter().map(|((instead, why), whom)| {
        let whom = some_of(&whom);
        format!("{whom}: the model gives no number, {instead}: {why}")
    })
}

fn moves(plan: &PlanSnapshot, supposed: Supposed) -> Option<String> {
    let moves = plan
        .apps
        .iter()
        .filter(|app| app.path_now.is_some() && app.path != app.path_now);
    let moves: Vec<String> = moves
        .map(|app| {
            let path = |path: &Option<String>| path.as_deref().unwrap_or("none").to_owned();
            format!("{} {} → {}", app.name, path(&app.path_now), path(&app.path))
        })
        .collect();
    let moves = some_of(&moves);
    match (plan.applied, moves.is_empty()) {
        (true, true) => Some("in force; nothing had to move".to_owned()),
        (true, false) => Some(format!("in force; moved: {moves}")),
        (false, true) => None,
        (false, false) if supposed == Supposed::Something => {
            Some(format!("would move then: {moves}"))
        }
        (false, false) if plan.alone && !is_cut_off(plan) => Some(format!(
            "would move if this gateway planned by itself: {moves}"
        )),
        (false, false) if plan.alone => {
            Some(format!("would move: {moves}; `keiro apply --anew` does it"))
        }
        (false, false) => Some(format!("would move: {moves}; `keiro apply` does it")),
    }
}

/// The store of the gateway's site is lost.
fn is_cut_off(plan: &PlanSnapshot) -> bool {
    let site = plan.site.as_ref();
    site.is_some_and(|site| site.store == StoreState::Lost)
}

/// Names, as many as are read.
fn some_of<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_MAX).map(T::as_ref).collect();
    let mut text = shown.join(", ");
    if names.len() > NAMES_MAX {
        text.push_str(&format!(" and {} more", names.len() - NAMES_MAX));
    }
    text
}

/// Names in one line. Ours; all of them are in the table.
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
    fn why_the_model_gives_no_number_is_told_whatever_counts_instead() {
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
            "bulk, more: the model gives no number, what was measured counts: bursty\n",
            "video: the model gives no number, equation 3 stands in: too little data\n",
        ] {
            assert!(text.contains(line), "no `{line}` in:\n{text}");
        }
        assert!(!text.contains("known:"), "{text}");
    }
}
