//! What an application needs: the keys of `[[app]]` that are the same at all gateways.

use std::time::Duration;

use keiro_config::{Located, Report, TableReader, boolean, choice};
use keiro_units::{ByteCount, Probability};

use super::{
    Class, MESSAGE_BYTES_MAX, PathUse,
    values::{
        DATAGRAM_BYTES_MAX, LOSS_TOLERANCE_MIN, TIME_MAX, length, loss_tolerance, positive_time,
        value,
    },
};
use crate::units::Text;

/// The needs of an application; each as in [`super::App`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppNeeds {
    pub class: Class,
    pub latency_target: Option<Duration>,
    pub lifetime: Option<Duration>,
    pub loss: Option<Probability>,
    pub length: Option<ByteCount>,
    pub interval: Option<Duration>,
    pub paths: PathUse,
    pub essential: Option<bool>,
}

impl AppNeeds {
    /// Whether a file may have them: what another gateway has sent is judged as what is written.
    pub(crate) fn are_sound(&self) -> bool {
        let is_time =
            |time: Option<Duration>| time.is_none_or(|time| !time.is_zero() && time <= TIME_MAX);
        let in_time = match (self.lifetime, self.latency_target) {
            (Some(lifetime), Some(target)) => target <= lifetime,
            _ => true,
        };
        let length_max = match self.class {
            Class::Datagram => DATAGRAM_BYTES_MAX,
            Class::Message | Class::Stream => MESSAGE_BYTES_MAX,
        };
        let is_length = |length: ByteCount| (1..=length_max).contains(&length.get());
        [self.latency_target, self.lifetime, self.interval]
            .into_iter()
            .all(is_time)
            && in_time
            && (self.class != Class::Stream || self.lifetime.is_none())
            && self
                .loss
                .is_none_or(|loss| loss.get() >= LOSS_TOLERANCE_MIN)
            && self.length.is_none_or(is_length)
    }

    /// Those of a class alone.
    pub(crate) fn of_class(class: Class) -> Self {
        Self {
            class,
            latency_target: None,
            lifetime: default_lifetime(class, None),
            loss: None,
            length: None,
            interval: None,
            paths: PathUse::One,
            essential: None,
        }
    }
}

/// Reads them; `None`: the class is missing or wrong.
pub(crate) fn app_needs(
    fields: &mut TableReader<'_, '_>,
    report: &mut Report<'_>,
) -> Option<AppNeeds> {
    let r = report;
    let class = fields.required(r, "class", "\"message\"", |v| choice(v, CLASSES));
    let latency_target = fields.optional(r, "latency_target", positive_time);
    let lifetime = fields.optional(r, "lifetime", positive_time);
    let loss = fields.optional(r, "loss", loss_tolerance);
    let length = fields.optional(r, "length", length);
    let interval = fields.optional(r, "interval", positive_time);
    let paths = fields.optional(r, "paths", |v| choice(v, PATH_USES));
    let essential = fields.optional(r, "essential", boolean);
    let class = class?.value;
    refuse_contradictions(class, &latency_target, &lifetime, &length, r);
    let (latency_target, lifetime) = (value(latency_target), value(lifetime));
    Some(AppNeeds {
        class,
        latency_target,
        lifetime: lifetime.or_else(|| default_lifetime(class, latency_target)),
        loss: value(loss),
        length: value(length),
        interval: value(interval),
        paths: value(paths).unwrap_or_default(),
        essential: value(essential),
    })
}

fn refuse_contradictions(
    class: Class,
    latency_target: &Option<Located<Duration>>,
    lifetime: &Option<Located<Duration>>,
    length: &Option<Located<ByteCount>>,
    r: &mut Report<'_>,
) {
    if let (Class::Stream, Some(lifetime)) = (class, lifetime) {
        r.add(
            &lifetime.at,
            "lifetime: streams have none, all of their bytes arrive",
            "remove it, or write class = \"message\"",
        );
    }
    if let (Some(latency_target), Some(lifetime)) = (latency_target, lifetime)
        && lifetime.value < latency_target.value
    {
        let (lifetime_text, target_text) = (Text(lifetime.value), Text(latency_target.value));
        let message = format!(
            "lifetime: {lifetime_text} is shorter than the latency target {target_text}, so data \
             would be dropped in time"
        );
        r.add(
            &lifetime.at,
            message,
            "make lifetime at least as long as latency_target, or remove it",
        );
    }
    if let (Class::Datagram, Some(length)) = (class, length)
        && length.value.get() > DATAGRAM_BYTES_MAX
    {
        let message = format!("length: a datagram has at most {DATAGRAM_BYTES_MAX}B");
        r.add(
            &length.at,
            message,
            "write class = \"message\" for longer ones",
        );
    }
}

/// How long datagrams are of use where the configuration does not say. Ours: receivers of real-time
/// data have played out what surrounds them, and clients of request and reply have asked again.
const DATAGRAM_LIFETIME: Duration = Duration::from_secs(2);

/// Messages are kept until they arrive, and datagrams for [`DATAGRAM_LIFETIME`] or their latency target.
fn default_lifetime(class: Class, latency_target: Option<Duration>) -> Option<Duration> {
    let target = latency_target.unwrap_or_default();
    (class == Class::Datagram).then_some(DATAGRAM_LIFETIME.max(target))
}

const PATH_USES: &[(&str, PathUse)] = &[("one", PathUse::One), ("spread", PathUse::Spread)];

const CLASSES: &[(&str, Class)] = &[
    ("message", Class::Message),
    ("datagram", Class::Datagram),
    ("stream", Class::Stream),
];
