//! Files that the daemons read at start and on reload.

use std::{
    fs::{self, File},
    io::{self, Read, Take},
    path::Path,
};

/// Opens a regular file of at most so many MiB. A pipe could block the daemon, and a device may never
/// end.
///
/// # Errors
/// It is something else, is larger, or cannot be read.
pub(super) fn open(path: &Path, mebibytes_max: u64) -> io::Result<Take<File>> {
    // Checked before opening: opening a pipe would wait for its writer.
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.len() > mebibytes_max << 20 {
        let bound = format!("it is larger than {mebibytes_max} MiB");
        return Err(io::Error::other(bound));
    }
    // The file may grow while it is read, and files of procfs have a length of 0.
    Ok(File::open(path)?.take(mebibytes_max << 20))
}
