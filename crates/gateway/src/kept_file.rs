//! Small files of the state directory, which are replaced as a whole.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

/// The file's text; `None`: there is none yet.
///
/// # Errors
/// It cannot be read, is no text, no file, or has more than `bytes_max`.
pub(crate) fn read(file: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    // A FIFO in its place must not stop the start.
    let meta = match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        meta => meta?,
    };
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no file"));
    }
    let mut text = String::new();
    let read = File::open(file)?
        .take(bytes_max + 1)
        .read_to_string(&mut text)?;
    match read as u64 > bytes_max {
        true => Err(io::Error::from(io::ErrorKind::FileTooLarge)),
        false => Ok(Some(text)),
    }
}

/// Puts the text into the file's place, all or nothing, and on the disk before it returns.
///
/// # Errors
/// What the disk says. Then the file is as before.
pub(crate) fn write(file: &Path, text: &str) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let temporary = file.with_file_name(format!(".{name}.{}.new", std::process::id()));
    // Of a gateway that was killed. A link is not followed.
    let _ = fs::remove_file(&temporary);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options.open(&temporary).and_then(|mut new| {
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&temporary, file)?;
        File::open(directory)?.sync_all()
    });
    if written.is_err() {
        // What is left of it is of no use.
        let _ = fs::remove_file(&temporary);
    }
    written
}
