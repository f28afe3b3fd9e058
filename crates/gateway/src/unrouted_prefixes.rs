//! Reports prefixes of the network that this machine cannot route, and those that it routes again.

use keiro_control::{config::Withheld, protocol::EventKind};

use crate::gateway::Gateway;

impl Gateway {
    /// Reports what has changed since the last call.
    pub(crate) fn publish_withheld(&mut self) {
        let now = self.followed.withheld.clone();
        let before = std::mem::replace(&mut self.withheld, now.clone());
        for of in now.iter().filter(|of| !before.contains(of)) {
            self.publish(EventKind::PrefixWithheld {
                tenant: of.tenant.to_string(),
                prefix: of.prefix.to_string(),
                owner: of.owner.to_string(),
                reason: of.conflict.to_string(),
            });
        }
        let is_routed = |of: &&Withheld| {
            let tenant = self.config.tenant_named(of.tenant.as_str());
            tenant.is_some_and(|tenant| tenant.routes.contains(&of.prefix))
        };
        let routed: Vec<Withheld> = before.into_iter().filter(|of| is_routed(&of)).collect();
        for of in routed {
            self.publish(EventKind::PrefixRouted {
                tenant: of.tenant.to_string(),
                prefix: of.prefix.to_string(),
                owner: of.owner.to_string(),
            });
        }
    }

    /// Prefixes that are not routed, one line each.
    pub(crate) fn withheld_lines(&self) -> Vec<String> {
        self.withheld
            .iter()
            .take(LINES_MAX)
            .map(ToString::to_string)
            .collect()
    }
}

/// Lines of a status. Ours: each has its event.
const LINES_MAX: usize = 64;
