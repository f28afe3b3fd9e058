//! Steering of client prefixes as text.

use keiro_egress::{
    status::{EgressMeasurement, SteeredPrefix, SteeringStage, SteeringStatus},
    steering::Mode,
};

use crate::{
    command::figures,
    output::{human::NONE, table::Table},
};

/// Totals and a table of prefixes.
pub(super) fn status(status: &SteeringStatus) -> String {
    let mode = match status.mode {
        Mode::Observe => "steering (observed, nothing is moved)",
        Mode::Steer => "steering",
    };
    let mut text = format!("\n{mode}: {}\n", figures::list(&status.stats.0));
    if !status.shown.is_empty() {
        text.push_str(&prefixes(&status.shown).to_string());
    }
    let shown = status.shown.len() as u64;
    let hidden = status.stats.prefixes.saturating_sub(shown);
    if hidden > 0 {
        text.push_str(&format!("and {hidden} more\n"));
    }
    text
}

fn prefixes(shown: &[SteeredPrefix]) -> Table {
    let mut table = Table::new(&[
        "clients",
        "egress",
        "state",
        "measured",
        "connections>",
        "RTT ms>",
        "retransmitted>",
        "Mbit/s>",
    ]);
    for prefix in shown {
        let mut first = [
            prefix.prefix.to_string(),
            used(prefix).to_owned(),
            state(prefix),
        ];
        for measured in &prefix.measured {
            let [clients, egress, state] = std::mem::take(&mut first);
            let [connections, rtt, retransmitted, goodput] = values(measured);
            let name = name(measured.peer.as_deref()).to_owned();
            table.row([
                clients,
                egress,
                state,
                name,
                connections,
                rtt,
                retransmitted,
                goodput,
            ]);
        }
        if prefix.measured.is_empty() {
            let [clients, egress, state] = first;
            let none = || NONE.to_owned();
            table.row([
                clients,
                egress,
                state,
                none(),
                none(),
                none(),
                none(),
                none(),
            ]);
        }
    }
    table
}

fn values(of: &EgressMeasurement) -> [String; 4] {
    let or_none = |value: Option<String>| value.unwrap_or_else(|| NONE.to_owned());
    [
        of.connections.to_string(),
        or_none(
            of.rtt_micros
                .map(|micros| format!("{:.1}", micros as f64 / 1e3)),
        ),
        or_none(
            of.retransmitted_permyriad
                .map(|of| format!("{:.2} %", of as f64 / 100.0)),
        ),
        or_none(
            of.bits_per_second
                .map(|rate| format!("{:.1}", rate as f64 / 1e6)),
        ),
    ]
}

fn name(peer: Option<&str>) -> &str {
    peer.unwrap_or("best path")
}

fn used(prefix: &SteeredPrefix) -> &str {
    name(prefix.peer.as_deref())
}

fn state(prefix: &SteeredPrefix) -> String {
    let candidate = name(prefix.candidate.as_deref());
    let mut text = match prefix.stage {
        SteeringStage::Unassigned => "measured only".to_owned(),
        SteeringStage::Exploring => "exploring".to_owned(),
        SteeringStage::Testing => format!("testing {candidate}"),
        SteeringStage::Waiting => format!("{candidate} is better, waits for its move"),
    };
    if let Some(better) = &prefix.better {
        text.push_str(&format!(", {better} is better"));
    }
    if !prefix.silent.is_empty() {
        text.push_str(&format!(", nothing ends by {}", prefix.silent.join(", ")));
    }
    text
}

/// One prefix in sentences.
pub(super) fn prefix(one: &SteeredPrefix) -> String {
    let mut text = format!(
        "\nsteering of {}: new connections use {} since {} s, {}; {} connections have ended\n",
        one.prefix,
        used(one),
        one.since_seconds,
        state(one),
        one.connections
    );
    for measured in &one.measured {
        let [connections, rtt, retransmitted, goodput] = values(measured);
        text.push_str(&format!(
            "recently by {}: {connections} connections, round trip {rtt} ms, {retransmitted} retransmitted, \
             {goodput} Mbit/s\n",
            name(measured.peer.as_deref())
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use keiro_egress::stats::SteeringStats;
    use keiro_stats_export::Stats;

    use super::*;

    fn steered() -> SteeredPrefix {
        SteeredPrefix {
            prefix: "2001:db8:1::/48".parse().unwrap(),
            connections: 2079,
            peer: Some("transit-b".to_owned()),
            since_seconds: 61,
            stage: SteeringStage::Testing,
            candidate: Some("transit-c".to_owned()),
            better: None,
            silent: vec!["transit-d".to_owned()],
            measured: vec![
                EgressMeasurement {
                    peer: None,
                    connections: 20,
                    rtt_micros: Some(82_340),
                    retransmitted_permyriad: Some(12),
                    bits_per_second: None,
                },
                EgressMeasurement {
                    peer: Some("transit-b".to_owned()),
                    connections: 961,
                    rtt_micros: Some(41_000),
                    retransmitted_permyriad: Some(0),
                    bits_per_second: Some(25_400_000),
                },
            ],
        }
    }

    #[test]
    fn a_steered_prefix_is_explained_in_words_and_numbers() {
        assert_eq!(
            prefix(&steered()),
            "\nsteering of 2001:db8:1::/48: new connections use transit-b since 61 s, testing transit-c, nothing ends \
             by transit-d; 2079 connections have ended\n\
             recently by best path: 20 connections, round trip 82.3 ms, 0.12 % retransmitted, - Mbit/s\n\
             recently by transit-b: 961 connections, round trip 41.0 ms, 0.00 % retransmitted, 25.4 Mbit/s\n"
        );
    }

    #[test]
    fn the_table_has_a_row_for_each_measured_egress() {
        let observed = SteeredPrefix {
            peer: None,
            stage: SteeringStage::Unassigned,
            better: Some("transit-c".to_owned()),
            measured: Vec::new(),
            ..steered()
        };
        let text = status(&SteeringStatus {
            mode: Mode::Observe,
            stats: Stats(SteeringStats {
                prefixes: 9,
                ..SteeringStats::default()
            }),
            shown: vec![steered(), observed],
        });
        for part in [
            "\nsteering (observed, nothing is moved): prefixes 9, ",
            "measured only, transit-c is better, nothing ends by transit-d",
            "82.3",
            "and 7 more\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
