//! A daemon of the egress suite, asked when a page wants it, once for all viewers.
//!
//! The daemon's own types are not used, so that these pages do not contain its BGP speaker. Fields that a newer daemon
//! adds are ignored; those that an older one lacks are not shown.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::Mutex,
};

use super::Fault;

/// See the module.
#[derive(Debug)]
pub(crate) struct Egress {
    pub(crate) socket: PathBuf,
    kept: Mutex<Option<(Instant, EgressAnswer)>>,
}

pub(crate) type EgressAnswer = Result<Arc<EgressStatus>, Fault>;

/// What a daemon answers to `status`, as far as it is shown; docs/egress.md has the fields.
#[derive(Debug, Deserialize)]
pub(crate) struct EgressStatus {
    pub(crate) role: String,
    pub(crate) asn: u32,
    pub(crate) router_id: String,
    pub(crate) config_rejected: Option<String>,
    #[serde(default)]
    pub(crate) neighbours: Vec<Neighbour>,
    #[serde(default)]
    pub(crate) peers: Vec<EgressPeer>,
    pub(crate) comparison: Option<Comparison>,
    pub(crate) kernel: Option<InKernel>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Neighbour {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) asn: u32,
    pub(crate) state: String,
    pub(crate) up_seconds: Option<u64>,
    /// By family.
    #[serde(default)]
    pub(crate) routes: BTreeMap<String, u64>,
    pub(crate) last_error: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct EgressPeer {
    pub(crate) name: String,
    pub(crate) sid: Option<String>,
    pub(crate) address: Option<String>,
    #[serde(default)]
    pub(crate) routes: u64,
    pub(crate) subflows: Option<u64>,
    pub(crate) kernel: Option<PeerInKernel>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct PeerInKernel {
    #[serde(default)]
    pub(crate) routes: u64,
    #[serde(default)]
    pub(crate) entered: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Comparison {
    #[serde(default)]
    pub(crate) shown: Vec<ComparedPrefix>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ComparedPrefix {
    pub(crate) prefix: String,
    pub(crate) mode: String,
    pub(crate) evidence: Evidence,
}

/// Goodput of single-path connections and of others.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Evidence {
    pub(crate) single_connections: u64,
    pub(crate) single_bits_per_second: Option<u64>,
    pub(crate) multipath_connections: u64,
    pub(crate) multipath_bits_per_second: Option<u64>,
    pub(crate) loss_low_permille: Option<i64>,
    pub(crate) loss_high_permille: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct InKernel {
    #[serde(default)]
    pub(crate) main_routes: u64,
    #[serde(default)]
    pub(crate) nexthops: u64,
    #[serde(default)]
    pub(crate) segments: u64,
    pub(crate) error: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Status(Box<EgressStatus>),
    Refused(String),
}

/// How old an answer may be. Ours: reading the kernel's tables costs the daemon work.
const FRESH_FOR: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer, as the daemon's own commands accept them.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

impl Egress {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            kept: Mutex::default(),
        }
    }

    /// The daemon's status.
    pub(crate) async fn status(&self) -> EgressAnswer {
        let mut kept = self.kept.lock().await;
        if let Some((at, answer)) = &*kept
            && at.elapsed() < FRESH_FOR
        {
            return answer.clone();
        }
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.ask()).await;
        let timed_out = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
        let answer = match asked.unwrap_or_else(timed_out) {
            Ok(document) => read(&document),
            Err(error) => Err(Fault::new(
                format!("{} does not answer: {error}", self.socket.display()),
                "`systemctl status keiro-asbr keiro-egress` says whether a daemon runs",
            )),
        };
        *kept = Some((Instant::now(), answer.clone()));
        answer
    }

    async fn ask(&self) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(&self.socket).await?;
        stream.write_all(b"\"status\"\n").await?;
        let mut document = Vec::new();
        stream
            .take(ANSWER_BYTES_MAX)
            .read_to_end(&mut document)
            .await?;
        Ok(document)
    }
}

fn read(document: &[u8]) -> EgressAnswer {
    match serde_json::from_slice(document) {
        Ok(Reply::Status(status)) => Ok(Arc::from(status)),
        Ok(Reply::Refused(why)) => Err(Fault::new(why, "`keiro show egress` asks the same")),
        Err(error) => Err(Fault::new(
            format!("the daemon's answer cannot be read: {error}"),
            "install `keiro-web` and the daemon from one version",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_and_damaged_answers_are_read_or_reported() {
        let newer = br#"{"status": {"role": "asbr", "asn": 65000, "router_id": "192.0.2.1", "colour": "green",
            "neighbours": [{"name": "rr", "address": "192.0.2.9", "asn": 65000, "state": "established", "up": true}]}}"#;
        let status = read(newer).unwrap();
        assert_eq!(
            (status.neighbours[0].name.as_str(), status.peers.len()),
            ("rr", 0)
        );
        let refused = read(br#"{"refused": "not now"}"#).unwrap_err();
        assert_eq!(refused.what, "not now");
        for damaged in [&b""[..], b"{}", b"{\"status\": 7}"] {
            assert!(read(damaged).unwrap_err().what.contains("cannot be read"));
        }
    }
}
