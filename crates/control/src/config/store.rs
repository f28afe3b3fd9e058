//! `[store]`: where the plan is kept, and with whom it is shared.

use std::{collections::BTreeMap, ops::Range, path::PathBuf, time::Duration};

use toml::de::DeValue;

use super::{
    Name,
    document::{At, Complaint, Fields, choice, file_name, string, type_name},
    read::{name, positive_time},
    report::Report,
};
use crate::units::shown;

/// `[store]`: where the plan is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// In files below `state_directory`, for this gateway alone.
    #[default]
    File,
    /// In etcd, shared with the other gateways of the site.
    Etcd(Box<Etcd>),
}

/// An etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etcd {
    /// Gateways of the same site share inputs and plan.
    pub site: Name,
    /// `http://` or `https://` addresses of its members, tried in turn; at least one.
    pub endpoints: Vec<String>,
    /// Authorities that may have signed the members' certificates, PEM.
    pub ca: Option<PathBuf>,
    /// This gateway's certificate and its private key, PEM; both or neither.
    pub client: Option<(PathBuf, PathBuf)>,
    /// A user and the file that holds the password; both or neither.
    pub user: Option<(Name, PathBuf)>,
    /// For one request to one member; `None`: the store's default.
    pub timeout: Option<Duration>,
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

pub(super) fn store(mut fields: Fields<'_, '_>, report: &mut Report<'_>) -> Option<Store> {
    let place = fields.place_of("kind");
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
        .map(|key| (key, fields.place_of(key)))
        .collect();
    let has = |key: &str| written.contains_key(key);
    fields.refuse_the_rest(report);
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
    let secure = |found: &At<Vec<String>>| found.value.iter().any(|e| e.starts_with("https:"));
    if endpoints.as_ref().is_some_and(secure) && !has("ca") {
        missing("ca", "\"/etc/keiro/etcd-ca.pem\"");
    }
    let value = |found: Option<At<PathBuf>>| found.map(|found| found.value);
    Some(Store::Etcd(Box::new(Etcd {
        site: site?.value,
        endpoints: endpoints?.value,
        ca: value(ca),
        client: value(cert).zip(value(key)),
        user: user.map(|user| user.value).zip(value(password)),
        timeout: timeout.map(|timeout| timeout.value),
    })))
}

fn endpoints(value: &DeValue<'_>) -> Result<Vec<String>, Complaint> {
    const HINT: &str = "write endpoints = [\"http://127.0.0.1:2379\"]";
    let DeValue::Array(array) = value else {
        return Err(Complaint::new(
            format!("this is {}", type_name(value)),
            HINT,
        ));
    };
    if !(1..=ENDPOINTS_MAX).contains(&array.len()) {
        let message = format!("{} addresses", array.len());
        return Err(Complaint::new(
            message,
            format!("write 1 to {ENDPOINTS_MAX}"),
        ));
    }
    let endpoint = |value: &toml::Spanned<DeValue<'_>>| {
        let text = string(value.get_ref())?;
        let known = text.starts_with("http://") || text.starts_with("https://");
        match known && text.len() <= ENDPOINT_BYTES_MAX {
            true => Ok(text.to_owned()),
            false => Err(Complaint::new(
                format!("`{}` is no address of etcd", shown(text)),
                HINT,
            )),
        }
    };
    array.iter().map(endpoint).collect()
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
    fn files_are_the_default() {
        assert_eq!(config(""), Ok(Store::File));
        assert_eq!(config("[store]\nkind = \"file\"\n"), Ok(Store::File));
    }

    #[test]
    fn etcd_with_everything() {
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
    fn what_is_missing_or_too_much_is_said() {
        let etcd = |rest: &str| config(&format!("[store]\nkind = \"etcd\"\n{rest}")).unwrap_err();
        let whole = "site = \"s\"\nendpoints = [\"http://127.0.0.1:2379\"]\n";
        for (text, wanted) in [
            (String::new(), "no `site`"),
            ("site = \"s\"\n".into(), "no `endpoints`"),
            (whole.replace("http:", "ftp:"), "no address of etcd"),
            (whole.replace("http:", "https:"), "no `ca`"),
            (format!("{whole}cert = \"/c\"\n"), "no `key`"),
            (format!("{whole}password_file = \"/c\"\n"), "no `user`"),
            (format!("{whole}sight = \"s\"\n"), "sight"),
        ] {
            let error = etcd(&text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let error = config("[store]\nkind = \"file\"\nsite = \"s\"\n").unwrap_err();
        assert!(error.contains("no such key"), "{error}");
        assert!(config("[store]\n").unwrap_err().contains("no `kind`"));
    }
}
