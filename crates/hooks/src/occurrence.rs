//! What a command or webhook gets of an event.

use std::time::SystemTime;

use keiro_control::protocol::{Event, Timestamp};
use keiro_terminal::printable;
use serde_json::{Value, json};

/// Bytes of the document at most: a pipe has room for it (64 KiB), so that a command that reads nothing holds up
/// nothing. Ours.
const DOCUMENT_BYTES_MAX: usize = 60_000;
/// Variables for fields of the event at most. Ours: no event has more.
const FIELDS_MAX: usize = 32;
/// Characters of a variable. Ours.
const CHARACTERS_MAX: usize = 500;

/// Something that happened at a gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Occurrence {
    /// The event's name.
    pub event: String,
    /// The gateway's name; empty: not known.
    pub gateway: String,
    /// In one sentence.
    pub text: String,
    /// The event as `keiro monitor` prints it.
    pub fields: Value,
    /// Events that were not passed on before this one.
    pub lost: u64,
}

impl Occurrence {
    pub fn of(event: &Event, gateway: &str, text: String) -> Self {
        Self {
            event: event.kind.name().to_owned(),
            gateway: gateway.to_owned(),
            text,
            fields: serde_json::to_value(event).unwrap_or_default(),
            lost: 0,
        }
    }

    /// One that is no event of the gateway.
    pub fn own(event: &str, gateway: &str, text: &str) -> Self {
        let time = Timestamp(SystemTime::now());
        Self {
            event: event.to_owned(),
            gateway: gateway.to_owned(),
            text: text.to_owned(),
            fields: json!({ "time": time, "event": event }),
            lost: 0,
        }
    }

    /// The document for a webhook, and for a command's standard input. Of a very long event the name and the time.
    pub fn document(&self) -> String {
        let document = |event: &Value, is_cut: bool| {
            json!({
                "gateway": self.gateway, "text": printable(&self.text), "lost_events": self.lost,
                "event": event, "is_cut": is_cut,
            })
            .to_string()
        };
        let whole = document(&self.fields, false);
        match whole.len() <= DOCUMENT_BYTES_MAX {
            true => whole,
            false => document(
                &json!({ "time": self.fields["time"], "event": self.event }),
                true,
            ),
        }
    }

    /// Variables of a command's environment. Values have no control characters and are short; names are of the
    /// protocol's fields.
    pub fn environment(&self) -> Vec<(String, String)> {
        let time = self.fields["time"].as_str().unwrap_or_default();
        let mut variables = vec![
            ("KEIRO_EVENT".to_owned(), value(&self.event)),
            ("KEIRO_TIME".to_owned(), value(time)),
            ("KEIRO_GATEWAY".to_owned(), value(&self.gateway)),
            ("KEIRO_TEXT".to_owned(), value(&self.text)),
            ("KEIRO_LOST_EVENTS".to_owned(), self.lost.to_string()),
        ];
        let fields = self.fields.as_object().into_iter().flatten();
        let scalars = fields.filter_map(|(name, field)| {
            let text = match field {
                Value::String(text) => value(text),
                Value::Number(number) => number.to_string(),
                Value::Bool(flag) => flag.to_string(),
                _ => return None,
            };
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let is_own = matches!(name.as_str(), "event" | "time");
            let is_good = name.chars().all(is_plain) && !is_own;
            is_good.then(|| (format!("KEIRO_FIELD_{}", name.to_uppercase()), text))
        });
        variables.extend(scalars.take(FIELDS_MAX));
        variables
    }
}

fn value(text: &str) -> String {
    printable(text).chars().take(CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hostile() -> Occurrence {
        Occurrence {
            event: "join_refused".to_owned(),
            gateway: "tokyo".to_owned(),
            text: "x\n\u{1b}[2J$(reboot)\u{202e}".to_owned(),
            fields: json!({
                "time": "2026-01-31T12:00:00Z", "event": "join_refused", "peer": "a\0b\n; rm -rf /",
                "bad name=": "x", "reason": "y".repeat(100_000), "age_seconds": 1.5, "nested": {"a": 1},
            }),
            lost: 3,
        }
    }

    #[test]
    fn variables_are_short_and_have_no_control_characters() {
        let variables = hostile().environment();
        let of = |name: &str| {
            variables
                .iter()
                .find(|(of, _)| of == name)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(of("KEIRO_EVENT"), Some("join_refused"));
        assert_eq!(of("KEIRO_FIELD_PEER"), Some("a\u{fffd}b ; rm -rf /"));
        assert_eq!(of("KEIRO_FIELD_AGE_SECONDS"), Some("1.5"));
        assert_eq!(of("KEIRO_LOST_EVENTS"), Some("3"));
        for (name, value) in &variables {
            assert!(
                name.chars().all(|c| c.is_ascii_uppercase() || c == '_'),
                "{name}"
            );
            assert!(
                !value.contains(|c: char| c.is_control())
                    && value.chars().count() <= CHARACTERS_MAX
            );
        }
        assert_eq!(variables.len(), 8);
    }

    #[test]
    fn a_document_fits_into_a_pipe_whatever_the_event() {
        let document = hostile().document();
        assert!(document.len() <= DOCUMENT_BYTES_MAX, "{}", document.len());
        let document: Value = serde_json::from_str(&document).unwrap();
        assert_eq!(
            (&document["is_cut"], &document["event"]["event"]),
            (&json!(true), &json!("join_refused"))
        );
        let short = Occurrence::own("test", "tokyo", "a test").document();
        let short: Value = serde_json::from_str(&short).unwrap();
        assert_eq!(
            (&short["is_cut"], &short["text"]),
            (&json!(false), &json!("a test"))
        );
    }
}
