//! The assignments that the kernel has, or is about to have.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::script::Script;
use crate::steering::{Assignment, slots::Slots};

#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) script: Script,
    pub(super) assigned: BTreeMap<IpNet, Assignment>,
    /// Those that nft has not confirmed, by version.
    sent: BTreeMap<IpNet, u64>,
}

impl Wanted {
    pub(super) fn new(script: Script) -> Self {
        Self {
            script,
            assigned: BTreeMap::new(),
            sent: BTreeMap::new(),
        }
    }

    /// Notes an assignment for the next script of changes.
    pub(super) fn note(&mut self, prefix: IpNet, assignment: Option<Assignment>) {
        let version = assignment.as_ref().map(|one| one.version);
        let before = self.set(prefix, assignment);
        self.script
            .change(before.as_ref(), self.assigned.get(&prefix));
        match version {
            Some(version) => _ = self.sent.insert(prefix, version),
            None => _ = self.sent.remove(&prefix),
        }
    }

    /// Takes an assignment that only a new table will contain. Returns the one before.
    pub(super) fn set(
        &mut self,
        prefix: IpNet,
        assignment: Option<Assignment>,
    ) -> Option<Assignment> {
        match assignment {
            Some(assignment) => self.assigned.insert(prefix, assignment),
            None => self.assigned.remove(&prefix),
        }
    }

    /// The script of all changes; `None`: nothing is to be confirmed. It is empty where an assignment
    /// has another version and is otherwise as before.
    pub(super) fn take_changes(&mut self) -> Option<String> {
        let script = self.script.take_changes();
        script.or_else(|| (!self.sent.is_empty()).then(String::new))
    }

    /// The script of the whole table.
    pub(super) fn table(&mut self, slots: &Slots) -> String {
        self.script.forget_changes();
        let all = self.assigned.iter();
        self.sent = all.map(|(prefix, one)| (*prefix, one.version)).collect();
        self.script.table(slots, &self.assigned)
    }

    /// Prefixes that nft has not confirmed.
    pub(super) fn sent(&self) -> BTreeSet<IpNet> {
        self.sent.keys().copied().collect()
    }

    /// Nft has carried out a script: the versions that the kernel has.
    pub(super) fn take_sent(&mut self) -> BTreeMap<IpNet, u64> {
        std::mem::take(&mut self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{forwarding::PeerIndex, kernel::steering::script::Changes, steering::Egress};

    #[test]
    fn an_assignment_that_changes_back_is_confirmed_without_a_change_of_rules() {
        let mut wanted = Wanted::new(Script {
            seed: 0,
            first_mark: 0x100,
            ports: BTreeSet::new(),
            own: BTreeSet::new(),
            changes: Changes::default(),
        });
        let prefix = "2001:db8:1::/48".parse().unwrap();
        let version = |version| Assignment {
            prefix,
            version,
            egress: Egress::Peer(PeerIndex(1)),
            groups: BTreeMap::new(),
            announced: BTreeSet::new(),
        };
        wanted.note(prefix, Some(version(1)));
        assert_ne!(wanted.take_changes().unwrap(), "");
        assert_eq!(wanted.take_sent(), BTreeMap::from([(prefix, 1)]));
        assert_eq!(wanted.take_changes(), None);
        // Withdrawn and announced again between two turns.
        wanted.note(prefix, Some(version(3)));
        assert_eq!(wanted.take_changes().as_deref(), Some(""));
        assert_eq!(wanted.take_sent(), BTreeMap::from([(prefix, 3)]));
        wanted.note(prefix, None);
        assert!(wanted.take_changes().unwrap().starts_with("delete"));
        assert_eq!(wanted.take_sent(), BTreeMap::new());
    }
}
