//! Lines out of a byte stream, bounded.

use serde::Serialize;

/// Cuts a byte stream into lines of at most a given length.
#[derive(Debug)]
pub struct LineDecoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are given out already.
    start: usize,
    /// Bytes of `buffer` in which no newline was found.
    searched: usize,
    line_bytes_max: usize,
}

/// A line is longer than the decoder allows. The stream cannot be used further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {line_bytes_max} bytes")]
pub struct LineError {
    pub line_bytes_max: usize,
}

impl LineDecoder {
    /// For lines of at most `line_bytes_max` bytes, newline included.
    pub fn new(line_bytes_max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            line_bytes_max,
        }
    }

    /// Takes in bytes as they came. Call [`LineDecoder::next_line`] until it gives `None` before
    /// the next: the decoder keeps what was pushed and at most one incomplete line.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next line without its newline (and without a carriage return before it); `None`: more
    /// bytes are needed. Empty lines are skipped.
    ///
    /// # Errors
    /// A line is too long.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineError> {
        loop {
            let unsearched = &self.buffer[self.searched..];
            let Some(length) = unsearched.iter().position(|b| *b == b'\n') else {
                self.searched = self.buffer.len();
                // An incomplete line also needs its newline.
                return match self.buffer.len() - self.start < self.line_bytes_max {
                    true => Ok(None),
                    false => Err(self.too_long()),
                };
            };
            let (start, end) = (self.start, self.searched + length);
            if end + 1 - start > self.line_bytes_max {
                return Err(self.too_long());
            }
            self.start = end + 1;
            self.searched = end + 1;
            let end = end - usize::from(end > start && self.buffer[end - 1] == b'\r');
            if end > start {
                return Ok(Some(&self.buffer[start..end]));
            }
        }
    }

    fn too_long(&self) -> LineError {
        LineError {
            line_bytes_max: self.line_bytes_max,
        }
    }
}

/// `value` as a line of JSON with its newline.
///
/// The types of this module always have a JSON form; a value that has none gives an empty line,
/// which readers skip.
pub fn encode_line<T: Serialize>(value: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(decoder: &mut LineDecoder) -> Result<Vec<String>, LineError> {
        let mut lines = Vec::new();
        while let Some(line) = decoder.next_line()? {
            lines.push(String::from_utf8_lossy(line).into_owned());
        }
        Ok(lines)
    }

    #[test]
    fn lines_are_reassembled_from_any_pieces() {
        let mut decoder = LineDecoder::new(10);
        decoder.push(b"ab");
        assert_eq!(lines(&mut decoder), Ok(vec![]));
        decoder.push(b"c\nd\r\n\n\r\ne");
        assert_eq!(
            lines(&mut decoder),
            Ok(vec!["abc".to_owned(), "d".to_owned()])
        );
        decoder.push(b"f\n");
        assert_eq!(lines(&mut decoder), Ok(vec!["ef".to_owned()]));
    }

    #[test]
    fn too_long_lines_are_refused_before_they_end() {
        let mut decoder = LineDecoder::new(4);
        decoder.push(b"abc\n");
        assert_eq!(lines(&mut decoder), Ok(vec!["abc".to_owned()]));
        decoder.push(b"abc");
        assert_eq!(lines(&mut decoder), Ok(vec![]));
        decoder.push(b"d");
        assert_eq!(lines(&mut decoder), Err(LineError { line_bytes_max: 4 }));
        let mut decoder = LineDecoder::new(4);
        decoder.push(b"abcd\n");
        assert_eq!(lines(&mut decoder), Err(LineError { line_bytes_max: 4 }));
    }

    proptest! {
        #[test]
        fn reading_lines_does_not_depend_on_read_sizes(text in "[a-c\n]{0,60}", cuts in prop::collection::vec(1..8_usize, 0..60)) {
            let expected: Vec<&str> = match text.rsplit_once('\n') {
                Some((complete, _)) => complete.split('\n').filter(|l| !l.is_empty()).collect(),
                None => Vec::new(),
            };
            let mut decoder = LineDecoder::new(100);
            let mut rest = text.as_bytes();
            let mut found = Vec::new();
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                decoder.push(now);
                found.extend(lines(&mut decoder).unwrap());
                rest = later;
            }
            prop_assert_eq!(found, expected);
        }
    }
}
