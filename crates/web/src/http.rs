//! The HTTP server: connections within limits, and what becomes of each request.

pub(crate) mod access;
mod assets;
mod guard;
mod live;
mod login;
mod pages;
mod turns;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{Router, middleware, routing};
use hyper::{Request, body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::Semaphore,
};
use tokio_io_timeout::TimeoutStream;

pub(crate) use self::assets::address as asset_address;
use self::{access::Access, guard::Hosts, pages::Rendered, turns::Turns};
use crate::{
    site::{CONNECTIONS_MAX, Site, VIEWERS_MAX},
    source::{SocketName, Source, egress::Egress},
    text,
};

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    /// A socket of mode 0660: the file system decides who may connect.
    Unix(PathBuf),
}

/// What to serve, and which clients may read it.
#[derive(Debug)]
pub struct Options {
    pub listen: Listen,
    /// One at least.
    pub sockets: Vec<SocketName>,
    /// Control sockets of daemons of the egress suite.
    pub egress: Vec<PathBuf>,
    pub access: Access,
    /// Names by which browsers reach the server, beside addresses of this machine.
    pub hosts: Vec<String>,
}

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen at {at}: {error}")]
    Listen { at: String, error: io::Error },
    /// Two gateways have one name.
    #[error("two control sockets are named `{0}`")]
    Name(String),
}

/// Bytes of a request's head. The least that hyper takes is 8 KiB.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long a request's head may take, and a connection be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a client may read nothing of what is sent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection is closed after this time; a live page makes another one.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(2 * 3600);

/// What all requests share.
#[derive(Debug)]
struct Server {
    site: Site,
    access: Access,
    hosts: Hosts,
    rendered: Rendered,
    turns: Turns,
}

/// The other end of a connection; `None`: of a Unix socket.
#[derive(Clone, Copy, Debug)]
struct Remote(Option<IpAddr>);

/// Serves until the future is dropped. `ready` is called once with the address in use, absent for a Unix socket.
///
/// # Errors
/// The server cannot listen, or two gateways have one name.
pub async fn serve(
    options: Options,
    ready: impl FnOnce(Option<SocketAddr>),
) -> Result<Infallible, ServeError> {
    let at = match &options.listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(path) => path.display().to_string(),
    };
    let cannot = |error| ServeError::Listen {
        at: at.clone(),
        error,
    };
    let names = names(&options.sockets)?;
    let listener = listen(&options.listen).await.map_err(cannot)?;
    let address = listener.address();
    let started = names.into_iter().zip(options.sockets);
    let server = Arc::new(Server {
        site: Site {
            sources: started
                .map(|(name, socket)| Source::start(name, socket.path))
                .collect(),
            egress: options.egress.into_iter().map(Egress::new).collect(),
            started: SystemTime::now(),
            viewers: Arc::new(Semaphore::new(VIEWERS_MAX)),
        },
        access: options.access,
        hosts: Hosts::new(&options.listen, options.hosts),
        rendered: Rendered::default(),
        turns: Turns::default(),
    });
    let router = router(server);
    ready(address);
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let (stream, remote) = match listener.accept().await {
            Ok(accepted) => accepted,
            // Descriptors may be short: those of others become free.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match Arc::clone(&connections).try_acquire_owned() {
            Ok(permit) => {
                let service = router.clone();
                tokio::spawn(async move {
                    connection(stream, remote, service).await;
                    drop(permit);
                });
            }
            Err(_) => stream.refuse(),
        }
    }
}

/// The sources' names in addresses: those given, else `gateway`, `gateway2` and so on.
fn names(sockets: &[SocketName]) -> Result<Vec<String>, ServeError> {
    let mut names: Vec<String> = Vec::new();
    for (index, socket) in sockets.iter().enumerate() {
        let number = match index {
            0 => String::new(),
            _ => (index + 1).to_string(),
        };
        let name = socket
            .name
            .clone()
            .unwrap_or_else(|| format!("gateway{number}"));
        if names.contains(&name) || RESERVED_NAMES.contains(&name.as_str()) {
            return Err(ServeError::Name(name));
        }
        names.push(name);
    }
    Ok(names)
}

/// First parts of addresses that are no gateway's.
const RESERVED_NAMES: [&str; 3] = ["assets", "login", "logout"];

fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/", routing::get(pages::index))
        .route("/assets/{file}", routing::get(assets::asset))
        .route("/login", routing::get(login::form).post(login::login))
        .route("/logout", routing::post(login::logout))
        .fallback(pages::page)
        .layer(middleware::from_fn_with_state(
            Arc::clone(&server),
            guard::guard,
        ))
        .with_state(server)
}

async fn connection(stream: Stream, remote: Remote, router: Router) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let service = TowerToHyperService::new(router);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(remote);
        hyper::service::Service::call(&service, request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    // What a client does wrong ends its connection.
    let _ = tokio::time::timeout(CONNECTION_TIME_MAX, served).await;
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Kept for its end.
        _file: SocketFile,
    },
}

/// A socket's file, removed with the server.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn listen(at: &Listen) -> io::Result<Listener> {
    match at {
        Listen::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address).await?)),
        Listen::Unix(path) => listen_unix(path),
    }
}

fn listen_unix(path: &Path) -> io::Result<Listener> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    // One that a killed process left; that of a running one is kept.
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let _file = SocketFile(path.to_owned());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(Listener::Unix { listener, _file })
}

impl Listener {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix { .. } => None,
        }
    }

    async fn accept(&self) -> io::Result<(Stream, Remote)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                // Updates are small and wanted at once.
                stream.set_nodelay(true)?;
                Ok((
                    Stream::Tcp(stream),
                    Remote(Some(remote.ip().to_canonical())),
                ))
            }
            Self::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), Remote(None)))
            }
        }
    }
}

impl Stream {
    /// Says why, as far as that goes without waiting.
    fn refuse(self) {
        let body = format!(
            "{CONNECTIONS_MAX} connections are served already; close some pages, or try again later\n"
        );
        let response = format!(
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
             Retry-After: 5\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = match &self {
            Self::Tcp(stream) => stream.try_write(response.as_bytes()),
            Self::Unix(stream) => stream.try_write(response.as_bytes()),
        };
    }
}

macro_rules! forward {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Self::Tcp(stream) => {
                let $stream = std::pin::Pin::new(stream);
                $call
            }
            Self::Unix(stream) => {
                let $stream = std::pin::Pin::new(stream);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        forward!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_shutdown(context))
    }
}

/// A short text as an answer, with the next step where there is one.
fn plain(status: axum::http::StatusCode, what: &str, next: &str) -> axum::response::Response {
    use axum::response::IntoResponse;
    let next = match next {
        "" => String::new(),
        next => format!("try: {next}\n"),
    };
    let what = text::visible(what, 500);
    (status, format!("{what}\n{next}")).into_response()
}
