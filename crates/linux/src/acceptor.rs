//! A listener that pauses when it cannot accept.
//!
//! If, for example, the process is out of descriptors, the connection stays in the backlog and the listener
//! stays readable. A thread that tried again at once would spin.

use std::{
    io::{self, ErrorKind},
    os::fd::AsFd,
};

use crate::epoll::{Epoll, Interest};

/// A listener in an epoll set.
#[derive(Debug)]
pub struct Acceptor<L> {
    listener: L,
    token: u64,
    /// Name in log messages.
    name: String,
    /// Removed from the epoll set until [`rearm`](Self::rearm).
    rests: bool,
    /// The failure has been logged.
    is_logged: bool,
}

impl<L: AsFd> Acceptor<L> {
    /// Takes over a non-blocking listener; `name` is for log messages.
    ///
    /// # Errors
    /// It cannot be added to the epoll set.
    pub fn new(
        epoll: &Epoll,
        listener: L,
        token: u64,
        name: impl Into<String>,
    ) -> io::Result<Self> {
        epoll.add(&listener, token, Interest::Read)?;
        Ok(Self {
            listener,
            token,
            name: name.into(),
            rests: false,
            is_logged: false,
        })
    }

    /// What it listens with.
    pub fn listener(&self) -> &L {
        &self.listener
    }

    /// Accepts one connection with `accept`; `None` if none waits, or none can be accepted now.
    pub fn accept<S>(
        &mut self,
        epoll: &Epoll,
        accept: impl FnOnce(&L) -> io::Result<S>,
    ) -> Option<S> {
        let error = match accept(&self.listener) {
            Ok(client) => return Some(client),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::WouldBlock => self.is_logged = false,
            // The error concerns the connection that was to be accepted; the next one may be fine.
            ErrorKind::Interrupted
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::InvalidInput
            | ErrorKind::NotConnected => {}
            _ => {
                if !std::mem::replace(&mut self.is_logged, true) {
                    tracing::warn!(
                        %error,
                        "{}: cannot accept clients; is the limit of open files reached?",
                        self.name
                    );
                }
                self.rests = epoll.remove(&self.listener).is_ok();
            }
        }
        None
    }

    /// Adds the listener to the epoll set again after a pause.
    pub fn rearm(&mut self, epoll: &Epoll) {
        if self.rests {
            let added = epoll.add(&self.listener, self.token, Interest::Read);
            self.rests = added.is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        time::Duration,
    };

    use crate::epoll::ReadyList;

    use super::*;

    #[test]
    fn a_listener_that_cannot_accept_pauses_until_it_is_rearmed() {
        const EMFILE: i32 = 24;
        let epoll = Epoll::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut acceptor = Acceptor::new(&epoll, listener, 7, "test").unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let mut ready = ReadyList::new(1);
        let mut is_ready = |limit| {
            epoll.wait(&mut ready, Some(limit)).unwrap();
            !ready.is_empty()
        };
        let limit = Duration::from_secs(10);
        assert!(is_ready(limit));
        let full = |_: &TcpListener| Err::<(), _>(io::Error::from_raw_os_error(EMFILE));
        assert!(acceptor.accept(&epoll, full).is_none());
        assert!(!is_ready(Duration::ZERO));
        acceptor.rearm(&epoll);
        assert!(is_ready(limit));
        assert!(acceptor.accept(&epoll, TcpListener::accept).is_some());
        assert!(acceptor.accept(&epoll, TcpListener::accept).is_none());
        // No connection waits, so there is no reason for a pause.
        let _client = TcpStream::connect(address).unwrap();
        assert!(is_ready(limit));
    }
}
