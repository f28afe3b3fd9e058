//! What is not served, and the headers of what is.

use crate::served::{Reply, Served};

fn assert_refused(reply: &Reply, status: u16, says: &str) {
    assert_eq!(reply.status, status, "{reply:?}");
    assert!(reply.body.contains(says), "{reply:?}");
    assert!(
        reply.header("content-security-policy").is_some(),
        "{reply:?}"
    );
}

#[test]
fn every_answer_forbids_what_pages_do_not_need() {
    let served = Served::start();
    for address in ["/tokyo/", "/nothing", "/assets/live.js", "/tokyo/live/"] {
        let reply = match address {
            // This one does not end: its head is enough.
            "/tokyo/live/" => served
                .send("HEAD /tokyo/live/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
            _ => served.get(address),
        };
        let policy = reply.header("content-security-policy").unwrap_or_default();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"),
            "{address}: {reply:?}"
        );
        assert!(
            policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
    }
}

#[test]
fn hosts_methods_and_sizes_are_checked() {
    let served = Served::start();
    let send = |request: &str| served.send(&format!("{request}\r\nConnection: close\r\n\r\n"));
    let host = "Host: localhost";
    assert_refused(
        &send("GET / HTTP/1.1\r\nHost: attacker.example"),
        421,
        "not known as `attacker.example`",
    );
    assert_refused(
        &send("GET / HTTP/1.1\r\nHost: localhost\r\nHost: attacker.example"),
        400,
        "several hosts",
    );
    assert_refused(&send("GET / HTTP/1.0"), 400, "no host");
    for method in ["DELETE", "PUT", "OPTIONS", "TRACE", "NONSENSE"] {
        assert_refused(
            &send(&format!("{method} /tokyo/ HTTP/1.1\r\n{host}")),
            405,
            "GET",
        );
    }
    assert_refused(
        &send(&format!(
            "POST /tokyo/ HTTP/1.1\r\n{host}\r\nSec-Fetch-Site: same-origin\r\nContent-Length: 0"
        )),
        405,
        "GET",
    );
    let long = "x".repeat(5000);
    assert_refused(
        &send(&format!("GET /tokyo/apps?search={long} HTTP/1.1\r\n{host}")),
        414,
        "4096 are allowed",
    );
    assert_refused(
        &send(&format!(
            "GET /tokyo/ HTTP/1.1\r\n{host}\r\nContent-Length: 5"
        )),
        413,
        "body",
    );
    let header = format!("GET / HTTP/1.1\r\n{host}\r\nX: {}", "x".repeat(100_000));
    assert_eq!(send(&header).status, 431);
    assert_refused(&served.get("/nothing/at/all"), 404, "No such page");
    assert_refused(&served.get("/assets/../../etc/passwd"), 404, "");
}

const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn with_a_token_pages_need_a_session() {
    let served = Served::with_token(Some(SECRET));
    let reply = served.get("/tokyo/");
    assert_eq!(
        (reply.status, reply.header("location")),
        (303, Some("/login"))
    );
    let live =
        served.send("GET /tokyo/live/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_refused(&live, 401, "log in");
    assert!(served.get("/login").body.contains("type=\"password\""));
    let same = "Sec-Fetch-Site: same-origin\r\n";
    assert_refused(
        &served.post("/login", same, "token=wrong"),
        403,
        "not the token",
    );
    let body = format!("token={SECRET}");
    assert_refused(
        &served.post("/login", "Sec-Fetch-Site: cross-site\r\n", &body),
        403,
        "another site",
    );
    assert_refused(
        &served.post("/login", "Origin: http://attacker.example\r\n", &body),
        403,
        "another site",
    );
    assert_refused(
        &served.post("/login", same, &"x".repeat(5000)),
        413,
        "larger",
    );
    let reply = served.post("/login", same, &body);
    assert_eq!(reply.status, 303, "{reply:?}");
    let cookie = reply
        .header("set-cookie")
        .and_then(|cookie| cookie.split(';').next())
        .unwrap()
        .to_owned();
    let request = |method: &str, address: &str| {
        served.send(&format!(
            "{method} {address} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n{same}Accept: text/html\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ))
    };
    assert!(request("GET", "/tokyo/").body.contains("Latency targets"));
    assert_eq!(request("POST", "/logout").status, 303);
    assert_eq!(request("GET", "/tokyo/").status, 303);
}

#[test]
fn who_guesses_tokens_is_asked_to_wait() {
    let served = Served::with_token(Some(SECRET));
    let guess = || {
        served
            .post("/login", "Sec-Fetch-Site: same-origin\r\n", "token=guess")
            .status
    };
    let statuses: Vec<u16> = (0..7).map(|_| guess()).collect();
    assert_eq!(statuses, [403, 403, 403, 403, 403, 429, 429]);
}
