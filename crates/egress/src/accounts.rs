//! Bytes carried by connections, and how long they had data to send.
//!
//! The bytes of a connection are those acknowledged at the MPTCP level: each counts once, whichever
//! subflow carried it and however often it was sent. Its time is the busy time of the subflow that
//! had data in flight for longest, so pauses of the application do not count. Where subflows take
//! turns, the connection was busy for longer than that, and multipath looks better than it is.
//!
//! The kernel keeps nothing of a connection that has ended, nor of a first subflow that the client
//! has closed. So connections are read while they exist, at ages that double, and once more when
//! they are closed. The last reading counts; bytes and time are always from the same reading. The
//! caller does the reading.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use keiro_linux::mptcp_pm::{Ends, Token};
use keiro_units::Instant;

use crate::comparison::Assignment;

/// The kernel's counters of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub bytes: u64,
    /// The busy time of each subflow that could be read.
    pub busy: Vec<Duration>,
}

/// A connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The group of the comparison.
    pub drawn: Assignment,
    pub bytes: u64,
    /// For how long it had data in flight.
    pub took: Duration,
}

/// The connections that are measured.
#[derive(Debug, Default)]
pub struct Accounts {
    open: BTreeMap<Token, Account>,
    due: BTreeSet<(Instant, Token)>,
    /// Connections to read once more before they are finished.
    closed: VecDeque<(Token, Account)>,
}

#[derive(Clone, Debug)]
struct Account {
    drawn: Assignment,
    begun: Instant,
    due: Instant,
    subflows: Vec<Ends>,
    bytes: u64,
    took: Duration,
}

impl Accounts {
    pub fn begin(&mut self, now: Instant, token: Token, first: Ends, drawn: Assignment) {
        // The token is reused: the end of the old connection was missed.
        self.close(token);
        let due = now + FIRST_READ;
        self.due.insert((due, token));
        let account = Account {
            drawn,
            begun: now,
            due,
            subflows: vec![first],
            bytes: 0,
            took: Duration::ZERO,
        };
        self.open.insert(token, account);
    }

    pub fn join(&mut self, token: Token, ends: Ends) {
        if let Some(account) = self.open.get_mut(&token)
            && account.subflows.len() < SUBFLOWS_MAX
            && !account.subflows.contains(&ends)
        {
            account.subflows.push(ends);
        }
    }

    /// Marks a connection as closed; it is read once more.
    pub fn close(&mut self, token: Token) {
        if let Some(account) = self.open.remove(&token) {
            self.due.remove(&(account.due, token));
            self.closed.push_back((token, account));
        }
    }

    /// Whether no connection is to be read, now or later.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty()
    }

    /// When [`poll_read`](Self::poll_read) returns a connection; `None`: there is none.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.closed.is_empty() {
            true => self.due.first().map(|(due, _)| *due),
            false => Some(Instant::ZERO),
        }
    }

    /// The next connection to read, with its subflows. Call [`on_read`](Self::on_read) before the
    /// next one.
    pub fn poll_read(&self, now: Instant) -> Option<(Token, &[Ends])> {
        if let Some((token, account)) = self.closed.front() {
            return Some((*token, &account.subflows));
        }
        let (_, token) = self.due.first().filter(|(due, _)| *due <= now)?;
        Some((*token, &self.open.get(token)?.subflows))
    }

    /// Takes the reading of the connection from [`poll_read`](Self::poll_read); `None`: it has
    /// ended. Returns a connection that is finished.
    pub fn on_read(&mut self, now: Instant, reading: Option<&Reading>) -> Option<Finished> {
        if let Some((_, mut account)) = self.closed.pop_front() {
            account.read(reading);
            return account.finished();
        }
        let (_, token) = self.due.pop_first()?;
        let account = self.open.get_mut(&token)?;
        account.read(reading);
        let age = now - account.begun;
        account.due = now + age.clamp(FIRST_READ, READ_AGAIN_MAX);
        self.due.insert((account.due, token));
        None
    }
}

impl Account {
    fn read(&mut self, reading: Option<&Reading>) {
        let longest = |reading: &Reading| reading.busy.iter().copied().max();
        let Some((reading, longest)) = reading.and_then(|of| Some((of, longest(of)?))) else {
            return;
        };
        // A closed subflow loses its busy time, so the earlier reading is better.
        if reading.bytes >= self.bytes && longest >= self.took {
            (self.bytes, self.took) = (reading.bytes, longest);
        }
    }

    fn finished(self) -> Option<Finished> {
        (self.bytes > 0).then_some(Finished {
            drawn: self.drawn,
            bytes: self.bytes,
            took: self.took,
        })
    }
}

/// The age at the first reading; the following ones are at twice the age each. So there is always a
/// reading of at least half the lifetime. Ours.
const FIRST_READ: Duration = Duration::from_millis(100);
/// The longest interval between readings. The one at the end is what counts. Ours.
const READ_AGAIN_MAX: Duration = Duration::from_secs(30);
/// Subflows per connection, as many as [`crate::multipath`] tracks. Ours.
const SUBFLOWS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token(7);

    fn ends(port: u16) -> Ends {
        Ends {
            local: "[fd00::1]:80".parse().unwrap(),
            remote: (std::net::Ipv6Addr::LOCALHOST, port).into(),
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn reading(bytes: u64, busy_ms: &[u64]) -> Reading {
        let busy = busy_ms.iter().copied().map(Duration::from_millis);
        Reading {
            bytes,
            busy: busy.collect(),
        }
    }

    fn begun() -> Accounts {
        let mut all = Accounts::default();
        all.begin(at(0), TOKEN, ends(1), Assignment::default());
        all
    }

    fn finished(bytes: u64, ms: u64) -> Option<Finished> {
        Some(Finished {
            drawn: Assignment::default(),
            bytes,
            took: Duration::from_millis(ms),
        })
    }

    #[test]
    fn a_connection_is_read_at_ages_that_double_and_when_it_is_closed() {
        let mut all = begun();
        all.join(TOKEN, ends(2));
        all.join(TOKEN, ends(2));
        let mut ages = Vec::new();
        while ages.len() < 12 {
            let due = all.poll_timeout().unwrap();
            assert_eq!(all.poll_read(due), Some((TOKEN, &[ends(1), ends(2)][..])));
            assert_eq!(all.on_read(due, None), None);
            assert_eq!(all.poll_read(due), None);
            ages.push(due.as_nanos() / 1_000_000);
        }
        assert_eq!(ages[..5], [100, 200, 400, 800, 1600]);
        assert_eq!(ages[11] - ages[10], 30_000);
        all.close(TOKEN);
        assert_eq!(all.poll_timeout(), Some(Instant::ZERO));
        assert!(all.poll_read(at(0)).is_some());
        let last = reading(1000, &[20, 30]);
        assert_eq!(all.on_read(at(0), Some(&last)), finished(1000, 30));
        assert!(all.is_empty() && all.poll_timeout().is_none());
    }

    #[test]
    fn last_reading_counts_when_the_final_one_fails() {
        let mut all = begun();
        all.poll_read(at(100)).unwrap();
        all.on_read(at(100), Some(&reading(500, &[40])));
        all.close(TOKEN);
        assert_eq!(all.on_read(at(150), None), finished(500, 40));
        // The connection exists, but its subflow has lost its counters.
        let mut all = begun();
        all.on_read(at(100), Some(&reading(500, &[40])));
        all.close(TOKEN);
        let empty = reading(900, &[0]);
        assert_eq!(all.on_read(at(150), Some(&empty)), finished(500, 40));
        let mut all = begun();
        all.close(TOKEN);
        assert_eq!(all.on_read(at(1), None), None, "never read");
    }

    #[test]
    fn reused_token_ends_the_former_connection() {
        let mut all = begun();
        all.on_read(at(100), Some(&reading(500, &[40])));
        all.begin(at(200), TOKEN, ends(3), Assignment::default());
        assert_eq!(all.poll_read(at(200)), Some((TOKEN, &[ends(1)][..])));
        assert_eq!(all.on_read(at(200), None), finished(500, 40));
        assert_eq!(all.poll_read(at(200)), None);
        assert_eq!(all.poll_read(at(300)), Some((TOKEN, &[ends(3)][..])));
    }

    #[test]
    fn connections_without_a_peer_are_not_tracked() {
        let mut all = Accounts::default();
        all.join(TOKEN, ends(1));
        all.close(TOKEN);
        assert_eq!((all.poll_read(at(1)), all.poll_timeout()), (None, None));
        assert_eq!(all.on_read(at(1), None), None);
    }
}
