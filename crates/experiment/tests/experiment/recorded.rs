//! Recorded lines, from plan to files, with a runner that has measured everything already.

use std::fs;

use keiro_experiment::{
    campaign::{Campaign, Options, Runners},
    plan::Plan,
    recorded::{Carried, RecordedOutcome, RecordedRequest, RecordedRunner, Transport},
    report::Report,
    row::{Source, Verdict},
    runner::Progress,
};
use keiro_lab::emulator::QueueingBin;

const ID: &str = "uplinks/recorded";

/// Carries half of the line over Keiro, three quarters over BBR, all over CUBIC, with 10, 100 and 1000 ms of
/// queueing.
struct Known {
    has_bbr: bool,
}

impl Known {
    fn alone(self) -> Runners<'static> {
        Runners {
            recorded: vec![Box::new(self)],
            ..Runners::default()
        }
    }
}

impl RecordedRunner for Known {
    fn source(&self) -> Source {
        Source::Lab
    }

    fn missing(&self, transport: Transport) -> Option<String> {
        let is_missing = transport == Transport::Bbr && !self.has_bbr;
        is_missing.then(|| "try `modprobe tcp_bbr`".to_owned())
    }

    fn run(
        &mut self,
        request: &RecordedRequest<'_>,
        _: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<RecordedOutcome> {
        let bits = request.trace.mean().as_bits_per_second() as f64;
        let carried = |transport: &Transport| {
            let (share, queue_ms, thin_ms) = match transport {
                Transport::Cubic => (1.0, 1000.0, 900.0),
                Transport::Bbr => (0.75, 100.0, 120.0),
                Transport::Keiro => (0.5, 10.0, 40.0),
                Transport::Alone => (0.0, 0.0, 30.0),
            };
            let bytes = (bits / 8.0 * share * request.duration.as_secs_f64()) as u64;
            let bin = QueueingBin {
                packets: 1,
                bytes,
                wait_us: (queue_ms * 1e3) as u64,
                wait_max_us: (queue_ms * 1e3) as u64,
            };
            let of = Carried {
                received_bytes: bytes,
                bins: vec![bin],
                queue_p50_ms: Some(queue_ms / 2.0),
                queue_p95_ms: Some(queue_ms),
                thin_ms: vec![Some(thin_ms), None],
                remarks: Vec::new(),
            };
            (*transport, of)
        };
        Ok(RecordedOutcome {
            carried: request.transports.iter().map(carried).collect(),
            emulator: None,
        })
    }
}

/// Runs two links, of 12 and of 3 Mbit/s, with those recordings that there are.
fn run(runner: Known, recordings: &[(&str, &str)]) -> (Report, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in recordings {
        fs::write(directory.path().join(name), text).expect("it can be written");
    }
    let options = Options {
        quick: false,
        variants: vec!["att-down".to_owned(), "town-att".to_owned()],
        results: directory.path().join("results"),
        version: "test",
    };
    let plan = Plan::find(ID).expect("it is built in");
    let plan = plan.with_traces(directory.path().to_owned());
    let report = Campaign::new(options, runner.alone()).run(&plan, &mut |_| {});
    (
        report.unwrap_or_else(|error| panic!("{error:#}")),
        directory,
    )
}

/// 12 Mbit/s: a packet every millisecond, for two seconds.
fn by_the_millisecond() -> String {
    (1..=2000).map(|ms| format!("{ms}\n")).collect()
}

const BY_THE_SECOND: &str = "second,starlink,att\n0,0,3\n1,0,3\n";

fn row<'a>(report: &'a Report, name: &str) -> (Option<f64>, &'a Verdict) {
    let row = report.rows.iter().find(|row| row.name == name);
    let row = row.unwrap_or_else(|| panic!("no row {name}:\n{}", report.table()));
    (row.measured, &row.verdict)
}

#[track_caller]
fn is_about(report: &Report, name: &str, expected: f64) {
    let (measured, _) = row(report, name);
    let measured = measured.unwrap_or_else(|| panic!("{name} has no value"));
    let error = (measured - expected).abs();
    assert!(
        error < 0.02 * expected.max(0.01),
        "{name}: {measured}, not {expected}"
    );
}

#[test]
fn links_are_averaged_geometrically_and_judged_by_the_ratios() {
    let recordings = [
        ("ATT-LTE-driving-2016.down", by_the_millisecond()),
        ("drive-town.csv", BY_THE_SECOND.to_owned()),
    ];
    let recordings = recordings
        .each_ref()
        .map(|(name, text)| (*name, text.as_str()));
    let (report, directory) = run(Known { has_bbr: true }, &recordings);
    is_about(&report, "throughput keiro att-down", 6.0);
    is_about(&report, "share bbr town-att", 75.0);
    // The mean of 6 and 1.5 is 3, and not 3.75.
    is_about(&report, "throughput keiro all", 3.0);
    is_about(&report, "queue-p95 cubic all", 1000.0);
    is_about(&report, "thin-excess keiro all", 10.0);
    is_about(&report, "thin-lost alone att-down", 50.0);
    // Less is carried, with less queueing.
    is_about(&report, "worse-than-bbr keiro all", 0.0);
    assert_eq!(row(&report, "throughput keiro all").1, &Verdict::Missed);
    assert_eq!(row(&report, "queue-p95 keiro all").1, &Verdict::Reached);
    assert_eq!(row(&report, "thin-excess keiro all").1, &Verdict::Reached);
    let read = |name: &str| {
        let results = directory.path().join("results").join(&report.directory);
        fs::read_to_string(results.join(name)).expect(name)
    };
    let seconds = read("seconds.csv");
    assert_eq!(seconds.lines().count(), 1 + 2 * 4 * 20, "twenty bins each");
    assert!(seconds.contains("lab,att-down,0,cubic,0.0,12"), "{seconds}");
    assert_eq!(read("thin.csv").lines().count(), 1 + 2 * 4 * 2);
    let svg = read("att-down.svg");
    for text in [
        "recorded line att-down",
        "the line",
        "keiro",
        "wait for others",
    ] {
        assert!(svg.contains(text), "{text} is missing");
    }
}

#[test]
fn what_is_missing_is_void_and_named_with_where_it_comes_from() {
    let recordings = [("drive-town.csv", BY_THE_SECOND)];
    let (report, _directory) = run(Known { has_bbr: false }, &recordings);
    assert_eq!(
        row(&report, "throughput keiro att-down"),
        (None, &Verdict::Void)
    );
    assert_eq!(
        row(&report, "throughput bbr town-att"),
        (None, &Verdict::Void)
    );
    is_about(&report, "throughput keiro town-att", 1.5);
    // Nothing can be said of a ratio to what was not measured; that to CUBIC can.
    assert_eq!(row(&report, "throughput keiro all").1, &Verdict::Void);
    is_about(&report, "queue-p95 cubic all", 1000.0);
    assert!(!report.is_reached());
    let notes = &report.manifest.notes;
    for parts in [
        [
            "NOT MEASURED: all rows of att-down",
            "no such file",
            "mahimahi",
        ],
        ["NOT MEASURED: all rows of bbr", "modprobe tcp_bbr", "lab"],
    ] {
        let has_all = |note: &String| parts.iter().all(|part| note.contains(part));
        assert!(notes.iter().any(has_all), "{parts:?}: {notes:?}");
    }
}

#[test]
fn without_a_directory_every_recording_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options {
        quick: true,
        variants: Vec::new(),
        results: directory.path().to_owned(),
        version: "test",
    };
    let plan = Plan::find(ID).expect("it is built in");
    let runner = Known { has_bbr: true };
    let report = Campaign::new(options, runner.alone()).run(&plan, &mut |_| {});
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.rows.iter().all(|row| row.verdict == Verdict::Void));
    let notes = &report.manifest.notes;
    let asks = |note: &&String| note.contains("--traces") && note.contains("https://");
    assert_eq!(notes.iter().filter(asks).count(), 16, "{notes:?}");
}

#[test]
fn wrong_plans_of_recordings_are_refused() {
    for (set, what) in [
        ("recordings.att-down.name=all", "one word other than `all`"),
        ("recordings.att-down.name=att-up", "has its own"),
        (
            "recordings.att-down.file=../secret",
            "no file within the directory",
        ),
        (
            "recordings.att-down.file=/etc/passwd",
            "no file within the directory",
        ),
        ("recordings.att-down.delay=2h", "at most"),
        ("recordings.att-down.colunm=x", "did you mean `column`"),
        ("recordings=[]", "1 to 100 links"),
        ("buffer=0s", "not a time"),
        ("thin_per_second=0", "1 to 1000"),
        (
            "targets=[\"throughput kairo all >= 1 Mbit/s\"]",
            "did you mean `throughput keiro all`",
        ),
    ] {
        let plan = Plan::find(ID).expect("it is built in");
        let set = set.parse().expect("a setting");
        let error = plan.with(&[set]).expect_err(what).to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
}
