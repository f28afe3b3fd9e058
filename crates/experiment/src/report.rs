//! A finished experiment: rows, basis, manifest, and its directory.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{
    evaluate::{Basis, NamedDrawing},
    figure::csv_text,
    manifest::Manifest,
    row::{Row, Verdict},
};

/// The output of `keiro-lab experiment run ID --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub id: String,
    /// Title in one line.
    pub title: String,
    /// Location of the values in the paper.
    pub source: String,
    pub rows: Vec<Row>,
    /// Evidence of each row, in the same order.
    pub basis: Vec<Basis>,
    /// Provenance of the result.
    pub manifest: Manifest,
    /// Directory of the files, relative to the results directory.
    pub directory: PathBuf,
    /// Names of the files in it.
    pub files: Vec<String>,
}

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {reason}; name another directory with --output")]
pub struct WriteError {
    path: PathBuf,
    reason: io::Error,
}

impl Report {
    /// Writes `rows.json`, `rows.csv`, `manifest.json` and the figures to `results`/`directory`, and records
    /// their names in [`files`](Self::files).
    ///
    /// `extra` are further files: name and content.
    ///
    /// # Errors
    /// Which file could not be written, and why.
    pub fn write(
        &mut self,
        results: &Path,
        drawings: &[NamedDrawing],
        extra: &[(&str, &str)],
    ) -> Result<(), WriteError> {
        let directory = results.join(&self.directory);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |reason| WriteError { path, reason }
        };
        fs::create_dir_all(&directory).map_err(failed(&directory))?;
        let rows = Rows {
            rows: &self.rows,
            basis: &self.basis,
        };
        let mut files: Vec<(String, String)> = vec![
            ("rows.json".to_owned(), json(&rows)),
            ("rows.csv".to_owned(), self.rows_csv()),
        ];
        for (name, drawing) in drawings {
            files.push((format!("{name}.svg"), drawing.svg.clone()));
            files.push((format!("{name}.csv"), drawing.csv.clone()));
        }
        files.extend(
            extra
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned())),
        );
        // The manifest is last: the other files contain at least what it says.
        files.push(("manifest.json".to_owned(), json(&self.manifest)));
        for (name, content) in &files {
            let path = directory.join(name);
            // The previous file stays until the new one is written completely.
            let part = directory.join(format!("{name}.part"));
            fs::write(&part, content).map_err(failed(&part))?;
            fs::rename(&part, &path).map_err(failed(&path))?;
        }
        self.files = files.into_iter().map(|(name, _)| name).collect();
        Ok(())
    }

    /// The number of rows with this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count()
    }

    /// Whether no row is missed or void.
    pub fn is_reached(&self) -> bool {
        self.count(Verdict::Missed) == 0 && self.count(Verdict::Void) == 0
    }

    /// The rows as a plain-text table without colour.
    pub fn table(&self) -> String {
        let header = [
            "",
            "unit",
            "paper",
            "measured",
            "95 % interval",
            "floor",
            "verdict",
        ];
        let mut lines = vec![header.map(str::to_owned)];
        for row in &self.rows {
            let interval = match (row.low, row.high) {
                (Some(low), Some(high)) => format!("{} – {}", shown(low), shown(high)),
                _ => String::new(),
            };
            lines.push([
                row.name.clone(),
                row.unit.to_owned(),
                row.paper.map(shown).unwrap_or_default(),
                row.measured.map_or_else(|| "–".to_owned(), shown),
                interval,
                row.floor.map(shown).unwrap_or_default(),
                row.verdict.to_string(),
            ]);
        }
        let widths: Vec<usize> = (0..header.len())
            .map(|column| {
                lines
                    .iter()
                    .map(|l| l[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut table = String::new();
        for line in lines {
            for (column, (text, width)) in line.iter().zip(&widths).enumerate() {
                let pad = " ".repeat(width - text.chars().count());
                // Names, units and verdicts are left-aligned, numbers right-aligned.
                let _ = match column {
                    0 | 1 => write!(table, "{text}{pad}  "),
                    6 => writeln!(table, "{text}"),
                    _ => write!(table, "{pad}{text}  "),
                };
            }
        }
        table
    }

    fn rows_csv(&self) -> String {
        let mut csv = "name,unit,paper,measured,low,high,floor,verdict\n".to_owned();
        let value = |v: Option<f64>| v.map(|v| v.to_string()).unwrap_or_default();
        for row in &self.rows {
            let values = [row.paper, row.measured, row.low, row.high, row.floor].map(value);
            let _ = writeln!(
                csv,
                "{},{},{},{}",
                csv_text(&row.name),
                csv_text(row.unit),
                values.join(","),
                row.verdict
            );
        }
        csv
    }
}

/// The content of `rows.json`.
#[derive(Serialize)]
struct Rows<'a> {
    rows: &'a [Row],
    basis: &'a [Basis],
}

/// At most two decimals, four below a tenth, none for whole values.
fn shown(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else if value.abs() < 0.1 {
        format!("{value:.4}")
    } else if value.abs() >= 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn json<T: Serialize>(value: &T) -> String {
    // Serialisation fails only for maps with keys other than strings and for types that refuse it; the report
    // has neither.
    let mut text = serde_json::to_string_pretty(value).expect("a report is plain data");
    text.push('\n');
    text
}
