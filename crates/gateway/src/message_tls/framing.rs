//! Follows the frames of one connection: what the client sends, and which outcomes it gets.
//!
//! Pure: bytes in, bytes and figures out. A message is passed on when its client has room for it; its
//! header is held back until then.

use std::collections::HashMap;

use keiro_control::message_socket::{
    ACK_BYTES, AnswerDecoder, BODY_BYTES_MAX, FramingError, MESSAGE_HEADER_BYTES,
};

use super::clients::Account;

/// Parses the frames of a client that sends messages.
#[derive(Debug, Default)]
pub(super) struct SenderFraming {
    header: [u8; MESSAGE_HEADER_BYTES],
    header_filled: usize,
    body_left: usize,
    /// Lengths of messages without an outcome, by the client's number. One number may be there several
    /// times: the gateway refuses all but the first.
    unfinished: HashMap<u64, Vec<usize>>,
    answer: Answer,
    ack: [u8; ACK_BYTES],
    ack_filled: usize,
}

/// Parses the frames of a client that receives messages.
#[derive(Debug, Default)]
pub(super) struct ReceiverFraming {
    answer: Answer,
    header: [u8; MESSAGE_HEADER_BYTES],
    header_filled: usize,
    body_left: usize,
}

/// The gateway's answer to the hello comes first.
#[derive(Debug, Default)]
struct Answer {
    decoder: AnswerDecoder,
    is_read: bool,
}

/// Offset of an ack's outcome and of its reason.
const OUTCOME: usize = 8;
const REASON: usize = 9;
/// The reason of a refusal because the number has no outcome yet (`docs/message-socket.md`).
const DUPLICATE_ID: u8 = 2;

impl SenderFraming {
    /// Moves from the front of `input` to `output` what may be passed on now, at most until `output` has
    /// `output_max` bytes. What stays waits for room: of its client, or in `output`.
    ///
    /// # Errors
    /// A length that is not allowed; the connection cannot be used further.
    pub(super) fn pass(
        &mut self,
        input: &mut &[u8],
        account: &mut Account,
        output: &mut Vec<u8>,
        output_max: usize,
    ) -> Result<(), FramingError> {
        while !input.is_empty() && output.len() < output_max {
            if self.body_left > 0 {
                let room = output_max - output.len();
                let (now, rest) = input.split_at(self.body_left.min(input.len()).min(room));
                output.extend_from_slice(now);
                self.body_left -= now.len();
                *input = rest;
                continue;
            }
            fill(&mut self.header, &mut self.header_filled, input);
            if !self.begin(account, output)? {
                return Ok(());
            }
        }
        // A header that waited for room may be the last that came.
        if self.is_held() && output.len() < output_max {
            self.begin(account, output)?;
        }
        Ok(())
    }

    /// Begins the message whose header is whole, if its client has room; `false`: it waits.
    fn begin(&mut self, account: &mut Account, output: &mut Vec<u8>) -> Result<bool, FramingError> {
        if !self.is_held() {
            return Ok(true);
        }
        let (length, id) = self.header.split_at(size_of::<u32>());
        let length = number(length);
        if length == 0 || length > BODY_BYTES_MAX as u64 {
            return Err(FramingError::BodyLength(length));
        }
        let length = length as usize;
        if !account.has_room(length) {
            return Ok(false);
        }
        account.on_begun(length);
        self.unfinished.entry(number(id)).or_default().push(length);
        output.extend_from_slice(&self.header);
        self.header_filled = 0;
        self.body_left = length;
        Ok(true)
    }

    /// A whole header waits for room of its client.
    pub(super) fn is_held(&self) -> bool {
        self.header_filled == MESSAGE_HEADER_BYTES
    }

    /// The stream may end here.
    pub(super) fn is_between_messages(&self) -> bool {
        self.header_filled == 0 && self.body_left == 0
    }

    /// What the gateway sent: its answer, then acks.
    ///
    /// # Errors
    /// It is not the gateway that sends this.
    pub(super) fn on_gateway_bytes(
        &mut self,
        mut input: &[u8],
        account: &mut Account,
    ) -> Result<(), FramingError> {
        self.answer.skip(&mut input)?;
        while !input.is_empty() {
            fill(&mut self.ack, &mut self.ack_filled, &mut input);
            if self.ack_filled == ACK_BYTES {
                self.ack_filled = 0;
                self.on_ack(account);
            }
        }
        Ok(())
    }

    fn on_ack(&mut self, account: &mut Account) {
        let id = number(&self.ack[..OUTCOME]);
        let (outcome, reason) = (self.ack[OUTCOME], self.ack[REASON]);
        let Some(lengths) = self.unfinished.get_mut(&id) else {
            return;
        };
        // The first of one number is the one that was accepted.
        let is_duplicate = outcome == 2 && reason == DUPLICATE_ID && lengths.len() > 1;
        let length = match is_duplicate {
            true => lengths.pop(),
            false => Some(lengths.remove(0)),
        };
        if lengths.is_empty() {
            self.unfinished.remove(&id);
        }
        if let Some(length) = length {
            account.on_finished(length, Some(outcome));
        }
    }

    /// The gateway has closed: what has no outcome by now gets none.
    pub(super) fn on_end(&mut self, account: &mut Account) {
        for length in self.unfinished.drain().flat_map(|(_, lengths)| lengths) {
            account.on_finished(length, None);
        }
    }

    #[cfg(test)]
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished.values().map(Vec::len).sum()
    }
}

impl ReceiverFraming {
    /// What the gateway sent: its answer, then messages.
    ///
    /// # Errors
    /// It is not the gateway that sends this.
    pub(super) fn on_gateway_bytes(
        &mut self,
        mut input: &[u8],
        account: &mut Account,
    ) -> Result<(), FramingError> {
        self.answer.skip(&mut input)?;
        while !input.is_empty() {
            if self.body_left > 0 {
                let passed = self.body_left.min(input.len());
                self.body_left -= passed;
                input = &input[passed..];
                if self.body_left == 0 {
                    account.on_received_message();
                }
                continue;
            }
            fill(&mut self.header, &mut self.header_filled, &mut input);
            if self.header_filled == MESSAGE_HEADER_BYTES {
                self.header_filled = 0;
                self.body_left = number(&self.header[..size_of::<u32>()]) as usize;
                account.on_received_bytes(self.body_left);
            }
        }
        Ok(())
    }
}

impl Answer {
    fn skip(&mut self, input: &mut &[u8]) -> Result<(), FramingError> {
        if !self.is_read {
            self.is_read = self.decoder.decode(input)?.is_some();
        }
        Ok(())
    }
}

fn fill<const N: usize>(bytes: &mut [u8; N], filled: &mut usize, input: &mut &[u8]) {
    let (now, rest) = input.split_at((N - *filled).min(input.len()));
    bytes[*filled..*filled + now.len()].copy_from_slice(now);
    *filled += now.len();
    *input = rest;
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}
