//! Measurements of paths and applications in an SQLite database of bounded size: a row per minute
//! for a day and per hour for a month.
//!
//! A database that cannot be read is quarantined and a new one begun. A full disk is an error of
//! the one call; older rows stay. Calls block for as long as the disk takes: [`crate::Recorder`]
//! keeps them off the control thread.

mod series;

use std::{
    fs, io,
    ops::Range,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, params};

pub use self::series::{AppSample, PathSample};
use self::series::{Series, placeholders};
use crate::{
    file::make_directory,
    plan_store::StoreError,
    quarantine::{QuarantinedFile, quarantine},
    site::is_network_name,
};

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How far minutes go back.
    pub minutes_for: Duration,
    /// How far hours go back.
    pub hours_for: Duration,
    /// Paths and applications of which there is a history. One that was not seen for an hour makes
    /// room for a new one, the longest unseen first; otherwise the new one is left out.
    pub subjects_max: usize,
    /// The database file never grows beyond.
    pub bytes_max: u64,
}

impl Default for Bounds {
    /// 24 hours of minutes, 30 days of hours, 256 subjects, 128 MiB. Ours: at some 110 bytes a row
    /// that is at most 61 MB.
    fn default() -> Self {
        Self {
            minutes_for: Duration::from_secs(24 * HOUR),
            hours_for: Duration::from_secs(30 * 24 * HOUR),
            subjects_max: 256,
            bytes_max: 128 << 20,
        }
    }
}

/// Names a path or an application of this gateway, and the peer that it leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesKey {
    /// The path's or application's name.
    pub name: String,
    pub peer: String,
}

/// What was measured at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Per path and peer.
    pub paths: Vec<(SeriesKey, PathSample)>,
    /// Per application.
    pub apps: Vec<(SeriesKey, AppSample)>,
}

/// A sample with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<S> {
    /// The beginning of its minute or hour.
    pub at_unix_seconds: u64,
    /// What was measured in it.
    pub sample: S,
}

/// The newest minute of every path, and of every application in which what it sends was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latest {
    /// Per path and peer.
    pub paths: Vec<(SeriesKey, Row<PathSample>)>,
    /// Per application.
    pub apps: Vec<(SeriesKey, Row<AppSample>)>,
}

/// Which of the two series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// A row per minute.
    Minute,
    /// A row per hour: of an hour that is over as it was made of the minutes then, of the present
    /// one as far as it has come.
    Hour,
}

/// Why the history could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The disk is full, or the database has reached its bound. What was stored before is intact.
    #[error("{}: no space left for the history; what was stored before is intact", .0.display())]
    NoSpace(PathBuf),
    /// Another process has it open.
    #[error("{} is used by another process", .0.display())]
    InUse(PathBuf),
    /// The file system's error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Anything else that the database says.
    #[error("{}: {source}{}", path.display(), what_to_try(source))]
    Database {
        path: PathBuf,
        source: rusqlite::Error,
    },
}

/// Where the rights are missing, what helps.
fn what_to_try(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "; try: let the user that the gateway runs as read and write this file and its \
             directory, or set another `state_directory`"
        }
        _ => "",
    }
}

#[derive(Debug)]
pub struct History {
    path: PathBuf,
    bounds: Bounds,
    /// `None`: it could not be opened again after it was found corrupt.
    database: Option<Connection>,
    notices: Vec<QuarantinedFile>,
    pruned_at: u64,
}

/// The layout of the database; another one is kept aside.
const LAYOUT: i64 = 1;
/// `Keir` in ASCII, SQLite's application id.
const APPLICATION: i64 = 0x4b65_6972;
const MINUTE: u64 = 60;
const HOUR: u64 = 3600;
/// A subject seen within this time is not pushed out. Ours.
const RECENT: u64 = HOUR;
const PAGE_BYTES: u64 = 4096;
/// Rows of one query at most: a month of minutes.
const ROWS_MAX: usize = 31 * 24 * 60;
/// Unreadable files reported until taken. Ours: one after another at every call would be a broken
/// disk.
const NOTICES_MAX: usize = 8;

impl History {
    /// Opens or creates the database; directory and file are readable by the owner only. A database
    /// that cannot be read, or that another version wrote, is quarantined
    /// ([`History::take_notices`]).
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn open(path: &Path, bounds: Bounds) -> Result<Self, HistoryError> {
        if let Some(directory) = path.parent() {
            make_directory(directory)?;
        }
        let mut history = Self {
            path: path.to_owned(),
            bounds,
            database: None,
            notices: Vec::new(),
            pruned_at: 0,
        };
        history.database()?;
        Ok(history)
    }

    /// Stores what was measured in the minute of `at`, in place of what was stored for it; makes
    /// hours of minutes, and removes what is too old. How many subjects were left out for want of
    /// room, or because their names are none.
    ///
    /// # Errors
    /// See [`HistoryError`]; nothing of the batch is stored then.
    pub fn record(&mut self, at_unix_seconds: u64, batch: &Batch) -> Result<usize, HistoryError> {
        let at = at_unix_seconds - at_unix_seconds % MINUTE;
        let is_prune_due = at.abs_diff(self.pruned_at) >= HOUR;
        let bounds = self.bounds;
        let store = |history: &mut Self| {
            history.transact(|transaction| {
                if is_prune_due {
                    combine_hours(transaction, at, bounds)?;
                    prune(transaction, at, bounds)?;
                }
                let paths = insert(transaction, at, &batch.paths, bounds)?;
                let apps = insert(transaction, at, &batch.apps, bounds)?;
                Ok(paths + apps)
            })
        };
        let left_out = match store(self) {
            // A clock that jumped may have left rows that are never too old.
            Err(HistoryError::NoSpace(path)) => {
                self.transact(|transaction| prune_around(transaction, at, bounds))
                    .map_err(|_| HistoryError::NoSpace(path))?;
                store(self)?
            }
            result => result?,
        };
        if is_prune_due {
            self.pruned_at = at;
        }
        Ok(left_out)
    }

    /// Gives peers and applications other names, `[before, now]` each, so that what was measured is found under the new
    /// ones. What there is under a new name is of a peer that is gone, and is removed.
    ///
    /// # Errors
    /// See [`HistoryError`]; no name is changed then.
    pub fn rename(
        &mut self,
        peers: &[[String; 2]],
        apps: &[[String; 2]],
    ) -> Result<(), HistoryError> {
        self.transact(|transaction| rename(transaction, peers, apps))
    }

    /// The newest minutes; see [`Latest`].
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn latest(&mut self) -> Result<Latest, HistoryError> {
        self.transact(|transaction| {
            Ok(Latest {
                paths: latest(transaction)?,
                apps: latest(transaction)?,
            })
        })
    }

    /// A path's rows, oldest first, at most a month of minutes; seconds since 1970.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn path(
        &mut self,
        subject: &SeriesKey,
        resolution: Resolution,
        unix_seconds: Range<u64>,
    ) -> Result<Vec<Row<PathSample>>, HistoryError> {
        self.transact(|transaction| range(transaction, subject, resolution, unix_seconds.clone()))
    }

    /// An application's rows, as [`History::path`].
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub fn app(
        &mut self,
        subject: &SeriesKey,
        resolution: Resolution,
        unix_seconds: Range<u64>,
    ) -> Result<Vec<Row<AppSample>>, HistoryError> {
        self.transact(|transaction| range(transaction, subject, resolution, unix_seconds.clone()))
    }

    /// Databases quarantined since the last call.
    pub fn take_notices(&mut self) -> Vec<QuarantinedFile> {
        std::mem::take(&mut self.notices)
    }

    /// Runs a transaction. A database that turns out to be corrupt is quarantined, and the
    /// transaction is repeated on a new one.
    fn transact<T>(
        &mut self,
        work: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, HistoryError> {
        let attempt = |database: &mut Connection| {
            let transaction = database.transaction()?;
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
        };
        match attempt(self.database()?) {
            Err(error) if is_corrupt(&error) => {
                self.begin_anew(&error.to_string())?;
                attempt(self.database()?).map_err(|e| self.failed(e))
            }
            result => result.map_err(|e| self.failed(e)),
        }
    }

    /// The open database; opens it where it is not.
    fn database(&mut self) -> Result<&mut Connection, HistoryError> {
        if self.database.is_none() {
            let opened = match self.connect() {
                Err(ConnectError::Corrupt(reason)) => {
                    self.begin_anew(&reason)?;
                    self.connect()
                }
                result => result,
            };
            let connection = opened.map_err(|unusable| match unusable {
                ConnectError::Failed(error) => error,
                ConnectError::Corrupt(reason) => {
                    HistoryError::Store(StoreError::Configuration(format!(
                        "{}: not even a fresh one works: {reason}",
                        self.path.display()
                    )))
                }
            })?;
            self.database = Some(connection);
        }
        Ok(self.database.as_mut().expect("it was just opened"))
    }

    fn connect(&self) -> Result<Connection, ConnectError> {
        let mut is_made = false;
        match fs::symlink_metadata(&self.path) {
            Ok(metadata) if !metadata.is_file() => {
                return Err(ConnectError::Corrupt("not a regular file".into()));
            }
            // SQLite would take it for a new one.
            Ok(metadata) if metadata.len() == 0 => {
                return Err(ConnectError::Corrupt("it is empty".into()));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut options = fs::OpenOptions::new();
                let made = options
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&self.path);
                made.map_err(|e| StoreError::file("make", &self.path, e))
                    .map_err(|e| ConnectError::Failed(e.into()))?;
                is_made = true;
            }
            Err(error) => {
                let error = StoreError::file("read", &self.path, error);
                return Err(ConnectError::Failed(error.into()));
            }
        }
        let prepared = self.prepared();
        if prepared.is_err() && is_made {
            // Nothing is in it; an empty one would be taken for a damaged one.
            let _ = fs::remove_file(&self.path);
        }
        prepared.map_err(|error| match error {
            OpenError::Other(reason) => ConnectError::Corrupt(reason),
            OpenError::Database(error) if is_corrupt(&error) => {
                ConnectError::Corrupt(error.to_string())
            }
            OpenError::Database(error) => ConnectError::Failed(self.failed(error)),
        })
    }

    /// Opens the file, which may hold anything, and makes the tables where it is empty.
    fn prepared(&self) -> Result<Connection, OpenError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut database = Connection::open_with_flags(&self.path, flags)?;
        let pages_max = (self.bounds.bytes_max / PAGE_BYTES).max(64) as i64;
        // Nothing that the file itself says is run, and nothing of it is mapped into memory.
        // Another process that has it open is found out at once.
        database.execute_batch(&format!(
            "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;
             PRAGMA page_size = {PAGE_BYTES}; PRAGMA locking_mode = EXCLUSIVE;
             PRAGMA temp_store = MEMORY; PRAGMA synchronous = FULL; PRAGMA foreign_keys = OFF;
             PRAGMA cache_size = -4096;"
        ))?;
        let number = |name: &str| -> rusqlite::Result<i64> {
            database.pragma_query_value(None, name, |row| row.get(0))
        };
        let _: String =
            database.pragma_update_and_check(None, "journal_mode", "TRUNCATE", |row| row.get(0))?;
        let _: i64 =
            database
                .pragma_update_and_check(None, "max_page_count", pages_max, |row| row.get(0))?;
        let found = (number("application_id")?, number("user_version")?);
        let tables = schema_of(&database)?;
        if found == (0, 0) && tables.is_empty() {
            let transaction = database.transaction()?;
            for table in schema() {
                transaction.execute_batch(&table)?;
            }
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            transaction.pragma_update(None, "user_version", LAYOUT)?;
            transaction.commit()?;
            return Ok(database);
        }
        if found.0 != APPLICATION {
            return Err(OpenError::Other("the database of another program".into()));
        }
        if found.1 != LAYOUT {
            let layout = found.1;
            return Err(OpenError::Other(format!(
                "layout {layout}, this version reads {LAYOUT}"
            )));
        }
        if tables != schema() {
            return Err(OpenError::Other(
                "its tables are not those it should have".into(),
            ));
        }
        let checked: String = database.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if checked != "ok" {
            return Err(OpenError::Other(checked));
        }
        Ok(database)
    }

    fn begin_anew(&mut self, reason: &str) -> Result<(), HistoryError> {
        self.database = None;
        let kept = quarantine(&self.path, reason)
            .map_err(|e| StoreError::file("put aside", &self.path, e))?;
        // It belongs to the one that is gone: played back, it would spoil the fresh one.
        let mut journal = self.path.clone().into_os_string();
        journal.push("-journal");
        match fs::remove_file(Path::new(&journal)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::file("remove", Path::new(&journal), error).into());
            }
            _ => {}
        }
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(kept);
        }
        Ok(())
    }

    fn failed(&self, source: rusqlite::Error) -> HistoryError {
        let path = self.path.clone();
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => HistoryError::NoSpace(path),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => HistoryError::InUse(path),
            _ => HistoryError::Database { path, source },
        }
    }
}

enum ConnectError {
    Corrupt(String),
    Failed(HistoryError),
}

enum OpenError {
    Database(rusqlite::Error),
    /// A database, but not ours.
    Other(String),
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// What is in the file makes no sense, as opposed to: the file cannot be read or written.
fn is_corrupt(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => matches!(
            failure.code,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SchemaChanged
        ),
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..)
        | rusqlite::Error::QueryReturnedNoRows
        | rusqlite::Error::SqlInputError { .. } => true,
        _ => false,
    }
}

const SUBJECT_TABLE: &str = "CREATE TABLE subject (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, \
     name TEXT NOT NULL, peer TEXT NOT NULL, last_at INTEGER NOT NULL)";
const SUBJECT_INDEX: &str = "CREATE UNIQUE INDEX subject_name ON subject (kind, name, peer)";

/// Every table and index, by name.
fn schema() -> Vec<String> {
    let mut schema = vec![SUBJECT_TABLE.to_owned(), SUBJECT_INDEX.to_owned()];
    schema.extend(tables_of::<PathSample>());
    schema.extend(tables_of::<AppSample>());
    schema.sort();
    schema
}

fn tables_of<S: Series>() -> [String; 2] {
    let columns: Vec<_> = S::COLUMNS.iter().map(|column| column.name).collect();
    let columns = columns.join(" REAL, ");
    [Resolution::Minute, Resolution::Hour].map(|resolution| {
        format!(
            "CREATE TABLE {} (subject INTEGER NOT NULL, at INTEGER NOT NULL, {columns} REAL, \
             PRIMARY KEY (subject, at)) WITHOUT ROWID",
            table::<S>(resolution)
        )
    })
}

fn table<S: Series>(resolution: Resolution) -> String {
    let suffix = match resolution {
        Resolution::Minute => "minute",
        Resolution::Hour => "hour",
    };
    format!("{}_{suffix}", S::KIND)
}

fn schema_of(database: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = database
        .prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY sql LIMIT 100")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn insert<S: Series>(
    transaction: &Transaction<'_>,
    at: u64,
    samples: &[(SeriesKey, S)],
    bounds: Bounds,
) -> rusqlite::Result<usize> {
    let sql = format!(
        "INSERT OR REPLACE INTO {} VALUES (?1, ?2, {})",
        table::<S>(Resolution::Minute),
        placeholders(3, S::COLUMNS.len())
    );
    let mut statement = transaction.prepare(&sql)?;
    let mut left_out = 0;
    for (subject, sample) in samples {
        let Some(id) = subject_for::<S>(transaction, subject, at, bounds)? else {
            left_out += 1;
            continue;
        };
        statement.raw_bind_parameter(1, id)?;
        statement.raw_bind_parameter(2, at as i64)?;
        for (number, value) in sample.values().into_iter().enumerate() {
            statement.raw_bind_parameter(3 + number, value)?;
        }
        statement.raw_execute()?;
    }
    Ok(left_out)
}

/// All at once: two may change their names with each other.
fn rename(
    transaction: &Transaction<'_>,
    peers: &[[String; 2]],
    apps: &[[String; 2]],
) -> rusqlite::Result<()> {
    let subjects: Vec<(i64, String, SeriesKey)> = transaction
        .prepare("SELECT id, kind, name, peer FROM subject")?
        .query_map([], |row| {
            let [name, peer] = [row.get(2)?, row.get(3)?];
            Ok((row.get(0)?, row.get(1)?, SeriesKey { name, peer }))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let new_name = |renames: &[[String; 2]], name: &str| {
        let mut renames = renames.iter();
        renames
            .find(|[before, _]| before == name)
            .map_or_else(|| name.to_owned(), |[_, now]| now.clone())
    };
    let mut moved = Vec::new();
    for (id, kind, before) in &subjects {
        let name = match kind == AppSample::KIND {
            true => new_name(apps, &before.name),
            false => before.name.clone(),
        };
        let peer = new_name(peers, &before.peer);
        let now = SeriesKey { name, peer };
        if now != *before {
            moved.push((*id, kind, now));
        }
    }
    let is_moved = |id: i64| moved.iter().any(|(of, ..)| *of == id);
    for (id, kind, before) in &subjects {
        let is_taken = moved
            .iter()
            .any(|(_, of, now)| *of == kind && now == before);
        if is_taken && !is_moved(*id) {
            remove_subject(transaction, *id)?;
        }
    }
    // No name is an empty text, so that none is there twice in between.
    for (id, ..) in &moved {
        let sql = "UPDATE subject SET name = '', peer = ?2 WHERE id = ?1";
        transaction
            .prepare(sql)?
            .execute(params![id, id.to_string()])?;
    }
    for (id, _, SeriesKey { name, peer }) in &moved {
        let sql = "UPDATE subject SET name = ?2, peer = ?3 WHERE id = ?1";
        transaction.prepare(sql)?.execute(params![id, name, peer])?;
    }
    Ok(())
}

/// The number of a subject, given now if there is room. `None`: there is none.
fn subject_for<S: Series>(
    transaction: &Transaction<'_>,
    subject: &SeriesKey,
    at: u64,
    bounds: Bounds,
) -> rusqlite::Result<Option<i64>> {
    if !is_network_name(&subject.name) || !is_network_name(&subject.peer) {
        return Ok(None);
    }
    let at = at as i64;
    if let Some(id) = id_of::<S>(transaction, subject)? {
        let sql = "UPDATE subject SET last_at = ?2 WHERE id = ?1";
        transaction.prepare(sql)?.execute(params![id, at])?;
        return Ok(Some(id));
    }
    let count: i64 = transaction
        .prepare("SELECT count(*) FROM subject")?
        .query_row([], |row| row.get(0))?;
    if count as usize >= bounds.subjects_max {
        // Seen after `at` is in the future of a clock that was set back: as good as unseen.
        let unseen: Option<i64> = transaction
            .prepare(
                "SELECT id FROM subject WHERE last_at < ?1 OR last_at > ?2 ORDER BY last_at LIMIT 1",
            )?
            .query_row(params![at - RECENT as i64, at], |row| row.get(0))
            .optional()?;
        let Some(unseen) = unseen else {
            return Ok(None);
        };
        remove_subject(transaction, unseen)?;
    }
    let sql = "INSERT INTO subject (kind, name, peer, last_at) VALUES (?1, ?2, ?3, ?4)";
    transaction
        .prepare(sql)?
        .execute(params![S::KIND, subject.name, subject.peer, at])?;
    Ok(Some(transaction.last_insert_rowid()))
}

fn id_of<S: Series>(
    transaction: &Transaction<'_>,
    subject: &SeriesKey,
) -> rusqlite::Result<Option<i64>> {
    transaction
        .prepare("SELECT id FROM subject WHERE kind = ?1 AND name = ?2 AND peer = ?3")?
        .query_row(params![S::KIND, subject.name, subject.peer], |row| {
            row.get(0)
        })
        .optional()
}

fn remove_subject(transaction: &Transaction<'_>, id: i64) -> rusqlite::Result<()> {
    for table in sample_tables() {
        transaction.execute(&format!("DELETE FROM {table} WHERE subject = ?1"), [id])?;
    }
    transaction.execute("DELETE FROM subject WHERE id = ?1", [id])?;
    Ok(())
}

fn sample_tables() -> [String; 4] {
    [
        table::<PathSample>(Resolution::Minute),
        table::<AppSample>(Resolution::Minute),
        table::<PathSample>(Resolution::Hour),
        table::<AppSample>(Resolution::Hour),
    ]
}

/// Makes hours of the minutes of all hours that are over and still have minutes.
fn combine_hours(transaction: &Transaction<'_>, at: u64, bounds: Bounds) -> rusqlite::Result<()> {
    combine::<PathSample>(transaction, at, bounds)?;
    combine::<AppSample>(transaction, at, bounds)
}

fn combine<S: Series>(
    transaction: &Transaction<'_>,
    at: u64,
    bounds: Bounds,
) -> rusqlite::Result<()> {
    // Those made already have more minutes in them than may be left.
    let sql = format!(
        "INSERT OR IGNORE INTO {} {}",
        table::<S>(Resolution::Hour),
        hours_of_minutes::<S>("at >= ?1 AND at < ?2")
    );
    let this_hour = at - at % HOUR;
    let since = this_hour.saturating_sub(bounds.minutes_for.as_secs());
    let since = since - since % HOUR;
    transaction.execute(&sql, params![since as i64, this_hour as i64])?;
    Ok(())
}

/// The SQL of the hours that the minutes of which `condition` holds make.
fn hours_of_minutes<S: Series>(condition: &str) -> String {
    let combined: Vec<_> = S::COLUMNS.iter().map(|column| column.combined()).collect();
    format!(
        "SELECT subject, at - at % {HOUR} AS at, {} FROM {} WHERE {condition}
         GROUP BY subject, at - at % {HOUR}",
        combined.join(", "),
        table::<S>(Resolution::Minute)
    )
}

/// Removes what is too old.
fn prune(transaction: &Transaction<'_>, at: u64, bounds: Bounds) -> rusqlite::Result<()> {
    let [path_minutes, app_minutes, path_hours, app_hours] = sample_tables();
    let minutes_since = at.saturating_sub(bounds.minutes_for.as_secs());
    let hours_since = at.saturating_sub(bounds.hours_for.as_secs());
    for (table, since) in [
        (path_minutes, minutes_since),
        (app_minutes, minutes_since),
        (path_hours, hours_since),
        (app_hours, hours_since),
    ] {
        // By subject, so that the primary key finds them.
        let sql =
            format!("DELETE FROM {table} WHERE subject IN (SELECT id FROM subject) AND at < ?1");
        transaction.execute(&sql, [since as i64])?;
    }
    transaction.execute(
        "DELETE FROM subject WHERE last_at < ?1",
        [hours_since.min(minutes_since) as i64],
    )?;
    Ok(())
}

/// Removes what is too old or, after the clock was set back, not yet to come.
fn prune_around(transaction: &Transaction<'_>, at: u64, bounds: Bounds) -> rusqlite::Result<()> {
    for table in sample_tables() {
        let sql = format!("DELETE FROM {table} WHERE at > ?1");
        transaction.execute(&sql, [at as i64])?;
    }
    prune(transaction, at, bounds)
}

fn latest<S: Series>(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<(SeriesKey, Row<S>)>> {
    let sql = format!(
        "SELECT name, peer, sample.* FROM subject JOIN {} sample ON sample.subject = subject.id
         AND sample.at = (SELECT max(at) FROM {0} WHERE subject = subject.id AND {} IS NOT NULL)
         WHERE kind = '{}' ORDER BY name, peer",
        table::<S>(Resolution::Minute),
        S::REQUIRED_COLUMN,
        S::KIND
    );
    let mut statement = transaction.prepare(&sql)?;
    let rows = statement.query_map([], |row| {
        let subject = SeriesKey {
            name: row.get(0)?,
            peer: row.get(1)?,
        };
        Ok((subject, row_from(row, 3)?))
    })?;
    rows.collect()
}

fn range<S: Series>(
    transaction: &Transaction<'_>,
    subject: &SeriesKey,
    resolution: Resolution,
    unix_seconds: Range<u64>,
) -> rusqlite::Result<Vec<Row<S>>> {
    let Some(id) = id_of::<S>(transaction, subject)? else {
        return Ok(Vec::new());
    };
    let wanted = "subject = ?1 AND at >= ?2 AND at < ?3";
    let kept = format!("SELECT * FROM {} WHERE {wanted}", table::<S>(resolution));
    let source = match resolution {
        Resolution::Minute => kept,
        Resolution::Hour => {
            let hours = table::<S>(resolution);
            let made =
                format!("coalesce((SELECT max(at) FROM {hours} WHERE subject = ?1), -{HOUR})");
            let present = hours_of_minutes::<S>(&format!("{wanted} AND at >= {made} + {HOUR}"));
            format!("{kept} UNION ALL {present}")
        }
    };
    let sql = format!("SELECT * FROM ({source}) ORDER BY at LIMIT {ROWS_MAX}");
    let limit = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    let mut statement = transaction.prepare(&sql)?;
    let rows = statement.query_map(
        params![id, limit(unix_seconds.start), limit(unix_seconds.end)],
        |row| row_from(row, 1),
    )?;
    rows.collect()
}

/// `at` and the sample's values, from column `first`.
fn row_from<S: Series>(row: &rusqlite::Row<'_>, first: usize) -> rusqlite::Result<Row<S>> {
    let at: i64 = row.get(first)?;
    let mut values = Vec::with_capacity(S::COLUMNS.len());
    for number in 0..S::COLUMNS.len() {
        let value: Option<f64> = row.get(first + 1 + number)?;
        values.push(value.filter(|value| value.is_finite() && *value >= 0.0));
    }
    Ok(Row {
        at_unix_seconds: at.unsigned_abs(),
        sample: S::from_values(&values),
    })
}

#[cfg(test)]
mod tests;
