//! Text from a peer, a file or a configuration, made harmless for a terminal.

use std::borrow::Cow;

/// Stands for a character that is not shown (U+FFFD REPLACEMENT CHARACTER).
const REPLACEMENT: char = '\u{fffd}';
/// What is shown of one text, in characters. Ours: more than a wide terminal's line.
const CHARACTERS_MAX: usize = 2000;
/// Combining marks in a row that are kept. Ours: no written language stacks more.
const MARKS_MAX: usize = 2;

/// The text on one line: line breaks and tabs become spaces, characters that drive a terminal or reorder text
/// (control characters, bidirectional and other format characters) become U+FFFD, further combining marks are left
/// out, and what is very long is cut off.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| !c.is_control() && !is_format(c) && !is_mark(c);
    if text.len() <= CHARACTERS_MAX && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut marks = 0;
    let mut shown = String::new();
    for c in text.chars().take(CHARACTERS_MAX) {
        marks = if is_mark(c) { marks + 1 } else { 0 };
        match c {
            '\n' | '\r' | '\t' => shown.push(' '),
            c if c.is_control() || is_format(c) => shown.push(REPLACEMENT),
            c if marks <= MARKS_MAX => shown.push(c),
            _ => {}
        }
    }
    if text.chars().nth(CHARACTERS_MAX).is_some() {
        shown.push('…');
    }
    Cow::Owned(shown)
}

/// Of Unicode's general categories Cf, Zl and Zp, those that change how others are shown, or that show nothing.
fn is_format(c: char) -> bool {
    matches!(
        c,
        '\u{00ad}'
            | '\u{061c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Blocks of combining marks.
fn is_mark(c: char) -> bool {
    matches!(
        c,
        '\u{0300}'..='\u{036f}'
            | '\u{0483}'..='\u{0489}'
            | '\u{1ab0}'..='\u{1aff}'
            | '\u{1dc0}'..='\u{1dff}'
            | '\u{20d0}'..='\u{20ff}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{fe20}'..='\u{fe2f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drives_a_terminal_or_reorders_text_is_replaced() {
        let cases = [
            ("wan0 → osaka µs", "wan0 → osaka µs"),
            ("a\u{1b}[2Jb\u{9b}c", "a\u{fffd}[2Jb\u{fffd}c"),
            ("x\u{202e}gpj.exe", "x\u{fffd}gpj.exe"),
            (
                "\u{2066}a\u{2069}\u{200b}b\u{feff}",
                "\u{fffd}a\u{fffd}\u{fffd}b\u{fffd}",
            ),
            ("two\nlines\tof", "two lines of"),
        ];
        for (text, expected) in cases {
            assert_eq!(printable(text), expected);
        }
    }

    #[test]
    fn stacked_marks_and_long_texts_are_cut() {
        let stacked = format!("e{}x", "\u{301}".repeat(500));
        assert_eq!(printable(&stacked), "e\u{301}\u{301}x");
        let long = "é".repeat(100_000);
        assert_eq!(printable(&long).chars().count(), CHARACTERS_MAX + 1);
    }
}
