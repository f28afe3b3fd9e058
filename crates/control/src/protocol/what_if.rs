//! What a plan may suppose: changes that have not happened.

use std::time::Duration;

use keiro_model::{Bandwidth, Probability};
use serde::{Deserialize, Serialize};

use crate::{
    config::Name,
    units::{Quantity, UnitError},
};

/// One supposed change. As text, which [`WhatIf::parse`] reads:
///
/// | text | meaning |
/// |---|---|
/// | `lose PATH` | the path is down |
/// | `add APP`, `add 5 APP` | as many more applications like this one |
/// | `set PATH rate=50Mbit delay=80ms loss=5%` | the path is like this; one of the three is enough |
/// | `demand APP 20ms`, `demand APP none` | the application demands this |
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum WhatIf {
    /// A path is down.
    LosePath {
        /// Its name.
        path: String,
    },
    /// More applications like one that there is.
    AddApp {
        /// The name of the one that they are like.
        app: String,
        /// How many.
        count: u64,
    },
    /// A path is another one.
    SetPath {
        /// Its name.
        path: String,
        /// What it carries; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate_bits_per_second: Option<u64>,
        /// One-way propagation delay; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delay_seconds: Option<f64>,
        /// The part of its packets that is lost; absent: as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss_ratio: Option<f64>,
    },
    /// An application demands something else.
    SetDemand {
        /// Its name.
        app: String,
        /// Target delay; absent: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        demand_seconds: Option<f64>,
    },
}

/// Applications that may be supposed at once.
pub const WHAT_IF_APPS_MAX: u64 = 1000;
/// Changes that may be supposed at once.
pub const WHAT_IF_MAX: usize = 64;

/// Why a text supposes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhatIfError {
    /// None of the forms.
    #[error(
        "`{0}` supposes nothing; try: \"lose PATH\", \"add 5 APP\", \"set PATH rate=50Mbit delay=80ms \
         loss=5%\" or \"demand APP 20ms\""
    )]
    Form(String),
    /// A value that is none.
    #[error("`{text}`: {error}")]
    Value {
        /// The value.
        text: String,
        /// What is wrong with it.
        error: UnitError,
    },
    /// Too many or no applications.
    #[error("`{0}` is no number of applications; try: 1 to {WHAT_IF_APPS_MAX}")]
    Count(String),
}

impl WhatIf {
    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn parse(text: &str) -> Result<Self, WhatIfError> {
        let form = || WhatIfError::Form(text.to_owned());
        let words: Vec<&str> = text.split_whitespace().collect();
        let name = |name: &str| match Name::try_from(name.to_owned()) {
            Ok(name) => Ok(name.to_string()),
            Err(_) => Err(form()),
        };
        Ok(match words[..] {
            ["lose", path] => Self::LosePath { path: name(path)? },
            ["add", app] => Self::AddApp {
                app: name(app)?,
                count: 1,
            },
            ["add", count, app] => Self::AddApp {
                app: name(app)?,
                count: number_of(count)?,
            },
            ["demand", app, "none"] => Self::SetDemand {
                app: name(app)?,
                demand_seconds: None,
            },
            ["demand", app, demand] => Self::SetDemand {
                app: name(app)?,
                demand_seconds: Some(value::<Duration>(demand)?.as_secs_f64()),
            },
            ["set", path, ref values @ ..] if !values.is_empty() => {
                set_path(name(path)?, values).ok_or_else(form)??
            }
            _ => return Err(form()),
        })
    }
}

fn number_of(count: &str) -> Result<u64, WhatIfError> {
    let digits = count.trim_end_matches(['x', '×']);
    let number = digits.parse().ok();
    number
        .filter(|number| (1..=WHAT_IF_APPS_MAX).contains(number))
        .ok_or_else(|| WhatIfError::Count(count.to_owned()))
}

/// `None`: not of the form.
fn set_path(name: String, values: &[&str]) -> Option<Result<WhatIf, WhatIfError>> {
    let (mut rate, mut delay, mut loss) = (None, None, None);
    for word in values {
        let (key, text) = word.split_once('=')?;
        let written = match key {
            "rate" => rate.is_some(),
            "delay" => delay.is_some(),
            _ => loss.is_some(),
        };
        if written {
            return None;
        }
        let done = match key {
            "rate" => value(text).map(|found: Bandwidth| {
                rate = Some(found.as_bits_per_second());
            }),
            "delay" => value(text).map(|found: Duration| {
                delay = Some(found.as_secs_f64());
            }),
            "loss" => value(text).map(|found: Probability| loss = Some(found.get())),
            _ => return None,
        };
        if let Err(error) = done {
            return Some(Err(error));
        }
    }
    Some(Ok(WhatIf::SetPath {
        path: name,
        rate_bits_per_second: rate,
        delay_seconds: delay,
        loss_ratio: loss,
    }))
}

fn value<T: Quantity>(text: &str) -> Result<T, WhatIfError> {
    T::parse(text).map_err(|error| WhatIfError::Value {
        text: text.to_owned(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let path = "osaka".to_owned();
        let app = "A3".to_owned();
        for (text, wanted) in [
            ("lose osaka", WhatIf::LosePath { path: path.clone() }),
            (
                "add 5 A3",
                WhatIf::AddApp {
                    app: app.clone(),
                    count: 5,
                },
            ),
            (
                "add  A3",
                WhatIf::AddApp {
                    app: app.clone(),
                    count: 1,
                },
            ),
            (
                "set osaka rate=50Mbit loss=5%",
                WhatIf::SetPath {
                    path,
                    rate_bits_per_second: Some(50_000_000),
                    delay_seconds: None,
                    loss_ratio: Some(0.05),
                },
            ),
            (
                "demand A3 20ms",
                WhatIf::SetDemand {
                    app: app.clone(),
                    demand_seconds: Some(0.02),
                },
            ),
            (
                "demand A3 none",
                WhatIf::SetDemand {
                    app,
                    demand_seconds: None,
                },
            ),
        ] {
            assert_eq!(WhatIf::parse(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_supposes_nothing_is_refused_with_what_would() {
        for text in [
            "",
            "lose",
            "lose a b",
            "set osaka",
            "set osaka mtu=3",
            "set osaka rate=1Mbit rate=2Mbit",
            "gain osaka",
            "lose a/b",
        ] {
            let error = WhatIf::parse(text).unwrap_err();
            assert!(matches!(error, WhatIfError::Form(_)), "{text}: {error}");
            assert!(error.to_string().contains("try:"), "{error}");
        }
        for text in ["add 0 A3", "add 1001 A3", "add -1 A3", "add x A3"] {
            let error = WhatIf::parse(text).unwrap_err();
            assert!(matches!(error, WhatIfError::Count(_)), "{text}: {error}");
        }
        for text in [
            "set osaka rate=fast",
            "set osaka loss=200%",
            "demand A3 -1ms",
        ] {
            let error = WhatIf::parse(text).unwrap_err();
            assert!(
                matches!(error, WhatIfError::Value { .. }),
                "{text}: {error}"
            );
        }
    }
}
