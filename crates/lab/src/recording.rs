//! Recordings of lines, for links that replay them.
//!
//! Two forms are read. The form of mahimahi has, on each line, the millisecond at which a packet of 1500 bytes
//! can leave. A table has a row a second: the second, and Mbit/s in each further column, of which one is taken.

use std::path::Path;

use keiro_config::{ConfigError, FileLimits, did_you_mean};
use keiro_link::{Trace, TraceError};
use keiro_units::Bandwidth;

/// Ours: the form of mahimahi takes 6 bytes per packet, so this is an hour at 30 Mbit/s.
const LIMITS: FileLimits = FileLimits {
    bytes_max: 64 << 20,
    missing_hint: "name a recorded line, relative to the topology file",
    too_long_hint: "cut the recording",
};

/// Rows of a table. Ours: a day.
const SECONDS_MAX: usize = 86_400;

/// Rate of a recorded second. Ours: above it the emulator would be measured.
const MBIT_MAX: f64 = 100_000.0;

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// Its content is wrong.
    #[error("{file}: {what}")]
    Content { file: String, what: String },
}

/// Reads a recording. `column` selects a column of a table, whose name ends in `.csv`; other files have the
/// form of mahimahi and no columns.
///
/// # Errors
/// The file cannot be read, is too long, or is no recording; with its line.
pub fn load(path: &Path, column: Option<&str>) -> Result<Trace, RecordingError> {
    let file = path.display().to_string();
    let wrong = |what: String| RecordingError::Content {
        file: file.clone(),
        what,
    };
    let ends_in = |end: &str| path.extension().is_some_and(|found| found == end);
    if ends_in("gz") {
        return Err(wrong(
            "is compressed; unpack it with `gunzip --keep` and name the result".to_owned(),
        ));
    }
    let text = LIMITS.read(path)?;
    match (ends_in("csv"), column) {
        (true, Some(column)) => of_table(&text, column).map_err(wrong),
        (true, None) => Err(wrong(format!(
            "is a table; say which column, of {}",
            names(&text).map_err(wrong)?.join(", ")
        ))),
        (false, Some(column)) => Err(wrong(format!(
            "has no columns; leave `{column}` out, or name a file that ends in .csv"
        ))),
        (false, None) => Trace::from_mahimahi(&text).map_err(|error| wrong(error.to_string())),
    }
}

fn reader(text: &str) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes())
}

/// The names of the columns with rates; the first column is the second.
fn names(text: &str) -> Result<Vec<String>, String> {
    let mut reader = reader(text);
    let headers = reader.headers().map_err(|error| error.to_string())?;
    let names: Vec<String> = headers.iter().skip(1).map(str::to_owned).collect();
    match names.is_empty() {
        true => Err(
            "has no header with the second and a column of Mbit/s, as in `second,lte`".to_owned(),
        ),
        false => Ok(names),
    }
}

fn of_table(text: &str, column: &str) -> Result<Trace, String> {
    let names = names(text)?;
    let Some(place) = names.iter().position(|name| name == column) else {
        let known = || names.iter().map(String::as_str);
        return Err(format!(
            "has no column `{column}`{}; there are {}",
            did_you_mean(column, known()),
            names.join(", ")
        ));
    };
    let mut rates = Vec::new();
    let mut before: Option<u64> = None;
    for row in reader(text).records() {
        let row = row.map_err(|error| error.to_string())?;
        let line = row.position().map_or(0, csv::Position::line);
        if rates.len() >= SECONDS_MAX {
            return Err(format!(
                "line {line}: more than {SECONDS_MAX} seconds; cut the recording"
            ));
        }
        let second: u64 = row
            .get(0)
            .and_then(|cell| cell.parse().ok())
            .ok_or_else(|| format!("line {line}: begins with no whole number of seconds"))?;
        if before.is_some_and(|before| second != before.saturating_add(1)) {
            return Err(format!(
                "line {line}: second {second} does not follow the one before; every second has a row, and \
                 an outage is 0"
            ));
        }
        before = Some(second);
        let cell = row.get(place + 1).unwrap_or_default();
        let mbit: Option<f64> = cell.parse().ok();
        let mbit = mbit.filter(|mbit| (0.0..=MBIT_MAX).contains(mbit));
        let mbit = mbit.ok_or_else(|| {
            format!(
                "line {line}: `{cell}` in column `{column}` is no rate of 0 to {MBIT_MAX} Mbit/s"
            )
        })?;
        rates.push(Bandwidth::from_bits_per_second((mbit * 1e6) as u64));
    }
    Trace::from_rates(&rates).map_err(|error| match error {
        TraceError::Empty => format!("column `{column}` carries nothing at any time"),
        error => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    const TABLE: &str = "# Mbit/s\nsecond,lte,sat\n0,1.2,0\n1,0,0\n2,2.4,0\n";

    fn read(name: &str, text: &str, column: Option<&str>) -> Result<Trace, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        load(&path, column).map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_are_read() {
        let trace = read("line.down", "0\n5\n5\n10\n", None).unwrap();
        assert_eq!(trace.period(), Duration::from_millis(10));
        let trace = read("drive.csv", TABLE, Some("lte")).unwrap();
        assert_eq!(trace.period(), Duration::from_secs(3));
        assert_eq!(
            trace.mean(),
            Bandwidth::from_bits_per_second(300 * 12_000 / 3)
        );
    }

    #[test]
    fn what_is_no_recording_is_refused_with_its_place() {
        for (name, text, column, what) in [
            ("a.down", "", None, "nothing can leave"),
            ("a.down", "5\n4\n", None, "line 2: expected a whole number"),
            (
                "a.down",
                "5\n",
                Some("lte"),
                "has no columns; leave `lte` out",
            ),
            ("a.down.gz", "", None, "unpack it"),
            ("a.csv", TABLE, None, "say which column, of lte, sat"),
            (
                "a.csv",
                TABLE,
                Some("lta"),
                "did you mean `lte`?; there are lte, sat",
            ),
            ("a.csv", TABLE, Some("sat"), "carries nothing at any time"),
            ("a.csv", "", Some("lte"), "has no header"),
            (
                "a.csv",
                "second,lte\n0,1\n2,1\n",
                Some("lte"),
                "line 3: second 2 does not follow",
            ),
            (
                "a.csv",
                "second,lte\n0,1\n1,-1\n",
                Some("lte"),
                "line 3: `-1` in column `lte`",
            ),
            ("a.csv", "second,lte\n0,1e9\n", Some("lte"), "is no rate"),
            ("a.csv", "second,lte\n0,nan\n", Some("lte"), "is no rate"),
            ("a.csv", "second,lte\n0\n", Some("lte"), "line: 2"),
            (
                "a.csv",
                "second,lte\nx,1\n",
                Some("lte"),
                "line 2: begins with no",
            ),
        ] {
            let error = read(name, text, column).unwrap_err();
            assert!(
                error.contains(what) && error.contains(name),
                "{what}: {error}"
            );
        }
        let error = load(Path::new("/nonexistent/a.down"), None).unwrap_err();
        assert!(error.to_string().contains("no such file"), "{error}");
        let error = load(Path::new("/dev/zero"), None).unwrap_err();
        assert!(error.to_string().contains("/dev/zero"), "{error}");
    }
}
