//! Classifies packets by rules over prefixes, protocol, ports and DSCP.

use std::{net::IpAddr, ops::RangeInclusive};

use ipnet::IpNet;

use crate::{Header, builtin_classes::PatternId, ecn};

/// Ours: rules are tried one after another, about 2 ns each.
pub const RULES_MAX: usize = 1024;

/// A packet pattern. A field that is `None` matches every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The source is inside.
    pub source: Option<IpNet>,
    /// The destination is inside.
    pub destination: Option<IpNet>,
    /// The protocol above IP.
    pub protocol: Option<u8>,
    /// The source port. Packets without ports do not match, nor do fragments other than the first.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The destination port, likewise.
    pub destination_ports: Option<RangeInclusive<u16>>,
    /// The six bits of the DSCP.
    pub dscp: Option<u8>,
    /// The server's name, by the place of its pattern; empty: any, or none.
    pub names: Vec<PatternId>,
}

/// Rules in order; the first that matches decides.
#[derive(Clone, Debug)]
pub struct Classifier<A> {
    rules: Vec<(Match, A)>,
}

/// Why rules are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// More than [`RULES_MAX`].
    #[error("{count} rules, at most {RULES_MAX} are possible; gather prefixes or port ranges")]
    TooMany {
        /// How many were given.
        count: usize,
    },
    /// No packet can match.
    #[error("rule {number} can never match: {reason}")]
    Impossible {
        /// Index of the rule, from 1.
        number: usize,
        reason: &'static str,
    },
}

impl Match {
    /// Whether a packet with this header matches; `name`: of its flow's server, where that is known.
    #[inline]
    pub fn admits(&self, header: &Header, name: Option<PatternId>) -> bool {
        (self.names.is_empty() || name.is_some_and(|name| self.names.contains(&name)))
            && self
                .protocol
                .is_none_or(|protocol| protocol == header.protocol)
            && port_matches(
                self.destination_ports.as_ref(),
                header.ports.map(|p| p.destination),
            )
            && port_matches(self.source_ports.as_ref(), header.ports.map(|p| p.source))
            && self
                .dscp
                .is_none_or(|dscp| dscp == ecn::dscp(header.traffic_class))
            && inside(self.destination.as_ref(), &header.destination)
            && inside(self.source.as_ref(), &header.source)
    }

    fn contradiction(&self) -> Option<&'static str> {
        let empty = |ports: &Option<RangeInclusive<u16>>| {
            ports.as_ref().is_some_and(RangeInclusive::is_empty)
        };
        let mixed = |(a, b): (&IpNet, &IpNet)| a.addr().is_ipv4() != b.addr().is_ipv4();
        if empty(&self.source_ports) || empty(&self.destination_ports) {
            return Some("a range of ports ends before it begins");
        }
        if self.dscp.is_some_and(|dscp| dscp > 63) {
            return Some("a DSCP is at most 63");
        }
        if self
            .source
            .as_ref()
            .zip(self.destination.as_ref())
            .is_some_and(mixed)
        {
            return Some("source and destination are of different IP versions");
        }
        None
    }
}

impl<A> Classifier<A> {
    /// Rules, the first of them first.
    ///
    /// # Errors
    /// Too many, or one that no packet can match.
    pub fn new(rules: Vec<(Match, A)>) -> Result<Self, RuleError> {
        if rules.len() > RULES_MAX {
            return Err(RuleError::TooMany { count: rules.len() });
        }
        for (index, (rule, _)) in rules.iter().enumerate() {
            if let Some(reason) = rule.contradiction() {
                let number = index + 1;
                return Err(RuleError::Impossible { number, reason });
            }
        }
        Ok(Self { rules })
    }

    /// The application of the first rule that matches; `None` if none does.
    pub fn application(&self, header: &Header, name: Option<PatternId>) -> Option<&A> {
        let mut rules = self.rules.iter();
        let (_, application) = rules.find(|(rule, _)| rule.admits(header, name))?;
        Some(application)
    }
}

#[inline]
fn port_matches(wanted: Option<&RangeInclusive<u16>>, port: Option<u16>) -> bool {
    wanted.is_none_or(|range| port.is_some_and(|port| range.contains(&port)))
}

#[inline]
fn inside(prefix: Option<&IpNet>, address: &IpAddr) -> bool {
    prefix.is_none_or(|prefix| prefix.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fragment, Ports, Version, packet::sample, protocol};

    fn header() -> Header {
        let header = Header::parse(&sample::udp(Version::V4, b"payload")).unwrap();
        Header {
            source: "10.1.2.3".parse().unwrap(),
            destination: "10.9.0.1".parse().unwrap(),
            traffic_class: 46 << 2 | 1,
            ports: Some(Ports {
                source: 40_000,
                destination: 5060,
            }),
            ..header
        }
    }

    fn matching() -> Match {
        Match {
            source: Some("10.1.0.0/16".parse().unwrap()),
            destination: Some("10.9.0.0/24".parse().unwrap()),
            protocol: Some(protocol::UDP),
            source_ports: Some(1024..=65_535),
            destination_ports: Some(5060..=5061),
            dscp: Some(46),
            names: Vec::new(),
        }
    }

    #[test]
    fn a_rule_admits_what_meets_all_of_its_fields() {
        assert!(matching().admits(&header(), None));
        assert!(Match::default().admits(&header(), None));
        let failing = [
            Match {
                source: Some("10.2.0.0/16".parse().unwrap()),
                ..matching()
            },
            Match {
                destination: Some("10.9.1.0/24".parse().unwrap()),
                ..matching()
            },
            Match {
                protocol: Some(protocol::TCP),
                ..matching()
            },
            Match {
                source_ports: Some(0..=1023),
                ..matching()
            },
            Match {
                destination_ports: Some(5061..=5061),
                ..matching()
            },
            Match {
                dscp: Some(0),
                ..matching()
            },
            Match {
                source: Some("::/0".parse().unwrap()),
                destination: None,
                ..matching()
            },
        ];
        for rule in failing {
            assert!(!rule.admits(&header(), None), "{rule:?}");
        }
    }

    #[test]
    fn a_rule_for_names_admits_only_flows_with_one_of_them() {
        let rule = Match {
            names: vec![PatternId(3), PatternId(5)],
            ..Match::default()
        };
        assert!(rule.admits(&header(), Some(PatternId(5))));
        assert!(!rule.admits(&header(), Some(PatternId(4))));
        assert!(!rule.admits(&header(), None));
    }

    #[test]
    fn the_first_match_wins_and_no_match_is_none() {
        let udp = Match {
            protocol: Some(protocol::UDP),
            ..Match::default()
        };
        let tcp = Match {
            protocol: Some(protocol::TCP),
            ..Match::default()
        };
        let classifier = Classifier::new(vec![
            (matching(), "voice"),
            (udp, "other udp"),
            (tcp, "tcp"),
        ])
        .unwrap();
        assert_eq!(classifier.application(&header(), None), Some(&"voice"));
        let other = Header {
            traffic_class: 0,
            ..header()
        };
        assert_eq!(classifier.application(&other, None), Some(&"other udp"));
        let gre = Header {
            protocol: 47,
            ports: None,
            ..header()
        };
        assert_eq!(classifier.application(&gre, None), None);
    }

    #[test]
    fn fragments_without_ports_match_only_rules_without_ports() {
        let fragment = Fragment {
            id: 1,
            offset: 8,
            more: false,
        };
        let header = Header {
            fragment: Some(fragment),
            ports: None,
            ..header()
        };
        assert!(!matching().admits(&header, None));
        let without = Match {
            source_ports: None,
            destination_ports: None,
            ..matching()
        };
        assert!(without.admits(&header, None));
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    fn rules_that_cannot_match_and_too_many_are_refused() {
        let impossible = [
            Match {
                source_ports: Some(2..=1),
                ..Match::default()
            },
            Match {
                dscp: Some(64),
                ..Match::default()
            },
            Match {
                source: Some("10.0.0.0/8".parse().unwrap()),
                destination: Some("::/0".parse().unwrap()),
                ..Match::default()
            },
        ];
        for rule in impossible {
            let error = Classifier::new(vec![(Match::default(), ()), (rule, ())]).unwrap_err();
            assert!(
                matches!(error, RuleError::Impossible { number: 2, .. }),
                "{error}"
            );
        }
        let many = vec![(Match::default(), ()); RULES_MAX + 1];
        assert!(matches!(
            Classifier::new(many),
            Err(RuleError::TooMany { .. })
        ));
    }
}
