//! Marks of packets for a border router's segments for IPv4.
//!
//! Linux has End.DT4 for VRF devices only. Without them, a rule of nftables marks packets for such a segment,
//! End.DX4 takes the outer header off and keeps the mark, and a policy rule leads from the mark to the table of the
//! egress peer. The segments are those of the configuration, whether they exist or not, so that nothing waits for nft
//! when a session comes up or ends.
//!
//! A packet without its mark takes the best path: while another program has removed or changed the table, until it is
//! made again. A segment whose packets are not marked for some seconds is lost, and is to be removed.
//! Another thread runs nft, since the event loop must not wait for it.

use std::{
    collections::BTreeMap,
    io,
    net::Ipv6Addr,
    sync::mpsc::{self, Receiver, SyncSender, TryRecvError},
    thread::{self, JoinHandle},
    time::Duration,
};

use keiro_linux::{
    nft::{self, NftWatch},
    privilege::{self, Capability},
};
use keiro_units::Instant;

use super::{
    KernelError, failed, now,
    plan::{Plan, segment_mark},
};
use crate::forwarding::ForwardingError;

/// The mark of packets for each segment.
type Marks = BTreeMap<Ipv6Addr, u32>;

#[derive(Debug)]
pub(super) struct SegmentMarks {
    wanted: Marks,
    /// Those that nftables is known to have.
    made: Marks,
    /// Since when some are missing.
    missing_since: Option<Instant>,
    /// `None`: no segment was ever configured.
    worker: Option<Worker>,
    /// What is to be done next, and when.
    next: Option<(Instant, Step)>,
    /// What nft is making.
    making: Option<Marks>,
    /// Why the last run of nft has failed; `None`: it has not.
    failed: Option<String>,
    /// When to look for changes by others, and for the end of a run.
    look: Instant,
    pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Look whether the table is as it was made.
    Look,
    Make,
}

/// Runs nft in a thread.
#[derive(Debug)]
struct Worker {
    /// `None`: it is to end.
    orders: Option<SyncSender<Option<String>>>,
    outcomes: Receiver<io::Result<bool>>,
    thread: Option<JoinHandle<()>>,
    is_idle: bool,
    /// Others may remove the table: firewalls replace all rules when they are reloaded.
    watch: NftWatch,
}

/// What nft lists of the table; `None`: it is not there.
type Listing = Option<Vec<String>>;

/// The marks of the segments of a configuration.
pub(super) fn wanted(plan: &Plan) -> Marks {
    let peers = plan.peers.iter();
    let marks = peers.filter_map(|(at, peer)| Some((peer.ipv4_sid?, segment_mark(*at)?)));
    marks.collect()
}

/// Removes what an earlier run has left in nftables; returns the number of tables.
pub(super) fn remove_left() -> io::Result<usize> {
    match nft::has_table(FAMILY, TABLE) {
        Ok(true) => nft::run(&removal()).map(|()| 1),
        Ok(false) => Ok(0),
        // Without nft there were no marks.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

impl SegmentMarks {
    /// For the calling thread's network namespace. If nft fails, it is tried again.
    ///
    /// # Errors
    /// No thread can be started, or the kernel does not report changes of nftables.
    pub(super) fn open(plan: &Plan) -> Result<Self, KernelError> {
        let mut marks = Self {
            wanted: wanted(plan),
            made: Marks::new(),
            missing_since: None,
            worker: None,
            next: None,
            making: None,
            failed: None,
            look: now() + LOOK_EVERY,
            pause: PAUSE_MIN,
        };
        if marks.wanted.is_empty() {
            if let Err(error) = remove_left() {
                tracing::warn!(%error, "marks of an earlier run may be left in nftables");
            }
            return Ok(marks);
        }
        let mut listing = None;
        match make(&script(&marks.wanted)) {
            Ok(made) => {
                listing = made;
                marks.made = marks.wanted.clone();
            }
            Err(error) => {
                tracing::error!(%error, "nftables does not mark packets for segments of IPv4");
                marks.failed = Some(error.to_string());
                marks.next = Some((now() + PAUSE_MIN, Step::Make));
            }
        }
        marks.note_missing(now());
        marks.worker = Some(Worker::start(listing)?);
        Ok(marks)
    }

    /// Why packets for a segment may not be marked, so that it must not be announced; `None`: they are.
    pub(super) fn failure(&self, sid: Ipv6Addr) -> Option<&str> {
        let mark = self.wanted.get(&sid);
        if mark.is_some() && mark == self.made.get(&sid) {
            return None;
        }
        Some(self.failed.as_deref().unwrap_or("nft has not run yet"))
    }

    /// Whether its packets have not been marked for some seconds.
    pub(super) fn is_lost(&self, now: Instant, sid: Ipv6Addr) -> bool {
        let is_late = |since| now >= since + LOST_AFTER;
        self.failure(sid).is_some() && self.missing_since.is_some_and(is_late)
    }

    fn note_missing(&mut self, now: Instant) {
        let mut wanted = self.wanted.iter();
        match wanted.all(|(sid, mark)| self.made.get(sid) == Some(mark)) {
            true => self.missing_since = None,
            false => _ = self.missing_since.get_or_insert(now),
        }
    }

    /// Another configuration.
    pub(super) fn set(&mut self, wanted: Marks) {
        if wanted != self.wanted {
            self.wanted = wanted;
            self.next = Some((now(), Step::Make));
            self.note_missing(now());
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let look = self.worker.as_ref().map(|_| self.look);
        self.next.map(|(due, _)| due).into_iter().chain(look).min()
    }

    /// Has nft make what is missing.
    pub(super) fn tend(&mut self, now: Instant) -> Option<ForwardingError> {
        if self.worker.is_none() && self.next.is_some() {
            match Worker::start(None) {
                Ok(worker) => self.worker = Some(worker),
                Err(error) => {
                    self.next = Some((now + PAUSE_MAX, Step::Make));
                    self.failed = Some(error.to_string());
                    return Some(failed(UNMARKED.to_owned(), &error));
                }
            }
        }
        let worker = self.worker.as_mut()?;
        // An error may hide a change.
        let changed = worker.watch.changed().unwrap_or(true);
        let outcome = worker.outcome();
        if changed && self.next.is_none() {
            self.next = Some((now + PAUSE_MIN, Step::Look));
        }
        let error = outcome.and_then(|outcome| self.on_outcome(now, outcome));
        let worker = self.worker.as_mut()?;
        if let Some((due, step)) = self.next
            && worker.is_idle
            && due <= now
        {
            let order = match step {
                Step::Look => None,
                Step::Make => Some(script(&self.wanted)),
            };
            if worker.order(order) {
                self.next = None;
                self.making = (step == Step::Make).then(|| self.wanted.clone());
            }
        }
        self.look = now
            + match worker.is_idle {
                true => LOOK_EVERY,
                false => ANSWER_EVERY,
            };
        error
    }

    fn on_outcome(&mut self, now: Instant, outcome: io::Result<bool>) -> Option<ForwardingError> {
        let making = self.making.take();
        let error = match outcome {
            Ok(true) => {
                self.pause = PAUSE_MIN;
                self.failed = None;
                if let Some(made) = making {
                    self.made = made;
                }
                None
            }
            Ok(false) => {
                self.made.clear();
                if !self.wanted.is_empty() {
                    tracing::warn!(
                        "another program has removed or changed the marks of segments; they are made again"
                    );
                    self.next = Some((now, Step::Make));
                }
                None
            }
            Err(error) => {
                self.made.clear();
                self.pause = (self.pause * 2).min(PAUSE_MAX);
                self.failed = Some(error.to_string());
                self.next = Some((now + self.pause, Step::Make));
                Some(failed(UNMARKED.to_owned(), &error))
            }
        };
        self.note_missing(now);
        error
    }

    /// The segments are gone.
    pub(super) fn end(&mut self) -> Option<ForwardingError> {
        let mut worker = self.worker.take()?;
        // Its last script must not come after the removal.
        worker.stop();
        let error = nft::run(&removal()).err()?;
        Some(failed(
            "marks of segments stay in nftables".to_owned(),
            &error,
        ))
    }
}

impl Worker {
    /// `listing`: of the table as it was made.
    fn start(mut listing: Listing) -> Result<Self, KernelError> {
        let watch = NftWatch::open().map_err(KernelError::SegmentMarks)?;
        let (orders, to_do) = mpsc::sync_channel::<Option<String>>(1);
        let (done, outcomes) = mpsc::sync_channel(1);
        let work = move || {
            // Nft needs CAP_NET_ADMIN, as the daemon's first thread.
            privilege::drop_in_thread(Capability::NetBindService);
            while let Ok(script) = to_do.recv() {
                let outcome = match script {
                    Some(script) => make(&script).map(|made| {
                        listing = made;
                        true
                    }),
                    // A table of this name may be an older one, or empty.
                    None => nft::parts_of_table(FAMILY, TABLE).map(|found| found == listing),
                };
                if done.send(outcome).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("segment-marks".to_owned());
        let thread = thread.spawn(work).map_err(KernelError::Thread)?;
        Ok(Self {
            orders: Some(orders),
            outcomes,
            thread: Some(thread),
            is_idle: true,
            watch,
        })
    }

    /// Whether the thread has taken it. If it has ended, the next outcome says so.
    fn order(&mut self, script: Option<String>) -> bool {
        self.is_idle = false;
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.try_send(script).is_ok())
    }

    fn outcome(&mut self) -> Option<io::Result<bool>> {
        if self.is_idle {
            return None;
        }
        let outcome = match self.outcomes.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Err(io::Error::other("the thread that runs nft has ended"))
            }
        };
        self.is_idle = true;
        Some(outcome)
    }

    /// Waits for its last order.
    fn stop(&mut self) {
        self.orders = None;
        // A thread that has panicked does nothing more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Carries a script out; returns the table as it is then.
fn make(script: &str) -> io::Result<Listing> {
    nft::run(script)?;
    nft::parts_of_table(FAMILY, TABLE)
}

/// Makes the table anew, in one transaction.
fn script(marks: &Marks) -> String {
    if marks.is_empty() {
        return removal();
    }
    let elements = marks.iter().map(|(sid, mark)| format!("{sid} : {mark:#x}"));
    let elements: Vec<String> = elements.collect();
    format!(
        "{}table {FAMILY} {TABLE} {{
  map segments {{ type ipv6_addr : mark; elements = {{ {} }}; }}
  chain prerouting {{
    type filter hook prerouting priority mangle; policy accept;
    meta mark set ip6 daddr map @segments
  }}
}}
",
        removal(),
        elements.join(", ")
    )
}

/// Added first, so that the removal of one that is not there is no error.
fn removal() -> String {
    format!("table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\n")
}

const FAMILY: &str = "ip6";
const TABLE: &str = "keiro_segments";
const UNMARKED: &str =
    "IPv4 packets by segments take the best path, because nftables does not mark them";
/// How soon a change of nftables by others is noticed. Ours.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How soon the end of a run of nft is noticed. Ours.
const ANSWER_EVERY: Duration = Duration::from_millis(100);
/// Between runs of nft after changes by others, and while they fail. Ours.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long packets of a segment may lack their marks. Ours: making them again after a firewall's reload takes less.
const LOST_AFTER: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

    fn second(at: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(at)
    }

    /// Those of [`A`] are made.
    fn marks() -> SegmentMarks {
        let made = Marks::from([(A, 1)]);
        SegmentMarks {
            wanted: made.clone(),
            made,
            missing_since: None,
            worker: None,
            next: None,
            making: None,
            failed: None,
            look: second(0),
            pause: PAUSE_MIN,
        }
    }

    fn nft_fails(marks: &mut SegmentMarks, at: u64) {
        let error = io::Error::other("there is no program nft");
        assert!(marks.on_outcome(second(at), Err(error)).is_some());
    }

    #[test]
    fn only_a_segment_whose_mark_was_made_may_be_announced() {
        let mut marks = marks();
        assert_eq!(
            (marks.failure(A), marks.failure(B)),
            (None, Some("nft has not run yet"))
        );
        let wanted = Marks::from([(A, 1), (B, 2)]);
        marks.set(wanted.clone());
        assert!(marks.failure(A).is_none() && marks.failure(B).is_some());
        marks.making = Some(wanted);
        marks.on_outcome(second(1), Ok(true));
        assert_eq!((marks.failure(A), marks.failure(B)), (None, None));
        // Another mark of the same segment is another peer's.
        marks.set(Marks::from([(A, 1), (B, 3)]));
        assert!(marks.failure(A).is_none() && marks.failure(B).is_some());
        // A look that was under way makes nothing.
        marks.on_outcome(second(2), Ok(true));
        assert!(marks.failure(B).is_some());
    }

    #[test]
    fn a_segment_without_marks_for_some_seconds_is_lost() {
        let mut marks = marks();
        marks.on_outcome(second(10), Ok(false));
        assert!(marks.failure(A).is_some() && !marks.is_lost(second(12), A));
        nft_fails(&mut marks, 12);
        assert_eq!(marks.failure(A), Some("there is no program nft"));
        assert!(!marks.is_lost(second(12), A) && marks.is_lost(second(13), A));
        marks.making = Some(marks.wanted.clone());
        marks.on_outcome(second(14), Ok(true));
        assert!(marks.failure(A).is_none() && !marks.is_lost(second(20), A));
    }
}
