//! One end of a stream: reads as the scenario specifies, checks every byte, writes its data.

use std::time::Duration;

use keiro_core::StreamId;
use keiro_units::Instant;

use super::{
    log::{Log, StreamObservation},
    stream_context::StreamContext,
};
use crate::{
    content,
    scenario::{Dialogues, Reading, StreamEnd},
    seed,
};

/// Bytes written at a time.
const CHUNK: u64 = 64 << 10;
/// Period of a slow reader, unless a byte takes longer.
const SLOW_TICK: Duration = Duration::from_millis(10);
/// Number of words in a header.
const HEAD_WORDS: usize = 9;
const HEAD_LEN: usize = HEAD_WORDS * 8;
/// A header's word for `None`.
const NONE: u64 = u64::MAX;

/// One end of a stream.
#[derive(Debug)]
pub(super) struct End {
    pub(super) role: Role,
    /// By index into the log.
    pub(super) record: usize,
    opened: Instant,
    reading: Reading,
    pub(super) resets_at: Option<Instant>,
    /// Its stream should come to an end.
    pub(super) ends: bool,
    /// Offset up to which it writes.
    pub(super) goal: u64,
    /// Nothing follows the goal.
    pub(super) last: bool,
    /// Header of the client's direction; a server parses it as it arrives.
    head: Vec<u8>,
    send_key: u64,
    receive_key: u64,
    looks_at: Option<Instant>,
    /// It has ended, by any cause.
    pub(super) gone: bool,
}

#[derive(Debug)]
pub(super) enum Role {
    Client {
        client: usize,
        /// Dialogues begun on this stream.
        begun: u32,
        rounds_left: u32,
        /// Bytes to read before the next request.
        expected: u64,
    },
    /// Lengths of requests and responses, once the header has arrived.
    Server(Option<(u64, u64)>),
}

/// Parameters that a server needs; precedes the first request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    record: u64,
    key: u64,
    request: u64,
    response: u64,
    resets_after: Option<Duration>,
    reading: Reading,
    ends: bool,
}

impl End {
    pub(super) fn of_client(
        now: Instant,
        record: usize,
        client: usize,
        head: &Head,
        spec: &Dialogues,
    ) -> Self {
        Self {
            role: Role::Client {
                client,
                begun: 0,
                rounds_left: 0,
                expected: 0,
            },
            record,
            opened: now,
            reading: spec.client_reads,
            resets_at: match spec.end {
                StreamEnd::ClientResets(after) => Some(now + after),
                _ => None,
            },
            ends: spec.ends(),
            goal: HEAD_LEN as u64,
            last: false,
            head: head.encode(),
            send_key: seed::derive(head.key, "to server", 0),
            receive_key: seed::derive(head.key, "to client", 0),
            looks_at: None,
            gone: false,
        }
    }

    /// Defaults until the header has arrived.
    pub(super) fn of_server(now: Instant, record: usize) -> Self {
        Self {
            role: Role::Server(None),
            record,
            opened: now,
            reading: Reading::AtOnce,
            resets_at: None,
            ends: true,
            goal: 0,
            last: false,
            head: Vec::new(),
            send_key: 0,
            receive_key: 0,
            looks_at: None,
            gone: false,
        }
    }

    /// Reads what it may; returns when it will read again.
    pub(super) fn read(
        &mut self,
        turn: &mut StreamContext<'_>,
        stream: StreamId,
    ) -> Option<Instant> {
        loop {
            let observation = &turn.log.streams[self.record];
            let (read, ended_before) = (observation.read, observation.end_seen.is_some());
            // `None`: its reset is about to be signalled.
            let (first, second, last) = turn.endpoint.stream_data(turn.peer, stream)?;
            let len = (first.len() + second.len()) as u64;
            if ended_before {
                if len > 0 {
                    let fault = format!("{}: bytes after the end of {observation:?}", turn.now);
                    turn.log.faults.push(fault);
                }
                return None;
            }
            let (allowed, again) = self.allowed(turn.now, read);
            let take = len.min(allowed);
            let ends = last && take == len;
            if take == 0 && !ends {
                return again.filter(|_| len > 0 || last);
            }
            let in_first = (take as usize).min(first.len());
            let pieces = [&first[..in_first], &second[..take as usize - in_first]];
            let mut wrong = None;
            let mut position = read;
            for piece in pieces {
                wrong = wrong.or(self.check(turn.now, position, piece));
                position += piece.len() as u64;
            }
            let observation = &mut turn.log.streams[self.record];
            observation.read = position;
            if ends {
                observation.end_seen = Some(turn.now);
            }
            if let Some(wrong) = wrong {
                let fault = format!("{}: wrong from byte {wrong} on: {observation:?}", turn.now);
                turn.log.faults.push(fault);
            }
            turn.endpoint
                .consume_stream(turn.now, turn.peer, stream, take as usize);
            self.learn(turn.log);
        }
    }

    /// Whether the driver is to schedule another look at `at`.
    pub(super) fn looks_again(&mut self, now: Instant, at: Option<Instant>) -> bool {
        let known = self.looks_at.is_some_and(|known| known > now);
        let Some(at) = at.filter(|_| !known) else {
            return false;
        };
        self.looks_at = Some(at);
        true
    }

    /// A server's responses to what it has read.
    pub(super) fn answer(&mut self, log: &Log) {
        let observation = &log.streams[self.record];
        if let Role::Server(Some((request, response))) = self.role {
            let requests = (observation.read - HEAD_LEN as u64) / request;
            self.goal = requests * response;
        }
        self.last = observation.end_seen.is_some();
    }

    /// Writes as much as there is room for; `true` if that was all, and the stream goes on.
    pub(super) fn write(&mut self, turn: &mut StreamContext<'_>, stream: StreamId) -> bool {
        loop {
            let written = turn.log.streams[self.record].written;
            let left = self.goal - written;
            if left == 0 {
                break;
            }
            let room = turn.endpoint.stream_room(turn.peer, stream);
            let len = left.min(CHUNK).min(room.unwrap_or(0) as u64);
            if len == 0 {
                return false;
            }
            let mut bytes = vec![0; len as usize];
            content::fill(self.send_key, written, &mut bytes);
            if let Role::Client { .. } = self.role {
                let head = self.head.iter().skip(written as usize);
                bytes
                    .iter_mut()
                    .zip(head)
                    .for_each(|(to, from)| *to = *from);
            }
            let taken = turn
                .endpoint
                .write_stream(turn.now, turn.peer, stream, &bytes);
            let observation = &mut turn.log.streams[self.record];
            observation.written += taken.unwrap_or(0) as u64;
            if taken != Some(bytes.len()) {
                let fault = format!(
                    "{}: {taken:?} of {len} bytes taken: {observation:?}",
                    turn.now
                );
                turn.log.faults.push(fault);
                return false;
            }
        }
        let observation = &mut turn.log.streams[self.record];
        if self.last && observation.finished.is_none() {
            observation.finished = Some(turn.now);
            turn.endpoint.finish_stream(turn.now, turn.peer, stream);
        }
        true
    }

    /// How much it may read now, having read `read`, and when it may read more.
    fn allowed(&self, now: Instant, read: u64) -> (u64, Option<Instant>) {
        if let Role::Server(None) = self.role {
            return ((HEAD_LEN - self.head.len()) as u64, None);
        }
        match self.reading {
            Reading::AtOnce => (u64::MAX, None),
            Reading::After(wait) => {
                let from = self.opened + wait;
                let allowed = if now >= from { u64::MAX } else { 0 };
                (allowed, Some(from))
            }
            Reading::UpTo(bytes) => (bytes.saturating_sub(read), None),
            Reading::Slowly(rate) => {
                let rate = rate.max(1);
                let elapsed = (now - self.opened).as_nanos() as u64;
                let due = (u128::from(rate) * u128::from(elapsed) / 1_000_000_000) as u64;
                let tick = SLOW_TICK.max(Duration::from_nanos(1_000_000_000 / rate + 1));
                (due.saturating_sub(read), Some(now + tick))
            }
        }
    }

    /// Offset of the first wrong byte.
    fn check(&mut self, now: Instant, position: u64, bytes: &[u8]) -> Option<u64> {
        if let Role::Server(None) = self.role {
            self.head.extend_from_slice(bytes);
            if self.head.len() == HEAD_LEN {
                return match Head::decode(&self.head) {
                    Some(head) => {
                        self.on_head(now, &head);
                        None
                    }
                    None => Some(0),
                };
            }
            return None;
        }
        content::first_wrong(self.receive_key, position, bytes)
    }

    fn on_head(&mut self, now: Instant, head: &Head) {
        self.role = Role::Server(Some((head.request, head.response)));
        self.reading = head.reading;
        // The time may have passed already.
        self.resets_at = head.resets_after.map(|after| now.max(self.opened + after));
        self.ends = head.ends;
        self.send_key = seed::derive(head.key, "to client", 0);
        self.receive_key = seed::derive(head.key, "to server", 0);
    }

    /// Records the contents of the header in the log.
    fn learn(&self, log: &mut Log) {
        let observation: &mut StreamObservation = &mut log.streams[self.record];
        if let Role::Server(Some(_)) = self.role
            && observation.other.is_none()
            && let Some(head) = Head::decode(&self.head)
        {
            observation.other = Some(head.record as usize);
            observation.ends = head.ends;
        }
    }
}

impl Head {
    pub(super) fn new(record: usize, key: u64, spec: &Dialogues) -> Self {
        Self {
            record: record as u64,
            key,
            request: spec.request_bytes.max(1),
            response: spec.response_bytes.max(1),
            resets_after: match spec.end {
                StreamEnd::ServerResets(after) => Some(after),
                _ => None,
            },
            reading: spec.server_reads,
            ends: spec.ends(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let (kind, value) = match self.reading {
            Reading::AtOnce => (0, 0),
            Reading::Slowly(rate) => (1, rate),
            Reading::After(wait) => (2, wait.as_nanos() as u64),
            Reading::UpTo(bytes) => (3, bytes),
        };
        let resets = self.resets_after;
        let words = [
            self.record,
            self.key,
            self.request,
            self.response,
            resets.map_or(NONE, |after| after.as_nanos() as u64),
            kind,
            value,
            u64::from(self.ends),
        ];
        let check = words.into_iter().fold(0, |sum, word| seed::mix(sum ^ word));
        let words = words.into_iter().chain([check]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// `None` if these are not the bytes that were sent.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (chunks, _) = bytes.as_chunks::<8>();
        let words: Vec<u64> = chunks
            .iter()
            .map(|chunk| u64::from_le_bytes(*chunk))
            .collect();
        let &[
            record,
            key,
            request,
            response,
            resets,
            kind,
            value,
            ends,
            check,
        ] = &words[..]
        else {
            return None;
        };
        let sum = words[..HEAD_WORDS - 1].iter();
        let reading = match kind {
            0 => Reading::AtOnce,
            1 => Reading::Slowly(value),
            2 => Reading::After(Duration::from_nanos(value)),
            _ => Reading::UpTo(value),
        };
        (sum.fold(0, |sum, word| seed::mix(sum ^ word)) == check).then_some(Self {
            record,
            key,
            request,
            response,
            resets_after: (resets != NONE).then_some(Duration::from_nanos(resets)),
            reading,
            ends: ends != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_learns_the_parameters_of_its_client() {
        let mut spec = Dialogues::once(0, 1, 100, 200);
        for (end, reading) in [
            (StreamEnd::Never, Reading::Slowly(7)),
            (
                StreamEnd::ServerResets(Duration::from_millis(3)),
                Reading::UpTo(9),
            ),
            (
                StreamEnd::AfterRequest,
                Reading::After(Duration::from_secs(1)),
            ),
            (StreamEnd::AfterResponse, Reading::AtOnce),
        ] {
            spec.end = end;
            spec.server_reads = reading;
            let head = Head::new(5, 6, &spec);
            let mut bytes = head.encode();
            assert_eq!(bytes.len(), HEAD_LEN);
            assert_eq!(Head::decode(&bytes), Some(head));
            bytes[20] ^= 1;
            assert_eq!(Head::decode(&bytes), None);
        }
    }
}
