//! `--csv FILE`, `--figure FILE`: where what was found is put.
//!
//! Whether that can be is found out before the work, and touches nothing. A file is replaced as a
//! whole, by one that was written beside it: what is there stays until there is something to take
//! its place. Devices, pipes, and descriptors that the command was started with are written as they
//! are.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, fchown},
    path::{Path, PathBuf},
};

use crate::failure::Failure;

/// Where an answer goes, which was found to be writable.
pub(super) struct Destination<'a> {
    /// As given.
    path: &'a Path,
    place: OutputTarget,
}

/// What is put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// `--csv`.
    Transfers,
    /// `--figure`.
    Picture,
}

enum OutputTarget {
    /// A file, there or not; no link.
    File(PathBuf),
    /// What keeps nothing that could be replaced, or is written by others as well.
    Open(File),
}

impl<'a> Destination<'a> {
    /// Refuses at once what could not be written after a minute's work. A pipe waits for its reader
    /// here.
    ///
    /// # Errors
    /// What is in the way.
    pub(super) fn prepare(content: Content, path: &'a Path) -> Result<Self, Failure> {
        if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(is_directory(content, path));
        }
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
            return Err(Failure::new(format!(
                "cannot write {}: there is no directory {}",
                path.display(),
                parent.display()
            ))
            .hint("make the directory first, or name another one"));
        }
        let place = OutputTarget::of(path).map_err(|error| unwritable(path, &error, ""))?;
        Ok(Self { path, place })
    }

    /// Writes `text` there. `kept` is what remains available where there is no room.
    ///
    /// # Errors
    /// There is no room, or it cannot be written any more; a file is as it was then.
    pub(super) fn write(self, text: &[u8], kept: &str) -> Result<(), Failure> {
        let written = match self.place {
            OutputTarget::Open(file) => fill(&file, text),
            OutputTarget::File(path) => match replace(&path, text) {
                Err(error) if stays(&error) && path.exists() => {
                    File::create(&path).and_then(|file| fill(&file, text))
                }
                replaced => replaced,
            },
        };
        written.map_err(|error| unwritable(self.path, &error, kept))
    }
}

impl OutputTarget {
    fn of(path: &Path) -> io::Result<Self> {
        let end = end_of_links(path)?;
        let found = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        match (end, found) {
            (Some(end), None) => can_be_replaced(&end).map(|()| Self::File(end)),
            (Some(end), Some(found)) if found.is_file() && !is_output(&found) => {
                // Neither makes nor empties it.
                OpenOptions::new().write(true).open(&end)?;
                match can_be_replaced(&end) {
                    Err(error) if !stays(&error) => Err(error),
                    _ => Ok(Self::File(end)),
                }
            }
            (_, found) => {
                let is_file = found.is_some_and(|found| found.is_file());
                let mut options = OpenOptions::new();
                let file = options.write(true).append(is_file).open(path)?;
                Ok(Self::Open(file))
            }
        }
    }
}

/// The file at the end of all links, which may not be there. `None`: one of them is procfs's, behind
/// which another program has open.
fn end_of_links(path: &Path) -> io::Result<Option<PathBuf>> {
    let procfs = fs::metadata("/proc").map(|found| found.dev()).ok();
    let mut end = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::symlink_metadata(&end) {
            Ok(link) if link.is_symlink() && Some(link.dev()) == procfs => return Ok(None),
            Ok(link) if link.is_symlink() => {
                let target = fs::read_link(&end)?;
                end = end.parent().unwrap_or(Path::new("")).join(target);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(Some(end)),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// As the kernel has it, path_resolution(7).
const LINKS_MAX: usize = 40;

/// Whether it is what standard output or standard error goes to.
fn is_output(found: &Metadata) -> bool {
    let which = |found: &Metadata| (found.dev(), found.ino());
    ["/proc/self/fd/1", "/proc/self/fd/2"]
        .iter()
        .any(|output| fs::metadata(output).is_ok_and(|output| which(&output) == which(found)))
}

/// Whether there is leave to put a file beside this one.
fn can_be_replaced(path: &Path) -> io::Result<()> {
    let (beside, _) = new_beside(path)?;
    fs::remove_file(beside)
}

/// Whether the file that is there may be written all the same, though no other one may take its
/// place: the directory belongs to another user, or the file is mounted there.
fn stays(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(
        error.kind(),
        PermissionDenied | ReadOnlyFilesystem | ResourceBusy
    )
}

/// Puts `text` in the file's place, all or nothing.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let (beside, file) = new_beside(path)?;
    let replaced = fill(&file, text).and_then(|()| {
        if let Ok(old) = fs::metadata(path) {
            // As far as we may: what it says counts for more than whose it is.
            let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
            let _ = file.set_permissions(old.permissions());
        }
        fs::rename(&beside, path)
    });
    if replaced.is_err() {
        // Frees what a full disk needs most; where even that fails there is nothing to be done.
        let _ = fs::remove_file(&beside);
    }
    replaced
}

/// A new file in the same directory.
fn new_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut number = 0;
    loop {
        // Not by the file's own name, which may be as long as names can be.
        let name = format!(".keiro.{}.{number}.new", std::process::id());
        let beside = path.with_file_name(name);
        match File::create_new(&beside) {
            // Another container's process of the same number, or what is left of one.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < NAMES_MAX => {
                number += 1;
            }
            made => return Ok((beside, made?)),
        }
    }
}

/// Names that are tried. Ours.
const NAMES_MAX: u32 = 100;

fn fill(mut file: &File, text: &[u8]) -> io::Result<()> {
    file.write_all(text)?;
    // A full disk may be noticed no earlier than here.
    match file.sync_all() {
        // Pipes and terminals cannot be synced and need not be.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

fn is_directory(content: Content, path: &Path) -> Failure {
    let (option, example) = match content {
        Content::Transfers => ("--csv", "transfer-time.csv"),
        Content::Picture => ("--figure", "transfer-time.svg"),
    };
    let example = path.join(example);
    Failure::new(format!(
        "{option} {}: a directory, not a file",
        path.display()
    ))
    .hint(format!("{option} {}", example.display()))
}

/// A file that cannot be written, and what to try. `kept` is printed where there is no room.
fn unwritable(path: &Path, error: &io::Error, kept: &str) -> Failure {
    let failure = Failure::new(format!("cannot write {}", path.display())).because(error);
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            failure.hint(format!("a place with room{kept}"))
        }
        _ => failure.hint("name a file in a directory that is there and that you may write to"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn written(path: &Path, text: &str) {
        Destination::prepare(Content::Transfers, path)
            .and_then(|there| there.write(text.as_bytes(), ""))
            .expect("written");
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_keeps_its_links_and_its_mode() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| directory.path().join(name);
        fs::write(at("old.csv"), "as it was, and longer").expect("written");
        fs::set_permissions(at("old.csv"), fs::Permissions::from_mode(0o640)).expect("set");
        symlink("old.csv", at("link.csv")).expect("a link");

        let there = Destination::prepare(Content::Transfers, &at("link.csv")).map(drop);
        assert!(there.is_ok());
        let as_it_was = || fs::read_to_string(at("old.csv")).expect("read");
        assert_eq!(as_it_was(), "as it was, and longer");
        // Who has it open reads on what it was.
        let mut open = File::open(at("old.csv")).expect("open");
        written(&at("link.csv"), "new");
        assert_eq!(as_it_was(), "new");
        let mut read = String::new();
        io::Read::read_to_string(&mut open, &mut read).expect("read");
        assert_eq!(read, "as it was, and longer");
        let mode = fs::metadata(at("old.csv")).expect("there").mode();
        assert_eq!(mode & 0o777, 0o640);

        symlink("nowhere.csv", at("dangling.csv")).expect("a link");
        written(&at("dangling.csv"), "new");
        let all = ["dangling.csv", "link.csv", "nowhere.csv", "old.csv"];
        assert_eq!(names(directory.path()), all);
    }

    #[test]
    fn what_others_have_open_is_written_behind_what_they_wrote() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("x.csv");
        fs::write(&path, "before,").expect("written");
        let open = File::options().append(true).open(&path).expect("open");
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&open);
        written(Path::new(&format!("/proc/self/fd/{descriptor}")), "new,");
        (&open).write_all(b"after").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "before,new,after");
    }

    #[test]
    fn what_cannot_be_written_is_refused_before_the_work_and_left_alone() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| directory.path().join(name);
        symlink("round.csv", at("round.csv")).expect("a link");
        for (path, says) in [
            (at("nowhere/x.csv"), "there is no directory"),
            (at("."), "a directory, not a file"),
            (at("round.csv"), "symbolic links"),
            (at(&"x".repeat(256)), "name too long"),
        ] {
            let refused = Destination::prepare(Content::Transfers, &path).map(drop);
            let said = refused.expect_err("refused").message("keiro").to_string();
            assert!(said.contains(says) && said.contains("try: "), "{said}");
        }
        assert_eq!(names(directory.path()), ["round.csv"]);
        // As long as names can be.
        written(&at(&"x".repeat(255)), "new");
    }
}
