//! What `iptables-save` and `ip6tables-save` print: the filter table.

use ipnet::IpNet;

use super::{Base, ChainId, Condition, Firewall, Hook, Is, Rule, Tool, Verdict};

pub(super) fn read(text: &str, is_ipv6: bool, firewall: &mut Firewall) {
    let family = if is_ipv6 { "ip6" } else { "ip" };
    let chain_id = |chain: &str| ChainId {
        tool: Tool::Iptables,
        family: family.to_owned(),
        table: "filter".to_owned(),
        chain: chain.to_owned(),
    };
    let mut is_filter = false;
    for line in text.lines() {
        if let Some(table) = line.strip_prefix('*') {
            is_filter = table == "filter";
        } else if !is_filter {
            continue;
        } else if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split_whitespace();
            let (name, policy) = (words.next().unwrap_or_default(), words.next());
            firewall.add(chain_id(name), base(name, policy));
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let words = words(rule);
            if let Some((chain, options)) = words.split_first() {
                firewall.add_rule(&chain_id(chain), rule_of(options));
            }
        }
    }
}

fn base(name: &str, policy: Option<&str>) -> Option<Base> {
    let hook = match name {
        "INPUT" => Hook::Input,
        "FORWARD" => Hook::Forward,
        _ => return None,
    };
    Some(Base {
        hook,
        accepts: policy != Some("DROP"),
    })
}

/// The words of a line, of which some are quoted.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut is_quoted, mut is_escaped) = (false, false);
    for c in line.chars() {
        match c {
            _ if is_escaped => {
                word.push(c);
                is_escaped = false;
            }
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            c if c.is_whitespace() && !is_quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

fn rule_of(options: &[String]) -> Rule {
    let mut rule = Rule::default();
    let mut options = options.iter().map(String::as_str);
    let mut negated = false;
    while let Some(option) = options.next() {
        if option == "!" {
            negated = true;
            continue;
        }
        let value = options.next().unwrap_or_default();
        match option {
            "-j" => rule.verdict = verdict(value),
            "-g" => rule.verdict = Verdict::Goto(value.to_owned()),
            // What a target takes follows it.
            _ if rule.verdict != Verdict::None => break,
            "-m" if MATCHES.contains(&value) => {}
            "--comment" => {}
            _ => {
                let is = is(option, value);
                let is_known = is.is_some();
                let is = is.unwrap_or(Is::Unknown);
                rule.conditions.push(Condition::new(negated, is));
                // An option of an unknown match may have any number of values.
                if !is_known {
                    rule.verdict = target(std::iter::once(value).chain(options));
                    break;
                }
            }
        }
        negated = false;
    }
    rule
}

/// The target among further options.
fn target<'a>(options: impl Iterator<Item = &'a str>) -> Verdict {
    let mut options = options.skip_while(|option| !matches!(*option, "-j" | "-g"));
    match (options.next(), options.next()) {
        (Some("-j"), Some(target)) => verdict(target),
        (Some(_), Some(chain)) => Verdict::Goto(chain.to_owned()),
        _ => Verdict::None,
    }
}

/// Modules whose conditions are understood.
const MATCHES: [&str; 6] = ["conntrack", "state", "comment", "udp", "tcp", "multiport"];

fn is(option: &str, value: &str) -> Option<Is> {
    let interface = || vec![value.replace('+', "*")];
    let prefix = || value.parse::<IpNet>().ok().map(|prefix| vec![prefix]);
    let list = || value.split(',').map(str::to_ascii_lowercase).collect();
    Some(match option {
        "-i" => Is::Incoming(interface()),
        "-o" => Is::Outgoing(interface()),
        "-s" => Is::Source(prefix()?),
        "-d" => Is::Destination(prefix()?),
        "-p" => Is::Protocol(list()),
        "--ctstate" | "--state" => Is::State(list()),
        "--dport" | "--dports" => {
            let range = |range: &str| {
                let (first, last) = range.split_once(':').unwrap_or((range, range));
                Some(first.parse().ok()?..=last.parse().ok()?)
            };
            Is::DestinationPort(value.split(',').map(range).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

fn verdict(target: &str) -> Verdict {
    match target {
        "ACCEPT" => Verdict::Accept,
        "DROP" | "REJECT" => Verdict::Drop,
        "RETURN" => Verdict::Return,
        "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS" | "SET" => Verdict::None,
        "QUEUE" | "NFQUEUE" => Verdict::Unknown,
        chain => Verdict::Jump(chain.to_owned()),
    }
}
