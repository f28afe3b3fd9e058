//! Reports of a receiver on how packets arrived: trains, and the aggregates of a path.

use std::{cmp::Ordering, time::Duration};

use super::{
    FrameError, Reader, VARINT_MAX,
    frame_error::field,
    frame_type::{FEEDBACK, TRAIN_REPORT},
    put_varint,
};

/// Most packets in one report of a train.
pub(super) const ARRIVALS_MAX: usize = 16;

/// What came of the aggregates of a path, in all since the session began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feedback {
    /// The path, as the sender of the aggregates numbers it.
    pub path: u8,
    /// The largest number of an aggregate that came.
    pub highest: u64,
    /// Aggregates of which at least one copy came.
    pub aggregates: u64,
    /// Copies that have arrived in all, of all aggregates.
    pub copies: u64,
    /// Packets that the receiver's socket dropped because it was full.
    pub socket_overflows: u64,
    /// Packets that the receiver's system dropped in receiving, of any sender.
    pub system_overflows: u64,
    /// How far apart the copies of one of them came; `None`: there were none.
    pub spacing: Option<CopySpacing>,
}

/// How far apart the copies of an aggregate came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySpacing {
    /// Length of each, IP bytes.
    pub ip_bytes: u16,
    /// How many were sent.
    pub sent: u8,
    /// How many of `arrivals` there are.
    came: u8,
    /// Place among the copies, and nanoseconds since the one before; the first's are zero.
    arrivals: [(u8, u64); COPIES_MAX],
}

/// Most copies of an aggregate.
pub(super) const COPIES_MAX: usize = 10;
/// Longest gap that is reported, nanoseconds: longer ones say nothing.
const GAP_MAX: u64 = 1 << 29;

/// When the packets of a train arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainReport<'a> {
    /// The path that the train took, as its sender numbers it.
    pub path: u8,
    /// Counts trains of the path, as in [`Frame::Train`](super::Frame::Train).
    pub train: u64,
    arrivals: &'a [u8],
}

impl Feedback {
    /// Most bytes of one.
    pub const LEN_MAX: usize = 2 + 2 + 1 + 5 * 8 + 2 + 1 + COPIES_MAX * 5;

    /// It was sent before `other` and arrived later.
    pub fn was_overtaken_by(&self, other: &Self) -> bool {
        match self.highest.cmp(&other.highest) {
            Ordering::Less => true,
            Ordering::Equal => !self.counts_on_from(other),
            Ordering::Greater => false,
        }
    }

    /// No counter is behind that of `before`, which was sent earlier; else the peer has begun to count anew,
    /// as with another socket.
    pub fn counts_on_from(&self, before: &Self) -> bool {
        self.highest >= before.highest
            && self.aggregates >= before.aggregates
            && self.copies >= before.copies
            && self.socket_overflows >= before.socket_overflows
            && self.system_overflows >= before.system_overflows
    }

    /// What follows the known fields is a later version's only behind a spacing of ten.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Self {
            path: field(reader.u8())?,
            highest: field(reader.varint())?,
            aggregates: field(reader.varint())?,
            copies: field(reader.varint())?,
            socket_overflows: field(reader.varint())?,
            system_overflows: field(reader.varint())?,
            spacing: match reader.is_empty() {
                true => None,
                false => Some(CopySpacing::decode(reader)?),
            },
        })
    }

    pub(super) fn encode(&self, buf: &mut Vec<u8>) {
        let mut body = vec![self.path];
        for value in [
            self.highest,
            self.aggregates,
            self.copies,
            self.socket_overflows,
            self.system_overflows,
        ] {
            put_varint(&mut body, value.min(VARINT_MAX));
        }
        if let Some(spacing) = &self.spacing {
            body.extend_from_slice(&spacing.ip_bytes.to_be_bytes());
            body.push(spacing.sent);
            for (index, gap) in spacing.gaps() {
                body.push(index);
                put_varint(&mut body, gap);
            }
        }
        put_varint(buf, FEEDBACK);
        put_varint(buf, body.len() as u64);
        buf.extend_from_slice(&body);
    }
}

impl CopySpacing {
    /// The first of `sent` copies that came was number `index`.
    pub const fn new(ip_bytes: u16, sent: u8, index: u8) -> Self {
        let mut arrivals = [(0, 0); COPIES_MAX];
        arrivals[0] = (index, 0);
        Self {
            ip_bytes,
            sent,
            came: 1,
            arrivals,
        }
    }

    /// The next one came `gap` after the one before. At most ten are kept.
    pub fn push(&mut self, index: u8, gap: Duration) {
        if let Some(place) = self.arrivals.get_mut(usize::from(self.came)) {
            let gap = u64::try_from(gap.as_nanos()).unwrap_or(GAP_MAX);
            *place = (index, gap.min(GAP_MAX));
            self.came += 1;
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let ip_bytes = u16::from_be_bytes([field(reader.u8())?, field(reader.u8())?]);
        let sent = field(reader.u8())?;
        let first = field(reader.u8())?;
        // The gap before the first copy says nothing.
        field(reader.varint())?;
        let mut spacing = Self::new(ip_bytes, sent, first);
        while !reader.is_empty() && usize::from(spacing.came) < COPIES_MAX {
            let index = field(reader.u8())?;
            let gap = field(reader.varint())?;
            spacing.push(index, Duration::from_nanos(gap));
        }
        let mut places = spacing.gaps().map(|(index, _)| index);
        if places.any(|index| index >= sent) {
            return Err(FrameError::Range);
        }
        let places = spacing.gaps().map(|(index, _)| index);
        match places.is_sorted_by(|a, b| a < b) {
            true => Ok(spacing),
            false => Err(FrameError::Range),
        }
    }

    /// Place among the copies, and nanoseconds since the one before it.
    pub fn gaps(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.arrivals.iter().take(usize::from(self.came)).copied()
    }
}

impl<'a> TrainReport<'a> {
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, FrameError> {
        let path = field(reader.u8())?;
        let train = field(reader.varint())?;
        let arrivals = reader.rest();
        let mut count = 0;
        while !reader.is_empty() {
            field(reader.u8())?;
            field(reader.varint())?;
            count += 1;
        }
        if !(2..=ARRIVALS_MAX).contains(&count) {
            return Err(FrameError::Range);
        }
        Ok(Self {
            path,
            train,
            arrivals,
        })
    }

    /// Most bytes that [`TrainReport::encode`] appends.
    pub const LEN_MAX: usize = 2 + 2 + 1 + 8 + 1 + ARRIVALS_MAX * 9;

    /// Appends a report: (place in the train, nanoseconds after the first arrival) in order of
    /// arrival. Only the first 16 are written.
    pub fn encode(
        buf: &mut Vec<u8>,
        path: u8,
        train: u64,
        arrivals: impl Iterator<Item = (u8, u64)>,
    ) {
        let mut body = vec![path];
        put_varint(&mut body, train);
        for (index, nanos) in arrivals.take(ARRIVALS_MAX) {
            body.push(index);
            put_varint(&mut body, nanos.min(VARINT_MAX));
        }
        put_varint(buf, TRAIN_REPORT);
        put_varint(buf, body.len() as u64);
        buf.extend_from_slice(&body);
    }

    /// (Place in the train, nanoseconds after the first arrival) in order of arrival.
    pub fn arrivals(&self) -> impl Iterator<Item = (u8, u64)> {
        let mut reader = Reader::new(self.arrivals);
        // Validated by `decode_train`.
        std::iter::from_fn(move || Some((reader.u8()?, reader.varint()?)))
    }
}
