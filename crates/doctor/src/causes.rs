//! The causes, in the order in which they are looked for: what stands behind others comes first.

mod application;
mod exit;
mod firewalls;
mod machine;
mod path;
mod peer;
mod tenant;
mod tenant_network;
mod uplink;

use crate::{Facts, Finding, Found, Subject};

/// Something that can be wrong.
#[derive(Debug)]
pub struct Cause<F: 'static = Facts> {
    /// Stays the same over releases.
    pub id: &'static str,
    /// What is wrong, for the documentation.
    pub what: &'static str,
    /// What to do about it, for the documentation.
    pub remedy: &'static str,
    pub(crate) check: fn(&F, &Found) -> Vec<Finding>,
}

/// All of them.
pub static CAUSES: &[&Cause] = &[
    &machine::NO_CONFIGURATION,
    &machine::INVALID_CONFIGURATION,
    &machine::KEY_UNUSABLE,
    &machine::NO_TUN,
    &machine::CLOCK_BEHIND,
    &machine::NOT_RUNNING,
    &machine::REJECTED_CONFIGURATION,
    &machine::NEEDS_RESTART,
    &machine::NO_NET_ADMIN,
    &uplink::NO_INTERFACE,
    &uplink::INTERFACE_DOWN,
    &uplink::NO_CARRIER,
    &uplink::PORT_OF_BRIDGE,
    &uplink::NO_ADDRESS,
    &uplink::ADDRESS_NOT_HERE,
    &uplink::NO_DEFAULT_ROUTE,
    &uplink::NO_ROUTE_TO_PEER,
    &uplink::REVERSE_PATH_FILTER,
    &uplink::ROUTER_ADVERTISEMENTS_IGNORED,
    &peer::ENDPOINT_UNRESOLVED,
    &peer::ENDPOINT_IS_THIS_MACHINE,
    &peer::WRONG_KEY,
    &peer::VERSION_MISMATCH,
    &peer::KEY_REFUSED,
    &peer::DUPLICATE_KEY,
    &peer::PEER_CLOCK_BEHIND,
    &firewalls::INPUT_BLOCKED,
    &path::ONE_WAY,
    &peer::PEER_SILENT,
    &peer::PEER_ABSENT,
    &path::PATH_SILENT,
    &path::PATH_MTU,
    &path::PEER_MOVES,
    &path::BUDGET_SPENT,
    &application::APP_MISMATCH,
    &tenant::DEVICE_UNUSABLE,
    &tenant::TENANT_REFUSED,
    &tenant::TENANT_UNKNOWN,
    &tenant::PREFIX_MISMATCH,
    &tenant_network::PREFIX_WITHHELD,
    &tenant_network::LAN_OVERLAPS_PEER,
    &tenant_network::UPLINK_OVERLAPS_PEER,
    &tenant_network::FORWARDING_OFF,
    &exit::EXIT_WITHOUT_DEFAULT_ROUTE,
    &exit::EXIT_NOT_FORWARDING,
    &exit::EXIT_RULES_MISSING,
    &exit::EXIT_NOT_OFFERED,
    &firewalls::FORWARD_BLOCKED,
    &tenant_network::ROUTED_ELSEWHERE,
    &tenant_network::NO_ANSWERS,
    &machine::STORE_LOST,
];

impl<F> Cause<F> {
    /// That this is the cause.
    pub(crate) fn found(
        &self,
        subject: Subject,
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            cause: self.id,
            subject,
            finding: finding.into(),
            remedy: remedy.into(),
        }
    }
}

/// A time for people, in whole units.
fn ago(age: std::time::Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
