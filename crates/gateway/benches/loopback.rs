//! What two gateways add to a message's way: sockets, threads, encryption, pacing; on loopback, so
//! that nothing else is in it.
//!
//! `cargo bench -p keiro-gateway --bench loopback`. Both gateways and the client share the machine's
//! cores. For each length: half a second of messages one after the other; mean, median and 99th
//! percentile from before the write until after the read at the other side, beside the floor
//! (wire bytes over the path's rate), and the CPU time of the process per message.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use keiro_control::{
    PrivateKey,
    config::Name,
    message_socket::{
        Role,
        client::{AckReader, Connection, MessageReader, MessageWriter},
    },
};
use keiro_gateway::{Gateway, Options};

const RATE_MBIT: u64 = 100;
const PACKET: f64 = 1500.0;
const PAYLOAD: f64 = 1428.0;

fn main() {
    let spins = [Duration::ZERO, Duration::from_micros(30)];
    for spin in spins {
        println!("spin {spin:?}, {RATE_MBIT} Mbit/s");
        println!(
            "{:>9} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "bytes", "count", "floor ms", "mean ms", "p50 ms", "p99 ms", "cpu ms"
        );
        measure(spin);
    }
}

fn measure(spin: Duration) {
    let directory = tempfile::tempdir().unwrap();
    let sites = [("a", "127.254.0.1", 1u8), ("b", "127.254.0.2", 2)];
    let configs = sites.map(|(name, address, secret)| {
        let other = sites.iter().find(|site| site.0 != name).unwrap();
        let peer = keiro_core::PrivateKey::from_bytes([other.2; 32]).public_key();
        let peer = keiro_control::PublicKey::from_bytes(*peer.as_bytes());
        let files = directory.path().join(name);
        fs::create_dir(&files).unwrap();
        let key = files.join("private.key");
        fs::write(
            &key,
            PrivateKey::from_bytes([secret; 32]).to_base64().as_str(),
        )
        .unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let files = files.display();
        let text = format!(
            r#"
[gateway]
name = "{name}"
private_key_file = "{files}/private.key"
control_socket = "{files}/control.sock"
message_socket = "{files}/message.sock"
state_directory = "{files}"
[[path]]
name = "p"
local = "{address}:7001"
rate = "{RATE_MBIT}Mbit"
mtu_max = "1500B"
[[peer]]
name = "{}"
public_key = "{peer}"
endpoints = {{ p = "{}:7001" }}
[[app]]
name = "M"
class = "message"
peer = "{}"
"#,
            other.0, other.1, other.0
        );
        let path = directory.path().join(format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        path
    });
    let options = Options {
        spin: Some(spin),
        ..Options::default()
    };
    let gateways = configs.map(|config| {
        let gateway = Gateway::start(&config, &options).unwrap();
        let handle = gateway.handle();
        (handle, thread::spawn(move || gateway.serve(None)))
    });
    let connect = |site: &str, role| {
        let path = directory.path().join(site).join("message.sock");
        Connection::unix(&path, role, &Name::new("M").unwrap()).unwrap()
    };
    let receiver = connect("b", Role::Receive);
    let sender = connect("a", Role::Send);
    run(sender, receiver);
    for (handle, thread) in gateways {
        handle.stop();
        thread.join().unwrap().unwrap();
    }
}

fn run(sender: Connection, receiver: Connection) {
    let mut acks = AckReader::new(sender.try_clone().unwrap());
    let mut writer = MessageWriter::new(sender);
    let mut reader = MessageReader::new(receiver);
    // The session comes up and the MTU is found.
    for id in 0..50 {
        writer.send(id, &[0; 100_000]).unwrap();
        reader.next_message().unwrap();
        acks.next_ack().unwrap();
    }
    for length in [100, 1000, 10_000, 100_000, 1_000_000] {
        let body = vec![7; length];
        let mut delays = Vec::new();
        let cpu = cpu_time();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            let sent = Instant::now();
            writer.send(delays.len() as u64, &body).unwrap();
            reader.next_message().unwrap().unwrap();
            delays.push(sent.elapsed().as_secs_f64() * 1e3);
            acks.next_ack().unwrap().unwrap();
            // Let the pacer's burst refill: each message stands for itself.
            thread::sleep(Duration::from_millis(2));
        }
        let cpu = (cpu_time() - cpu) / delays.len() as f64;
        delays.sort_by(f64::total_cmp);
        let packets = (length as f64 / PAYLOAD).ceil();
        let floor = (length as f64 + packets * (PACKET - PAYLOAD)) * 8.0 / (RATE_MBIT as f64 * 1e3);
        let mean = delays.iter().sum::<f64>() / delays.len() as f64;
        let at = |q: f64| delays[((delays.len() - 1) as f64 * q) as usize];
        println!(
            "{length:>9} {:>6} {floor:>9.3} {mean:>9.3} {:>9.3} {:>9.3} {cpu:>9.3}",
            delays.len(),
            at(0.5),
            at(0.99)
        );
    }
}

/// CPU time of this process, ms.
fn cpu_time() -> f64 {
    let stat = fs::read_to_string(Path::new("/proc/self/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks * 10.0
}
