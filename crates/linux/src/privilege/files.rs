//! Files that a daemon needs after it has become another user: made, given to that user, and looked at.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown, lchown},
    },
    path::{Path, PathBuf},
};

use nix::unistd::{AccessFlags, eaccess};

use super::{Account, DEFAULT_USER, RunAs};

/// A file or directory that a daemon's user is to have. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot make it, or give it to user `{user}`: {source}", path.display())]
pub struct FileError {
    path: PathBuf,
    user: String,
    source: io::Error,
}

impl RunAs {
    /// Makes a directory that is missing, with this mode, and gives it to the user. One of root's that is called
    /// `keiro`, from a run as root, is given to the user with the files in it; any other one stays as it is.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn prepare_directory(&self, path: &Path, mode: u32) -> Result<(), FileError> {
        let Self::User(account) = self else {
            return Ok(());
        };
        account
            .prepare_directory(path, mode)
            .map_err(|source| account.file_error(path, source))
    }

    /// Makes a file that is missing, and gives it to the user. One that is there stays as it is.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn prepare_file(&self, path: &Path) -> Result<(), FileError> {
        let Self::User(account) = self else {
            return Ok(());
        };
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path);
        match made {
            Ok(file) => account.own(&file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|source| account.file_error(path, source))
    }

    /// Gives a file that this process has made to the user, not to its group.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn give(&self, path: &Path) -> Result<(), FileError> {
        let Self::User(account) = self else {
            return Ok(());
        };
        let group = match fs::symlink_metadata(path) {
            Ok(found) if found.gid() == 0 => Some(account.gid),
            _ => None,
        };
        lchown(path, Some(account.uid), group).map_err(|source| account.file_error(path, source))
    }

    /// Those of `files` that the process cannot read as the user that it is now.
    pub fn unreadable<'a>(files: impl IntoIterator<Item = &'a Path>) -> Vec<&'a Path> {
        let mut files: Vec<&Path> = files.into_iter().collect();
        files.retain(|file| eaccess(*file, AccessFlags::R_OK).is_err());
        files
    }
}

impl Account {
    fn prepare_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            // Its directories stay root's.
            fs::create_dir_all(parent)?;
        }
        match fs::DirBuilder::new().mode(mode).create(path) {
            Ok(()) => self.own(&open_directory(path)?),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.take_over(path),
            Err(error) => Err(error),
        }
    }

    /// Only from root: what is in a directory of another user could be a link to anything.
    fn take_over(&self, path: &Path) -> io::Result<()> {
        if path.file_name().is_none_or(|name| name != DEFAULT_USER) {
            return Ok(());
        }
        let directory = open_directory(path)?;
        let found = directory.metadata()?;
        if found.uid() != 0 || found.mode() & 0o022 != 0 {
            return Ok(());
        }
        self.own_contents(path, DEPTH_MAX)?;
        self.own(&directory)
    }

    fn own_contents(&self, path: &Path, depth: u32) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            let opened = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(&path);
            // Links, sockets and devices are none of it.
            let Ok(file) = opened else {
                continue;
            };
            let found = file.metadata()?;
            if found.uid() != 0 {
                continue;
            }
            if found.is_dir() && depth > 0 {
                self.own_contents(&path, depth - 1)?;
                self.own(&file)?;
            } else if found.is_file() && found.nlink() == 1 {
                self.own(&file)?;
            }
        }
        Ok(())
    }

    fn own(&self, file: &File) -> io::Result<()> {
        fchown(file.as_fd(), Some(self.uid), Some(self.gid))
    }

    fn file_error(&self, path: &Path, source: io::Error) -> FileError {
        FileError {
            path: path.to_owned(),
            user: self.name.clone(),
            source,
        }
    }
}

fn open_directory(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(path)
}

/// A state directory has one level of directories in it.
const DEPTH_MAX: u32 = 2;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use keiro_testing::has_root;

    use super::*;

    fn nobody() -> RunAs {
        RunAs::choose(Some("nobody")).unwrap()
    }

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    fn missing_directories_and_files_are_made_for_the_user() {
        if !has_root("missing_directories_and_files_are_made_for_the_user") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let nested = directory.path().join("var/state");
        nobody().prepare_directory(&nested, 0o700).unwrap();
        let found = fs::metadata(&nested).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (65_534, 0o700));
        assert_eq!(owner(&directory.path().join("var")), 0);
        let file = directory.path().join("recording");
        nobody().prepare_file(&file).unwrap();
        assert_eq!(owner(&file), 65_534);
        // What is there stays as it is.
        let present = directory.path().join("present");
        fs::write(&present, "text").unwrap();
        nobody().prepare_file(&present).unwrap();
        nobody().prepare_directory(directory.path(), 0o700).unwrap();
        assert_eq!((owner(&present), owner(directory.path())), (0, 0));
    }

    #[test]
    fn only_roots_own_files_of_a_directory_of_keiros_are_given_away() {
        if !has_root("only_roots_own_files_of_a_directory_of_keiros_are_given_away") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::write(&outside, "secret").unwrap();
        let linked = directory.path().join("linked");
        fs::write(&linked, "secret").unwrap();
        let keiro = directory.path().join("keiro");
        fs::create_dir_all(keiro.join("plan")).unwrap();
        fs::write(keiro.join("history.db"), "text").unwrap();
        fs::write(keiro.join("plan/a"), "text").unwrap();
        symlink(&outside, keiro.join("link")).unwrap();
        fs::hard_link(&linked, keiro.join("hard")).unwrap();
        // Another user may have put links there.
        fs::set_permissions(&keiro, fs::Permissions::from_mode(0o777)).unwrap();
        nobody().prepare_directory(&keiro, 0o700).unwrap();
        assert_eq!(owner(&keiro), 0);
        fs::set_permissions(&keiro, fs::Permissions::from_mode(0o755)).unwrap();
        nobody().prepare_directory(&keiro, 0o700).unwrap();
        for given in ["", "history.db", "plan", "plan/a"] {
            assert_eq!(owner(&keiro.join(given)), 65_534, "{given}");
        }
        for kept in [&outside, &linked, &keiro.join("link")] {
            assert_eq!(owner(kept), 0, "{}", kept.display());
        }
    }
}
