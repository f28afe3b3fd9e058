//! `keiro show classes`.

use keiro_control::protocol::{FlowSnapshot, Request, Response, TenantSnapshot};

use super::listed;
use crate::{
    args,
    command::query::{ask, show, unexpected},
    failure::Failure,
    output::{
        human::{self, NONE},
        table::{Cell, Table},
    },
};

pub(super) fn show_classes(one: &args::ShowOne) -> Result<(), Failure> {
    let mut tenants = tenants(one, one.name.clone())?;
    if one.name.is_none() {
        // Flows are shown of a tenant that is named.
        let with_classes = tenants.iter_mut().filter(|of| of.classes.is_some());
        for tenant in with_classes.take(TENANTS_WITH_FLOWS_MAX) {
            let named = self::tenants(one, Some(tenant.name.clone()))?;
            if let Some(named) = named.into_iter().next() {
                *tenant = named;
            }
        }
    }
    show(&one.query, &tenants, |tenants| text(tenants))
}

/// Tenants whose flows are shown where none is named. Ours: each has up to 16.
const TENANTS_WITH_FLOWS_MAX: usize = 8;

fn tenants(one: &args::ShowOne, name: Option<String>) -> Result<Vec<TenantSnapshot>, Failure> {
    match ask(&one.query.socket, &Request::ShowTenant { name })? {
        Response::Tenants { tenants } => Ok(tenants),
        other => Err(unexpected(&other)),
    }
}

fn text(tenants: &[TenantSnapshot]) -> String {
    let mut sorted = Table::new(&["tenant", "class", "by", "flows>", "packets>", "bytes>"]);
    let mut flows = Table::new(&["flow", "class", "why", "packets>", "bytes>"]);
    let mut has_flows = false;
    for tenant in tenants {
        let Some(classes) = &tenant.classes else {
            continue;
        };
        for row in &classes.sorted {
            sorted.row([
                Cell::from(tenant.name.as_str()),
                Cell::from(row.class.as_deref().unwrap_or(NONE)),
                Cell::from(row.by.replace('_', " ")),
                Cell::from(row.flows.to_string()),
                Cell::from(row.carried_packets.to_string()),
                Cell::from(human::bytes(row.carried_bytes)),
            ]);
        }
        for flow in &classes.flows {
            has_flows = true;
            flows.row([
                Cell::from(flow_text(flow)),
                Cell::from(flow.class.as_deref().unwrap_or(NONE)),
                Cell::from(flow.why.as_str()),
                Cell::from(flow.carried_packets.to_string()),
                Cell::from(human::bytes(flow.carried_bytes)),
            ]);
        }
    }
    let with_classes = tenants.iter().filter(|of| of.classes.is_some());
    let nothing = match tenants.iter().any(|tenant| tenant.classes.is_some()) {
        true => "nothing was sorted yet",
        false => "no tenant has classes = \"auto\" or rules with domains",
    };
    let mut text = listed(&sorted, nothing);
    if has_flows {
        text.push_str("\nlargest flows of the last minute\n");
        text.push_str(&listed(&flows, ""));
    }
    let beyond = with_classes
        .clone()
        .count()
        .saturating_sub(TENANTS_WITH_FLOWS_MAX);
    if beyond > 0 {
        text.push_str(&format!(
            "flows of {beyond} more tenants: keiro show classes TENANT\n"
        ));
    }
    for tenant in with_classes {
        let unread = tenant.classes.as_ref().map_or(0, |of| of.unread_handshakes);
        if unread > 0 {
            text.push_str(&format!(
                "tenant {}: the server's name in {unread} TLS handshakes was not read, since too many were incomplete at \
                 once\n",
                tenant.name
            ));
        }
    }
    text
}

/// As in `tcp 10.1.0.7:40000 > 198.51.100.9:443`.
fn flow_text(flow: &FlowSnapshot) -> String {
    let protocol = match flow.protocol {
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        1 | 58 => "icmp".to_owned(),
        number => number.to_string(),
    };
    let end = |address: &str, port: Option<u16>| match port {
        Some(port) if address.contains(':') => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
        None => address.to_owned(),
    };
    let source = end(&flow.source, flow.source_port);
    let destination = end(&flow.destination, flow.destination_port);
    format!("{protocol} {source} > {destination}")
}
