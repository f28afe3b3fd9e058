//! Tenants that may send on one path, in the order of their start tags.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::id::TenantId;

/// The one with the lowest start tag is first. Taking it, or giving it another tag, costs the logarithm of their number;
/// taking another one visits all.
#[derive(Debug, Default)]
pub(super) struct StartTags(BinaryHeap<Reverse<(u64, TenantId)>>);

impl StartTags {
    /// The tenant whose turn it is, and its start tag.
    pub(super) fn first(&self) -> Option<(u64, TenantId)> {
        self.0.peek().map(|Reverse(first)| *first)
    }

    pub(super) fn insert(&mut self, start_tag: u64, tenant: TenantId) {
        self.0.push(Reverse((start_tag, tenant)));
    }

    pub(super) fn remove(&mut self, start_tag: u64, tenant: TenantId) {
        let old = Reverse((start_tag, tenant));
        match self.0.peek() == Some(&old) {
            true => drop(self.0.pop()),
            false => self.0.retain(|other| *other != old),
        }
    }

    /// A tenant gets another start tag.
    pub(super) fn change(&mut self, tenant: TenantId, from: u64, to: u64) {
        if let Some(mut first) = self.0.peek_mut()
            && *first == Reverse((from, tenant))
        {
            *first = Reverse((to, tenant));
            return;
        }
        self.remove(from, tenant);
        self.insert(to, tenant);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, TenantId)> {
        self.0.iter().map(|Reverse(tag)| *tag)
    }
}
