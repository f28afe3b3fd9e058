//! A listener that rests when it cannot accept.
//!
//! Where a process is out of descriptors, say, who waits at a listener stays there and it stays
//! ready: a thread that looked again at once would do nothing else.

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
    /// For the log.
    name: String,
    /// Out of the epoll set until [`rearm`](Self::rearm).
    rests: bool,
    /// Its failure has been logged.
    told: bool,
}

impl<L: AsFd> Acceptor<L> {
    /// Takes over a listener that is non-blocking already; `name` is for the log.
    ///
    /// # Errors
    /// It cannot be waited for.
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
            told: false,
        })
    }

    /// What it listens with.
    pub fn listener(&self) -> &L {
        &self.listener
    }

    /// Who waits, by way of `accept`; `None` if no connection waits, or none can be accepted now.
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
            ErrorKind::WouldBlock => self.told = false,
            // About the one that was to be accepted; the next one may be whole.
            ErrorKind::Interrupted
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::InvalidInput
            | ErrorKind::NotConnected => {}
            _ => {
                if !std::mem::replace(&mut self.told, true) {
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

    /// Tries again after a rest.
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
    fn a_listener_that_cannot_accept_rests_until_it_is_rearmed() {
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
