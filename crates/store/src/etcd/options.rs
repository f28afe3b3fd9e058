//! How to reach etcd.

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

/// How to reach etcd, and the user.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Its members, tried in turn; at least one.
    pub endpoints: Vec<Endpoint>,
    /// The site; gateways of the same one share. 1 to 64 bytes of `A-Z a-z 0-9 . _ -`.
    pub site: String,
    /// This gateway, another name for every gateway of the site.
    pub gateway: String,
    /// How long this gateway's inputs outlive it.
    pub time_to_live: Duration,
    /// For one request to one endpoint, all in all.
    pub timeout: Duration,
    /// Needed for endpoints with `https://`.
    pub tls: Option<TlsFiles>,
    /// Where etcd has authentication switched on.
    pub user: Option<UserFile>,
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

/// Certificates in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Authorities that etcd's certificate may be signed by.
    pub authorities: PathBuf,
    /// This gateway's certificate chain and its private key, where etcd asks for one.
    pub client: Option<ClientFiles>,
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// The chain, the gateway's own first.
    pub certificate: PathBuf,
    /// The private key; must not be readable by others.
    pub key: PathBuf,
}

/// A user of etcd.
#[derive(Clone, Debug)]
pub struct UserFile {
    pub name: String,
    /// Holds the password on its first line; must not be readable by others.
    pub password_file: PathBuf,
}

/// Ours: two missed renewals out of three do not matter.
pub const TIME_TO_LIVE_DEFAULT: Duration = Duration::from_secs(5);
/// Ours: a healthy etcd answers within some 10 ms, one that writes to a slow disk within 500 ms.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// Endpoints tried. Ours: etcd recommends at most 7 members.
pub const ENDPOINTS_MAX: usize = 16;
