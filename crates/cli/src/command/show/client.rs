//! `keiro show client`.

use keiro_control::protocol::{MessageClientSnapshot, MessageClients};

use super::{FieldList, listed};
use crate::output::{
    Style,
    human::NONE,
    table::{Cell, Table},
};

pub(super) fn table(clients: &MessageClients, style: Style) -> String {
    let mut table = Table::new(&[
        "client",
        "address",
        "connections>",
        "sent>",
        "delivered>",
        "refused>",
        "expired>",
        "received>",
        "last error",
    ]);
    for client in &clients.clients {
        let stats = &client.stats;
        table.row([
            Cell::from(client.name.as_str()),
            Cell::from(client.address.as_deref().unwrap_or(NONE)),
            Cell::from(stats.open_connections.to_string()),
            Cell::from(stats.sent_messages.to_string()),
            Cell::from(stats.delivered_messages.to_string()),
            Cell::from(stats.refused_messages.to_string()),
            Cell::from(stats.expired_messages.to_string()),
            Cell::from(stats.received_messages.to_string()),
            Cell::from(last_error(client, style)),
        ]);
    }
    let text = listed(&table, "no clients on other hosts are configured");
    let closed: Vec<String> = clients
        .closed_connections
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    match closed.is_empty() {
        true => text,
        false => format!(
            "{text}connections refused or closed early: {}\n",
            closed.join(", ")
        ),
    }
}

pub(super) fn text(client: &MessageClientSnapshot, style: Style) -> String {
    let mut fields = FieldList::new(format!("client {}", style.strong(&client.name)));
    fields.add(
        "last address",
        client.address.clone().unwrap_or_else(|| NONE.to_owned()),
    );
    fields.add("may send to", names(&client.send));
    fields.add("may receive from", names(&client.receive));
    fields.add_stats("", &client.stats.0);
    fields.add("last error", last_error(client, style));
    fields.text()
}

fn names(apps: &[String]) -> String {
    match apps.is_empty() {
        true => "nothing".to_owned(),
        false => apps.join(", "),
    }
}

fn last_error(client: &MessageClientSnapshot, style: Style) -> String {
    match (&client.last_error, &client.last_error_at) {
        (Some(error), Some(at)) => style.bad(&format!("{at}: {error}")),
        (Some(error), None) => style.bad(error),
        (None, _) => "none".to_owned(),
    }
}
