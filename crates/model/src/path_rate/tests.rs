use super::*;

const NOW: Instant = Instant::from_nanos(1_000_000_000);
const MS: Duration = Duration::from_millis(1);

fn controller(limit: Option<Bandwidth>) -> PathRate {
    PathRate::new(NOW, limit, ByteCount::new(1500))
}

/// `packets` acknowledged that were sent `round_trip` ago and arrived half of that ago.
fn feedback(now: Instant, round_trip: Duration, packets: u64) -> Feedback {
    Feedback {
        now,
        acked: ByteCount::new(packets * 1500),
        acked_packets: packets,
        spurious_packets: 0,
        lost_packets: 0,
        in_flight: ByteCount::new(15_000),
        arrival: Some(Arrival {
            sent_at: now - round_trip,
            bytes: ByteCount::new(1500),
            received_us: (now - round_trip / 2).as_nanos() / 1000,
            round_trip,
        }),
    }
}

/// Feeds one packet every `every` for `time`; whether the controller holds packets back meanwhile.
fn feed(
    controller: &mut PathRate,
    from: Instant,
    time: Duration,
    every: Duration,
    is_blocked: bool,
) -> Instant {
    let mut now = from;
    while now < from + time {
        now += every;
        controller.on_sent(now);
        match is_blocked {
            true => controller.on_blocked(now),
            false => controller.on_idle(now),
        }
        controller.on_feedback(&feedback(now, 20 * MS, 1));
        controller.check_invariants();
    }
    now
}

#[test]
fn a_new_path_begins_with_ten_packets_a_round_trip_and_a_megabit_at_most() {
    let mut controller = controller(None);
    controller.on_round_trip(600 * MS);
    assert_eq!(controller.rate().as_bits_per_second(), 200_000);
    controller.on_round_trip(2 * MS);
    assert_eq!(controller.rate(), Bandwidth::from_mbit_per_second(1));
    assert_eq!(controller.state(NOW), State::LimitedByApplication);
}

#[test]
fn a_rate_grows_only_by_what_arrives() {
    let mut controller = controller(None);
    controller.on_round_trip(20 * MS);
    // 12 Mbit/s arrive; twice of that at most is sent.
    feed(&mut controller, NOW, Duration::from_secs(3), MS, true);
    let rate = controller.rate().as_bits_per_second();
    assert!((12_000_000..=24_200_000).contains(&rate), "{rate}");
    assert_eq!(
        controller.state(NOW + Duration::from_secs(3)),
        State::Startup
    );
}

#[test]
fn what_the_application_chooses_to_send_neither_raises_nor_lowers_the_rate() {
    let mut controller = controller(None);
    controller.on_round_trip(20 * MS);
    let now = feed(&mut controller, NOW, Duration::from_secs(1), MS, true);
    let before = controller.rate();
    let now = feed(
        &mut controller,
        now,
        Duration::from_secs(60),
        10 * MS,
        false,
    );
    assert_eq!(controller.rate(), before);
    assert_eq!(controller.state(now), State::LimitedByApplication);
    // Nothing has confirmed it for a minute.
    controller.on_blocked(now);
    assert_eq!(
        controller.rate().as_bits_per_second(),
        before.as_bits_per_second() / 2
    );
}

#[test]
fn the_configured_rate_is_never_exceeded() {
    let limit = Bandwidth::from_mbit_per_second(5);
    let mut controller = controller(Some(limit));
    let now = feed(&mut controller, NOW, Duration::from_secs(3), MS, true);
    controller.on_trains(now, Bandwidth::from_mbit_per_second(1000));
    let now = feed(&mut controller, now, Duration::from_secs(3), MS, true);
    assert_eq!(
        (controller.rate(), controller.pacing_rate()),
        (limit, limit)
    );
    assert_eq!(controller.state(now), State::LimitedByConfiguration);
    controller.set_limit(Some(Bandwidth::from_mbit_per_second(1)));
    assert_eq!(controller.rate(), Bandwidth::from_mbit_per_second(1));
}

#[test]
fn a_capacity_by_trains_is_believed_by_steps_and_only_as_far_as_they_arrive() {
    let mut controller = controller(None);
    controller.on_round_trip(20 * MS);
    controller.on_trains(NOW, Bandwidth::from_mbit_per_second(100));
    assert!(
        controller.rate() <= Bandwidth::from_mbit_per_second(1),
        "not before a round"
    );
    // The line carries 3 Mbit/s.
    let now = feed(&mut controller, NOW, 300 * MS, 4 * MS, true);
    controller.on_trains(now, Bandwidth::from_mbit_per_second(100));
    feed(&mut controller, now, Duration::from_secs(2), 4 * MS, true);
    assert!(
        controller.rate() <= Bandwidth::from_mbit_per_second(12),
        "what does not arrive is not believed: {} {:?}",
        controller.rate(),
        controller.hint
    );
}

/// Whatever is acknowledged, a rate above zero is left, and a packet may leave.
#[test]
fn impossible_feedback_is_tolerated() {
    for limit in [
        None,
        Some(Bandwidth::ZERO),
        Some(Bandwidth::from_bits_per_second(u64::MAX)),
    ] {
        let mut controller = controller(limit);
        for step in 0u64..3000 {
            let far = if step % 3 == 0 { u64::MAX } else { step };
            let now = Instant::from_nanos(if step % 7 == 0 {
                u64::MAX
            } else {
                step * 1_000_000
            });
            controller.on_sent(now);
            controller.on_blocked(now);
            controller.on_trains(now, Bandwidth::from_bits_per_second(far));
            controller.on_feedback(&Feedback {
                now,
                acked: ByteCount::new(far),
                acked_packets: far,
                spurious_packets: if step % 5 == 0 { far } else { 0 },
                lost_packets: if step % 4 == 0 { far } else { 0 },
                in_flight: ByteCount::new(far),
                arrival: (step % 2 == 0).then(|| Arrival {
                    sent_at: Instant::from_nanos(far.wrapping_mul(step)),
                    bytes: ByteCount::new(far),
                    received_us: far.wrapping_mul(31),
                    round_trip: Duration::from_nanos(far),
                }),
            });
            if step % 100 == 0 {
                controller.on_return(now);
                controller.set_packet(ByteCount::new(far % 9000));
            }
            controller.check_invariants();
            assert!(
                controller.window().get() > 0 && controller.pacing_rate() > Bandwidth::ZERO,
                "{controller:?}"
            );
            let _ = (
                controller.queue(),
                controller.target_queue(),
                controller.state(now),
            );
        }
    }
}
