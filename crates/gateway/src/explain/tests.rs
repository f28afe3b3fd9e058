//! The sentences for applications of the path-selection paper.

use keiro_control::config::{CostPerGb, PathRole, PathTerms, PeerIndex};
use keiro_planner::{
    delay::AppSpec,
    queueing::{Offered, OtherGateway, Traffic},
    steer::PathSample,
};
use keiro_units::{Bandwidth, ByteCount};

use std::collections::{BTreeMap, BTreeSet};

use keiro_planning::{
    PlannerConfig, PlannerInput, PlanningProblem,
    forecast::{ForecastState, wire_format},
    testing::{bursty_a5, paper, placed},
};

use super::{text::distinct, *};

/// The explanation of the application of this number where the input put it.
fn explained(config: &Config, input: &PlannerInput, number: usize) -> (String, Vec<CandidateView>) {
    explained_in_site(config, input, number, None)
}

fn explained_in_site(
    config: &Config,
    input: &PlannerInput,
    number: usize,
    store_lost: Option<Duration>,
) -> (String, Vec<CandidateView>) {
    let index = AppIndex(number);
    let planned = PlannerConfig::of(config);
    let problem = PlanningProblem::new(&planned, input);
    let candidates = problem.candidates(index, &ForecastState::default());
    let path = input.now[&index];
    let sample = input.up[&(path, PeerIndex(0))];
    let subject = Subject {
        config,
        app: &config[index],
        index,
        path: Some(path),
        last: None,
        by: AssignedBy::Planner,
        candidates: &candidates,
        loss: sample
            .map(|sample| sample.loss)
            .filter(|loss| loss.get() > 0.0),
        measured: None,
        workload: None,
        move_triggers: &problem.thresholds(index, &ForecastState::default()),
        in_site: false,
        assigned: None,
        spent: BTreeSet::new(),
        assumed: BTreeSet::new(),
        no_path: None,
        hold_downs: BTreeMap::new(),
        shared: &input.shared,
        store_lost,
        aggregation: None,
    };
    (subject.text(), subject.views(|_| PathState::Up))
}

#[test]
fn measured_delays_have_mean_and_p99() {
    let config = paper("", "");
    let measured = DelaySummary {
        count: 500,
        mean_seconds: 0.0123,
        min_seconds: 0.01,
        p50_seconds: 0.0121,
        p90_seconds: 0.014,
        p95_seconds: 0.015,
        p99_seconds: 0.0201,
        p999_seconds: 0.03,
        max_seconds: 0.04,
    };
    let subject = Subject {
        config: &config,
        app: &config[AppIndex(2)],
        index: AppIndex(2),
        path: None,
        last: None,
        by: AssignedBy::Planner,
        candidates: &[],
        loss: None,
        measured: Some(measured),
        workload: None,
        move_triggers: &[],
        in_site: false,
        assigned: None,
        spent: BTreeSet::new(),
        assumed: BTreeSet::new(),
        no_path: None,
        hold_downs: BTreeMap::new(),
        shared: &SharedLines::default(),
        store_lost: None,
        aggregation: None,
    };
    let text = subject.text();
    let expected =
        "Measured over 500 messages: 12.3 ms on average, 20.1 ms at the 99th percentile.";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn numbers_have_three_digits_and_names() {
    let mut config = paper("", "");
    config.apps[4].length = Some(ByteCount::new(10_007));
    let (text, _) = explained(&config, &placed([0, 0, 1, 0, 1]), 2);
    for part in [
        "A3 is on path2, as planned.",
        "Mean delay by equation 3: T + L/(W - Q) = 2 ms + 100 kB/(100 Mbit/s - 801 \
         kbit/s) = 10.1 ms.",
        "Forecast with headers and the deadline scheduler: 10.",
        " ms on average, 1",
        " ms at the 99th percentile. Latency target of 20 ms: met on average, with 9.",
        " ms to spare.",
        "path1: 1",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    assert!(!text.contains("0.0 "), "{text}");
}

#[test]
fn verdict_and_margin_are_the_forecasts() {
    // By eq. 3 A4 is 1.5 ms late on path 1, by the forecast some 38.
    let config = paper("scheduler = \"fifo\"", "");
    let (text, views) = explained(&config, &placed([0, 0, 1, 0, 1]), 3);
    assert!(
        text.contains("Latency target of 100 ms: missed by 3"),
        "{text}"
    );
    let on_path_1 = &views[0];
    let terms = on_path_1.terms.unwrap();
    let predicted = terms.predicted_delay_seconds.unwrap();
    let margin = on_path_1.margin_seconds.unwrap();
    assert!(
        (0.1 - predicted - margin).abs() < 1e-9 && margin < -0.03,
        "{margin}"
    );
    assert!(
        on_path_1.verdict.contains(" predicted, 3"),
        "{}",
        on_path_1.verdict
    );
}

#[test]
fn thresholds_have_digits_that_distinguish_them() {
    let time = |micros| ParameterValue::Time(Duration::from_micros(micros));
    let texts = |a, b| distinct(time(a), time(b));
    assert_eq!(texts(77_300, 1_000), ("77.3 ms".into(), "1 ms".into()));
    assert_eq!(texts(100_200, 100_000), ("100.2ms".into(), "100ms".into()));
    // A4 is late on path 1 by eq. 3.
    let (text, _) = explained(&paper("", ""), &placed([0, 0, 1, 0, 1]), 3);
    assert!(
        text.contains(" The next plan would move it to path2."),
        "{text}"
    );
    assert!(!text.contains("It would move"), "{text}");
}

#[test]
fn an_overloaded_path_misses_the_target() {
    let mut config = paper("", "");
    config.paths[0].rate = Some(Bandwidth::from_mbit_per_second(50));
    let (text, views) = explained(&config, &placed([0, 0, 1, 1, 1]), 0);
    assert!(
        text.contains(
            "Forecast with headers and the deadline scheduler: overloaded: 101 % of the path's \
             rate is asked for. Latency target of 1 s: missed."
        ),
        "{text}"
    );
    assert_eq!(views[0].target_met, Some(false));
    assert_eq!(views[0].margin_seconds, None);
    assert!(
        views[0].verdict.starts_with("overloaded: "),
        "{}",
        views[0].verdict
    );
}

#[test]
fn without_a_forecast_equation_3_is_named() {
    let mut config = paper("", "");
    config.apps[2].length = None;
    let (text, views) = explained(&config, &placed([0, 0, 1, 0, 1]), 2);
    for part in [
        "No forecast: too little data: 0 of 100 messages seen. Latency target of 20 ms: met by \
         equation 3 alone.",
        "a rough estimate",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    let on_path_2 = &views[1];
    assert_eq!(on_path_2.terms.unwrap().predicted_delay_seconds, None);
    assert_eq!(on_path_2.margin_seconds, None);
    assert!(
        on_path_2.verdict.starts_with("no forecast, ")
            && on_path_2.verdict.contains("by equation 3"),
        "{}",
        on_path_2.verdict
    );
    assert!(on_path_2.no_forecast.is_some());
}

#[test]
fn extrapolated_measurements_give_no_thresholds() {
    let (mut config, mut input) = bursty_a5(23);
    input.up.values_mut().for_each(|sample| {
        *sample = Some(PathSample {
            bandwidth: Bandwidth::from_mbit_per_second(100),
            delay: Duration::from_millis(20),
            loss: Probability::ZERO,
        });
    });
    let (text, views) = explained(&config, &input, 4);
    let extrapolated = "The plan extrapolates the delay measured on path2 to the other paths, so \
                        the change at which it would move is not known.";
    assert!(text.contains(extrapolated), "{text}");
    assert!(!text.contains("It would move"), "{text}");
    let planned = PlannerConfig::of(&config);
    let problem = PlanningProblem::new(&planned, &input);
    let thresholds = problem.thresholds(AppIndex(4), &ForecastState::default());
    assert!(thresholds.is_empty(), "{thresholds:?}");
    // 23 ms and a fifth on a path that is as long.
    let verdict = &views[0].verdict;
    let by_measurement = "no forecast, 27.6 ms extrapolated from measurements, 2.6 ms late";
    assert!(verdict.starts_with(by_measurement), "{verdict}");
    // Without a latency target equation 3 counts.
    config.apps[4].latency_target = None;
    let (text, _) = explained(&config, &input, 4);
    assert!(!text.contains("is not known"), "{text}");
}

#[test]
fn loss_is_named_beside_the_terms() {
    let config = paper("", "");
    let mut input = placed([0, 0, 1, 0, 1]);
    let lossy = PathSample {
        bandwidth: Bandwidth::from_mbit_per_second(100),
        delay: Duration::from_millis(2),
        loss: Probability::new(0.05).unwrap(),
    };
    input.up.insert((PathIndex(1), PeerIndex(0)), Some(lossy));
    let (text, _) = explained(&config, &input, 2);
    assert!(
        text.contains(", T and W adjusted for a loss of 5 %."),
        "{text}"
    );
}

/// Another gateway sends 100 kB every `millis` over path 2.
fn with_other_gateway(mut input: PlannerInput, millis: u64) -> PlannerInput {
    let spec = AppSpec {
        length: ByteCount::new(100_000),
        interval: Duration::from_millis(millis),
        latency_target: None,
    };
    let rate = Bandwidth::from_mbit_per_second(100);
    let on_line = LineUse {
        gateway: "gw2".into(),
        apps: 1,
        load: spec.rate(),
        sender: OtherGateway {
            rate,
            offered: Offered::of(&[Traffic::paper(spec)], &wire_format(rate, 0.0)),
        },
    };
    input.shared.uses.insert(PathIndex(1), [on_line].into());
    input
}

#[test]
fn other_gateways_are_part_of_q_and_of_the_forecast_and_are_named() {
    let config = paper("", "");
    let alone = placed([0, 0, 1, 0, 1]);
    let shared = with_other_gateway(alone.clone(), 16);
    let (text, views) = explained(&config, &shared, 2);
    // A5 sends 800 kbit/s.
    assert!(
        text.contains("(100 Mbit/s - 50.8 Mbit/s)")
            && text.contains("Of Q, 50 Mbit/s by gateway gw2."),
        "{text}"
    );
    let (_, before) = explained(&config, &alone, 2);
    let [now, before] = [&views[1], &before[1]].map(|view| view.terms.unwrap());
    assert_eq!(now.site_load_bits_per_second, 50e6);
    assert_eq!(now.rate_bits_per_second, before.rate_bits_per_second);
    assert_eq!(
        now.other_load_bits_per_second,
        before.other_load_bits_per_second + 50e6
    );
    let [now, before] = [now, before].map(|terms| terms.predicted_delay_seconds.unwrap());
    assert!(now > before * 1.5, "{now} {before}");
    assert_eq!(views[0].shared_line, None);
    let line = views[1].shared_line.as_ref().unwrap();
    assert_eq!(line.gateways[0].gateway, "gw2");
    // Overloaded by both together.
    let (text, views) = explained(&config, &with_other_gateway(alone, 9), 2);
    assert_eq!(views[1].target_met, Some(false), "{text}");
}

#[test]
fn age_of_data_of_other_gateways_is_stated() {
    let config = paper("", "");
    let lost = Some(Duration::from_secs(90));
    let shared = with_other_gateway(placed([0, 0, 1, 0, 1]), 16);
    let (text, views) = explained_in_site(&config, &shared, 2, lost);
    assert!(
        text.contains("by gateway gw2. The plan store has not answered for 1 min 30 s"),
        "{text}"
    );
    let line = views[1].shared_line.as_ref().unwrap();
    assert_eq!(line.age_seconds, Some(90.0));
    let (text, _) = explained_in_site(&config, &placed([0, 0, 1, 0, 1]), 2, lost);
    assert!(
        text.contains("what other gateways send is not known"),
        "{text}"
    );
}

#[test]
fn role_and_cost_are_named() {
    let mut config = paper("", "");
    config.paths[0].cost = CostPerGb::new(3.5).unwrap();
    let (text, views) = explained(&config, &placed([0, 0, 1, 0, 1]), 2);
    assert!(
        !text.contains("per GB.") && text.contains("; costs 3.50 per GB more"),
        "{text}"
    );
    assert!(views[1].path_terms.is_none());
    config.paths[1].role = PathRole::Backup;
    let (text, _) = explained(&config, &placed([0, 0, 1, 0, 1]), 2);
    assert!(
        text.contains("path2 is a backup: no primary path meets its target."),
        "{text}"
    );
    let (text, views) = explained(&config, &placed([0; 5]), 0);
    assert!(text.contains("path1 costs 3.50 per GB."), "{text}");
    let verdict = &views[1].verdict;
    assert!(
        verdict.contains("; meets the target too, but is a backup"),
        "{verdict}"
    );
    assert!(verdict.contains("; costs 3.50 per GB less"), "{verdict}");
    let mut input = placed([1; 5]).without(PathIndex(0));
    let spent = PathTerms {
        is_spent: true,
        ..PathTerms::FREE
    };
    input.terms.insert((PathIndex(1), PeerIndex(0)), spent);
    let (text, _) = explained(&config, &input, 2);
    assert!(
        text.contains("it is essential and has no other path"),
        "{text}"
    );
}
