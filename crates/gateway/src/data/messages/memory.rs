//! The memory of long messages that local senders have begun. It is bounded over all clients and for each
//! application, so that neither many clients nor one application's take all of it.
//!
//! At the bound a sender is read no further, except the one of each application whose message began first:
//! so there is always one that can finish. One that sends nothing more is closed if others wait for it.

use std::{cmp::Reverse, time::Duration};

use keiro_core::AppId;

use super::{MessageServer, client::MemoryRequest};
use crate::data::context::Context;

/// Bytes of one application's long messages that are not handed over. Ours: four of the longest.
pub(super) const APP_BYTES_MAX: usize = 64 << 20;
/// Bytes of all applications' together.
pub(super) const BYTES_MAX: usize = 256 << 20;
/// Time after which a sender that has begun a long message and sends nothing of it is closed while others wait
/// for memory. Ours: longer than a program pauses.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(10);

impl MessageServer {
    /// Whether a client may be read now; if not, it waits for memory.
    pub(super) fn may_read_on(&mut self, number: u64) -> bool {
        let Some(client) = self.clients.get(&number) else {
            return false;
        };
        let waits = match client.memory_request() {
            Some(request) => client.waits_for_memory() || !self.has_memory(number, request),
            None => false,
        };
        if waits
            && let Some(client) = self.clients.get_mut(&number)
            && !client.waits_for_memory()
        {
            client.set_waits_for_memory(true);
            self.memory_waiters.push_back(number);
        }
        !waits
    }

    /// Lets those read on that wait for memory, as far as there is some.
    pub(super) fn give_memory(&mut self, context: &mut Context<'_>) {
        for _ in 0..self.memory_waiters.len() {
            let Some(number) = self.memory_waiters.pop_front() else {
                return;
            };
            let request = self.clients.get(&number).map(|one| one.memory_request());
            match request {
                // It has closed.
                None => {}
                Some(Some(request)) if !self.has_memory(number, request) => {
                    self.memory_waiters.push_back(number);
                }
                Some(_) => {
                    if let Some(client) = self.clients.get_mut(&number) {
                        client.set_waits_for_memory(false);
                    }
                    self.wait_for(context, number);
                }
            }
        }
    }

    /// Closes senders that hold memory for which others wait, and send nothing more.
    pub(super) fn close_idle_senders(&mut self, context: &mut Context<'_>) {
        if self.memory_waiters.is_empty() {
            return;
        }
        let idle: Vec<u64> = self
            .clients
            .iter()
            .filter(|(_, client)| client.body_idle_for(context.now) >= IDLE_MAX)
            .map(|(number, _)| *number)
            .collect();
        for number in idle {
            if let Some((app, bytes)) = self.clients.get(&number).and_then(|c| c.held_memory()) {
                tracing::warn!(
                    app = context.routes.name(app),
                    bytes,
                    "closing a sender that began a message and has sent nothing of it for {IDLE_MAX:?}: \
                     other senders wait for its memory"
                );
            }
            self.close(context, number);
        }
    }

    /// Bytes of all applications' long messages that are not handed over, and of one application's.
    pub(super) fn held_memory(&self, app: AppId) -> (usize, usize) {
        let held = self.clients.values().filter_map(|one| one.held_memory());
        held.fold((0, 0), |(all, own), (of, bytes)| {
            (all + bytes, own + if of == app { bytes } else { 0 })
        })
    }

    fn has_memory(&self, number: u64, request: MemoryRequest) -> bool {
        let (all, own) = self.held_memory(request.app);
        let is_within = own + request.bytes <= APP_BYTES_MAX && all + request.bytes <= BYTES_MAX;
        is_within || self.first_of(request.app) == Some(number)
    }

    /// The client of an application whose long message began first and is not whole.
    fn first_of(&self, app: AppId) -> Option<u64> {
        let begun = self.clients.iter().filter_map(|(number, client)| {
            let (of, begun) = client.long_body()?;
            (of == app).then_some((*number, begun))
        });
        let first = begun.max_by_key(|(number, begun)| (Reverse(*begun), Reverse(*number)));
        first.map(|(number, _)| number)
    }
}
