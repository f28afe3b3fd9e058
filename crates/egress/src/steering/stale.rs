//! Connections that do not count, because they may have begun under another assignment.

use std::collections::{HashSet, VecDeque};

/// A bounded set of cookies; the oldest are dropped, and their connections count.
#[derive(Debug, Default)]
pub(super) struct Stale {
    known: HashSet<u64>,
    /// In the order of insertion; some have been removed meanwhile.
    order: VecDeque<u64>,
}

impl Stale {
    pub(super) fn insert(&mut self, cookie: u64) {
        if !self.known.insert(cookie) {
            return;
        }
        self.order.push_back(cookie);
        if self.order.len() > COOKIES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(super) fn remove(&mut self, cookie: u64) -> bool {
        self.known.remove(&cookie)
    }
}

/// Ours: 8 MiB, and more than the connections of most servers.
const COOKIES_MAX: usize = 1 << 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_known_once_and_their_number_is_bounded() {
        let mut stale = Stale::default();
        let all = COOKIES_MAX as u64 + 10;
        (0..all).for_each(|cookie| stale.insert(cookie));
        assert!(!stale.remove(9), "dropped");
        assert!(stale.remove(10));
        assert!(!stale.remove(10));
        assert!(stale.order.len() <= COOKIES_MAX && stale.known.len() <= COOKIES_MAX);
    }
}
