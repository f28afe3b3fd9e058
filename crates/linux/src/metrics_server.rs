//! `GET /metrics` over HTTP: the part of RFC 9112 that a scraper needs.
//!
//! One response per connection. The caller makes the page.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use crate::{acceptor::Acceptor, connection::Connection, epoll::Epoll, limit};

/// The listener and its clients.
#[derive(Debug)]
pub struct MetricsServer {
    listener: Acceptor<TcpListener>,
    clients: BTreeMap<u64, Client>,
    next: u64,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Client {
    connection: Connection<TcpStream>,
    request: Vec<u8>,
    answered: bool,
    opened: Instant,
}

/// Maximum of concurrent scrapers; further ones are closed.
const CLIENTS_MAX: usize = 16;
/// Maximum length of a request's head; longer ones are refused.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Maximum duration of a connection.
const CLIENT_TIME: Duration = Duration::from_secs(10);
/// Content type of OpenMetrics, which prometheus-client writes.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl MetricsServer {
    /// Listens at `address`.
    ///
    /// # Errors
    /// The port is in use, or the address is not this machine's.
    pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Takes over the listener of [`Self::bind`]; it is ready under `token`.
    ///
    /// # Errors
    /// It cannot be added to the epoll set.
    pub fn new(epoll: &Epoll, listener: TcpListener, token: u64) -> io::Result<Self> {
        Ok(Self {
            listener: Acceptor::new(epoll, listener, token, "metrics")?,
            clients: BTreeMap::new(),
            next: 0,
            buffer: Vec::new(),
        })
    }

    /// Lets a paused listener accept again.
    pub fn rearm(&mut self, epoll: &Epoll) {
        self.listener.rearm(epoll);
    }

    /// Accepts all waiting connections; `token` maps a client's number to its token.
    pub fn accept(&mut self, epoll: &Epoll, token: impl Fn(u64) -> u64) {
        let outside_reserve = |listener: &TcpListener| limit::outside_reserve(listener.accept()?.0);
        while let Some(stream) = self.listener.accept(epoll, outside_reserve) {
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

    /// Serves client `number`; `metrics` makes the page.
    pub fn serve(
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
    pub fn sweep(&mut self) {
        self.clients
            .retain(|_, client| client.opened.elapsed() < CLIENT_TIME);
    }
}

/// The response, once the request's head is complete.
fn respond(request: &[u8], metrics: impl FnOnce() -> String) -> Option<Vec<u8>> {
    let whole = request.windows(4).any(|bytes| bytes == b"\r\n\r\n");
    let (status, more, body) = match whole {
        false if request.len() <= REQUEST_BYTES_MAX => return None,
        false => ("431 Request Header Fields Too Large", "", String::new()),
        true => match target(request) {
            Ok("/metrics") => ("200 OK", "", metrics()),
            Ok(_) => ("404 Not Found", "", "see /metrics\n".to_owned()),
            Err(Bad::Method) => {
                let body = "only GET\n".to_owned();
                ("405 Method Not Allowed", "Allow: GET\r\n", body)
            }
            Err(Bad::Line) => ("400 Bad Request", "", "no HTTP/1 request\n".to_owned()),
        },
    };
    let kind = match status {
        "200 OK" => CONTENT_TYPE,
        _ => "text/plain",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{more}Connection: close\r\n\r\n",
        body.len()
    );
    Some([head.into_bytes(), body.into_bytes()].concat())
}

/// Faults of a request.
enum Bad {
    /// Its first line is not HTTP/1.
    Line,
    /// The method is not GET.
    Method,
}

/// The path of a complete head, without the query.
fn target(request: &[u8]) -> Result<&str, Bad> {
    let line = request.split(|byte| *byte == b'\r').next();
    let line = line.and_then(|line| std::str::from_utf8(line).ok());
    let mut words = line.ok_or(Bad::Line)?.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some("GET"), Some(target), Some(version), None) if version.starts_with("HTTP/1.") => {
            Ok(target.split('?').next().unwrap_or_default())
        }
        (Some(method), Some(_), Some(version), None)
            if version.starts_with("HTTP/1.") && !method.is_empty() && method != "GET" =>
        {
            Err(Bad::Method)
        }
        _ => Err(Bad::Line),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::epoll::ReadyList;

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
    }

    #[test]
    fn invalid_requests_get_an_error_status() {
        for request in [
            "\r\n\r\n",
            "GET\r\n\r\n",
            "GET /metrics\r\n\r\n",
            "GET /metrics HTTP/2\r\n\r\n",
            "GET  /metrics HTTP/1.1\r\n\r\n",
            "GET /metrics HTTP/1.1 more\r\n\r\n",
            " /metrics HTTP/1.1\r\n\r\n",
        ] {
            let said = answer(request).unwrap();
            assert!(said.starts_with("HTTP/1.1 400 "), "{request:?}: {said}");
        }
        let bytes = respond(b"\xff\xfe /metrics HTTP/1.1\r\n\r\n", || panic!("no page"));
        assert!(bytes.unwrap().starts_with(b"HTTP/1.1 400 "));
    }

    #[test]
    fn a_head_without_end_is_refused() {
        let long = "x".repeat(REQUEST_BYTES_MAX + 1);
        assert!(answer(&long).unwrap().contains(" 431 "));
    }

    const LISTENER: u64 = 1 << 32;

    /// A server with its epoll set and address.
    fn server() -> (Epoll, MetricsServer, SocketAddr) {
        let listener = MetricsServer::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let epoll = Epoll::new().unwrap();
        let server = MetricsServer::new(&epoll, listener, LISTENER).unwrap();
        (epoll, server, address)
    }

    fn serve_until(
        epoll: &Epoll,
        server: &mut MetricsServer,
        mut holds: impl FnMut(&MetricsServer) -> bool,
    ) {
        let mut ready = ReadyList::new(32);
        let begin = Instant::now();
        while !holds(server) {
            assert!(begin.elapsed() < Duration::from_secs(10), "never");
            let step = Some(Duration::from_millis(1));
            epoll.wait(&mut ready, step).unwrap();
            for event in ready.iter() {
                match event.token {
                    LISTENER => server.accept(epoll, |number| number),
                    number => server.serve(epoll, number, event.readable, || "page\n".into()),
                }
            }
        }
    }

    fn client(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).unwrap();
        stream
    }

    #[test]
    fn a_request_in_pieces_is_answered_and_a_gone_client_forgotten() {
        let (epoll, mut server, address) = server();
        let mut slow = client(address);
        slow.write_all(b"GET /met").unwrap();
        drop(client(address));
        serve_until(&epoll, &mut server, |server| {
            server.next == 2 && server.clients.len() == 1
        });
        slow.write_all(b"rics HTTP/1.1\r\n\r\n").unwrap();
        serve_until(&epoll, &mut server, |server| server.clients.is_empty());
        let mut said = String::new();
        slow.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n") && said.ends_with("\r\n\r\npage\n"));
    }

    #[test]
    fn clients_beyond_the_bound_are_closed_and_others_served() {
        let (epoll, mut server, address) = server();
        let mut silent: Vec<TcpStream> = (0..CLIENTS_MAX).map(|_| client(address)).collect();
        let full = |server: &MetricsServer| server.clients.len() == CLIENTS_MAX;
        serve_until(&epoll, &mut server, full);
        let further = client(address);
        further.set_nonblocking(true).unwrap();
        serve_until(&epoll, &mut server, |_| {
            let open = further.peek(&mut [0]);
            !open.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        });
        assert!(full(&server));
        let mut one = silent.pop().unwrap();
        one.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        serve_until(&epoll, &mut server, |server| {
            server.clients.len() < CLIENTS_MAX
        });
        let mut said = String::new();
        one.read_to_string(&mut said).unwrap();
        assert!(said.ends_with("page\n"), "{said}");
    }
}
