use std::{collections::BTreeMap, time::Duration};

use keiro_control::{
    config::{AppIndex, Class, Config, PathIndex, PeerIndex},
    protocol::{AssignedBy, WhatIf},
};
use keiro_model::{Bandwidth, ByteCount, Probability, queueing::Statistic, steer::PathSample};

use super::{outlook::Experience, what_if::suppose, *};

/// The paper's five applications over its two paths.
fn paper(gateway: &str, pin: &str) -> Config {
    let text = format!(
        r#"
[gateway]
name = "a"
{gateway}
[[path]]
name = "path1"
local = "192.0.2.1:4500"
rate = "100Mbit"
delay = "100ms"
[[path]]
name = "path2"
local = "198.51.100.1:4500"
rate = "100Mbit"
delay = "2ms"
[[peer]]
name = "b"
public_key = "{}"
endpoints = {{ path1 = "192.0.2.2:4500", path2 = "198.51.100.2:4500" }}
"#,
        keiro_control::PublicKey::from_bytes([9; 32])
    );
    let mut text = text;
    for (name, length, interval, demand) in [
        ("A1", "1MB", "200ms", "1s"),
        ("A2", "100kB", "100ms", "500ms"),
        ("A3", "100kB", "100ms", "20ms"),
        ("A4", "10kB", "100ms", "100ms"),
        ("A5", "10kB", "100ms", "20ms"),
    ] {
        let pin = if name == "A1" { pin } else { "" };
        text.push_str(&format!(
            "[[app]]\nname = \"{name}\"\nclass = \"message\"\npeer = \"b\"\nlength = \"{length}\"\n\
             interval = \"{interval}\"\ndemand = \"{demand}\"\n{pin}\n"
        ));
    }
    Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn both_up() -> Facts {
    let up = (0..2)
        .map(|path| ((PathIndex(path), PeerIndex(0)), None))
        .collect();
    Facts {
        up,
        ..Facts::default()
    }
}

/// Both paths are up, and every application is where `paths` says.
fn placed(paths: [usize; 5]) -> Facts {
    let now = paths.into_iter().enumerate();
    let now = now.map(|(app, path)| (AppIndex(app), PathIndex(path)));
    Facts {
        now: now.collect(),
        ..both_up()
    }
}

fn revised(config: &Config, facts: &Facts) -> Planned {
    Question::new(config, facts).answer(config, Manner::Revise, &Experience::default())
}

fn paths(planned: &Planned) -> Vec<Option<usize>> {
    planned
        .apps
        .iter()
        .map(|app| app.path.map(|path| path.0))
        .collect()
}

#[test]
fn the_papers_algorithm_with_tolerance_gives_the_papers_assignment() {
    let config = paper("planner = \"greedy\"\ntolerance = \"2%\"", "");
    let planned =
        Question::new(&config, &both_up()).answer(&config, Manner::Anew, &Experience::default());
    assert_eq!(paths(&planned), [0, 0, 1, 0, 1].map(Some));
    assert_eq!(planned.unmet(), 0);
}

#[test]
fn the_exact_plan_meets_every_demand() {
    let config = paper("planner = \"exact\"", "");
    let planned =
        Question::new(&config, &both_up()).answer(&config, Manner::Anew, &Experience::default());
    assert_eq!(planned.unmet(), 0);
    assert!(planned.optimal);
    assert!(planned.apps.iter().all(|app| app.by == AssignedBy::Planner));
    assert!(
        planned
            .apps
            .iter()
            .all(|app| app.outlook.is_some_and(|outlook| outlook.delay.is_ok()))
    );
    let now = BTreeMap::from([(AppIndex(0), planned.apps[0].path.unwrap())]);
    assert_eq!(planned.changes(&now), 4);
}

#[test]
fn a_pin_is_kept_and_counts_as_load() {
    let config = paper("", "path = \"path2\"");
    let planned =
        Question::new(&config, &both_up()).answer(&config, Manner::Anew, &Experience::default());
    assert_eq!(planned.apps[0].path, Some(PathIndex(1)));
    assert_eq!(planned.apps[0].by, AssignedBy::Pin);
    let mut facts = both_up();
    facts.operator.insert(AppIndex(0), PathIndex(0));
    let planned =
        Question::new(&config, &facts).answer(&config, Manner::Anew, &Experience::default());
    assert_eq!(planned.apps[0].path, Some(PathIndex(0)));
    assert_eq!(planned.apps[0].by, AssignedBy::Operator);
}

#[test]
fn what_is_down_is_not_planned_with() {
    let config = paper("", "path = \"path2\"");
    let mut facts = both_up();
    facts.up.remove(&(PathIndex(1), PeerIndex(0)));
    let planned =
        Question::new(&config, &facts).answer(&config, Manner::Anew, &Experience::default());
    assert_eq!(paths(&planned), [Some(0); 5]);
    assert_eq!(planned.apps[0].by, AssignedBy::Fallback);
    assert!(planned.unmet() >= 2);
    facts.up.clear();
    let planned =
        Question::new(&config, &facts).answer(&config, Manner::Anew, &Experience::default());
    assert_eq!(paths(&planned), [None; 5]);
    assert!(planned.apps.iter().all(|app| app.by == AssignedBy::Nobody));
}

#[test]
fn without_a_planner_the_first_path_is_taken() {
    let config = paper("planner = \"off\"", "path = \"path2\"");
    let planned =
        Question::new(&config, &both_up()).answer(&config, Manner::Anew, &Experience::default());
    assert_eq!(paths(&planned), [1, 0, 0, 0, 0].map(Some));
    assert_eq!(planned.apps[1].by, AssignedBy::Fallback);
}

#[test]
fn candidates_say_what_every_path_would_do() {
    let config = paper("", "");
    let question = Question::new(&config, &placed([0, 0, 1, 0, 1]));
    let candidates = question.candidates(AppIndex(2), &Experience::default());
    assert_eq!(candidates.len(), 2);
    assert_eq!(candidates[0].met, Some(false));
    assert_eq!(candidates[0].others_max, None);
    assert_eq!(candidates[1].met, Some(true));
    // (20 − 2) ms for 100 kB leave 44.4 Mbit/s, so that others may send 55.5.
    let others_max = candidates[1].others_max.unwrap().as_bits_per_second();
    assert!(
        (55_000_000..56_000_000).contains(&others_max),
        "{others_max}"
    );
    let mean = candidates[1].outlook.unwrap().seconds(Statistic::Mean);
    assert!(mean.unwrap() > 0.010);
}

#[test]
fn forecasts_on_the_quickest_path_count_acknowledgements_of_all_outcomes() {
    let mut config = paper("", "");
    config.apps[0].length = Some(ByteCount::new(100));
    config.apps[0].interval = Some(Duration::from_micros(50));
    let bytes = |config: &Config| {
        let question = Question::new(config, &placed([0, 0, 1, 0, 1]));
        let candidates = question.candidates(AppIndex(2), &Experience::default());
        let of = |index: usize| candidates[index].outlook.unwrap().forecast;
        [0, 1].map(|path| of(path).terms.wire_length.get())
    };
    // 71 packets; on path 2, 10 of 11 with an acknowledgement of 18 bytes.
    assert_eq!(
        bytes(&config),
        [72, 72 + 16].map(|each| 100_000 + 71 * each)
    );
    config.apps[0].class = Class::Datagram;
    assert_eq!(bytes(&config), [100_000 + 71 * 72; 2]);
}

#[test]
fn a_plan_in_force_is_left_alone_where_nothing_needs_to_move() {
    // Path 2 would be quicker for A4, but not by enough.
    let config = paper("planner = \"frugal\"\ntolerance = \"2%\"", "");
    let facts = placed([0, 0, 1, 0, 1]);
    let planned = revised(&config, &facts);
    assert_eq!(planned.changes(&facts.now), 0);
    assert_eq!(planned.unmet(), 0);
}

#[test]
fn a_plan_from_scratch_that_cannot_meet_every_demand_is_left_alone_too() {
    let config = paper("planner = \"exact\"", "");
    let mut facts = both_up();
    let slow = PathSample {
        bandwidth: Bandwidth::from_mbit_per_second(100),
        delay: Duration::from_millis(30),
        loss: Probability::ZERO,
    };
    facts.up.insert((PathIndex(1), PeerIndex(0)), Some(slow));
    let anew = Question::new(&config, &facts).answer(&config, Manner::Anew, &Experience::default());
    assert_eq!(anew.unmet(), 2);
    facts.now = anew.places();
    assert_eq!(revised(&config, &facts).changes(&facts.now), 0);
}

#[test]
fn a_brownout_moves_whom_it_must_and_nobody_else() {
    let config = paper("planner = \"frugal\"\ntolerance = \"2%\"", "");
    let mut facts = placed([1, 0, 1, 0, 1]);
    let half = PathSample {
        bandwidth: Bandwidth::from_bits_per_second(50_000_000),
        delay: Duration::from_millis(2),
        loss: Probability::ZERO,
    };
    facts.up.insert((PathIndex(1), PeerIndex(0)), Some(half));
    let planned = revised(&config, &facts);
    assert_eq!(paths(&planned), [0, 0, 1, 0, 1].map(Some));
    assert_eq!(planned.unmet(), 0);
}

#[test]
fn what_is_supposed_changes_the_answer_and_nothing_else() {
    let config = paper("planner = \"frugal\"\ntolerance = \"2%\"", "");
    let facts = placed([0, 0, 1, 0, 1]);
    let suppose = |texts: &[&str]| {
        let changes: Vec<WhatIf> = texts.iter().map(|t| WhatIf::parse(t).unwrap()).collect();
        let supposed = suppose(&config, &facts, &changes).unwrap();
        let plan = revised(&config, &facts);
        let then = revised(&supposed.config, &supposed.facts);
        (supposed.newly_unmet(&plan, &then), then)
    };
    let (newly_unmet, then) = suppose(&["lose path2"]);
    assert_eq!(newly_unmet, ["A3", "A5"]);
    assert_eq!(paths(&then), [0; 5].map(Some));
    let (newly_unmet, then) = suppose(&["add 2 A5"]);
    assert_eq!(newly_unmet, [""; 0]);
    assert_eq!(paths(&then)[5..], [1, 1].map(Some));
    let (newly_unmet, _) = suppose(&["set path2 delay=82ms"]);
    assert_eq!(newly_unmet, ["A3", "A5"]);
    let (newly_unmet, _) = suppose(&["set path2 rate=20Mbit", "demand A5 none"]);
    assert_eq!(newly_unmet, ["A3"]);
    let (newly_unmet, _) = suppose(&["demand A4 5ms"]);
    assert_eq!(newly_unmet, [""; 0]);
    assert_eq!(facts.up.len(), 2);
}

#[test]
fn what_makes_no_sense_is_not_supposed() {
    let config = paper("", "");
    let facts = both_up();
    let refused = |change: WhatIf| {
        let refused = suppose(&config, &facts, &[change]).err();
        refused.unwrap().to_string()
    };
    let lose = WhatIf::LosePath {
        path: "path9".into(),
    };
    assert!(refused(lose).contains("no path `path9`"));
    let path = || "path1".to_owned();
    for (rate, delay, loss) in [
        (Some(0), None, None),
        (None, Some(-1.0), None),
        (None, Some(f64::NAN), None),
        (None, Some(f64::INFINITY), None),
        (None, Some(1.8e19), Some(0.9)),
        (None, None, Some(1.5)),
    ] {
        let text = refused(WhatIf::SetPath {
            path: path(),
            rate_bits_per_second: rate,
            delay_seconds: delay,
            loss_ratio: loss,
        });
        assert!(text.contains("try:"), "{text}");
    }
    let add = WhatIf::AddApp {
        app: "A1".into(),
        count: u64::MAX,
    };
    assert!(refused(add).contains("1 to 1000"));
}
