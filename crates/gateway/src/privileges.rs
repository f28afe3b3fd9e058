//! What becomes of the privileges of the process and its threads.

use std::{io, path::Path};

use keiro_control::config::{Config, Membership, Store};
use keiro_linux::privilege::{self, Capability, RunAs};

use crate::socket_files::SocketFiles;

/// What becomes of the privileges that the process started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privileges {
    /// They stay as they are.
    Kept,
    /// Each thread keeps only what it uses.
    Reduced,
}

impl Privileges {
    /// Gives up all privileges of the calling thread if they are to be reduced.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn drop_in_thread(self) -> io::Result<()> {
        match self {
            Self::Kept => Ok(()),
            Self::Reduced => privilege::reduce_thread(&[]).map(drop),
        }
    }

    /// Calls `start`, which starts a thread, so that the thread has no privileges if they are to be reduced. A
    /// thread has those of the one that starts it.
    pub(crate) fn start_without<T: Send>(
        self,
        name: &str,
        start: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let starter = || {
            if let Err(error) = self.drop_in_thread() {
                tracing::warn!(%error, "the {name} thread keeps its privileges");
            }
            start()
        };
        std::thread::scope(|scope| {
            let starter = std::thread::Builder::new().spawn_scoped(scope, starter)?;
            starter
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
        })
    }
}

/// Gives directories that the gateway writes to after its start to the user that it will run as.
pub(crate) fn prepare_directories(config: &Config, run_as: &RunAs) {
    let gateway = &config.gateway;
    let sockets = [
        Some(&gateway.control_socket),
        Some(&gateway.readonly_socket),
        gateway.message_socket.as_ref(),
    ];
    let sockets = sockets
        .into_iter()
        .flatten()
        .filter_map(|path| path.parent());
    let directories = sockets
        .map(|path| (path, 0o755))
        .chain([(&*gateway.state_directory, 0o700)]);
    for (path, mode) in directories {
        // What is missing then is reported by its use.
        if let Err(error) = run_as.prepare_directory(path, mode) {
            tracing::warn!("{error}");
        }
    }
}

/// Becomes the user, and leaves the control thread what a reload may need: devices, routes, large receive buffers
/// and low ports. Threads that are started later keep less.
pub(crate) fn give_up(
    config_path: &Path,
    config: &Config,
    run_as: &RunAs,
    sockets: &SocketFiles,
) -> anyhow::Result<()> {
    for path in sockets.paths() {
        run_as.give(path)?;
    }
    let keep = [Capability::NetAdmin, Capability::NetBindService];
    let left = run_as.give_up(&keep)?;
    let RunAs::User(account) = run_as else {
        tracing::debug!(?left, "privileges reduced");
        return Ok(());
    };
    let user = account.name();
    tracing::info!("running as user {user}");
    for file in RunAs::unreadable(files_of_reload(config_path, config)) {
        tracing::warn!(
            "user {user} cannot read {}, so that a reload will fail; `chown {user}` it, or write --user root",
            file.display()
        );
    }
    Ok(())
}

/// Files that a gateway reads after its start.
fn files_of_reload<'a>(config_path: &'a Path, config: &'a Config) -> Vec<&'a Path> {
    let mut files = vec![config_path];
    if let Some(Membership::Hub(hub)) = &config.network {
        files.push(&*hub.registry);
    }
    let peers = config.peers.iter();
    files.extend(peers.filter_map(|peer| peer.preshared_key_file.as_deref()));
    if let Some(tls) = &config.message_tls {
        files.extend([&*tls.cert, &*tls.key]);
    }
    let clients = config.message_clients.iter();
    files.extend(clients.map(|client| &*client.token_file));
    if let Store::Etcd(etcd) = &config.store {
        files.extend(etcd.ca.as_deref());
        files.extend(etcd.client.iter().flat_map(|(a, b)| [&**a, &**b]));
        files.extend(etcd.user.as_ref().map(|(_, password)| &**password));
    }
    files
}
