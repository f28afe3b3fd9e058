//! Keeps the memory of a process that holds keys from core files and from other processes of its user.

use std::io;

use nix::sys::{
    prctl,
    resource::{Resource, setrlimit},
};

/// No core file of this process is written, and no process without CAP_SYS_PTRACE reads its memory
/// (`PR_SET_DUMPABLE`, `RLIMIT_CORE`).
///
/// A change of the user or of capabilities may undo it (proc(5), `fs.suid_dumpable`): call it again after
/// one.
///
/// # Errors
/// None is known.
pub fn protect() -> io::Result<()> {
    // Core files that are piped to a program are not limited by it, and need the other.
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    Ok(prctl::set_dumpable(false)?)
}

/// Whether [`protect`] is in force.
///
/// # Errors
/// None is known.
pub fn is_protected() -> io::Result<bool> {
    Ok(!prctl::get_dumpable()?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::resource::getrlimit;

    use super::*;

    #[test]
    fn no_core_file_is_written() {
        protect().unwrap();
        assert!(is_protected().unwrap());
        assert_eq!(getrlimit(Resource::RLIMIT_CORE).unwrap(), (0, 0));
        let limits = fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max core"));
        let numbers: Vec<&str> = line.unwrap().split_whitespace().skip(4).take(2).collect();
        assert_eq!(numbers, ["0", "0"]);
    }
}
