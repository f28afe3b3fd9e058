//! Files that the daemons read at start and on reload.

use std::{
    fs::File,
    io::{self, Read, Take},
    path::Path,
};

use keiro_config::regular_file;

/// Opens a regular file of at most `mebibytes_max` MiB. A pipe could block the daemon, and a device may never
/// end.
///
/// # Errors
/// It is something else, is larger, or cannot be read.
pub(super) fn open(path: &Path, mebibytes_max: u64) -> io::Result<Take<File>> {
    let file = regular_file::open(path)?;
    if file.metadata()?.len() > mebibytes_max << 20 {
        let bound = format!("it is larger than {mebibytes_max} MiB");
        return Err(io::Error::other(bound));
    }
    // The file may grow while it is read, and files of procfs have a length of 0.
    Ok(file.take(mebibytes_max << 20))
}
