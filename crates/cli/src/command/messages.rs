//! `keiro send` and `keiro receive`: the message socket from the command line.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, IsTerminal, Read, Write},
    net::Shutdown,
    path::Path,
    process::ExitCode,
    sync::mpsc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use indicatif::{ProgressBar, ProgressStyle};
use keiro_control::{
    config::Name,
    message_socket::{
        Ack, BODY_BYTES_MAX, Outcome as Fate, RefusalReason, RefusedReason, Role, UnknownReason,
        client::{AckReader, ClientError, Connection, MessageReader, MessageWriter},
    },
    protocol::Timestamp,
};
use serde::Serialize;

use super::{Outcome, socket::Socket};
use crate::{
    args,
    failure::Failure,
    output::{self, human},
};

/// Messages that may be without ack at a time, and their bytes. Ours: enough to keep any path
/// busy, well below what the gateway holds for an application.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;

/// Time without an acknowledgement after which the wait is reported.
const SILENCE: Duration = Duration::from_secs(2);
/// Shorter work shows no progress bar.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

pub(super) fn send(args: &args::Send) -> Outcome {
    let app = app(&args.app)?;
    let mut bodies = Bodies::read(args)?;
    let connection = connect(&args.socket, Role::Send, &app)?;
    let reader = connection.try_clone().map_err(|e| broken(e.into()))?;
    // As many as may be without ack, so the thread never waits for this one.
    let (answers, acks) = mpsc::sync_channel(WAITING_MAX + 1);
    let thread = thread::spawn(move || read_acks(reader, &answers));
    let mut sending = Sending::new(args, bodies.count(), acks);
    let mut writer = MessageWriter::new(connection);
    let mut next = Instant::now();
    while let Some(body) = bodies.next()? {
        sending.wait_until(next)?;
        sending.make_room(body.len())?;
        sending.sent(body.len());
        writer
            .send(sending.last_id, &body)
            .map_err(|e| sending.broken(e))?;
        next += args.interval.0;
    }
    sending.make_room(usize::MAX)?;
    // Ends the thread, whose half of the connection would stay open; all it had to say was heard.
    let _ = writer.stream().shutdown(Shutdown::Both);
    drop(sending.acks);
    let _ = thread.join();
    sending.tally.report()
}

fn read_acks(connection: Connection, answers: &mpsc::SyncSender<Result<Ack, ClientError>>) {
    let mut reader = AckReader::new(connection);
    loop {
        let answer = match reader.next_ack() {
            Ok(Some(ack)) => Ok(ack),
            Ok(None) => Err(ClientError::Closed),
            Err(error) => Err(error),
        };
        let ended = answer.is_err();
        if answers.send(answer).is_err() || ended {
            return;
        }
    }
}

/// What is under way, and what has become of the rest.
struct Sending {
    acks: mpsc::Receiver<Result<Ack, ClientError>>,
    json: bool,
    last_id: u64,
    waiting: BTreeMap<u64, usize>,
    waiting_bytes: usize,
    tally: Tally,
    progress: Option<ProgressBar>,
    said_that_it_waits: bool,
}

#[derive(Serialize)]
struct SentLine {
    id: u64,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    length_bytes: usize,
    delay_seconds: f64,
}

impl Sending {
    fn new(
        args: &args::Send,
        count: Option<u64>,
        acks: mpsc::Receiver<Result<Ack, ClientError>>,
    ) -> Self {
        let long = count.is_some_and(|count| {
            args.interval
                .0
                .saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
                > PROGRESS_AFTER
        });
        let show = long && io::stderr().is_terminal();
        Self {
            acks,
            json: args.json,
            last_id: 0,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            tally: Tally::default(),
            progress: count.filter(|_| show).map(progress_bar),
            said_that_it_waits: false,
        }
    }

    fn sent(&mut self, length: usize) {
        self.last_id += 1;
        self.waiting.insert(self.last_id, length);
        self.waiting_bytes = self.waiting_bytes.saturating_add(length);
    }

    /// Waits until the time, taking acks meanwhile.
    fn wait_until(&mut self, time: Instant) -> Result<(), Failure> {
        loop {
            let left = time.saturating_duration_since(Instant::now());
            match self.acks.recv_timeout(left) {
                Ok(answer) => self.take(answer)?,
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(()),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(broken(ClientError::Closed));
                }
            }
        }
    }

    /// Waits until another message of `length` may be under way; for the largest length, until
    /// nothing is.
    fn make_room(&mut self, length: usize) -> Result<(), Failure> {
        while !self.waiting.is_empty()
            && (self.waiting.len() >= WAITING_MAX
                || self.waiting_bytes.saturating_add(length) > WAITING_BYTES_MAX)
        {
            match self.acks.recv_timeout(SILENCE) {
                Ok(answer) => self.take(answer)?,
                Err(mpsc::RecvTimeoutError::Timeout) => self.say_that_it_waits(),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(broken(ClientError::Closed));
                }
            }
        }
        Ok(())
    }

    /// Once: nothing is wrong yet, but a user may be watching.
    fn say_that_it_waits(&mut self) {
        if !std::mem::replace(&mut self.said_that_it_waits, true) {
            let messages = match self.waiting.len() {
                1 => "1 message".to_owned(),
                several => format!("{several} messages"),
            };
            crate::output::message!(
                "keiro: {messages} not acknowledged yet; waiting\n  try: `keiro show peer` says \
                 whether the peer is up, `keiro show app` whether anybody receives there"
            );
        }
    }

    fn take(&mut self, answer: Result<Ack, ClientError>) -> Result<(), Failure> {
        let ack = answer.map_err(|e| self.broken(e))?;
        let length = self.waiting.remove(&ack.id).unwrap_or(0);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(length);
        self.tally.add(&ack);
        if let Some(progress) = &self.progress {
            progress.inc(1);
        }
        if self.json {
            let (outcome, reason) = fate(ack.outcome);
            // The messages are what matters, and the exit status says whether they arrived.
            output::allow_closed_reader(output::json_line(&SentLine {
                id: ack.id,
                outcome,
                reason,
                length_bytes: length,
                delay_seconds: ack.delay.as_secs_f64(),
            }))?;
        }
        Ok(())
    }

    fn broken(&self, error: ClientError) -> Failure {
        if self.json {
            for (id, length) in &self.waiting {
                // The failure that follows says the same.
                let _ = output::json_line(&SentLine {
                    id: *id,
                    outcome: "unknown",
                    reason: Some("the connection to the gateway ended"),
                    length_bytes: *length,
                    delay_seconds: 0.0,
                });
            }
        }
        broken(error).because(format!(
            "{} delivered, {} unknown",
            self.tally.delivered,
            self.waiting.len() as u64 + self.tally.unknown.values().sum::<u64>()
        ))
    }
}

/// What became of the messages.
#[derive(Default)]
struct Tally {
    delivered: u64,
    expired: u64,
    refused: BTreeMap<&'static str, u64>,
    unknown: BTreeMap<&'static str, u64>,
    delay_sum: Duration,
    delay_min: Option<Duration>,
    delay_max: Duration,
}

impl Tally {
    fn add(&mut self, ack: &Ack) {
        match ack.outcome {
            Fate::Delivered => {
                self.delivered += 1;
                self.delay_sum = self.delay_sum.saturating_add(ack.delay);
                self.delay_min = Some(self.delay_min.map_or(ack.delay, |min| min.min(ack.delay)));
                self.delay_max = self.delay_max.max(ack.delay);
            }
            Fate::Expired => self.expired += 1,
            Fate::Refused(reason) => *self.refused.entry(refusal(reason)).or_default() += 1,
            Fate::Unknown(reason) => *self.unknown.entry(unknown(reason)).or_default() += 1,
        }
    }

    fn report(&self) -> Outcome {
        if let Some(min) = self.delay_min {
            let mean = self.delay_sum / u32::try_from(self.delivered).unwrap_or(u32::MAX);
            crate::output::message!(
                "{} delivered; delay min {}, mean {}, max {}",
                self.delivered,
                human::duration(min),
                human::duration(mean),
                human::duration(self.delay_max)
            );
        }
        let refused: u64 = self.refused.values().sum();
        let unknown: u64 = self.unknown.values().sum();
        let lost = self.expired + refused;
        let all = self.delivered + lost + unknown;
        let mut failure = match (lost, unknown) {
            (0, 0) => return Ok(ExitCode::SUCCESS),
            (0, _) => Failure::new(format!(
                "{unknown} of {all} messages may not have been delivered"
            )),
            _ => Failure::new(format!("{lost} of {all} messages were not delivered")),
        };
        if self.expired > 0 {
            failure = failure
                .because(format!(
                    "{} given up at the end of the application's lifetime",
                    self.expired
                ))
                .hint("`keiro show path` shows whether the paths carry anything");
        }
        for (reason, count) in &self.refused {
            failure = failure.because(format!("{count} refused: {reason}"));
        }
        for (reason, count) in &self.unknown {
            failure = failure.because(format!("{count} unknown: {reason}"));
        }
        if unknown > 0 {
            failure = failure.hint("send those again if they may arrive twice");
        }
        Err(failure)
    }
}

/// The messages to send.
enum Bodies {
    Same {
        body: Vec<u8>,
        left: u64,
    },
    Lines {
        input: Box<dyn io::BufRead>,
        number: u64,
    },
}

impl Bodies {
    fn read(args: &args::Send) -> Result<Self, Failure> {
        let unreadable = |e: io::Error| match &args.file {
            Some(file) => Failure::new(format!("cannot read {}", file.display())).because(e),
            None => Failure::new("cannot read standard input").because(e),
        };
        let input: Box<dyn Read> = match &args.file {
            Some(file) => Box::new(File::open(file).map_err(unreadable)?),
            None => Box::new(io::stdin()),
        };
        if args.lines {
            return Ok(Self::Lines {
                input: Box::new(io::BufReader::new(input)),
                number: 0,
            });
        }
        let mut body = Vec::new();
        input
            .take(BODY_BYTES_MAX as u64 + 1)
            .read_to_end(&mut body)
            .map_err(unreadable)?;
        check_length(body.len(), "the message")?;
        Ok(Self::Same {
            body,
            left: args.count.get(),
        })
    }

    /// How many there are; `None`: as many as there are lines.
    fn count(&self) -> Option<u64> {
        match self {
            Self::Same { left, .. } => Some(*left),
            Self::Lines { .. } => None,
        }
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        match self {
            Self::Same { left: 0, .. } => Ok(None),
            Self::Same { body, left } => {
                *left -= 1;
                Ok(Some(body.clone()))
            }
            Self::Lines { input, number } => {
                let mut line = Vec::new();
                let read = io::BufRead::read_until(
                    &mut input.take(BODY_BYTES_MAX as u64 + 2),
                    b'\n',
                    &mut line,
                );
                let read = read.map_err(|e| Failure::new("cannot read the messages").because(e))?;
                if read == 0 {
                    return Ok(None);
                }
                *number += 1;
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                check_length(line.len(), &format!("line {number}"))?;
                Ok(Some(line))
            }
        }
    }
}

fn check_length(length: usize, what: &str) -> Result<(), Failure> {
    match length {
        0 => Err(Failure::new(format!("{what} is empty")).hint("a message has 1 byte to 16 MiB")),
        1..=BODY_BYTES_MAX => Ok(()),
        _ => Err(Failure::new(format!("{what} is longer than 16 MiB"))
            .hint("split it; a message has 1 byte to 16 MiB")),
    }
}

#[derive(Serialize)]
struct ReceivedLine {
    received: Timestamp,
    id: u64,
    length_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

pub(super) fn receive(args: &args::Receive) -> Outcome {
    let app = app(&args.app)?;
    if let Some(directory) = &args.output {
        fs::create_dir_all(directory)
            .map_err(|e| Failure::new(format!("cannot make {}", directory.display())).because(e))?;
    }
    let connection = connect(&args.socket, Role::Receive, &app)?;
    let mut reader = MessageReader::new(connection);
    let mut number = 0;
    while args.count.is_none_or(|count| number < count.get()) {
        let message = match reader.next_message() {
            Ok(Some(message)) => message,
            Ok(None) => return Err(broken(ClientError::Closed)),
            Err(error) => return Err(broken(error)),
        };
        number += 1;
        let file = match &args.output {
            Some(directory) => Some(write_message(directory, number, &message.body)?),
            None => None,
        };
        if args.json {
            output::json_line(&ReceivedLine {
                received: Timestamp(SystemTime::now()),
                id: message.id,
                length_bytes: message.body.len(),
                file,
            })?;
        } else if args.output.is_none() {
            let mut out = io::stdout().lock();
            out.write_all(&message.body)
                .and_then(|()| out.flush())
                .map_err(Failure::Output)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_message(directory: &Path, number: u64, body: &[u8]) -> Result<String, Failure> {
    let path = directory.join(number.to_string());
    fs::write(&path, body)
        .map_err(|e| Failure::new(format!("cannot write {}", path.display())).because(e))?;
    Ok(path.display().to_string())
}

fn app(text: &str) -> Result<Name, Failure> {
    Name::new(text)
        .map_err(|e| Failure::new(format!("`{text}` is not an application's name")).because(e))
}

fn connect(socket: &args::MessageSocket, role: Role, app: &Name) -> Result<Connection, Failure> {
    let (connection, at) = match socket.tcp {
        Some(address) => {
            let connection = Connection::tcp(address, role, app);
            (connection, Socket::MessageTcp(address))
        }
        None => {
            let path = &socket.socket;
            (Connection::unix(path, role, app), Socket::Message(path))
        }
    };
    connection.map_err(|error| match error {
        ClientError::Io(error) if is_silence(&error) => {
            at.not_understood("it did not answer the hello in time")
        }
        ClientError::Io(ref io) if is_break(io) => at.closed(error),
        ClientError::Io(error) => at.unreachable(error),
        ClientError::Closed => at.closed(error),
        ClientError::Framing(_) => at.not_understood(error),
        ClientError::Refused { .. } => broken(error),
    })
}

fn is_silence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// It took the connection, and then left.
fn is_break(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

fn broken(error: ClientError) -> Failure {
    match error {
        ClientError::Refused { reason, text } => {
            let failure = Failure::new(format!("the gateway refused the connection: {text}"));
            match reason {
                RefusalReason::NotAvailable => failure.hint(
                    "`send` and `receive` are for applications of class message without a forward; IP \
                     packets enter by the device of their tenant, which `keiro show tenant` shows",
                ),
                // The text says what to do.
                RefusalReason::UnknownApp => failure,
                _ => failure.hint("`keiro status` shows the state of the gateway"),
            }
        }
        other => Failure::new(other.to_string()),
    }
}

fn fate(outcome: Fate) -> (&'static str, Option<&'static str>) {
    match outcome {
        Fate::Delivered => ("delivered", None),
        Fate::Expired => ("expired", None),
        Fate::Refused(reason) => ("refused", Some(refusal(reason))),
        Fate::Unknown(reason) => ("unknown", Some(unknown(reason))),
    }
}

fn refusal(reason: RefusedReason) -> &'static str {
    match reason {
        RefusedReason::QueueFull => "the gateway's queue for this application is full",
        RefusedReason::DuplicateId => "two messages under way had one number",
        RefusedReason::AppRemoved => "the application was removed from the configuration",
        RefusedReason::PeerGone => "the peer was removed from the configuration",
        RefusedReason::Stopping => "the gateway stops",
        RefusedReason::TooLong => "the peer takes no message of this length",
        RefusedReason::NoReceiver => "no receiver is attached at the peer",
        RefusedReason::UnknownToPeer => {
            "the peer has no application of this name and class message; compare both configurations"
        }
        RefusedReason::PeerRefused => "the peer refused it and does not say why",
        RefusedReason::Other(_) => "for a reason that this version does not know",
    }
}

fn unknown(reason: UnknownReason) -> &'static str {
    match reason {
        UnknownReason::PeerRestarted => "the peer restarted before it acknowledged them",
        UnknownReason::PeerGone => "the peer was removed before it acknowledged them",
        UnknownReason::Stopping => "the gateway stopped before they were acknowledged",
        UnknownReason::Other(_) => "for a reason that this version does not know",
    }
}

fn progress_bar(count: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} messages, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(count).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_messages_and_empty_ones_are_refused() {
        let input = Box::new(io::Cursor::new(b"one\ntwo".to_vec()));
        let mut bodies = Bodies::Lines { input, number: 0 };
        assert_eq!(bodies.next().expect("a line"), Some(b"one".to_vec()));
        assert_eq!(bodies.next().expect("a line"), Some(b"two".to_vec()));
        assert_eq!(bodies.next().expect("the end"), None);
        let input = Box::new(io::Cursor::new(b"one\n\n".to_vec()));
        let mut bodies = Bodies::Lines { input, number: 0 };
        assert!(bodies.next().is_ok());
        let error = bodies
            .next()
            .expect_err("an empty line")
            .message("keiro")
            .to_string();
        assert!(error.contains("line 2 is empty"), "{error}");
    }

    #[test]
    fn every_fate_is_counted_and_a_lost_message_fails() {
        let mut tally = Tally::default();
        let ack = |outcome, millis| Ack {
            id: 1,
            outcome,
            delay: Duration::from_millis(millis),
        };
        tally.add(&ack(Fate::Delivered, 10));
        tally.add(&ack(Fate::Delivered, 30));
        assert!(tally.report().is_ok());
        assert_eq!(
            (tally.delay_min, tally.delay_max),
            (Some(Duration::from_millis(10)), Duration::from_millis(30))
        );
        tally.add(&ack(Fate::Expired, 0));
        tally.add(&ack(Fate::Refused(RefusedReason::QueueFull), 0));
        let error = tally
            .report()
            .expect_err("two are lost")
            .message("keiro")
            .to_string();
        assert!(
            error.starts_with("keiro: 2 of 4 messages were not delivered\n"),
            "{error}"
        );
        assert!(
            error.contains("1 given up") && error.contains("1 refused: the gateway's queue"),
            "{error}"
        );
        let mut tally = Tally::default();
        tally.add(&ack(Fate::Delivered, 10));
        tally.add(&ack(Fate::Unknown(UnknownReason::PeerRestarted), 0));
        let error = tally.report().expect_err("one is unknown");
        let error = error.message("keiro").to_string();
        assert!(
            error.starts_with("keiro: 1 of 2 messages may not have been delivered\n")
                && error.contains("1 unknown: the peer restarted"),
            "{error}"
        );
    }
}
