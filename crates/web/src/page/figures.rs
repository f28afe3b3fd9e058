//! Tables of declared counters and gauges.

use keiro_control::rounded;
use keiro_stats::StatSet;
use maud::{Markup, html};

use super::part::{heads, number};
use crate::text::known;

/// Every figure of a set with its value and meaning.
pub(super) fn table<S: StatSet>(caption: &str, stats: &S) -> Markup {
    html! {
        div class="wide" role="region" tabindex="0" aria-label=(caption) { table {
            caption { (caption) }
            (heads(&["Figure", "Value>", "Meaning"]))
            tbody { @for (stat, value) in stats.values() { tr {
                th scope="row" { (stat.label()) }
                (number(&known(value, |value| rounded::figure(stat.unit, value))))
                td class="text" { (stat.help) }
            } } }
        } }
    }
}
