//! Who may look: everybody who reaches a loopback address, else who has the token or comes from the named proxy.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderName, header};
use subtle::ConstantTimeEq;

use super::Listen;

/// See the module.
#[derive(Debug)]
pub struct Access {
    token: Option<Token>,
    proxy: Option<Proxy>,
    state: Mutex<State>,
}

/// A secret that opens the pages.
pub struct Token(String);

/// A reverse proxy that has asked its users who they are.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// The address from which it connects.
    pub address: IpAddr,
    /// The header in which it names the user.
    pub header: HeaderName,
}

/// Options with which no client could be let in, or any would be.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("{} is reachable from other machines; try: --token-file FILE, or --proxy ADDRESS with --proxy-header NAME", .0)]
    Open(std::net::SocketAddr),
    #[error("cannot read {}: {error}", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    #[error("others can read {}; try: chmod 600 {}", .0.display(), .0.display())]
    Exposed(PathBuf),
    #[error("{} holds no token of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} characters; try: (umask 077; keiro gentoken > {})", .0.display(), .0.display())]
    Weak(PathBuf),
}

#[derive(Debug, Default)]
struct State {
    /// Identifiers of sessions and when each ends.
    sessions: BTreeMap<SessionId, Instant>,
    /// Wrong tokens of an address since a time; absent: of a Unix socket.
    failures: BTreeMap<Option<IpAddr>, (Instant, u32)>,
}

type SessionId = [u8; 32];

/// What a login has led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Login {
    /// The cookie to set.
    Open(String),
    Wrong,
    /// There were too many wrong ones.
    Wait,
}

/// Characters of a token: those of 16 random bytes in base64, at least. Ours.
const TOKEN_BYTES_MIN: usize = 22;
const TOKEN_BYTES_MAX: usize = 256;
/// Sessions at once; the one that ends first makes room. Ours.
const SESSIONS_MAX: usize = 256;
const SESSION_TIME: Duration = Duration::from_secs(12 * 3600);
/// Wrong tokens of one address in a minute. Ours.
const FAILURES_MAX: u32 = 5;
const FAILURES_TIME: Duration = Duration::from_secs(60);
/// Addresses whose failures are counted; further ones wait. Ours.
const ADDRESSES_MAX: usize = 1024;
/// Of the session. The name keeps it to this host and path where browsers know the prefix; without TLS they do not.
const COOKIE: &str = "keiro_session";

impl Token {
    /// Reads the first line of a file that only its owner, or its owner's group, can read.
    ///
    /// # Errors
    /// It cannot be read, others can read it, or it holds no token.
    pub fn load(file: &Path) -> Result<Self, AccessError> {
        let unreadable = |error| AccessError::Unreadable {
            file: file.to_owned(),
            error,
        };
        let opened = fs::File::open(file).map_err(unreadable)?;
        if opened.metadata().map_err(unreadable)?.mode() & 0o007 != 0 {
            return Err(AccessError::Exposed(file.to_owned()));
        }
        let mut text = String::new();
        let limit = TOKEN_BYTES_MAX as u64 + 2;
        opened
            .take(limit)
            .read_to_string(&mut text)
            .map_err(unreadable)?;
        let token = text.trim();
        let is_plain = token.bytes().all(|b| b.is_ascii_graphic());
        match is_plain && (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
            true => Ok(Self(token.to_owned())),
            false => Err(AccessError::Weak(file.to_owned())),
        }
    }

    /// In a time that depends on the lengths alone.
    fn is(&self, other: &str) -> bool {
        self.0.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Access {
    /// # Errors
    /// Without a token or a proxy other machines would reach the pages.
    pub fn new(
        listen: &Listen,
        token: Option<Token>,
        proxy: Option<Proxy>,
    ) -> Result<Self, AccessError> {
        if let Listen::Tcp(address) = listen
            && !address.ip().is_loopback()
            && token.is_none()
            && proxy.is_none()
        {
            return Err(AccessError::Open(*address));
        }
        Ok(Self {
            token,
            proxy,
            state: Mutex::default(),
        })
    }

    pub(super) fn has_login(&self) -> bool {
        self.token.is_some()
    }

    /// Whether a request may see pages.
    pub(super) fn is_allowed(
        &self,
        remote: Option<IpAddr>,
        headers: &HeaderMap,
        now: Instant,
    ) -> bool {
        if self.token.is_none() && self.proxy.is_none() {
            return true;
        }
        let is_of_proxy = self.proxy.as_ref().is_some_and(|proxy| {
            let user = headers.get(&proxy.header);
            remote == Some(proxy.address) && user.is_some_and(|user| !user.is_empty())
        });
        is_of_proxy || (self.token.is_some() && self.has_session(headers, now))
    }

    /// Compares a token, and opens a session if it is the right one.
    pub(super) fn login(&self, remote: Option<IpAddr>, token: &str, now: Instant) -> Login {
        let mut state = self.state();
        state
            .failures
            .retain(|_, (since, _)| now.saturating_duration_since(*since) < FAILURES_TIME);
        let failures = state.failures.get(&remote).map_or(0, |(_, count)| *count);
        let is_known = state.failures.contains_key(&remote);
        if failures >= FAILURES_MAX || (!is_known && state.failures.len() >= ADDRESSES_MAX) {
            return Login::Wait;
        }
        if !self.token.as_ref().is_some_and(|right| right.is(token)) {
            state.failures.entry(remote).or_insert((now, 0)).1 += 1;
            return Login::Wrong;
        }
        let mut id = SessionId::default();
        if getrandom::fill(&mut id).is_err() {
            return Login::Wait;
        }
        state.sessions.retain(|_, ends| *ends > now);
        if state.sessions.len() >= SESSIONS_MAX {
            let first = state.sessions.iter().min_by_key(|(_, ends)| **ends);
            let first = first.map(|(id, _)| *id);
            first.map(|id| state.sessions.remove(&id));
        }
        state.sessions.insert(id, now + SESSION_TIME);
        Login::Open(format!(
            "{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}",
            hex(&id),
            SESSION_TIME.as_secs()
        ))
    }

    /// Ends the request's session, and gives the cookie that says so.
    pub(super) fn logout(&self, headers: &HeaderMap) -> String {
        if let Some(id) = session_of(headers) {
            self.state().sessions.remove(&id);
        }
        format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
    }

    fn has_session(&self, headers: &HeaderMap, now: Instant) -> bool {
        let Some(id) = session_of(headers) else {
            return false;
        };
        let state = self.state();
        let mut sessions = state.sessions.iter().filter(|(_, ends)| **ends > now);
        sessions.any(|(known, _)| known.ct_eq(&id).into())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The session that a request's cookie names; `None`: none, or no identifier.
fn session_of(headers: &HeaderMap) -> Option<SessionId> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let cookies = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    let mut values =
        cookies.filter_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    let text = values.next()?;
    let mut id = SessionId::default();
    if text.len() != 2 * id.len() || !text.is_ascii() {
        return None;
    }
    for (index, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(id)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, os::unix::fs::PermissionsExt};

    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn access() -> Access {
        let listen = Listen::Tcp(SocketAddr::from(([192, 0, 2, 1], 7680)));
        Access::new(&listen, Some(Token(SECRET.to_owned())), None).unwrap()
    }

    fn cookie(value: &str) -> HeaderMap {
        let (pair, _) = value.split_once(';').unwrap();
        HeaderMap::from_iter([(header::COOKIE, format!("a=b; {pair}").parse().unwrap())])
    }

    #[test]
    fn an_address_of_other_machines_needs_a_token_or_a_proxy() {
        let listen = Listen::Tcp(SocketAddr::from(([0, 0, 0, 0], 7680)));
        let error = Access::new(&listen, None, None).unwrap_err();
        assert!(error.to_string().contains("--token-file"), "{error}");
        let loopback = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 7680)));
        assert!(Access::new(&loopback, None, None).is_ok());
    }

    #[test]
    fn the_right_token_opens_a_session_until_it_ends() {
        let (access, now) = (access(), Instant::now());
        assert!(!access.is_allowed(None, &HeaderMap::new(), now));
        let Login::Open(set) = access.login(None, SECRET, now) else {
            panic!("the token is right")
        };
        assert!(
            set.contains("HttpOnly") && set.contains("SameSite=Strict"),
            "{set}"
        );
        let headers = cookie(&set);
        assert!(access.is_allowed(None, &headers, now));
        assert!(!access.is_allowed(None, &headers, now + SESSION_TIME));
        access.logout(&headers);
        assert!(!access.is_allowed(None, &headers, now));
        for wrong in [
            "keiro_session=00; x",
            "keiro_session=; x",
            "keiro_session=é; x",
        ] {
            assert!(!access.is_allowed(None, &cookie(wrong), now), "{wrong}");
        }
    }

    #[test]
    fn who_guesses_has_to_wait_and_others_do_not() {
        let (access, now) = (access(), Instant::now());
        let guesser = Some(IpAddr::from([192, 0, 2, 9]));
        for _ in 0..FAILURES_MAX {
            assert_eq!(access.login(guesser, "0123", now), Login::Wrong);
        }
        assert_eq!(access.login(guesser, SECRET, now), Login::Wait);
        assert!(matches!(access.login(None, SECRET, now), Login::Open(_)));
        let later = now + FAILURES_TIME;
        assert!(matches!(
            access.login(guesser, SECRET, later),
            Login::Open(_)
        ));
    }

    #[test]
    fn the_number_of_sessions_is_bounded() {
        let (access, now) = (access(), Instant::now());
        for _ in 0..SESSIONS_MAX + 5 {
            access.login(None, SECRET, now);
        }
        assert_eq!(access.state().sessions.len(), SESSIONS_MAX);
    }

    #[test]
    fn a_proxys_header_counts_from_its_address_alone() {
        let listen = Listen::Tcp(SocketAddr::from(([192, 0, 2, 1], 7680)));
        let proxy = Proxy {
            address: IpAddr::from([192, 0, 2, 2]),
            header: HeaderName::from_static("x-remote-user"),
        };
        let access = Access::new(&listen, None, Some(proxy.clone())).unwrap();
        let headers = HeaderMap::from_iter([(proxy.header, "ops".parse().unwrap())]);
        let now = Instant::now();
        assert!(access.is_allowed(Some(proxy.address), &headers, now));
        assert!(!access.is_allowed(Some(proxy.address), &HeaderMap::new(), now));
        assert!(!access.is_allowed(Some(IpAddr::from([192, 0, 2, 3])), &headers, now));
        assert!(!access.is_allowed(None, &headers, now));
    }

    #[test]
    fn token_files_that_others_read_and_short_tokens_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        let write = |text: &str, mode| {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            Token::load(&file)
        };
        assert!(write(&format!("{SECRET}\n"), 0o640).is_ok_and(|token| token.is(SECRET)));
        assert!(matches!(write(SECRET, 0o644), Err(AccessError::Exposed(_))));
        for weak in [
            "",
            "short",
            "with a blank inside it somewhere",
            &"x".repeat(5000),
        ] {
            assert!(
                matches!(write(weak, 0o600), Err(AccessError::Weak(_))),
                "{weak}"
            );
        }
    }
}
