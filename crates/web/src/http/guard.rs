//! What every request passes before a page sees it: method, size, host, origin, access; and the headers of every answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{Extension, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};

use super::{Listen, Remote, Server, plain};

/// Names by which this server may be asked for. A page of another site that has its own name point here is refused.
#[derive(Debug)]
pub(super) struct Hosts(Vec<String>);

/// Bytes of an address of a page. Ours: the longest form of what to suppose.
const URI_BYTES_MAX: usize = 4096;
/// Bytes of a form. Ours: a token and its name.
pub(super) const BODY_BYTES_MAX: usize = 4096;
/// How long an answer may take. Ours: longer than a gateway may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(25);

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

impl Hosts {
    pub(super) fn new(listen: &Listen, named: Vec<String>) -> Self {
        let mut hosts: Vec<String> = named
            .into_iter()
            .map(|name| name.to_ascii_lowercase())
            .collect();
        let ip = match listen {
            Listen::Tcp(address) => Some(address.ip()),
            Listen::Unix(_) => None,
        };
        if ip.is_none_or(|ip| ip.is_loopback() || ip.is_unspecified()) {
            hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        }
        hosts.extend(ip.map(|ip| match ip {
            std::net::IpAddr::V4(ip) => ip.to_string(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        }));
        Self(hosts)
    }

    fn has(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        self.0.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// See the module.
pub(super) async fn guard(
    State(server): State<Arc<Server>>,
    Extension(remote): Extension<Remote>,
    request: Request,
    next: Next,
) -> Response {
    let is_asset = request.uri().path().starts_with("/assets/");
    let mut response = match refusal(&server, remote, &request) {
        Some(refusal) => refusal,
        None => match tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await {
            Ok(response) => response,
            Err(_) => plain(
                StatusCode::GATEWAY_TIMEOUT,
                "the page took too long",
                "again later",
            ),
        },
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !is_asset || !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Why a request is not served; `None`: it is.
fn refusal(server: &Server, remote: Remote, request: &Request) -> Option<Response> {
    let (uri, headers) = (request.uri(), request.headers());
    let is_post = request.method() == Method::POST;
    if ![Method::GET, Method::HEAD, Method::POST].contains(request.method()) {
        let what = "pages are read with GET and HEAD; only the login takes POST";
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, what, "");
        response
            .headers_mut()
            .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
        return Some(response);
    }
    let uri_bytes = uri.path_and_query().map_or(0, |part| part.as_str().len());
    if uri_bytes > URI_BYTES_MAX {
        let what = format!("the address has {uri_bytes} bytes; {URI_BYTES_MAX} are allowed");
        return Some(plain(
            StatusCode::URI_TOO_LONG,
            &what,
            "a shorter filter, or fewer changes",
        ));
    }
    if let Some(response) = host_refusal(server, uri, headers) {
        return Some(response);
    }
    if is_embedded_elsewhere(headers) {
        let what = "another site has asked for this page";
        return Some(plain(StatusCode::FORBIDDEN, what, "a link instead"));
    }
    let allowed_bytes = if is_post { BODY_BYTES_MAX } else { 0 };
    let body_bytes = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    let body_bytes: usize = body_bytes.map_or(0, |text| text.parse().unwrap_or(usize::MAX));
    let is_unbounded = headers.contains_key(header::TRANSFER_ENCODING) && !is_post;
    if body_bytes > allowed_bytes || is_unbounded {
        let what = format!("the request's body is larger than {allowed_bytes} bytes");
        return Some(plain(StatusCode::PAYLOAD_TOO_LARGE, &what, ""));
    }
    if is_post && !is_of_this_site(headers) {
        let what = "the form was sent from another site";
        return Some(plain(
            StatusCode::FORBIDDEN,
            what,
            "open the page of this server and send its form",
        ));
    }
    let is_open = uri.path() == "/login" || uri.path().starts_with("/assets/");
    if is_open || server.access.is_allowed(remote.0, headers, Instant::now()) {
        return None;
    }
    Some(no_access(server, uri, headers))
}

fn host_refusal(server: &Server, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
    let host = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok()),
    };
    if headers.get_all(header::HOST).iter().count() > 1 {
        return Some(plain(
            StatusCode::BAD_REQUEST,
            "the request names several hosts",
            "",
        ));
    }
    match host {
        Some(host) if server.hosts.has(host) => None,
        Some(host) => {
            let what = format!("this server is not known as `{host}`");
            let next = "an address of this machine, or start `keiro-web` with --host and that name";
            Some(plain(StatusCode::MISDIRECTED_REQUEST, &what, next))
        }
        None => Some(plain(
            StatusCode::BAD_REQUEST,
            "the request names no host",
            "",
        )),
    }
}

/// Another site asks for a part of a page of its own, so that it would use up connections and live pages. A link from
/// there may lead here.
fn is_embedded_elsewhere(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|other| other == value);
    let is_elsewhere = is("sec-fetch-site", "cross-site") || is("sec-fetch-site", "same-site");
    is_elsewhere && !is("sec-fetch-mode", "navigate")
}

/// A browser says where a form is from; what says nothing is refused.
fn is_of_this_site(headers: &HeaderMap) -> bool {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    if let Some(site) = text(HeaderName::from_static("sec-fetch-site")) {
        return site == "same-origin";
    }
    let (Some(origin), Some(host)) = (text(header::ORIGIN), text(header::HOST)) else {
        return false;
    };
    let of_origin = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    of_origin.is_some_and(|of_origin| of_origin.eq_ignore_ascii_case(host))
}

/// A reader of pages is sent to the login; a script is refused.
fn no_access(server: &Server, uri: &Uri, headers: &HeaderMap) -> Response {
    let accepts = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok());
    let is_page = accepts.is_some_and(|accepts| accepts.contains("text/html"));
    match (server.access.has_login(), is_page) {
        (true, true) => Redirect::to("/login").into_response(),
        (true, false) => plain(
            StatusCode::UNAUTHORIZED,
            "the session has ended",
            "log in at /login",
        ),
        (false, _) => {
            let what = format!("{} may be read through the reverse proxy alone", uri.path());
            plain(StatusCode::FORBIDDEN, &what, "the proxy's address")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn hosts_are_this_machine_and_what_was_named() {
        let loopback = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 7680)));
        let hosts = Hosts::new(&loopback, vec!["Keiro.Example".into()]);
        for known in [
            "localhost:7680",
            "127.0.0.1",
            "[::1]:7680",
            "keiro.example:443",
        ] {
            assert!(hosts.has(known), "{known}");
        }
        for other in [
            "attacker.example",
            "127.0.0.1.attacker.example",
            "localhost:x",
            "",
            "[::2]",
        ] {
            assert!(!hosts.has(other), "{other}");
        }
        let public = Listen::Tcp(SocketAddr::from(([192, 0, 2, 1], 80)));
        let hosts = Hosts::new(&public, Vec::new());
        assert!(hosts.has("192.0.2.1") && !hosts.has("localhost"));
    }

    #[test]
    fn forms_of_other_sites_are_refused() {
        let of = |pairs: &[(HeaderName, &'static str)]| {
            let pairs = pairs
                .iter()
                .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            is_of_this_site(&pairs.collect())
        };
        let site = HeaderName::from_static("sec-fetch-site");
        let (origin, host) = (header::ORIGIN, header::HOST);
        assert!(of(&[(site.clone(), "same-origin")]));
        assert!(!of(&[(site.clone(), "cross-site")]));
        assert!(!of(&[(site, "same-site")]));
        assert!(of(&[
            (origin.clone(), "http://localhost:7680"),
            (host.clone(), "localhost:7680")
        ]));
        assert!(!of(&[
            (origin.clone(), "http://attacker.example"),
            (host.clone(), "localhost:7680")
        ]));
        assert!(!of(&[(origin, "null"), (host.clone(), "localhost:7680")]));
        assert!(!of(&[(host, "localhost:7680")]));
    }
}
