use super::*;
use crate::{
    datagram::NewDatagram,
    id::FlowId,
    session::{send_queues::DatagramNeeds, tenant::GrantKind},
    tenant::TenantConfig,
};
use keiro_model::fairness::controller::ControllerConfig;
use keiro_units::Bandwidth;

const NOW: Instant = Instant::from_nanos(1_000_000_000);
const PATH: PathSendState = PathSendState {
    id: PathId(0),
    mtu: 1500,
    packet_overhead: 60,
    coalescing_at: Instant::ZERO,
    control_waits: false,
};

/// A datagram of tenant 0 waits.
fn scheduler() -> SendScheduler {
    let limits = SendLimits {
        message_bytes_max: 1 << 20,
        tenants_max: 4,
        packet_bytes_max: 1 << 20,
    };
    let mut scheduler = SendScheduler::new(SchedulerKind::Deadline, limits);
    let datagram = NewDatagram::new(AppId(1), FlowId(0), NOW, &[1; 1000]);
    scheduler.push_datagram(datagram, DatagramNeeds::default(), Some(PATH.id));
    scheduler
}

fn next(scheduler: &mut SendScheduler, path: PathSendState) -> Option<(TenantId, GrantKind)> {
    let grant = scheduler.poll_next(NOW, path)?;
    scheduler.check_invariants();
    Some((grant.tenant, grant.kind))
}

#[test]
fn items_of_tenant_0_keep_their_turns_when_others_come_and_go() {
    let mut scheduler = scheduler();
    let zero = Some((TenantId::ZERO, GrantKind::Items));
    assert_eq!(next(&mut scheduler, PATH), zero);
    for _ in 0..2 {
        let tenant = TenantConfig::new(TenantId(7));
        scheduler.set_tenant(NOW, tenant).expect("few");
        assert_eq!(scheduler.waits_until(PATH), Some(Instant::ZERO));
        assert_eq!(next(&mut scheduler, PATH), zero, "with another");
        scheduler.remove_tenant(TenantId(7));
        assert_eq!(next(&mut scheduler, PATH), zero, "alone");
    }
}

#[test]
fn only_control_frames_leave_while_the_window_of_tenant_0_is_full() {
    let mut scheduler = scheduler();
    let unit = Bandwidth::from_mbit_per_second(1);
    let zero = TenantConfig {
        controller: ControllerConfig::Keiro { unit: Some(unit) },
        ..TenantConfig::new(TenantId::ZERO)
    };
    scheduler.set_tenant(NOW, zero).expect("few");
    let mut sent = 0;
    while let Some(grant) = scheduler.poll_next(NOW, PATH) {
        assert_eq!(grant.kind, GrantKind::Items);
        scheduler.on_sent(NOW, PATH.id, grant, 1500);
        sent += 1;
        assert!(sent < 10_000, "a window bounds what is in flight");
    }
    assert!(sent > 0);
    let control = PathSendState {
        control_waits: true,
        ..PATH
    };
    assert_eq!(scheduler.waits_until(control), Some(Instant::ZERO));
    let granted = next(&mut scheduler, control);
    assert_eq!(granted, Some((TenantId::ZERO, GrantKind::Control)));
    assert_eq!(next(&mut scheduler, PATH), None);
}
