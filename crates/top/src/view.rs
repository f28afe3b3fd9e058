//! What was typed and what follows from it: which table, in which order, which rows. A state machine without a
//! terminal.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::table::{Order, Table};

/// Characters of a filter at most. Ours, as a name's.
const FILTER_CHARACTERS_MAX: usize = 64;
/// Rows of a page where the terminal's height does not matter. Ours.
const PAGE: usize = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tab {
    #[default]
    Apps,
    Paths,
    Tenants,
    Events,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) tab: Tab,
    pub(crate) filter: String,
    /// What is typed belongs to the filter.
    pub(crate) is_filtering: bool,
    pub(crate) is_paused: bool,
    /// More about the selected row is shown.
    pub(crate) has_detail: bool,
    /// Lines of it that are above its first one.
    pub(crate) detail_top: usize,
    pub(crate) has_help: bool,
    orders: [Order; TABS],
    selected: [Option<String>; TABS],
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    Quit,
    /// Draw everything anew, whatever is on the terminal.
    Repaint,
}

const TABS: usize = 4;

impl Tab {
    pub(crate) const ALL: [Self; TABS] = [Self::Apps, Self::Paths, Self::Tenants, Self::Events];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Apps => "Applications",
            Self::Paths => "Paths",
            Self::Tenants => "Tenants",
            Self::Events => "Events",
        }
    }

    fn index(self) -> usize {
        self as usize
    }

    fn moved(self, by: usize) -> Self {
        Self::ALL[(self.index() + by) % TABS]
    }
}

impl View {
    pub(crate) fn order(&self) -> Order {
        self.orders[self.tab.index()]
    }

    /// The place of the selected row; the first one's where it is not among them. `None`: there are no rows.
    pub(crate) fn selected(&self, table: &Table) -> Option<usize> {
        let key = self.selected[self.tab.index()].as_deref();
        let place = table
            .rows
            .iter()
            .position(|row| Some(row.key.as_str()) == key);
        (!table.rows.is_empty()).then(|| place.unwrap_or(0))
    }

    /// The application that is explained beside its table; `None`: none is.
    pub(crate) fn explains(&self, table: &Table) -> Option<String> {
        let is_wanted = self.has_detail && self.tab == Tab::Apps;
        let row = self.selected(table).filter(|_| is_wanted)?;
        Some(table.rows[row].key.clone())
    }

    /// A key was pressed while `table` was shown.
    pub(crate) fn on_key(&mut self, key: KeyEvent, table: &Table) -> Effect {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Effect::Quit,
            KeyCode::Char('l') if is_control => return Effect::Repaint,
            KeyCode::Char(_) if is_control => return Effect::Nothing,
            _ if self.is_filtering => {
                self.on_filter_key(key.code);
                return Effect::Nothing;
            }
            _ if self.has_help => {
                self.has_help = false;
                return Effect::Nothing;
            }
            _ => {}
        }
        match key.code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('?' | 'h') => self.has_help = true,
            KeyCode::Char('/') => self.is_filtering = true,
            KeyCode::Char(' ' | 'p') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => self.sort_by_next(table.columns.len()),
            KeyCode::Char('r') => {
                let order = &mut self.orders[self.tab.index()];
                order.is_descending = !order.is_descending;
            }
            KeyCode::Enter => {
                self.has_detail = !self.has_detail;
                self.detail_top = 0;
            }
            KeyCode::Esc => self.on_escape(),
            code => self.on_movement(code, table),
        }
        Effect::Nothing
    }

    /// Takes back one thing at a time.
    fn on_escape(&mut self) {
        match self.has_detail {
            true => self.has_detail = false,
            false => self.filter.clear(),
        }
    }

    fn on_filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_CHARACTERS_MAX => {
                self.filter.push(c);
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.is_filtering = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_filtering = false;
            }
            _ => {}
        }
    }

    fn on_movement(&mut self, code: KeyCode, table: &Table) {
        match code {
            KeyCode::Tab | KeyCode::Right => self.show(self.tab.moved(1)),
            KeyCode::BackTab | KeyCode::Left => self.show(self.tab.moved(TABS - 1)),
            KeyCode::Char(digit @ '1'..='4') => {
                let index = digit as usize - '1' as usize;
                self.show(Tab::ALL[index]);
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(table, |row| row + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(table, |row| row.saturating_sub(1)),
            KeyCode::PageDown if self.has_detail => self.detail_top += PAGE / 2,
            KeyCode::PageUp if self.has_detail => {
                self.detail_top = self.detail_top.saturating_sub(PAGE / 2);
            }
            KeyCode::PageDown => self.select(table, |row| row + PAGE),
            KeyCode::PageUp => self.select(table, |row| row.saturating_sub(PAGE)),
            KeyCode::Home | KeyCode::Char('g') => self.select(table, |_| 0),
            KeyCode::End | KeyCode::Char('G') => self.select(table, |_| usize::MAX),
            _ => {}
        }
    }

    fn show(&mut self, tab: Tab) {
        self.tab = tab;
        self.detail_top = 0;
    }

    fn select(&mut self, table: &Table, to: impl Fn(usize) -> usize) {
        let Some(selected) = self.selected(table) else {
            return;
        };
        let row = to(selected).min(table.rows.len() - 1);
        self.selected[self.tab.index()] = Some(table.rows[row].key.clone());
        self.detail_top = 0;
    }

    /// By urgency, then by each column in turn, and again.
    fn sort_by_next(&mut self, columns: usize) {
        let order = &mut self.orders[self.tab.index()];
        order.column = match order.column {
            None => Some(0),
            Some(column) if column + 1 < columns => Some(column + 1),
            Some(_) => None,
        };
        order.is_descending = false;
    }
}
