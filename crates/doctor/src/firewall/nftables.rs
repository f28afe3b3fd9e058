//! What `nft -j list ruleset` prints (libnftables-json(5)).

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{Base, ChainId, Condition, Firewall, Hook, Is, Rule, Tool, Verdict};

pub(super) fn read(json: &str, firewall: &mut Firewall) {
    let Ok(document) = serde_json::from_str::<Value>(json) else {
        return;
    };
    let Some(all) = document["nftables"].as_array() else {
        return;
    };
    for chain in all.iter().filter_map(|item| item.get("chain")) {
        if let Some(chain_id) = chain_id(chain, "name") {
            firewall.add(chain_id, base(chain));
        }
    }
    for rule in all.iter().filter_map(|item| item.get("rule")) {
        let Some((chain_id, parts)) = chain_id(rule, "chain").zip(rule["expr"].as_array()) else {
            continue;
        };
        for rule in rules(parts) {
            firewall.add_rule(&chain_id, rule);
        }
    }
}

fn chain_id(of: &Value, chain: &str) -> Option<ChainId> {
    Some(ChainId {
        tool: Tool::Nft,
        family: of["family"].as_str()?.to_owned(),
        table: of["table"].as_str()?.to_owned(),
        chain: of[chain].as_str()?.to_owned(),
    })
}

fn base(chain: &Value) -> Option<Base> {
    if chain["type"].as_str() != Some("filter") {
        return None;
    }
    let hook = match chain["hook"].as_str()? {
        "input" => Hook::Input,
        "forward" => Hook::Forward,
        _ => return None,
    };
    Some(Base {
        hook,
        accepts: chain["policy"].as_str() != Some("drop"),
    })
}

/// A rule is several where a verdict map decides.
fn rules(parts: &[Value]) -> Vec<Rule> {
    let mut rule = Rule::default();
    for part in parts {
        if let Some(of) = part.get("match") {
            rule.conditions.extend(conditions(of));
        } else if let Some(of) = part.get("vmap") {
            return of_map(&rule, of);
        } else if let Some(verdict) = verdict(part) {
            rule.verdict = verdict;
            return vec![rule];
        } else if !is_harmless(part) {
            rule.conditions.push(Condition::new(false, Is::Unknown));
            // It may be a target that decides.
            if part.get("limit").is_none() {
                rule.verdict = Verdict::Unknown;
            }
        }
    }
    vec![rule]
}

/// It decides nothing.
fn is_harmless(part: &Value) -> bool {
    const NAMES: [&str; 6] = ["counter", "log", "mangle", "comment", "set", "notrack"];
    NAMES.iter().any(|name| part.get(name).is_some())
}

fn verdict(part: &Value) -> Option<Verdict> {
    let target = |of: &Value| of["target"].as_str().map(str::to_owned);
    let part = part.as_object()?;
    let (name, of) = part.iter().next()?;
    Some(match name.as_str() {
        "accept" => Verdict::Accept,
        "drop" | "reject" => Verdict::Drop,
        "return" => Verdict::Return,
        "continue" => Verdict::None,
        "jump" => Verdict::Jump(target(of)?),
        "goto" => Verdict::Goto(target(of)?),
        _ => return None,
    })
}

fn of_map(before: &Rule, map: &Value) -> Vec<Rule> {
    let unknown = || {
        vec![Rule {
            conditions: before.conditions.clone(),
            verdict: Verdict::Unknown,
        }]
    };
    let Some(elements) = map["data"]["set"].as_array() else {
        return unknown();
    };
    let of_element = |element: &Value| {
        let pair = element.as_array()?;
        let (value, verdict_of) = (pair.first()?, pair.get(1)?);
        let mut rule = before.clone();
        rule.conditions.extend(condition(&map["key"], value, false));
        rule.verdict = verdict(verdict_of).unwrap_or(Verdict::Unknown);
        Some(rule)
    };
    elements
        .iter()
        .map(of_element)
        .collect::<Option<Vec<Rule>>>()
        .unwrap_or_else(unknown)
}

fn conditions(of: &Value) -> Vec<Condition> {
    let negated = match of["op"].as_str() {
        Some("==" | "in") => false,
        Some("!=") => true,
        _ => return vec![Condition::new(false, Is::Unknown)],
    };
    condition(&of["left"], &of["right"], negated)
}

/// What is required of `left`; a port also of the protocol.
fn condition(left: &Value, right: &Value, negated: bool) -> Vec<Condition> {
    let one = |is: Option<Is>| vec![Condition::new(negated, is.unwrap_or(Is::Unknown))];
    if let Some(key) = left["meta"]["key"].as_str() {
        return one(match key {
            "iif" | "iifname" => words(right).map(Is::Incoming),
            "oif" | "oifname" => words(right).map(Is::Outgoing),
            "l4proto" => words(right).map(Is::Protocol),
            "nfproto" => words(right).map(|words| Is::Version(words.iter().any(|w| w == "ipv6"))),
            _ => None,
        });
    }
    if left["ct"]["key"].as_str() == Some("state") {
        return one(words(right).map(Is::State));
    }
    let payload = &left["payload"];
    let Some((protocol, field)) = payload["protocol"].as_str().zip(payload["field"].as_str())
    else {
        return one(None);
    };
    match (protocol, field) {
        ("ip" | "ip6", "saddr" | "daddr") => {
            let addresses = prefixes(right);
            let mut all = one(match field {
                "saddr" => addresses.map(Is::Source),
                _ => addresses.map(Is::Destination),
            });
            all.push(Condition::new(false, Is::Version(protocol == "ip6")));
            all
        }
        ("ip", "protocol") | ("ip6", "nexthdr") => one(words(right).map(Is::Protocol)),
        ("udp" | "tcp" | "th", "dport") => {
            let mut all = one(ports(right).map(Is::DestinationPort));
            if protocol != "th" {
                let protocol = Is::Protocol(vec![protocol.to_owned()]);
                all.push(Condition::new(false, protocol));
            }
            all
        }
        ("udp" | "tcp" | "icmp" | "icmpv6" | "sctp", _) => {
            let protocol = Is::Protocol(vec![protocol.to_owned()]);
            let mut all = one(None);
            all.push(Condition::new(false, protocol));
            all
        }
        _ => one(None),
    }
}

/// One value, a list, or the elements of a set; `None`: a named set, for instance.
fn elements(of: &Value) -> Vec<&Value> {
    let set = of.get("set").unwrap_or(of);
    match set.as_array() {
        Some(all) => all.iter().collect(),
        None => vec![set],
    }
}

fn words(of: &Value) -> Option<Vec<String>> {
    let word = |value: &&Value| match value {
        Value::String(text) if !text.starts_with('@') => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    elements(of).iter().map(word).collect()
}

fn prefixes(of: &Value) -> Option<Vec<IpNet>> {
    let prefix = |value: &&Value| {
        if let Some(prefix) = value.get("prefix") {
            let address: IpAddr = prefix["addr"].as_str()?.parse().ok()?;
            let bits = prefix["len"].as_u64()?.try_into().ok()?;
            return IpNet::new(address, bits).ok();
        }
        value.as_str()?.parse::<IpAddr>().ok().map(IpNet::from)
    };
    elements(of).iter().map(prefix).collect()
}

fn ports(of: &Value) -> Option<Vec<std::ops::RangeInclusive<u16>>> {
    let number = |value: &Value| u16::try_from(value.as_u64()?).ok();
    let range = |value: &&Value| {
        if let Some(range) = value.get("range") {
            return Some(number(range.get(0)?)?..=number(range.get(1)?)?);
        }
        let port = number(value)?;
        Some(port..=port)
    };
    elements(of).iter().map(range).collect()
}
