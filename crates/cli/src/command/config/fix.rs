//! `keiro config check --fix`: old keys get their new names in the file.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};

use keiro_control::{Config, ConfigError};

use crate::failure::Failure;

/// Why no key was renamed. The file is as it was.
pub(super) enum FixError {
    /// The file itself has to be corrected first.
    File(ConfigError),
    /// The new file cannot be written.
    Write(Failure),
}

/// Renames old keys in `file`; the changes, one line each. Without any nothing is written.
pub(super) fn fix(file: &Path) -> Result<Vec<String>, FixError> {
    let rewrite = Config::with_renamed_keys(file).map_err(FixError::File)?;
    if !rewrite.changes.is_empty() {
        replace(file, rewrite.text.as_bytes()).map_err(|error| {
            let hint = format!("{}; the file is as it was", hint(error.kind()));
            let failure = Failure::new(format!("cannot replace {}", file.display()));
            FixError::Write(failure.because(error).hint(hint))
        })?;
    }
    Ok(rewrite.changes)
}

/// What to try when a file cannot be replaced.
fn hint(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied => "run it as the file's owner or as root",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on the file system of the file"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is mounted read-only: mount it for writing, or fix a copy elsewhere"
        }
        io::ErrorKind::ResourceBusy => {
            "the file is a mount point: fix the file that is mounted there"
        }
        _ => "fix a copy of it in another directory",
    }
}

/// Replaces the contents of a file, or of the file that a link leads to, in one step. Mode, owner and
/// group stay.
fn replace(file: &Path, contents: &[u8]) -> io::Result<()> {
    let target = fs::canonicalize(file)?;
    let new = beside(&target);
    let result = write_as(&target, &new, contents).and_then(|()| fs::rename(&new, &target));
    if result.is_err() {
        let _ = fs::remove_file(&new);
        return result;
    }
    // The rename itself must outlast a power failure.
    File::open(target.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// A name in the same directory, since a rename does not leave the file system.
fn beside(target: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.new", std::process::id()));
    target.with_file_name(name)
}

/// Writes `contents` to `new` with mode, owner and group of `target`.
fn write_as(target: &Path, new: &Path, contents: &[u8]) -> io::Result<()> {
    let wanted = fs::metadata(target)?;
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(new)?;
    let own = out.metadata()?;
    if (own.uid(), own.gid()) != (wanted.uid(), wanted.gid()) {
        fchown(&out, Some(wanted.uid()), Some(wanted.gid()))?;
    }
    out.set_permissions(wanted.permissions())?;
    out.write_all(contents)?;
    out.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_fits_the_error() {
        for (kind, expected) in [
            (io::ErrorKind::PermissionDenied, "as root"),
            (io::ErrorKind::StorageFull, "make room"),
            (io::ErrorKind::QuotaExceeded, "make room"),
            (io::ErrorKind::ReadOnlyFilesystem, "read-only"),
            (io::ErrorKind::ResourceBusy, "mount point"),
        ] {
            assert!(hint(kind).contains(expected), "{kind}: {}", hint(kind));
            let is_about_permission = kind == io::ErrorKind::PermissionDenied;
            assert_eq!(hint(kind).contains("root"), is_about_permission, "{kind}");
        }
    }
}
