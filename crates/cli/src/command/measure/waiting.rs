//! Where a measurement stands, on standard error: a bar on a terminal, else a line for each part.

use std::{
    io::{self, IsTerminal},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// Shows it; clears it when dropped.
pub(super) struct Waiting {
    /// `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
    /// When the part is expected to end; `None`: not known yet.
    end: Arc<Mutex<Option<Instant>>>,
    part: usize,
    parts: usize,
}

/// What a measurement waits for, said once if it takes long: a server or a network that is silent looks like a
/// command that hangs.
pub(super) struct WaitsFor(Mutex<Awaited>);

struct Awaited {
    what: String,
    since: Instant,
    said: bool,
    bar: Option<ProgressBar>,
}

/// Silence of this length is noticed. Ours.
const SILENCE_SHOWN: Duration = Duration::from_secs(1);

const BAR_STEPS: u64 = 10_000;

/// The time left goes on while a long transfer says nothing.
const TICK: Duration = Duration::from_millis(500);

impl WaitsFor {
    pub(super) fn new(what: String) -> Self {
        Self(Mutex::new(Awaited {
            what,
            since: Instant::now(),
            said: false,
            bar: None,
        }))
    }

    /// It waits for something else from now on.
    pub(super) fn begin(&self, what: String) {
        let mut awaited = self.lock();
        (awaited.what, awaited.said) = (what, false);
        awaited.since = Instant::now();
    }

    /// Something of what it waits for has come.
    pub(super) fn on_progress(&self) {
        self.lock().since = Instant::now();
    }

    /// Says what it waits for, if that has been silent for long.
    pub(super) fn say_if_long(&self) {
        let mut awaited = self.lock();
        if awaited.is_due(Instant::now()) {
            awaited.said = true;
            let say = || crate::output::message!("keiro: waits for {}", awaited.what);
            match &awaited.bar {
                Some(bar) => bar.suspend(say),
                None => say(),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Awaited> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Awaited {
    fn is_due(&self, now: Instant) -> bool {
        !self.said && now.saturating_duration_since(self.since) >= SILENCE_SHOWN
    }
}

impl Waiting {
    /// For as many parts, one after the other.
    pub(super) fn new(parts: usize, waits_for: &WaitsFor) -> Self {
        let end = Arc::new(Mutex::new(None));
        let bar = io::stderr().is_terminal().then(|| bar(Arc::clone(&end)));
        waits_for.lock().bar.clone_from(&bar);
        Self {
            bar,
            end,
            part: 0,
            parts,
        }
    }

    /// The next part begins.
    pub(super) fn begin(&mut self, part: &'static str) {
        self.part += 1;
        self.set_end(None);
        match &self.bar {
            Some(bar) => {
                bar.set_position(0);
                bar.set_message(part);
                bar.set_prefix(format!("{}/{}", self.part, self.parts));
            }
            None => crate::output::message!("keiro: {part}"),
        }
    }

    /// This share of it is done, and the rest will take `left`; what it is doing.
    pub(super) fn show(&self, share: f64, left: Duration, doing: &str) {
        if let Some(bar) = &self.bar {
            self.set_end(Instant::now().checked_add(left));
            bar.set_position((share.clamp(0.0, 1.0) * BAR_STEPS as f64) as u64);
            bar.set_message(doing.to_owned());
        }
    }

    fn set_end(&self, end: Option<Instant>) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = end;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// What must be seen comes first: a narrow terminal cuts off the rest.
fn bar(end: Arc<Mutex<Option<Instant>>>) -> ProgressBar {
    let left = move |_: &ProgressState, to: &mut dyn std::fmt::Write| {
        let end = *end.lock().unwrap_or_else(PoisonError::into_inner);
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let _ = to.write_str(&left.map_or_else(String::new, left_text));
    };
    let style = ProgressStyle::with_template("{prefix} {bar:20} {percent:>3} % {left}{msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("left", left);
    let bar = ProgressBar::new(BAR_STEPS).with_style(style);
    bar.enable_steady_tick(TICK);
    bar
}

/// Estimates are rarely good to a second where minutes are left.
fn left_text(left: Duration) -> String {
    match left.as_secs_f64().ceil() as u64 {
        seconds @ 0..90 => format!("{seconds} s left, "),
        seconds => format!("{} min left, ", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_silent_for_a_second_is_said_once_until_it_waits_for_something_else() {
        let waits_for = WaitsFor::new("a connection".to_owned());
        let begun = waits_for.lock().since;
        let due = |waits_for: &WaitsFor, millis| {
            waits_for
                .lock()
                .is_due(begun + Duration::from_millis(millis))
        };
        assert!(!due(&waits_for, 999) && due(&waits_for, 1000));
        waits_for.lock().said = true;
        assert!(!due(&waits_for, 5000));
        waits_for.begin("replies".to_owned());
        assert!(due(&waits_for, 60_000));
        waits_for.lock().since = begun + Duration::from_secs(60);
        assert!(!due(&waits_for, 60_999));
    }

    #[test]
    fn time_left_is_never_said_to_be_less_than_it_is() {
        for (millis, text) in [
            (0, "0 s left, "),
            (1, "1 s left, "),
            (89_000, "89 s left, "),
            (89_001, "2 min left, "),
            (120_001, "3 min left, "),
        ] {
            assert_eq!(left_text(Duration::from_millis(millis)), text);
        }
    }
}
