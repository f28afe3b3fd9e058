//! Signals: laboratories are removed before SIGINT, SIGTERM or SIGHUP ends the process.

use std::{
    io, panic,
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};

use super::{LabError, children::lock, teardown::Teardown};

/// Handles SIGINT, SIGTERM and SIGHUP of this process once it is installed.
///
/// The first of them wakes waiting threads. When `grace` has passed, or on a second signal, the remaining
/// laboratories are removed and the signal ends the process as it would have done.
#[derive(Clone, Debug)]
pub struct Interrupts {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    labs: Mutex<Labs>,
    received: Mutex<Received>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Labs {
    made: Vec<Weak<Teardown>>,
    /// The process is ending: a laboratory that is made now would remain.
    ending: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Received {
    first: Option<i32>,
    count: u32,
}

impl Interrupts {
    /// Installs the handlers, once per process, before the first laboratory is made.
    ///
    /// With a `grace` of zero the first signal ends the process. In builds where a panic aborts, a panic
    /// removes the laboratories too.
    ///
    /// # Errors
    /// Handlers or threads are not available.
    pub fn install(grace: Duration) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let listening = Arc::clone(&shared);
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || signals.forever().for_each(|signal| listening.note(signal)))?;
        let closing = Arc::clone(&shared);
        thread::Builder::new()
            .name("clean-up".into())
            .spawn(move || closing.close_when_signalled(grace))?;
        if cfg!(panic = "abort") {
            let aborting = Arc::clone(&shared);
            let report = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                report(info);
                // A thread that panics while a laboratory begins holds the lock, and would wait for itself.
                if aborting.labs.try_lock().is_ok() {
                    aborting.close_labs();
                }
            }));
        }
        Ok(Self { shared })
    }

    /// The signal that has been received; `None` if none.
    pub fn received(&self) -> Option<i32> {
        lock(&self.shared.received).first
    }

    /// Waits for a signal at most for `timeout` and returns it; `None` if there was none.
    pub fn wait(&self, timeout: Duration) -> Option<i32> {
        let received = lock(&self.shared.received);
        let waiting = |received: &mut Received| received.first.is_none();
        let (received, _) = self
            .shared
            .changed
            .wait_timeout_while(received, timeout, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        received.first
    }

    /// Ends the process as the received signal would have done, once the laboratories are removed. A command
    /// calls this after it has finished early because of a signal. Returns if there was no signal.
    pub fn end_if_received(&self) {
        if let Some(signal) = self.received() {
            self.shared.end_by(signal);
        }
    }

    /// Begins a laboratory, which is removed on signals from then on.
    ///
    /// # Errors
    /// [`LabError::Closed`] if the process is ending: a caller that has seen its laboratory vanish may try
    /// again at once, and the new one would remain. Otherwise the error of `begin`.
    pub(super) fn admit(
        &self,
        name: &str,
        begin: impl FnOnce() -> Result<Arc<Teardown>, LabError>,
    ) -> Result<Arc<Teardown>, LabError> {
        self.shared.admit(name, begin)
    }
}

impl Shared {
    fn admit(
        &self,
        name: &str,
        begin: impl FnOnce() -> Result<Arc<Teardown>, LabError>,
    ) -> Result<Arc<Teardown>, LabError> {
        // Held while it begins, so that a signal finds either nothing or all of it.
        let mut labs = lock(&self.labs);
        if labs.ending {
            return Err(LabError::Closed(name.to_owned()));
        }
        let lab = begin()?;
        labs.made.retain(|lab| lab.strong_count() > 0);
        labs.made.push(Arc::downgrade(&lab));
        Ok(lab)
    }

    fn note(&self, signal: i32) {
        let mut received = lock(&self.received);
        received.first = received.first.or(Some(signal));
        received.count = received.count.saturating_add(1);
        self.changed.notify_all();
    }

    fn close_when_signalled(&self, grace: Duration) {
        let until = |count: u32| move |received: &mut Received| received.count < count;
        let received = self
            .changed
            .wait_while(lock(&self.received), until(1))
            .unwrap_or_else(PoisonError::into_inner);
        let (received, _) = self
            .changed
            .wait_timeout_while(received, grace, until(2))
            .unwrap_or_else(PoisonError::into_inner);
        let signal = received.first.unwrap_or(SIGTERM);
        drop(received);
        self.end_by(signal);
    }

    fn end_by(&self, signal: i32) {
        self.close_labs();
        // Fails only for signals without default action; these have one.
        let _ = emulate_default_handler(signal);
    }

    fn close_labs(&self) {
        let mut labs = lock(&self.labs);
        labs.ending = true;
        let made = labs.made.clone();
        drop(labs);
        made.iter()
            .filter_map(Weak::upgrade)
            .for_each(|lab| close(&lab));
    }
}

fn close(lab: &Teardown) {
    if let Err(error) = lab.close() {
        tracing::warn!(%error, "not everything could be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::record::Record;

    #[test]
    fn no_laboratory_begins_once_the_process_ends() {
        let shared = Shared::default();
        let name = "before-the-signal";
        let begin = || {
            let record = Record::of_this_process(name, Vec::new()).unwrap();
            Ok(Arc::new(Teardown::new(record, Duration::ZERO)))
        };
        let lab = shared.admit(name, begin).unwrap();
        assert!(lab.step(|_| Ok(())).is_ok());
        shared.close_labs();
        assert!(lab.step(|_| Ok(())).is_err());
        let begin = || panic!("it must not");
        assert!(shared.admit("after-the-signal", begin).is_err());
    }
}
