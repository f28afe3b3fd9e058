//! The file in which a comparison's evidence outlasts the daemon.
//!
//! It is read once. It is written now and then by a thread of its own, because nobody waits for a disk here, nor for
//! what there is to be made into text: of a million prefixes the daemon takes some at a time, with everything else that
//! it does in between, and hands them over. What it ends with is written when neighbours have been told that it ends.

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

use ipnet::Ipv6Net;
use keiro_linux::clock;
use keiro_units::Instant;

use crate::comparison::{Comparison, Gathered, Kept, Part};

/// See the module.
#[derive(Debug)]
pub(super) struct EvidenceFile {
    path: PathBuf,
    /// When there is something to do.
    due: Instant,
    /// What was known when it was written.
    written: (u64, u64),
    /// What is being handed over.
    round: Option<Round>,
    /// `None`: nothing is written.
    writer: Option<Writer>,
}

/// All that is known is handed over, some prefixes at a time.
#[derive(Debug)]
struct Round {
    /// When the next one begins.
    next: Instant,
    /// What was known when it began.
    changes: (u64, u64),
    prefix_bits: u8,
    /// The prefix that was handed over last.
    behind: Option<Ipv6Net>,
}

impl EvidenceFile {
    /// Has `comparison` know what the file says. One that cannot be used is said and counts as none; what is no
    /// regular file, or not Keiro's, is neither used nor replaced.
    ///
    /// # Errors
    /// There can be no thread.
    pub(super) fn open(
        path: PathBuf,
        now: Instant,
        comparison: &mut Comparison,
    ) -> io::Result<Self> {
        Self::open_with(path, now, comparison, replace)
    }

    /// `write`: what puts a text into the file.
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
        // A pipe would be waited for, and a device have its name taken.
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

    /// When [`tend`](Self::tend) is due.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Has it written if it is time and something is new: hands over some of what is known, and is due again at once
    /// until that was all.
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
            // A disk that is slow has the next one.
            None if writer.is_busy() => return,
            None if comparison.changes() == self.written && !writer.has_failed() => return,
            None => Round {
                next,
                changes: comparison.changes(),
                prefix_bits: comparison.prefix_bits(),
                behind: None,
            },
        };
        // Where nothing is compared what was known once is kept. Either may have become so meanwhile.
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

    /// Has it written for the last time unless nothing is compared, and waits until it is on the disk, but not forever.
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

/// What the writer's thread is to do.
#[derive(Debug)]
enum Order {
    Gather(Part),
    /// What has been gathered, whose prefixes have so many bits, at this time of day.
    WriteGathered(u8, Duration),
    /// What has been gathered is of no use.
    Forget,
    Write(Kept),
}

/// The thread that makes text and waits for the disk.
#[derive(Debug)]
struct Writer {
    orders: Sender<Order>,
    progress: Arc<Progress>,
    /// Breaks when the thread ends.
    alive: Receiver<Infallible>,
    thread: JoinHandle<()>,
}

/// How far the thread is.
#[derive(Debug, Default)]
struct Progress {
    /// It writes, or is to.
    busy: AtomicBool,
    /// The last time it could not.
    failed: AtomicBool,
}

impl Writer {
    fn start(
        path: PathBuf,
        write: impl Fn(&Path, &[u8]) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        // Without a bound of its own: nothing is handed over while it is busy, but when the daemon ends.
        let (orders, ordered) = mpsc::channel();
        let (lives, alive) = mpsc::channel::<Infallible>();
        let progress = Arc::new(Progress::default());
        let own = Arc::clone(&progress);
        let thread = thread::Builder::new().name("evidence".to_owned());
        let thread = thread.spawn(move || {
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
        // One that has ended is told of when it is waited for.
        let _ = self.orders.send(order);
    }

    fn is_busy(&self) -> bool {
        self.progress.busy.load(Ordering::Acquire)
    }

    fn has_failed(&self) -> bool {
        self.progress.failed.load(Ordering::Acquire)
    }

    /// Waits until all that it was ordered to do is done.
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

/// Carries out orders until there are no more.
fn serve(ordered: &Receiver<Order>, progress: &Progress, write: &dyn Fn(&Kept) -> bool) {
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

/// No more than shows that it is too long.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = File::open(path)?;
    file.take(BYTES_MAX + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// Whether it begins as what was written here, or would if there was more of it.
fn is_ours(text: &[u8]) -> bool {
    let both = text.len().min(BEGINNING.len());
    text[..both] == BEGINNING[..both]
}

/// Of how many prefixes something is known now.
fn take_up(comparison: &mut Comparison, now: Instant, text: &[u8]) -> Result<usize, String> {
    if text.len() as u64 > BYTES_MAX {
        return Err("it is too long".to_owned());
    }
    let kept: Kept = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let taken = comparison.take_up(now, clock::unix_time(), &kept);
    taken.map_err(|error| error.to_string())
}

/// The old one is there until the new one is whole.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    // An earlier run may have left it; what somebody else has put there, a pipe or a link, is not opened.
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
    // A file system that does not do that for directories has its own way.
    let _ = directory.and_then(|directory| directory.sync_all());
    Ok(())
}

/// How often it is written. Ours.
const EVERY: Duration = Duration::from_secs(60);
/// Prefixes that are handed over before others' turn: some tenths of a millisecond. Ours.
const STEP: usize = 500;
/// How long the daemon's end waits for the disk. Ours: less than the 90 s after which systemd kills.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of what is written.
const BEGINNING: &[u8] = b"{\"version\":";
/// Longer ones are not read: ten thousand prefixes take some five million bytes. Ours.
const BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
mod tests;
