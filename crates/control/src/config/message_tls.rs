//! `[message_tls]` and `[[message_client]]`: the message socket for other hosts, over TCP with TLS, and who
//! may use it.
//!
//! Nothing here opens the files that are named; see [`Config::message_tokens`].

mod check;

use std::{collections::BTreeSet, net::SocketAddr, ops::Range, path::PathBuf};

use keiro_config::{
    Located, Report, TableReader, ValueError, address_in, file_name, string, type_name,
};
use keiro_units::ByteCount;
use toml::{
    Spanned,
    de::{DeArray, DeValue},
};
use zeroize::Zeroizing;

use super::{
    AppIndex, Config, ConfigError, MESSAGE_BYTES_MAX, Name,
    entries::{Names, Reader},
    tenant::count,
    values::{in_range, is_broadcast, value},
};
use crate::key;

pub(super) use self::check::check;

/// Default of `connections_max`.
pub const DEFAULT_CLIENT_CONNECTIONS_MAX: usize = 16;
/// Default of `messages_max`.
pub const DEFAULT_CLIENT_MESSAGES_MAX: usize = 1024;
/// Default of `bytes_max`: two of the longest messages.
pub const DEFAULT_CLIENT_BYTES_MAX: ByteCount = ByteCount::new(2 * MESSAGE_BYTES_MAX);
/// Connections of all clients together. Ours: as many as local clients.
pub const MESSAGE_TLS_CONNECTIONS_MAX: usize = 256;

/// Addresses to listen at. Ours.
const LISTEN_MAX: usize = 16;
/// As the message socket has for one connection.
const MESSAGES_MAX: usize = 1 << 16;
/// The largest `bytes_max`: what the core keeps for a peer.
const BYTES_MAX: ByteCount = ByteCount::new(256 << 20);

/// `[message_tls]`: the message socket for other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageTls {
    /// Where it listens; at least one address, never port 0.
    pub listen: Vec<SocketAddr>,
    /// Its certificate and those up to an authority, PEM.
    pub cert: PathBuf,
    /// The certificate's private key, PEM; others must not be able to read it.
    pub key: PathBuf,
}

/// `[[message_client]]`: a program on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageClient {
    /// Its name, unique among clients; shown in status, logs and metrics.
    pub name: Name,
    /// Holds its token; read with [`Config::message_tokens`].
    pub token_file: PathBuf,
    /// Applications that it may send to; each is of class `message`.
    pub send: Vec<AppIndex>,
    /// Applications that it may receive from; each is of class `message` and has no forward.
    pub receive: Vec<AppIndex>,
    /// Connections at once.
    pub connections_max: usize,
    /// Messages without an outcome, on all its connections.
    pub messages_max: usize,
    /// The bytes of these.
    pub bytes_max: ByteCount,
}

/// A client's token, as its file has it.
#[derive(Clone, Debug)]
pub struct MessageToken {
    /// Index into [`Config::message_clients`].
    pub client: usize,
    pub text: Zeroizing<String>,
}

/// One of the files that `[message_tls]` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageTlsFile {
    Cert,
    Key,
}

#[derive(Clone, Debug, Default)]
pub(super) struct MessageTlsSpans {
    pub(super) table: Range<usize>,
    pub(super) listen: Range<usize>,
    pub(super) cert: Range<usize>,
    pub(super) key: Range<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct MessageClientSpans {
    pub(super) token_file: Range<usize>,
    send: Vec<Range<usize>>,
    receive: Vec<Range<usize>>,
}

impl Config {
    /// The tokens of all clients, read from their files.
    ///
    /// # Errors
    /// One problem per file that cannot be read, is open to others, or holds something else than tokens, and
    /// per token that two clients have.
    pub fn message_tokens(&self) -> Result<Vec<MessageToken>, ConfigError> {
        let mut report = self.origin.report();
        let mut tokens: Vec<MessageToken> = Vec::new();
        let places = &self.origin.message_clients;
        for (index, (client, at)) in self.message_clients.iter().zip(places).enumerate() {
            let found = match key::load_tokens(&client.token_file) {
                Ok(found) => found,
                Err(error) => {
                    let text = error.to_string();
                    let (message, hint) = text.split_once("; ").unwrap_or((&text, ""));
                    report.add(at, format!("token_file: {message}"), hint);
                    continue;
                }
            };
            for text in found {
                if let Some(earlier) = tokens.iter().find(|token| *token.text == *text) {
                    let other = &self.message_clients[earlier.client].name;
                    let message = format!("token_file: client `{other}` has the same token");
                    report.add(
                        at,
                        message,
                        "give each client its own; `keiro gentoken` makes one",
                    );
                    continue;
                }
                tokens.push(MessageToken {
                    client: index,
                    text,
                });
            }
        }
        report.finish().map(|_| tokens)
    }

    /// What is wrong with the contents of a file that `[message_tls]` names, at the place that names it.
    pub fn message_tls_error(
        &self,
        file: MessageTlsFile,
        message: &str,
        hint: &str,
    ) -> ConfigError {
        let spans = &self.origin.message_tls;
        let (key, at) = match file {
            MessageTlsFile::Cert => ("cert", &spans.cert),
            MessageTlsFile::Key => ("key", &spans.key),
        };
        let mut report = self.origin.report();
        report.add(at, format!("{key}: {message}"), hint);
        match report.finish() {
            Err(error) => error,
            Ok(_) => unreachable!("the report has a problem"),
        }
    }

    /// The client of this name.
    pub fn message_client_named(&self, name: &str) -> Option<&MessageClient> {
        self.message_clients
            .iter()
            .find(|client| client.name.as_str() == name)
    }
}

pub(super) fn message_tls(
    mut fields: TableReader<'_, '_>,
    report: &mut Report<'_>,
) -> Option<(MessageTls, MessageTlsSpans)> {
    let table = fields.span();
    let listen = fields.required(report, "listen", "[\"192.0.2.1:7602\"]", addresses);
    let cert = fields.required(report, "cert", "\"/etc/keiro/message-cert.pem\"", file_name);
    let key = fields.required(report, "key", "\"/etc/keiro/message-key.pem\"", file_name);
    fields.refuse_unknown_keys(report);
    let (listen, cert, key) = (listen?, cert?, key?);
    let spans = MessageTlsSpans {
        table,
        listen: listen.at,
        cert: cert.at,
        key: key.at,
    };
    let found = MessageTls {
        listen: listen.value,
        cert: cert.value,
        key: key.value,
    };
    Some((found, spans))
}

const LISTEN_HINT: &str = "write listen = [\"192.0.2.1:7602\"]";

fn addresses(value: &DeValue<'_>) -> Result<Vec<SocketAddr>, ValueError> {
    let DeValue::Array(array) = value else {
        return Err(ValueError::new(
            format!("this is {}", type_name(value)),
            LISTEN_HINT,
        ));
    };
    if !(1..=LISTEN_MAX).contains(&array.len()) {
        let message = format!("{} addresses", array.len());
        return Err(ValueError::new(message, format!("write 1 to {LISTEN_MAX}")));
    }
    let mut found = BTreeSet::new();
    for one in array.iter() {
        let address = address_in(string(one.get_ref())?)?;
        if address.ip().is_multicast() || is_broadcast(&address) {
            let message = format!("`{address}` is a multicast address");
            return Err(ValueError::new(message, "write an address of this machine"));
        }
        if !found.insert(address) {
            return Err(ValueError::new(
                format!("`{address}` is there twice"),
                "keep one of them",
            ));
        }
    }
    Ok(found.into_iter().collect())
}

impl Reader<'_> {
    pub(super) fn message_client(
        &mut self,
        mut fields: TableReader<'_, '_>,
        name: Option<Name>,
        apps: &Names,
    ) -> Option<(MessageClient, MessageClientSpans)> {
        let place = fields.span();
        let r = &mut self.report;
        let token_file = fields.required(r, "token_file", "\"/etc/keiro/sensor.token\"", file_name);
        let connections_max = fields.optional(r, "connections_max", |v| {
            count(v, MESSAGE_TLS_CONNECTIONS_MAX)
        });
        let messages_max = fields.optional(r, "messages_max", |v| count(v, MESSAGES_MAX));
        let least = ByteCount::new(MESSAGE_BYTES_MAX);
        let bytes_max = fields.optional(r, "bytes_max", |v| in_range(v, least, BYTES_MAX));
        let (send, receive) = (fields.raw("send"), fields.raw("receive"));
        fields.refuse_unknown_keys(r);
        if send.is_none() && receive.is_none() {
            let hint = "add send = [\"...\"] or receive = [\"...\"] with names of applications";
            self.report.add(
                &place,
                "this [[message_client]] may neither send nor receive",
                hint,
            );
        }
        let send = self.apps_in("send", send, apps);
        let receive = self.apps_in("receive", receive, apps);
        let token_file = token_file?;
        let client = MessageClient {
            name: name?,
            token_file: token_file.value,
            send: send.iter().map(|app| app.value).collect(),
            receive: receive.iter().map(|app| app.value).collect(),
            connections_max: value(connections_max).unwrap_or(DEFAULT_CLIENT_CONNECTIONS_MAX),
            messages_max: value(messages_max).unwrap_or(DEFAULT_CLIENT_MESSAGES_MAX),
            bytes_max: value(bytes_max).unwrap_or(DEFAULT_CLIENT_BYTES_MAX),
        };
        let spans = MessageClientSpans {
            token_file: token_file.at,
            send: send.into_iter().map(|app| app.at).collect(),
            receive: receive.into_iter().map(|app| app.at).collect(),
        };
        Some((client, spans))
    }

    /// The applications that a list names.
    fn apps_in(
        &mut self,
        key: &str,
        list: Option<&Spanned<DeValue<'_>>>,
        apps: &Names,
    ) -> Vec<Located<AppIndex>> {
        let Some(list) = list else {
            return Vec::new();
        };
        let DeValue::Array(array) = list.get_ref() else {
            let message = format!("{key}: this is {}", type_name(list.get_ref()));
            self.report
                .add(&list.span(), message, &format!("write {key} = [\"...\"]"));
            return Vec::new();
        };
        self.apps_named(key, array, apps)
    }

    fn apps_named(
        &mut self,
        key: &str,
        array: &DeArray<'_>,
        apps: &Names,
    ) -> Vec<Located<AppIndex>> {
        let mut found: Vec<Located<AppIndex>> = Vec::new();
        for one in array.iter() {
            let at = one.span();
            let written = match string(one.get_ref()) {
                Ok(text) => Located {
                    value: text.to_owned(),
                    at: at.clone(),
                },
                Err(complaint) => {
                    complaint.add_to(&mut self.report, &at, key);
                    continue;
                }
            };
            let Some(index) = self.reference(key, &written, apps) else {
                continue;
            };
            if found.iter().any(|app| app.value == AppIndex(index)) {
                let message = format!("{key}: `{}` is there twice", written.value);
                self.report.add(&at, message, "keep one of them");
                continue;
            }
            found.push(Located {
                value: AppIndex(index),
                at,
            });
        }
        found
    }
}

#[cfg(test)]
mod tests;
