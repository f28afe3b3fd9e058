//! Which client of a UDP listener is which flow: a bounded table that forgets idle clients.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use keiro_core::{FlowId, Instant};

/// A client of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    /// The listener, by its number in the data thread.
    pub(crate) listener: u64,
    pub(crate) remote: SocketAddr,
    /// The address that it wrote to: replies come from there.
    pub(crate) local: Option<IpAddr>,
}

/// The clients of all listeners of one application.
#[derive(Debug)]
pub(crate) struct FlowTable {
    by_client: HashMap<Client, Entry>,
    by_flow: HashMap<FlowId, Client>,
    next: u32,
    /// When a full table last looked for idle clients.
    searched: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    flow: FlowId,
    used: Instant,
}

/// Clients per application; datagrams of further ones are refused. Ours.
const FLOWS_MAX: usize = 4096;
/// A client that neither sends nor receives for this long is forgotten: RFC 4787 REQ-5.
pub(crate) const FLOW_IDLE_MAX: Duration = Duration::from_secs(300);

/// How often a full table looks for idle clients: it visits them all, and who fills the table sends
/// many datagrams. Ours.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// Whether a full table is to look for idle clients, and notes that it does.
pub(crate) fn is_due(searched: &mut Option<Instant>, now: Instant) -> bool {
    let due = searched.is_none_or(|last| now.saturating_duration_since(last) >= SEARCH_INTERVAL);
    if due {
        *searched = Some(now);
    }
    due
}

impl FlowTable {
    /// Without clients. `first` is the first flow number: a random one keeps flows of an earlier
    /// run, which the peer may still know, apart from those of this one.
    pub(crate) fn new(first: u32) -> Self {
        Self {
            by_client: HashMap::new(),
            by_flow: HashMap::new(),
            next: first,
            searched: None,
        }
    }

    /// The flow of a client that sends, a new one if need be; `None` if the table is full.
    pub(crate) fn flow_of(&mut self, now: Instant, client: Client) -> Option<FlowId> {
        if let Some(entry) = self.by_client.get_mut(&client) {
            entry.used = now;
            return Some(entry.flow);
        }
        if self.by_client.len() >= FLOWS_MAX && is_due(&mut self.searched, now) {
            self.forget_idle(now);
        }
        if self.by_client.len() >= FLOWS_MAX {
            return None;
        }
        // At most FLOWS_MAX of 2^32 numbers are taken.
        while self.by_flow.contains_key(&FlowId(self.next)) {
            self.next = self.next.wrapping_add(1);
        }
        let flow = FlowId(self.next);
        self.next = self.next.wrapping_add(1);
        self.by_client.insert(client, Entry { flow, used: now });
        self.by_flow.insert(flow, client);
        Some(flow)
    }

    /// The client of a flow that gets a reply; `None` if it was forgotten.
    pub(crate) fn client_of(&mut self, now: Instant, flow: FlowId) -> Option<Client> {
        let client = *self.by_flow.get(&flow)?;
        if let Some(entry) = self.by_client.get_mut(&client) {
            entry.used = now;
        }
        Some(client)
    }

    /// Forgets clients that have been idle for [`FLOW_IDLE_MAX`].
    pub(crate) fn forget_idle(&mut self, now: Instant) {
        self.retain(|_, entry| now.saturating_duration_since(entry.used) < FLOW_IDLE_MAX);
    }

    /// Forgets the clients of a listener.
    pub(crate) fn forget_listener(&mut self, listener: u64) {
        self.retain(|client, _| client.listener != listener);
    }

    fn retain(&mut self, mut keep: impl FnMut(&Client, &Entry) -> bool) {
        let by_flow = &mut self.by_flow;
        self.by_client.retain(|client, entry| {
            let kept = keep(client, entry);
            if !kept {
                by_flow.remove(&entry.flow);
            }
            kept
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(port: u16) -> Client {
        Client {
            listener: 1,
            remote: SocketAddr::from(([127, 0, 0, 1], port)),
            local: None,
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_client_keeps_its_flow_and_gets_its_replies() {
        let mut table = FlowTable::new(u32::MAX);
        let first = table.flow_of(at(0), client(1)).unwrap();
        let second = table.flow_of(at(0), client(2)).unwrap();
        assert_ne!(first, second);
        assert_eq!(table.flow_of(at(1), client(1)), Some(first));
        assert_eq!(table.client_of(at(1), second), Some(client(2)));
        assert_eq!(table.client_of(at(1), FlowId(77)), None);
    }

    #[test]
    fn idle_clients_are_forgotten_and_replies_keep_them() {
        let mut table = FlowTable::new(0);
        let replied = table.flow_of(at(0), client(1)).unwrap();
        let idle = table.flow_of(at(0), client(2)).unwrap();
        assert_eq!(table.client_of(at(200), replied), Some(client(1)));
        table.forget_idle(at(300));
        assert_eq!(table.client_of(at(300), replied), Some(client(1)));
        assert_eq!(table.client_of(at(300), idle), None);
    }

    #[test]
    fn a_full_table_refuses_new_clients_and_keeps_old_ones() {
        let mut table = FlowTable::new(0);
        let mut clients = (0..u16::MAX).map(client);
        for client in clients.by_ref().take(FLOWS_MAX) {
            assert!(table.flow_of(at(0), client).is_some());
        }
        let late = clients.next().unwrap();
        assert_eq!(table.flow_of(at(299), late), None);
        assert!(table.flow_of(at(299), client(0)).is_some());
        assert!(table.flow_of(at(301), late).is_some());
        assert!(table.flow_of(at(302), client(0)).is_some());
    }

    #[test]
    fn a_full_table_is_searched_once_a_second() {
        let mut table = FlowTable::new(0);
        for port in 0..FLOWS_MAX as u16 {
            assert!(table.flow_of(at(0), client(port)).is_some());
        }
        let just_before = at(300) - Duration::from_millis(1);
        assert_eq!(table.flow_of(just_before, client(9000)), None);
        // All are idle now, and it has just been looked.
        assert_eq!(table.flow_of(at(300), client(9000)), None);
        assert_eq!(table.by_client.len(), FLOWS_MAX);
        assert!(table.flow_of(at(301), client(9000)).is_some());
        assert_eq!(table.by_client.len(), 1);
    }

    #[test]
    fn a_removed_listener_takes_its_clients_along() {
        let mut table = FlowTable::new(0);
        let flow = table.flow_of(at(0), client(1)).unwrap();
        table.forget_listener(2);
        assert!(table.client_of(at(0), flow).is_some());
        table.forget_listener(1);
        assert_eq!(table.client_of(at(0), flow), None);
    }
}
