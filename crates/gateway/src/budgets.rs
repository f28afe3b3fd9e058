//! How much of the budgets of the month is used up.
//!
//! An uplink with `monthly_budget` is paid by volume. All bytes of IP packets count that its paths have sent and
//! received, of data, measurement and keepalives alike; what other programs send over the line does not. At the budget
//! the uplink is *spent*: only keepalives remain, and essential applications that have no other path.
//!
//! The counts are in a file of the state directory, one line for each uplink: its path, the day on which the month
//! began, the bytes. A thread writes it once a minute and after each hundredth of a budget, because a disk may take its
//! time; a gateway that is killed forgets what it carried since.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::mpsc::{SyncSender, TrySendError, sync_channel},
    thread::JoinHandle,
    time::{Duration, Instant as Stopwatch, SystemTime},
};

use keiro_control::{
    config::{Budget, Config, Day, PathIndex},
    protocol::{BudgetSnapshot, EventKind},
};

use crate::{
    kept_file,
    path_ids::{PathIds, PeerPath},
    privileges::Privileges,
};

/// The file in the state directory.
const FILE: &str = "budgets";
/// It has a line for each of 64 paths, and as many of paths that were configured before.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Counts that are kept, those of paths without a budget included: a file that was edited may come back.
const MONTHS_MAX: usize = 128;
/// Ours: a minute of a fast line is a small part of a budget.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// And so is this part.
const SAVE_PART: u64 = 100;
/// A clock that has gone back for so long is right. Ours: one that a machine starts with is set within minutes.
const CLOCK_BACK_MAX: Duration = Duration::from_secs(24 * 3600);
/// From this part of a budget on there is a warning.
const WARNING_PERCENT: u64 = 80;

/// The counts of all uplinks with a budget.
pub(crate) struct Budgets {
    /// By the name of the uplink's path.
    months: BTreeMap<String, Month>,
    /// Bytes of each path to a peer when it was last looked at.
    seen: BTreeMap<PeerPath, u64>,
    file: PathBuf,
    saved: Saved,
    writer: Option<Writer>,
}

/// The count of one uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Month {
    began: Day,
    bytes: u64,
    /// What was last said of it.
    level: Level,
    /// Since when the clock has been before the month.
    clock_back: Option<Stopwatch>,
}

/// When budgets are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// What the month goes by.
    pub(crate) wall: SystemTime,
    pub(crate) monotonic: Stopwatch,
}

/// How much of a budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Plenty,
    Warning,
    Spent,
}

/// What was last given to the writer.
struct Saved {
    at: Stopwatch,
    bytes: BTreeMap<String, u64>,
}

/// The thread that writes the file; it ends when the channel does.
struct Writer {
    texts: SyncSender<String>,
    thread: JoinHandle<()>,
}

impl Budgets {
    /// What an earlier run has counted. A file that is wrong is reported, and the counts begin anew.
    pub(crate) fn load(state_directory: &Path) -> Self {
        let file = state_directory.join(FILE);
        let text = kept_file::read(&file, FILE_BYTES_MAX).unwrap_or_else(|error| {
            tracing::warn!(
                "{}: {error}; the budgets of the month count from now on",
                file.display()
            );
            None
        });
        let (months, wrong) = parse(&text.unwrap_or_default());
        if wrong > 0 {
            tracing::warn!(
                "{}: {wrong} lines are wrong; the budgets of their paths count from now on",
                file.display()
            );
        }
        Self {
            months,
            seen: BTreeMap::new(),
            file,
            saved: Saved {
                at: Stopwatch::now(),
                bytes: BTreeMap::new(),
            },
            writer: None,
        }
    }

    /// Counts what the paths to peers have carried: bytes of IP packets in both directions, since each began.
    pub(crate) fn on_carried(
        &mut self,
        config: &Config,
        path_ids: &PathIds,
        carried: impl Iterator<Item = (PeerPath, u64)>,
    ) {
        for (path, bytes) in carried {
            let before = self.seen.insert(path, bytes).unwrap_or(0);
            // A path that began anew counts from zero.
            let more = bytes.checked_sub(before).unwrap_or(bytes);
            let uplink = path_ids.index(path.path).map(|path| config.uplink_of(path));
            let name = uplink.map(|uplink| config[uplink].name.as_str());
            if let Some(month) = name.and_then(|name| self.months.get_mut(name)) {
                month.bytes = month.bytes.saturating_add(more);
            }
        }
    }

    /// Forgets paths to peers that are not there any more.
    pub(crate) fn retain_paths(&mut self, paths: &[PeerPath]) {
        self.seen.retain(|path, _| paths.contains(path));
    }

    /// Begins months, and says what has become of the budgets.
    pub(crate) fn turn(&mut self, config: &Config, now: Clocks) -> Vec<EventKind> {
        let mut events = Vec::new();
        for (uplink, budget) in config.budgets() {
            let name = config[uplink].name.as_str();
            let [began, ends] = budget.month(now.wall);
            let first = Month::new(began, 0);
            let is_known = self.months.contains_key(name);
            if !is_known && self.months.len() >= MONTHS_MAX {
                self.forget_one(config);
            }
            let month = self.months.entry(name.to_owned()).or_insert(first);
            let level_before = month.level;
            if month.advance(budget, now) && level_before > Level::Plenty {
                events.push(EventKind::BudgetRenewed {
                    path: name.to_owned(),
                    budget_bytes: budget.bytes.get(),
                });
            }
            let level = Level::of(month.bytes, budget);
            if level > month.level {
                events.push(event(level, name, *month, budget, ends));
            }
            month.level = level;
        }
        events
    }

    /// A count of a path without a budget, the oldest one.
    fn forget_one(&mut self, config: &Config) {
        let used: BTreeSet<&str> = config
            .budgets()
            .map(|(uplink, _)| config[uplink].name.as_str())
            .collect();
        let others = self
            .months
            .iter()
            .filter(|(name, _)| !used.contains(name.as_str()));
        let oldest = others.min_by_key(|(_, month)| month.began);
        if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
            self.months.remove(&oldest);
        }
    }

    /// The uplinks whose budgets are used up.
    pub(crate) fn spent(&self, config: &Config) -> BTreeSet<PathIndex> {
        let is_spent = |(uplink, budget): &(PathIndex, Budget)| {
            let month = self.months.get(config[*uplink].name.as_str());
            month.is_some_and(|month| Level::of(month.bytes, *budget) == Level::Spent)
        };
        let spent = config.budgets().filter(is_spent);
        spent.map(|(uplink, _)| uplink).collect()
    }

    /// What is to be shown of the uplink of a path; `None`: it has no budget.
    pub(crate) fn snapshot(
        &self,
        config: &Config,
        path: PathIndex,
        now: SystemTime,
    ) -> Option<BudgetSnapshot> {
        let uplink = config.uplink_of(path);
        let budget = config[uplink].budget?;
        let [began, ends] = budget.month(now);
        let month = self.months.get(config[uplink].name.as_str());
        let bytes = month.map_or(0, |month| month.bytes);
        Some(BudgetSnapshot {
            uplink: config[uplink].name.to_string(),
            budget_bytes: budget.bytes.get(),
            used_bytes: bytes,
            left_bytes: budget.bytes.get().saturating_sub(bytes),
            began: month.map_or(began, |month| month.began).to_string(),
            ends: ends.to_string(),
        })
    }

    /// Starts the thread that keeps the counts.
    pub(crate) fn start_writer(&mut self, privileges: Privileges) {
        let (texts, wanted) = sync_channel::<String>(1);
        let file = self.file.clone();
        let started = privileges.start_without("budgets", || {
            let thread = std::thread::Builder::new().name("budgets".into());
            thread.spawn(move || {
                let mut has_failed = false;
                for text in wanted {
                    match kept_file::write(&file, &text) {
                        Ok(()) => has_failed = false,
                        Err(error) if !std::mem::replace(&mut has_failed, true) => tracing::warn!(
                            "{}: {error}; what was used of budgets is forgotten with a restart; make \
                             state_directory writable",
                            file.display()
                        ),
                        Err(_) => {}
                    }
                }
            })
        });
        match started {
            Ok(thread) => self.writer = Some(Writer { texts, thread }),
            Err(error) => tracing::warn!(%error, "what is used of budgets is not kept"),
        }
    }

    /// Keeps the counts if it is time to.
    pub(crate) fn save_if_due(&mut self, config: &Config) {
        let has_grown = |(uplink, budget): (PathIndex, Budget)| {
            let name = config[uplink].name.as_str();
            let bytes = self.months.get(name).map_or(0, |month| month.bytes);
            let saved = self.saved.bytes.get(name).copied().unwrap_or(0);
            bytes != saved && bytes.saturating_sub(saved) >= budget.bytes.get() / SAVE_PART
        };
        let bytes: BTreeMap<String, u64> = self.bytes();
        let is_old = self.saved.at.elapsed() >= SAVE_EVERY && self.saved.bytes != bytes;
        if !is_old && !config.budgets().any(has_grown) {
            return;
        }
        let Some(writer) = &self.writer else { return };
        // Where the disk is slow the next one counts.
        if let Ok(()) | Err(TrySendError::Disconnected(_)) = writer.texts.try_send(self.text()) {
            self.saved = Saved {
                at: Stopwatch::now(),
                bytes,
            };
        }
    }

    fn bytes(&self) -> BTreeMap<String, u64> {
        let months = self.months.iter();
        months
            .map(|(name, month)| (name.clone(), month.bytes))
            .collect()
    }

    fn text(&self) -> String {
        let line =
            |(name, month): (&String, &Month)| format!("{name} {} {}\n", month.began, month.bytes);
        self.months.iter().map(line).collect()
    }
}

impl Drop for Budgets {
    /// Waits for the disk: the gateway ends.
    fn drop(&mut self) {
        let Some(Writer { texts, thread }) = self.writer.take() else {
            return;
        };
        if !self.months.is_empty() {
            // Fails only where the thread has ended.
            let _ = texts.send(self.text());
        }
        drop(texts);
        let _ = thread.join();
    }
}

impl Month {
    fn new(began: Day, bytes: u64) -> Self {
        Self {
            began,
            bytes,
            level: Level::Plenty,
            clock_back: None,
        }
    }

    /// `true`: a month has begun.
    ///
    /// A clock that goes back begins none, or one that starts in 1970 would do so with each start. If it stays there it
    /// was ahead before, and what is used counts for its month.
    fn advance(&mut self, budget: Budget, now: Clocks) -> bool {
        let [began, _] = budget.month(now.wall);
        let today = Day::of(now.wall);
        if today < self.began {
            let since = *self.clock_back.get_or_insert(now.monotonic);
            if now.monotonic.saturating_duration_since(since) >= CLOCK_BACK_MAX {
                (self.began, self.clock_back) = (began, None);
            }
            return false;
        }
        self.clock_back = None;
        let is_over = today >= self.began.next_month();
        match is_over {
            true => *self = Self::new(began, 0),
            // Of another `budget_day`: what is used goes along.
            false => self.began = began,
        }
        is_over
    }
}

impl Level {
    fn of(bytes: u64, budget: Budget) -> Self {
        let budget = budget.bytes.get();
        let part = u128::from(budget) * u128::from(WARNING_PERCENT) / 100;
        match bytes {
            bytes if bytes >= budget => Self::Spent,
            bytes if u128::from(bytes) >= part => Self::Warning,
            _ => Self::Plenty,
        }
    }
}

fn event(level: Level, path: &str, month: Month, budget: Budget, ends: Day) -> EventKind {
    let path = path.to_owned();
    let (used_bytes, budget_bytes) = (month.bytes, budget.bytes.get());
    let ends = ends.to_string();
    match level {
        Level::Spent => EventKind::BudgetSpent {
            path,
            used_bytes,
            budget_bytes,
            ends,
        },
        Level::Warning | Level::Plenty => EventKind::BudgetWarning {
            path,
            used_bytes,
            budget_bytes,
            ends,
        },
    }
}

/// The counts, and how many lines are wrong.
fn parse(text: &str) -> (BTreeMap<String, Month>, usize) {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let (name, began, bytes) = (words.next()?, words.next()?, words.next()?);
        // What is used up already is said again.
        let month = Month::new(Day::parse(began)?, bytes.parse().ok()?);
        let is_line = words.next().is_none() && !name.is_empty();
        is_line.then(|| (name.to_owned(), month))
    };
    let lines: Vec<_> = text.lines().map(line).collect();
    let wrong = lines.iter().filter(|line| line.is_none()).count();
    let months = lines.into_iter().flatten().take(MONTHS_MAX).collect();
    (months, wrong)
}

#[cfg(test)]
mod tests;
