//! The file in which the evidence of a comparison outlasts the daemon.
//!
//! The file is read once, at start. A helper thread encodes and writes it periodically, since the
//! event loop must not wait for a disk. The event loop hands over some of up to a million prefixes
//! at a time and handles other events in between. At the end the file is written after neighbours
//! were informed.

use std::{
    convert::Infallible,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ipnet::IpNet;
use keiro_config::{regular_file, without_byte_order_mark};
use keiro_linux::{clock, privilege};
use keiro_units::Instant;

use crate::comparison::{Comparison, Gathered, Part, StoredEvidence};

/// The evidence file; see the [module](self).
#[derive(Debug)]
pub(super) struct EvidenceFile {
    path: PathBuf,
    /// When [`tend`](Self::tend) is due.
    due: Instant,
    /// [`Comparison::changes`] at the last write.
    written: (u64, u64),
    /// The hand-over in progress.
    round: Option<Round>,
    /// `None`: nothing is written.
    writer: Option<Writer>,
}

/// A hand-over of all prefixes to the writer.
#[derive(Debug)]
struct Round {
    /// When the next hand-over begins.
    next: Instant,
    /// [`Comparison::changes`] at the beginning.
    changes: (u64, u64),
    prefix_bits: u8,
    /// The prefix handed over last.
    behind: Option<IpNet>,
}

impl EvidenceFile {
    /// Loads the file into `comparison`. An unusable file is reported and ignored. A path that is
    /// not a regular file, or not a file of Keiro, is neither read nor replaced.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn open(
        path: PathBuf,
        now: Instant,
        comparison: &mut Comparison,
    ) -> io::Result<Self> {
        Self::open_with(path, now, comparison, replace)
    }

    /// `write` replaces the contents of the file.
    fn open_with(
        path: PathBuf,
        now: Instant,
        comparison: &mut Comparison,
        write: impl Fn(&Path, &[u8]) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let mut file = Self {
            path,
            due: now + EVERY,
            written: comparison.changes(),
            round: None,
            writer: None,
        };
        let path = &file.path;
        // Opening a pipe would block, and renaming would replace a device.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            ignored(path, &"it is no regular file, and nothing is kept");
            return Ok(file);
        }
        match read(path) {
            Ok(text) if !is_ours(&text) => {
                ignored(path, &"it is something else, which stays; nothing is kept");
                return Ok(file);
            }
            Ok(text) => match take_up(comparison, now, &text) {
                Ok(prefixes) => tracing::info!(prefixes, "evidence of an earlier run"),
                Err(error) => ignored(path, &error),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                ignored(path, &format!("{error}; it stays, and nothing is kept"));
                return Ok(file);
            }
        }
        file.written = comparison.changes();
        file.writer = Some(Writer::start(path.clone(), write)?);
        Ok(file)
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Hands over prefixes if a write is due and something is new; is due again at once until all
    /// are handed over.
    pub(super) fn tend(&mut self, now: Instant, comparison: &Comparison) {
        if self.due > now {
            return;
        }
        let next = now + EVERY;
        self.due = next;
        let Some(writer) = &self.writer else {
            return;
        };
        let mut round = match self.round.take() {
            Some(round) => round,
            // With a slow disk, wait for the next interval.
            None if writer.is_busy() => return,
            None if comparison.changes() == self.written && !writer.has_failed() => return,
            None => Round {
                next,
                changes: comparison.changes(),
                prefix_bits: comparison.prefix_bits(),
                behind: None,
            },
        };
        // With the comparison off, or other prefix lengths, the file stays as it is.
        if !comparison.is_on() || comparison.prefix_bits() != round.prefix_bits {
            writer.order(Order::Forget);
            self.due = round.next;
            return;
        }
        let part = comparison.part(now, round.behind, STEP);
        round.behind = part.behind();
        writer.order(Order::Gather(part));
        if round.behind.is_some() {
            self.due = now;
            self.round = Some(round);
            return;
        }
        writer.order(Order::WriteGathered(round.prefix_bits, clock::unix_time()));
        self.written = round.changes;
        self.due = round.next;
    }

    /// Writes the file for the last time unless the comparison is off; waits for the disk for a
    /// bounded time.
    pub(super) fn end(&mut self, now: Instant, comparison: &Comparison) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        if comparison.is_on() {
            writer.order(Order::Write(comparison.kept(now, clock::unix_time())));
        }
        if let Err(reason) = writer.end(PATIENCE) {
            tracing::error!(file = %self.path.display(), "evidence is not kept: {reason}");
        }
    }
}

/// A command for the writer thread.
#[derive(Debug)]
enum Order {
    Gather(Part),
    /// Writes the gathered prefixes: their length in bits, and the time of day.
    WriteGathered(u8, Duration),
    /// Drops the gathered prefixes.
    Forget,
    Write(StoredEvidence),
}

/// The thread that encodes evidence and writes it to disk.
#[derive(Debug)]
struct Writer {
    orders: Sender<Order>,
    progress: Arc<Progress>,
    /// Disconnected when the thread ends.
    alive: Receiver<Infallible>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Progress {
    /// A write is pending or running.
    busy: AtomicBool,
    /// The last write failed.
    failed: AtomicBool,
}

impl Writer {
    fn start(
        path: PathBuf,
        write: impl Fn(&Path, &[u8]) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        // Unbounded, but nothing is handed over while a write is pending, except at the end.
        let (orders, ordered) = mpsc::channel();
        let (lives, alive) = mpsc::channel::<Infallible>();
        let progress = Arc::new(Progress::default());
        let own = Arc::clone(&progress);
        let thread = thread::Builder::new().name("evidence".to_owned());
        let thread = thread.spawn(move || {
            privilege::give_up_in_thread();
            let _lives = lives;
            serve(&ordered, &own, &|kept| {
                let text = serde_json::to_vec(kept).expect("what is kept is data");
                let written = write(&path, &text);
                if let Err(error) = &written {
                    tracing::error!(%error, file = %path.display(), "evidence is not kept");
                }
                written.is_ok()
            });
        })?;
        Ok(Self {
            orders,
            progress,
            alive,
            thread,
        })
    }

    fn order(&self, order: Order) {
        if matches!(order, Order::WriteGathered(..)) {
            self.progress.busy.store(true, Ordering::Release);
        }
        // A thread that has ended is reported by [`Writer::end`].
        let _ = self.orders.send(order);
    }

    fn is_busy(&self) -> bool {
        self.progress.busy.load(Ordering::Acquire)
    }

    fn has_failed(&self) -> bool {
        self.progress.failed.load(Ordering::Acquire)
    }

    /// Waits until all commands are carried out.
    fn end(self, patience: Duration) -> Result<(), String> {
        drop(self.orders);
        match self.alive.recv_timeout(patience) {
            Ok(never) => match never {},
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("the disk has not taken it within {patience:?}"))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let ended = self.thread.join();
                ended.map_err(|_| "the thread that writes it has failed".to_owned())
            }
        }
    }
}

/// The loop of the writer thread.
fn serve(ordered: &Receiver<Order>, progress: &Progress, write: &dyn Fn(&StoredEvidence) -> bool) {
    let mut gathered = Gathered::default();
    while let Ok(order) = ordered.recv() {
        let kept = match order {
            Order::Gather(part) => {
                gathered.add(part);
                continue;
            }
            Order::Forget => {
                gathered = Gathered::default();
                continue;
            }
            Order::WriteGathered(bits, at) => std::mem::take(&mut gathered).kept(bits, at),
            Order::Write(kept) => kept,
        };
        progress.failed.store(!write(&kept), Ordering::Release);
        progress.busy.store(false, Ordering::Release);
    }
}

fn ignored(path: &Path, error: &dyn std::fmt::Display) {
    tracing::warn!(file = %path.display(), "evidence of an earlier run is not used: {error}");
}

/// Reads at most one byte more than is allowed, to detect a file that is too long.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = regular_file::open(path)?;
    file.take(BYTES_MAX + 1).read_to_end(&mut text)?;
    let marked = text.len() - without_byte_order_mark(&text).len();
    text.drain(..marked);
    Ok(text)
}

/// Whether the text begins like an evidence file, or is a prefix of such a beginning.
fn is_ours(text: &[u8]) -> bool {
    let both = text.len().min(BEGINNING.len());
    text[..both] == BEGINNING[..both]
}

/// Returns the number of prefixes loaded.
fn take_up(comparison: &mut Comparison, now: Instant, text: &[u8]) -> Result<usize, String> {
    if text.len() as u64 > BYTES_MAX {
        return Err("it is too long".to_owned());
    }
    let kept: StoredEvidence = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let taken = comparison.take_up(now, clock::unix_time(), &kept);
    taken.map_err(|error| error.to_string())
}

/// Replaces the file atomically: the old one stays until the new one is complete.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // A file left by an earlier run, or something else placed there, such as a pipe or a link, is
    // not opened.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(directory.unwrap_or(Path::new(".")));
    // Some file systems do not support syncing directories.
    let _ = directory.and_then(|directory| directory.sync_all());
    Ok(())
}

/// The interval between writes. Ours.
const EVERY: Duration = Duration::from_secs(60);
/// Prefixes handed over per turn of the event loop, which takes some tenths of a millisecond. Ours.
const STEP: usize = 500;
/// How long the end of the daemon waits for the disk. Ours: less than systemd's default of 90 s
/// before it kills.
const PATIENCE: Duration = Duration::from_secs(10);
/// The first bytes of an evidence file.
const BEGINNING: &[u8] = b"{\"version\":";
/// The longest file that is read; ten thousand prefixes take about 5 MB. Ours.
const BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests;
