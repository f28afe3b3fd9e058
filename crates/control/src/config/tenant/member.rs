//! The tenant of a listener or a forward, and its interface.

use keiro_config::{Located, Report, TableReader};

use super::values::text;
use crate::config::Name;

/// The tenant of a listener or a forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub tenant: Name,
    /// The tenant's interface that it uses, if it says so.
    pub interface: Option<String>,
}

/// Reads `tenant` and `interface`.
pub(in crate::config) fn member(
    fields: &mut TableReader<'_, '_>,
    report: &mut Report<'_>,
) -> Option<Located<Member>> {
    let tenant = fields.optional(report, "tenant", text);
    let interface: Option<Located<String>> = fields.optional(report, "interface", text);
    let Some(tenant) = tenant else {
        if let Some(interface) = interface {
            let message = "interface: only a tenant has interfaces, and no tenant is named";
            report.add(&interface.at, message, "add tenant = \"...\"");
        }
        return None;
    };
    match Name::new(&tenant.value) {
        Ok(name) => {
            let interface = interface.map(|interface| interface.value);
            let member = Member {
                tenant: name,
                interface,
            };
            Some(Located {
                value: member,
                at: tenant.at,
            })
        }
        Err(error) => {
            let hint = "write the name of a [tenant.NAME]";
            report.add(&tenant.at, format!("tenant: {error}"), hint);
            None
        }
    }
}
