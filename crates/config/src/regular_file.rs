//! Opening regular files and nothing else, for all files that a user or another program may have put there.
//!
//! Reading a FIFO would wait for its writer, and a device may never end.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Opens a regular file for reading.
///
/// # Errors
/// It cannot be opened, or is something else ([`io::ErrorKind::InvalidInput`], see [`is_refused`]). Never
/// waits.
pub fn open(path: &Path) -> io::Result<File> {
    // A device may do something when it is opened.
    check(&fs::metadata(path)?)?;
    // The name may be another file's by now: a FIFO is opened without waiting.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file for appending, and makes it with this mode if there is none and a mode is given.
///
/// # Errors
/// As [`open`].
pub fn append(path: &Path, made_with: Option<u32>) -> io::Result<File> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && made_with.is_some() => {}
        found => check(&found?)?,
    }
    let mut options = OpenOptions::new();
    options
        .append(true)
        .create(made_with.is_some())
        .mode(made_with.unwrap_or_default())
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// The contents of a regular file of at most `bytes_max` bytes.
///
/// # Errors
/// Those of [`open`]; the file is longer ([`io::ErrorKind::FileTooLarge`]), or cannot be read.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let too_large = || {
        let text = format!("it is longer than {bytes_max} bytes");
        io::Error::new(io::ErrorKind::FileTooLarge, text)
    };
    if file.metadata()?.len() > bytes_max {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile, and files of procfs have a length of 0.
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(too_large()),
        false => Ok(bytes),
    }
}

/// Whether `error` says that the file is no regular one.
pub fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

fn check(metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = match metadata.is_dir() {
        true => "a directory, not a regular file",
        false => "not a regular file",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, process::Command, sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let directory = tempfile::tempdir().expect("a directory");
        let fifo = directory.path().join("fifo");
        let made = Command::new("mkfifo").arg(&fifo).status();
        assert!(made.expect("mkfifo runs").success());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).expect("a link");
        let socket = directory.path().join("socket");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        let (done, result) = mpsc::channel();
        let paths = [
            fifo,
            link,
            socket,
            directory.path().to_owned(),
            "/dev/zero".into(),
            "/dev/tty".into(),
        ];
        thread::spawn(move || {
            for path in paths {
                let refused = read(&path, 1000).expect_err("refused");
                assert!(is_refused(&refused), "{path:?}: {refused}");
                let what = match path.is_dir() {
                    true => "a directory, not a regular file",
                    false => "not a regular file",
                };
                assert_eq!(refused.to_string(), what);
                for mode in [None, Some(0o600)] {
                    let refused = append(&path, mode).expect_err("refused");
                    assert!(is_refused(&refused), "{path:?}: {refused}");
                }
            }
            done.send(()).expect("the test waits");
        });
        let limit = Duration::from_secs(60);
        result.recv_timeout(limit).expect("it does not wait");
    }

    #[test]
    fn files_up_to_the_bound_are_read_through_links_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        fs::write(&path, "four").expect("written");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert_eq!(read(&link, 4).expect("read"), b"four");
        let refused = read(&path, 3).expect_err("too long");
        assert_eq!(refused.to_string(), "it is longer than 3 bytes");
        let missing = read(&directory.path().join("none"), 3).expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        append(&path, None).expect("it is there");
        let new = directory.path().join("new");
        assert!(append(&new, None).is_err());
        append(&new, Some(0o600)).expect("made");
        // Its length is 0 until it is read.
        assert!(read(Path::new("/proc/self/status"), 3).is_err());
    }
}
