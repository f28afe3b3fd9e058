//! More about the selected row: an application's explanation, all figures of a path or tenant, an event's text.

use keiro_control::{
    config::CostPerGb,
    protocol::{Candidate, Explanation, PathSnapshot, TenantSnapshot},
};
use keiro_stats::StatSet;
use keiro_terminal::{output::human, printable};
use ratatui_core::text::Span;

use crate::{
    data::{Data, Explained, Snapshot},
    rows::{path_key, seconds, word},
    table::Row,
    view::Tab,
};

/// The title, and lines of at most `width` cells.
pub(crate) fn of(data: &Data, tab: Tab, row: &Row, width: usize) -> (String, Vec<String>) {
    let lines = match (tab, data.snapshot.as_deref()) {
        (Tab::Apps, _) => explanation(data.explained.as_ref(), &row.key),
        (Tab::Paths, Some(snapshot)) => path(snapshot, &row.key),
        (Tab::Tenants, Some(snapshot)) => tenant(snapshot, &row.key),
        (Tab::Events, _) => row.cells.iter().map(|cell| cell.text.clone()).collect(),
        (Tab::Paths | Tab::Tenants, None) => Vec::new(),
    };
    let title = match tab {
        Tab::Apps => format!("why {} is where it is", row.cells[0].text),
        Tab::Paths => format!("path {} to {}", row.cells[0].text, row.cells[1].text),
        Tab::Tenants => format!("tenant {}", row.cells[0].text),
        Tab::Events => "event".to_owned(),
    };
    let wrapped = lines
        .iter()
        .flat_map(|line| wrapped(&printable(line), width));
    (title, wrapped.collect())
}

fn explanation(explained: Option<&Explained>, app: &str) -> Vec<String> {
    match explained.filter(|explained| explained.app == app) {
        Some(Explained {
            answer: Ok(answer), ..
        }) => reasons(answer),
        Some(Explained {
            answer: Err(why), ..
        }) => vec![why.clone()],
        None => vec!["the gateway is asked …".to_owned()],
    }
}

fn reasons(explanation: &Explanation) -> Vec<String> {
    let mut lines = vec![explanation.text.clone(), String::new()];
    lines.extend(explanation.candidates.iter().map(candidate));
    if let Some(event) = &explanation.last_move {
        lines.push(format!("last move: {}", event.time));
    }
    lines
}

fn candidate(candidate: &Candidate) -> String {
    let in_use = if candidate.chosen { ", in use" } else { "" };
    let terms = candidate.terms.as_ref();
    let predicted =
        terms.and_then(|terms| terms.predicted_delay_seconds.or(terms.paper_delay_seconds));
    let predicted = predicted.map_or(String::new(), |delay| {
        format!(", {} predicted", seconds(delay))
    });
    let margin = candidate.margin_seconds;
    let margin = margin.map_or(String::new(), |margin| {
        format!(", margin {}", seconds(margin))
    });
    format!(
        "{} ({}{in_use}{predicted}{margin}): {}",
        candidate.path,
        word(&candidate.state),
        candidate.verdict
    )
}

fn path(snapshot: &Snapshot, key: &str) -> Vec<String> {
    let mut paths = snapshot.paths.iter();
    let Some(path) = paths.find(|path| path_key(path) == key) else {
        return Vec::new();
    };
    let mut lines = vec![format!(
        "{} for {}: {}",
        word(&path.state),
        seconds(path.state_seconds),
        path.why
    )];
    lines.extend(path.diagnosis.clone());
    lines.extend(path.problem.clone());
    let remote = path.remote.as_deref().unwrap_or("not known yet");
    lines.push(format!("{} to {remote}", path.local));
    lines.extend(terms(path));
    lines.extend(on_it(snapshot, path));
    lines.push(figures(&path.stats.0));
    lines.extend(
        path.capacity
            .as_ref()
            .map(|of| format!("capacity: {}", figures(&of.0))),
    );
    lines.extend(
        path.socket
            .as_ref()
            .map(|of| format!("socket: {}", figures(&of.0))),
    );
    if let Some(aggregation) = &path.aggregation {
        lines.push(format!("aggregation: {}", figures(&aggregation.stats.0)));
        lines.extend(aggregation.why.clone());
    }
    lines
}

/// Role and cost, where it has any, and what is used of the budget of the month.
fn terms(path: &PathSnapshot) -> Vec<String> {
    let of_path = path.path_terms.as_ref().map(|terms| {
        let cost = CostPerGb::new(terms.cost_per_gb).filter(|cost| *cost > CostPerGb::ZERO);
        let cost = cost.map_or(String::new(), |cost| format!(", {cost} per GB"));
        let spent = match terms.budget_spent {
            true => {
                ", budget used up: only keepalives, and essential applications without another path"
            }
            false => "",
        };
        format!("{}{cost}{spent}", word(&terms.role))
    });
    let of_uplink = path
        .budget
        .as_ref()
        .map(|budget| format!("budget: {}", human::budget(budget)));
    of_path.into_iter().chain(of_uplink).collect()
}

/// The applications on a path.
fn on_it(snapshot: &Snapshot, path: &PathSnapshot) -> Option<String> {
    let is_on = |app: &&keiro_control::protocol::AppSnapshot| {
        let mut spread = app.spread.iter().flatten();
        let is_spread = spread.any(|part| part.path == path.name && part.sent_bytes > 0);
        app.peer == path.peer && (is_spread || app.path.as_ref() == Some(&path.name))
    };
    let names: Vec<&str> = snapshot
        .apps
        .iter()
        .filter(is_on)
        .map(|app| app.name.as_str())
        .collect();
    (!names.is_empty()).then(|| format!("applications: {}", names.join(" ")))
}

fn tenant(snapshot: &Snapshot, key: &str) -> Vec<String> {
    let mut tenants = snapshot.tenants.iter();
    let Some(tenant) = tenants.find(|tenant| tenant.name == key) else {
        return Vec::new();
    };
    let mut lines: Vec<String> = tenant.device_problem.iter().cloned().collect();
    lines.push(format!(
        "networks here: {}; controller {}",
        tenant.prefixes.join(" "),
        tenant.controller
    ));
    lines.push(figures(&tenant.stats.0));
    lines.extend(dropped("dropped", &tenant.dropped_packets));
    lines.extend(towards_peers(tenant));
    lines
}

fn towards_peers(tenant: &TenantSnapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for peer in &tenant.peers {
        lines.push(format!("to {}: {}", peer.peer, figures(&peer.stats.0)));
        lines.extend(dropped("  dropped", &peer.dropped_packets));
        let on_paths = peer.paths.iter();
        lines.extend(
            on_paths.map(|path| format!("  over {}: {}", path.path, figures(&path.stats.0))),
        );
    }
    lines
}

fn dropped(what: &str, by_cause: &std::collections::BTreeMap<String, u64>) -> Option<String> {
    let counted = by_cause.iter().filter(|(_, count)| **count > 0);
    let causes: Vec<String> = counted
        .map(|(cause, count)| format!("{cause} {count}"))
        .collect();
    (!causes.is_empty()).then(|| format!("{what}: {}", causes.join(", ")))
}

/// Every figure that is known and not nought.
fn figures<S: StatSet>(stats: &S) -> String {
    let known = stats
        .values()
        .filter_map(|(stat, value)| Some((stat, value?)));
    let shown = known.filter(|(_, value)| value.as_f64() != 0.0);
    let texts: Vec<String> = shown
        .map(|(stat, value)| format!("{} {}", stat.label(), human::figure(stat.unit, value)))
        .collect();
    texts.join(", ")
}

/// Lines for the keys, for help.
pub(crate) fn help() -> Vec<String> {
    [
        "1 to 4, Tab, ← →   applications, paths, tenants, events",
        "↑ ↓, j k            select a row; Home and End the first and the last",
        "Enter               why an application is where it is; all figures of a path or tenant",
        "PgUp PgDn           scroll",
        "s, r                sort by the next column; reverse the order",
        "/                   show only rows with this text; Esc shows all again",
        "Space               hold what is shown; once more goes on",
        "Ctrl-L              draw everything anew",
        "q, Ctrl-C           end",
        "",
        "At first the rows are in the order in which they need attention: applications that miss",
        "their latency target, paths that are down. Rates are those since the answer before.",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Lines of at most `width` cells, broken between words, and within a word that is longer.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let cells = |text: &str| Span::raw(text.to_owned()).width();
    let indent = &text[..text.len() - text.trim_start().len()];
    let mut lines = Vec::new();
    let mut line = indent.to_owned();
    let mut is_begun = false;
    for word in text.split_whitespace() {
        if is_begun && cells(&line) + 1 + cells(word) > width {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        for c in word.chars() {
            if cells(&line) + cells(c.encode_utf8(&mut [0; 4])) > width.max(1) {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
        is_begun = true;
    }
    lines.push(line);
    lines
}
