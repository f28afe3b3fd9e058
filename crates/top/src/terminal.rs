//! The terminal's modes, and what changed from one picture to the next.

use std::{
    io::{self, Write},
    panic,
    sync::atomic::{AtomicBool, Ordering},
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    queue,
    style::{Attribute, Print, SetAttribute},
    terminal::{
        self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen,
        LeaveAlternateScreen,
    },
};
use ratatui_core::{
    buffer::{Buffer, Cell},
    layout::Rect,
    style::{Color, Modifier},
};

/// Cells of a picture at most; a terminal that says it is larger gets this much of it. Ours: 1000 × 300.
const CELLS_MAX: u32 = 300_000;

/// Whether the terminal is in modes that are to be undone. A process has one.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// The terminal on standard output, in raw mode and on its alternate screen until this is dropped, a panic or
/// [`Screen::leave`].
#[derive(Debug)]
pub struct Screen {
    shown: Buffer,
}

impl Screen {
    /// Enters; a panic of any thread leaves first, so that its message can be read.
    ///
    /// # Errors
    /// Those of the terminal, which is as it was then.
    pub fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        IS_ENTERED.store(true, Ordering::SeqCst);
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            Self::leave();
            previous(info);
        }));
        let mut out = io::stdout().lock();
        queue!(
            out,
            EnterAlternateScreen,
            Hide,
            DisableLineWrap,
            Clear(ClearType::All)
        )
        .and_then(|()| out.flush())
        .inspect_err(|_| Self::leave())?;
        Ok(Self {
            shown: Buffer::empty(Rect::ZERO),
        })
    }

    /// Undoes what [`enter`](Self::enter) did, once.
    pub fn leave() {
        if !IS_ENTERED.swap(false, Ordering::SeqCst) {
            return;
        }
        let mut out = io::stdout();
        // Nothing is left to do for a terminal that has gone.
        let _ = queue!(
            out,
            SetAttribute(Attribute::Reset),
            EnableLineWrap,
            LeaveAlternateScreen,
            Show
        );
        let _ = out.flush();
        let _ = terminal::disable_raw_mode();
    }

    /// Everything is drawn at the next picture.
    pub(crate) fn forget(&mut self) {
        self.shown = Buffer::empty(Rect::ZERO);
    }

    /// Shows a picture that `draw` makes in an empty buffer of the terminal's size.
    pub(crate) fn show(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        let mut next = Buffer::empty(area(terminal::size()?));
        draw(&mut next);
        let mut out = io::BufWriter::new(io::stdout().lock());
        if self.shown.area != next.area {
            queue!(out, SetAttribute(Attribute::Reset), Clear(ClearType::All))?;
            self.shown = Buffer::empty(next.area);
        }
        write_changes(&mut out, &self.shown.diff(&next))?;
        out.flush()?;
        self.shown = next;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        Self::leave();
    }
}

fn area((width, height): (u16, u16)) -> Rect {
    let lines_max = CELLS_MAX / u32::from(width.max(1));
    let height = u32::from(height).min(lines_max);
    Rect::new(0, 0, width, height as u16)
}

fn write_changes(out: &mut impl Write, changes: &[(u16, u16, &Cell)]) -> io::Result<()> {
    let mut style = None;
    let mut at = None;
    for &(x, y, cell) in changes {
        if at != Some((x, y)) {
            queue!(out, MoveTo(x, y))?;
        }
        let wanted = (cell.fg, cell.modifier);
        if style != Some(wanted) {
            write_style(out, cell.fg, cell.modifier)?;
            style = Some(wanted);
        }
        queue!(out, Print(cell.symbol()))?;
        // What is wider than a cell may be wider than the terminal believes: the next one is placed anew.
        at = cell.symbol().is_ascii().then_some((x + 1, y));
    }
    queue!(out, SetAttribute(Attribute::Reset))
}

fn write_style(out: &mut impl Write, colour: Color, modifier: Modifier) -> io::Result<()> {
    queue!(out, SetAttribute(Attribute::Reset))?;
    let attributes = [
        (Modifier::BOLD, Attribute::Bold),
        (Modifier::UNDERLINED, Attribute::Underlined),
        (Modifier::REVERSED, Attribute::Reverse),
    ];
    for (one, attribute) in attributes {
        if modifier.contains(one) {
            queue!(out, SetAttribute(attribute))?;
        }
    }
    match colour {
        // Of the eight that every terminal has (ECMA-48 §8.3.117).
        Color::Red => queue!(out, Print("\u{1b}[31m")),
        Color::Green => queue!(out, Print("\u{1b}[32m")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ratatui_core::style::Style;

    use super::*;

    #[test]
    fn only_what_changed_is_written_and_without_colour_no_colour_is() {
        let area = Rect::new(0, 0, 10, 2);
        let before = Buffer::empty(area);
        let mut after = Buffer::empty(area);
        after.set_string(2, 1, "NO", Style::new().add_modifier(Modifier::BOLD));
        let mut plain = Vec::new();
        write_changes(&mut plain, &before.diff(&after)).unwrap();
        assert_eq!(
            String::from_utf8(plain).unwrap(),
            "\u{1b}[2;3H\u{1b}[0m\u{1b}[1mNO\u{1b}[0m"
        );
        after.set_string(2, 1, "NO", Style::new().fg(Color::Red));
        let mut coloured = Vec::new();
        write_changes(&mut coloured, &before.diff(&after)).unwrap();
        let coloured = String::from_utf8(coloured).unwrap();
        assert!(coloured.contains("\u{1b}[31mNO"), "{coloured:?}");
    }

    #[test]
    fn a_terminal_that_says_it_is_huge_gets_a_bounded_picture() {
        for size in [(0, 0), (80, 24), (u16::MAX, u16::MAX), (1, u16::MAX)] {
            assert!(area(size).area() <= CELLS_MAX, "{size:?}");
        }
        assert_eq!(area((80, 24)), Rect::new(0, 0, 80, 24));
    }
}
