//! The messages of etcd's JSON gateway that are used here (etcd API reference v3.4, `rpc.proto`, in
//! the JSON mapping of protocol buffers 3: 64-bit numbers as text, bytes as base64, zeros left out).

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, de};

#[derive(Serialize)]
pub(super) struct Grant {
    #[serde(rename = "TTL")]
    pub(super) ttl: i64,
}

#[derive(Deserialize)]
pub(super) struct Granted {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(super) id: i64,
}

#[derive(Serialize)]
pub(super) struct KeepAlive {
    #[serde(rename = "ID")]
    pub(super) id: i64,
}

#[derive(Deserialize)]
pub(super) struct KeptAlive {
    /// 0: it has run out.
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    pub(super) ttl: i64,
}

#[derive(Serialize)]
pub(super) struct Revoke {
    #[serde(rename = "ID")]
    pub(super) id: i64,
}

/// What a stream's answers are wrapped in.
#[derive(Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: T,
}

#[derive(Serialize)]
pub(super) struct Authenticate<'a> {
    pub(super) name: &'a str,
    pub(super) password: &'a str,
}

#[derive(Deserialize)]
pub(super) struct Authenticated {
    pub(super) token: String,
}

#[derive(Deserialize)]
pub(super) struct Failure {
    #[serde(default)]
    pub(super) error: String,
    #[serde(default)]
    pub(super) message: String,
    /// As in gRPC.
    #[serde(default)]
    pub(super) code: i32,
}

#[derive(Serialize)]
pub(super) struct Put {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) lease: i64,
}

#[derive(Clone, Default, Serialize)]
pub(super) struct Range {
    key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    range_end: String,
    limit: i64,
    keys_only: bool,
    min_mod_revision: i64,
}

impl Range {
    pub(super) fn key(key: &[u8]) -> Self {
        Self {
            key: encoded(key),
            ..Self::default()
        }
    }

    /// The first `limit` keys that begin with `prefix`.
    pub(super) fn prefix(prefix: &[u8], limit: usize) -> Self {
        Self {
            key: encoded(prefix),
            range_end: encoded(&after(prefix)),
            limit: limit as i64,
            ..Self::default()
        }
    }

    /// Without the values.
    pub(super) fn keys_only(self) -> Self {
        Self {
            keys_only: true,
            ..self
        }
    }

    /// Those only that changed after `revision`.
    pub(super) fn changed_after(self, revision: i64) -> Self {
        Self {
            min_mod_revision: revision.saturating_add(1),
            ..self
        }
    }
}

#[derive(Serialize)]
pub(super) struct Watch {
    create_request: WatchCreate,
}

impl Watch {
    pub(super) fn prefix(prefix: &[u8]) -> Self {
        Self {
            create_request: WatchCreate {
                key: encoded(prefix),
                range_end: encoded(&after(prefix)),
            },
        }
    }
}

#[derive(Serialize)]
struct WatchCreate {
    key: String,
    range_end: String,
}

#[derive(Serialize)]
pub(super) struct Transaction {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Operation>,
    pub(super) failure: Vec<Operation>,
}

#[derive(Serialize)]
pub(super) struct Compare {
    key: String,
    target: &'static str,
    result: &'static str,
    mod_revision: i64,
}

impl Compare {
    /// The key's number of its last change is `revision`; that of a missing key is 0.
    pub(super) fn mod_revision(key: &[u8], revision: i64) -> Self {
        Self {
            key: encoded(key),
            target: "MOD",
            result: "EQUAL",
            mod_revision: revision,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    RequestRange(Range),
    RequestPut(Put),
}

impl Operation {
    pub(super) fn range(range: Range) -> Self {
        Self::RequestRange(range)
    }

    pub(super) fn put(put: Put) -> Self {
        Self::RequestPut(put)
    }
}

#[derive(Default, Deserialize)]
pub(super) struct Header {
    #[serde(default, deserialize_with = "unsigned")]
    pub(super) cluster_id: u64,
    #[serde(default, deserialize_with = "number")]
    pub(super) revision: i64,
}

#[derive(Deserialize)]
pub(super) struct Transacted {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

impl Transacted {
    /// The answers of a transaction of four ranges.
    pub(super) fn four_ranges(&mut self) -> Result<[Ranged; 4], String> {
        let responses = std::mem::take(&mut self.responses);
        let ranges = responses.into_iter().filter_map(|one| one.response_range);
        let ranges: Vec<_> = ranges.collect();
        let count = ranges.len();
        ranges
            .try_into()
            .map_err(|_| format!("four ranges were asked for and {count} came"))
    }

    pub(super) fn first_value(&self) -> Option<&KeyValue> {
        let range = self.responses.first()?.response_range.as_ref()?;
        range.kvs.first()
    }
}

#[derive(Deserialize)]
struct Response {
    response_range: Option<Ranged>,
}

#[derive(Deserialize)]
pub(super) struct Ranged {
    #[serde(default)]
    pub(super) kvs: Vec<KeyValue>,
    /// All that there are, whatever the limit.
    #[serde(default, deserialize_with = "number")]
    pub(super) count: i64,
}

#[derive(Deserialize)]
pub(super) struct KeyValue {
    #[serde(deserialize_with = "bytes")]
    pub(super) key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    pub(super) value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: i64,
    /// 0: none.
    #[serde(default, deserialize_with = "number")]
    pub(super) lease: i64,
}

pub(super) fn encoded(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// The end of the range of all keys that begin with `prefix`, which ends with a `/`.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number<T> {
    Number(T),
    Text(String),
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    match Number::deserialize(deserializer)? {
        Number::Number(number) => Ok(number),
        Number::Text(text) => text.parse().map_err(de::Error::custom),
    }
}

fn unsigned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match Number::deserialize(deserializer)? {
        Number::Number(number) => Ok(number),
        Number::Text(text) => text.parse().map_err(de::Error::custom),
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    BASE64_STANDARD.decode(text).map_err(de::Error::custom)
}
