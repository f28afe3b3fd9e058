//! Addresses of pages below a gateway's, and what they mean.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::source::Needs;

/// A page of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PageAddress {
    Overview,
    Apps(List),
    App { name: String, span: Span },
    Paths,
    Path { name: String, span: Span },
    WhatIf(Supposed),
    Tenants,
    Egress,
    Network,
    Events(Filter),
    Config,
    About,
}

/// Which applications are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct List {
    /// Part of the application's, the peer's or the path's name.
    pub(crate) search: String,
    /// Pages of the table before this one.
    pub(crate) skipped: usize,
}

/// How far back charts go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Span {
    #[default]
    Hour,
    Day,
    Month,
}

/// The fields of the form of what to suppose, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Supposed {
    pub(crate) lose: String,
    pub(crate) set: String,
    pub(crate) rate: String,
    pub(crate) delay: String,
    pub(crate) loss: String,
    pub(crate) add: String,
    pub(crate) count: String,
    pub(crate) target: String,
    pub(crate) latency: String,
}

/// Which events are listed, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Filter {
    /// Part of the sentence or of the kind.
    pub(crate) search: String,
    /// RFC 3339 in UTC; empty: no limit.
    pub(crate) from: String,
    pub(crate) to: String,
}

impl Span {
    pub(crate) const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Month];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    pub(crate) fn duration(self) -> Duration {
        let hour = Duration::from_secs(3600);
        match self {
            Self::Hour => hour,
            Self::Day => hour * 24,
            Self::Month => hour * 24 * 30,
        }
    }
}

/// Characters of a field. Ours: the longest name, twice.
const FIELD_CHARACTERS_MAX: usize = 256;

impl PageAddress {
    /// The page of a decoded path and a query; `None`: there is none.
    pub(crate) fn parse(segments: &[String], query: &str) -> Option<Self> {
        let pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
            .map(|(name, value)| {
                (
                    name.into_owned(),
                    value.chars().take(FIELD_CHARACTERS_MAX).collect(),
                )
            })
            .collect();
        let field = |name: &str| {
            let found = pairs.iter().find(|(other, _)| other == name);
            found
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_default()
        };
        let span = || {
            let wanted = field("span");
            let found = Span::ALL.into_iter().find(|span| span.word() == wanted);
            found.unwrap_or_default()
        };
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        Some(match segments[..] {
            [] => Self::Overview,
            ["apps"] => Self::Apps(List {
                search: field("search"),
                skipped: field("skipped").parse().unwrap_or_default(),
            }),
            ["apps", name] => Self::App {
                name: name.to_owned(),
                span: span(),
            },
            ["paths"] => Self::Paths,
            ["paths", name] => Self::Path {
                name: name.to_owned(),
                span: span(),
            },
            ["what-if"] => Self::WhatIf(Supposed {
                lose: field("lose"),
                set: field("set"),
                rate: field("rate"),
                delay: field("delay"),
                loss: field("loss"),
                add: field("add"),
                count: field("count"),
                target: field("target"),
                latency: field("latency"),
            }),
            ["tenants"] => Self::Tenants,
            ["egress"] => Self::Egress,
            ["network"] => Self::Network,
            ["events"] => Self::Events(Filter {
                search: field("search"),
                from: field("from"),
                to: field("to"),
            }),
            ["config"] => Self::Config,
            ["about"] => Self::About,
            _ => return None,
        })
    }

    /// The address below a gateway's, without a slash before it; [`parse`](Self::parse) reads it.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Overview => String::new(),
            Self::Apps(list) => {
                let skipped = match list.skipped {
                    0 => String::new(),
                    skipped => skipped.to_string(),
                };
                format!(
                    "apps{}",
                    query(&[("search", &list.search), ("skipped", &skipped)])
                )
            }
            Self::App { name, span } => format!("apps/{}{}", segment(name), span_query(*span)),
            Self::Paths => "paths".to_owned(),
            Self::Path { name, span } => format!("paths/{}{}", segment(name), span_query(*span)),
            Self::WhatIf(supposed) => format!("what-if{}", query(&supposed.fields())),
            Self::Tenants => "tenants".to_owned(),
            Self::Egress => "egress".to_owned(),
            Self::Network => "network".to_owned(),
            Self::Events(filter) => {
                let fields = [
                    ("search", filter.search.as_str()),
                    ("from", &filter.from),
                    ("to", &filter.to),
                ];
                format!("events{}", query(&fields))
            }
            Self::Config => "config".to_owned(),
            Self::About => "about".to_owned(),
        }
    }

    /// The heading of the page, where that is of no one thing.
    pub(crate) fn title(&self) -> &str {
        match self {
            Self::Overview => "Overview",
            Self::Apps(_) => "Applications",
            Self::App { name, .. } | Self::Path { name, .. } => name,
            Self::Paths => "Paths",
            Self::WhatIf(_) => "What if",
            Self::Tenants => "Tenants",
            Self::Egress => "Egress",
            Self::Network => "Network",
            Self::Events(_) => "Events",
            Self::Config => "Configuration",
            Self::About => "About",
        }
    }

    pub(crate) fn needs(&self) -> Needs {
        match self {
            Self::Tenants => Needs::Tenants,
            _ => Needs::Usual,
        }
    }

    /// The same page without what costs the gateway work: what another site's link asks for.
    pub(crate) fn without_questions(self) -> Self {
        match self {
            Self::WhatIf(_) => Self::WhatIf(Supposed::default()),
            other => other,
        }
    }

    /// Whether the page supposes something, which is planned for.
    pub(crate) fn is_question(&self) -> bool {
        matches!(self, Self::WhatIf(form) if *form != Supposed::default())
    }

    /// Those that the navigation leads to.
    pub(crate) fn main() -> [Self; 10] {
        [
            Self::Overview,
            Self::Apps(List::default()),
            Self::Paths,
            Self::WhatIf(Supposed::default()),
            Self::Tenants,
            Self::Egress,
            Self::Network,
            Self::Events(Filter::default()),
            Self::Config,
            Self::About,
        ]
    }

    /// Whether the navigation shows `main` as the current page.
    pub(crate) fn is_below(&self, main: &Self) -> bool {
        match (self, main) {
            (Self::App { .. }, Self::Apps(_)) | (Self::Path { .. }, Self::Paths) => true,
            _ => std::mem::discriminant(self) == std::mem::discriminant(main),
        }
    }
}

impl Supposed {
    pub(crate) fn fields(&self) -> [(&'static str, &str); 9] {
        [
            ("lose", self.lose.as_str()),
            ("set", &self.set),
            ("rate", &self.rate),
            ("delay", &self.delay),
            ("loss", &self.loss),
            ("add", &self.add),
            ("count", &self.count),
            ("target", &self.target),
            ("latency", &self.latency),
        ]
    }
}

/// A name as a part of an address.
fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

fn span_query(span: Span) -> String {
    match span {
        Span::Hour => String::new(),
        span => query(&[("span", span.word())]),
    }
}

/// The fields that are not empty.
fn query(fields: &[(&str, &str)]) -> String {
    let mut text = form_urlencoded::Serializer::new(String::new());
    text.extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()));
    match text.finish() {
        empty if empty.is_empty() => empty,
        text => format!("?{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(address: &str) -> Option<PageAddress> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let parts = path.split('/').filter(|part| !part.is_empty());
        let parts = parts.map(|part| {
            percent_encoding::percent_decode_str(part)
                .decode_utf8_lossy()
                .into_owned()
        });
        PageAddress::parse(&parts.collect::<Vec<_>>(), query)
    }

    #[test]
    fn every_address_leads_back_to_its_page() {
        let hostile = "a/b?c=d&e <script>ü".to_owned();
        let supposed = Supposed {
            lose: hostile.clone(),
            latency: "20ms".into(),
            ..Supposed::default()
        };
        let list = List {
            search: hostile.clone(),
            skipped: 2,
        };
        let filter = Filter {
            search: hostile.clone(),
            from: "2026-01-31T12:00:00Z".into(),
            to: String::new(),
        };
        let (name, span) = (hostile, Span::Month);
        let places = [
            PageAddress::Apps(list),
            PageAddress::App {
                name: name.clone(),
                span,
            },
            PageAddress::Path { name, span },
            PageAddress::WhatIf(supposed),
            PageAddress::Events(filter),
        ];
        for place in places.into_iter().chain(PageAddress::main()) {
            assert_eq!(
                parsed(&place.address()),
                Some(place.clone()),
                "{}",
                place.address()
            );
        }
    }

    #[test]
    fn other_addresses_are_no_pages_and_long_fields_are_cut() {
        assert_eq!(parsed("nothing"), None);
        assert_eq!(parsed("apps/a/b"), None);
        let Some(PageAddress::Apps(list)) = parsed(&format!("apps?search={}", "x".repeat(5000)))
        else {
            panic!("a list")
        };
        assert_eq!(list.search.len(), FIELD_CHARACTERS_MAX);
    }
}
