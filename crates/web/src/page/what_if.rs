//! What the planner would do if a path were lost or slower, an application came many times, or a target changed.
//!
//! The answer is that of `keiro plan --what-if`, planned in this process from what the gateway plans with. [`Source`]
//! plans each question once for all viewers.

use keiro_control::{
    protocol::{AppSnapshot, DelayTerms, PlannedApp, SupposedTwice, WhatIf, WhatIfError},
    units::Text,
};
use maud::{Markup, html};

use super::{
    Page,
    address::{PageAddress, Supposed},
    fault,
    part::{self, app_link, heads, judged, link, number, path_link},
};
use crate::{
    source::{Answer, Data, Plans, Row, Source},
    text::{self, known, seconds, visible, word},
};

/// Names that the form offers. Ours: browsers search in them.
const NAMES_MAX: usize = 2000;
/// Paths, and applications, with suppositions to click. Ours: others are typed.
const CLICKS_MAX: usize = 50;

/// Why the form supposes nothing.
#[derive(Debug, thiserror::Error)]
enum FormError {
    #[error(transparent)]
    Change(#[from] WhatIfError),
    #[error(transparent)]
    Twice(#[from] SupposedTwice),
    #[error("a path is named without what changes of it; try: a rate, a delay or a loss")]
    NothingSet,
    #[error("a rate, a delay or a loss is given without its path")]
    NoPath,
    #[error("an application is named without its latency target; try: 20ms, or none")]
    NoTarget,
    #[error("a latency target is given without its application")]
    NoApp,
}

pub(super) async fn page(source: &Source, data: &Data, base: &str, form: &Supposed) -> Page {
    let page = Page::new(PageAddress::WhatIf(Supposed::default()).title())
        .fixed(form_part(data, base, form));
    let changes = match changes(form) {
        Ok(changes) => changes,
        Err(error) => return page.fixed(
            html! { p class="note bad" role="alert" { (text::sentence(&error.to_string())) "." } },
        ),
    };
    if changes.is_empty() {
        return page.fixed(html! {
            p { "Nothing changes: what is supposed is planned here, and the gateway goes on as before." }
        }).fixed(clicks(data, base));
    }
    let supposed: Vec<String> = changes.iter().map(ToString::to_string).collect();
    let plans = source.suppose(changes).await;
    page.live("result", result(base, &supposed, &plans))
}

/// What the form supposes, in the words of `keiro plan --what-if`.
fn changes(form: &Supposed) -> Result<Vec<WhatIf>, FormError> {
    let mut changes = Vec::new();
    if !form.lose.is_empty() {
        changes.push(WhatIf::parse(&format!("lose {}", form.lose))?);
    }
    let values = [
        ("rate", &form.rate),
        ("delay", &form.delay),
        ("loss", &form.loss),
    ];
    let values = values.iter().filter(|(_, value)| !value.is_empty());
    let values: Vec<String> = values
        .map(|(key, value)| format!("{key}={}", without_blanks(value)))
        .collect();
    match (form.set.is_empty(), values.is_empty()) {
        (true, true) => {}
        (false, false) => changes.push(WhatIf::parse(&format!(
            "set {} {}",
            form.set,
            values.join(" ")
        ))?),
        (false, true) => return Err(FormError::NothingSet),
        (true, false) => return Err(FormError::NoPath),
    }
    if !form.add.is_empty() {
        let count = if form.count.is_empty() {
            "1"
        } else {
            &form.count
        };
        changes.push(WhatIf::parse(&format!("add {count} {}", form.add))?);
    }
    match (form.target.is_empty(), form.latency.is_empty()) {
        (true, true) => {}
        (false, false) => {
            let target = without_blanks(&form.latency);
            changes.push(WhatIf::parse(&format!(
                "latency-target {} {target}",
                form.target
            ))?);
        }
        (false, true) => return Err(FormError::NoTarget),
        (true, false) => return Err(FormError::NoApp),
    }
    WhatIf::check(&changes)?;
    Ok(changes)
}

/// `50 Mbit` as it is shown is `50Mbit` as it is read.
fn without_blanks(value: &str) -> String {
    value.split_whitespace().collect()
}

fn form_part(data: &Data, base: &str, form: &Supposed) -> Markup {
    let mut paths: Vec<&str> = data.paths.iter().map(|path| path.name.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    let apps = data.apps.iter().map(|app| app.name.as_str());
    let field = |name: &str, label: &str, value: &str, example: &str, list: Option<&str>| {
        html! { p { label for=(name) { (label) } input id=(name) name=(name) value=(visible(value, 256)) placeholder=(example) list=[list] autocomplete="off"; } }
    };
    html! {
        datalist id="known-paths" { @for path in paths.iter().take(NAMES_MAX) { option value=(visible(path, 256)) {} } }
        datalist id="known-apps" { @for app in apps.take(NAMES_MAX) { option value=(visible(app, 256)) {} } }
        form method="get" action={ (base) "/what-if" } class="what-if" {
            fieldset { legend { "A path is lost" } (field("lose", "Path", &form.lose, "", Some("known-paths"))) }
            fieldset { legend { "A path changes" }
                (field("set", "Path", &form.set, "", Some("known-paths")))
                (field("rate", "Rate", &form.rate, "50Mbit", None))
                (field("delay", "One-way delay", &form.delay, "80ms", None))
                (field("loss", "Loss", &form.loss, "5%", None)) }
            fieldset { legend { "More applications" }
                (field("add", "Like", &form.add, "", Some("known-apps")))
                (field("count", "How many", &form.count, "1", None)) }
            fieldset { legend { "A latency target changes" }
                (field("target", "Application", &form.target, "", Some("known-apps")))
                (field("latency", "Target", &form.latency, "20ms, or none", None)) }
            p { button { "Suppose it" } " " (link(base, &PageAddress::WhatIf(Supposed::default()), &html! { "Clear" })) }
        }
    }
}

/// Suppositions to click: what may be lost or slower, and applications that may come more often.
fn clicks(data: &Data, base: &str) -> Markup {
    let mut paths: Vec<&str> = data.paths.iter().map(|path| path.name.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    let late = |app: &&AppSnapshot| app.stats.0.target_met == Some(false);
    let (mut apps, others): (Vec<&AppSnapshot>, Vec<&AppSnapshot>) =
        data.apps.iter().partition(late);
    apps.extend(others);
    let suppose = |form: Supposed, words: &str| {
        html! { (link(base, &PageAddress::WhatIf(form), &html! { (words) })) " " }
    };
    let set = |path: &str| Supposed {
        set: path.to_owned(),
        ..Supposed::default()
    };
    let add = |app: &AppSnapshot, count: &str| Supposed {
        add: app.name.clone(),
        count: count.to_owned(),
        ..Supposed::default()
    };
    html! {
        div class="wide" role="region" tabindex="0" aria-label="Suppose of a path" { table {
            caption { "Suppose of a path" }
            tbody { @for path in paths.iter().take(CLICKS_MAX) { tr {
                th scope="row" { (text::name(path)) }
                td {
                    (suppose(Supposed { lose: (*path).to_owned(), ..Supposed::default() }, "lost"))
                    (suppose(Supposed { delay: "200ms".to_owned(), ..set(path) }, "200 ms long"))
                    (suppose(Supposed { rate: "1Mbit".to_owned(), ..set(path) }, "1 Mbit/s"))
                    (suppose(Supposed { loss: "5%".to_owned(), ..set(path) }, "loses 5 %"))
                }
            } } }
        } }
        div class="wide" role="region" tabindex="0" aria-label="Suppose of an application" { table {
            caption { "Suppose of an application; those that miss their target are first" }
            tbody { @for app in apps.iter().take(CLICKS_MAX) { tr {
                th scope="row" { (text::name(&app.name)) }
                td {
                    (suppose(add(app, "1"), "one more"))
                    (suppose(add(app, "10"), "ten more"))
                    @if let Some(target) = app.stats.0.latency_target {
                        @let half = Supposed { target: app.name.clone(), latency: Text(target / 2).to_string(), ..Supposed::default() };
                        (suppose(half, "half its target"))
                        @let none = Supposed { target: app.name.clone(), latency: "none".to_owned(), ..Supposed::default() };
                        (suppose(none, "no target"))
                    }
                }
            } } }
        } }
    }
}

fn result(base: &str, supposed: &[String], plans: &Answer<Plans>) -> Markup {
    html! {
        section aria-labelledby="result-head" {
            h2 id="result-head" { "If it were so" }
            p { "Supposed: " @for (index, change) in supposed.iter().enumerate() { @if index > 0 { ", " } code { (text::name(change)) } } }
            @match plans {
                Ok(plans) => (compared(base, plans)),
                Err(error) => (fault(error)),
            }
        }
    }
}

fn compared(base: &str, plans: &Plans) -> Markup {
    let then = &plans.then;
    let more = plans.apps - plans.rows.len();
    html! {
        (verdict(plans))
        div class="wide" role="region" tabindex="0" aria-label="Now and then" { table {
            caption { "Now and after what is supposed, by the planner's forecasts; what changes is first" }
            (heads(&["Application", "Path now", "Path then", "Target>", "Mean now>", "Mean then>", "p99 then>", "Margin then>", "Then"]))
            tbody { @for apps in &plans.rows { (row(base, apps)) } }
        } }
        @if more > 0 { p { (more) " more applications stay as they are." } }
        p class="note" { "The same as " code { "keiro plan --what-if" } ". Planned in " (seconds(then.planning_seconds)) " by " (word(&then.planner)) ", without the gateway." }
    }
}

fn verdict(plans: &Plans) -> Markup {
    let then = &plans.then;
    html! {
        ul class="verdict" {
            @for what in &then.without_effect { li { "Without effect: " (text::sentence(what)) } }
            li { @match plans.newly_unmet {
                0 => (part::good("No application is missed that is met now")),
                _ => {
                    (part::bad("Missed only then: "))
                    @for (index, app) in then.newly_unmet.iter().take(20).enumerate() { @if index > 0 { ", " } (text::name(app)) }
                    @if plans.newly_unmet > 20 { " and " (plans.newly_unmet - 20) " more" }
                },
            } }
            li { (then.unmet) " of " (text::count(plans.apps, "application")) " would miss their target on average, be overloaded or have no path; now it is " (plans.unmet_now) }
            li { (text::count(plans.moves, "application")) " would move" }
            @if then.alone { li { "Plan of this gateway alone; the site would make its own plan when it happens" } }
        }
    }
}

fn row(
    base: &str,
    Row {
        now: before,
        then: app,
    }: &Row,
) -> Markup {
    let before = before.as_ref();
    let path = |path: &Option<String>| match path {
        Some(path) => path_link(base, path),
        None => part::bad("none"),
    };
    let mean = |app: &PlannedApp| app.terms.as_ref().and_then(mean_of);
    let met = match app.target_met {
        _ if app.path.is_none() => part::bad("no path"),
        _ if app.overloaded => part::bad("overloaded"),
        Some(true) => part::good("met"),
        Some(false) => part::bad("missed"),
        None => html! { "no target" },
    };
    html! {
        tr class=[(app.path != app.path_now).then_some("changed")] {
            th scope="row" { @if before.is_some() { (app_link(base, &app.name)) } @else { (text::name(&app.name)) " (supposed)" } }
            td { @if before.is_some() { (path(&app.path_now)) } @else { (text::NONE) } }
            td { (path(&app.path)) }
            (number(&known(app.latency_target_seconds, seconds)))
            (number(&known(before.and_then(mean), seconds)))
            (number(&known(mean(app), seconds)))
            (number(&known(app.terms.and_then(|terms| terms.predicted.p99_seconds), seconds)))
            (number(&known(app.margin_seconds, seconds)))
            td { (met) (judged(app.judged_by)) }
        }
    }
}

/// The forecast's mean, else equation 3's.
fn mean_of(terms: &DelayTerms) -> Option<f64> {
    terms.predicted_delay_seconds.or(terms.paper_delay_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_says_the_same_as_the_command_line() {
        let form = Supposed {
            lose: "osaka".into(),
            set: "nara".into(),
            rate: "50 Mbit".into(),
            loss: "5 %".into(),
            add: "A3".into(),
            count: "5".into(),
            target: "A5".into(),
            latency: "20 ms".into(),
            ..Supposed::default()
        };
        let texts: Vec<String> = changes(&form)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            texts,
            [
                "lose osaka",
                "set nara rate=50Mbit loss=5%",
                "add 5 A3",
                "latency-target A5 20ms"
            ]
        );
        assert_eq!(changes(&Supposed::default()).unwrap(), []);
    }

    #[test]
    fn half_a_supposition_is_refused_with_what_is_missing() {
        let wrong = |form: Supposed| changes(&form).unwrap_err().to_string();
        let base = Supposed::default();
        let text = wrong(Supposed {
            set: "nara".into(),
            ..base.clone()
        });
        assert!(text.contains("a rate, a delay or a loss"), "{text}");
        let text = wrong(Supposed {
            rate: "1Mbit".into(),
            ..base.clone()
        });
        assert!(text.contains("without its path"), "{text}");
        let text = wrong(Supposed {
            latency: "1ms".into(),
            ..base.clone()
        });
        assert!(text.contains("without its application"), "{text}");
        let text = wrong(Supposed {
            lose: "a b; reboot".into(),
            ..base
        });
        assert!(text.contains("supposes nothing"), "{text}");
    }
}
