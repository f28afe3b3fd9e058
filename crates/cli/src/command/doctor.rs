//! `keiro doctor`: gathers facts, and prints what follows from them.

mod egress;
mod gather;
mod machine;
mod network;
mod running;
mod tenants;

use std::{fmt::Write as _, path::Path, process::ExitCode};

use keiro_doctor::{Facts, Finding, diagnose};
use serde::Serialize;

use self::gather::{Gathered, gather};
use super::Outcome;
use crate::{args, output};

/// Exit status: something was found.
const FOUND: u8 = 1;
/// Exit status: not everything could be checked, and nothing was found.
const NOT_CHECKED: u8 = 2;

#[derive(Serialize)]
struct Report<'a> {
    config_file: &'a str,
    /// A gateway runs with this configuration, and was asked.
    gateway_asked: bool,
    findings: &'a [Finding],
    /// What could not be looked at, and what to try.
    not_checked: &'a [String],
}

pub(super) fn doctor(args: &args::Doctor) -> Outcome {
    if let Some(kind) = egress::kind(&args.config) {
        return egress::doctor(&args.config, kind, args.json);
    }
    let Gathered { facts, not_checked } = gather(&args.config);
    let findings = diagnose(&facts);
    let written = match args.json {
        true => output::json(&Report {
            config_file: &facts.configuration.file,
            gateway_asked: facts.gateway.is_some(),
            findings: &findings,
            not_checked: &not_checked,
        }),
        false => output::text(text(&facts, &findings, &not_checked)),
    };
    output::allow_closed_reader(written)?;
    for line in &not_checked {
        output::message!("keiro: not checked: {line}");
    }
    Ok(match (findings.is_empty(), not_checked.is_empty()) {
        (false, _) => ExitCode::from(FOUND),
        (true, false) => ExitCode::from(NOT_CHECKED),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// The findings as a document.
pub(super) fn report(config: &Path) -> serde_json::Value {
    let Gathered { facts, not_checked } = gather(config);
    let report = Report {
        config_file: &facts.configuration.file,
        gateway_asked: facts.gateway.is_some(),
        findings: &diagnose(&facts),
        not_checked: &not_checked,
    };
    serde_json::to_value(report).unwrap_or_default()
}

fn text(facts: &Facts, findings: &[Finding], not_checked: &[String]) -> String {
    if findings.is_empty() && not_checked.is_empty() {
        return nothing_found(facts);
    }
    findings_text(findings)
}

fn findings_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let Finding {
            cause,
            subject,
            finding,
            remedy,
        } = finding;
        let _ = writeln!(
            text,
            "{subject}: {}  [{cause}]\n  to do: {}",
            printable(finding),
            printable(remedy)
        );
    }
    text
}

fn nothing_found(facts: &Facts) -> String {
    let count = |count: usize, what: &str| {
        let plural = if count == 1 { "" } else { "s" };
        format!("{count} {what}{plural}")
    };
    let (uplinks, peers, tenants) = (
        count(facts.uplinks.len(), "path"),
        count(facts.peers.len(), "peer"),
        count(facts.tenants.len(), "tenant"),
    );
    let name = facts
        .gateway
        .as_ref()
        .map_or("", |gateway| gateway.name.as_str());
    format!("nothing found: gateway {name} with {uplinks}, {peers} and {tenants}\n")
}

/// What a peer or a file may have chosen does not drive the terminal.
fn printable(text: &str) -> String {
    let one = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(one).collect()
}

#[cfg(test)]
mod tests {
    use keiro_doctor::Subject;

    use super::*;

    #[test]
    fn a_finding_is_two_lines_and_nothing_found_is_one() {
        let finding = Finding {
            cause: "no_carrier",
            subject: Subject::Path("wan0".into()),
            finding: "interface eth0 has\u{1b}[2J no carrier".into(),
            remedy: "check its cable".into(),
        };
        assert_eq!(
            text(&Facts::default(), &[finding], &[]),
            "path wan0: interface eth0 has\\u{1b}[2J no carrier  [no_carrier]\n  to do: check its cable\n"
        );
        let nothing = text(&Facts::default(), &[], &[]);
        assert_eq!(nothing.lines().count(), 1);
        assert_eq!(text(&Facts::default(), &[], &["x".into()]), "");
    }
}
