//! Wakes the control thread to stop, to reload, or because the history has news.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use keiro_linux::epoll::Waker;

/// Stops or reloads a served gateway from another thread.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Trigger>);

pub(crate) struct Trigger {
    pub(crate) wake: Waker,
    pub(crate) stop: AtomicBool,
    pub(crate) reload: AtomicBool,
}

impl Handle {
    /// Stops the gateway as SIGTERM does.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.wake.wake();
    }

    /// Reads the configuration again as SIGHUP does.
    pub fn reload(&self) {
        self.0.reload.store(true, Ordering::Release);
        self.0.wake.wake();
    }
}
