//! `GET /metrics` over HTTP: just enough of RFC 9112 for a scraper.
//!
//! One response per connection. What the metrics are is [`crate::metrics`]'s.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Context;
use keiro_linux::epoll::Epoll;

use crate::{acceptor::Acceptor, connection::Connection};

/// The listener and its clients.
pub(crate) struct MetricsServer {
    listener: Acceptor<TcpListener>,
    clients: BTreeMap<u64, Client>,
    next: u64,
    buffer: Vec<u8>,
}

struct Client {
    connection: Connection<TcpStream>,
    request: Vec<u8>,
    answered: bool,
    opened: Instant,
}

/// Scrapers at once; further ones are closed.
const CLIENTS_MAX: usize = 16;
/// A request's head; longer ones are refused.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// A connection lasts at most this long.
const CLIENT_TIME: Duration = Duration::from_secs(10);
/// Of OpenMetrics, which prometheus-client writes.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl MetricsServer {
    /// Listens at `address`.
    ///
    /// # Errors
    /// The port is in use, or the address is not this machine's.
    pub(crate) fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
        let listener = TcpListener::bind(address).with_context(|| {
            format!("metrics: cannot listen on {address}; is the port in use? (`ss -tlnp`)")
        })?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    pub(crate) fn new(epoll: &Epoll, listener: TcpListener, token: u64) -> io::Result<Self> {
        Ok(Self {
            listener: Acceptor::new(epoll, listener, token, "metrics")?,
            clients: BTreeMap::new(),
            next: 0,
            buffer: Vec::new(),
        })
    }

    /// Lets a listener that rests accept again.
    pub(crate) fn rearm(&mut self, epoll: &Epoll) {
        self.listener.rearm(epoll);
    }

    /// Accepts whoever waits; `token` makes a client's token from its number.
    pub(crate) fn accept(&mut self, epoll: &Epoll, token: impl Fn(u64) -> u64) {
        while let Some((stream, _)) = self.listener.accept(epoll, TcpListener::accept) {
            if self.clients.len() >= CLIENTS_MAX || stream.set_nonblocking(true).is_err() {
                continue;
            }
            let number = self.next;
            self.next += 1;
            let Ok(connection) = Connection::new(epoll, token(number), stream) else {
                continue;
            };
            let client = Client {
                connection,
                request: Vec::new(),
                answered: false,
                opened: Instant::now(),
            };
            self.clients.insert(number, client);
        }
    }

    /// Serves client `number`; `metrics` gives the page.
    pub(crate) fn serve(
        &mut self,
        epoll: &Epoll,
        number: u64,
        readable: bool,
        metrics: impl FnOnce() -> String,
    ) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        let mut open = true;
        if readable {
            match client.connection.read(&mut self.buffer) {
                Some(_) if client.answered => {}
                Some(bytes) => client.request.extend_from_slice(bytes),
                None => open = false,
            }
        }
        if !client.answered
            && let Some(response) = respond(&client.request, metrics)
        {
            client.answered = true;
            client.connection.push(&response);
        }
        let written = client.connection.flush(epoll);
        let done = client.answered && client.connection.waiting() == 0;
        if !open || !written || done {
            self.clients.remove(&number);
        }
    }

    /// Closes connections that last too long.
    pub(crate) fn sweep(&mut self) {
        self.clients
            .retain(|_, client| client.opened.elapsed() < CLIENT_TIME);
    }
}

/// The response, once the request's head is whole.
fn respond(request: &[u8], metrics: impl FnOnce() -> String) -> Option<Vec<u8>> {
    let whole = request.windows(4).any(|bytes| bytes == b"\r\n\r\n");
    let (status, kind, body) = if !whole && request.len() <= REQUEST_BYTES_MAX {
        return None;
    } else if !whole {
        (
            "431 Request Header Fields Too Large",
            "text/plain",
            String::new(),
        )
    } else {
        let line = request
            .split(|byte| *byte == b'\r')
            .next()
            .unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut words = line.split(' ');
        let target = |words: &mut std::str::Split<'_, char>| {
            words
                .next()
                .and_then(|target| target.split('?').next())
                .map(str::to_owned)
        };
        match (words.next(), target(&mut words).as_deref()) {
            (Some("GET"), Some("/metrics")) => ("200 OK", CONTENT_TYPE, metrics()),
            (Some("GET"), _) => ("404 Not Found", "text/plain", "see /metrics\n".to_owned()),
            _ => (
                "405 Method Not Allowed",
                "text/plain",
                "only GET\n".to_owned(),
            ),
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    Some([head.into_bytes(), body.into_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(request: &str) -> Option<String> {
        let bytes = respond(request.as_bytes(), || "keiro_up 1\n".to_owned())?;
        Some(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn only_get_metrics_gets_the_page() {
        assert_eq!(answer("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        let page = answer("GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.contains("Content-Length: 11\r\n"), "{page}");
        assert!(page.ends_with("\r\n\r\nkeiro_up 1\n"), "{page}");
        assert!(answer("GET / HTTP/1.1\r\n\r\n").unwrap().contains(" 404 "));
        assert!(
            answer("POST /metrics HTTP/1.1\r\n\r\n")
                .unwrap()
                .contains(" 405 ")
        );
        assert!(answer("\r\n\r\n").unwrap().contains(" 405 "));
    }

    #[test]
    fn a_head_without_end_is_refused() {
        let long = "x".repeat(REQUEST_BYTES_MAX + 1);
        assert!(answer(&long).unwrap().contains(" 431 "));
    }
}
