//! Small disks for tests: a tmpfs in a mount namespace of the test's own, gone with its thread.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::statvfs::statvfs,
};

/// Runs with a disk of `bytes` bytes at the path given, seen by this thread alone. Needs root.
pub(crate) fn on_a_small_disk(bytes: u64, test: impl FnOnce(&Path) + Send) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let directory = tempfile::tempdir().unwrap();
            unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace, which needs root");
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            let size = format!("size={bytes}");
            let disk = directory.path();
            mount(
                Some("tmpfs"),
                disk,
                Some("tmpfs"),
                MsFlags::empty(),
                Some(size.as_str()),
            )
            .unwrap();
            test(disk);
            umount2(disk, MntFlags::MNT_DETACH).unwrap();
        });
    });
}

/// Takes the space that is left, but for `but` bytes.
pub(crate) fn fill(disk: &Path, but: u64) -> PathBuf {
    let filler = disk.join("filler");
    let mut bytes = vec![0; 64 << 20];
    let left = statvfs(disk).unwrap();
    let free = left.blocks_available() * left.fragment_size();
    bytes.truncate(free.saturating_sub(but) as usize);
    fs::write(&filler, bytes).unwrap();
    filler
}
