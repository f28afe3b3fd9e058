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

    /// A command that will run in the host. Pass it to [`spawn`](Self::spawn), or run it yourself: processes
    /// that are still inside when the laboratory is removed are stopped.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.netns.enter_on_exec(&mut command);
        command
    }

    /// Starts a command made by [`command`](Self::command). It is stopped and reaped with the laboratory.
    ///
    /// # Errors
    /// [`LabError::Spawn`], usually because the program does not exist.
    pub fn spawn(&self, mut command: Command) -> Result<Process, LabError> {
        let spawned = command.spawn().and_then(|child| self.children.adopt(child));
        spawned.map_err(|source| LabError::Spawn {
            host: self.name.clone(),
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })
    }

    /// Runs `f` in a thread inside the host and returns its result. Sockets that it opens belong to the host,
    /// wherever they are used afterwards.
    ///
    /// # Errors
    /// The thread cannot be started or cannot enter the namespace.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        self.netns.run(f)
    }
}
