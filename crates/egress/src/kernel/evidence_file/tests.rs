use std::{
    net::{IpAddr, Ipv6Addr},
    os::unix::fs::symlink,
    sync::Mutex,
    time::Instant as Clock,
};

use super::*;
use crate::comparison::Settings;

const HALF: Settings = Settings {
    held_out: 0.5,
    ..Settings::DEFAULT
};

const START: Instant = Instant::from_nanos(1_000_000_000);

fn client() -> IpAddr {
    "2001:db8::1".parse().unwrap()
}

/// One of another prefix for each number.
fn client_of(number: u32) -> IpAddr {
    Ipv6Addr::from(0x2001_0db9 << 96 | u128::from(number) << 80 | 1).into()
}

fn text(kept: &StoredEvidence) -> Vec<u8> {
    serde_json::to_vec(kept).unwrap()
}

/// How many prefixes are known by a file.
fn known(path: &Path) -> usize {
    let mut comparison = Comparison::new(HALF, 1);
    take_up(&mut comparison, START, &fs::read(path).unwrap()).unwrap()
}

/// Calls as the daemon does until nothing is due; how often.
fn tend(file: &mut EvidenceFile, now: Instant, comparison: &Comparison) -> usize {
    let mut calls = 0;
    while file.poll_timeout() <= now {
        file.tend(now, comparison);
        calls += 1;
    }
    calls
}

/// Has done what was ordered, and nothing more.
fn finish(file: &mut EvidenceFile) -> Result<(), String> {
    file.writer.take().unwrap().end(PATIENCE)
}

/// Multipath is half as fast until that was decided.
fn worse(now: Instant) -> Comparison {
    let mut all = Comparison::new(HALF, 1);
    for number in 0.. {
        let drawn = all.draw(now, client());
        let took = if drawn.single { 1000 } else { 2000 } + number % 7;
        all.record(now, drawn, 10_000_000, Duration::from_millis(took));
        if all.withholds(client()) {
            break;
        }
    }
    all
}

#[test]
fn decisions_survive_a_restart_and_invalid_files_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("evidence.json");
    let now = Instant::from_nanos(1_000_000_000);
    let first = worse(now);
    let mut file = EvidenceFile::open(path.clone(), now, &mut Comparison::new(HALF, 1)).unwrap();
    file.end(now, &first);
    let mut second = Comparison::new(HALF, 2);
    let mut file = EvidenceFile::open(path.clone(), now, &mut second).unwrap();
    assert!(second.withholds(client()));
    assert_eq!(second.summary(now).stats.single_path_prefixes, 1);
    // It is written again when it is time and there is something new.
    let before = fs::read(&path).unwrap();
    fs::write(&path, [&b"\xef\xbb\xbf"[..], &before].concat()).unwrap();
    let mut marked = Comparison::new(HALF, 2);
    EvidenceFile::open(path.clone(), now, &mut marked).unwrap();
    assert!(
        marked.withholds(client()),
        "a byte order mark changes nothing"
    );
    fs::write(&path, &before).unwrap();
    fs::remove_file(&path).unwrap();
    file.tend(now + EVERY, &second);
    let later = now + EVERY + EVERY;
    assert_eq!(file.poll_timeout(), later);
    second.draw(later + HALF.again_after, client());
    assert_eq!(second.summary(later).stats.trial_prefixes, 1);
    file.tend(later, &second);
    // Which waits for all that was asked for before.
    file.end(later, &second);
    assert!(fs::read(&path).unwrap().starts_with(b"{\"version\":1,"));

    for broken in [
        &b""[..],
        b"{",
        b"{\"version\":1}",
        &before[..before.len() / 2],
    ] {
        fs::write(&path, broken).unwrap();
        let mut third = Comparison::new(HALF, 3);
        let mut file = EvidenceFile::open(path.clone(), now, &mut third).unwrap();
        assert_eq!(third.summary(now).stats.prefixes, 0);
        file.end(now, &third);
    }
    assert!(
        fs::read(&path).unwrap().starts_with(b"{\"version\":1,"),
        "it was written anew"
    );
}

#[test]
fn non_regular_files_are_neither_read_nor_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let now = Instant::from_nanos(1_000_000_000);
    let mut comparison = worse(now);
    let mut file = EvidenceFile::open(path.clone(), now, &mut comparison).unwrap();
    comparison.draw(now, "2001:db9::1".parse().unwrap());
    file.tend(now + EVERY, &comparison);
    assert_eq!(file.poll_timeout(), now + EVERY + EVERY);
    file.end(now + EVERY, &comparison);
    assert!(!fs::metadata(&path).unwrap().is_file());
}

#[test]
fn without_a_comparison_the_file_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("evidence.json");
    let now = Instant::from_nanos(1_000_000_000);
    let before = text(&worse(now).kept(now, clock::unix_time()));
    fs::write(&path, &before).unwrap();
    let off = Settings {
        held_out: 0.0,
        ..Settings::DEFAULT
    };
    let mut comparison = Comparison::new(off, 1);
    let mut file = EvidenceFile::open(path.clone(), now, &mut comparison).unwrap();
    file.tend(now + EVERY, &comparison);
    file.end(now + EVERY, &comparison);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_hostile_file_is_ignored_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("evidence.json");
    let now = Instant::from_nanos(1_000_000_000);
    let good = text(&worse(now).kept(now, clock::unix_time()));
    let good = String::from_utf8(good).unwrap();
    let (before, rest) = good.split_once("\"prefixes\":[").unwrap();
    let (prefix, _) = rest.split_once("]}").unwrap();
    let of = |prefixes: &str| format!("{before}\"prefixes\":[{prefixes}]}}");
    for (text, known) in [
        (of(prefix), 1),
        (of(&format!("{prefix},{prefix}")), 0),
        (good.replacen("\"count\":", "\"count\":99999999999", 1), 0),
        (
            good.replacen("\"squares\":", "\"squares\":9e307,\"x\":", 1),
            0,
        ),
    ] {
        fs::write(&path, &text).unwrap();
        let mut comparison = Comparison::new(HALF, 2);
        let mut file = EvidenceFile::open(path.clone(), now, &mut comparison).unwrap();
        assert_eq!(comparison.summary(now).stats.prefixes, known, "{text}");
        for _ in 0..100 {
            let drawn = comparison.draw(now, client());
            comparison.record(now, drawn, 10_000_000, Duration::from_secs(1));
        }
        file.end(now, &comparison);
    }
}

#[test]
fn many_prefixes_are_handed_over_some_at_a_time_and_those_that_stay_are_all_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("evidence.json");
    let mut comparison = worse(START);
    let count = 3 * STEP as u32;
    for number in 0..count {
        comparison.draw(START, client_of(number));
    }
    let mut none = Comparison::new(HALF, 1);
    let mut file = EvidenceFile::open(path.clone(), START, &mut none).unwrap();
    let now = START + EVERY;
    file.tend(now, &comparison);
    // What is used meanwhile becomes the first in order of use; others come.
    comparison.draw(now, client_of(count - 1));
    comparison.draw(now, client_of(count));
    assert_eq!(file.poll_timeout(), now, "that was not all");
    assert_eq!(1 + tend(&mut file, now, &comparison), 4);
    assert_eq!(file.poll_timeout(), now + EVERY);
    finish(&mut file).unwrap();
    assert_eq!(known(&path), 1 + count as usize + 1);
}

#[test]
fn a_slow_disk_stalls_no_caller_and_what_was_known_at_the_end_is_written_last() {
    let (open, gate) = mpsc::channel::<()>();
    let texts: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let own = Arc::clone(&texts);
    let write = move |_: &Path, text: &[u8]| {
        // Also where the test has failed.
        let _ = gate.recv();
        own.lock().unwrap().push(text.to_owned());
        Ok(())
    };
    let path = PathBuf::from("unreachable");
    let mut comparison = Comparison::new(HALF, 1);
    let mut file = EvidenceFile::open_with(path, START, &mut comparison, write).unwrap();
    let mut comparison = worse(START);
    let mut now = START + EVERY;
    assert_eq!(tend(&mut file, now, &comparison), 1);
    for number in 0..3 {
        now += EVERY;
        let drawn = comparison.draw(now, client_of(number));
        comparison.record(now, drawn, 10_000_000, Duration::from_secs(1));
        assert_eq!(tend(&mut file, now, &comparison), 1);
        assert!(file.round.is_none(), "nothing piles up");
    }
    thread::scope(|scope| {
        let ending = scope.spawn(|| file.end(now, &comparison));
        assert!(texts.lock().unwrap().is_empty() && !ending.is_finished());
        open.send(()).unwrap();
        open.send(()).unwrap();
    });
    let texts = texts.lock().unwrap();
    let prefixes = |text: &[u8]| {
        let kept: StoredEvidence = serde_json::from_slice(text).unwrap();
        let mut comparison = Comparison::new(HALF, 1);
        comparison.take_up(now, clock::unix_time(), &kept).unwrap()
    };
    let reported: Vec<usize> = texts.iter().map(|text| prefixes(text)).collect();
    assert_eq!(reported, [1, 4], "the end waits for it");
}

#[test]
fn a_disk_that_never_answers_is_not_waited_for_forever() {
    let (_closed, gate) = mpsc::channel::<()>();
    let write = move |_: &Path, _: &[u8]| {
        let _ = gate.recv();
        Ok(())
    };
    let writer = Writer::start(PathBuf::from("unreachable"), write).unwrap();
    writer.order(Order::Write(worse(START).kept(START, clock::unix_time())));
    let begun = Clock::now();
    let reason = writer.end(Duration::from_millis(20)).unwrap_err();
    assert!(reason.contains("the disk has not taken it"), "{reason}");
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn failed_write_is_retried_without_new_evidence() {
    let tries = Arc::new(Mutex::new(0));
    let own = Arc::clone(&tries);
    let write = move |_: &Path, _: &[u8]| {
        let mut tries = own.lock().unwrap();
        *tries += 1;
        match *tries {
            1 => Err(io::Error::other("no space left")),
            _ => Ok(()),
        }
    };
    let mut none = Comparison::new(HALF, 1);
    let path = PathBuf::from("unreachable");
    let mut file = EvidenceFile::open_with(path, START, &mut none, write).unwrap();
    let comparison = worse(START);
    let mut now = START;
    for tried in [1, 2, 2] {
        now += EVERY;
        tend(&mut file, now, &comparison);
        let end = Clock::now() + PATIENCE;
        while file.writer.as_ref().unwrap().is_busy() {
            assert!(Clock::now() < end);
            thread::yield_now();
        }
        assert_eq!(*tries.lock().unwrap(), tried);
    }
}

#[test]
fn other_prefixes_or_no_comparison_end_what_is_being_handed_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("evidence.json");
    let mut comparison = worse(START);
    for number in 0..2 * STEP as u32 {
        comparison.draw(START, client_of(number));
    }
    let mut none = Comparison::new(HALF, 1);
    let mut file = EvidenceFile::open(path.clone(), START, &mut none).unwrap();
    let now = START + EVERY;
    file.tend(now, &comparison);
    let others = Settings {
        prefix_bits: 56,
        ..HALF
    };
    comparison.set(others);
    comparison.draw(now, client_of(1));
    file.tend(now, &comparison);
    assert_eq!(file.poll_timeout(), now + EVERY);
    // And is forgotten when the next one begins.
    let later = now + EVERY;
    tend(&mut file, later, &comparison);
    finish(&mut file).unwrap();
    let kept: StoredEvidence = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut others = Comparison::new(others, 1);
    assert_eq!(others.take_up(later, clock::unix_time(), &kept), Ok(1));
}

#[test]
fn foreign_files_are_neither_used_nor_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("egress.toml");
    let long = vec![b'x'; BYTES_MAX as usize + 2];
    for other in [&b"[egress]\nasn = 65000\n"[..], b"{\"roas\": []}", &long] {
        fs::write(&path, other).unwrap();
        let mut comparison = Comparison::new(HALF, 1);
        let mut file = EvidenceFile::open(path.clone(), START, &mut comparison).unwrap();
        let comparison = worse(START);
        tend(&mut file, START + EVERY, &comparison);
        file.end(START + EVERY, &comparison);
        assert!(fs::read(&path).unwrap() == other);
    }
}

#[test]
fn existing_temporary_file_is_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let [path, new, other] =
        ["evidence.json", "evidence.json.new", "other"].map(|name| directory.path().join(name));
    fs::write(&other, "precious").unwrap();
    let pipe = || {
        let made = std::process::Command::new("mkfifo").arg(&new).status();
        assert!(made.unwrap().success());
    };
    let link = || symlink(&other, &new).unwrap();
    for lay in [&pipe as &dyn Fn(), &link] {
        lay();
        let mut none = Comparison::new(HALF, 1);
        let mut file = EvidenceFile::open(path.clone(), START, &mut none).unwrap();
        file.end(START, &worse(START));
        assert_eq!(known(&path), 1);
        assert_eq!(fs::read(&other).unwrap(), b"precious");
    }
}
