//! Reads the drop counters of kernel and network cards. Reading takes as long as handling ten
//! packets and more per card, so a thread does it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread,
};

use keiro_linux::overflow::ReceiveOverflows;

use crate::privileges::Privileges;

/// A handle of the thread, which ends with it.
pub(crate) struct SystemDrops {
    request_read: SyncSender<()>,
    answer: Arc<Answer>,
}

#[derive(Default)]
struct Answer {
    is_new: AtomicBool,
    total: AtomicU64,
}

impl SystemDrops {
    /// Starts the thread; `privileges` says whether it keeps any. `None`: there are no counters, or
    /// no thread. It inherits the caller's priority and processors, so do not call it from the data
    /// thread.
    pub(crate) fn start(privileges: Privileges) -> Option<Self> {
        let mut overflows = ReceiveOverflows::open().ok()?;
        let (request_read, requests) = sync_channel(1);
        let answer = Arc::new(Answer::default());
        let shared = Arc::clone(&answer);
        let read = move || {
            if let Err(error) = privileges.drop_in_thread() {
                tracing::warn!(%error, "the thread that reads the system's drops keeps its privileges");
            }
            for () in requests {
                if let Ok(total) = overflows.read() {
                    shared.total.store(total, Ordering::Relaxed);
                    shared.is_new.store(true, Ordering::Release);
                }
            }
        };
        let started = thread::Builder::new().name("drops".into()).spawn(read);
        match started {
            Ok(_) => Some(Self {
                request_read,
                answer,
            }),
            Err(error) => {
                tracing::warn!(%error, "the system's drops are not read");
                None
            }
        }
    }

    pub(crate) fn request_read(&self) {
        // A request is pending, or the thread has ended.
        let _ = self.request_read.try_send(());
    }

    /// The total, if it was read since the last call.
    pub(crate) fn take_new_total(&self) -> Option<u64> {
        let Answer { is_new, total } = &*self.answer;
        // Called in every turn of a busy thread: the exchange costs more than the load.
        let is_new = is_new.load(Ordering::Relaxed) && is_new.swap(false, Ordering::Acquire);
        is_new.then(|| total.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_total_is_given_once_per_read() {
        let drops = SystemDrops::start(Privileges::Kept).unwrap();
        assert_eq!(drops.take_new_total(), None);
        let mut least = 0;
        for _ in 0..3 {
            drops.request_read();
            let deadline = Instant::now() + Duration::from_secs(10);
            let total = loop {
                if let Some(total) = drops.take_new_total() {
                    break total;
                }
                assert!(Instant::now() < deadline, "no answer");
                thread::sleep(Duration::from_millis(1));
            };
            assert!(total >= least);
            least = total;
            assert_eq!(drops.take_new_total(), None);
        }
    }
}
