//! Files that daemons read: they are written whole, for the users who may read them.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use crate::failure::Failure;

pub(super) fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot write {}", path.display())).because(error);
    match error.kind() {
        io::ErrorKind::PermissionDenied => failure.hint("as root, or another place with --output"),
        _ => failure.hint("another place with --output"),
    }
}

/// Writes a key into a new file that only its owner reads. A failure leaves no file, except one that was there before.
pub(super) fn write_secret(file: &Path, key: &str) -> io::Result<()> {
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    let mut write = || {
        out.write_all(key.as_bytes())?;
        out.write_all(b"\n")?;
        out.sync_all()
    };
    write().inspect_err(|_| {
        // The failure of writing is what is reported.
        let _ = fs::remove_file(file);
    })
}

/// Makes a directory that all users may read, whatever the umask. Those that were made, the outermost first.
pub(super) fn make_directory(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let is_missing = |at: &&Path| !at.as_os_str().is_empty() && !at.exists();
    let mut missing: Vec<PathBuf> = directory
        .ancestors()
        .take_while(is_missing)
        .map(Path::to_owned)
        .collect();
    missing.reverse();
    for (made, at) in missing.iter().enumerate() {
        let make = || {
            fs::create_dir(at)?;
            fs::set_permissions(at, Permissions::from_mode(0o755))
        };
        make().inspect_err(|_| {
            for made in missing[..made].iter().rev() {
                let _ = fs::remove_dir(made);
            }
        })?;
    }
    Ok(missing)
}

/// The service's unit runs the daemon as a user of its own, who must be able to read the key.
///
/// Fails silently for anybody but root, who then run the daemon as themselves.
pub(super) fn give_to_the_daemon(key: &Path) {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some((user, group)) = user_ids(&users, DAEMON_USER)
        && chown(key, Some(user), Some(group)).is_ok()
    {
        crate::output::message!(
            "{} belongs to user {DAEMON_USER}, as the daemon does",
            key.display()
        );
    }
}

/// As packaging/sysusers.d/keiro.conf makes it.
const DAEMON_USER: &str = "keiro";

/// User and group of a line of passwd(5).
fn user_ids(users: &str, name: &str) -> Option<(u32, u32)> {
    let mut lines = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields[0] == name)?;
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}

/// Writes the file whole or not at all. All users may read it, whatever the umask.
pub(super) fn write_whole(file: &Path, text: &[u8], replace: bool) -> io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside = file.with_file_name(name);
    let write = || {
        let mut out = File::create_new(&beside)?;
        out.set_permissions(Permissions::from_mode(0o644))?;
        out.write_all(text)?;
        out.sync_all()?;
        match replace {
            true => fs::rename(&beside, file),
            // Unlike a rename this fails if the file has been made meanwhile.
            false => fs::hard_link(&beside, file),
        }
    };
    let result = write();
    // After a rename it is gone already.
    let _ = fs::remove_file(&beside);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_has_the_mode_that_the_daemon_needs() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let inner = directory.path().join("a/b");
        let made = make_directory(&inner).unwrap();
        assert_eq!(made, [directory.path().join("a"), inner.clone()]);
        assert_eq!(mode(&inner), 0o755);
        assert!(make_directory(&inner).unwrap().is_empty());
        let file = inner.join("gateway.toml");
        write_whole(&file, b"text", false).unwrap();
        assert_eq!(mode(&file), 0o644);
        let secret = inner.join("hub.psk");
        write_secret(&secret, "key").unwrap();
        assert_eq!(mode(&secret), 0o600);
        // What was there before stays.
        assert!(write_secret(&secret, "other").is_err());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "key\n");
    }

    #[test]
    fn a_secret_that_cannot_be_written_leaves_no_file() {
        assert!(write_secret(Path::new("/proc/self/keiro.psk"), "key").is_err());
        let directory = tempfile::tempdir().unwrap();
        let blocked = directory.path().join("file");
        fs::write(&blocked, "").unwrap();
        assert!(make_directory(&blocked.join("a")).is_err());
        assert!(write_secret(&blocked.join("a"), "key").is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_daemons_user_is_found_by_its_whole_name() {
        let users = "root:x:0:0::/:/bin/sh\nkeiro2:x:5:6::/:/bin/false\nkeiro:x:998:997::/:\n";
        assert_eq!(user_ids(users, "keiro"), Some((998, 997)));
        assert_eq!(user_ids(users, "keir"), None);
        assert_eq!(user_ids("keiro:x:broken", "keiro"), None);
        assert_eq!(user_ids("", "keiro"), None);
    }
}
