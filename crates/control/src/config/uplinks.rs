//! `uplinks = "auto"`: every interface with a default route is a path.

use keiro_config::{TableReader, ValueError, string, type_name};
use keiro_units::Bandwidth;
use toml::de::DeValue;

use super::{
    DEFAULT_PATH_PORT,
    entries::Reader,
    local::port,
    values::{rate, value},
};

/// Patterns of `uplinks_exclude`; more are refused.
const PATTERNS_MAX: usize = 64;
/// Bytes of a pattern; interfaces' names have 15.
const PATTERN_BYTES_MAX: usize = 32;
/// Names that programs give to interfaces which are no uplinks: networks of containers and virtual machines, and
/// tunnels over the uplinks.
const DEFAULT_EXCLUDE: &[&str] = &[
    "docker*",
    "br-*",
    "veth*",
    "virbr*",
    "vnet*",
    "lxc*",
    "lxdbr*",
    "cni*",
    "cali*",
    "flannel*",
    "podman*",
    "keiro*",
    "tun*",
    "tap*",
    "wg*",
    "tailscale*",
    "zt*",
];

/// Names that udev and the kernel give to interfaces of modems (systemd.net-naming-scheme(7)).
const DEFAULT_METERED: &[&str] = &["ww*"];

/// Paths by the interfaces that there are.
#[derive(Clone, Debug, PartialEq)]
pub struct AutoUplinks {
    /// `uplinks_exclude`: interfaces that are never taken.
    pub exclude: Vec<Pattern>,
    /// `uplinks_metered`: interfaces whose path is metered.
    pub metered: Vec<Pattern>,
    /// `uplinks_rate`: what may be sent on each path. `None`: what it carries.
    pub rate: Option<Bandwidth>,
    /// `uplinks_port`: the UDP port of each.
    pub port: u16,
}

/// A name of an interface, in which `*` stands for any letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// `None`: no interface has such a name.
    pub fn new(text: &str) -> Option<Self> {
        let is_odd = |c: char| !c.is_ascii_graphic() || matches!(c, '/' | ':');
        let fits = (1..=PATTERN_BYTES_MAX).contains(&text.len()) && !text.contains(is_odd);
        fits.then(|| Self(text.to_owned()))
    }

    /// Whether an interface has such a name.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let parts: Vec<&str> = parts.collect();
        let Some((last, middle)) = parts.split_last() else {
            return rest.is_empty();
        };
        for part in middle {
            let Some(at) = rest.find(part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

impl AutoUplinks {
    /// Whether an interface of this name may be an uplink.
    pub fn admits(&self, interface: &str) -> bool {
        !matches_any(&self.exclude, interface)
    }

    /// Whether the path of an interface of this name is metered.
    pub fn is_metered(&self, interface: &str) -> bool {
        matches_any(&self.metered, interface)
    }
}

fn matches_any(patterns: &[Pattern], interface: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(interface))
}

fn default_patterns(names: &[&str]) -> Vec<Pattern> {
    let patterns = names.iter().map(|text| Pattern((*text).to_owned()));
    patterns.collect()
}

impl Default for AutoUplinks {
    fn default() -> Self {
        Self {
            exclude: default_patterns(DEFAULT_EXCLUDE),
            metered: default_patterns(DEFAULT_METERED),
            rate: None,
            port: DEFAULT_PATH_PORT,
        }
    }
}

impl Reader<'_> {
    /// `uplinks` and the keys beside it; `None`: paths are as they are written.
    pub(super) fn auto_uplinks(&mut self, fields: &mut TableReader<'_, '_>) -> Option<AutoUplinks> {
        let is_auto = fields.has("uplinks");
        let keys = [EXCLUDE, METERED, RATE, PORT];
        let spans = keys.map(|key| (key, fields.has(key), fields.span_of(key)));
        let r = &mut self.report;
        fields.optional(r, "uplinks", auto);
        let exclude = fields.optional(r, EXCLUDE, patterns);
        let metered = fields.optional(r, METERED, patterns);
        let rate = fields.optional(r, RATE, rate);
        let port = fields.optional(r, PORT, port);
        if !is_auto {
            for (key, _, at) in spans.iter().filter(|(_, is_there, _)| *is_there) {
                let message = format!("{key}: it is for uplinks = \"auto\", which is not there");
                r.add(at, message, "add uplinks = \"auto\", or remove it");
            }
            return None;
        }
        let default = AutoUplinks::default();
        Some(AutoUplinks {
            exclude: value(exclude).unwrap_or(default.exclude),
            metered: value(metered).unwrap_or(default.metered),
            rate: value(rate),
            port: value(port).unwrap_or(default.port),
        })
    }
}

const EXCLUDE: &str = "uplinks_exclude";
const METERED: &str = "uplinks_metered";
const RATE: &str = "uplinks_rate";
const PORT: &str = "uplinks_port";

fn auto(value: &DeValue<'_>) -> Result<(), ValueError> {
    match string(value)? {
        "auto" => Ok(()),
        _ => Err(ValueError::new(
            "there is only \"auto\"",
            "write \"auto\", or remove it and write one [[path]] per uplink",
        )),
    }
}

fn patterns(value: &DeValue<'_>) -> Result<Vec<Pattern>, ValueError> {
    let hint = "write a list of names, as [\"docker*\", \"eth1\"]";
    let DeValue::Array(items) = value else {
        return Err(ValueError::new(
            format!("this is {}", type_name(value)),
            hint,
        ));
    };
    if items.len() > PATTERNS_MAX {
        return Err(ValueError::new(
            format!("more than {PATTERNS_MAX} names"),
            "a `*` stands for any letters",
        ));
    }
    let pattern = |text: &str| {
        Pattern::new(text).ok_or_else(|| {
            let message = format!(
                "`{}` is not a name of an interface",
                keiro_config::shown(text)
            );
            ValueError::new(message, hint)
        })
    };
    let patterns = items.iter().map(|item| pattern(string(item.get_ref())?));
    patterns.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let cases = [
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("eth*", "eth", true),
            ("eth*", "eth12", true),
            ("eth*", "beth1", false),
            ("*", "anything", true),
            ("*0", "eth0", true),
            ("*0", "eth01", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("a**b", "ab", true),
        ];
        for (pattern, name, expected) in cases {
            let found = Pattern::new(pattern).unwrap().matches(name);
            assert_eq!(found, expected, "{pattern} and {name}");
        }
        for odd in ["", "a b", "a/b", "a:b", &"x".repeat(33)] {
            assert_eq!(Pattern::new(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn interfaces_of_containers_and_tunnels_are_no_uplinks() {
        let auto = AutoUplinks::default();
        for name in [
            "docker0",
            "br-1a2b",
            "veth12@if3",
            "virbr0",
            "keiro1",
            "wg0",
            "tun3",
        ] {
            assert!(!auto.admits(name), "{name}");
        }
        for name in ["eth0", "enp3s0", "wan", "wwan0", "ppp0", "vmbr0", "bond0.7"] {
            assert!(auto.admits(name), "{name}");
        }
    }

    #[test]
    fn interfaces_of_modems_are_metered_by_default() {
        let auto = AutoUplinks::default();
        for (name, expected) in [
            ("wwan0", true),
            ("wwp0s20f0u6", true),
            ("wlan0", false),
            ("eth0", false),
        ] {
            assert_eq!(auto.is_metered(name), expected, "{name}");
        }
    }
}
