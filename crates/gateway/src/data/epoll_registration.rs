//! The epoll registration of a connection.
//!
//! Epoll reports a hang-up again and again, whatever the interest. A connection that both sides
//! have closed while its reader takes nothing is therefore removed from the set until it is read
//! again.

use std::{io, os::fd::AsFd};

use keiro_linux::epoll::{Epoll, Interest, Ready};

/// The interest of a connection that is to be read, written, both or neither.
pub(crate) fn interest(reads: bool, writes: bool) -> Interest {
    match (reads, writes) {
        (true, true) => Interest::ReadWrite,
        (true, false) => Interest::Read,
        (false, true) => Interest::Write,
        (false, false) => Interest::None,
    }
}

#[derive(Debug)]
pub(crate) struct EpollRegistration {
    /// Both directions of the socket are closed; it may still have something to read.
    hung_up: bool,
    /// `None`: it is not in the set.
    interest: Option<Interest>,
}

impl EpollRegistration {
    /// One that begins with `interest`.
    pub(crate) fn new(interest: Interest) -> Self {
        Self {
            hung_up: false,
            interest: Some(interest),
        }
    }

    /// Puts the socket into the set.
    pub(crate) fn begin(&self, epoll: &Epoll, socket: &impl AsFd, token: u64) -> io::Result<()> {
        epoll.add(socket, token, self.interest.unwrap_or(Interest::None))
    }

    /// Takes note of what was reported.
    pub(crate) fn note(&mut self, ready: Ready) {
        self.hung_up |= ready.hangup;
    }

    /// Both directions of the socket are closed.
    pub(crate) fn hang_up(&mut self) {
        self.hung_up = true;
    }

    /// Both directions of the socket are known to be closed.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.hung_up
    }

    /// Registers an interest. On an error the socket is not registered.
    pub(crate) fn update(
        &mut self,
        epoll: &Epoll,
        socket: &impl AsFd,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let wanted = match interest {
            Interest::None if self.hung_up => None,
            interest => Some(interest),
        };
        match (self.interest, wanted) {
            (before, after) if before == after => return Ok(()),
            (_, None) => epoll.remove(socket)?,
            (None, Some(interest)) => epoll.add(socket, token, interest)?,
            (Some(_), Some(interest)) => epoll.modify(socket, token, interest)?,
        }
        self.interest = wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
        time::Duration,
    };

    use keiro_linux::epoll::ReadyList;

    use super::*;

    /// What is ready, at once or within `limit`.
    fn ready(epoll: &Epoll, limit: Duration) -> Vec<Ready> {
        let mut list = ReadyList::new(4);
        epoll.wait(&mut list, Some(limit)).unwrap();
        list.iter().collect()
    }

    #[test]
    fn a_connection_closed_both_ways_with_bytes_left_is_silent_until_they_are_wanted() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let epoll = Epoll::new().unwrap();
        let mut watch = EpollRegistration::new(Interest::Read);
        watch.begin(&epoll, &socket, 7).unwrap();
        // Its reader takes nothing more for now.
        watch.update(&epoll, &socket, 7, Interest::None).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut other = listener.accept().unwrap().0;
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        other.write_all(b"left").unwrap();
        drop(other);
        let events = ready(&epoll, Duration::from_secs(60));
        assert!(events.len() == 1 && events[0].hangup, "{events:?}");
        watch.note(events[0]);
        watch.update(&epoll, &socket, 7, Interest::None).unwrap();
        // Once is enough: a thread that waits would never sleep again.
        assert_eq!(ready(&epoll, Duration::ZERO), []);
        watch.update(&epoll, &socket, 7, Interest::Read).unwrap();
        let events = ready(&epoll, Duration::ZERO);
        assert!(events.len() == 1 && events[0].readable, "{events:?}");
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"left");
    }
}
