//! A table of a value per application and path, an application's values side by side.
//!
//! A look at one application asks about every path; the columns come and go far less often.

/// Rows have room for so many columns at first.
const ROOM_MIN: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Grid<T> {
    cells: Vec<T>,
    rows: usize,
    columns: usize,
    /// The columns that a row has room for.
    room: usize,
}

impl<T: Copy + Default> Grid<T> {
    pub(super) fn new() -> Self {
        Self {
            cells: Vec::new(),
            rows: 0,
            columns: 0,
            room: ROOM_MIN,
        }
    }

    pub(super) fn at(&self, row: usize, column: usize) -> T {
        self.row(row)[column]
    }

    pub(super) fn row(&self, row: usize) -> &[T] {
        let begin = row * self.room;
        &self.cells[begin..begin + self.columns]
    }

    fn row_mut(&mut self, row: usize) -> &mut [T] {
        let begin = row * self.room;
        &mut self.cells[begin..begin + self.columns]
    }

    pub(super) fn push_row(&mut self) {
        self.rows += 1;
        self.cells.resize(self.rows * self.room, T::default());
    }

    /// Gives a row these values, one per column.
    pub(super) fn set_row(&mut self, row: usize, values: impl Iterator<Item = T>) {
        for (cell, value) in self.row_mut(row).iter_mut().zip(values) {
            *cell = value;
        }
    }

    /// Takes a row away; the last one gets its index.
    pub(super) fn swap_remove_row(&mut self, row: usize) {
        let last = self.rows - 1;
        let begin = last * self.room;
        self.cells
            .copy_within(begin..begin + self.room, row * self.room);
        self.rows = last;
        self.cells.truncate(begin);
    }

    pub(super) fn push_column(&mut self) {
        if self.columns == self.room {
            let room = self.room * 2;
            let mut cells = vec![T::default(); self.rows * room];
            for row in 0..self.rows {
                cells[row * room..row * room + self.columns].copy_from_slice(self.row(row));
            }
            (self.cells, self.room) = (cells, room);
        }
        self.columns += 1;
    }

    /// Gives a column these values, one per row.
    pub(super) fn set_column(&mut self, column: usize, values: impl Iterator<Item = T>) {
        let rows = self.cells.chunks_exact_mut(self.room);
        for (row, value) in rows.zip(values) {
            row[column] = value;
        }
    }

    /// Takes a column away; the last one gets its index.
    pub(super) fn swap_remove_column(&mut self, column: usize) {
        self.columns -= 1;
        for row in self.cells.chunks_exact_mut(self.room) {
            row[column] = row[self.columns];
        }
    }
}
