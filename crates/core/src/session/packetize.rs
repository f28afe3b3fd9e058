//! Writes messages, streams and datagrams into packets, as much of each as there is room for.

use keiro_units::Instant;

use super::{
    Session,
    path::Path,
    recovery::{SentFrame, SentFrames},
    send_queues::SendItem,
};
use crate::{
    config::DeliveryClass,
    id::{PathId, StreamId, TenantId},
    wire::{Frame, varint_len},
};

/// A part of a message shorter than this is left for the next packet, unless it is the last.
const PART_MIN: usize = 32;
impl Session {
    /// As many of a tenant's items as the packet has room for: thin ones of the class that is
    /// `gathered`, or plain ones.
    pub(super) fn write_items(
        &mut self,
        now: Instant,
        (id, tenant): (PathId, TenantId),
        gathered: Option<DeliveryClass>,
        end: usize,
        out: &mut Vec<u8>,
        frames: &mut SentFrames,
    ) {
        while out.len() < end {
            let first = match gathered {
                None => self.queues.first(id, tenant, false).map(|(item, _)| item),
                Some(class) => self.queues.first_coalescing(id, tenant, class),
            };
            let written = match first {
                Some(SendItem::Message(message)) => self.write_part(id, message, end, out, frames),
                Some(SendItem::Datagram(datagram)) => {
                    self.write_datagram(id, datagram, end, out, frames)
                }
                Some(SendItem::Stream(stream)) => {
                    self.write_stream_part(now, id, stream, end, out, frames)
                }
                None => return,
            };
            if !written {
                return;
            }
        }
    }

    /// The next part of a message; `false` if the packet has no room for it.
    fn write_part(
        &mut self,
        path: PathId,
        id: u64,
        end: usize,
        out: &mut Vec<u8>,
        frames: &mut SentFrames,
    ) -> bool {
        let room = end - out.len();
        // Type, number, application, total, offset, length: four bytes bound every length here.
        let head_max = 1 + 8 + 4 + 4 + 4 + 4;
        if room < head_max + 1 {
            return false;
        }
        let Some(part) = self.queues.next_part(id, room - head_max) else {
            return false;
        };
        let len = part.end - part.start;
        let is_last = self
            .queues
            .next_part(id, usize::MAX >> 1)
            .is_some_and(|p| p.end == part.end);
        if len < PART_MIN && !is_last {
            return false;
        }
        let wire_id = self.queues.begin(id);
        // The exact head is shorter than the bound: use what is left.
        let message = &self.queues.messages[&id];
        let total = message.body.len();
        let head = 1
            + varint_len(wire_id)
            + 4
            + varint_len(total as u64)
            + varint_len(part.start as u64)
            + varint_len((room - 1) as u64);
        let part = self.queues.next_part(id, room - head).unwrap_or(part);
        let message = &self.queues.messages[&id];
        let data = &message.body[part.start..part.end];
        let app = message.app;
        Frame::Message {
            id: wire_id,
            app,
            total,
            offset: part.start,
            data,
        }
        .encode(out);
        self.queues.on_part_sent(path, id, part);
        if part.repair
            && let Some(path) = self.paths.get_mut(path)
        {
            path.on_retransmitted((part.end - part.start) as u64);
        }
        frames.push(SentFrame::Message {
            message: id,
            start: part.start as u32,
            end: part.end as u32,
        });
        true
    }

    /// What a stream has to send; `false` if the packet has no room for it.
    fn write_stream_part(
        &mut self,
        now: Instant,
        path: PathId,
        id: StreamId,
        end: usize,
        out: &mut Vec<u8>,
        frames: &mut SentFrames,
    ) -> bool {
        let Some(stream) = self.queues.streams.get_mut(&id) else {
            return false;
        };
        let wire = id.to_wire();
        let opens = stream.opens();
        if opens && out.len() + Frame::STREAM_OPEN_LEN_MAX > end {
            return false;
        }
        if opens {
            let (app, target) = (stream.app, stream.target);
            Frame::StreamOpen {
                id: wire,
                app,
                target,
            }
            .encode(out);
            frames.push(SentFrame::StreamOpen(id));
            stream.on_open_sent();
        }
        let room = end - out.len();
        let next = stream.next_part(1);
        // Type and length, the latter in two bytes for all that fits into a packet of usual size.
        let head = next.map_or(0, |next| 1 + varint_len(wire) + varint_len(next.start) + 2);
        let head = head + if room > 1 << 14 { 2 } else { 0 };
        let part = room.checked_sub(head).and_then(|room| {
            let part = stream.next_part(room.max(1) as u64)?;
            let len = (part.end - part.start) as usize;
            let whole = stream.next_part(PART_MIN as u64)?;
            // No scraps: what does not fit is left for the next packet.
            (len <= room && (len >= PART_MIN || whole.end <= part.end)).then_some(part)
        });
        let Some(part) = part else {
            if opens {
                // What it has to say follows in the next packet.
                self.queues.on_stream_opened(now, path, id);
            }
            return opens;
        };
        let (first, second) = stream.bytes(part);
        Frame::encode_stream(out, (wire, part.start, part.fin), first, second);
        self.queues.on_stream_part_sent(now, path, id, part);
        let bytes = part.end - part.start;
        if part.repair
            && let Some(path) = self.paths.get_mut(path)
        {
            path.on_retransmitted(bytes);
        }
        frames.push(SentFrame::Stream {
            stream: id,
            start: part.start,
            end: part.end,
            fin: part.fin,
        });
        self.signal_writable(id);
        true
    }

    /// A datagram, or the next fragment of a long one; `false` if the packet has no room for it.
    fn write_datagram(
        &mut self,
        path: PathId,
        id: u64,
        end: usize,
        out: &mut Vec<u8>,
        frames: &mut SentFrames,
    ) -> bool {
        let Some(datagram) = self.queues.datagrams.get(&id) else {
            return false;
        };
        let room = end - out.len();
        let (app, flow, reply) = (datagram.app, datagram.flow, datagram.reply);
        let total = datagram.data.len();
        let head = 1 + 4 + varint_len(u64::from(flow.0) << 1 | 1) + varint_len(total as u64);
        if datagram.fragment_id.is_none() && head + total <= room {
            let data = &datagram.data;
            Frame::Datagram {
                app,
                flow: flow.0,
                reply,
                data,
            }
            .encode(out);
            self.queues.remove_datagram(id);
            frames.push(SentFrame::Datagram { app });
            return true;
        }
        let Some(payload_max) = self.paths.get(path).map(Path::udp_payload_max) else {
            return false;
        };
        let whole_room = Path::clear_text_max(payload_max);
        let fragment_head = 1 + 8 + 4 + 4 + 4 + 8 + 4;
        let fits_alone = datagram.fragment_id.is_none() && head + total <= whole_room;
        if fits_alone || room < fragment_head + PART_MIN {
            return false;
        }
        let number = datagram.fragment_id.unwrap_or(self.queues.next_fragment_id);
        if datagram.fragment_id.is_none() {
            self.queues.next_fragment_id += 1;
        }
        let Some(datagram) = self.queues.datagrams.get_mut(&id) else {
            return false;
        };
        datagram.fragment_id = Some(number);
        let offset = datagram.offset;
        let len = (total - offset).min(room - fragment_head);
        let data = &datagram.data[offset..offset + len];
        Frame::Fragment {
            id: number,
            total,
            offset,
            app,
            flow: flow.0,
            reply,
            data,
        }
        .encode(out);
        self.queues.on_fragment_sent(path, id, len);
        if offset + len == total {
            self.queues.remove_datagram(id);
        }
        frames.push(SentFrame::Datagram { app });
        true
    }
}
