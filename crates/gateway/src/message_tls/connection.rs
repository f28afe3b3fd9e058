//! One connection of a client on another host: TLS towards the client, a pair of sockets towards the message
//! socket, and what is on its way between them.
//!
//! What waits is bounded in both directions: nothing is read where the other side takes nothing.

mod gateway_side;
mod tls_side;

use std::{io, net::SocketAddr, os::unix::net::UnixStream, sync::Arc, time::Duration};

use keiro_control::message_socket::{
    Answer, FramingError, Hello, HelloDecoder, RefusalReason, Role, TokenDecoder, VERSION_MIN,
};
use keiro_core::Instant;
use keiro_linux::{epoll::Epoll, limit};
use rustls::ServerConfig;
use zeroize::Zeroizing;

use self::{
    gateway_side::GatewaySide,
    tls_side::{Ended, TlsSide},
};
use super::{
    attach::{Attach, AttachError},
    clients::{Clients, Identity},
    framing::{ReceiverFraming, SenderFraming},
    refusals::Refusal,
};

/// TLS handshake, token and hello take at most this long.
pub(super) const OPENING_TIME: Duration = Duration::from_secs(10);
/// A client takes something of what waits for it within this time, or is closed. Ours, as for local receivers.
pub(super) const STUCK_TIME: Duration = Duration::from_secs(30);

/// Bytes towards the message socket that wait; nothing is read from the client at more.
const TO_GATEWAY_MAX: usize = 64 << 10;
/// Bytes of one read. Ours: more than TLS decrypts at once, so that nothing stays in it without an event.
const READ_BYTES: usize = 32 << 10;
/// Reads of one direction before other connections have their turn.
const READS_PER_TURN: usize = 16;

pub(super) struct Connection {
    number: u64,
    source: SocketAddr,
    opened: Instant,
    /// `None`: the client is gone, and outcomes of its messages are still to come.
    outer: Option<TlsSide>,
    stage: Stage,
    /// What the client sent and has not been passed on.
    from_client: Vec<u8>,
    /// The version that the gateway answers in: the hello's, and the oldest before that.
    hello_version: u8,
    counted: Counted,
}

/// What a connection is still counted for. One turn may open it, attach it and end it.
struct Counted {
    /// As opening, for its network.
    opening: bool,
    /// As connected, for its client.
    connected: bool,
}

enum Stage {
    Token(TokenDecoder),
    Hello(Identity, HelloDecoder),
    Attached(Box<Attached>),
    /// An answer is on its way to the client since then. What else it sends is discarded: closed with unread
    /// bytes it would see a reset instead of the answer.
    Closing(Instant),
}

struct Attached {
    inner: GatewaySide,
    identity: Identity,
    role: Role,
    app: String,
    framing: Framing,
    /// Bytes for the message socket.
    to_gateway: Vec<u8>,
}

enum Framing {
    Sender(SenderFraming),
    Receiver(ReceiverFraming),
}

/// What a connection needs of its server.
pub(super) struct ConnectionContext<'a> {
    pub(super) now: Instant,
    pub(super) epoll: &'a Epoll,
    pub(super) clients: &'a mut Clients,
    pub(super) attach: &'a Attach,
}

/// What became of a connection.
#[derive(Debug)]
pub(super) enum Progress {
    Open,
    /// It is over, in order.
    Done,
    /// It is over, and why.
    Refused(Refusal, String),
}

impl Connection {
    pub(super) fn new(
        now: Instant,
        number: u64,
        stream: std::net::TcpStream,
        source: SocketAddr,
        config: Arc<ServerConfig>,
        epoll: &Epoll,
    ) -> io::Result<Self> {
        Ok(Self {
            number,
            source,
            opened: now,
            outer: Some(TlsSide::new(now, number, stream, config, epoll)?),
            stage: Stage::Token(TokenDecoder::default()),
            from_client: Vec::new(),
            hello_version: VERSION_MIN,
            counted: Counted {
                opening: true,
                connected: false,
            },
        })
    }

    /// It counts as opening for its network.
    pub(super) fn counts_as_opening(&self) -> bool {
        self.counted.opening
    }

    /// Whether it has counted as opening until now and does not any more; it ends.
    pub(super) fn take_opening(&mut self, is_over: bool) -> bool {
        let opens = self.opening_since().is_some() || self.closing_since().is_some();
        (is_over || !opens) && std::mem::take(&mut self.counted.opening)
    }

    /// The client that has counted it as connected until now, if it is so no more: the client is gone, or the
    /// connection is over.
    pub(super) fn take_connected(&mut self, is_over: bool) -> Option<String> {
        let Stage::Attached(attached) = &self.stage else {
            return None;
        };
        let is_gone = is_over || self.outer.is_none();
        (is_gone && std::mem::take(&mut self.counted.connected))
            .then(|| attached.identity.client.clone())
    }

    pub(super) fn source(&self) -> SocketAddr {
        self.source
    }

    /// It has not shown what it wants, since then.
    pub(super) fn opening_since(&self) -> Option<Instant> {
        matches!(self.stage, Stage::Token(_) | Stage::Hello(..)).then_some(self.opened)
    }

    /// The client whose connection it is, while the client is there.
    pub(super) fn client(&self) -> Option<&str> {
        match &self.stage {
            Stage::Attached(attached) if self.outer.is_some() => Some(&attached.identity.client),
            _ => None,
        }
    }

    /// The client that has gone while outcomes are still to come.
    pub(super) fn client_gone(&self) -> Option<&str> {
        match &self.stage {
            Stage::Attached(attached) if self.outer.is_none() => Some(&attached.identity.client),
            _ => None,
        }
    }

    /// For how long the client has taken nothing of what waits for it.
    pub(super) fn stuck_for(&self, now: Instant) -> Duration {
        self.outer
            .as_ref()
            .map_or(Duration::ZERO, |outer| outer.stuck_for(now))
    }

    /// It was refused, and its answer is on the way since then.
    pub(super) fn closing_since(&self) -> Option<Instant> {
        match self.stage {
            Stage::Closing(since) => Some(since),
            _ => None,
        }
    }

    /// A message waits for room of its client.
    pub(super) fn is_held(&self) -> bool {
        match &self.stage {
            Stage::Attached(attached) => match &attached.framing {
                Framing::Sender(framing) => framing.is_held(),
                Framing::Receiver(_) => false,
            },
            _ => false,
        }
    }

    /// The client may still do what it does.
    pub(super) fn is_permitted(&self, clients: &Clients) -> bool {
        match &self.stage {
            Stage::Attached(attached) => {
                clients.permits(&attached.identity, attached.role, &attached.app)
            }
            _ => true,
        }
    }

    pub(super) fn on_hangup(&mut self, is_outer: bool) {
        match (&mut self.outer, &mut self.stage) {
            (Some(outer), _) if is_outer => outer.on_hangup(),
            (_, Stage::Attached(attached)) if !is_outer => attached.inner.on_hangup(),
            _ => {}
        }
    }

    /// Moves what there is, as much as it may per turn.
    pub(super) fn turn(&mut self, context: &mut ConnectionContext<'_>) -> Progress {
        let turn = self.move_both_ways(context);
        match turn {
            Progress::Open => {}
            over => return over,
        }
        if let Err(error) = self.update_interest(context.epoll) {
            return Progress::Refused(Refusal::Failed, format!("cannot wait for it: {error}"));
        }
        Progress::Open
    }

    fn move_both_ways(&mut self, context: &mut ConnectionContext<'_>) -> Progress {
        if let Err((refusal, why)) = self.read_client(context) {
            return self.fail(context, refusal, why);
        }
        if let Err((refusal, why)) = self.read_gateway(context) {
            return self.fail(context, refusal, why);
        }
        if let Some(outer) = &mut self.outer
            && !outer.write(context.now)
        {
            self.outer = None;
        }
        self.end(context)
    }

    /// Whether it is over.
    fn end(&mut self, context: &mut ConnectionContext<'_>) -> Progress {
        let client_ended = self.outer.as_ref().is_none_or(TlsSide::has_ended);
        match &mut self.stage {
            Stage::Token(_) | Stage::Hello(..) if client_ended => Progress::Done,
            Stage::Token(_) | Stage::Hello(..) => Progress::Open,
            Stage::Closing(_) if client_ended => Progress::Done,
            Stage::Closing(_) => Progress::Open,
            Stage::Attached(attached) => {
                let nothing_left = self.from_client.is_empty() && attached.to_gateway.is_empty();
                match attached.role {
                    Role::Receive if client_ended => return Progress::Done,
                    Role::Send if client_ended && nothing_left => {
                        attached.finish(context, self.source);
                    }
                    _ => {}
                }
                if !attached.inner.has_ended() {
                    return Progress::Open;
                }
                let Some(outer) = &mut self.outer else {
                    return Progress::Done;
                };
                outer.close(context.now);
                match outer.has_to_write() {
                    true => Progress::Open,
                    false => Progress::Done,
                }
            }
        }
    }

    /// The client has broken the protocol. Where it can still be said, it is.
    fn fail(
        &mut self,
        context: &mut ConnectionContext<'_>,
        refusal: Refusal,
        why: String,
    ) -> Progress {
        // One that is attached gets the alert and no more time.
        if refusal == Refusal::Tls && self.opening_since().is_some() {
            self.stage = Stage::Closing(context.now);
        }
        let is_closing = matches!(self.stage, Stage::Closing(_));
        if let Some(outer) = &mut self.outer
            && (!outer.write(context.now)
                || is_closing && self.update_interest(context.epoll).is_err())
        {
            self.outer = None;
        }
        Progress::Refused(refusal, why)
    }

    /// Forgets what has no outcome, as the connection ends.
    pub(super) fn release(&mut self, clients: &mut Clients) {
        let Stage::Attached(attached) = &mut self.stage else {
            return;
        };
        let Some(account) = clients.account(&attached.identity.client) else {
            return;
        };
        if let Framing::Sender(framing) = &mut attached.framing {
            framing.on_end(account);
        }
    }

    // From the client to the message socket.

    fn read_client(
        &mut self,
        context: &mut ConnectionContext<'_>,
    ) -> Result<(), (Refusal, String)> {
        for _ in 0..READS_PER_TURN {
            self.pass_on(context)?;
            if !self.wants_client() {
                return Ok(());
            }
            let Some(outer) = &mut self.outer else {
                return Ok(());
            };
            if matches!(self.stage, Stage::Closing(_)) {
                outer.discard();
                return Ok(());
            }
            match outer.read(READ_BYTES, &mut self.from_client) {
                Ok(true) => {}
                Ok(false) => {
                    return self.pass_on(context);
                }
                Err(Ended::Broken(why)) => return Err((Refusal::Tls, why)),
                Err(Ended::Gone) => {
                    self.outer = None;
                    return self.pass_on(context);
                }
            }
        }
        self.pass_on(context)
    }

    /// Something may be read from the client.
    fn wants_client(&self) -> bool {
        let Some(outer) = &self.outer else {
            return false;
        };
        !outer.has_ended()
            && self.from_client.is_empty()
            && match &self.stage {
                Stage::Token(_) | Stage::Hello(..) => true,
                Stage::Attached(attached) => attached.to_gateway.len() < TO_GATEWAY_MAX,
                Stage::Closing(_) => true,
            }
    }

    /// Takes what the client has sent one step further, as far as it may go now.
    fn pass_on(&mut self, context: &mut ConnectionContext<'_>) -> Result<(), (Refusal, String)> {
        let bytes = Zeroizing::new(std::mem::take(&mut self.from_client));
        let mut input = bytes.as_slice();
        self.open(context, &mut input)?;
        if let Stage::Attached(attached) = &mut self.stage {
            attached.pass_on(context, &mut input)?;
        }
        if !matches!(self.stage, Stage::Closing(_)) {
            self.from_client.extend_from_slice(input);
        }
        Ok(())
    }

    /// Token, then hello.
    fn open(
        &mut self,
        context: &mut ConnectionContext<'_>,
        input: &mut &[u8],
    ) -> Result<(), (Refusal, String)> {
        if let Stage::Token(decoder) = &mut self.stage {
            match decoder.decode(input) {
                Ok(None) => return Ok(()),
                Ok(Some(token)) => match context.clients.identify(&token) {
                    Some(identity) => {
                        self.stage = Stage::Hello(identity, HelloDecoder::default());
                    }
                    None => {
                        let text = "no client has this token; copy it from the client's token_file, and reload \
                                    the gateway after a change";
                        return self.refuse(context, RefusalReason::BadToken, text, Refusal::Token);
                    }
                },
                Err(error) => return self.refuse_framing(context, &error),
            }
        }
        if let Stage::Hello(identity, decoder) = &mut self.stage {
            match decoder.decode(input) {
                Ok(None) => {}
                Ok(Some(hello)) => {
                    self.hello_version = hello.version;
                    let identity = identity.clone();
                    return self.welcome(context, &identity, &hello);
                }
                Err(error) => return self.refuse_framing(context, &error),
            }
        }
        Ok(())
    }

    fn welcome(
        &mut self,
        context: &mut ConnectionContext<'_>,
        identity: &Identity,
        hello: &Hello,
    ) -> Result<(), (Refusal, String)> {
        let (client, app) = (identity.client.clone(), hello.app.to_string());
        let Some(account) = context.clients.account(&client) else {
            return self.refuse(
                context,
                RefusalReason::BadToken,
                "the client is gone",
                Refusal::Token,
            );
        };
        let refusal = if !account.may(hello.role, &app) {
            let key = match hello.role {
                Role::Send => "send",
                Role::Receive => "receive",
            };
            let text = format!("client `{client}` has no `{app}` in its `{key}`; add it there");
            Some((RefusalReason::Forbidden, text))
        } else if !account.has_free_connection() {
            let most = account.connections_max();
            let text = format!("client `{client}` has {most} connections, as many as it may");
            Some((RefusalReason::Busy, text))
        } else {
            None
        };
        if let Some((reason, text)) = refusal {
            account.on_refused(self.source, &text);
            return self.refuse(context, reason, &text, Refusal::Client);
        }
        let attached = attach(context, self.number, identity, hello);
        match attached {
            Ok(attached) => {
                if let Some(account) = context.clients.account(&client) {
                    account.on_connected(self.source);
                    self.counted.connected = true;
                }
                self.stage = Stage::Attached(Box::new(attached));
                Ok(())
            }
            Err(AttachError::Stopping) => self.refuse(
                context,
                RefusalReason::Stopping,
                "the gateway stops",
                Refusal::Client,
            ),
            Err(AttachError::Busy(why)) => {
                let text = format!("the gateway cannot take it now: {why}; try again later");
                self.refuse(context, RefusalReason::Busy, &text, Refusal::Client)
            }
        }
    }

    fn refuse_framing(
        &mut self,
        context: &ConnectionContext<'_>,
        error: &FramingError,
    ) -> Result<(), (Refusal, String)> {
        let reason = match error {
            FramingError::Version(_) | FramingError::TokenVersion(_) => RefusalReason::Version,
            _ => RefusalReason::BadHello,
        };
        self.refuse(context, reason, &error.to_string(), Refusal::Protocol)
    }

    /// Answers with a refusal, after which the connection is closed.
    fn refuse(
        &mut self,
        context: &ConnectionContext<'_>,
        reason: RefusalReason,
        text: &str,
        refusal: Refusal,
    ) -> Result<(), (Refusal, String)> {
        let version = self.hello_version;
        let answer = Answer::Refused {
            reason,
            text: text.to_owned(),
        };
        if let Some(outer) = &mut self.outer {
            outer.send(&answer.encode(version));
            outer.finish();
        }
        self.stage = Stage::Closing(context.now);
        Err((refusal, text.to_owned()))
    }

    // From the message socket to the client.

    fn read_gateway(
        &mut self,
        context: &mut ConnectionContext<'_>,
    ) -> Result<(), (Refusal, String)> {
        let Stage::Attached(attached) = &mut self.stage else {
            return Ok(());
        };
        let mut bytes = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            if let Some(outer) = &mut self.outer
                && (!outer.write(context.now) || outer.is_full())
            {
                return Ok(());
            }
            let count = attached.inner.read(&mut bytes);
            if count == 0 {
                return Ok(());
            }
            let came = &bytes[..count];
            attached.on_gateway_bytes(context, came)?;
            if let Some(outer) = &mut self.outer {
                outer.send(came);
            }
        }
        Ok(())
    }

    fn update_interest(&mut self, epoll: &Epoll) -> io::Result<()> {
        let wants_client = self.wants_client();
        let outer_has_room = self.outer.as_ref().is_none_or(|outer| !outer.is_full());
        if let Some(outer) = &mut self.outer {
            outer.update_interest(epoll, wants_client)?;
        }
        match &mut self.stage {
            Stage::Attached(attached) => {
                let writes = !attached.to_gateway.is_empty();
                attached
                    .inner
                    .update_interest(epoll, outer_has_room, writes)
            }
            _ => Ok(()),
        }
    }
}

impl Attached {
    /// The client sends nothing more.
    fn finish(&mut self, context: &mut ConnectionContext<'_>, source: SocketAddr) {
        let is_first = self.inner.finish();
        if let Framing::Sender(framing) = &self.framing
            && is_first
            && !framing.is_between_messages()
            && let Some(account) = context.clients.account(&self.identity.client)
        {
            account.on_error(source, "it closed within a message");
        }
    }

    fn pass_on(
        &mut self,
        context: &mut ConnectionContext<'_>,
        input: &mut &[u8],
    ) -> Result<(), (Refusal, String)> {
        let Some(account) = context.clients.account(&self.identity.client) else {
            return Ok(());
        };
        loop {
            let before = input.len();
            match &mut self.framing {
                Framing::Receiver(_) if input.is_empty() => {}
                Framing::Receiver(_) => {
                    let why = "a receiver sends nothing after its hello".to_owned();
                    return Err((Refusal::Protocol, why));
                }
                Framing::Sender(framing) => framing
                    .pass(input, account, &mut self.to_gateway, TO_GATEWAY_MAX)
                    .map_err(|error| (Refusal::Protocol, error.to_string()))?,
            }
            let took_all = self.inner.write(&mut self.to_gateway);
            if !took_all || input.is_empty() || input.len() == before {
                return Ok(());
            }
        }
    }

    fn on_gateway_bytes(
        &mut self,
        context: &mut ConnectionContext<'_>,
        bytes: &[u8],
    ) -> Result<(), (Refusal, String)> {
        let Some(account) = context.clients.account(&self.identity.client) else {
            return Ok(());
        };
        let followed = match &mut self.framing {
            Framing::Sender(framing) => framing.on_gateway_bytes(bytes, account),
            Framing::Receiver(framing) => framing.on_gateway_bytes(bytes, account),
        };
        followed.map_err(|error| (Refusal::Failed, error.to_string()))
    }
}

/// Gives the message socket one end of a pair of sockets, and says the client's hello at the other.
fn attach(
    context: &mut ConnectionContext<'_>,
    number: u64,
    identity: &Identity,
    hello: &Hello,
) -> Result<Attached, AttachError> {
    let busy = |error: io::Error| AttachError::Busy(error.to_string());
    let (own, other) = UnixStream::pair().map_err(busy)?;
    let own = limit::outside_reserve(own).map_err(busy)?;
    let other = limit::outside_reserve(other).map_err(busy)?;
    let inner = GatewaySide::new(context.epoll, number, own).map_err(busy)?;
    context.attach.send(other)?;
    Ok(Attached {
        inner,
        identity: identity.clone(),
        role: hello.role,
        app: hello.app.to_string(),
        framing: match hello.role {
            Role::Send => Framing::Sender(SenderFraming::default()),
            Role::Receive => Framing::Receiver(ReceiverFraming::default()),
        },
        to_gateway: hello.encode(),
    })
}
