//! Names of servers from the DNS answers that pass (RFC 1035): which client got which address for which name.
//!
//! Only an answer to a query that has passed counts, with its number and question, from the server that was asked, to the port that
//! asked. What a client has learned is its own. Where names are resolved by a server in the client's network, the queries
//! that pass are that server's: so an address has a second entry for all clients, as long as all names say the same of it.
//! Any host can make such an entry, so that it gives the class of a flow alone, and no rule's name, unless a resolver that is
//! configured has made it. What one client can make within a time is bounded: it cannot displace the names of others
//! that are in use.

use std::{net::IpAddr, time::Duration};

use super::{
    cache::{Aged, Cache},
    names::{NAME_BYTES_MAX, Named, Names, PatternId},
};
use crate::{
    FlowKey, Ports,
    flow::{FlowSeed, Part},
};

/// Queries that wait for their answer. Ours: 800 in a second whose server does not answer.
const QUERIES_MAX: usize = 8192;
/// Ours: resolvers ask again after 5 s (`resolv.conf`), and forget the first question.
const QUERY_TIME: Duration = Duration::from_secs(10);
/// Addresses with a name.
const ADDRESSES_MAX: usize = 16_384;
/// How long an address has its name: clients use it longer than short times to live say, and not for ever. Ours.
const NAME_TIMES: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(86_400)];
/// Records of an answer that are read. Ours: 512 bytes have room for 30.
const RECORDS_MAX: usize = 64;
/// Addresses of an answer that get its name. Ours: clients try the first few.
const ANSWER_ADDRESSES_MAX: usize = 16;
/// Aliases of an answer that are compared with the patterns. Ours: resolvers follow about as many.
const ALIASES_MAX: usize = 8;
/// Labels of a name and pointers in it (RFC 1035 §4.1.4) that are followed. Ours: a name has at most 127 labels.
const PARTS_MAX: usize = 160;
/// Clients whose rate of learning is known.
const LEARNERS_MAX: usize = 1024;
/// One address in this time. Ours: with two entries of each address, one client fills the table in two minutes, and what
/// is used in that time stays. A resolver for an office of 500 learns some 20 in a second.
const LEARN_INTERVAL: Duration = Duration::from_micros(1_000_000 / 64);
/// So much earlier than with even intervals: 512 addresses at once.
const LEARN_BURST: Duration = Duration::from_secs(8);

const HEADER_BYTES: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;
const CLASS_IN: u16 = 1;
pub(super) const PORT: u16 = 53;

/// What DNS has said.
pub(super) struct Resolved {
    queries: Cache<Query>,
    addresses: Cache<Address>,
    learners: Cache<Learner>,
    resolvers: Vec<IpAddr>,
}

struct Query {
    asked: Duration,
    /// A keyed hash of the question.
    question: u64,
}

struct Address {
    named: Named,
    /// Names say different things of it.
    is_ambiguous: bool,
    ends: Duration,
    /// When it was learned or a flow began with it.
    used: Duration,
}

/// A client whose answers have passed.
struct Learner {
    /// When the next address would be due, with even intervals.
    next: Duration,
}

/// For which clients an address has a name.
#[derive(Clone, Copy)]
enum Clients {
    One(IpAddr),
    /// All, as a configured resolver has said.
    OfResolvers,
    /// All, as any host has said.
    All,
}

/// A UDP payload between a client and port 53.
#[derive(Clone, Copy)]
pub(super) struct Exchange<'a> {
    pub(super) client: IpAddr,
    pub(super) client_port: u16,
    pub(super) server: IpAddr,
    pub(super) payload: &'a [u8],
}

/// A message that is read; each part is `None` where the message is wrong.
struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl Aged for Query {
    fn age_rank(&self) -> u64 {
        self.asked.as_nanos() as u64
    }
}

impl Aged for Address {
    fn age_rank(&self) -> u64 {
        self.used.as_nanos() as u64
    }
}

impl Aged for Learner {
    fn age_rank(&self) -> u64 {
        self.next.as_nanos() as u64
    }
}

impl Resolved {
    /// `resolvers`: hosts whose answers give names for all clients.
    pub(super) fn new(resolvers: &[IpAddr]) -> Self {
        Self {
            queries: Cache::new(QUERIES_MAX),
            addresses: Cache::new(ADDRESSES_MAX),
            learners: Cache::new(LEARNERS_MAX),
            resolvers: resolvers.to_vec(),
        }
    }

    /// Goes on with other patterns, of which `number` gives the one in place of an old one.
    pub(super) fn follow(
        &mut self,
        resolvers: &[IpAddr],
        number: impl Fn(PatternId) -> Option<PatternId>,
    ) {
        if !self.resolvers.iter().all(|of| resolvers.contains(of)) {
            self.addresses.clear();
        }
        self.resolvers = resolvers.to_vec();
        self.addresses.retain(|address| {
            address.named.rule = address.named.rule.and_then(&number);
            true
        });
    }

    pub(super) fn on_query(&mut self, now: Duration, seed: &FlowSeed, sent: &Exchange<'_>) {
        let mut reader = Reader::new(sent.payload);
        let (Some([id, flags, questions, ..]), Some(name)) = (reader.header(), reader.name())
        else {
            return;
        };
        if flags & 0x8000 != 0 || questions != 1 {
            return;
        }
        let query = Query {
            asked: now,
            question: hash_of_name(seed, &name),
        };
        self.queries.insert(query_key(seed, sent, id), query);
    }

    pub(super) fn on_answer(
        &mut self,
        now: Duration,
        seed: &FlowSeed,
        names: &Names,
        got: &Exchange<'_>,
    ) {
        let mut reader = Reader::new(got.payload);
        let (Some([id, flags, 1, answers, ..]), Some(name)) = (reader.header(), reader.name())
        else {
            return;
        };
        let (is_answer, is_error) = (flags & 0x8000 != 0, flags & 0xf != 0);
        let key = query_key(seed, got, id);
        let Some(query) = self.queries.get_mut(key) else {
            return;
        };
        let is_late = now.saturating_sub(query.asked) > QUERY_TIME;
        if !is_answer || query.question != hash_of_name(seed, &name) {
            return;
        }
        self.queries.remove(key);
        if is_error || is_late || reader.skip(4).is_none() {
            return;
        }
        let (named, addresses) = reader.addresses(answers, names, &name);
        let of_all = match self.resolvers.contains(&got.client) {
            true => Clients::OfResolvers,
            false => Clients::All,
        };
        for (address, ttl) in addresses {
            if !self.may_learn(now, seed, got.client) {
                break;
            }
            let ends = now + ttl.clamp(NAME_TIMES[0], NAME_TIMES[1]);
            for clients in [Clients::One(got.client), of_all] {
                self.learn(now, seed, clients, address, named, ends);
            }
        }
    }

    /// What the name says by which a client knows an address.
    pub(super) fn named(
        &mut self,
        now: Duration,
        seed: &FlowSeed,
        client: IpAddr,
        address: IpAddr,
    ) -> Option<Named> {
        for clients in [Clients::One(client), Clients::OfResolvers, Clients::All] {
            let key = address_key(seed, clients, address);
            if let Some(found) = self.addresses.get_mut(key)
                && found.ends > now
            {
                found.used = now;
                return (!found.is_ambiguous && !found.named.is_nothing()).then_some(found.named);
            }
        }
        None
    }

    /// Open queries, addresses and clients.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        let (queries, addresses) = (self.queries.values(), self.addresses.values());
        let learners = self.learners.values();
        [queries.count(), addresses.count(), learners.count()]
    }

    /// Whether a client may have another address with a name, which it then has.
    fn may_learn(&mut self, now: Duration, seed: &FlowSeed, client: IpAddr) -> bool {
        let key = learner_key(seed, client);
        let before = self.learners.get_mut(key).map(|learner| learner.next);
        let next = before.unwrap_or_default().max(now) + LEARN_INTERVAL;
        let may = next <= now + LEARN_BURST;
        if may {
            self.learners.insert(key, Learner { next });
        }
        may
    }

    /// The newest name counts for a client. For all clients it counts if it says what the one before said.
    fn learn(
        &mut self,
        now: Duration,
        seed: &FlowSeed,
        clients: Clients,
        address: IpAddr,
        mut named: Named,
        ends: Duration,
    ) {
        if matches!(clients, Clients::All) {
            named.rule = None;
        }
        let key = address_key(seed, clients, address);
        let before = self.addresses.get_mut(key).filter(|of| of.ends > now);
        let differs = before.is_some_and(|of| of.is_ambiguous || !of.named.is_like(&named));
        let address = Address {
            named,
            is_ambiguous: differs && !matches!(clients, Clients::One(_)),
            ends,
            used: now,
        };
        self.addresses.insert(key, address);
    }
}

enum Record {
    Address(IpAddr, Duration),
    /// Where in the message its name begins.
    Alias(usize),
    Other,
}

impl<'a> Reader<'a> {
    fn new(message: &'a [u8]) -> Self {
        Self { message, at: 0 }
    }

    fn skip(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let found = self.message.get(self.at..self.at.checked_add(bytes)?)?;
        self.at += bytes;
        Some(found)
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.skip(2)?;
        Some(u16::from_be_bytes(bytes.try_into().ok()?))
    }

    /// Number, flags, and the counts of questions, answers, authorities and others.
    fn header(&mut self) -> Option<[u16; 6]> {
        let mut fields = [0; HEADER_BYTES / 2];
        for field in &mut fields {
            *field = self.u16()?;
        }
        Some(fields)
    }

    /// In lower case, without the last dot.
    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        let mut at = self.at;
        let mut end = None;
        for _ in 0..PARTS_MAX {
            let length = *self.message.get(at)?;
            match length >> 6 {
                0 if length == 0 => {
                    self.at = end.unwrap_or(at + 1);
                    return Some(name);
                }
                0 => {
                    let label = self.message.get(at + 1..at + 1 + usize::from(length))?;
                    if !name.is_empty() {
                        name.push('.');
                    }
                    // Other bytes are in no pattern.
                    let text =
                        label
                            .iter()
                            .map(|byte| match byte.is_ascii_graphic() && *byte != b'.' {
                                true => char::from(byte.to_ascii_lowercase()),
                                false => '?',
                            });
                    name.extend(text);
                    if name.len() > NAME_BYTES_MAX {
                        return None;
                    }
                    at += 1 + usize::from(length);
                }
                3 => {
                    let low = *self.message.get(at + 1)?;
                    let to = usize::from(length & 0x3f) << 8 | usize::from(low);
                    end = end.or(Some(at + 2));
                    // Only back, so that it ends.
                    if to >= at {
                        return None;
                    }
                    at = to;
                }
                _ => return None,
            }
        }
        None
    }

    /// What the question's name or an alias says, and the addresses with their times to live.
    fn addresses(
        &mut self,
        answers: u16,
        names: &Names,
        question: &str,
    ) -> (Named, Vec<(IpAddr, Duration)>) {
        let mut named = names.named(question);
        let mut addresses = Vec::new();
        let mut aliases = 0;
        for _ in 0..usize::from(answers).min(RECORDS_MAX) {
            let Some(record) = self.record() else {
                break;
            };
            match record {
                Record::Alias(at) if named.class.is_none() && aliases < ALIASES_MAX => {
                    aliases += 1;
                    let message = self.message;
                    let alias = Reader { message, at }.name();
                    named.class = alias.and_then(|alias| names.named(&alias).class);
                }
                Record::Address(address, ttl) if addresses.len() < ANSWER_ADDRESSES_MAX => {
                    addresses.push((address, ttl));
                }
                Record::Alias(_) | Record::Address(..) | Record::Other => {}
            }
        }
        (named, addresses)
    }

    /// Passes a name without reading it.
    fn skip_name(&mut self) -> Option<()> {
        for _ in 0..PARTS_MAX {
            let length = *self.skip(1)?.first()?;
            match length >> 6 {
                0 if length == 0 => return Some(()),
                0 => self.skip(length.into())?,
                3 => return self.skip(1).map(|_| ()),
                _ => return None,
            };
        }
        None
    }

    fn record(&mut self) -> Option<Record> {
        self.skip_name()?;
        let (kind, class) = (self.u16()?, self.u16()?);
        let ttl = u32::from_be_bytes(self.skip(4)?.try_into().ok()?);
        let length = usize::from(self.u16()?);
        let start = self.at;
        let data = self.skip(length)?;
        let ttl = Duration::from_secs(ttl.into());
        Some(match (class, kind) {
            (CLASS_IN, TYPE_A) => {
                let octets: [u8; 4] = data.try_into().ok()?;
                Record::Address(octets.into(), ttl)
            }
            (CLASS_IN, TYPE_AAAA) => {
                let octets: [u8; 16] = data.try_into().ok()?;
                Record::Address(octets.into(), ttl)
            }
            (CLASS_IN, TYPE_CNAME) => Record::Alias(start),
            _ => Record::Other,
        })
    }
}

fn query_key(seed: &FlowSeed, of: &Exchange<'_>, id: u16) -> u64 {
    seed.number(&FlowKey {
        source: of.client,
        destination: of.server,
        protocol: 0,
        part: Part::Ports(Ports {
            source: of.client_port,
            destination: id,
        }),
    })
}

fn address_key(seed: &FlowSeed, clients: Clients, address: IpAddr) -> u64 {
    let (source, protocol) = match clients {
        Clients::One(client) => (client, 1),
        Clients::All => (address, 2),
        Clients::OfResolvers => (address, 3),
    };
    seed.number(&FlowKey {
        source,
        destination: address,
        protocol,
        part: Part::All,
    })
}

fn learner_key(seed: &FlowSeed, client: IpAddr) -> u64 {
    seed.number(&FlowKey {
        source: client,
        destination: client,
        protocol: 4,
        part: Part::All,
    })
}

fn hash_of_name(seed: &FlowSeed, name: &str) -> u64 {
    seed.number_of_bytes(name.as_bytes())
}
