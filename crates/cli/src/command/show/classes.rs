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
    let name = one.name.clone();
    match ask(&one.query.socket, &Request::ShowTenant { name })? {
        Response::Tenants { tenants } => show(&one.query, &tenants, |tenants| text(tenants)),
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
    let nothing = match tenants.iter().any(|tenant| tenant.classes.is_some()) {
        true => "nothing was sorted yet",
        false => "no tenant has classes = \"auto\" or rules with domains",
    };
    let mut text = listed(&sorted, nothing);
    if has_flows {
        text.push_str("\nlargest flows of the last minute\n");
        text.push_str(&listed(&flows, ""));
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
