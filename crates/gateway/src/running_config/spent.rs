//! Uplinks whose budget of the month is used up.

use std::collections::BTreeSet;

use keiro_control::config::{Local, Path};
use keiro_core::SocketId;

use super::RunningConfig;
use crate::data::command::{Command, DataHandle, DataThreadGone};

impl RunningConfig {
    /// The budgets of these uplinks are used up, and those of no others. `true`: that is new.
    pub(crate) fn set_spent(
        &mut self,
        spent: BTreeSet<Local>,
        data: &DataHandle,
    ) -> Result<bool, DataThreadGone> {
        if spent == self.spent {
            return Ok(false);
        }
        self.spent = spent;
        let sockets: BTreeSet<SocketId> = self
            .spent
            .iter()
            .filter_map(|local| self.socket_of(local))
            .collect();
        for peer in self.peers.values_mut() {
            let before = peer.paths.clone();
            for path in &mut peer.paths {
                path.terms.is_spent = sockets.contains(&path.socket);
            }
            if peer.paths != before {
                let (peer, paths) = (peer.id, peer.paths.clone());
                data.send(Command::SetPaths { peer, paths })?;
            }
        }
        Ok(true)
    }

    /// Whether the budget of a path's uplink is used up.
    pub(crate) fn is_spent(&self, path: &Path) -> bool {
        self.spent.contains(&path.local)
    }
}
