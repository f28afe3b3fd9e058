//! Requests to etcd's JSON gateway: several endpoints, TLS, a user's token, bounded time and size.

use std::{fs, io::Read, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use keiro_config::regular_file;
use rustls::{
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use serde::{Serialize, de::DeserializeOwned};
use ureq::{
    Agent, Body,
    http::Response,
    tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider},
};

use super::{
    message::{Authenticate, Authenticated, Failure},
    options::{ClientFiles, ENDPOINTS_MAX, EtcdOptions, TlsFiles, UserFile},
};
use crate::{plan_store::StoreError, site::without_byte_order_mark};

/// One answer. Ours: the inputs of a site with gateways as large as they may be, all changed at
/// once, do not fit; sixteen of them do.
const RESPONSE_BYTES_MAX: u64 = 32 << 20;
/// A certificate, key or password file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// What is shown of a server's message.
const MESSAGE_CHARS_MAX: usize = 200;

/// gRPC's numbers of statuses that another member may not answer with.
const UNAVAILABLE: i32 = 14;
const DEADLINE_EXCEEDED: i32 = 4;
const UNAUTHENTICATED: i32 = 16;

pub(super) struct Client {
    agent: Agent,
    endpoints: Vec<String>,
    /// The one that answered last.
    current: usize,
    timeout: Duration,
    user: Option<User>,
    token: Option<String>,
}

struct User {
    name: String,
    password: String,
}

impl Client {
    pub(super) fn new(options: &EtcdOptions) -> Result<Self, StoreError> {
        let endpoints = endpoints(options)?;
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // What the environment says about proxies is not meant for a daemon's own store.
            .proxy(None)
            .timeout_connect(Some(options.timeout));
        if let Some(files) = &options.tls {
            config = config.tls_config(tls(files)?);
        }
        let user = options.user.as_ref().map(user).transpose()?;
        Ok(Self {
            agent: config.build().into(),
            endpoints,
            current: 0,
            timeout: options.timeout,
            user,
            token: None,
        })
    }

    /// The endpoint that answered last.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoints[self.current]
    }

    pub(super) fn not_understood(&self, reason: impl Into<String>) -> StoreError {
        StoreError::NotUnderstood {
            endpoint: self.endpoint().to_owned(),
            reason: reason.into(),
        }
    }

    /// Asks one endpoint after the other until one answers.
    pub(super) fn call<Q: Serialize, A: DeserializeOwned>(
        &mut self,
        method: &str,
        request: &Q,
    ) -> Result<A, StoreError> {
        let body = serde_json::to_vec(request).map_err(|e| self.not_understood(e.to_string()))?;
        let answer = self.in_turn(|client| {
            let response = client.authorised(method, &body, client.timeout)?;
            client.read(response)
        })?;
        serde_json::from_slice(&answer).map_err(|e| self.not_understood(printable(&e.to_string())))
    }

    /// Makes a request whose answer does not end; `on_data` for each piece of it.
    pub(super) fn stream<Q: Serialize>(
        &mut self,
        method: &str,
        request: &Q,
        timeout: Duration,
        on_data: &mut dyn FnMut(),
    ) -> Result<(), StoreError> {
        let body = serde_json::to_vec(request).map_err(|e| self.not_understood(e.to_string()))?;
        let mut response = self.in_turn(|client| client.authorised(method, &body, timeout))?;
        let mut reader = response.body_mut().as_reader();
        let mut buffer = [0; 8192];
        // Ends with the time-out of the request, which covers the answer too.
        while let Ok(1..) = reader.read(&mut buffer) {
            on_data();
        }
        Ok(())
    }

    fn in_turn<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut tried = 1;
        loop {
            match attempt(self) {
                Err(StoreError::Unreachable { .. }) if tried < self.endpoints.len() => {
                    self.current = (self.current + 1) % self.endpoints.len();
                    tried += 1;
                }
                result => {
                    if matches!(result, Err(StoreError::Unreachable { .. })) {
                        self.current = (self.current + 1) % self.endpoints.len();
                    }
                    return result;
                }
            }
        }
    }

    /// One request to the current endpoint, with a token where there is a user; a token that has
    /// run out is replaced once.
    fn authorised(
        &mut self,
        method: &str,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Response<Body>, StoreError> {
        let had_token = self.token.is_some();
        if self.user.is_some() && !had_token {
            self.authenticate()?;
        }
        let response = self.post(method, body, timeout)?;
        match self.accepted(response) {
            Err(Failed { code, .. }) if code == UNAUTHENTICATED && had_token => {
                self.authenticate()?;
                let response = self.post(method, body, timeout)?;
                self.accepted(response).map_err(|failed| failed.error)
            }
            result => result.map_err(|failed| failed.error),
        }
    }

    fn authenticate(&mut self) -> Result<(), StoreError> {
        self.token = None;
        let Some(user) = &self.user else {
            return Ok(());
        };
        let request = Authenticate {
            name: &user.name,
            password: &user.password,
        };
        let body = serde_json::to_vec(&request).map_err(|e| self.not_understood(e.to_string()))?;
        let response = self.post("auth/authenticate", &body, self.timeout)?;
        let response = self.accepted(response).map_err(|failed| failed.error)?;
        let answer = self.read(response)?;
        let authenticated: Authenticated = serde_json::from_slice(&answer)
            .map_err(|e| self.not_understood(printable(&e.to_string())))?;
        self.token = Some(authenticated.token);
        Ok(())
    }

    fn post(
        &self,
        method: &str,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Response<Body>, StoreError> {
        let mut request = self
            .agent
            .post(format!("{}/v3/{method}", self.endpoint()))
            .header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", token);
        }
        request
            .config()
            .timeout_global(Some(timeout))
            .build()
            .send(body)
            .map_err(|error| self.unreachable(&error))
    }

    fn accepted(&self, mut response: Response<Body>) -> Result<Response<Body>, Failed> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let limited = response.body_mut().with_config().limit(64 << 10);
        let failure: Failure = limited
            .read_to_vec()
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok())
            .unwrap_or(Failure {
                error: String::new(),
                message: String::new(),
                code: 0,
            });
        let said = match (failure.message.as_str(), failure.error.as_str()) {
            ("", "") => format!("HTTP status {status}"),
            ("", error) => printable(error),
            (message, _) => printable(message),
        };
        let endpoint = self.endpoint().to_owned();
        let is_down = matches!(failure.code, UNAVAILABLE | DEADLINE_EXCEEDED)
            || (failure.code == 0 && status.is_server_error());
        let error = match is_down {
            true => StoreError::Unreachable {
                endpoint,
                reason: said,
            },
            false => StoreError::Refused {
                endpoint,
                message: said,
            },
        };
        Err(Failed {
            code: failure.code,
            error,
        })
    }

    fn read(&self, mut response: Response<Body>) -> Result<Vec<u8>, StoreError> {
        let limited = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX);
        limited.read_to_vec().map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => {
                self.not_understood(format!("more than {RESPONSE_BYTES_MAX} bytes"))
            }
            error => self.unreachable(&error),
        })
    }

    fn unreachable(&self, error: &ureq::Error) -> StoreError {
        let endpoint = self.endpoint().to_owned();
        match error {
            ureq::Error::Protocol(_) | ureq::Error::Http(_) => StoreError::NotUnderstood {
                endpoint,
                reason: printable(&error.to_string()),
            },
            ureq::Error::Timeout(_) => StoreError::Unreachable {
                endpoint,
                reason: "no answer in time".into(),
            },
            error => StoreError::Unreachable {
                endpoint,
                reason: printable(&error.to_string()),
            },
        }
    }
}

struct Failed {
    code: i32,
    error: StoreError,
}

fn endpoints(options: &EtcdOptions) -> Result<Vec<String>, StoreError> {
    let wrong = |text: String| Err(StoreError::Configuration(text));
    if !(1..=ENDPOINTS_MAX).contains(&options.endpoints.len()) {
        let count = options.endpoints.len();
        return wrong(format!(
            "{count} endpoints; 1 to {ENDPOINTS_MAX} are needed, such as http://10.0.0.1:2379"
        ));
    }
    for endpoint in &options.endpoints {
        match (endpoint.is_secure, &options.tls) {
            (true, None) => {
                return wrong(format!(
                    "endpoint {endpoint}: https needs the file of the certificate authority"
                ));
            }
            (false, Some(_)) => {
                return wrong(format!(
                    "endpoint {endpoint}: certificates are given, so it should be https"
                ));
            }
            _ => {}
        }
        let is_loopback = endpoint.address.ip().is_loopback();
        if !endpoint.is_secure && options.user.is_some() && !is_loopback {
            return wrong(format!(
                "endpoint {endpoint}: the password would be sent in the clear; use https"
            ));
        }
    }
    Ok(options.endpoints.iter().map(ToString::to_string).collect())
}

/// Checks everything that the library would panic on later.
fn tls(files: &TlsFiles) -> Result<TlsConfig, StoreError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let authorities = certificates(&files.authorities)?;
    let roots = authorities
        .iter()
        .map(|der| Certificate::from_der(der).to_owned());
    let roots: Vec<_> = roots.collect();
    let client = match &files.client {
        Some(client) => Some(client_certificate(client, &provider)?),
        None => None,
    };
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(client)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

fn client_certificate(
    files: &ClientFiles,
    provider: &CryptoProvider,
) -> Result<ClientCert, StoreError> {
    let chain = certificates(&files.certificate)?;
    let pem = read_secret(&files.key)?;
    let wrong =
        |reason: String| StoreError::Configuration(format!("{}: {reason}", files.key.display()));
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|e| wrong(format!("no private key in PEM ({e:?})")))?;
    CertifiedKey::from_der(chain.clone(), key, provider)
        .map_err(|e| wrong(format!("does not fit {}: {e}", files.certificate.display())))?;
    let chain: Vec<_> = chain
        .iter()
        .map(|der| Certificate::from_der(der).to_owned())
        .collect();
    let key = PrivateKey::from_pem(&pem).map_err(|e| wrong(e.to_string()))?;
    Ok(ClientCert::new_with_certs(&chain, key))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let pem = read_bounded(path)?;
    let wrong = |reason: String| StoreError::Configuration(format!("{}: {reason}", path.display()));
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|e| wrong(format!("not PEM ({e:?})")))?;
    if found.is_empty() {
        return Err(wrong("no certificate in PEM".into()));
    }
    Ok(found)
}

fn user(file: &UserFile) -> Result<User, StoreError> {
    let text = read_secret(&file.password_file)?;
    let text = String::from_utf8_lossy(&text);
    let password = text.lines().next().unwrap_or_default().to_owned();
    if password.is_empty() {
        return Err(StoreError::Configuration(format!(
            "{}: no password on its first line",
            file.password_file.display()
        )));
    }
    Ok(User {
        name: file.name.clone(),
        password,
    })
}

fn read_secret(path: &Path) -> Result<Vec<u8>, StoreError> {
    let metadata = fs::metadata(path).map_err(|e| StoreError::file("read", path, e))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(StoreError::Configuration(format!(
            "{}: others can read it; chmod 600 {0}",
            path.display()
        )));
    }
    read_bounded(path)
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, StoreError> {
    let failed = |e| StoreError::file("read", path, e);
    let mut bytes = regular_file::read(path, FILE_BYTES_MAX).map_err(failed)?;
    let marked = bytes.len() - without_byte_order_mark(&bytes).len();
    bytes.drain(..marked);
    Ok(bytes)
}

/// Foreign text as part of one line of a message.
fn printable(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(MESSAGE_CHARS_MAX).collect()
}
