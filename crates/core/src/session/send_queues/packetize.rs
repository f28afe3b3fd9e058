//! Writes messages, streams and datagrams into packets, as much of each as there is room for.

use keiro_units::Instant;

use super::{SendQueues, ready::SendItem};
use crate::{
    config::DeliveryClass,
    id::{AppId, PathId, StreamId, TenantId},
    session::sent_frames::{SentFrame, SentFrames},
    wire::{Frame, StreamHead, varint_len},
};

/// A part of a message shorter than this is left for the next packet, unless it is the last.
const PART_MIN: usize = 32;
/// The longest head of a frame inside an aggregate.
pub(crate) const CONTENT_HEAD_MAX: usize = 20;

/// The clear text of a packet that is being written.
#[derive(Debug)]
pub(crate) struct FrameBuf<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    /// Length that `out` may have.
    pub(crate) end: usize,
    /// Gets what is to be known when the packet is acknowledged or lost.
    pub(crate) frames: &'a mut SentFrames,
}

impl FrameBuf<'_> {
    fn room(&self) -> usize {
        self.end.saturating_sub(self.out.len())
    }
}

/// Which items a packet takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemSelection {
    pub(crate) path: PathId,
    pub(crate) tenant: TenantId,
    /// Items of this class that are to be coalesced; `None`: items that are not.
    pub(crate) coalescing: Option<DeliveryClass>,
    /// Clear text of the longest packet of the path.
    pub(crate) clear_text_max: usize,
}

/// What was written into a packet.
#[derive(Debug, Default)]
pub(crate) struct WrittenItems {
    pub(crate) retransmitted_bytes: u64,
    /// Streams whose drivers were refused bytes and may write again.
    pub(crate) writable: Vec<WritableStream>,
}

/// A stream whose driver may write again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WritableStream {
    pub(crate) app: AppId,
    pub(crate) stream: StreamId,
}

impl SendQueues {
    /// Writes as many items as there is room for.
    pub(crate) fn write_items(
        &mut self,
        now: Instant,
        selection: ItemSelection,
        buf: &mut FrameBuf<'_>,
    ) -> WrittenItems {
        let mut written = WrittenItems::default();
        let ItemSelection { path, tenant, .. } = selection;
        while buf.room() > 0 {
            let first = match selection.coalescing {
                None => self.first(path, tenant, false).map(|(item, _)| item),
                Some(class) => self.first_coalescing(path, tenant, class),
            };
            let is_written = match first {
                Some(SendItem::Message(id)) => self.write_message_part(path, id, buf, &mut written),
                Some(SendItem::Datagram(id)) => self.write_datagram(selection, id, buf),
                Some(SendItem::Stream(id)) => {
                    self.write_stream_part(now, path, id, buf, &mut written)
                }
                None => break,
            };
            if !is_written {
                break;
            }
        }
        written
    }

    /// Bytes that the rest of an item takes in an aggregate at most.
    pub(crate) fn coalesced_len_max(&self, item: SendItem) -> usize {
        let opens = match item {
            SendItem::Stream(id) => self.streams.by_id.get(&id).is_some_and(|s| s.opens()),
            SendItem::Message(_) | SendItem::Datagram(_) => false,
        };
        let open = if opens { Frame::STREAM_OPEN_LEN_MAX } else { 0 };
        let left = usize::try_from(self.left(item)).unwrap_or(usize::MAX);
        left.saturating_add(CONTENT_HEAD_MAX + open)
    }

    /// The next part of a message; `false` if the packet has no room for it.
    fn write_message_part(
        &mut self,
        path: PathId,
        id: u64,
        buf: &mut FrameBuf<'_>,
        written: &mut WrittenItems,
    ) -> bool {
        let room = buf.room();
        // Type, number, application, total, offset, length: four bytes bound every length here.
        let head_max = 1 + 8 + 4 + 4 + 4 + 4;
        if room < head_max + 1 {
            return false;
        }
        let Some(part) = self.messages.next_part(id, room - head_max) else {
            return false;
        };
        let len = part.end - part.start;
        let is_last = self
            .messages
            .next_part(id, usize::MAX >> 1)
            .is_some_and(|p| p.end == part.end);
        if len < PART_MIN && !is_last {
            return false;
        }
        let wire_id = self.messages.begin(id);
        // The exact head is shorter than the bound: use what is left.
        let total = self
            .messages
            .get(id)
            .map_or(0, |message| message.body.len());
        let head = 1
            + varint_len(wire_id)
            + 4
            + varint_len(total as u64)
            + varint_len(part.start as u64)
            + varint_len((room - 1) as u64);
        let part = self.messages.next_part(id, room - head).unwrap_or(part);
        let Some(message) = self.messages.get(id) else {
            return false;
        };
        Frame::Message {
            id: wire_id,
            app: message.app,
            total,
            offset: part.start,
            data: &message.body[part.start..part.end],
        }
        .encode(buf.out);
        self.on_part_sent(path, id, part);
        if part.is_retransmit {
            written.retransmitted_bytes += (part.end - part.start) as u64;
        }
        buf.frames.push(SentFrame::Message {
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
        buf: &mut FrameBuf<'_>,
        written: &mut WrittenItems,
    ) -> bool {
        let Some(stream) = self.streams.by_id.get_mut(&id) else {
            return false;
        };
        let wire = id.to_wire();
        let opens = stream.opens();
        if opens && buf.room() < Frame::STREAM_OPEN_LEN_MAX {
            return false;
        }
        if opens {
            Frame::StreamOpen {
                id: wire,
                app: stream.app,
                target: stream.target,
            }
            .encode(buf.out);
            buf.frames.push(SentFrame::StreamOpen(id));
            stream.on_open_sent();
        }
        let room = buf.room();
        let next = stream.next_part(1);
        // Type and length, the latter in two bytes for all that fits into a packet of usual size.
        let head = next.map_or(0, |next| 1 + varint_len(wire) + varint_len(next.start) + 2);
        let head = head + if room > 1 << 14 { 2 } else { 0 };
        let part = room.checked_sub(head).and_then(|room| {
            let part = stream.next_part(room.max(1) as u64)?;
            let len = (part.end - part.start) as usize;
            let whole = stream.next_part(PART_MIN as u64)?;
            // A short part is left for the next packet, unless it is the last.
            (len <= room && (len >= PART_MIN || whole.end <= part.end)).then_some(part)
        });
        let Some(part) = part else {
            if opens {
                // Its first bytes follow in the next packet.
                self.on_stream_opened(now, path, id);
            }
            return opens;
        };
        let (first, second) = stream.bytes(part);
        let head = StreamHead {
            id: wire,
            offset: part.start,
            fin: part.fin,
        };
        Frame::encode_stream(buf.out, head, first, second);
        self.on_stream_part_sent(now, path, id, part);
        if part.is_retransmit {
            written.retransmitted_bytes += part.end - part.start;
        }
        buf.frames.push(SentFrame::Stream {
            stream: id,
            range: part.range(),
        });
        if let Some(app) = self.take_writable(id) {
            written.writable.push(WritableStream { app, stream: id });
        }
        true
    }

    /// A datagram, or the next fragment of a long one; `false` if the packet has no room for it.
    fn write_datagram(
        &mut self,
        selection: ItemSelection,
        id: u64,
        buf: &mut FrameBuf<'_>,
    ) -> bool {
        let room = buf.room();
        let Some(datagram) = self.datagrams.get(id) else {
            return false;
        };
        let (app, flow, reply) = (datagram.app, datagram.flow, datagram.reply);
        let total = datagram.data.len();
        let head = 1 + 4 + varint_len(u64::from(flow.0) << 1 | 1) + varint_len(total as u64);
        if datagram.fragment_id.is_none() && head + total <= room {
            Frame::Datagram {
                app,
                flow: flow.0,
                reply,
                data: &datagram.data,
            }
            .encode(buf.out);
            self.remove_datagram(id);
            self.on_app_bytes_sent(app, selection.path, total as u64);
            buf.frames.push(SentFrame::Datagram { app });
            return true;
        }
        let fragment_head = 1 + 8 + 4 + 4 + 4 + 8 + 4;
        let fits_alone = datagram.fragment_id.is_none() && head + total <= selection.clear_text_max;
        if fits_alone || room < fragment_head + PART_MIN {
            return false;
        }
        let Some(number) = self.datagrams.begin_fragments(id) else {
            return false;
        };
        let Some(datagram) = self.datagrams.get(id) else {
            return false;
        };
        let offset = datagram.offset;
        let len = (total - offset).min(room - fragment_head);
        Frame::Fragment {
            id: number,
            total,
            offset,
            app,
            flow: flow.0,
            reply,
            data: &datagram.data[offset..offset + len],
        }
        .encode(buf.out);
        self.on_fragment_sent(selection.path, id, len);
        if offset + len == total {
            self.remove_datagram(id);
        }
        buf.frames.push(SentFrame::Datagram { app });
        true
    }
}
