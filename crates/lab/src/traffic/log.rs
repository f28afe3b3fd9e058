//! Records of messages, CSV files, and summaries.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
    time::Duration,
};

use keiro_model::quantiles::nearest_rank;

/// One message of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageRecord {
    pub app: u32,
    /// Sequence number of the application's message, from 0.
    pub seq: u64,
    /// Scheduled time, ns of CLOCK_MONOTONIC.
    pub made_ns: u64,
    /// Arrival of its last byte, ns of CLOCK_MONOTONIC; `None` if it never arrived.
    pub received_ns: Option<u64>,
    /// Its length in bytes.
    pub length: u64,
}

/// The delays of one application's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub app: u32,
    pub made: usize,
    /// Messages that never arrived; the delays below leave them out.
    pub lost: usize,
    pub mean: Duration,
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
}

impl MessageRecord {
    /// From its scheduled time until the arrival of its last byte; `None` if it never arrived.
    pub fn delay(&self) -> Option<Duration> {
        let received = self.received_ns?;
        Some(Duration::from_nanos(received.saturating_sub(self.made_ns)))
    }
}

/// One summary per application, by number.
pub fn summarize(records: &[MessageRecord]) -> Vec<Summary> {
    let mut delays: BTreeMap<u32, Vec<Option<Duration>>> = BTreeMap::new();
    for record in records {
        delays.entry(record.app).or_default().push(record.delay());
    }
    let summary = |(app, delays): (u32, Vec<Option<Duration>>)| {
        let made = delays.len();
        let mut received: Vec<_> = delays.into_iter().flatten().collect();
        received.sort_unstable();
        let sum: Duration = received.iter().sum();
        let count = u32::try_from(received.len()).unwrap_or(u32::MAX);
        Summary {
            app,
            made,
            lost: made - received.len(),
            mean: sum.checked_div(count).unwrap_or_default(),
            p50: quantile(&received, 50),
            p99: quantile(&received, 99),
            max: received.last().copied().unwrap_or_default(),
        }
    };
    delays.into_iter().map(summary).collect()
}

/// The smallest value that `percent` % of the values do not exceed; zero if there are none.
pub(super) fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = nearest_rank(sorted.len(), percent as f64 / 100.0);
    rank.map_or(Duration::ZERO, |rank| sorted[rank])
}

const CSV_HEADER: &str = "app,seq,made_ns,received_ns,length";

/// Writes records as CSV with a header; `received_ns` is empty if a message never arrived.
///
/// # Errors
/// The writer's.
pub fn write_csv(records: &[MessageRecord], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{CSV_HEADER}")?;
    for record in records {
        let received = record.received_ns.map(|ns| ns.to_string());
        writeln!(
            out,
            "{},{},{},{},{}",
            record.app,
            record.seq,
            record.made_ns,
            received.unwrap_or_default(),
            record.length
        )?;
    }
    Ok(())
}

/// Reads the output of [`write_csv`].
///
/// # Errors
/// The reader's; `InvalidData` with the line number if a line is invalid.
pub fn read_csv(input: impl BufRead) -> io::Result<Vec<MessageRecord>> {
    let mut records = Vec::new();
    for (index, line) in input.lines().enumerate() {
        let line = line?;
        if index == 0 && line == CSV_HEADER {
            continue;
        }
        let record = read_line(&line).ok_or_else(|| {
            let message = format!("line {}: `{line}` is no message record", index + 1);
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?;
        records.push(record);
    }
    Ok(records)
}

fn read_line(line: &str) -> Option<MessageRecord> {
    let fields: Vec<_> = line.split(',').collect();
    let &[app, seq, made_ns, received_ns, length] = fields.as_slice() else {
        return None;
    };
    Some(MessageRecord {
        app: app.parse().ok()?,
        seq: seq.parse().ok()?,
        made_ns: made_ns.parse().ok()?,
        received_ns: match received_ns {
            "" => None,
            text => Some(text.parse().ok()?),
        },
        length: length.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(app: u32, seq: u64, delay_ms: Option<u64>) -> MessageRecord {
        let made_ns = seq * 1_000;
        MessageRecord {
            app,
            seq,
            made_ns,
            received_ns: delay_ms.map(|ms| made_ns + ms * 1_000_000),
            length: 100,
        }
    }

    #[test]
    fn csv_is_read_back() {
        let records = [
            record(1, 0, Some(3)),
            record(1, 1, None),
            record(2, 0, Some(5)),
        ];
        let mut text = Vec::new();
        write_csv(&records, &mut text).unwrap();
        let expected = "app,seq,made_ns,received_ns,length\n1,0,0,3000000,100\n1,1,1000,,100\n";
        assert!(text.starts_with(expected.as_bytes()));
        assert_eq!(read_csv(text.as_slice()).unwrap(), records);
        let error = read_csv(&b"1,2,3"[..]).unwrap_err().to_string();
        assert_eq!(error, "line 1: `1,2,3` is no message record");
    }

    #[test]
    fn summaries_count_losses_separately() {
        let mut records: Vec<_> = (1..=100).map(|n| record(7, n, Some(n))).collect();
        records.push(record(7, 101, None));
        records.push(record(8, 0, None));
        let summaries = summarize(&records);
        let ms = Duration::from_millis;
        assert_eq!(
            summaries[0],
            Summary {
                app: 7,
                made: 101,
                lost: 1,
                mean: Duration::from_micros(50_500),
                p50: ms(50),
                p99: ms(99),
                max: ms(100),
            }
        );
        assert_eq!((summaries[1].made, summaries[1].lost), (1, 1));
        assert_eq!(summaries[1].p99, Duration::ZERO);
    }
}
