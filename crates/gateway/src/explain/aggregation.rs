//! How an application's small packets are aggregated, in sentences.

use std::time::Duration;

use keiro_control::{
    protocol::{AggregationParameters, AggregationSnapshot},
    rounded::{bytes, duration},
};

use super::NO_CONTROLLER;

/// Sentences, each with a space before it.
pub(super) fn text(aggregation: &AggregationSnapshot) -> String {
    if aggregation.stats.paused {
        let why = aggregation.why.as_deref().unwrap_or_default();
        return format!(" Aggregation is paused, so small packets are sent singly: {why}.");
    }
    let stats = &aggregation.stats;
    let mut text = format!(
        " Small packets are sent there in aggregates, mode {}: {}{}.",
        aggregation.mode,
        parameters_text(&AggregationParameters {
            size_bytes: stats.size_bytes,
            interval_seconds: stats.interval.as_secs_f64(),
            copies: stats.copies,
        }),
        spread_text(aggregation),
    );
    if let Some(fec) = aggregation.fec {
        text.push_str(&format!(
            " Parity packets replace copies: {} for each {} aggregates.",
            fec.parity_packets, fec.group_aggregates
        ));
    }
    text.push_str(&decision_text(aggregation));
    if let Some(change) = &aggregation.last_change {
        let ago = Duration::from_secs_f64(change.age_seconds.max(0.0));
        text.push_str(&format!(
            " Changed {ago:.0?} ago from {}; cause: {}.",
            parameters_text(&change.before),
            change.why
        ));
    }
    if stats.sent_aggregates > 0 {
        text.push_str(&format!(
            " Lost: {} of {} aggregates, {} of {} copies.",
            stats.lost_aggregates, stats.sent_aggregates, stats.lost_copies, stats.sent_copies
        ));
    }
    text
}

fn decision_text(aggregation: &AggregationSnapshot) -> String {
    match (aggregation.controller.as_str(), &aggregation.why) {
        ("none", Some(why)) if why == NO_CONTROLLER => {
            " No controller changes these values.".to_owned()
        }
        ("none", Some(why)) => {
            format!(" Without a controller only the bandwidth changes these values: {why}.")
        }
        ("", Some(why)) => format!(" Last decision: {why}."),
        (controller, Some(why)) => format!(" Last decision of controller {controller}: {why}."),
        ("", None) => String::new(),
        (controller, None) => format!(" Controller {controller} has not decided anything yet."),
    }
}

/// Where and when copies or parity packets leave; empty where they follow at once.
fn spread_text(aggregation: &AggregationSnapshot) -> String {
    if aggregation.stats.copies < 2 {
        return String::new();
    }
    let redundancy = match aggregation.fec {
        Some(_) => "parity packets",
        None => "copies",
    };
    match aggregation.spread.as_str() {
        "" | "back-to-back" => String::new(),
        "paths" => format!(", {redundancy} on different paths"),
        gap => format!(", {gap} between {redundancy}"),
    }
}

fn parameters_text(parameters: &AggregationParameters) -> String {
    let interval = duration(Duration::from_secs_f64(parameters.interval_seconds));
    let copies = match parameters.copies {
        1 => "once each".to_owned(),
        copies => format!("{copies} times each"),
    };
    let size = bytes(parameters.size_bytes);
    format!("at most {size} every {interval}, sent {copies}")
}
