use std::time::UNIX_EPOCH;

use keiro_core::{PathId, PeerId};

use super::*;

const GB: u64 = 1_000_000_000;
/// 2026-11-27.
const NOW: Duration = Duration::from_secs(1_795_737_600);
const DAY: Duration = Duration::from_secs(86_400);

fn config() -> Config {
    let text = "[gateway]\nname = \"a\"\n\
                [[path]]\nname = \"dsl\"\ninterface = \"eth0\"\n\
                [[path]]\nname = \"lte\"\ninterface = \"wwan0\"\nmonthly_budget = \"10GB\"\n";
    Config::parse(text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
}

struct Uplinks {
    config: Config,
    ids: PathIds,
    budgets: Budgets,
    began: Stopwatch,
    /// By the monotonic clock.
    runs: Duration,
}

impl Uplinks {
    fn new(state_directory: &Path) -> Self {
        let config = config();
        let mut ids = PathIds::default();
        ids.apply_config(&config);
        Self {
            config,
            ids,
            budgets: Budgets::load(state_directory),
            began: Stopwatch::now(),
            runs: Duration::ZERO,
        }
    }

    /// Both paths to two peers have carried so much each, since they began.
    fn carry(&mut self, bytes: u64) {
        let ids: Vec<PathId> = (0..2)
            .filter_map(|path| self.ids.id(PathIndex(path)))
            .collect();
        let peers = [PeerId(0), PeerId(1)];
        let carried = peers.into_iter().flat_map(|peer| {
            ids.iter()
                .map(move |path| (PeerPath::new(peer, *path), bytes))
        });
        self.budgets.on_carried(&self.config, &self.ids, carried);
    }

    fn turn(&mut self, now: Duration) -> Vec<&'static str> {
        let now = Clocks {
            wall: UNIX_EPOCH + now,
            monotonic: self.began + self.runs,
        };
        let events = self.budgets.turn(&self.config, now);
        events.iter().map(EventKind::name).collect()
    }

    fn used(&self, now: Duration) -> u64 {
        let now = UNIX_EPOCH + now;
        let shown = self.budgets.snapshot(&self.config, PathIndex(1), now);
        shown.expect("it has a budget").used_bytes
    }

    fn is_spent(&self) -> bool {
        let spent = self.budgets.spent(&self.config);
        assert!(spent.is_subset(&[PathIndex(1)].into()));
        !spent.is_empty()
    }
}

#[test]
fn bytes_of_all_peers_count_until_the_budget_is_used_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut uplinks = Uplinks::new(directory.path());
    assert_eq!(uplinks.turn(NOW), [""; 0]);
    uplinks.carry(3 * GB);
    assert_eq!(uplinks.turn(NOW), [""; 0]);
    uplinks.carry(4 * GB);
    assert_eq!(uplinks.turn(NOW), ["budget_warning"]);
    // Both paths began anew.
    uplinks.carry(GB - 1);
    assert_eq!((uplinks.turn(NOW), uplinks.is_spent()), (vec![], false));
    uplinks.carry(GB);
    assert_eq!(uplinks.turn(NOW), ["budget_spent"]);
    assert!(uplinks.is_spent());
    assert_eq!(uplinks.used(NOW), 10 * GB);
    assert_eq!(uplinks.turn(NOW + DAY), [""; 0], "once");
    assert_eq!(uplinks.turn(NOW + 5 * DAY), ["budget_renewed"]);
    assert_eq!(
        (uplinks.used(NOW + 5 * DAY), uplinks.is_spent()),
        (0, false)
    );
}

#[test]
fn usage_survives_restarts_and_backward_clocks() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut uplinks = Uplinks::new(directory.path());
    uplinks.budgets.start_writer(Privileges::Kept);
    uplinks.turn(NOW);
    uplinks.carry(5 * GB);
    uplinks.turn(NOW);
    drop(uplinks);
    for back in [0, 1, 40 * 365] {
        let mut uplinks = Uplinks::new(directory.path());
        let now = NOW.saturating_sub(back * DAY);
        assert_eq!(uplinks.turn(now), ["budget_spent"], "{back} days");
        assert!(uplinks.is_spent());
    }
    let mut uplinks = Uplinks::new(directory.path());
    uplinks.turn(NOW + 5 * DAY);
    assert!(!uplinks.is_spent(), "the next month");
}

#[test]
fn a_clock_that_was_ahead_keeps_no_budget_from_its_next_month() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut uplinks = Uplinks::new(directory.path());
    let years = 12 * 365 * DAY;
    uplinks.turn(NOW + years);
    uplinks.carry(5 * GB);
    assert_eq!(uplinks.turn(NOW + years), ["budget_spent"]);
    // It is set right. Whether it is right now is not known at once.
    for hours in [0, 23, 24] {
        uplinks.runs = hours * DAY / 24;
        assert_eq!(uplinks.turn(NOW), [""; 0]);
        assert!(uplinks.is_spent(), "what is used stays used");
    }
    assert_eq!(uplinks.turn(NOW + 5 * DAY), ["budget_renewed"]);
    // A short excursion to the past leaves nothing behind.
    uplinks.carry(5 * GB + 5 * GB);
    assert_eq!(uplinks.turn(NOW + 6 * DAY), ["budget_spent"]);
    for days_back in [0, 2, 0] {
        uplinks.runs += 20 * DAY / 24;
        let now = NOW + 6 * DAY - days_back * 10 * DAY;
        assert_eq!(uplinks.turn(now), [""; 0]);
        assert!(uplinks.is_spent());
    }
}

#[test]
fn changed_budget_day_keeps_the_usage() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut uplinks = Uplinks::new(directory.path());
    uplinks.turn(NOW);
    uplinks.carry(GB);
    for (day, began) in [(15, "2026-11-15"), (28, "2026-10-28"), (1, "2026-11-01")] {
        uplinks.config.paths[1]
            .budget
            .as_mut()
            .expect("it has one")
            .day = day;
        uplinks.turn(NOW);
        let now = UNIX_EPOCH + NOW;
        let shown = uplinks.budgets.snapshot(&uplinks.config, PathIndex(1), now);
        let shown = shown.expect("it has a budget");
        assert_eq!((shown.used_bytes, shown.began.as_str()), (2 * GB, began));
    }
}

#[test]
fn usage_is_saved_as_it_grows() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut uplinks = Uplinks::new(directory.path());
    uplinks.budgets.start_writer(Privileges::Kept);
    uplinks.turn(NOW);
    let file = directory.path().join(FILE);
    uplinks.carry(GB);
    uplinks.budgets.save_if_due(&uplinks.config);
    let expected = format!("lte 2026-11-01 {}\n", 2 * GB);
    keiro_testing::wait_until("the counts are kept", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text == expected)
    });
    // A little more waits for its minute.
    uplinks.carry(GB + 1);
    uplinks.budgets.save_if_due(&uplinks.config);
    assert_eq!(uplinks.budgets.saved.bytes["lte"], 2 * GB);
}

#[test]
fn damaged_usage_files_are_bounded_and_ignored_by_entry() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join(FILE);
    let long = "x".repeat(FILE_BYTES_MAX as usize + 1);
    for text in [
        "lte",
        "lte 2026-11-01",
        "lte 2026-11-31 1",
        "lte 2026-11-01 -1",
        "lte 2026-11-01 99999999999999999999",
        "lte 2026-11-01 1 2",
        &long,
    ] {
        std::fs::write(&file, text).expect("it is writable");
        let mut uplinks = Uplinks::new(directory.path());
        uplinks.turn(NOW);
        assert_eq!(uplinks.used(NOW), 0);
    }
    std::fs::write(&file, format!("\u{1F4A5}\nlte 2026-11-01 {}\n", u64::MAX)).expect("writable");
    let mut uplinks = Uplinks::new(directory.path());
    uplinks.turn(NOW);
    uplinks.carry(u64::MAX);
    assert!(uplinks.is_spent());
    std::fs::remove_file(&file).expect("it is there");
    std::fs::create_dir(&file).expect("it is writable");
    assert!(!Uplinks::new(directory.path()).is_spent());
}

#[test]
fn usage_of_unconfigured_paths_is_bounded() {
    let directory = tempfile::tempdir().expect("a directory");
    let lines: String = (0..500)
        .map(|number| format!("p{number} 2026-11-01 5\n"))
        .collect();
    std::fs::write(directory.path().join(FILE), lines).expect("it is writable");
    let mut uplinks = Uplinks::new(directory.path());
    uplinks.turn(NOW);
    uplinks.carry(5 * GB);
    assert!(uplinks.is_spent(), "there is room for those that count");
    assert_eq!(uplinks.budgets.months.len(), MONTHS_MAX);
}
