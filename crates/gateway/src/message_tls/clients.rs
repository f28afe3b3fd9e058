//! The clients that the configuration permits: their tokens, what each may do, and what each does.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::SystemTime,
};

use aws_lc_rs::{constant_time, digest};
use keiro_control::{
    config::{AppIndex, Config, ConfigError},
    message_socket::Role,
};
use keiro_stats::MessageClientStats;

/// What the configuration says of the clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientSettings {
    permits: BTreeMap<String, Permit>,
    tokens: Vec<Token>,
}

/// What one client may do.
#[derive(Clone, Debug, Default)]
pub(super) struct Permit {
    pub(super) send: BTreeSet<String>,
    pub(super) receive: BTreeSet<String>,
    pub(super) connections_max: usize,
    pub(super) messages_max: u64,
    pub(super) bytes_max: u64,
}

/// The digest of a token, which stays in memory instead of the token.
type TokenDigest = [u8; digest::SHA256_OUTPUT_LEN];

#[derive(Clone, Debug)]
struct Token {
    digest: TokenDigest,
    client: String,
}

/// A client whose token was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) client: String,
    digest: TokenDigest,
}

/// One client: what it may do and what it does.
#[derive(Debug, Default)]
pub(super) struct Account {
    permit: Permit,
    stats: MessageClientStats,
    last_address: Option<SocketAddr>,
    last_error: Option<(SystemTime, String)>,
    /// Something has finished since this was asked last.
    has_finished: bool,
}

/// What is shown of a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientFigures {
    pub(crate) name: String,
    pub(crate) stats: MessageClientStats,
    pub(crate) last_address: Option<SocketAddr>,
    pub(crate) last_error: Option<(SystemTime, String)>,
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    tokens: Vec<Token>,
    accounts: BTreeMap<String, Account>,
}

impl ClientSettings {
    /// Reads the token files that the configuration names.
    ///
    /// # Errors
    /// As [`Config::message_tokens`].
    pub(crate) fn load(config: &Config) -> Result<Self, ConfigError> {
        let permits = config.message_clients.iter().map(|client| {
            let permit = Permit {
                send: names_of(config, &client.send).into_iter().collect(),
                receive: names_of(config, &client.receive).into_iter().collect(),
                connections_max: client.connections_max,
                messages_max: client.messages_max as u64,
                bytes_max: client.bytes_max.get(),
            };
            (client.name.to_string(), permit)
        });
        let tokens = config.message_tokens()?.into_iter().map(|token| Token {
            digest: digest_of(token.text.as_bytes()),
            client: config.message_clients[token.client].name.to_string(),
        });
        Ok(Self {
            permits: permits.collect(),
            tokens: tokens.collect(),
        })
    }

    #[cfg(test)]
    pub(super) fn of(clients: &[(&str, &str, Permit)]) -> Self {
        let token = |(name, token, _): &(&str, &str, Permit)| Token {
            digest: digest_of(token.as_bytes()),
            client: (*name).to_owned(),
        };
        let permit =
            |(name, _, permit): &(&str, &str, Permit)| ((*name).to_owned(), permit.clone());
        Self {
            permits: clients.iter().map(permit).collect(),
            tokens: clients.iter().map(token).collect(),
        }
    }
}

impl Clients {
    /// Takes over new settings. Clients that stay keep their figures.
    pub(super) fn apply_settings(&mut self, settings: ClientSettings) {
        let mut before = std::mem::take(&mut self.accounts);
        self.tokens = settings.tokens;
        for (name, permit) in settings.permits {
            let mut account = before.remove(&name).unwrap_or_default();
            account.permit = permit;
            // It may have more room than before.
            account.has_finished = true;
            self.accounts.insert(name, account);
        }
    }

    /// The client that has this token. Takes as long whichever it is, and if it is none.
    pub(super) fn identify(&self, token: &[u8]) -> Option<Identity> {
        let digest = digest_of(token);
        let mut found = None;
        for known in &self.tokens {
            if constant_time::verify_slices_are_equal(&known.digest, &digest).is_ok() {
                found = Some(known);
            }
        }
        found.map(|token| Identity {
            client: token.client.clone(),
            digest: token.digest,
        })
    }

    /// Whether a client is still known by the token that it came with, and may do what it does.
    pub(super) fn permits(&self, identity: &Identity, role: Role, app: &str) -> bool {
        let has_token =
            |token: &Token| token.client == identity.client && token.digest == identity.digest;
        let account = self.accounts.get(&identity.client);
        self.tokens.iter().any(has_token) && account.is_some_and(|account| account.may(role, app))
    }

    pub(super) fn account(&mut self, name: &str) -> Option<&mut Account> {
        self.accounts.get_mut(name)
    }

    pub(super) fn figures(&self) -> Vec<ClientFigures> {
        let figures = |(name, account): (&String, &Account)| ClientFigures {
            name: name.clone(),
            stats: account.stats,
            last_address: account.last_address,
            last_error: account.last_error.clone(),
        };
        self.accounts.iter().map(figures).collect()
    }

    /// Whether any client may have room that it had not before; asked once.
    pub(super) fn take_finished(&mut self) -> bool {
        let mut any = false;
        for account in self.accounts.values_mut() {
            any |= std::mem::take(&mut account.has_finished);
        }
        any
    }
}

impl Account {
    pub(super) fn may(&self, role: Role, app: &str) -> bool {
        match role {
            Role::Send => self.permit.send.contains(app),
            Role::Receive => self.permit.receive.contains(app),
        }
    }

    pub(super) fn has_free_connection(&self) -> bool {
        self.stats.open_connections < self.permit.connections_max as u64
    }

    pub(super) fn connections_max(&self) -> usize {
        self.permit.connections_max
    }

    pub(super) fn on_connected(&mut self, from: SocketAddr) {
        self.stats.open_connections += 1;
        self.stats.accepted_connections += 1;
        self.last_address = Some(from);
    }

    pub(super) fn on_disconnected(&mut self) {
        self.stats.open_connections = self.stats.open_connections.saturating_sub(1);
    }

    pub(super) fn on_refused(&mut self, from: SocketAddr, why: &str) {
        self.stats.refused_connections += 1;
        self.on_error(from, why);
    }

    pub(super) fn on_error(&mut self, from: SocketAddr, why: &str) {
        self.last_address = Some(from);
        self.last_error = Some((SystemTime::now(), why.to_owned()));
    }

    /// Whether a message of `length` bytes may begin. One may always, however long.
    pub(super) fn has_room(&self, length: usize) -> bool {
        let stats = &self.stats;
        stats.unfinished_messages == 0
            || stats.unfinished_messages < self.permit.messages_max
                && stats.unfinished_bytes + length as u64 <= self.permit.bytes_max
    }

    pub(super) fn on_begun(&mut self, length: usize) {
        self.stats.unfinished_messages += 1;
        self.stats.unfinished_bytes += length as u64;
        self.stats.sent_messages += 1;
        self.stats.sent_bytes += length as u64;
    }

    /// `outcome` as in an ack; `None`: there will be none.
    pub(super) fn on_finished(&mut self, length: usize, outcome: Option<u8>) {
        let stats = &mut self.stats;
        stats.unfinished_messages = stats.unfinished_messages.saturating_sub(1);
        stats.unfinished_bytes = stats.unfinished_bytes.saturating_sub(length as u64);
        match outcome {
            Some(0) => stats.delivered_messages += 1,
            Some(1) => stats.expired_messages += 1,
            Some(2) => stats.refused_messages += 1,
            _ => stats.unknown_messages += 1,
        }
        self.has_finished = true;
    }

    pub(super) fn on_received_message(&mut self) {
        self.stats.received_messages += 1;
    }

    pub(super) fn on_received_bytes(&mut self, length: usize) {
        self.stats.received_bytes += length as u64;
    }

    #[cfg(test)]
    pub(super) fn stats(&self) -> MessageClientStats {
        self.stats
    }
}

/// The names of applications.
pub(super) fn names_of(config: &Config, apps: &[AppIndex]) -> Vec<String> {
    apps.iter()
        .map(|app| config[*app].name.to_string())
        .collect()
}

fn digest_of(token: &[u8]) -> TokenDigest {
    let mut bytes = TokenDigest::default();
    bytes.copy_from_slice(digest::digest(&digest::SHA256, token).as_ref());
    bytes
}
