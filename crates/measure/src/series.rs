//! Files of measured transfer times: CSV with the columns `bytes` and `seconds`, or JSON with an array
//! `samples` of such objects.
//!
//! Parsing is strict: invalid input is refused with its line. Fitting is in `keiro_model::fit`.

mod error;

use std::{
    io::{self, Read, Write},
    path::Path,
};

use keiro_config::regular_file;
use keiro_model::fit::Sample;
use keiro_units::ByteCount;
use serde::{Deserialize, Serialize};

pub use self::error::{Excess, Fields, LineProblem, SeriesError};

/// Maximum of points in a file; ours: 16 MB of memory, and a day of ten transfers per second.
pub const POINTS_MAX: usize = 1_000_000;

/// Maximum of bytes in a file; ours: a hundred per point.
pub const FILE_BYTES_MAX: u64 = 100_000_000;

/// Transfer times of one network, in the order in which they were measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    pub samples: Vec<Sample>,
}

/// One transfer in a file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub bytes: u64,
    /// Duration of the transfer.
    pub seconds: f64,
}

impl Series {
    /// Reads a file: JSON if its first character is `{` or `[`, otherwise CSV.
    ///
    /// # Errors
    /// The fault, see [`SeriesError`].
    pub fn load(path: &Path) -> Result<Self, SeriesError> {
        let file = path.display().to_string();
        let opened = regular_file::open(path).map_err(|reason| SeriesError::Read {
            file: file.clone(),
            reason,
        })?;
        Self::read(&file, opened)
    }

    /// As [`load`](Self::load), from any reader; `file` is for messages.
    ///
    /// # Errors
    /// The fault, see [`SeriesError`].
    pub fn read(file: &str, from: impl Read) -> Result<Self, SeriesError> {
        let mut text = Vec::new();
        // One byte beyond the bound shows that there is more.
        from.take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut text)
            .map_err(|reason| SeriesError::Read {
                file: file.to_owned(),
                reason,
            })?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(SeriesError::TooLarge {
                file: file.to_owned(),
                excess: Excess::Bytes,
            });
        }
        end_lines(&mut text);
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let series = match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{' | b'[') => Self::from_json(file, text)?,
            _ => Self::from_csv(file, text)?,
        };
        match series.samples.is_empty() {
            true => Err(SeriesError::Empty {
                file: file.to_owned(),
            }),
            false => Ok(series),
        }
    }

    fn from_json(file: &str, text: &[u8]) -> Result<Self, SeriesError> {
        let records: Records = serde_json::from_slice(text).map_err(|error| SeriesError::Json {
            file: file.to_owned(),
            reason: json_reason(text, &error),
        })?;
        let records = match records {
            Records::Document { samples } | Records::Bare(samples) => samples,
        };
        if records.len() > POINTS_MAX {
            return Err(SeriesError::TooLarge {
                file: file.to_owned(),
                excess: Excess::Points,
            });
        }
        let sample = |(index, record): (usize, &Record)| {
            Sample::new(ByteCount::new(record.bytes), record.seconds).map_err(|problem| {
                SeriesError::Element {
                    file: file.to_owned(),
                    index,
                    problem,
                }
            })
        };
        let samples = records.iter().enumerate().map(sample);
        Ok(Self {
            samples: samples.collect::<Result<_, _>>()?,
        })
    }

    fn from_csv(file: &str, text: &[u8]) -> Result<Self, SeriesError> {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .comment(Some(b'#'))
            .flexible(true)
            .trim(csv::Trim::All)
            .from_reader(text);
        let mut columns: Option<Columns> = None;
        let mut samples = Vec::new();
        let mut record = csv::StringRecord::new();
        loop {
            let at = |line, problem| SeriesError::Line {
                file: file.to_owned(),
                line,
                problem,
            };
            match reader.read_record(&mut record) {
                Ok(false) => break,
                Ok(true) => {}
                Err(error) => {
                    let line = line_of(text, error.position());
                    return Err(at(line, syntax(&error)));
                }
            }
            let line = line_of(text, record.position());
            let known = match columns {
                Some(known) => known,
                None => {
                    let (found, is_header) =
                        Columns::find(&record).map_err(|problem| at(line, problem))?;
                    columns = Some(found);
                    if is_header {
                        continue;
                    }
                    found
                }
            };
            if samples.len() == POINTS_MAX {
                return Err(SeriesError::TooLarge {
                    file: file.to_owned(),
                    excess: Excess::Points,
                });
            }
            samples.push(known.sample(&record).map_err(|problem| at(line, problem))?);
        }
        Ok(Self { samples })
    }

    /// Writes CSV: `comments` as lines that begin with `#`, a header, a line per transfer.
    ///
    /// # Errors
    /// `to` cannot be written.
    pub fn write_csv(&self, to: &mut impl Write, comments: &[String]) -> io::Result<()> {
        for comment in comments.iter().flat_map(|comment| comment.lines()) {
            writeln!(to, "# {comment}")?;
        }
        writeln!(to, "{BYTES},{SECONDS}")?;
        for record in self.records() {
            writeln!(to, "{},{}", record.bytes, record.seconds)?;
        }
        Ok(())
    }

    /// The transfers in the form of files.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.samples.iter().map(|sample| Record {
            bytes: sample.bytes().get(),
            seconds: sample.seconds(),
        })
    }
}

const BYTES: &str = "bytes";
const SECONDS: &str = "seconds";

/// Below this every integer is exact in a double, in which sizes are calculated.
const BYTES_MAX: u64 = 1 << 53;

/// Both forms of JSON; further fields are ignored.
#[derive(Deserialize)]
#[serde(untagged)]
enum Records {
    Document { samples: Vec<Record> },
    Bare(Vec<Record>),
}

/// The error of an untagged enum is not helpful, so the intended form is parsed alone.
fn json_reason(text: &[u8], error: &serde_json::Error) -> String {
    #[derive(Deserialize)]
    struct Document {
        #[serde(rename = "samples")]
        _samples: Vec<Record>,
    }
    let begins_with = text.iter().find(|byte| !byte.is_ascii_whitespace());
    let exact = match begins_with {
        Some(b'[') => serde_json::from_slice::<Vec<Record>>(text).err(),
        _ => serde_json::from_slice::<Document>(text).err(),
    };
    exact.as_ref().unwrap_or(error).to_string()
}

/// Indices of the two columns.
#[derive(Clone, Copy)]
struct Columns {
    bytes: usize,
    seconds: usize,
    /// The number of columns in the header; `None`: there is none, and further columns are ignored.
    named: Option<usize>,
}

impl Columns {
    /// From the first line; also returns whether that is a header.
    fn find(first: &csv::StringRecord) -> Result<(Self, bool), LineProblem> {
        if first.get(0).is_some_and(|text| text.parse::<f64>().is_ok()) {
            let known = Self {
                bytes: 0,
                seconds: 1,
                named: None,
            };
            return Ok((known, false));
        }
        for (separator, name) in [(';', "`;`"), ('\t', "tabs")] {
            if first.iter().any(|field| field.contains(separator)) {
                return Err(LineProblem::Separator { name });
            }
        }
        let position = |name: &'static str| {
            let mut named = first
                .iter()
                .enumerate()
                .filter(|(_, field)| field.eq_ignore_ascii_case(name));
            match (named.next(), named.next()) {
                (Some((at, _)), None) => Ok(at),
                (Some(_), Some(_)) => Err(LineProblem::Twice { column: name }),
                (None, _) => Err(LineProblem::Header { missing: name }),
            }
        };
        let columns = Self {
            bytes: position(BYTES)?,
            seconds: position(SECONDS)?,
            named: Some(used(first)),
        };
        Ok((columns, true))
    }

    fn sample(self, record: &csv::StringRecord) -> Result<Sample, LineProblem> {
        self.refuse_extra(record)?;
        let bytes = number(record, BYTES, self.bytes)?;
        let seconds = number(record, SECONDS, self.seconds)?;
        let text = record.get(self.bytes).unwrap_or_default();
        let bytes = whole(text, bytes).ok_or_else(|| LineProblem::NotACount {
            text: shortened(text),
        })?;
        Sample::new(ByteCount::new(bytes), seconds).map_err(LineProblem::Sample)
    }
}

impl Columns {
    /// A comma that separates columns and decimals alike moves the columns, and the fraction would be
    /// lost.
    fn refuse_extra(self, record: &csv::StringRecord) -> Result<(), LineProblem> {
        let known = self.named.unwrap_or(2);
        if used(record) <= known {
            return Ok(());
        }
        let text = |index: usize| record.get(index).unwrap_or_default();
        let (whole, fraction) = (text(self.seconds), text(self.seconds + 1));
        let is_whole = !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit());
        let is_fraction = fraction.starts_with(|first: char| first.is_ascii_digit())
            && fraction.parse::<f64>().is_ok();
        let split = is_whole && is_fraction;
        if self.named.is_none() && !split {
            return Ok(());
        }
        let number = || format!("{},{}", shortened(whole), shortened(fraction));
        Err(LineProblem::Extra {
            position: known + 1,
            text: shortened(text(known)),
            known,
            number: split.then(number),
        })
    }
}

/// The number of fields up to the last one that is not empty; spreadsheets write empty ones.
fn used(record: &csv::StringRecord) -> usize {
    let in_use = record
        .iter()
        .enumerate()
        .filter(|(_, field)| !field.is_empty());
    in_use.last().map_or(0, |(last, _)| last + 1)
}

/// Parses an integer; `value` is `text` as a float. `None` if it is not one, or beyond 2^53.
fn whole(text: &str, value: f64) -> Option<u64> {
    // A float may differ from the number that was written; digits alone are exact.
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return digits.parse().ok().filter(|bytes| *bytes <= BYTES_MAX);
    }
    // Where two floats are an integer apart, fractions are not representable.
    let exact = 0.0..(BYTES_MAX / 2) as f64;
    (exact.contains(&value) && value.fract() == 0.0).then_some(value as u64)
}

fn number(
    record: &csv::StringRecord,
    column: &'static str,
    index: usize,
) -> Result<f64, LineProblem> {
    let text = record.get(index).ok_or(LineProblem::Missing {
        column,
        position: index + 1,
        fields: Fields(record.len()),
    })?;
    text.parse().map_err(|_| LineProblem::NotANumber {
        column,
        text: shortened(text),
    })
}

/// The beginning of a field, enough to find it.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Replaces bare carriage returns by line feeds: the parser takes them as the end of a record, but not of a
/// comment or a line.
fn end_lines(text: &mut [u8]) {
    for at in 0..text.len() {
        if text[at] == b'\r' && text.get(at + 1) != Some(&b'\n') {
            text[at] = b'\n';
        }
    }
}

/// The line number of a record that was read from `position`, after comments and empty lines.
fn line_of(text: &[u8], position: Option<&csv::Position>) -> u64 {
    let Some(position) = position else {
        return 0;
    };
    let start = usize::try_from(position.byte()).unwrap_or(text.len());
    let rest = text.get(start..).unwrap_or_default();
    let nothing = |line: &&[u8]| matches!(line, [b'#', ..] | [b'\r'] | []);
    let before = rest
        .split(|byte| *byte == b'\n')
        .take_while(nothing)
        .count();
    position.line() + before as u64
}

fn syntax(error: &csv::Error) -> LineProblem {
    LineProblem::Syntax(match error.kind() {
        csv::ErrorKind::Utf8 { .. } => "not text in UTF-8".to_owned(),
        _ => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(u64, f64)>, SeriesError> {
        let series = Series::read("x.csv", text.as_bytes())?;
        Ok(series.records().map(|r| (r.bytes, r.seconds)).collect())
    }

    #[track_caller]
    fn refused(text: &str, message: &str) {
        let error = read(text).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert!(!error.hint().is_empty());
    }

    #[test]
    fn a_header_is_not_needed_and_columns_are_found_by_it() {
        let expected = vec![(1000, 0.5), (2000, 0.75)];
        assert_eq!(read("1000,0.5\n2000,0.75\n").unwrap(), expected);
        assert_eq!(
            read("bytes,seconds\n1000,0.5\n2000,0.75").unwrap(),
            expected
        );
        let turned = "when,Seconds,note, BYTES \r\n1,0.5,a,1000\r\n2,7.5e-1,\"b, c\",2e3\r\n";
        assert_eq!(read(turned).unwrap(), expected);
        let commented =
            "\u{feff}# to 192.0.2.2\n\nbytes,seconds\n# a pause\n1000, 0.5\n2000,0.75\n";
        assert_eq!(read(commented).unwrap(), expected);
    }

    #[test]
    fn carriage_returns_end_lines_and_comments() {
        let text = "# to 192.0.2.2\rbytes,seconds\r1000,0.5\r# a pause\r2000,0.75";
        assert_eq!(read(text).unwrap(), [(1000, 0.5), (2000, 0.75)]);
        let document = "{\r\"samples\":\r[{\"bytes\": 1000, \"seconds\": fast}]}";
        let message = read(document).unwrap_err().to_string();
        assert!(message.contains("line 3"), "{message}");
    }

    #[test]
    fn faults_are_reported_with_their_line() {
        refused(
            "bytes,seconds\n1000,0.5\n# a comment\n2000,fast\n",
            "x.csv:4: `seconds` is `fast`, which is no number",
        );
        refused(
            "bytes,seconds\n-5,0.5\n",
            "x.csv:2: `bytes` is -5, which is not a whole number from 1 to 2^53",
        );
        refused(
            "1000,0.5\n1.5,0.5\n",
            "x.csv:2: `bytes` is 1.5, which is not a whole number from 1 to 2^53",
        );
        refused("1000,0.5\n0,0.5\n", "x.csv:2: a transfer of 0 bytes");
        for bytes in [
            "9007199254740993",
            "9007199254740993.0",
            "18446744073709551616",
            "4503599627370496.5",
            "1e16",
        ] {
            refused(
                &format!("{bytes},0.5\n"),
                &format!("x.csv:1: `bytes` is {bytes}, which is not a whole number from 1 to 2^53"),
            );
        }
        let largest = read("9007199254740992,0.5\n1e9,0.5\n").unwrap();
        assert_eq!(
            largest,
            [(9_007_199_254_740_992, 0.5), (1_000_000_000, 0.5)]
        );
        for semicolons in ["bytes;seconds\n1000;0,5\n", "1000;0.5\n", "1000;0,5\n"] {
            refused(
                semicolons,
                "x.csv:1: columns are separated by `;`, where commas are needed",
            );
        }
        refused(
            "bytes\tseconds\n",
            "x.csv:1: columns are separated by tabs, where commas are needed",
        );
        refused(
            "bytes,seconds,Bytes\n1000,0.5,1001\n",
            "x.csv:1: two columns are named `bytes`",
        );
        refused(
            "seconds,bytes,seconds\n0.5,1000,0.6\n",
            "x.csv:1: two columns are named `seconds`",
        );
        refused(
            "1000,-1\n",
            "x.csv:1: a transfer in -1 s, which must be more than zero",
        );
        refused(
            "1000,inf\n",
            "x.csv:1: a transfer whose time is not a finite number",
        );
        refused(
            "1000,NaN\n",
            "x.csv:1: a transfer whose time is not a finite number",
        );
        refused(
            "1000\n",
            "x.csv:1: no `seconds`: 1 column where column 2 is needed",
        );
        refused(
            "size,time\n1000,0.5\n",
            "x.csv:1: neither two numbers nor a header with `bytes`",
        );
        // Line ends of old systems, and of two systems in one file.
        for mixed in [
            "# a comment\rbytes,seconds\r1000,0.5\r\r2000,fast\r",
            "# a comment\rbytes,seconds\r\n1000,0.5\r\r\n2000,fast\n",
        ] {
            refused(mixed, "x.csv:5: `seconds` is `fast`, which is no number");
        }
        refused("", "x.csv: no transfers");
        refused("# nothing\nbytes,seconds\n", "x.csv: no transfers");
    }

    #[test]
    fn decimal_commas_between_column_commas_are_refused_and_never_lose_a_fraction() {
        let asked = "; is 1,603 a number with a decimal comma?";
        for (text, at) in [
            (
                "bytes,seconds\n1000,1,603\n",
                "2: column 3 is `603`, where 2 columns",
            ),
            ("1000,1,603\n", "1: column 3 is `603`, where 2 columns"),
            (
                "1000,0.5\n1000,1,603\n",
                "2: column 3 is `603`, where 2 columns",
            ),
            (
                "1000,0.5,x\n1000,1,603,x\n",
                "2: column 3 is `603`, where 2 columns",
            ),
            (
                "seconds,bytes\n1,603,1000\n",
                "2: column 3 is `1000`, where 2 columns",
            ),
            (
                "bytes,seconds,\n1000,1,603\n",
                "2: column 3 is `603`, where 2 columns",
            ),
            (
                "bytes,seconds,note\n1000,1,603,x\n",
                "2: column 4 is `x`, where 3 columns",
            ),
            (
                "\u{feff}bytes,seconds\r\n1000,1,603\r\n",
                "2: column 3 is `603`, where 2 columns",
            ),
        ] {
            refused(text, &format!("x.csv:{at} are known{asked}"));
        }
        refused(
            "bytes,seconds\n1000,0.5,x\n",
            "x.csv:2: column 3 is `x`, where 2 columns are known",
        );
        // In quotes it may as well separate thousands.
        for text in ["bytes,seconds\n1000,\"1,603\"\n", "1000,\"1,603\"\n"] {
            let message = read(text).unwrap_err().to_string();
            assert!(
                message.ends_with("`seconds` is `1,603`, which is no number"),
                "{message}"
            );
        }
        refused(
            "\"1,000\",0.5\n",
            "x.csv:1: neither two numbers nor a header with `bytes`",
        );
        // Without a header further columns are ignored where that loses nothing.
        assert_eq!(
            read("1000,0.5,x\n2000,1,y\n").unwrap(),
            [(1000, 0.5), (2000, 1.0)]
        );
        let exponent = read("1000,1,603e-1\n").unwrap_err().to_string();
        assert!(exponent.contains("1,603e-1"), "{exponent}");
        // Empty fields at the end, as spreadsheets write them.
        let expected = vec![(1000, 0.5), (2000, 0.75)];
        for text in [
            "bytes,seconds,,\n1000,0.5,,\n2000,0.75,\n",
            "1000,0.5,\n2000,0.75,,\n",
        ] {
            assert_eq!(read(text).unwrap(), expected);
        }
    }

    #[test]
    fn a_byte_order_mark_changes_nothing() {
        for text in [
            "bytes,seconds\n1000,0.5\n",
            "1000,0.5\n",
            "# a comment\n1000,0.5\n",
            r#"[{"bytes": 1000, "seconds": 0.5}]"#,
            r#"{"samples": [{"bytes": 1000, "seconds": 0.5}]}"#,
        ] {
            assert_eq!(read(text).unwrap(), [(1000, 0.5)]);
            assert_eq!(read(&format!("\u{feff}{text}")).unwrap(), [(1000, 0.5)]);
        }
        refused("\u{feff}", "x.csv: no transfers");
    }

    #[test]
    fn invalid_utf8_is_refused() {
        let error = Series::read("x.csv", &b"1000,0.5\n\xff\xfe,0.5\n"[..]).unwrap_err();
        assert_eq!(error.to_string(), "x.csv:2: not text in UTF-8");
    }

    #[test]
    fn a_long_field_is_shortened() {
        let text = format!("1000,{}\n", "x".repeat(10_000));
        assert!(read(&text).unwrap_err().to_string().len() < 120);
    }

    #[test]
    fn json_is_read_as_a_document_or_as_an_array() {
        let expected = vec![(1000, 0.5), (2000, 0.75)];
        let samples =
            r#"[{"bytes": 1000, "seconds": 0.5}, {"seconds": 0.75, "bytes": 2000, "note": "x"}]"#;
        assert_eq!(read(samples).unwrap(), expected);
        let document = format!(r#" {{"server": "x", "samples": {samples}, "more": [1]}}"#);
        assert_eq!(read(&document).unwrap(), expected);
    }

    #[test]
    fn json_that_is_no_series_is_refused_with_the_reason() {
        for (text, part) in [
            (r#"{"samples": [{"bytes": -1, "seconds": 1}]}"#, "-1"),
            (r#"{"samples": [{"bytes": 1}]}"#, "seconds"),
            (r#"{"points": []}"#, "samples"),
            (r#"[{"bytes": 1, "seconds": 1}"#, "EOF"),
            (
                r#"[{"bytes": 1, "seconds": 0}]"#,
                "samples[0]: a transfer in 0 s",
            ),
        ] {
            let message = read(text).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(read("[]").unwrap_err().to_string(), "x.csv: no transfers");
    }

    #[test]
    fn too_much_is_refused_in_bounded_memory() {
        let lines = "1000,0.5\n".repeat(POINTS_MAX + 1);
        refused(&lines, "x.csv: more than 1000000 transfers");
        let endless = io::repeat(b'1');
        let error = Series::read("x.csv", endless).unwrap_err();
        assert_eq!(error.to_string(), "x.csv: larger than 100 MB");
    }

    #[test]
    fn written_values_parse_to_the_same() {
        let sample = |bytes, seconds| Sample::new(ByteCount::new(bytes), seconds).unwrap();
        let series = Series {
            samples: vec![sample(1000, 0.1), sample(100_000_000, 8.000_000_123)],
        };
        let mut text = Vec::new();
        let comments = ["to 192.0.2.2\nin two lines".to_owned()];
        series.write_csv(&mut text, &comments).unwrap();
        assert!(text.starts_with(b"# to 192.0.2.2\n# in two lines\nbytes,seconds\n1000,0.1\n"));
        assert_eq!(Series::read("x", text.as_slice()).unwrap(), series);
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let error = Series::load(Path::new("/nowhere/x.csv")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("/nowhere/x.csv: cannot be read: No such file")
        );
    }
}
