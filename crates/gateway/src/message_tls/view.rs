//! What the control protocol and the metrics page show of clients on other hosts.

use keiro_control::{
    config::{Config, MessageClient},
    protocol::{MessageClientSnapshot, MessageClients, Stats, Timestamp},
};

use super::{ClientFigures, Figures, clients::names_of};
use crate::gateway::Gateway;

impl Gateway {
    /// What the TLS thread counts; nothing if there is none.
    pub(crate) fn message_tls_figures(&self) -> Figures {
        let server = self.message_tls.as_ref();
        server
            .and_then(|server| server.figures())
            .unwrap_or_default()
    }

    /// Every client of the configuration.
    pub(crate) fn message_clients(&self) -> MessageClients {
        let figures = self.message_tls_figures();
        let clients = self.config.message_clients.iter().map(|client| {
            let name = client.name.as_str();
            let found = figures.clients.iter().find(|one| one.name == name);
            snapshot(&self.config, client, found)
        });
        let mut clients: Vec<MessageClientSnapshot> = clients.collect();
        clients.sort_by(|a, b| a.name.cmp(&b.name));
        let closed = figures.closed_connections.into_iter();
        MessageClients {
            clients,
            closed_connections: closed.map(|(reason, n)| (reason.to_owned(), n)).collect(),
        }
    }
}

fn snapshot(
    config: &Config,
    client: &MessageClient,
    found: Option<&ClientFigures>,
) -> MessageClientSnapshot {
    let error = found.and_then(|found| found.last_error.clone());
    let (last_error_at, last_error) = error.unzip();
    let address = found.and_then(|found| found.last_address);
    MessageClientSnapshot {
        name: client.name.to_string(),
        address: address.map(|address| address.to_string()),
        send: names_of(config, &client.send),
        receive: names_of(config, &client.receive),
        stats: Stats(found.map(|found| found.stats).unwrap_or_default()),
        last_error,
        last_error_at: last_error_at.map(Timestamp),
    }
}
