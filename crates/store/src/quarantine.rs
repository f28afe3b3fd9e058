//! Files that cannot be read are renamed, never deleted unseen: at most `QUARANTINED_MAX` of them.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Quarantined files of one name. Ours: enough to find out what happened, bounded on disk.
const QUARANTINED_MAX: usize = 3;

/// A file that could not be read and was renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedFile {
    /// Where it should be.
    pub path: PathBuf,
    /// Where it is now.
    pub kept: PathBuf,
    /// Why it could not be read, in one line.
    pub reason: String,
}

impl fmt::Display for QuarantinedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} could not be used ({}); it is kept as {}, and a fresh one is begun",
            self.path.display(),
            self.reason,
            self.kept.display()
        )
    }
}

/// Renames the file to `<name>.corrupt-<unix seconds>` and removes the oldest of those that are
/// more than `QUARANTINED_MAX`.
pub(crate) fn quarantine(path: &Path, reason: &str) -> io::Result<QuarantinedFile> {
    let prefix = quarantine_prefix(path);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut second = now.map_or(0, |now| now.as_secs());
    let mut kept = path.with_file_name(format!("{prefix}{second}"));
    // Several in one second, or the clock went back: the next free number, after all others.
    if let Some(newest) = quarantined_files(path)?.last().map(|(newest, _)| *newest)
        && newest >= second
    {
        second = newest.saturating_add(1);
        kept = path.with_file_name(format!("{prefix}{second}"));
    }
    fs::rename(path, &kept)?;
    let all = quarantined_files(path)?;
    for (_, old) in all.iter().take(all.len().saturating_sub(QUARANTINED_MAX)) {
        fs::remove_file(old)?;
    }
    Ok(QuarantinedFile {
        path: path.to_owned(),
        kept,
        reason: one_line(reason),
    })
}

/// Messages of libraries may have several lines; a log entry has one.
fn one_line(reason: &str) -> String {
    reason.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn quarantine_prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{name}.corrupt-")
}

/// Those kept of this name, oldest first.
fn quarantined_files(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let prefix = quarantine_prefix(path);
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let second = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        if let Some(second) = second.and_then(|second| second.parse().ok()) {
            found.push((second, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_three_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.json");
        for number in 0..5 {
            fs::write(&path, number.to_string()).unwrap();
            let kept = quarantine(&path, "*** in\n  the file ***").unwrap();
            assert_eq!(kept.reason, "*** in the file ***");
            assert_eq!(fs::read_to_string(&kept.kept).unwrap(), number.to_string());
            assert!(!path.exists());
        }
        let left: Vec<_> = quarantined_files(&path).unwrap();
        let contents: Vec<_> = left
            .iter()
            .map(|(_, path)| fs::read_to_string(path).unwrap())
            .collect();
        assert_eq!(contents, ["2", "3", "4"]);
    }
}
