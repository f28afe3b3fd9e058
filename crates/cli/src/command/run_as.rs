//! The user that a daemon runs as.

use keiro_linux::privilege::{DEFAULT_USER, PrivilegeError, RunAs};

use crate::{args, failure::Failure};

/// Chooses the user; with a warning if the daemon would stay root without having been asked to.
pub(super) fn choose(args: &args::User) -> Result<(RunAs, Option<String>), Failure> {
    let run_as = RunAs::choose(args.name.as_deref())
        .map_err(|error| Failure::new("cannot choose the user to run as").because(error))?;
    let stays = run_as.stays_root() && args.name.is_none();
    let warning = stays.then(|| {
        format!(
            "running as root: there is no user `{DEFAULT_USER}`; `useradd --system --shell /usr/sbin/nologin \
             {DEFAULT_USER}` makes it, or name another one by --user"
        )
    });
    Ok((run_as, warning))
}

/// A failure of giving up privileges.
pub(super) fn refused(error: PrivilegeError) -> Failure {
    Failure::new("cannot give up privileges")
        .because(error)
        .hint("--user root keeps the user")
}
