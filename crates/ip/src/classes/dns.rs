//! Names of servers from the DNS answers that pass (RFC 1035): which client got which address for which name.
//!
//! Only an answer to a query that has passed counts, with its number and question, from the server that was asked, to the port that
//! asked. What a client has learned is its own. Where names are resolved by a server in the client's network, the queries
//! that pass are that server's: so an address has a second entry for all clients, as long as all names say the same of it.

use std::{net::IpAddr, time::Duration};

use super::{
    cache::{Aged, Cache},
    names::{NAME_BYTES_MAX, Named, Names},
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
/// Labels of a name and pointers in it (RFC 1035 §4.1.4) that are followed. Ours: a name has at most 127 labels.
const PARTS_MAX: usize = 160;

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
        self.ends.as_nanos() as u64
    }
}

impl Resolved {
    pub(super) fn new() -> Self {
        Self {
            queries: Cache::new(QUERIES_MAX),
            addresses: Cache::new(ADDRESSES_MAX),
        }
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
        let mut named = names.named(&name);
        let mut addresses = Vec::new();
        for _ in 0..usize::from(answers).min(RECORDS_MAX) {
            let Some(record) = reader.record() else {
                break;
            };
            match record {
                Record::Alias(alias) if named.class.is_none() => {
                    named.class = names.named(&alias).class;
                }
                Record::Address(address, ttl) => addresses.push((address, ttl)),
                Record::Alias(_) | Record::Other => {}
            }
        }
        for (address, ttl) in addresses {
            let ends = now + ttl.clamp(NAME_TIMES[0], NAME_TIMES[1]);
            self.learn(
                now,
                address_key(seed, Some(got.client), address),
                named,
                ends,
                false,
            );
            self.learn(now, address_key(seed, None, address), named, ends, true);
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
        for client in [Some(client), None] {
            if let Some(found) = self.addresses.get_mut(address_key(seed, client, address))
                && found.ends > now
            {
                return (!found.is_ambiguous && !found.named.is_nothing()).then_some(found.named);
            }
        }
        None
    }

    /// The newest name counts for a client. For all clients it counts if it says what the one before said.
    fn learn(&mut self, now: Duration, key: u64, named: Named, ends: Duration, of_all: bool) {
        let before = self.addresses.get_mut(key).filter(|of| of.ends > now);
        let is_ambiguous = of_all && before.is_some_and(|of| of.is_ambiguous || of.named != named);
        let address = Address {
            named,
            is_ambiguous,
            ends,
        };
        self.addresses.insert(key, address);
    }
}

enum Record {
    Address(IpAddr, Duration),
    Alias(String),
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

    fn record(&mut self) -> Option<Record> {
        self.name()?;
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
            (CLASS_IN, TYPE_CNAME) => {
                let message = self.message;
                Record::Alias(Reader { message, at: start }.name()?)
            }
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

/// `client`: `None` for all.
fn address_key(seed: &FlowSeed, client: Option<IpAddr>, address: IpAddr) -> u64 {
    seed.number(&FlowKey {
        source: client.unwrap_or(address),
        destination: address,
        protocol: 1 + u8::from(client.is_none()),
        part: Part::All,
    })
}

fn hash_of_name(seed: &FlowSeed, name: &str) -> u64 {
    seed.number_of_bytes(name.as_bytes())
}
