//! Reads frames. What the peer sends is checked here as far as one frame shows it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::*;
use crate::{
    id::TenantId,
    tenant::PacketAddress,
    wire::{
        DATAGRAM_LEN_MAX, MESSAGE_LEN_MAX, PACKET_PARTS_MAX, Reader, SPLIT_PACKET_MAX, VARINT_MAX,
        report::COPIES_MAX,
    },
};

impl<'a> Frame<'a> {
    /// The next frame, or `None` at the end of the packet.
    pub fn decode(reader: &mut Reader<'a>) -> Result<Option<Self>, FrameError> {
        if reader.is_empty() {
            return Ok(None);
        }
        let kind = field(reader.varint())?;
        let frame = match kind {
            PADDING => Some(Self::Padding),
            PING => Some(Self::Ping),
            ACK => return ack::decode(reader).map(Some),
            PATH_CHALLENGE => reader.u64().map(Self::PathChallenge),
            PATH_RESPONSE => reader.u64().map(Self::PathResponse),
            DATAGRAM => decode_datagram(reader),
            FRAGMENT => return decode_fragment(reader).map(Some),
            MESSAGE => return decode_message(reader).map(Some),
            MESSAGE_DONE => decode_done(reader),
            MESSAGE_DROP => decode_drop(reader),
            CREDIT => reader.varint().map(Self::Credit),
            CLOSE => Some(Self::Close),
            STREAM_OPEN => return decode_stream_open(reader).map(Some),
            STREAM | STREAM_FIN => return decode_stream(kind, reader).map(Some),
            STREAM_CREDIT => decode_stream_credit(reader),
            STREAM_RESET => decode_stream_reset(reader),
            STREAM_RETURN => decode_stream_return(reader),
            AGGREGATE => return decode_aggregate(reader).map(Some),
            PACKET | PACKET_MARKED => return decode_packet(kind, reader).map(Some),
            ORDERED_PACKET | ORDERED_PACKET_MARKED => {
                return decode_ordered_packet(kind, reader).map(Some);
            }
            TRAIN | TRAIN_REPORT | FEEDBACK | PROTECTED | PARITY | UNKNOWN_TENANT | REFUSAL
            | PREFIX_MISMATCH | PROBE_LIMIT | PACKET_PART | TENANT_LIMITED | TENANT_UNIT
            | PATH_TERMS | STRANGER_DROPS => {
                return decode_sized(kind, reader).map(Some);
            }
            SKIPPABLE.. => {
                let len = field(reader.length(usize::MAX))?;
                reader.bytes(len).map(|_| Self::Unknown(kind))
            }
            _ => return Err(FrameError::UnknownType),
        };
        frame.ok_or(FrameError::Truncated).map(Some)
    }
}

fn read_flow(reader: &mut Reader<'_>) -> Option<(u32, bool)> {
    let value = reader.varint()?;
    Some((u32::try_from(value >> 1).ok()?, value & 1 == 1))
}

fn decode_datagram<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let app = AppId(reader.u32()?);
    let (flow, reply) = read_flow(reader)?;
    let len = reader.length(DATAGRAM_LEN_MAX)?;
    let data = reader.bytes(len)?;
    Some(Frame::Datagram {
        app,
        flow,
        reply,
        data,
    })
}

fn decode_fragment<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let id = field(reader.varint())?;
    let total = field(reader.varint())?;
    let offset = field(reader.varint())?;
    let app = AppId(field(reader.u32())?);
    let (flow, reply) = field(read_flow(reader))?;
    let len = field(reader.length(DATAGRAM_LEN_MAX))?;
    let data = field(reader.bytes(len))?;
    let (total, offset) = part_of(total, offset, data.len(), DATAGRAM_LEN_MAX)?;
    Ok(Frame::Fragment {
        id,
        total,
        offset,
        app,
        flow,
        reply,
        data,
    })
}

fn decode_message<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let id = field(reader.varint())?;
    let app = AppId(field(reader.u32())?);
    let total = field(reader.varint())?;
    let offset = field(reader.varint())?;
    let len = field(reader.length(MESSAGE_LEN_MAX))?;
    let data = field(reader.bytes(len))?;
    let (total, offset) = part_of(total, offset, data.len(), MESSAGE_LEN_MAX)?;
    Ok(Frame::Message {
        id,
        app,
        total,
        offset,
        data,
    })
}

/// A part must be non-empty and lie inside a whole of at most `max` bytes.
fn part_of(total: u64, offset: u64, len: usize, max: usize) -> Result<(usize, usize), FrameError> {
    let end = offset.checked_add(len as u64).ok_or(FrameError::Range)?;
    if len == 0 || end > total || total > max as u64 {
        return Err(FrameError::Range);
    }
    Ok((total as usize, offset as usize))
}

fn decode_stream_open<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let id = field(reader.varint())?;
    let app = AppId(field(reader.u32())?);
    let target = match field(reader.u8())? {
        0 => None,
        4 => {
            let ip = read_array::<4>(reader)?;
            let port = u16::from_be_bytes(read_array(reader)?);
            Some(SocketAddr::from((ip, port)))
        }
        6 => {
            // The kernel reaches an IPv4 address so, too, and who decides what may be reached must see it.
            let ip = Ipv6Addr::from(read_array::<16>(reader)?).to_canonical();
            let port = u16::from_be_bytes(read_array(reader)?);
            Some(SocketAddr::new(ip, port))
        }
        _ => return Err(FrameError::Range),
    };
    if id & 1 == 1 {
        return Err(FrameError::Range);
    }
    Ok(Frame::StreamOpen { id, app, target })
}

fn read_array<const N: usize>(reader: &mut Reader<'_>) -> Result<[u8; N], FrameError> {
    let bytes = field(reader.bytes(N))?;
    bytes.try_into().map_err(|_| FrameError::Truncated)
}

fn decode_stream<'a>(kind: u64, reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let id = field(reader.varint())?;
    let offset = field(reader.varint())?;
    let len = field(reader.length(DATAGRAM_LEN_MAX))?;
    let data = field(reader.bytes(len))?;
    let fin = kind == STREAM_FIN;
    let ends_beyond = offset + data.len() as u64 > VARINT_MAX;
    if ends_beyond || data.is_empty() && !fin {
        return Err(FrameError::Range);
    }
    Ok(Frame::Stream {
        id,
        offset,
        fin,
        data,
    })
}

fn decode_aggregate<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let path = field(reader.u8())?;
    let number = field(reader.varint())?;
    let count = field(reader.u8())?;
    let index = field(reader.u8())?;
    if index >= count || usize::from(count) > COPIES_MAX {
        return Err(FrameError::Range);
    }
    Ok(Frame::Aggregate {
        path,
        number,
        index,
        count,
    })
}

fn decode_packet<'a>(kind: u64, reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let tenant = field(reader.varint())?;
    let tenant = u32::try_from(tenant).map_err(|_| FrameError::Range)?;
    let len = field(reader.length(DATAGRAM_LEN_MAX))?;
    let data = field(reader.bytes(len))?;
    Ok(Frame::Packet {
        tenant,
        marked: kind == PACKET_MARKED,
        data,
    })
}

fn decode_ordered_packet<'a>(kind: u64, reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let tenant = field(reader.varint())?;
    let tenant = u32::try_from(tenant).map_err(|_| FrameError::Range)?;
    let flow = below(reader, u64::from(PacketOrder::FLOW_END))?;
    let number = below(reader, u64::from(PacketOrder::NUMBER_END))?;
    let hold_ms = below(reader, u64::from(PacketOrder::HOLD_MS_MAX) + 1)?;
    let paths = below(reader, 1 << PacketOrder::PATHS_END)?;
    let len = field(reader.length(DATAGRAM_LEN_MAX))?;
    let data = field(reader.bytes(len))?;
    Ok(Frame::OrderedPacket {
        tenant,
        order: PacketOrder {
            flow,
            number,
            hold_ms: hold_ms as u16,
            paths,
        },
        marked: kind == ORDERED_PACKET_MARKED,
        data,
    })
}

/// A number below `end`, which is at most 2^32.
fn below(reader: &mut Reader<'_>, end: u64) -> Result<u32, FrameError> {
    let value = field(reader.varint())?;
    match value < end {
        true => Ok(value as u32),
        false => Err(FrameError::Range),
    }
}

fn decode_stream_credit<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let granted = reader.varint()?;
    Some(Frame::StreamCredit { id, granted })
}

fn decode_stream_return<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let returned = reader.varint()?;
    Some(Frame::StreamReturn { id, returned })
}

fn decode_stream_reset<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let reason = ResetReason::from_byte(reader.u8()?);
    Some(Frame::StreamReset { id, reason })
}

/// Frames with a length; what follows the known fields is a later version's.
fn decode_sized<'a>(kind: u64, reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let len = field(reader.length(usize::MAX))?;
    let body = field(reader.bytes(len))?;
    let mut reader = Reader::new(body);
    match kind {
        TRAIN => decode_train(&mut reader),
        TRAIN_REPORT => TrainReport::decode(&mut reader).map(Frame::TrainReport),
        PROTECTED => decode_protected(&mut reader),
        PARITY => parity::decode(&mut reader).map(Frame::Parity),
        UNKNOWN_TENANT => decode_unknown_tenant(&mut reader),
        PREFIX_MISMATCH => decode_prefix_mismatch(&mut reader),
        PROBE_LIMIT => {
            let limit = field(reader.varint())?;
            Ok(Frame::ProbeLimit(
                Some(limit).filter(|limit| *limit < VARINT_MAX),
            ))
        }
        PATH_TERMS => decode_path_terms(&mut reader).map(Frame::PathTerms),
        PACKET_PART => decode_packet_part(&mut reader),
        TENANT_LIMITED => {
            let tenant = u32::try_from(field(reader.varint())?);
            tenant
                .map(Frame::TenantLimited)
                .map_err(|_| FrameError::Range)
        }
        TENANT_UNIT => field(reader.varint()).map(Frame::TenantUnit),
        STRANGER_DROPS => Ok(Frame::StrangerDrops {
            path: field(reader.u8())?,
            packets: field(reader.varint())?,
        }),
        REFUSAL => field(reader.u8()).map(|byte| Frame::Refusal(RefusalCause::from_byte(byte))),
        _ => Feedback::decode(&mut reader).map(Frame::Feedback),
    }
}

/// Bits that this version does not know say nothing.
fn decode_path_terms(reader: &mut Reader<'_>) -> Result<PathTerms, FrameError> {
    let flags = field(reader.varint())?;
    let cost = field(reader.varint())?;
    Ok(PathTerms {
        role: match flags & TERMS_BACKUP {
            0 => PathRole::Primary,
            _ => PathRole::Backup,
        },
        cost: CostPerGb::from_micros(cost),
        is_spent: flags & TERMS_SPENT != 0,
    })
}

fn decode_protected<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let path = field(reader.u8())?;
    let number = field(reader.varint())?;
    let place = field(reader.u8())?;
    if place >= GROUP_MAX || u64::from(place) > number {
        return Err(FrameError::Range);
    }
    Ok(Frame::Protected {
        path,
        number,
        place,
    })
}

fn decode_unknown_tenant<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let tenant = field(reader.varint())?;
    let packets = field(reader.varint())?;
    let tenant = u32::try_from(tenant).map_err(|_| FrameError::Range)?;
    Ok(Frame::UnknownTenant { tenant, packets })
}

fn decode_prefix_mismatch<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let tenant = field(reader.varint())?;
    let tenant = u32::try_from(tenant).map_err(|_| FrameError::Range)?;
    let packets = field(reader.varint())?;
    let of_field = field(reader.u8())?;
    let address = match field(reader.u8())? {
        4 => IpAddr::from(field(reader.u32())?.to_be_bytes()),
        6 => {
            let (high, low) = (field(reader.u64())?, field(reader.u64())?);
            IpAddr::from((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
        }
        // A later version's.
        _ => return Ok(Frame::Unknown(PREFIX_MISMATCH)),
    };
    let address = match of_field {
        0 => PacketAddress::Source(address),
        1 => PacketAddress::Destination(address),
        _ => return Ok(Frame::Unknown(PREFIX_MISMATCH)),
    };
    Ok(Frame::PrefixMismatch(PrefixMismatch {
        tenant: TenantId(tenant),
        address,
        packets,
    }))
}

fn decode_packet_part<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let tenant = field(reader.varint())?;
    let tenant = u32::try_from(tenant).map_err(|_| FrameError::Range)?;
    let number = field(reader.varint())?;
    let count = field(reader.u8())?;
    let index = field(reader.u8())?;
    let marked = field(reader.u8())?;
    let data = reader.rest();
    let is_sound = (2..=PACKET_PARTS_MAX).contains(&count)
        && index < count
        && marked <= 1
        && (1..SPLIT_PACKET_MAX).contains(&data.len());
    if !is_sound {
        return Err(FrameError::Range);
    }
    Ok(Frame::PacketPart {
        tenant,
        number,
        count,
        index,
        marked: marked == 1,
        data,
    })
}

fn decode_train<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let id = field(reader.varint())?;
    let index = field(reader.u8())?;
    let count = field(reader.u8())?;
    if index >= count {
        return Err(FrameError::Range);
    }
    Ok(Frame::Train { id, index, count })
}

fn decode_done<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let status = MessageStatus::from_byte(reader.u8()?);
    let whole_at = reader.u32()?;
    Some(Frame::MessageDone {
        id,
        status,
        whole_at,
    })
}

fn decode_drop<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let total = reader.length(MESSAGE_LEN_MAX)?;
    Some(Frame::MessageDrop { id, total })
}
