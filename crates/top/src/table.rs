//! Rows of cells: in which order, which of them, and which columns there is room for.

use std::cmp::Ordering;

use keiro_terminal::printable;
use ratatui_core::text::Span;

/// Cells between two columns.
pub(crate) const GAP: usize = 2;
/// Cells of a column at most, but for the one that takes what is left. Ours.
const WIDTH_MAX: usize = 32;
/// Cells that the column needs which takes what is left.
const REST_MIN: usize = 12;

/// What a word says about the state of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
}

/// What rows are sorted by; what is absent comes last.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sort {
    Absent,
    Number(f64),
    Text(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
    pub(crate) sort: Sort,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// Which row it is, from one snapshot to the next.
    pub(crate) key: String,
    /// The lower, the sooner someone should look: a class, and an order within it.
    pub(crate) urgency: (u8, f64),
    pub(crate) cells: Vec<Cell>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) is_number: bool,
    /// The higher, the sooner it is left out where there is no room; 0 never is.
    pub(crate) rank: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// `None`: the most urgent first.
    pub(crate) column: Option<usize>,
    pub(crate) is_descending: bool,
}

impl Cell {
    pub(crate) fn text(text: &str) -> Self {
        Self {
            text: printable(text).into_owned(),
            tone: Tone::Plain,
            sort: Sort::Text(text.to_lowercase()),
        }
    }

    /// `value` is what it is sorted by.
    pub(crate) fn number(value: f64, text: String) -> Self {
        Self {
            text,
            tone: Tone::Plain,
            sort: Sort::Number(value),
        }
    }

    pub(crate) fn absent() -> Self {
        Self {
            text: keiro_terminal::output::human::NONE.to_owned(),
            tone: Tone::Plain,
            sort: Sort::Absent,
        }
    }

    pub(crate) fn with_tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    fn width(&self) -> usize {
        Span::raw(self.text.as_str()).width()
    }
}

impl Table {
    /// Leaves the rows that have `filter` in one of their cells, whatever its case.
    pub(crate) fn filtered(mut self, filter: &str) -> Self {
        let filter = filter.to_lowercase();
        let has = |cell: &Cell| cell.text.to_lowercase().contains(&filter);
        self.rows.retain(|row| row.cells.iter().any(has));
        self
    }

    pub(crate) fn sorted(mut self, order: Order) -> Self {
        let by_urgency = |a: &Row, b: &Row| {
            let class = a.urgency.0.cmp(&b.urgency.0);
            class.then(a.urgency.1.total_cmp(&b.urgency.1))
        };
        self.rows.sort_by(|a, b| {
            let ordering = match order.column {
                Some(column) => by_cell(
                    &a.cells[column].sort,
                    &b.cells[column].sort,
                    order.is_descending,
                ),
                None if order.is_descending => by_urgency(b, a),
                None => by_urgency(a, b),
            };
            ordering.then_with(|| a.key.cmp(&b.key))
        });
        self
    }

    /// The columns for which there is room, by their places, with their widths in cells. The last one of them takes
    /// what is left if it is one of words.
    pub(crate) fn fitting(&self, width: usize) -> Vec<(usize, usize)> {
        let last = self.columns.len() - 1;
        let mut by_rank: Vec<usize> = (0..self.columns.len()).collect();
        by_rank.sort_by_key(|&column| self.columns[column].rank);
        let mut chosen: Vec<(usize, usize)> = Vec::new();
        let mut used = 0;
        for column in by_rank {
            let natural = self.natural_width(column);
            let needed = match column == last && !self.columns[last].is_number {
                true => natural.min(REST_MIN),
                false => natural.min(WIDTH_MAX),
            };
            let gap = if chosen.is_empty() { 0 } else { GAP };
            if used + gap + needed <= width || self.columns[column].rank == 0 {
                used += gap + needed;
                chosen.push((column, needed));
            }
        }
        chosen.sort_unstable();
        if let Some((column, taken)) = chosen.last_mut()
            && *column == last
            && !self.columns[last].is_number
        {
            *taken += width.saturating_sub(used);
        }
        chosen
    }

    fn natural_width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row.cells[column].width());
        // Room for the mark of the column that is sorted by.
        let title = self.columns[column].title.len() + 1;
        cells.chain([title]).max().unwrap_or(0)
    }
}

fn by_cell(a: &Sort, b: &Sort, is_descending: bool) -> Ordering {
    let ordering = match (a, b) {
        (Sort::Absent, Sort::Absent) => return Ordering::Equal,
        (Sort::Absent, _) => return Ordering::Greater,
        (_, Sort::Absent) => return Ordering::Less,
        (Sort::Number(a), Sort::Number(b)) => a.total_cmp(b),
        (Sort::Text(a), Sort::Text(b)) => a.cmp(b),
        (Sort::Number(_), Sort::Text(_)) => Ordering::Less,
        (Sort::Text(_), Sort::Number(_)) => Ordering::Greater,
    };
    match is_descending {
        true => ordering.reverse(),
        false => ordering,
    }
}
