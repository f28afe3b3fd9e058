//! Records of laboratories in `/run/keiro/lab`: one JSON file each, with the process that owns it and the
//! namespaces that it made.
//!
//! The record is written before the first namespace is made, so that the remains of a killed process can be
//! found. A namespace counts as a laboratory's own only if the record names it and its inode number is still
//! the recorded one.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
};

use keiro_linux::{
    netns::{Netns, NetnsId},
    process::PidFd,
};
use serde::{Deserialize, Serialize};

use super::LabError;

/// Directory of the records.
pub const RECORD_DIRECTORY: &str = "/run/keiro/lab";

/// One laboratory on record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub name: String,
    /// The process that owns it.
    pub pid: i32,
    /// When that process started, in clock ticks since boot (field 22 of `/proc/PID/stat`), to distinguish it
    /// from a later process with the same number.
    pub start_ticks: u64,
    /// The namespaces that it made or is about to make.
    pub namespaces: Vec<RecordedNamespace>,
}

/// A namespace on record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedNamespace {
    pub name: String,
    /// Its host; `None` for the one that holds the emulated links' outer ends.
    pub host: Option<String>,
    /// Its device and inode number; `None` until it has been made.
    pub id: Option<(u64, u64)>,
}

impl Record {
    /// A record of `name`, owned by the calling process.
    pub(crate) fn of_this_process(
        name: &str,
        namespaces: Vec<RecordedNamespace>,
    ) -> Result<Self, LabError> {
        let pid = i32::try_from(process::id()).unwrap_or(i32::MAX);
        let start_ticks = start_ticks(pid).ok_or_else(|| {
            LabError::record(
                format!("/proc/{pid}/stat"),
                "has no start time; is /proc mounted?",
            )
        })?;
        Ok(Self {
            name: name.to_owned(),
            pid,
            start_ticks,
            namespaces,
        })
    }

    /// Whether the owning process still runs.
    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// The owning process, held by a descriptor; `None` if it has ended.
    pub(crate) fn owner(&self) -> Option<PidFd> {
        let owner = PidFd::open(self.pid).ok()?;
        // Checked after it is held: from here on the number cannot mean another process.
        self.is_alive().then_some(owner)
    }

    /// The recorded namespaces that still exist with their recorded numbers.
    pub(crate) fn remaining(&self) -> Vec<Netns> {
        self.namespaces
            .iter()
            .filter_map(|recorded| {
                let netns = Netns::open(&recorded.name).ok()?;
                let is_ours = recorded.id.is_none_or(|id| id == numbers(netns.id()));
                is_ours.then_some(netns)
            })
            .collect()
    }

    /// Writes a new record.
    ///
    /// `Ok(false)` if there is one of that name already.
    pub(crate) fn create(&self) -> Result<bool, LabError> {
        let path = path_of(&self.name);
        let fail = |error: io::Error| LabError::record(&path, error);
        let draft = self.draft(&path)?;
        // A link, unlike a rename, fails if the name is taken, and the record is never visible half written.
        let linked = fs::hard_link(&draft, &path);
        let removed = fs::remove_file(&draft);
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            linked => linked.and(removed).map(|()| true).map_err(fail),
        }
    }

    pub(crate) fn update(&self) -> Result<(), LabError> {
        let path = path_of(&self.name);
        let draft = self.draft(&path)?;
        fs::rename(draft, &path).map_err(|error| LabError::record(&path, error))
    }

    /// Removes the record; no error if it is gone.
    pub(crate) fn remove(&self) -> Result<(), LabError> {
        let path = path_of(&self.name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LabError::record(path, error))
            }
            _ => Ok(()),
        }
    }

    fn draft(&self, path: &Path) -> Result<PathBuf, LabError> {
        let fail = |error: &dyn std::fmt::Display| LabError::record(path, error);
        fs::create_dir_all(RECORD_DIRECTORY).map_err(|error| fail(&error))?;
        let text = serde_json::to_string_pretty(self).map_err(|error| fail(&error))?;
        let draft = path.with_extension(format!("draft-{}", process::id()));
        fs::write(&draft, text).map_err(|error| fail(&error))?;
        Ok(draft)
    }
}

impl RecordedNamespace {
    pub(crate) fn set_id(&mut self, id: NetnsId) {
        self.id = Some(numbers(id));
    }
}

/// The record of laboratory `name`; `None` if there is none.
pub(crate) fn read(name: &str) -> Result<Option<Record>, LabError> {
    let path = path_of(name);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LabError::record(path, error)),
    };
    let broken = |error| {
        let advice = "remove the file, and the laboratory's namespaces with `ip netns delete`";
        LabError::record(&path, format!("{error}; {advice}"))
    };
    serde_json::from_str(&text).map(Some).map_err(broken)
}

/// Every laboratory on record, by name. Broken records are left out.
pub(crate) fn read_all() -> Vec<Record> {
    let Ok(entries) = fs::read_dir(RECORD_DIRECTORY) else {
        return Vec::new();
    };
    let mut records: Vec<Record> = entries
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name();
            let name = file.to_str()?.strip_suffix(".json")?;
            read(name).ok().flatten()
        })
        .collect();
    records.sort_by(|a, b| a.name.cmp(&b.name));
    records
}

fn path_of(name: &str) -> PathBuf {
    Path::new(RECORD_DIRECTORY).join(format!("{name}.json"))
}

fn numbers(id: NetnsId) -> (u64, u64) {
    (id.device, id.inode)
}

/// Start time of process `pid`; `None` if it has ended, even if it has not been reaped.
fn start_ticks(pid: i32) -> Option<u64> {
    parse_start_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_start_ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, which may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let has_ended = matches!(state, "Z" | "X" | "x");
    // Field 22; the state is field 3.
    let start = fields.nth(22 - 4)?.parse().ok()?;
    (!has_ended).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_read_past_any_program_name() {
        let tail = (4..=30)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(" ");
        let stat = format!("7 (a) b (c) S {tail}");
        assert_eq!(parse_start_ticks(&stat), Some(22));
        assert_eq!(parse_start_ticks(&stat.replace(" S ", " Z ")), None);
        assert_eq!(parse_start_ticks("nonsense"), None);
    }

    #[test]
    fn this_process_is_alive_and_its_number_with_another_start_is_not() {
        let mut record = Record::of_this_process("t", Vec::new()).unwrap();
        assert!(record.is_alive());
        assert!(record.owner().is_some());
        record.start_ticks += 1;
        assert!(!record.is_alive());
        assert!(record.owner().is_none());
    }
}
