//! What the machine's tools print of its firewalls.

use std::process::Command;

use keiro_doctor::firewall::Firewall;

use super::program::{self, Output};

/// What is read of one tool's output. Ours: a ruleset of 100,000 rules.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;

/// The rules, and why they could not be read.
pub(super) fn look() -> (Firewall, Option<String>) {
    let mut firewall = Firewall::default();
    let mut problem = None;
    // First, since nft shows rules of iptables with gaps.
    for (tool, is_ipv6) in [("iptables-save", false), ("ip6tables-save", true)] {
        match program::output(Command::new(tool).args(["-t", "filter"]), OUTPUT_BYTES_MAX) {
            Output::Text(text) => firewall.add_iptables(&text, is_ipv6),
            Output::Failed(why) => problem = Some(format!("{tool}: {why}")),
            Output::NoTool => {}
        }
    }
    match program::output(
        Command::new("nft").args(["-j", "list", "ruleset"]),
        OUTPUT_BYTES_MAX,
    ) {
        Output::Text(text) => firewall.add_nft(&text),
        Output::Failed(why) => problem = Some(format!("nft: {why}")),
        Output::NoTool => {}
    }
    let problem = problem.map(|why| format!("the machine's firewall: {why}; run it as root"));
    (firewall, problem)
}
