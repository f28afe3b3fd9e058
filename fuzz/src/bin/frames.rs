//! The clear text of a data packet: what is read as a frame is written, and read again as the same.
#![no_main]

use fuzz::seeds;
use keiro_core::wire::{AckFrame, Frame, Reader, TrainReport};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: seeds::write(seeds::frames()), |data: &[u8]| {
    let mut reader = Reader::new(data);
    loop {
        let before = reader.rest().len();
        let Ok(Some(frame)) = Frame::decode(&mut reader) else {
            return;
        };
        assert!(reader.rest().len() < before, "a frame takes bytes");
        check_round_trip(&frame);
    }
});

fn check_round_trip(frame: &Frame<'_>) {
    let mut written = Vec::new();
    match frame {
        // Its content is not kept.
        Frame::Unknown(_) => return,
        Frame::Ack(ack) => AckFrame::encode(&mut written, ack, ack.ranges.iter()),
        Frame::TrainReport(report) => {
            TrainReport::encode(&mut written, report.path, report.train, report.arrivals());
        }
        frame => frame.encode(&mut written),
    }
    let mut reader = Reader::new(&written);
    let read = Frame::decode(&mut reader).expect("what we write can be read");
    match (frame, read) {
        (Frame::Ack(ack), Some(Frame::Ack(again))) => {
            assert_eq!(head(ack), head(&again));
            assert!(ack.ranges.iter().eq(again.ranges.iter()));
        }
        (Frame::TrainReport(report), Some(Frame::TrainReport(again))) => {
            assert_eq!((report.path, report.train), (again.path, again.train));
            assert!(report.arrivals().eq(again.arrivals()));
        }
        // Reasons and gaps of a later release are written as what they were understood as.
        (frame, again) => assert_eq!(Some(*frame), again),
    }
    assert!(reader.is_empty(), "{frame:?}");
}

fn head(ack: &AckFrame<'_>) -> (u8, u64, u64, u64, u64) {
    let AckFrame {
        path,
        largest,
        received_at_us,
        delay_us,
        ecn_ce,
        ..
    } = *ack;
    (path, largest, received_at_us, delay_us, ecn_ce)
}
