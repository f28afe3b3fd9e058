//! A host of a laboratory, and running things in it.

use std::{ffi::OsStr, process::Command, sync::Arc};

use keiro_linux::netns::{Netns, NetnsError};

use super::{LabError, Process, children::Children};

/// A host: a network namespace in which programs and closures run.
///
/// Only the network is the host's own: files, processes and `/sys` are the machine's.
#[derive(Clone, Debug)]
pub struct Host {
    name: String,
    netns: Arc<Netns>,
    children: Arc<Children>,
}

impl Host {
    pub(crate) fn new(name: &str, netns: Netns, children: Arc<Children>) -> Self {
        Self {
            name: name.to_owned(),
            netns: Arc::new(netns),
            children,
        }
    }

    /// Its name in the topology.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace, for example for `ip -n`.
    pub fn namespace(&self) -> &str {
        self.netns.name()
    }

    /// A command that will run in the host. Give it to [`spawn`](Self::spawn), or run it yourself:
    /// whatever is still inside when the laboratory is removed is ended.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.netns.enter_on_exec(&mut command);
        command
    }

    /// Starts a command made by [`command`](Self::command) and sees to it that it is ended and
    /// reaped with the laboratory.
    ///
    /// # Errors
    /// [`LabError::Spawn`], mostly because the program does not exist.
    pub fn spawn(&self, mut command: Command) -> Result<Process, LabError> {
        let spawned = command.spawn().and_then(|child| self.children.adopt(child));
        spawned.map_err(|source| LabError::Spawn {
            host: self.name.clone(),
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })
    }

    /// Runs `f` in a thread inside the host and returns what it returns. Sockets that it opens
    /// stay the host's, wherever they are used afterwards.
    ///
    /// # Errors
    /// Where the thread cannot be started or may not enter the namespace.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        self.netns.run(f)
    }
}
