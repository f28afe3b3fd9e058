//! One picture of what is known, as a function of that, of what was typed and of the time.

use std::time::SystemTime;

use keiro_control::protocol::Timestamp;
use keiro_terminal::printable;
use ratatui_core::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::Span,
};

use crate::{
    data::{Connection, Data},
    detail,
    rows::{self, clock, seconds},
    table::{GAP, Table, Tone},
    view::{Tab, View},
};

/// Below this nothing can be read. Ours.
const WIDTH_MIN: u16 = 20;
const HEIGHT_MIN: u16 = 6;
/// From this height on the newest events are shown below the other tables. Ours.
const HEIGHT_WITH_EVENTS: u16 = 34;

/// All that a picture depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) data: &'a Data,
    pub(crate) view: &'a View,
    /// Events that have come since it was paused; 0 if it is not.
    pub(crate) held_events: u64,
    pub(crate) colour: bool,
    pub(crate) now: SystemTime,
}

/// Draws into the whole of `buffer`, which is empty.
pub(crate) fn draw(buffer: &mut Buffer, scene: &Scene<'_>) {
    let area = buffer.area;
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        buffer.set_stringn(area.x, area.y, "too small", area.width.into(), Style::new());
        return;
    }
    let table = rows::shown(scene.data, scene.view);
    let mut canvas = Canvas {
        buffer,
        scene,
        area,
    };
    canvas.heading(0);
    canvas.condition(1);
    canvas.tabs(2, &table);
    canvas.body(3, area.height - 1, &table);
    canvas.footer(area.height - 1);
}

struct Canvas<'a, 'b> {
    buffer: &'a mut Buffer,
    scene: &'a Scene<'b>,
    area: Rect,
}

impl Canvas<'_, '_> {
    fn width(&self) -> usize {
        self.area.width.into()
    }

    /// Writes from `column` on and returns where it ended.
    fn put(&mut self, line: u16, column: usize, text: &str, style: Style) -> usize {
        let left = self.width().saturating_sub(column);
        let x = u16::try_from(column).unwrap_or(u16::MAX);
        if left == 0 || line >= self.area.height {
            return column;
        }
        let (x, _) =
            self.buffer
                .set_stringn(self.area.x + x, self.area.y + line, text, left, style);
        (x - self.area.x).into()
    }

    fn style(&self, tone: Tone) -> Style {
        let style = Style::new();
        match (tone, self.scene.colour) {
            (Tone::Plain, _) | (Tone::Good, false) => style,
            (Tone::Good, true) => style.fg(Color::Green),
            (Tone::Bad, true) => style.fg(Color::Red).add_modifier(Modifier::BOLD),
            (Tone::Bad, false) => style.add_modifier(Modifier::BOLD),
        }
    }

    fn reverse(&mut self, line: u16) {
        let row = Rect::new(self.area.x, self.area.y + line, self.area.width, 1);
        self.buffer
            .set_style(row, Style::new().add_modifier(Modifier::REVERSED));
    }

    /// The gateway in a line.
    fn heading(&mut self, line: u16) {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let Some(snapshot) = self.scene.data.snapshot.clone() else {
            self.put(line, 0, "keiro top", bold);
            return;
        };
        let status = &snapshot.status;
        let mut at = self.put(line, 0, &printable(&status.name), bold);
        let uptime = format!(
            "  {}, up {}",
            printable(status.version.split(' ').next().unwrap_or_default()),
            seconds(status.uptime_seconds)
        );
        at = self.put(line, at, &uptime, Style::new());
        if status.draining {
            at = self.put(line, at, "  stopping", self.style(Tone::Bad));
        }
        let mut shares = vec![
            (status.paths_up, status.paths, "paths"),
            (status.peers_up, status.peers, "peers"),
            (
                status.apps_target_met,
                status.apps_with_target,
                "targets met",
            ),
        ];
        if status.tenants > 0 {
            shares.push((status.tenants_with_device, status.tenants, "devices"));
        }
        for (part, whole, what) in shares {
            let tone = match part == whole {
                true => Tone::Good,
                false => Tone::Bad,
            };
            at = self.put(line, at, "  ", Style::new());
            at = self.put(line, at, &format!("{part}/{whole}"), self.style(tone));
            at = self.put(line, at, &format!(" {what}"), Style::new());
        }
        let time = format!("{} UTC", clock(Timestamp(snapshot.taken)));
        let from = self.width().saturating_sub(time.len());
        if from > at + 1 {
            self.put(line, from, &time, Style::new());
        }
    }

    /// Whether the gateway answers; else what it says is wrong.
    fn condition(&mut self, line: u16) {
        let data = self.scene.data;
        let (text, tone) = match &data.connection {
            Connection::Opening => ("asking the gateway …".to_owned(), Tone::Plain),
            Connection::Lost { since, why } => {
                let age = self.scene.now.duration_since(*since).unwrap_or_default();
                let age = seconds(age.as_secs() as f64);
                let shown = match data.snapshot {
                    Some(_) => "; below is what it said last",
                    None => "",
                };
                (
                    format!("NO ANSWER for {age}: {why}{shown}; trying again"),
                    Tone::Bad,
                )
            }
            Connection::Live => match data.snapshot.as_deref().and_then(|s| problem(&s.status)) {
                Some(problem) => (problem, Tone::Bad),
                None => return,
            },
        };
        self.put(line, 0, &printable(&text), self.style(tone));
    }

    fn tabs(&mut self, line: u16, table: &Table) {
        let view = self.scene.view;
        let mut at = 0;
        for (number, tab) in Tab::ALL.into_iter().enumerate() {
            let style = match tab == view.tab {
                true => Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD),
                false => Style::new(),
            };
            at = self.put(
                line,
                at,
                &format!(" {} {} ", number + 1, tab.title()),
                style,
            );
        }
        let mut notes = Vec::new();
        if view.is_paused {
            notes.push(match self.scene.held_events {
                0 => "PAUSED".to_owned(),
                1 => "PAUSED, 1 new event".to_owned(),
                events => format!("PAUSED, {events} new events"),
            });
        }
        if !view.filter.is_empty() && !view.is_filtering {
            notes.push(format!(
                "{} with `{}`",
                table.rows.len(),
                printable(&view.filter)
            ));
        }
        if let Some(column) = view.order().column {
            notes.push(format!("by {}", table.columns[column].title));
        }
        let notes = notes.join(", ");
        let from = self
            .width()
            .saturating_sub(Span::raw(notes.as_str()).width());
        self.put(line, from.max(at + 1), &notes, self.style(Tone::Bad));
    }

    /// The table and what is below it, in the lines from `top` to before `bottom`.
    fn body(&mut self, top: u16, bottom: u16, table: &Table) {
        let view = self.scene.view;
        if view.has_help {
            for (line, text) in (top..bottom).zip(detail::help()) {
                self.put(line, 0, &text, Style::new());
            }
            return;
        }
        let height = bottom - top;
        let selected = view.selected(table);
        let below = match (view.has_detail, view.tab) {
            (true, _) if selected.is_some() => (height / 2).max(1),
            (false, tab) if tab != Tab::Events && self.area.height >= HEIGHT_WITH_EVENTS => {
                height / 4
            }
            _ => 0,
        };
        self.table(top, bottom - below, table, selected);
        match selected.filter(|_| view.has_detail && below > 0) {
            Some(selected) => self.detail(bottom - below, bottom, table, selected),
            None if below > 0 => self.newest_events(bottom - below, bottom),
            None => {}
        }
    }

    fn table(&mut self, top: u16, bottom: u16, table: &Table, selected: Option<usize>) {
        let columns = table.fitting(self.width());
        let titles = columns.iter().map(|&(column, width)| {
            let title = table.columns[column].title;
            let mark = match (
                self.scene.view.order().column == Some(column),
                self.scene.view.order().is_descending,
            ) {
                (true, false) => "▲",
                (true, true) => "▼",
                (false, _) => "",
            };
            (
                format!("{title}{mark}"),
                table.columns[column].is_number,
                width,
            )
        });
        let titles: Vec<_> = titles.collect();
        let mut at = 0;
        for (title, is_number, width) in titles {
            let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
            at = self.cell(top, at, &title, (is_number, width), style);
        }
        let lines = usize::from(bottom.saturating_sub(top + 1));
        if lines == 0 {
            return;
        }
        let Some(selected) = selected else {
            self.put(top + 1, 0, self.emptiness(), Style::new());
            return;
        };
        // By whole pages, so that the picture follows from the selection alone.
        let first = selected / lines * lines;
        for ((index, row), line) in table
            .rows
            .iter()
            .enumerate()
            .skip(first)
            .zip(top + 1..bottom)
        {
            let mut at = 0;
            for &(column, width) in &columns {
                let cell = &row.cells[column];
                let style = self.style(cell.tone);
                at = self.cell(
                    line,
                    at,
                    &cell.text,
                    (table.columns[column].is_number, width),
                    style,
                );
            }
            if index == selected {
                self.reverse(line);
            }
        }
    }

    /// What a table without rows means.
    fn emptiness(&self) -> &'static str {
        let view = self.scene.view;
        match (view.tab, view.filter.is_empty(), &self.scene.data.snapshot) {
            (_, false, _) => "nothing has the text of the filter",
            (Tab::Events, true, _) => "nothing has happened",
            (_, true, None) => "",
            (Tab::Apps, true, Some(_)) => "no applications are configured",
            (Tab::Paths, true, Some(_)) => "no paths lead to a peer",
            (Tab::Tenants, true, Some(_)) => "no tenants are configured",
        }
    }

    /// A cell of a column that is `width` cells wide; returns where the next one begins.
    fn cell(
        &mut self,
        line: u16,
        at: usize,
        text: &str,
        (is_number, width): (bool, usize),
        style: Style,
    ) -> usize {
        let used = Span::raw(text).width().min(width);
        let from = if is_number { at + width - used } else { at };
        let room = width.min(self.width().saturating_sub(from));
        if let (Ok(x), true) = (u16::try_from(from), room > 0) {
            self.buffer
                .set_stringn(self.area.x + x, self.area.y + line, text, room, style);
        }
        at + width + GAP
    }

    fn detail(&mut self, top: u16, bottom: u16, table: &Table, selected: usize) {
        let view = self.scene.view;
        let (title, lines) = detail::of(
            self.scene.data,
            view.tab,
            &table.rows[selected],
            self.width(),
        );
        let room = usize::from(bottom.saturating_sub(top + 1));
        let first = view.detail_top.min(lines.len().saturating_sub(room));
        let more = match lines.len() > room {
            true => format!(
                "  ({} to {} of {} lines)",
                first + 1,
                (first + room).min(lines.len()),
                lines.len()
            ),
            false => String::new(),
        };
        self.put(top, 0, &format!("{title}{more}"), Style::new());
        self.reverse(top);
        for (line, text) in (top + 1..bottom).zip(&lines[first..]) {
            self.put(line, 0, text, Style::new());
        }
    }

    fn newest_events(&mut self, top: u16, bottom: u16) {
        self.put(top, 0, "newest events", Style::new());
        self.reverse(top);
        let data = self.scene.data;
        let events = &data.events;
        if events.is_empty() {
            self.put(top + 1, 0, "none since this view began", Style::new());
        }
        for (line, event) in (top + 1..bottom).zip(events) {
            let at = self.put(
                line,
                0,
                &format!("{}  ", clock(Timestamp(event.time))),
                Style::new(),
            );
            let tone = if event.is_warning {
                Tone::Bad
            } else {
                Tone::Plain
            };
            self.put(line, at, &printable(&event.text), self.style(tone));
        }
    }

    fn footer(&mut self, line: u16) {
        let view = self.scene.view;
        let text = match (view.is_filtering, view.has_help) {
            (true, _) => format!("show rows with: {}_   (Enter keeps it, Esc shows all)", printable(&view.filter)),
            (false, true) => "any key goes back".to_owned(),
            (false, false) => {
                "q quit  Tab view  ↑↓ select  Enter why  s sort  r reverse  / filter  Space pause  ? help".to_owned()
            }
        };
        self.put(line, 0, &text, Style::new());
    }
}

/// What the gateway says is wrong, and how much more of it there is.
fn problem(status: &keiro_control::protocol::StatusSnapshot) -> Option<String> {
    let rejected = status.config_rejected.as_ref();
    let rejected = rejected.map(|why| format!("the last reload was refused: {why}"));
    let problems: Vec<&String> = rejected
        .iter()
        .chain(&status.problems)
        .chain(&status.path_problems)
        .collect();
    let first = problems.first()?;
    Some(match problems.len() {
        1 => (*first).clone(),
        all => format!("{first} (and {} more: keiro status)", all - 1),
    })
}
