//! `[store]`: where the plan is kept, and which gateways share it.

use std::{collections::BTreeMap, fmt, net::SocketAddr, ops::Range, path::PathBuf, time::Duration};

use keiro_config::{
    Located, Report, TableReader, ValueError, address_in, choice, file_name, shown, string,
    type_name,
};
use toml::de::DeValue;

use super::{
    Name,
    values::{name, positive_time},
};

/// `[store]`: where the plan is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// In files below `state_directory`, for this gateway alone.
    #[default]
    File,
    /// In etcd, shared with the other gateways of the site.
    Etcd(Box<Etcd>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    /// Gateways of the same site share inputs and plan.
    pub site: Name,
    /// Its members, tried in turn; at least one.
    pub endpoints: Vec<Endpoint>,
    /// Authorities that may have signed the members' certificates, PEM.
    pub ca: Option<PathBuf>,
    /// This gateway's certificate and its private key, PEM; both or neither.
    pub client: Option<(PathBuf, PathBuf)>,
    /// A user and the file that holds the password; both or neither.
    pub user: Option<(Name, PathBuf)>,
    /// For one request to one member; `None`: the store's default.
    pub timeout: Option<Duration>,
}

/// A member of etcd: `http://10.0.0.1:2379`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `https` and not `http`.
    pub is_secure: bool,
    /// Where it listens for clients.
    pub address: SocketAddr,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.address)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Etcd,
}

const KINDS: &[(&str, Kind)] = &[("file", Kind::File), ("etcd", Kind::Etcd)];
/// Keys that only kind = "etcd" has.
const OF_ETCD: [&str; 8] = [
    "site",
    "endpoints",
    "ca",
    "cert",
    "key",
    "user",
    "password_file",
    "timeout",
];
/// etcd recommends at most 7 members. Ours.
const ENDPOINTS_MAX: usize = 16;
/// Longer than that is no address.
const ENDPOINT_BYTES_MAX: usize = 512;

pub(super) fn store(mut fields: TableReader<'_, '_>, report: &mut Report<'_>) -> Option<Store> {
    let place = fields.span_of("kind");
    let kind = fields.required(report, "kind", "\"etcd\" or \"file\"", |v| choice(v, KINDS));
    let site = fields.optional(report, "site", name);
    let endpoints = fields.optional(report, "endpoints", endpoints);
    let ca = fields.optional(report, "ca", file_name);
    let cert = fields.optional(report, "cert", file_name);
    let key = fields.optional(report, "key", file_name);
    let user = fields.optional(report, "user", name);
    let password = fields.optional(report, "password_file", file_name);
    let timeout = fields.optional(report, "timeout", positive_time);
    let written: BTreeMap<&str, Range<usize>> = OF_ETCD
        .into_iter()
        .filter(|key| fields.has(key))
        .map(|key| (key, fields.span_of(key)))
        .collect();
    let has = |key: &str| written.contains_key(key);
    fields.refuse_unknown_keys(report);
    let kind = kind?.value;
    if kind == Kind::File {
        for (key, at) in &written {
            let message = format!("{key}: kind = \"file\" has no such key");
            report.add(at, message, "remove it");
        }
        return Some(Store::File);
    }
    let mut missing = |key: &str, example: &str| {
        let message = format!("[store] with kind = \"etcd\" has no `{key}`");
        report.add(&place, message, &format!("add {key} = {example}"));
    };
    if !has("site") {
        missing("site", "\"tokyo\"");
    }
    if !has("endpoints") {
        missing("endpoints", "[\"http://127.0.0.1:2379\"]");
    }
    let both = [("cert", "key"), ("user", "password_file")];
    for (one, other) in both {
        match (has(one), has(other)) {
            (true, false) => missing(other, "\"/etc/keiro/...\""),
            (false, true) => missing(one, "..."),
            _ => {}
        }
    }
    let known = endpoints.iter().flat_map(|found| &found.value);
    if known.clone().any(|endpoint| endpoint.is_secure) && !has("ca") {
        missing("ca", "\"/etc/keiro/etcd-ca.pem\"");
    }
    if let (Some(at), Some(open)) = (
        written.get("endpoints"),
        known.clone().find(|endpoint| !endpoint.is_secure),
    ) {
        // What is written for TLS is meant to be used.
        if let Some(key) = ["ca", "cert"].into_iter().find(|key| has(key)) {
            let message = format!("`{open}` is not encrypted, and there is `{key}`");
            report.add(at, message, &format!("write https://, or remove {key}"));
        }
    }
    let in_the_clear =
        |endpoint: &&Endpoint| !endpoint.is_secure && !endpoint.address.ip().is_loopback();
    if let (true, Some(at), Some(open)) = (
        has("user"),
        written.get("endpoints"),
        known.clone().find(in_the_clear),
    ) {
        let message = format!("the password would be sent in the clear to `{open}`");
        report.add(at, message, "write https://");
    }
    let value = |found: Option<Located<PathBuf>>| found.map(|found| found.value);
    Some(Store::Etcd(Box::new(Etcd {
        site: site?.value,
        endpoints: endpoints?.value,
        ca: value(ca),
        client: value(cert).zip(value(key)),
        user: user.map(|user| user.value).zip(value(password)),
        timeout: timeout.map(|timeout| timeout.value),
    })))
}

const HINT: &str = "write endpoints = [\"http://127.0.0.1:2379\"]";

fn endpoints(value: &DeValue<'_>) -> Result<Vec<Endpoint>, ValueError> {
    let DeValue::Array(array) = value else {
        return Err(ValueError::new(
            format!("this is {}", type_name(value)),
            HINT,
        ));
    };
    if !(1..=ENDPOINTS_MAX).contains(&array.len()) {
        let message = format!("{} addresses", array.len());
        return Err(ValueError::new(
            message,
            format!("write 1 to {ENDPOINTS_MAX}"),
        ));
    }
    let endpoint = |value: &toml::Spanned<DeValue<'_>>| endpoint(string(value.get_ref())?);
    array.iter().map(endpoint).collect()
}

fn endpoint(text: &str) -> Result<Endpoint, ValueError> {
    let wrong = |message: String| Err(ValueError::new(message, HINT));
    if text.contains('@') {
        // It may contain a password, which must not be in a message.
        let message = "an endpoint must not have a user or password".to_owned();
        let hint = "remove what is before the @; write user = \"...\" and password_file = \"...\"";
        return Err(ValueError::new(message, hint));
    }
    let (is_secure, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        (None, None) => return wrong(format!("`{}` is not an address of etcd", shown(text))),
    };
    if text.len() > ENDPOINT_BYTES_MAX {
        return wrong(format!("{} bytes are not an address of etcd", text.len()));
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#']) {
        return wrong(format!(
            "`{}`: nothing may follow host and port",
            shown(text)
        ));
    }
    let address = match address_in(rest) {
        Ok(SocketAddr::V6(v6)) if v6.scope_id() != 0 => {
            return wrong(format!(
                "`{}` is of one interface; etcd needs another address",
                shown(rest)
            ));
        }
        Ok(address) => address,
        Err(complaint) => return Err(complaint.with_hint(
            "write an IP address and a port, \"http://192.0.2.1:2379\"; names are not looked up",
        )),
    };
    Ok(Endpoint { is_secure, address })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn config(store: &str) -> Result<Store, String> {
        let text = format!(
            "[gateway]\nname = \"a\"\n[[path]]\nname = \"p\"\nlocal = \"192.0.2.1:4500\"\nrate = \"1Mbit\"\n{store}"
        );
        let config = Config::parse(&text, "test.toml").map_err(|error| error.to_string())?;
        Ok(config.store)
    }

    #[test]
    fn plan_store_defaults_to_files() {
        assert_eq!(config(""), Ok(Store::File));
        assert_eq!(config("[store]\nkind = \"file\"\n"), Ok(Store::File));
    }

    #[test]
    fn every_etcd_key_is_read() {
        let text = r#"[store]
kind = "etcd"
site = "osaka"
endpoints = ["https://10.0.0.1:2379", "https://10.0.0.2:2379"]
ca = "/etc/keiro/ca.pem"
cert = "/etc/keiro/cert.pem"
key = "/etc/keiro/key.pem"
user = "keiro"
password_file = "/etc/keiro/password"
timeout = "2s"
"#;
        let Ok(Store::Etcd(etcd)) = config(text) else {
            panic!("{:?}", config(text));
        };
        assert_eq!((etcd.site.as_str(), etcd.endpoints.len()), ("osaka", 2));
        assert_eq!(etcd.timeout, Some(Duration::from_secs(2)));
        assert!(etcd.ca.is_some() && etcd.client.is_some() && etcd.user.is_some());
    }

    #[test]
    fn missing_and_superfluous_store_keys_are_reported() {
        let etcd = |rest: &str| config(&format!("[store]\nkind = \"etcd\"\n{rest}")).unwrap_err();
        let whole = "site = \"s\"\nendpoints = [\"http://127.0.0.1:2379\"]\n";
        for (text, wanted) in [
            (String::new(), "no `site`"),
            ("site = \"s\"\n".into(), "no `endpoints`"),
            (whole.replace("http:", "ftp:"), "not an address of etcd"),
            (whole.replace("http:", "https:"), "no `ca`"),
            (format!("{whole}cert = \"/c\"\n"), "no `key`"),
            (format!("{whole}password_file = \"/c\"\n"), "no `user`"),
            (format!("{whole}sight = \"s\"\n"), "sight"),
            (format!("{whole}ca = \"/c\"\n"), "is not encrypted"),
            (
                format!("{whole}user = \"u\"\npassword_file = \"/p\"\n")
                    .replace("127.0.0.1", "192.0.2.1"),
                "sent in the clear",
            ),
        ] {
            let error = etcd(&text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let error = config("[store]\nkind = \"file\"\nsite = \"s\"\n").unwrap_err();
        assert!(error.contains("no such key"), "{error}");
        assert!(config("[store]\n").unwrap_err().contains("no `kind`"));
    }

    #[test]
    fn etcd_endpoint_is_an_address_only() {
        let written = |endpoint: &str| {
            config(&format!(
                "[store]\nkind = \"etcd\"\nsite = \"s\"\nendpoints = [\"{endpoint}\"]\n"
            ))
        };
        for (endpoint, wanted) in [
            (
                "http://u:p4ss@10.9.1.2:2379/x",
                "must not have a user or password",
            ),
            ("http://10.9.1.2:2379/x", "nothing may follow"),
            ("http://10.9.1.2:2379?x", "nothing may follow"),
            ("http://10.9.1.2:99999", "not an IP address and a port"),
            ("http://10.9.1.2:0", "port 0"),
            ("http://10.9.1.2", "not an IP address and a port"),
            ("http://etcd.example:2379", "names are not looked up"),
            ("http://localhost:2379", "names are not looked up"),
            ("http://[fe80::1%3]:2379", "of one interface"),
            ("http://", "not an IP address and a port"),
            ("10.9.1.2:2379", "not an address of etcd"),
        ] {
            let error = written(endpoint).unwrap_err();
            assert!(error.contains(wanted), "{endpoint}: {error}");
            assert!(!error.contains("no part") || error.contains("password_file"));
        }
        for endpoint in ["http://127.0.0.1:2379", "http://[::1]:2379/"] {
            let Ok(Store::Etcd(etcd)) = written(endpoint) else {
                panic!("{:?}", written(endpoint));
            };
            assert_eq!(
                etcd.endpoints[0].to_string(),
                endpoint.trim_end_matches('/')
            );
        }
    }
}
