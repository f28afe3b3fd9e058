//! What is shown of the packets of a tunnel.

use serde_json::Value;

use crate::{
    gateways::{Gateways, MIB, tenant},
    harness::eventually,
};

/// The application of all packets.
fn app(gateways: &Gateways, own: usize) -> Option<Value> {
    let apps = gateways.ask(own, &["show", "app"])?;
    let mut apps = apps.as_array()?.iter();
    apps.find(|app| app["name"] == "ip").cloned()
}

#[test]
fn packets_of_a_tcp_connection_are_counted_and_their_delays_measured_at_both_ends() {
    let gateways = Gateways::start(|own| tenant(own, "blue", 1, ""));
    gateways.transfer(0, "10.2.0.1", None, 8 * MIB);
    for own in [0, 1] {
        let shown = eventually("packets are counted and measured", || {
            let app = app(&gateways, own)?;
            let has = |value: &Value, least| value.as_u64().is_some_and(|count| count >= least);
            (has(&app["received_messages"], 20) && has(&app["delay"]["count"], 10)).then_some(app)
        });
        assert!(
            shown["received_bytes"].as_u64() > Some(1000),
            "{own}: {shown}"
        );
        let seconds = |name: &str| shown["delay"][name].as_f64().expect("it is measured");
        let (mean, p99) = (seconds("mean_seconds"), seconds("p99_seconds"));
        assert!(
            0.0 < mean && mean < 1.0 && p99 >= mean / 2.0,
            "{own}: {shown}"
        );
        let page = gateways.metrics(own);
        let line = "keiro_app_delay_seconds_count{app=\"ip\"";
        let count = page.lines().find(|entry| entry.starts_with(line));
        let count = count.and_then(|entry| entry.rsplit(' ').next());
        assert!(count.is_some_and(|count| count != "0"), "{own}: {page}");
    }
}
