//! Asks the hub over all uplinks at once until it answers, with the core's endpoint and the provisional key.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{SocketAddr, ToSocketAddrs},
    sync::mpsc,
    thread,
    time::{Duration, Instant as Stopwatch, SystemTime, UNIX_EPOCH},
};

use keiro_control::{
    config::PeerEndpoint,
    enrolment,
    invitation::Token,
    network_channel::{Document, Enrol, EnrolRefused, EnrolRefusedReason, Enrolled, NETWORK_APP},
    units::Text,
};
use keiro_core::{
    AppConfig, AppId, DatagramMeta, Delivery, DeliveryClass, Endpoint, EndpointConfig, Event,
    Instant, KeyFault, MessageOutcome, PathConfig, PathId, PeerConfig, PeerId, PresharedKey,
    PrivateKey, PublicKey, RefusalReason, SocketId, TenantId, TransmitBuf,
};
use keiro_linux::{
    clock,
    epoll::{Epoll, Interest, ReadyList},
    udp::{BatchSocket, DatagramBatch, Purpose, ReceiveBuffers, Sent},
};

use super::super::machine::{Machine, Uplink};
use crate::{failure::Failure, output::message};

/// Paths to the hub. The core's bound.
const PATHS_MAX: usize = 64;
/// Addresses of the hub that are tried. Ours: a name may have many.
const ADDRESSES_MAX: usize = 8;
/// How long names may take to be looked up. Ours: the resolver's second try is within it.
const RESOLVE_TIME: Duration = Duration::from_secs(6);
/// A request without an answer is sent again after this. Ours.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How often a person learns what is waited for.
const PROGRESS: Duration = Duration::from_secs(4);
/// How long the farewell to the hub may take to leave.
const FAREWELL: Duration = Duration::from_millis(300);
/// The largest step between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Clocks that differ by more are worth a word. Ours: certificates and logs suffer from then on.
const CLOCK_DIFFERENCE: u64 = 60;

/// A gateway that asks a hub to take it as a site.
pub(super) struct Joining {
    endpoint: Endpoint,
    peer: PeerId,
    uplinks: Vec<Bound>,
    remotes: Vec<SocketAddr>,
    epoll: Epoll,
    buffers: ReceiveBuffers,
    transmit: TransmitBuf,
    request: Vec<u8>,
    /// When the request was given to the core; `None`: it is to be.
    asked: Option<Instant>,
    seen: HubState,
    expires: SystemTime,
    start: Stopwatch,
    deadline: Duration,
}

/// An uplink's socket.
struct Bound {
    interface: String,
    socket: BatchSocket,
    /// Why it could not send last.
    error: Option<String>,
}

/// What has been seen of the hub.
#[derive(Debug, Default)]
struct HubState {
    /// A handshake was answered.
    is_up: bool,
    /// The request may have reached it.
    is_asked: bool,
    wrong_secret: bool,
    versions: Option<String>,
    refused: Option<RefusalReason>,
}

/// Why it did not become a site.
pub(super) struct NotEnrolled {
    pub(super) failure: Failure,
    /// The hub may have it all the same.
    pub(super) may_be_enrolled: bool,
}

impl Joining {
    /// Opens a socket on each uplink.
    pub(super) fn start(
        token: &Token,
        machine: &Machine,
        request: Enrol,
        deadline: Duration,
    ) -> Result<Self, Failure> {
        let start = Stopwatch::now();
        let remotes = addresses(&token.hub_endpoints)?;
        let epoll = Epoll::new().map_err(|e| Failure::new("epoll").because(e))?;
        let mut uplinks = Vec::new();
        let mut paths = Vec::new();
        for uplink in &machine.uplinks {
            let is_same = |remote: &&SocketAddr| remote.is_ipv6() == uplink.address.is_ipv6();
            let reached: Vec<SocketAddr> = remotes.iter().filter(is_same).copied().collect();
            if reached.is_empty() || paths.len() + reached.len() > PATHS_MAX {
                continue;
            }
            let socket = bind(uplink)?;
            let number = uplinks.len() as u16;
            epoll
                .add(&socket, u64::from(number), Interest::Read)
                .map_err(|e| Failure::new("epoll").because(e))?;
            for remote in reached {
                paths.push(PathConfig {
                    id: PathId(paths.len() as u8),
                    socket: SocketId(number),
                    remote: Some(remote),
                    rate: None,
                    mtu_max: u16::try_from(uplink.mtu).unwrap_or(u16::MAX),
                    probe_limit: None,
                    terms: keiro_core::PathTerms::FREE,
                });
            }
            uplinks.push(Bound {
                interface: uplink.interface.clone(),
                socket,
                error: None,
            });
        }
        if paths.is_empty() {
            return Err(no_common_version(&remotes, machine));
        }
        let (endpoint, peer) = endpoint(token, paths)?;
        let request = Document::Enrol(request)
            .to_bytes()
            .map_err(|error| Failure::new("the request cannot be written").because(error))?;
        Ok(Self {
            endpoint,
            peer,
            uplinks,
            remotes,
            epoll,
            buffers: ReceiveBuffers::new(),
            transmit: TransmitBuf::new(1),
            request,
            asked: None,
            seen: HubState::default(),
            expires: token.expires(),
            start,
            deadline,
        })
    }

    /// Until the hub has answered, or the time is over.
    pub(super) fn run(mut self) -> Result<Enrolled, NotEnrolled> {
        let mut progress = PROGRESS;
        let mut ready = ReadyList::new(64);
        while self.start.elapsed() < self.deadline {
            if let Some(document) = self.turn() {
                self.farewell();
                return self.on_document(document);
            }
            if self.seen.refused == Some(RefusalReason::UnknownApplication) {
                self.farewell();
                return Err(self.no_hub());
            }
            if self.start.elapsed() >= progress {
                progress += PROGRESS;
                message!("{}", self.progress());
            }
            self.wait(&mut ready);
        }
        let failure = self.unanswered();
        let may_be_enrolled = self.seen.is_asked;
        self.farewell();
        Err(NotEnrolled {
            failure,
            may_be_enrolled,
        })
    }

    /// Does what there is to do. The hub's answer, if it has come.
    fn turn(&mut self) -> Option<Document> {
        self.receive();
        let now = now();
        self.endpoint.handle_timeout(now);
        while let Some(event) = self.endpoint.poll_event() {
            self.on_event(&event);
        }
        let answer = self.deliver();
        let is_due = |asked: Instant| now >= asked + ASK_AGAIN;
        if self.endpoint.is_up(self.peer) && self.asked.is_none_or(is_due) {
            self.asked = Some(now);
            let app = AppId::of_name(NETWORK_APP);
            // A queue that is full has a request already.
            let sent = self
                .endpoint
                .send_message(now, now, self.peer, app, self.request.clone());
            self.seen.is_asked |= sent.is_ok();
        }
        self.send(now);
        answer
    }

    fn receive(&mut self) {
        for (number, uplink) in self.uplinks.iter().enumerate() {
            let endpoint = &mut self.endpoint;
            let received = uplink.socket.receive(&mut self.buffers, |received| {
                let meta = DatagramMeta {
                    socket: SocketId(number as u16),
                    remote: received.remote,
                    ecn: received.ecn,
                    received_at: Instant::from_nanos(received.received_at_nanos),
                };
                let now = Instant::from_nanos(received.read_at_nanos);
                for datagram in received.data.chunks_mut(received.stride) {
                    endpoint.handle_datagram(now, meta, datagram);
                }
            });
            // An ICMP error, which what was sent by then has caused: the next look goes on.
            drop(received);
        }
    }

    fn on_event(&mut self, event: &Event) {
        match event {
            Event::PeerUp { .. } => self.seen.is_up = true,
            Event::WrongKey {
                fault: KeyFault::Preshared,
                ..
            } => self.seen.wrong_secret = true,
            Event::VersionMismatch { theirs, ours, .. } => {
                self.seen.versions = Some(format!(
                    "it speaks wire version {theirs}, this machine {ours}"
                ));
            }
            Event::MessageDone { outcome, .. } => match outcome {
                MessageOutcome::Delivered => {}
                MessageOutcome::Refused(reason) => self.seen.refused = Some(*reason),
                MessageOutcome::Expired | MessageOutcome::Unknown(_) => self.asked = None,
            },
            _ => {}
        }
    }

    fn deliver(&mut self) -> Option<Document> {
        let mut answer = None;
        while let Some(delivery) = self.endpoint.poll_delivery() {
            let Delivery::Message { peer, id, body, .. } = delivery else {
                continue;
            };
            let document = Document::parse(&body).ok();
            let is_answer =
                |of: &Document| matches!(of, Document::Enrolled(_) | Document::EnrolRefused(_));
            answer = document.filter(is_answer).or(answer);
            self.endpoint.finish_message(peer, id, None);
        }
        answer
    }

    fn send(&mut self, now: Instant) {
        while let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.transmit) {
            let Some(uplink) = self.uplinks.get_mut(usize::from(transmit.socket.0)) else {
                continue;
            };
            let data = self.transmit.filled();
            let outgoing = DatagramBatch {
                remote: transmit.remote,
                source: None,
                ecn: transmit.ecn,
                data: data.get(..transmit.len).unwrap_or(data),
                segment_size: transmit.segment_size,
            };
            uplink.error = match uplink.socket.send(&outgoing) {
                Sent::Failed(error) => Some(error.to_string()),
                Sent::All | Sent::BufferFull | Sent::TooLarge => None,
            };
        }
    }

    fn wait(&mut self, ready: &mut ReadyList) {
        let due = self.endpoint.poll_timeout();
        let until_due = due.map_or(LOOK_AGAIN, |due| due.saturating_duration_since(now()));
        let left = self.deadline.saturating_sub(self.start.elapsed());
        let wait = until_due.min(LOOK_AGAIN).min(left);
        if self.epoll.wait(ready, Some(wait)).is_err() {
            thread::sleep(wait);
        }
    }

    /// Acknowledges the answer and closes the session.
    fn farewell(&mut self) {
        let until = Stopwatch::now() + FAREWELL;
        let mut ready = ReadyList::new(64);
        let end = self.deadline + 2 * FAREWELL;
        self.deadline = end;
        while Stopwatch::now() < until && !self.endpoint.is_drained() {
            self.receive();
            let now = now();
            self.endpoint.handle_timeout(now);
            while self.endpoint.poll_event().is_some() {}
            self.send(now);
            self.wait(&mut ready);
        }
        let now = now();
        self.endpoint.close(now);
        self.send(now);
    }

    fn on_document(&self, document: Document) -> Result<Enrolled, NotEnrolled> {
        let refused = match document {
            Document::Enrolled(enrolled) => {
                warn_of_clock(enrolled.hub_unix_seconds);
                return Ok(*enrolled);
            }
            Document::EnrolRefused(refused) => refused,
            Document::Enrol(_)
            | Document::Registry(_)
            | Document::RegistryCopy(_)
            | Document::SitesUp(_)
            | Document::DirectWanted(_)
            | Document::Direct(_)
            | Document::Unknown => {
                unreachable!("these are no answers")
            }
        };
        let EnrolRefused {
            reason,
            text,
            hub_unix_seconds,
        } = refused;
        let failure = Failure::new("the hub refuses this machine").because(printable(&text));
        // The hub may have written this machine's key before something failed.
        let may_be_enrolled = reason == EnrolRefusedReason::Unavailable;
        let failure = match clock_difference(hub_unix_seconds) {
            Some(difference) if reason == EnrolRefusedReason::Expired => failure.hint(format!(
                "{difference}; the hub's counts, so set the wrong one (`timedatectl`)"
            )),
            _ if may_be_enrolled => {
                failure.hint("the key of this machine stays, so that the invitation is still its")
            }
            _ => failure,
        };
        Err(NotEnrolled {
            failure,
            may_be_enrolled,
        })
    }

    fn no_hub(&self) -> NotEnrolled {
        let failure = Failure::new("the gateway that answers is no hub any more")
            .because("its configuration has no [network] with a registry")
            .hint(
                "`keiro config check` there; `keiro init --hub` writes the configuration of a hub",
            );
        NotEnrolled {
            failure,
            may_be_enrolled: false,
        }
    }

    fn progress(&self) -> String {
        let left = self.deadline.saturating_sub(self.start.elapsed()).as_secs();
        let state = match self.seen.is_up {
            true => "the hub is there, and has not answered the request yet",
            false => "no answer from the hub yet",
        };
        format!("{state}; {left} s left")
    }

    /// Why there is no answer, as far as can be seen from here.
    fn unanswered(&self) -> Failure {
        let seconds = self.deadline.as_secs();
        let remotes: Vec<String> = self.remotes.iter().map(ToString::to_string).collect();
        let remotes = remotes.join(", ");
        if self.seen.is_up {
            return Failure::new(format!(
                "the hub at {remotes} is there, and has not answered the request within {seconds} s"
            ))
            .hint("the hub's log may say why (`journalctl -u keiro-gateway`)")
            .hint("run the same command again: the key of this machine stays, so that the invitation is still its");
        }
        let mut failure = Failure::new(format!(
            "the hub at {remotes} has not answered within {seconds} s"
        ));
        if let Some(versions) = &self.seen.versions {
            return failure
                .because(versions)
                .hint("use the same release of keiro at hub and branch");
        }
        if self.seen.wrong_secret {
            return failure
                .because("it has another secret for this invitation")
                .hint("make a new token: `keiro invite NAME --replace` at the hub");
        }
        for uplink in &self.uplinks {
            if let Some(error) = &uplink.error {
                failure = failure.because(format!("{}: {error}", uplink.interface));
            }
        }
        if SystemTime::now() >= self.expires {
            failure = failure.hint(format!(
                "by this machine's clock the invitation expired at {}, and one that has been over for long is not \
                 answered; make a new one",
                enrolment::time(self.expires)
            ));
        }
        failure
            .hint(format!(
                "is the gateway running there (`keiro status`), and do its firewall and the router before it let UDP \
                 port {} in?",
                self.remotes.first().map_or(0, SocketAddr::port)
            ))
            .hint("does the hub have this invitation (`keiro sites`)? One that was revoked, or is another hub's, is not answered")
            .hint("does the network here let UDP out? Try another uplink, for example a telephone's")
    }
}

fn endpoint(token: &Token, paths: Vec<PathConfig>) -> Result<(Endpoint, PeerId), Failure> {
    let provisional = token.secret.provisional_key();
    let mut config = EndpointConfig::new(PrivateKey::from_bytes(*provisional.as_bytes()));
    config.unix_time_at_zero = clock::unix_time().saturating_sub(clock::monotonic());
    let mut endpoint = Endpoint::new(now(), config, random()?);
    endpoint.mix_entropy(&random()?);
    let mut peer = PeerConfig::new(PublicKey::from_bytes(*token.hub_key.as_bytes()));
    let preshared_key = token.secret.preshared_key();
    peer.preshared_key = PresharedKey::from_bytes(*preshared_key.as_bytes());
    peer.paths = paths;
    peer.apps = vec![AppConfig {
        id: AppId::of_name(NETWORK_APP),
        class: DeliveryClass::Message,
        latency_target: None,
        lifetime: Some(ASK_AGAIN),
        paths: Vec::new(),
        tenant: TenantId::ZERO,
        is_spread: false,
    }];
    let peer = endpoint.add_peer(now(), peer);
    Ok((endpoint, peer))
}

fn bind(uplink: &Uplink) -> Result<BatchSocket, Failure> {
    let local = SocketAddr::new(uplink.address, 0);
    BatchSocket::bind_on(local, Purpose::Path, Some(&uplink.interface)).map_err(|error| {
        Failure::new(format!("cannot send by {}", uplink.interface)).because(error)
    })
}

/// The addresses of the hub. Names are looked up in a thread, since the resolver may take long.
fn addresses(endpoints: &[PeerEndpoint]) -> Result<Vec<SocketAddr>, Failure> {
    let (sender, found) = mpsc::channel();
    for endpoint in endpoints {
        let (endpoint, sender) = (endpoint.clone(), sender.clone());
        let look_up = move || {
            let addresses = match &endpoint {
                PeerEndpoint::Address(address) => Ok(vec![*address]),
                PeerEndpoint::Name(name) => (name.host.as_str(), name.port)
                    .to_socket_addrs()
                    .map(Iterator::collect),
            };
            // The receiver has given up.
            let _ = sender.send((endpoint.to_string(), addresses));
        };
        thread::Builder::new()
            .name("resolver".to_owned())
            .spawn(look_up)
            .map_err(|error| Failure::new("cannot start a thread").because(error))?;
    }
    drop(sender);
    let until = Stopwatch::now() + RESOLVE_TIME;
    let mut all = BTreeSet::new();
    let mut problems = String::new();
    let mut missing: BTreeSet<String> = endpoints.iter().map(ToString::to_string).collect();
    while !missing.is_empty() {
        let left = until.saturating_duration_since(Stopwatch::now());
        let Ok((endpoint, addresses)) = found.recv_timeout(left) else {
            break;
        };
        missing.remove(&endpoint);
        match addresses {
            Ok(addresses) => all.extend(addresses),
            Err(error) => {
                // Writing to a String cannot fail.
                let _ = write!(problems, "{endpoint}: {error}; ");
            }
        }
    }
    for endpoint in missing {
        let _ = write!(
            problems,
            "{endpoint}: no answer within {}; ",
            Text(RESOLVE_TIME)
        );
    }
    match all.is_empty() {
        false => Ok(all.into_iter().take(ADDRESSES_MAX).collect()),
        true => Err(Failure::new("the hub's name has no address")
            .because(problems.trim_end_matches("; "))
            .hint("check this machine's DNS, or invite with --endpoint ADDRESS:PORT")),
    }
}

fn no_common_version(remotes: &[SocketAddr], machine: &Machine) -> Failure {
    let version = match remotes.iter().all(SocketAddr::is_ipv6) {
        true => "IPv6",
        false => "IPv4",
    };
    let uplinks: Vec<&str> = machine
        .uplinks
        .iter()
        .map(|uplink| uplink.interface.as_str())
        .collect();
    Failure::new(format!(
        "the hub is reached over {version} alone, and no uplink here has an {version} address ({})",
        uplinks.join(", ")
    ))
    .hint("invite with an --endpoint of the other IP version, or name one that has both")
}

fn warn_of_clock(hub_unix_seconds: u64) {
    if let Some(difference) = clock_difference(hub_unix_seconds) {
        message!("keiro: warning: {difference}; set the wrong one (`timedatectl`)");
    }
}

/// By how much this machine's clock differs from the hub's; `None`: not by much.
fn clock_difference(hub_unix_seconds: u64) -> Option<String> {
    let here = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since_epoch| since_epoch.as_secs());
    let difference = here.abs_diff(hub_unix_seconds);
    let word = if here < hub_unix_seconds {
        "behind"
    } else {
        "before"
    };
    (difference > CLOCK_DIFFERENCE)
        .then(|| format!("this machine's clock is {difference} s {word} the hub's"))
}

/// What another machine has written, for a terminal.
fn printable(text: &str) -> String {
    const CHARACTERS_MAX: usize = 1000;
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(CHARACTERS_MAX).map(plain).collect()
}

fn now() -> Instant {
    Instant::from_nanos(clock::monotonic_nanos())
}

fn random() -> Result<[u8; 32], Failure> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new("the operating system gives no random numbers").because(error)
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hub_writes_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc"), "a [2Jb  c");
        assert_eq!(printable(&"x".repeat(5000)).len(), 1000);
    }

    #[test]
    fn clocks_that_are_far_apart_are_named() {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs();
        assert_eq!(clock_difference(now), None);
        let behind = clock_difference(now + 3600).unwrap();
        assert!(behind.contains("behind the hub's"), "{behind}");
        let before = clock_difference(0).unwrap();
        assert!(before.contains("before the hub's"), "{before}");
    }

    #[test]
    fn addresses_need_no_resolver() {
        let endpoints = ["192.0.2.1:7600", "[2001:db8::1]:7600", "192.0.2.1:7600"];
        let endpoints: Vec<PeerEndpoint> =
            endpoints.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(addresses(&endpoints).unwrap().len(), 2);
    }
}
