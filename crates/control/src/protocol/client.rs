//! A blocking client of the control socket, over any stream the caller brings.

use std::io::{self, Read, Write};

use super::{
    ErrorResponse, Event, LineDecoder, LineError, RESPONSE_BYTES_MAX, Request, Response,
    encode_line,
};

/// A connection to a gateway's control socket.
///
/// Connecting and time limits are the caller's: a `UnixStream` with its timeouts set. After an
/// error other than [`ClientError::Refused`] or a time-out in [`Client::next_event`] the
/// connection must not be used further.
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    lines: LineDecoder,
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The stream failed.
    #[error("the connection to the gateway failed: {0}")]
    Io(#[from] io::Error),
    /// The gateway closed the connection.
    #[error("the gateway closed the connection; `journalctl -u keiro-gateway` may say why")]
    Closed,
    /// The gateway says no.
    #[error(transparent)]
    Refused(ErrorResponse),
    /// The answer is longer than any.
    #[error(transparent)]
    TooLong(#[from] LineError),
    /// The answer is not one of this protocol.
    #[error("the gateway's answer cannot be read: {0}; are both of one version?")]
    NotUnderstood(#[from] serde_json::Error),
}

impl<S: Read + Write> Client<S> {
    /// A client on a connected stream.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            lines: LineDecoder::new(RESPONSE_BYTES_MAX),
        }
    }

    /// Sends a request and waits for its answer, which is never [`Response::Error`].
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn request(&mut self, request: &Request) -> Result<Response, ClientError> {
        self.stream.write_all(&encode_line(request))?;
        self.stream.flush()?;
        match serde_json::from_slice(&self.next_line()?)? {
            Response::Error(error) => Err(ClientError::Refused(error)),
            response => Ok(response),
        }
    }

    /// Waits for the next event after [`Request::Monitor`]. A stream's time-out is an
    /// [`ClientError::Io`] after which it may be called again; nothing is lost.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn next_event(&mut self) -> Result<Event, ClientError> {
        Ok(serde_json::from_slice(&self.next_line()?)?)
    }

    fn next_line(&mut self) -> Result<Vec<u8>, ClientError> {
        let mut chunk = vec![0; READ_BYTES];
        loop {
            if let Some(line) = self.lines.next_line()? {
                return Ok(line.to_vec());
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(n) => self.lines.push(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Bytes asked of the stream at once. Ours: most answers are one read.
const READ_BYTES: usize = 16 << 10;
