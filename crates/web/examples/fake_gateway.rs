//! A control socket with a large site, to measure and to look at `keiro-web` without a gateway:
//! `fake_gateway SOCKET [PATHS APPS TENANTS]`. The figures change every second.

#[path = "../tests/fake/mod.rs"]
mod fake;

use std::{env, path::Path, thread, time::Duration};

use fake::FakeGateway;
use serde_json::{Value, json};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Some(socket) = arguments.first() else {
        eprintln!("fake_gateway SOCKET [PATHS APPS TENANTS]");
        std::process::exit(64);
    };
    let number = |index: usize, default: usize| {
        let given = arguments.get(index).and_then(|text| text.parse().ok());
        given.unwrap_or(default)
    };
    let (paths, apps, tenants) = (number(1, 64), number(2, 1000), number(3, 100));
    let gateway = FakeGateway::start(Path::new(socket));
    for second in 0u64.. {
        let mut status = fake::status(paths, apps, apps - apps.div_ceil(50));
        status["paths_up"] = json!((0..paths).filter(|index| !is_down(*index)).count());
        gateway.answer("status", status);
        gateway.answer(
            "show_path",
            json!({"response": "paths", "paths": list(paths, |index| path(index, second))}),
        );
        gateway.answer(
            "show_app",
            json!({"response": "apps", "apps": list(apps, |index| app(index, paths, second))}),
        );
        let tenants = list(tenants, |index| {
            fake::tenant(&format!("tenant{index}"), index as u64)
        });
        gateway.answer(
            "show_tenant",
            json!({"response": "tenants", "tenants": tenants}),
        );
        thread::sleep(Duration::from_secs(1));
    }
}

fn list(count: usize, one: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..count).map(one).collect()
}

fn path(index: usize, second: u64) -> Value {
    let state = if is_down(index) { "down" } else { "up" };
    let mut path = fake::path(&format!("wan{index}"), state);
    let sent = if is_down(index) {
        0
    } else {
        1_000_000 * (index as u64 + second % 10)
    };
    path["sent_rate_bits_per_second"] = json!(sent);
    if is_down(index) {
        path["why"] = json!("no packet was received for 12.1 s (limit 3 s)");
    }
    path
}

fn is_down(index: usize) -> bool {
    index % 16 == 7
}

fn app(index: usize, paths: usize, second: u64) -> Value {
    let p99 = if index.is_multiple_of(50) {
        0.031
    } else {
        0.011
    };
    let mut app = fake::app(
        &format!("app{index}"),
        &format!("wan{}", index % paths.max(1)),
        p99,
    );
    app["sent_messages"] = json!(second * 100 + index as u64);
    app["predicted_p99_seconds"] = json!(0.012 + 0.0001 * ((index as u64 + second) % 7) as f64);
    app
}
