//! Tables of aligned columns: words to the left, numbers to the right.

use std::fmt;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table that is being filled. `Display` writes it, each row on one line.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<Cell>>,
}

/// A cell: its text, and the text with marks that take no room.
#[derive(Clone, Debug)]
pub struct Cell {
    plain: String,
    shown: String,
}

/// Between two columns.
const GAP: &str = "  ";

impl Table {
    /// A table without rows; headers that end in `>` are of columns of numbers.
    pub fn new<S: AsRef<str>>(headers: &[S]) -> Self {
        let column = |header: &S| match header.as_ref().strip_suffix('>') {
            Some(header) => (header.to_owned(), Align::Right),
            None => (header.as_ref().to_owned(), Align::Left),
        };
        Self {
            columns: headers.iter().map(column).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row of one cell per column.
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        assert_eq!(
            cells.len(),
            self.columns.len(),
            "a row has a cell per column"
        );
        self.rows.push(cells);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn widths(&self) -> Vec<usize> {
        let width = |(i, (header, _)): (usize, &(String, Align))| {
            let cells = self.rows.iter().map(|row| characters(&row[i].plain));
            cells.chain([characters(header)]).max().unwrap_or(0)
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    fn line<'a>(
        &self,
        f: &mut fmt::Formatter<'_>,
        widths: &[usize],
        cells: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> fmt::Result {
        let last = self.columns.len().saturating_sub(1);
        for (i, ((plain, shown), width)) in cells.zip(widths).enumerate() {
            let pad = " ".repeat(width - characters(plain));
            match self.columns[i].1 {
                Align::Right => write!(f, "{pad}{shown}")?,
                Align::Left if i == last => write!(f, "{shown}")?,
                Align::Left => write!(f, "{shown}{pad}")?,
            }
            if i < last {
                f.write_str(GAP)?;
            }
        }
        writeln!(f)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let headers = self.columns.iter().map(|(h, _)| (h.as_str(), h.as_str()));
        self.line(f, &widths, headers)?;
        for row in &self.rows {
            let cells = row.iter().map(|c| (c.plain.as_str(), c.shown.as_str()));
            self.line(f, &widths, cells)?;
        }
        Ok(())
    }
}

impl Cell {
    /// `plain`, shown as `shown`, which differs from it only in marks that take no room.
    pub fn marked(plain: impl Into<String>, shown: impl Into<String>) -> Self {
        Self {
            plain: plain.into(),
            shown: shown.into(),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self {
            plain: text.clone(),
            shown: text,
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

fn characters(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_no_line_ends_in_spaces() {
        let mut table = Table::new(&["name", "delay>", "path"]);
        table.row(["A1", "187.7 ms", "path1"]);
        table.row(["longer", "2.9 µs", "p"]);
        assert_eq!(
            table.to_string(),
            "name       delay  path\nA1      187.7 ms  path1\nlonger    2.9 µs  p\n"
        );
    }

    #[test]
    fn marks_take_no_room() {
        let mut table = Table::new(&["state", "n>"]);
        table.row([Cell::marked("up", "\x1b[32mup\x1b[0m"), Cell::from("1")]);
        assert_eq!(table.to_string(), "state  n\n\x1b[32mup\x1b[0m     1\n");
    }
}
