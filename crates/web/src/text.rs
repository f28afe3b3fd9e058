//! Names and quantities in pages. Names come from configurations and peers, so each may be hostile.

use std::{borrow::Cow, time::Duration};

use keiro_control::rounded;
use keiro_units::Bandwidth;
use maud::{Markup, html};
use serde::Serialize;

/// What stands where there is no value.
pub(crate) const NONE: &str = "–";

/// Characters of a name that a page shows. Ours: the longest name of a configuration, twice.
const NAME_CHARACTERS_MAX: usize = 128;
/// Characters of a sentence that a page shows. Ours: the longest event of the gateway, several times.
const SENTENCE_CHARACTERS_MAX: usize = 2000;
/// Combining marks in a row. Ours: more than any script needs to be read, too few to cover other lines.
const MARKS_MAX: usize = 3;

/// A name, apart from the direction of the text around it.
pub(crate) fn name(name: &str) -> Markup {
    let shown = visible(name, NAME_CHARACTERS_MAX);
    html! { bdi { (shown) } }
}

/// A sentence that holds names.
pub(crate) fn sentence(text: &str) -> Markup {
    let shown = visible(text, SENTENCE_CHARACTERS_MAX);
    html! { bdi { (shown) } }
}

/// Several lines that hold names, a line each.
pub(crate) fn sentence_lines(text: &str) -> Markup {
    html! {
        @for line in text.lines().take(LINES_MAX) { (sentence(line)) "\n" }
    }
}

/// Lines of one text. Ours: the problems of a configuration on a screen.
const LINES_MAX: usize = 100;

/// Text without characters that change how other text is shown: controls and marks of direction become U+FFFD, marks
/// that combine without end are left out, and what is too long ends with an ellipsis. Escaping is the template's.
pub(crate) fn visible(text: &str, characters_max: usize) -> Cow<'_, str> {
    let is_plain = text.len() <= characters_max && text.bytes().all(|b| (0x20..0x7f).contains(&b));
    if is_plain {
        return Cow::Borrowed(text);
    }
    let mut shown = String::new();
    let (mut count, mut marks) = (0, 0);
    for c in text.chars() {
        marks = if is_mark(c) { marks + 1 } else { 0 };
        if marks > MARKS_MAX {
            continue;
        }
        if count == characters_max {
            shown.push('…');
            break;
        }
        count += 1;
        shown.push(if is_control(c) {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        });
    }
    Cow::Owned(shown)
}

/// Controls, marks and overrides of direction, separators of lines, and what has no width.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Marks that are drawn over the character before: the blocks of combining marks, and those of the scripts in which
/// stacks of them were used to cover other lines.
fn is_mark(c: char) -> bool {
    matches!(c,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{591}'..='\u{5c7}' | '\u{610}'..='\u{61a}'
        | '\u{64b}'..='\u{65f}' | '\u{670}' | '\u{6d6}'..='\u{6ed}' | '\u{730}'..='\u{74a}' | '\u{900}'..='\u{903}'
        | '\u{93a}'..='\u{94f}' | '\u{e31}' | '\u{e34}'..='\u{e3a}' | '\u{e47}'..='\u{e4e}' | '\u{eb1}'
        | '\u{eb4}'..='\u{ebc}' | '\u{ec8}'..='\u{ece}' | '\u{f18}'..='\u{f19}' | '\u{f71}'..='\u{f84}'
        | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}' | '\u{302a}'..='\u{302f}'
        | '\u{3099}'..='\u{309a}' | '\u{a66f}'..='\u{a67d}' | '\u{fe20}'..='\u{fe2f}')
}

/// `None` as [`NONE`].
pub(crate) fn known<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), show)
}

/// A time as the commands show it; what is no time is [`NONE`], a negative one has its sign.
pub(crate) fn seconds(seconds: f64) -> String {
    let shown = Duration::try_from_secs_f64(seconds.abs()).map(rounded::duration);
    match shown {
        Ok(shown) if seconds < 0.0 => format!("−{shown}"),
        Ok(shown) => shown,
        Err(_) => NONE.to_owned(),
    }
}

/// A time in milliseconds with one decimal, so that a column of them can be compared.
pub(crate) fn millis(seconds: f64) -> String {
    match seconds.is_finite() {
        true => format!("{:.1} ms", seconds * 1e3).replace('-', "−"),
        false => NONE.to_owned(),
    }
}

/// A rate as the commands show it.
pub(crate) fn rate(bits_per_second: f64) -> String {
    match bits_per_second.is_finite() && bits_per_second >= 0.0 {
        true => rounded::rate(Bandwidth::from_bits_per_second(bits_per_second as u64)),
        false => NONE.to_owned(),
    }
}

/// A unit variant as the control protocol names it, in words: `not_valid` is `not valid`.
pub(crate) fn word(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or("unknown").replace('_', " ")
}

/// `1 path`, `2 paths`.
pub(crate) fn count(number: usize, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_escaped_isolated_and_bounded() {
        let shown = |text: &str| name(text).into_string();
        assert_eq!(shown("A3"), "<bdi>A3</bdi>");
        assert_eq!(shown("<script>"), "<bdi>&lt;script&gt;</bdi>");
        assert_eq!(shown("a\u{202e}b\u{7}"), "<bdi>a\u{fffd}b\u{fffd}</bdi>");
        assert_eq!(shown("ü東"), "<bdi>ü東</bdi>");
        let stacked = format!("e{}x", "\u{301}".repeat(500));
        assert_eq!(shown(&stacked), "<bdi>e\u{301}\u{301}\u{301}x</bdi>");
        let long = shown(&"y".repeat(5000));
        assert_eq!(long.matches('y').count(), NAME_CHARACTERS_MAX);
        assert!(long.contains('…'));
    }

    #[test]
    fn numbers_that_are_none_are_not_shown_as_numbers() {
        assert_eq!(seconds(f64::NAN), NONE);
        assert_eq!(seconds(-0.0023), "−2.3 ms");
        assert_eq!(millis(-0.0023), "−2.3 ms");
        assert_eq!(millis(f64::INFINITY), NONE);
        assert_eq!(rate(-1.0), NONE);
        assert_eq!(rate(2e7), "20 Mbit/s");
    }
}
