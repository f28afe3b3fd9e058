//! `keiro plan`: what the planner would do, from the running gateway or from a file.

use std::process::ExitCode;

use keiro_control::protocol::{DelayTerms, PlanSnapshot, PlannedApp, Request, Response};
use keiro_model::Bandwidth;

use super::{
    Outcome, offline,
    query::{ask, show, unexpected},
    show::{known, met, seconds, word},
};
use crate::{
    args,
    output::{
        Style,
        human::{self, NONE},
        table::{Cell, Table},
    },
};

/// The plan differs from what is in force.
const CHANGES: u8 = 2;
/// A demand cannot be met.
const INFEASIBLE: u8 = 3;

pub(super) fn plan(args: &args::Plan) -> Outcome {
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
        "now",
        "T>",
        "L>",
        "W>",
        "Q>",
        "H eq. 3>",
        "H model>",
        "p99>",
        "F>",
        "margin>",
        "met",
    ]);
    for app in &plan.apps {
        table.row(row(app, style));
    }
    let mut text = match table.is_empty() {
        true => "no applications are configured\n".to_owned(),
        false => format!(
            "{table}\nT propagation delay, L message length, W rate of the path, Q load by others on it, \
             H mean delay, p99 by the model, F demand\n"
        ),
    };
    for line in verdict(plan, supposed, style) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

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
        term(|t| t.paper_delay_seconds.map_or_else(overloaded, seconds)),
        term(|t| t.predicted_delay_seconds.map_or_else(overloaded, seconds)),
        term(|t| known(t.predicted.p99_seconds, seconds)),
        Cell::from(known(app.demand_seconds, seconds)),
        Cell::from(known(app.margin_seconds, seconds)),
        met(style, app.demand_met),
    ]
}

fn verdict(plan: &PlanSnapshot, supposed: Supposed, style: Style) -> Vec<String> {
    let mut lines = vec![match plan.feasible {
        true => style.good("every demand is met under the model"),
        false => style.bad(&format!(
            "{} of {} would not get what they demand{}",
            plan.unmet,
            count(plan.apps.len() as u64, "application"),
            lateness(plan)
        )),
    }];
    let stranded = plan.apps.iter().filter(|app| app.path.is_none());
    lines.extend(stranded.map(|app| format!("{}: no path to {} is up", app.name, app.peer)));
    if !plan.newly_unmet.is_empty() {
        let who = plan.newly_unmet.join(", ");
        lines.push(style.bad(&format!("met now, and no longer then: {who}")));
    }
    for app in plan.apps.iter().filter(|app| app.path.is_some()) {
        if let Some(why) = &app.no_forecast {
            lines.push(format!("{}: the model gives no numbers: {why}", app.name));
        }
    }
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
    match (plan.applied, moves.is_empty()) {
        (true, true) => lines.push("in force; nothing had to move".to_owned()),
        (true, false) => lines.push(format!("in force; moved: {}", moves.join(", "))),
        (false, false) if supposed == Supposed::Something => {
            lines.push(format!("would move then: {}", moves.join(", ")));
        }
        (false, false) => {
            lines.push(format!(
                "would move: {}; `keiro apply` does it",
                moves.join(", ")
            ));
        }
        (false, true) => {}
    }
    lines.push(format!(
        "planner {}{}, tolerance {}, {}; model {}",
        word(&plan.planner),
        if plan.optimal {
            ", proven the best"
        } else {
            ""
        },
        human::percent(plan.tolerance_ratio),
        seconds(plan.planning_seconds),
        word(&plan.model)
    ));
    lines
}

/// Who has no path, or an overloaded one, is not late by any time.
fn lateness(plan: &PlanSnapshot) -> String {
    match plan.lateness_seconds > 0.0 {
        true => format!(", late by {} in all", seconds(plan.lateness_seconds)),
        false => String::new(),
    }
}

fn rate(bits_per_second: f64) -> String {
    human::rate(Bandwidth::from_bits_per_second(
        bits_per_second.round() as u64
    ))
}

fn overloaded() -> String {
    "overloaded".to_owned()
}

fn count(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
