//! The time of this gateway's handshakes, over restarts: a peer refuses one that is not later than those before, as a
//! replay. A machine whose clock stops without power begins with a time in the past, and may need the tunnel to set it.
//!
//! The state directory has a time that no handshake has reached yet. It is written ahead, so that it holds whenever
//! the gateway ends, and rarely; a thread does it, because a disk may take its time.

use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    time::Duration,
};

use keiro_linux::clock;

use crate::{kept_file, privileges::Privileges};

/// How far ahead a time is reserved. Ours: no more than a clock may well be wrong by.
const AHEAD: Duration = Duration::from_secs(600);
/// Time that is reserved at once where the clock is behind what is reserved: handshakes count up from there by
/// nanoseconds. Ours: a gateway that restarts all the time gets no further ahead of its clock.
const STEP: Duration = Duration::from_secs(1);
/// A clock that is behind by less is not reported. Ours: restarts of a second each reserve [`STEP`] more.
const BEHIND_MIN: Duration = Duration::from_secs(60);
/// Reserved again after this time.
const EVERY: Duration = Duration::from_secs(300);
/// A time in the file beyond this is a fault of the file: the year 2200.
const LAST: Duration = Duration::from_secs(7_258_118_400);
/// The file in the state directory.
const FILE: &str = "handshake-time";
/// It has a number of nanoseconds and a line end.
const FILE_BYTES_MAX: u64 = 32;

/// The times that are reserved for handshakes.
pub(crate) struct HandshakeTime {
    /// Handshakes are later than this, Unix time.
    pub(crate) floor: Duration,
    /// Ends the thread when it is dropped.
    _stop: Option<SyncSender<()>>,
}

/// What is reserved, and where that is written.
struct Reservation {
    file: PathBuf,
    floor: Duration,
    /// Unix time when the monotonic clock was zero, as handshakes have it.
    unix_time_at_zero: Duration,
    has_failed: bool,
}

impl HandshakeTime {
    /// Reads what was reserved before, reserves more, and goes on with that. Where nothing can be read or written, the
    /// clock alone counts, and the log says so.
    pub(crate) fn start(
        directory: &Path,
        unix_time_at_zero: Duration,
        privileges: Privileges,
    ) -> Self {
        let file = directory.join(FILE);
        let floor = read(&file).unwrap_or_else(|error| {
            tracing::warn!(
                "{}: {error}; the clock alone orders handshakes",
                file.display()
            );
            Duration::ZERO
        });
        let mut reservation = Reservation {
            file,
            floor,
            unix_time_at_zero,
            has_failed: false,
        };
        let now = reservation.now();
        if let Some(behind) = clock_behind(floor, now) {
            tracing::warn!(
                "this machine's clock is at least {} behind what it was; handshakes go on from there, so that peers take \
                 them; set the clock",
                keiro_control::rounded::duration(behind)
            );
        }
        reservation.renew();
        let (stop, stopped) = sync_channel::<()>(0);
        let started = privileges.start_without("handshake-time", || {
            let thread = std::thread::Builder::new().name("handshake-time".into());
            thread.spawn(move || {
                while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    reservation.renew();
                }
            })
        });
        if let Err(error) = &started {
            tracing::warn!(%error, "the time of handshakes is not kept");
        }
        Self {
            floor,
            _stop: started.is_ok().then_some(stop),
        }
    }
}

impl Reservation {
    fn now(&self) -> Duration {
        self.unix_time_at_zero.saturating_add(clock::monotonic())
    }

    /// Reserves the time ahead; a fault is logged once.
    fn renew(&mut self) {
        let written = write(&self.file, reserved(self.floor, self.now()));
        match written {
            Ok(()) => self.has_failed = false,
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => tracing::warn!(
                "{}: {error}; if the clock of this machine goes back over a restart, peers may refuse its handshakes; \
                 make state_directory writable",
                self.file.display()
            ),
            Err(_) => {}
        }
    }
}

/// What no handshake reaches before it is renewed: `floor` was reserved before the start.
fn reserved(floor: Duration, now: Duration) -> Duration {
    let ahead = now.saturating_add(AHEAD);
    ahead.max(floor.saturating_add(STEP)).min(LAST)
}

/// How far the clock is behind what it was; `None`: it is not, as far as that is known.
fn clock_behind(floor: Duration, now: Duration) -> Option<Duration> {
    let behind = floor.saturating_sub(AHEAD).saturating_sub(now);
    (behind >= BEHIND_MIN).then_some(behind)
}

/// Zero where there is no file yet.
fn read(file: &Path) -> io::Result<Duration> {
    let Some(text) = kept_file::read(file, FILE_BYTES_MAX)? else {
        return Ok(Duration::ZERO);
    };
    let nanos = text.trim_end().parse().ok().map(Duration::from_nanos);
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "it has no time before 2200");
    nanos.filter(|time| *time <= LAST).ok_or_else(invalid)
}

fn write(file: &Path, time: Duration) -> io::Result<()> {
    kept_file::write(file, &format!("{}\n", time.as_nanos()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    /// Some day in 2023.
    const NOW: Duration = Duration::from_secs(1_700_000_000);

    #[test]
    fn handshakes_after_a_restart_are_later_than_those_before_whatever_the_clock_says() {
        for back in [Duration::ZERO, DAY / 12, 50 * 365 * DAY] {
            let directory = tempfile::tempdir().expect("a directory");
            let file = directory.path().join("state").join(FILE);
            assert_eq!(read(&file).expect("none yet"), Duration::ZERO);
            write(&file, reserved(Duration::ZERO, NOW)).expect("it is writable");
            // A handshake left as late as it may before the reservation is renewed, and the process ended.
            let last = NOW + EVERY;
            for restart in 1..5 {
                let floor = read(&file).expect("it was written");
                assert!(floor > last, "{back:?}, restart {restart}");
                write(&file, reserved(floor, NOW.saturating_sub(back))).expect("it is writable");
                assert!(read(&file).expect("it was written") > floor);
            }
        }
    }

    #[test]
    fn frequent_restarts_do_not_run_ahead_of_the_clock() {
        let mut floor = Duration::ZERO;
        let mut now = NOW;
        for _ in 0..100_000 {
            assert_eq!(clock_behind(floor, now), None);
            floor = reserved(floor, now);
            assert!(floor <= now + AHEAD + STEP, "{:?} ahead", floor - now);
            now += STEP;
        }
        // At most by what they reserve, if they are quicker.
        for _ in 0..100 {
            floor = reserved(floor, now);
        }
        assert!(floor <= now + AHEAD + STEP * 101);
    }

    #[test]
    fn clock_that_has_gone_back_is_noticed_and_a_quick_restart_is_not() {
        let floor = reserved(Duration::ZERO, NOW);
        assert_eq!(clock_behind(floor, NOW), None);
        assert_eq!(clock_behind(floor, NOW + DAY), None);
        assert_eq!(clock_behind(floor, NOW - DAY), Some(DAY));
        assert_eq!(clock_behind(Duration::ZERO, NOW), None);
    }

    #[test]
    fn gateway_begins_after_what_it_has_kept_and_without_a_place_to_keep_it() {
        let begin = |directory: &Path, now: Duration| {
            let at_zero = now.saturating_sub(clock::monotonic());
            HandshakeTime::start(directory, at_zero, Privileges::Kept).floor
        };
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(begin(directory.path(), NOW), Duration::ZERO);
        let mut last = NOW;
        for back in [Duration::ZERO, DAY / 12, 50 * 365 * DAY] {
            let floor = begin(directory.path(), NOW - back);
            assert!(floor > last, "{back:?}");
            last = floor;
        }
        // A file is where the directory should be, as nothing can be written on a disk that is read-only.
        let file = directory.path().join("file");
        fs::write(&file, "").expect("it is writable");
        assert_eq!(begin(&file, NOW), Duration::ZERO);
    }

    #[test]
    fn damaged_handshake_time_files_are_refused_and_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join(FILE);
        let late = u64::MAX.to_string();
        for text in [
            "",
            "x",
            "-1",
            "1.5",
            &late,
            "99999999999999999999999999999999999",
        ] {
            fs::write(&file, text).expect("it is writable");
            assert!(read(&file).is_err(), "{text}");
        }
        fs::remove_file(&file).expect("it is there");
        fs::create_dir(&file).expect("it is writable");
        assert!(read(&file).is_err());
        assert!(write(&file, NOW).is_err());
        assert_eq!(
            fs::read_dir(directory.path()).expect("it is there").count(),
            1
        );
    }
}
