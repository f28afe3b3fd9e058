//! What a command line must have beyond what its definition in [`args`](crate::args) can demand,
//! told in sentences before anything is done.

use crate::{args, failure::Failure};

/// Whether `keiro measure` is told with which keys, and who may.
///
/// # Errors
/// There are no keys and `--open` is not given.
pub(crate) fn measure(args: &args::Measure) -> Result<(), Failure> {
    let net = &args.net;
    if args.command.is_some() || net.open {
        return Ok(());
    }
    let (key, peer, allow) = (net.key.is_some(), net.peer.is_some(), !net.allow.is_empty());
    match net.target.is_some() {
        true if key && peer => Ok(()),
        true => Err(keys_missing()),
        false if !key => Err(server_key_missing()),
        false if !allow => Err(nobody_allowed()),
        false => Ok(()),
    }
}

/// Who measures has to have a key and know the server's.
pub(crate) fn keys_missing() -> Failure {
    Failure::usage(
        "both hosts prove who they are: --key and --peer are needed",
        "keiro measure HOST:PORT --key /etc/keiro/private.key --peer PUBKEY, or --open if the \
         server is open too",
    )
}

/// Who serves measurements has to have a key.
pub(crate) fn server_key_missing() -> Failure {
    Failure::usage(
        "a server needs to know who it is and who may use it",
        "keiro measure --serve --key /etc/keiro/private.key --allow PUBKEY, or --open in a \
         laboratory",
    )
}

/// A server is for somebody.
pub(crate) fn nobody_allowed() -> Failure {
    Failure::usage(
        "nobody may use this server",
        "--allow PUBKEY for every host that measures; `keiro pubkey < private.key` prints it",
    )
}
