//! Everything that a laboratory has made so far, and its removal: once, completely, from any thread, also
//! while it is still being made.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use keiro_linux::{netns::Netns, process::PidFd};

use super::{
    LabError,
    children::{Children, end_strays, lock},
    iproute,
    record::Record,
};
use crate::emulator::EmulatorHandle;

/// A laboratory's remains-to-be.
#[derive(Debug)]
pub(crate) struct Teardown {
    grace: Duration,
    children: Arc<Children>,
    made: Mutex<LabState>,
}

/// What must be removed.
#[derive(Debug)]
pub(crate) struct LabState {
    pub(crate) record: Record,
    /// `None` if no link is emulated, or not yet.
    pub(crate) emulator: Option<EmulatorHandle>,
    closed: bool,
}

impl Teardown {
    pub(crate) fn new(record: Record, grace: Duration) -> Self {
        Self {
            grace,
            children: Arc::default(),
            made: Mutex::new(LabState {
                record,
                emulator: None,
                closed: false,
            }),
        }
    }

    pub(crate) fn children(&self) -> Arc<Children> {
        Arc::clone(&self.children)
    }

    /// Performs one step of making, completely or, once the laboratory is closed, not at all: nothing can be
    /// made behind the back of a signal handler that removes everything.
    pub(crate) fn step<T>(
        &self,
        step: impl FnOnce(&mut LabState) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let mut made = lock(&self.made);
        if made.closed {
            return Err(LabError::Closed(made.record.name.clone()));
        }
        step(&mut made)
    }

    /// Removes everything; does nothing the second time.
    ///
    /// # Errors
    /// The first failure, after everything has been tried. The record is kept then.
    pub(crate) fn close(&self) -> Result<(), LabError> {
        self.children.end_all(self.grace);
        let mut made = lock(&self.made);
        if made.closed {
            return Ok(());
        }
        made.closed = true;
        // Before its interfaces disappear.
        drop(made.emulator.take());
        let mut result = Ok(());
        for namespace in made.record.remaining() {
            result = result.and(remove_namespace(&namespace, self.grace));
        }
        result.and_then(|()| made.record.remove())
    }
}

/// Removes a namespace and stops the processes inside it.
pub(crate) fn remove_namespace(namespace: &Netns, grace: Duration) -> Result<(), LabError> {
    let own = std::process::id().cast_signed();
    let strays: Vec<PidFd> = namespace
        .processes()
        .into_iter()
        .filter(|process| process.pid() != own)
        .collect();
    end_strays(&strays, grace);
    iproute::run(&["netns", "delete", namespace.name()]).map(drop)
}
