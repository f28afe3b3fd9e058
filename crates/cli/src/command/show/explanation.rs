//! The text of `keiro explain`: the gateway's sentences in lines, and every path with its numbers.

use keiro_control::protocol::{EventKind, Explanation};

use super::{cell, known, listed, path, planned_met, seconds, word};
use crate::{
    command::plan::{by_equation, by_model},
    output::{
        Style,
        table::{Cell, Table},
    },
};

/// The gateway's sentences, then every path with its numbers.
pub(in crate::command) fn explanation(explanation: &Explanation) -> String {
    let style = Style::of_stdout();
    let mut text = format!("{}\n", wrapped(&explanation.text));
    let mut table = Table::new(&[
        "path",
        "state",
        "",
        "eq. 3>",
        "predicted>",
        "target>",
        "margin>",
        "met",
        "verdict",
    ]);
    for candidate in &explanation.candidates {
        let terms = candidate.terms;
        table.row([
            Cell::from(candidate.path.as_str()),
            cell(
                style,
                &word(&candidate.state),
                path::health(candidate.state),
            ),
            Cell::from(if candidate.chosen { "in use" } else { "" }),
            Cell::from(by_equation(terms)),
            Cell::from(by_model(terms, candidate.judged_by)),
            Cell::from(known(explanation.latency_target_seconds, seconds)),
            Cell::from(known(candidate.margin_seconds, seconds)),
            planned_met(style, candidate.target_met, candidate.judged_by),
            Cell::from(candidate.verdict.as_str()),
        ]);
    }
    text.push_str(&listed(&table, "no path leads to its peer"));
    if let Some(event) = &explanation.last_move {
        text.push_str(&format!(
            "\nlast move: {}{}\n",
            event.time,
            moved(&event.kind)
        ));
    }
    text
}

/// `: path1 → path2, plan`, where the event is a move.
fn moved(kind: &EventKind) -> String {
    let EventKind::AppMoved {
        from, to, reason, ..
    } = kind
    else {
        return String::new();
    };
    let path = |path: &Option<String>| path.clone().unwrap_or_else(|| "none".to_owned());
    format!(": {} → {}, {}", path(from), path(to), word(reason))
}

/// Sentences in lines of at most [`LINE_CHARACTERS`], as far as words allow, each ended.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut length = 0;
    for word in unbroken(text) {
        let characters = word.chars().count();
        if length > 0 && length + 1 + characters > LINE_CHARACTERS {
            lines.push('\n');
            length = 0;
        }
        if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(&word);
        length += characters;
    }
    lines.push('\n');
    lines
}

/// The words of a text, a number and what follows it (its unit) in one.
fn unbroken(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let is_unit = word.starts_with(|c: char| c.is_alphabetic() || c == '%');
        match words.last_mut() {
            Some(number) if is_unit && number.ends_with(|c: char| c.is_ascii_digit()) => {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// As wide as the help.
const LINE_CHARACTERS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_delays_are_shown_once() {
        let document = serde_json::json!({
            "app": "A", "assigned_by": "planner", "model": "valid", "candidates": [],
            "text": "Measured over 500 messages: 12.3 ms on average, 20.1 ms at the 99th percentile.",
            "delay": {
                "count": 500, "mean_seconds": 0.0123, "min_seconds": 0.01, "p50_seconds": 0.0121,
                "p90_seconds": 0.014, "p99_seconds": 0.0201, "p999_seconds": 0.03,
                "max_seconds": 0.04
            }
        });
        let text = explanation(&serde_json::from_value(document).expect("an explanation"));
        for number in ["12.3 ms", "20.1 ms", "500"] {
            assert_eq!(text.matches(number).count(), 1, "{number} in {text}");
        }
    }

    #[test]
    fn sentences_are_wrapped_between_words() {
        let text = "word ".repeat(50);
        let wrapped = wrapped(&text);
        assert!(wrapped.lines().all(|line| line.len() <= LINE_CHARACTERS));
        assert_eq!(wrapped.split_whitespace().count(), 50);
        let long = "x".repeat(150);
        assert_eq!(
            super::wrapped(&format!("a {long} b")),
            format!("a\n{long}\nb\n")
        );
        let filled = "x".repeat(LINE_CHARACTERS - 4);
        assert_eq!(
            super::wrapped(&format!("{filled} 10 kB/(5 Mbit/s)")),
            format!("{filled}\n10 kB/(5 Mbit/s)\n")
        );
    }
}
