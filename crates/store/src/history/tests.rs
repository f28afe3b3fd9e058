use std::os::unix::fs::MetadataExt;

use super::*;
use crate::small_disk::{fill, on_a_small_disk};

/// An hour's beginning.
const NOW: u64 = 1_700_000_000 - 1_700_000_000 % HOUR;

fn subject(name: &str) -> SeriesKey {
    SeriesKey {
        name: name.into(),
        peer: "osaka".into(),
    }
}

fn path(capacity: f64) -> PathSample {
    PathSample {
        capacity_bits_per_second: Some(capacity),
        base_delay_seconds: Some(capacity / 1e6),
        loss_ratio: Some(0.01),
        ..PathSample::default()
    }
}

fn app(count: u64, delay: f64) -> AppSample {
    AppSample {
        count,
        length_mean_bytes: Some(1200.0),
        delay_mean_seconds: Some(delay),
        delay_p99_seconds: Some(delay * 2.0),
        ..AppSample::default()
    }
}

fn batch(names: &[&str], capacity: f64) -> Batch {
    Batch {
        paths: names
            .iter()
            .map(|name| (subject(name), path(capacity)))
            .collect(),
        apps: vec![],
    }
}

fn open(directory: &Path) -> History {
    History::open(&directory.join("history.db"), Bounds::default()).unwrap()
}

#[test]
fn what_was_recorded_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let recorded = Batch {
        paths: vec![(subject("fibre"), path(1e8))],
        apps: vec![(subject("scada"), app(300, 0.02))],
    };
    {
        let mut history = open(directory.path());
        history.record(NOW - 60, &batch(&["fibre"], 5e7)).unwrap();
        assert_eq!(history.record(NOW + 59, &recorded).unwrap(), 0);
    }
    let mut history = open(directory.path());
    let latest = history.latest().unwrap();
    assert_eq!(
        latest.paths,
        [(
            subject("fibre"),
            Row {
                at_unix_seconds: NOW,
                sample: path(1e8)
            }
        )]
    );
    assert_eq!(latest.apps[0].1.sample, app(300, 0.02));
    let rows = history.path(&subject("fibre"), Resolution::Minute, 0..u64::MAX);
    let capacities: Vec<_> = rows
        .unwrap()
        .iter()
        .map(|row| row.sample.capacity_bits_per_second.unwrap())
        .collect();
    assert_eq!(capacities, [5e7, 1e8]);
    let none = history.app(&subject("fibre"), Resolution::Minute, 0..u64::MAX);
    assert_eq!(none.unwrap(), []);
    assert_eq!(history.take_notices(), []);
    let file = fs::metadata(directory.path().join("history.db")).unwrap();
    assert_eq!(file.mode() & 0o777, 0o600);
}

#[test]
fn a_renamed_peer_has_its_history_under_the_new_name() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = open(directory.path());
    let key = |name: &str, peer: &str| SeriesKey {
        name: name.into(),
        peer: peer.into(),
    };
    let pairs = |renames: &[[&str; 2]]| -> Vec<[String; 2]> {
        renames.iter().map(|pair| pair.map(str::to_owned)).collect()
    };
    let recorded = Batch {
        paths: ["tokyo", "kobe", "gone"]
            .map(|peer| (key("fibre", peer), path(peer.len() as f64)))
            .into(),
        apps: vec![(key("office@tokyo", "tokyo"), app(300, 0.02))],
    };
    history.record(NOW, &recorded).unwrap();
    // Two change their names with each other, and a third takes that of one that is gone.
    history
        .rename(&pairs(&[["tokyo", "kobe"], ["kobe", "tokyo"]]), &[])
        .unwrap();
    history
        .rename(
            &pairs(&[["kobe", "gone"]]),
            &pairs(&[["office@tokyo", "office@gone"]]),
        )
        .unwrap();
    let mut capacity = |peer: &str| {
        let rows = history.path(&key("fibre", peer), Resolution::Minute, NOW..NOW + MINUTE);
        let rows = rows.unwrap();
        rows.first()
            .and_then(|row| row.sample.capacity_bits_per_second)
    };
    assert_eq!(capacity("gone"), Some(5.0), "that of tokyo");
    assert_eq!(capacity("tokyo"), Some(4.0), "that of kobe");
    assert_eq!(capacity("kobe"), None);
    let rows = history.app(
        &key("office@gone", "gone"),
        Resolution::Minute,
        NOW..NOW + MINUTE,
    );
    assert_eq!(rows.unwrap().len(), 1);
}

#[test]
fn the_newest_of_an_application_is_where_its_workload_was_measured() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = open(directory.path());
    let unmeasured = AppSample {
        length_mean_bytes: None,
        ..app(3, 0.02)
    };
    for (at, sample) in [(NOW, app(300, 0.02)), (NOW + MINUTE, unmeasured)] {
        let batch = Batch {
            paths: vec![],
            apps: vec![(subject("scada"), sample)],
        };
        history.record(at, &batch).unwrap();
    }
    let latest = history.latest().unwrap();
    assert_eq!(latest.apps.len(), 1);
    assert_eq!(latest.apps[0].1.at_unix_seconds, NOW);
}

#[test]
fn hours_are_made_of_minutes() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = open(directory.path());
    for (minute, count, delay) in [(0, 100, 0.01), (1, 300, 0.03), (59, 0, 0.5)] {
        let apps = vec![(subject("scada"), app(count, delay))];
        let paths = vec![(subject("fibre"), path(1e6 * (minute + 1) as f64))];
        let batch = Batch { paths, apps };
        history.record(NOW + minute * MINUTE, &batch).unwrap();
    }
    history.record(NOW + HOUR, &Batch::default()).unwrap();
    let apps = history
        .app(&subject("scada"), Resolution::Hour, NOW..NOW + 1)
        .unwrap();
    let hour = apps[0].sample;
    assert_eq!(hour.count, 400);
    assert!((hour.delay_mean_seconds.unwrap() - 0.025).abs() < 1e-12);
    assert_eq!(hour.delay_p99_seconds, Some(1.0));
    assert_eq!(hour.length_mean_bytes, Some(1200.0));
    assert_eq!(hour.length_spread_bytes, None);
    let paths = history
        .path(&subject("fibre"), Resolution::Hour, NOW..NOW + 1)
        .unwrap();
    let hour = paths[0].sample;
    assert!((hour.capacity_bits_per_second.unwrap() - 21e6).abs() < 1.0);
    assert_eq!(hour.base_delay_seconds, Some(1.0));
}

#[test]
fn an_hour_that_is_not_over_has_what_there_is_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = open(directory.path());
    let fibre = subject("fibre");
    let mut hours = |minute: u64, capacity: f64| {
        let at = NOW + minute * MINUTE;
        history.record(at, &batch(&["fibre"], capacity)).unwrap();
        let rows = history.path(&fibre, Resolution::Hour, 0..at + MINUTE);
        let found = rows.unwrap().into_iter().map(|row| {
            let capacity = row.sample.capacity_bits_per_second.unwrap();
            (row.at_unix_seconds - NOW, capacity)
        });
        found.collect::<Vec<_>>()
    };
    assert_eq!(hours(0, 1e6), [(0, 1e6)]);
    assert_eq!(hours(1, 3e6), [(0, 2e6)]);
    assert_eq!(hours(60, 5e6), [(0, 2e6), (HOUR, 5e6)]);
    assert_eq!(hours(61, 7e6), [(0, 2e6), (HOUR, 6e6)]);
    assert_eq!(hours(240, 1e6), [(0, 2e6), (HOUR, 6e6), (4 * HOUR, 1e6)]);
}

#[test]
fn what_is_too_old_goes() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = open(directory.path());
    let all = 0..u64::MAX;
    let day = 24 * HOUR;
    for quarter in 0..40 * 4 {
        history
            .record(NOW + quarter * 6 * HOUR, &batch(&["fibre"], 1.0))
            .unwrap();
    }
    let fibre = subject("fibre");
    let minutes = history
        .path(&fibre, Resolution::Minute, all.clone())
        .unwrap();
    assert_eq!(minutes.len(), 5);
    let hours = history.path(&fibre, Resolution::Hour, all.clone()).unwrap();
    // Those that are kept, and the present one.
    assert_eq!(hours.len(), 30 * 4 + 1);
    history
        .record(NOW + 80 * day, &batch(&["dsl"], 1.0))
        .unwrap();
    assert_eq!(history.path(&fibre, Resolution::Hour, all).unwrap(), []);
    assert_eq!(history.latest().unwrap().paths.len(), 1);
}

#[test]
fn subjects_are_bounded_and_the_unseen_make_room() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        subjects_max: 2,
        ..Bounds::default()
    };
    let mut history = History::open(&directory.path().join("history.db"), bounds).unwrap();
    assert_eq!(
        history.record(NOW, &batch(&["a", "b", "c"], 1.0)).unwrap(),
        1
    );
    let later = NOW + 2 * HOUR;
    assert_eq!(
        history
            .record(later, &batch(&["b", "c", "d"], 2.0))
            .unwrap(),
        1
    );
    let names: Vec<_> = history
        .latest()
        .unwrap()
        .paths
        .into_iter()
        .map(|(subject, _)| subject.name)
        .collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(
        history
            .record(later, &batch(&["../x", "", "a@b@c"], 2.0))
            .unwrap(),
        3
    );
    // The names of a network's applications are good ones.
    let much_later = later + 2 * HOUR;
    assert_eq!(
        history
            .record(much_later, &batch(&["office@tokyo"], 2.0))
            .unwrap(),
        0
    );
}

/// As a full disk, but of the file's own bound.
#[test]
fn the_file_does_not_grow_beyond_its_bound() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("history.db");
    let bounds = Bounds {
        bytes_max: 256 << 10,
        ..Bounds::default()
    };
    let mut history = History::open(&file, bounds).unwrap();
    let names: Vec<_> = (0..200).map(|number| format!("path-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut refused = 0;
    for minute in 0..60 {
        match history.record(NOW + minute * MINUTE, &batch(&names, 1.0)) {
            Ok(_) => {}
            Err(HistoryError::NoSpace(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0);
    assert!(fs::metadata(&file).unwrap().len() <= 256 << 10);
    // A day later there is room again.
    history
        .record(NOW + 25 * HOUR, &batch(&names, 1.0))
        .unwrap();
}

#[test]
fn a_clock_that_was_set_back_does_not_fill_it_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        bytes_max: 256 << 10,
        ..Bounds::default()
    };
    let mut history = History::open(&directory.path().join("history.db"), bounds).unwrap();
    let names: Vec<_> = (0..200).map(|number| format!("path-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let full = |history: &mut History, minute| {
        let recorded = history.record(NOW + minute * MINUTE, &batch(&names, 1.0));
        matches!(recorded, Err(HistoryError::NoSpace(_)))
    };
    assert!((0..60).any(|minute| full(&mut history, minute)));
    let before = NOW - 100 * 24 * HOUR;
    history.record(before, &batch(&names, 1.0)).unwrap();
    assert_eq!(history.latest().unwrap().paths.len(), 200);
}

#[test]
fn databases_that_cannot_be_read_are_kept_aside() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("history.db");
    let other = directory.path().join("other.db");
    let database = Connection::open(&other).unwrap();
    database.execute_batch("CREATE TABLE x (y)").unwrap();
    drop(database);
    let make = |pragma: &str| {
        let _ = fs::remove_file(&file);
        open(directory.path())
            .record(NOW, &batch(&["a"], 1.0))
            .unwrap();
        let database = Connection::open(&file).unwrap();
        database.execute_batch(pragma).unwrap();
        drop(database);
        fs::read(&file).unwrap()
    };
    let cases = [
        (
            b"not a database, but long enough to look".to_vec(),
            "not a database",
        ),
        (Vec::new(), "it is empty"),
        (fs::read(&other).unwrap(), "another program"),
        (make("PRAGMA user_version = 2"), "layout 2"),
        (make("CREATE VIEW v AS SELECT 1"), "its tables"),
        (make("DROP TABLE app_hour"), "its tables"),
    ];
    for (contents, reason) in cases {
        fs::write(&file, &contents).unwrap();
        let mut history = open(directory.path());
        let notices = history.take_notices();
        assert_eq!(notices.len(), 1, "{reason}");
        assert!(notices[0].reason.contains(reason), "{}", notices[0]);
        assert_eq!(fs::read(&notices[0].kept).unwrap(), contents);
        assert_eq!(history.latest().unwrap(), Latest::default());
        history.record(NOW, &batch(&["a"], 1.0)).unwrap();
    }
}

/// Bits flipped, pieces overwritten, the end cut off: an answer, an error or a fresh database, and
/// afterwards one that works.
#[test]
fn no_damage_stops_the_history() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("history.db");
    {
        let mut history = open(directory.path());
        for minute in 0..120 {
            history
                .record(NOW + minute * MINUTE, &batch(&["a", "b", "c"], 1.0))
                .unwrap();
        }
    }
    let intact = fs::read(&file).unwrap();
    // xorshift (Marsaglia 2003), seeded: the same damage each time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % below
    };
    let mut anew = 0;
    for round in 0..200 {
        let mut damaged = intact.clone();
        match round % 4 {
            0 => damaged[random(intact.len())] ^= 1 << random(8),
            1 => {
                let at = random(intact.len());
                let end = (at + random(4096)).min(intact.len());
                damaged[at..end]
                    .iter_mut()
                    .for_each(|byte| *byte = random(256) as u8);
            }
            2 => damaged.truncate(random(intact.len())),
            _ => damaged[random(100)] ^= 1 << random(8),
        }
        fs::write(&file, &damaged).unwrap();
        let mut history = open(directory.path());
        history.latest().unwrap();
        history
            .path(&subject("a"), Resolution::Minute, 0..u64::MAX)
            .unwrap();
        history
            .record(NOW + 25 * HOUR, &batch(&["a"], 1.0))
            .unwrap();
        let now = NOW + 25 * HOUR;
        let rows = history.path(&subject("a"), Resolution::Minute, now..now + 1);
        assert_eq!(rows.unwrap().len(), 1, "round {round}");
        let notices = history.take_notices();
        for kept in &notices {
            assert!(!kept.to_string().contains('\n'), "round {round}: {kept}");
        }
        anew += notices.len();
    }
    assert!(anew > 20, "{anew} of 200 were found damaged");
}

#[test]
fn two_processes_do_not_share_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = open(directory.path());
    first.record(NOW, &batch(&["a"], 1.0)).unwrap();
    let second = History::open(&directory.path().join("history.db"), Bounds::default());
    assert!(matches!(second, Err(HistoryError::InUse(_))), "{second:?}");
    assert!(first.take_notices().is_empty());
}

#[test]
fn a_full_disk_is_an_error_and_harms_nothing() {
    on_a_small_disk(4 << 20, |disk| {
        let mut history = open(disk);
        history.record(NOW, &batch(&["a"], 1.0)).unwrap();
        let names: Vec<_> = (0..200).map(|number| format!("path-{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        for but in [0, 4096, 8192, 16384, 32768] {
            let filler = fill(disk, but);
            let mut refused = 0;
            for minute in 1..60 {
                match history.record(NOW + minute * MINUTE, &batch(&names, 2.0)) {
                    Ok(_) => {}
                    Err(HistoryError::NoSpace(_)) => refused += 1,
                    Err(error) => panic!("{but}: {error:?}"),
                }
            }
            assert!(refused > 0, "{but} bytes free");
            // It can be read, also by the next process, before and after there is room again.
            let rows = |history: &mut History| {
                let rows = history.path(&subject("a"), Resolution::Minute, 0..u64::MAX);
                assert_eq!(rows.unwrap()[0].sample, path(1.0));
            };
            rows(&mut history);
            drop(history);
            fs::remove_file(filler).unwrap();
            history = open(disk);
            rows(&mut history);
            assert_eq!(history.take_notices(), []);
            history.record(NOW + HOUR, &batch(&["a"], 1.0)).unwrap();
        }
    });
}

#[test]
fn a_disk_that_is_full_from_the_start_is_an_error() {
    on_a_small_disk(1 << 20, |disk| {
        let filler = fill(disk, 0);
        let path = disk.join("history.db");
        let error = History::open(&path, Bounds::default()).unwrap_err();
        assert!(matches!(error, HistoryError::NoSpace(_)), "{error:?}");
        fs::remove_file(filler).unwrap();
        let mut history = History::open(&path, Bounds::default()).unwrap();
        history.record(NOW, &batch(&["a"], 1.0)).unwrap();
        assert_eq!(history.take_notices(), []);
    });
}
