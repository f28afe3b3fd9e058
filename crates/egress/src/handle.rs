//! Wakes the event loop of a daemon, from other threads.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use keiro_linux::epoll::Waker;

/// Controls a daemon from another thread.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Trigger>);

pub(crate) struct Trigger {
    pub(crate) waker: Waker,
    pub(crate) stop: AtomicBool,
    pub(crate) reload: AtomicBool,
}

impl Handle {
    /// Makes the event loop run once.
    pub fn wake(&self) {
        self.0.waker.wake();
    }

    /// Reads the configuration again.
    pub fn reload(&self) {
        self.0.reload.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// Ends the sessions and then the daemon.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}
