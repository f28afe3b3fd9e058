//! What a registry must not be, what stays when it is changed, and what it makes of a configuration.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use proptest::prelude::*;

use super::*;
use crate::config::{Class, PeerOrigin};

mod expansion;
mod ground;

/// The key of this number, in base64.
fn key(number: u8) -> String {
    PublicKey::from_bytes([number; 32]).to_string()
}

/// A registry with two sites and an invitation.
fn good() -> String {
    format!(
        "# Ours.\n[network]\ntenant = \"office\"\n\n[app.voice]\nclass = \"datagram\"\nlatency_target = \"30ms\"\n\n\
         [app.bulk]\nclass = \"datagram\" # last\n\n[site]\n\
         tokyo = {{ public_key = \"{}\", preshared_key = \"{}\", prefixes = [\"10.1.0.0/24\"] }} # first\n\
         kobe = {{ public_key = \"{}\", preshared_key = \"{}\", prefixes = [\"10.2.0.0/24\", \"fd02::/64\"] }}\n\n\
         [invitation]\n\
         osaka = {{ id = \"00112233445566ff\", public_key = \"{}\", preshared_key = \"{}\", \
         prefixes = [\"10.3.0.0/16\"], expires = 2026-11-30T12:00:00Z }}\n",
        key(1),
        key(11),
        key(2),
        key(12),
        key(3),
        key(13)
    )
}

fn parsed(text: &str) -> Registry {
    Registry::parse(text, "network.toml").unwrap_or_else(|error| panic!("{error}"))
}

/// The problems of a text, without the file's name.
fn problems(text: &str) -> Vec<String> {
    let error = Registry::parse(text, "network.toml").expect_err(text);
    let problems = error.problems().iter().map(ToString::to_string);
    let without_file = |text: String| text.trim_start_matches("network.toml:").trim().to_owned();
    problems.map(without_file).collect()
}

/// A registry that is good but for one change.
fn changed(from: &str, to: &str) -> String {
    let text = good();
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

fn config(network: &str) -> Config {
    let text = format!(
        "[gateway]\nname = \"hub\"\n[network]\n{network}\n[[path]]\nname = \"wan\"\nlocal = \"198.51.100.1:7600\"\n\
         [[peer]]\nname = \"old\"\npublic_key = \"{}\"\nendpoint = \"203.0.113.9:7600\"\n\
         [[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"old\"\n\
         [tenant.office]\nid = 7\nprefixes = [\"10.0.0.0/24\"]\n\
         [tenant.office.peer.old]\nprefixes = [\"10.9.0.0/24\"]\napp = \"ip\"\n",
        key(99)
    );
    Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn hub() -> Config {
    config(
        "registry = \"/etc/keiro/network.toml\"\nendpoint = [\"192.0.2.1:7600\", \"hub.example.net:7600\"]",
    )
}

#[test]
fn a_registry_is_read() {
    let registry = parsed(&good());
    assert_eq!(registry.tenant.as_str(), "office");
    let apps: Vec<&str> = registry
        .apps
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(apps, ["voice", "bulk"], "in the order of the file");
    let target = registry.apps[0].1.latency_target;
    assert_eq!(target, Some(Duration::from_millis(30)));
    let kobe = &registry.sites[&Name::new("kobe").unwrap()];
    assert_eq!(kobe.public_key, PublicKey::from_bytes([2; 32]));
    assert_eq!(kobe.preshared_key, PresharedKey::from_bytes([12; 32]));
    assert_eq!(kobe.prefixes.len(), 2);
    let id = InvitationId([0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0xff]);
    let (name, osaka) = registry.invitation(id).expect("it is there");
    assert_eq!(
        (name.as_str(), id.to_string()),
        ("osaka", "00112233445566ff".to_owned())
    );
    assert_eq!(osaka.prefixes, Some(vec!["10.3.0.0/16".parse().unwrap()]));
    let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_040_000);
    assert_eq!((osaka.expires, &osaka.redeemed), (noon, &None));
    // Other ways to write the same.
    assert_eq!(parsed(&format!("\u{feff}{}", good())), registry);
    assert_eq!(parsed(&good().replace('\n', "\r\n")), registry);
    let east = changed("2026-11-30T12:00:00Z", "2026-11-30T21:00:00+09:00");
    assert_eq!(parsed(&east), registry);
    assert_eq!(parsed("[network]\ntenant = \"a\"\n").sites.len(), 0);
}

#[test]
fn each_problem_of_a_registry_has_its_place_and_a_remedy() {
    let cases = [
        (
            String::new(),
            "1:1: the registry has no [network]; add [network] with tenant = \"...\"",
        ),
        (
            format!("{}[hub]\nx = {{ prefixes = [\"10.5.0.0/24\"] }}\n", good()),
            "hub: it has no `endpoint`; add endpoint = ",
        ),
        (
            format!(
                "{}[hub]\nkobe = {{ public_key = \"{}\", preshared_key = \"{}\", endpoint = \"192.0.2.9:7600\", \
                 prefixes = [\"10.5.0.0/24\"] }}\n",
                good(),
                key(4),
                key(14)
            ),
            "hub: a site is named `kobe` too; rename one of them",
        ),
        (
            format!(
                "{}[hub]\nx = {{ public_key = \"{}\", preshared_key = \"{}\", endpoint = \"192.0.2.9:7600\", \
                 prefixes = [\"10.2.0.0/25\"] }}\n",
                good(),
                key(4),
                key(14)
            ),
            "10.2.0.0/25 of site `x` overlaps 10.2.0.0/24 of site `kobe`",
        ),
        (
            format!("{}[hub]\nx = {{}}\ny = {{}}\n", good()),
            "2 entries in [hub], more than the limit of 1",
        ),
        (
            changed("tenant = \"office\"", ""),
            "[network] has no `tenant`",
        ),
        (
            changed("tenant = \"office\"", "tenent = \"office\""),
            "did you mean `tenant`?",
        ),
        (
            changed("[site]", "[sites]"),
            "unknown key `sites` in the registry; did you mean `site`?",
        ),
        (
            changed("class = \"datagram\"", "class = \"datagrams\""),
            "6:9: class: ",
        ),
        (
            changed("latency_target = \"30ms\"", "peer = \"x\""),
            "unknown key `peer` in [app.NAME]",
        ),
        (
            changed("[app.voice]", "[app.\"v oice\"]"),
            "' ' must not occur in a name",
        ),
        (
            changed("tokyo = ", &format!("{} = ", "t".repeat(32))),
            "choose a name of at most 31",
        ),
        (
            changed("tokyo = ", "\"to@kyo\" = "),
            "'@' must not occur in a name",
        ),
        (
            changed("tokyo = ", "kobe = "),
            "not valid TOML: duplicate key; keep one of them",
        ),
        (
            changed(&key(1), &key(2)),
            "14:23: public_key: site `tokyo` has the same key",
        ),
        (
            changed(&key(3), &key(2)),
            "public_key: site `kobe` has the same key",
        ),
        (
            changed(&key(1), "AAECAw=="),
            "the key has 4 bytes instead of 32",
        ),
        (
            changed(&key(11), "AAECAw=="),
            "preshared_key: the key has 4 bytes instead of 32",
        ),
        (changed(&key(1), &key(0)), "the key is all zeros"),
        (
            changed("[\"10.1.0.0/24\"]", "[]"),
            "prefixes: 0 prefixes; write 1 to 64",
        ),
        (
            changed("\"10.1.0.0/24\"", "\"10.1.0.5/24\""),
            "`10.1.0.5/24` has bits set behind its prefix",
        ),
        (
            changed("\"10.1.0.0/24\"", "\"127.0.0.0/16\""),
            "is loopback, and never forwarded",
        ),
        (
            changed("\"10.1.0.0/24\"", "\"0.0.0.0/0\""),
            "0.0.0.0/0 of site `tokyo` is too large; write /8 or longer",
        ),
        (
            changed("\"10.1.0.0/24\"", "\"fd00::/16\""),
            "fd00::/16 of site `tokyo` is too large",
        ),
        (
            changed("\"10.1.0.0/24\"", "\"10.2.0.0/16\""),
            "10.2.0.0/24 of site `kobe` overlaps 10.2.0.0/16 of site `tokyo` (line 13); give each its own addresses",
        ),
        (
            changed("\"10.1.0.0/24\"", "\"fd02::/64\""),
            "fd02::/64 of site `kobe` overlaps fd02::/64 of site `tokyo` (line 13)",
        ),
        (
            changed("\"10.1.0.0/24\"", "\"10.1.0.0/24\", \"10.1.0.128/25\""),
            "10.1.0.128/25 of site `tokyo` overlaps 10.1.0.0/24 of site `tokyo`",
        ),
        (
            changed("00112233445566ff", "0011"),
            "`0011` is not the number of an invitation",
        ),
        (
            changed("00112233445566ff", "+0112233445566ff"),
            "is not the number of an invitation",
        ),
        (
            changed("2026-11-30T12:00:00Z", "2026-11-30T12:00:00"),
            "is not a point in time",
        ),
        (
            changed("2026-11-30T12:00:00Z", "2026-11-30"),
            "is not a point in time",
        ),
        (
            changed("2026-11-30T12:00:00Z", "0001-01-01T00:00:00Z"),
            "is not a point in time from 1970 on",
        ),
        (
            changed("2026-11-30T12:00:00Z", "\"soon\""),
            "expires: this is a text",
        ),
        (
            changed(
                "2026-11-30T12:00:00Z",
                "2026-11-30T12:00:00Z, redeemed_from = \"192.0.2.7\"",
            ),
            "redeemed_from: without redeemed_by; write redeemed_by, redeemed_at, redeemed_from, or none of them",
        ),
        (changed("[site]", "[[site]]"), "site: this is "),
        (
            changed("tokyo = {", "fukui = 1\ntokyo = {"),
            "site.fukui: this is ",
        ),
        (
            "[network]\ntenant=\"a\"\n[app.sites]\nclass=\"stream\"\n".to_owned(),
            "none is of class `datagram`",
        ),
    ];
    for (text, expected) in cases {
        let found = problems(&text);
        assert!(
            found.iter().any(|problem| problem.contains(expected)),
            "{expected}: {found:#?}"
        );
        assert!(
            found[0].starts_with(|c: char| c.is_ascii_digit()),
            "no place: {found:?}"
        );
    }
}

#[test]
fn preshared_keys_do_not_appear_in_reports() {
    let secret = key(11);
    let texts = [
        changed("\"10.1.0.0/24\"", "\"10.2.0.0/16\""),
        changed("# first", "x"),
        changed(&secret, &secret[..40]),
        changed(&format!("\"{secret}\""), &secret),
        changed(&format!("\"{secret}\""), &format!("'{secret}'x")),
        changed(
            &format!("preshared_key = \"{secret}\""),
            &format!("preshared_key=\"{secret}\", presharedkey = 1"),
        ),
        changed(
            &format!("preshared_key = \"{secret}\""),
            &format!("preshared_key : \"{secret}\""),
        ),
        changed(
            &format!("preshared_key = \"{secret}\""),
            &format!("preshared_key = [\"{secret}\"]"),
        ),
        changed(
            &format!("preshared_key = \"{secret}\""),
            &format!("preshared_key = \"\"{secret}\""),
        ),
        changed(
            &format!("preshared_key = \"{secret}\""),
            &format!("preshared_key =\n\"{secret}\""),
        ),
        changed(
            &format!("preshared_key = \"{secret}\""),
            &format!("preshared_key = \"\n{secret}\""),
        ),
        changed(
            &format!("preshared_key = \"{secret}\""),
            &format!("preshared_key = \"\"\"\n\n{secret}\n\"\"\""),
        ),
        changed(
            &format!("preshared_key = \"{secret}\""),
            &format!("preshared_key = \'\'\'\n\n{secret}\n"),
        ),
        changed(
            &format!("preshared_key = \"{secret}\""),
            &format!("preshared_key = \"{}\", before = \"{secret}\"", key(14)),
        ),
    ];
    for text in texts {
        let error = Registry::parse(&text, "network.toml").expect_err("it is wrong");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(&secret[..20]), "{shown}");
    }
    let registry = parsed(&good());
    assert!(!format!("{registry:?}").contains(&secret[..20]));
}

#[test]
fn numbers_of_entries_are_bounded() {
    let sites = |count: usize| -> String {
        let line = |number: usize| {
            let mut bytes = [1; 32];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            let key = PublicKey::from_bytes(bytes);
            let [high, low] = [number / 256, number % 256];
            format!(
                "s{number} = {{ public_key = \"{key}\", preshared_key = \"{key}\", prefixes = [\"10.{high}.{low}.0/24\"] }}\n"
            )
        };
        format!(
            "[network]\ntenant = \"a\"\n[site]\n{}",
            (0..count).map(line).collect::<String>()
        )
    };
    assert_eq!(parsed(&sites(SITES_MAX)).sites.len(), SITES_MAX);
    let beyond = problems(&sites(SITES_MAX + 1));
    assert!(
        beyond[0].contains("1001 entries in [site], more than the limit of 1000"),
        "{beyond:?}"
    );
    let huge = format!("{}#{}", good(), "x".repeat(REGISTRY_BYTES_MAX as usize));
    assert!(problems(&huge)[0].starts_with("longer than 1048576 bytes"));
    let prefixes: Vec<String> = (0..65).map(|n| format!("\"10.1.{n}.0/24\"")).collect();
    let many = changed("\"10.1.0.0/24\"", &prefixes.join(", "));
    assert!(problems(&many)[0].contains("65 prefixes; write 1 to 64"));
}

#[test]
fn hiding_preshared_keys_keeps_positions_and_validity() {
    let secret = key(11);
    for text in [
        good(),
        changed("preshared_key = ", "\"preshared_key\"="),
        changed(&format!("\"{secret}\""), &format!("'{secret}'")),
        changed(&format!("\"{secret}\""), &format!("\"\"\"\n{secret}\"\"\"")),
        changed("# Ours.", "# The preshared_key isn't \"here"),
        changed("tokyo = {", "preshared_key = {"),
        good().replace('\n', "\r\n"),
    ] {
        let shown = text::without_secrets(&text);
        assert!(!shown.contains(&secret[..20]), "{shown}");
        let places =
            |text: &str| -> Vec<usize> { text.match_indices('\n').map(|(at, _)| at).collect() };
        assert_eq!((shown.len(), places(&shown)), (text.len(), places(&text)));
        parsed(&text);
    }
    let doubtful = "a\npreshared_key ö\nb = \"shown\"\n";
    let shown = text::without_secrets(doubtful);
    assert_eq!(shown, "a\npreshared_keyxxx\nb = \"shown\"\n");
    let comment = "a = 1 # preshared_key = \"s\" }s\nb";
    let shown = text::without_secrets(comment);
    assert_eq!(shown, "a = 1 # preshared_keyxxxxxxxxx\nb");
}

proptest! {
    #[test]
    fn hiding_preshared_keys_keeps_bytes(text in "(preshared_key|[=\"'#{}\\[\\]\\\\\n aö]){0,40}") {
        let shown = text::without_secrets(&text);
        prop_assert_eq!(shown.len(), text.len());
    }

    #[test]
    fn arbitrary_text_is_refused_and_never_panics(text in "\\PC{0,200}", cut in 0_usize..900) {
        prop_assert!(Registry::parse(&text, "f").is_err());
        let good = good();
        let _ = Registry::parse(good.get(..cut).unwrap_or(&good), "f");
    }
}

#[test]
fn a_registry_that_contradicts_the_hubs_file_is_refused() {
    let hub = hub();
    parsed(&good()).check_with(&hub, &[]).expect("it fits");
    let cases = [
        (
            changed("\"office\"", "\"offices\""),
            "3:10: tenant: no [tenant.offices] in gateway.toml",
        ),
        (
            changed("tokyo = ", "old = "),
            "13:1: site: gateway.toml has a [[peer]] named `old`",
        ),
        (
            changed(&key(1), &key(99)),
            "public_key: [[peer]] `old` in gateway.toml has the same key",
        ),
        (
            changed("10.1.0.0/24", "10.0.0.128/25"),
            "prefixes: 10.0.0.128/25 of site `tokyo` overlaps 10.0.0.0/24 of the hub; give each its own addresses",
        ),
        (
            changed("10.1.0.0/24", "10.9.0.0/16"),
            "overlaps 10.9.0.0/24 of peer `old`",
        ),
        (
            changed("10.1.0.0/24", "198.51.0.0/16"),
            "contains 198.51.100.1, where the hub itself is reached",
        ),
        (
            changed("10.1.0.0/24", "192.0.2.0/24"),
            "contains 192.0.2.1, where the hub itself is reached",
        ),
        (
            changed("10.1.0.0/24", "172.16.5.0/24"),
            "contains 172.16.5.9, where the hub itself is reached",
        ),
    ];
    let own = ["172.16.5.9".parse().unwrap()];
    for (text, expected) in cases {
        let error = parsed(&text)
            .check_with(&hub, &own)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A hub that leads to the Internet has what is nowhere else.
    let mut hub = hub;
    hub.tenants[0].prefixes = vec!["0.0.0.0/0".parse().unwrap()];
    parsed(&good()).check_with(&hub, &[]).expect("it fits");
}

#[test]
fn site_claims_free_prefixes_and_keeps_its_own() {
    let (registry, hub) = (parsed(&good()), hub());
    let name = |text: &str| Name::new(text).unwrap();
    let claim = |site: &str, prefixes: &[&str]| {
        let prefixes: Vec<IpNet> = prefixes.iter().map(|text| text.parse().unwrap()).collect();
        let claimed = registry.refuse_claim(
            &hub,
            &["172.16.5.9".parse().unwrap()],
            &name(site),
            &prefixes,
        );
        claimed.map_err(|refusal| refusal.to_string())
    };
    assert_eq!(claim("nara", &["10.4.0.0/24", "fd04::/64"]), Ok(()));
    assert_eq!(
        claim("tokyo", &["10.1.0.0/16"]),
        Ok(()),
        "it has a part of that"
    );
    for (prefixes, expected) in [
        (
            &["10.1.0.0/24"][..],
            "10.1.0.0/24 of site `nara` overlaps 10.1.0.0/24 of site `tokyo`; give",
        ),
        (
            &["10.5.0.0/24", "10.2.0.128/25"],
            "overlaps 10.2.0.0/24 of site `kobe`",
        ),
        (&["10.0.0.0/24"], "of the hub"),
        (&["10.9.0.0/24"], "of peer `old`"),
        (
            &["0.0.0.0/0"],
            "is too large; write /8 or longer, in IPv6 /32",
        ),
        (&["192.0.2.0/24"], "contains 192.0.2.1"),
        (&["172.16.0.0/16"], "contains 172.16.5.9"),
        (&["10.5.0.0/24", "10.5.0.0/25"], "of the same site"),
        (&[], "claims 0 prefixes; it may have 1 to 64"),
    ] {
        let refused = claim("nara", prefixes).expect_err(expected);
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn a_site_claims_nothing_that_the_main_table_leads_elsewhere() {
    let registry = parsed(&good());
    let more = |table: &str| {
        let text = format!(
            "[gateway]\nname = \"hub\"\n[network]\nregistry = \"/etc/keiro/network.toml\"\n\
             endpoint = \"192.0.2.1:7600\"\n[[path]]\nname = \"wan\"\nlocal = \"198.51.100.1:7600\"\n\
             [[peer]]\nname = \"old\"\npublic_key = \"{}\"\nendpoint = \"203.0.113.9:7600\"\n\
             [[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"old\"\n\
             [tenant.office]\nid = 7\nprefixes = [\"10.0.0.0/24\"]\n\
             [tenant.guests]\nid = 8\n{table}prefixes = [\"10.20.0.0/16\"]\n\
             [tenant.guests.peer.old]\nprefixes = [\"10.21.0.0/16\"]\napp = \"ip\"\n",
            key(99)
        );
        Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"))
    };
    let nara = Name::new("nara").unwrap();
    for prefix in ["10.20.3.0/24", "10.21.0.0/20"] {
        let claim = [prefix.parse().unwrap()];
        let refused = registry.refuse_claim(&more(""), &[], &nara, &claim);
        let refused = refused.expect_err(prefix).to_string();
        assert!(
            refused.contains("of tenant `guests` of the hub"),
            "{refused}"
        );
        let own_table = more("table = 101\n");
        assert_eq!(
            registry.refuse_claim(&own_table, &[], &nara, &claim),
            Ok(())
        );
    }
    let networks = |name: &str| [(name.to_owned(), "10.30.0.0/24".parse().unwrap())];
    let claim = ["10.30.0.128/25".parse().unwrap()];
    let config = more("");
    let refused = registry.refuse_connected(&config, &networks("lan0"), &nara, &claim);
    let refused = refused.expect_err("connected").to_string();
    assert!(
        refused.contains("interface `lan0` is connected to"),
        "{refused}"
    );
    let device = &config.tenants[0].device;
    let free = registry.refuse_connected(&config, &networks(device), &nara, &claim);
    assert_eq!(free, Ok(()), "the tenant's own device");
}

/// A directory with a registry of this text, which is as it should be.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("network.toml");
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    (directory, path)
}

#[test]
fn registry_must_be_a_private_regular_file() {
    let (directory, path) = file(&good());
    Registry::load(&path).expect("it is good");
    for mode in [0o640, 0o604, 0o660, 0o601] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        let error = Registry::load(&path).expect_err("exposed").to_string();
        let expected = format!("(mode {mode:04o}); run `chmod 600 {}`", path.display());
        assert!(error.contains(&expected), "{error}");
        assert!(RegistryEdit::open(&path).is_err());
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    let link = directory.path().join("link.toml");
    symlink(&path, &link).expect("a link");
    let error = Registry::load(&link).expect_err("a link").to_string();
    assert!(
        error.contains("a symbolic link, and a registry is none; name the file itself"),
        "{error}"
    );
    let missing = Registry::load(&directory.path().join("none"))
        .expect_err("missing")
        .to_string();
    assert!(
        missing.contains("no such file; `keiro init --hub` makes one"),
        "{missing}"
    );
    let error = Registry::load(directory.path())
        .expect_err("a directory")
        .to_string();
    assert!(error.contains("not a regular file"), "{error}");
    fs::write(&path, b"\xff").expect("written");
    let error = Registry::load(&path).expect_err("not text").to_string();
    assert!(error.contains("line 1 is not UTF-8"), "{error}");
}

fn site(number: u8, prefix: &str) -> Site {
    Site {
        public_key: PublicKey::from_bytes([number; 32]),
        preshared_key: PresharedKey::from_bytes([number + 100; 32]),
        prefixes: vec![prefix.parse().unwrap()],
        wire_name: None,
    }
}

#[test]
fn a_renamed_site_keeps_its_place_and_the_numbers_of_its_applications() {
    let (_directory, path) = file(&good());
    let name = |text: &str| Name::new(text).unwrap();
    let before = Registry::load(&path).expect("good");
    let mut edit = RegistryEdit::open(&path).expect("opened");
    assert!(!edit.rename(&name("nara"), &name("oita")), "there is none");
    assert!(!edit.rename(&name("tokyo"), &name("kobe")), "it is taken");
    assert!(edit.rename(&name("tokyo"), &name("paris")));
    let written = edit.commit().expect("written");
    let text = fs::read_to_string(&path).expect("read");
    let [paris, kobe] = ["\nparis = {", "\nkobe = {"].map(|line| text.find(line).expect(&text));
    assert!(
        paris < kobe && text.contains("wire_name = \"tokyo\" } # first\n"),
        "{text}"
    );
    let site = &written.sites[&name("paris")];
    assert_eq!(site.wire_name, Some(name("tokyo")));
    assert_eq!(site.public_key, before.sites[&name("tokyo")].public_key);
    // A new site of the name that has become free gets other numbers.
    assert_eq!(
        written.free_wire_name(&name("tokyo")),
        Some(name("tokyo-2"))
    );
    assert_eq!(written.free_wire_name(&name("paris")), None);
    let new = text.replace("kobe = {", "tokyo = {");
    assert!(
        problems(&new)[0].contains("`paris` has `tokyo` too"),
        "{:?}",
        problems(&new)
    );
    let mut edit = RegistryEdit::open(&path).expect("opened");
    assert!(edit.rename(&name("paris"), &name("tokyo")));
    assert_eq!(edit.commit().expect("written"), before);
}

#[test]
fn changes_keep_comments_and_what_others_wrote() {
    let (_directory, path) = file(&good());
    let name = |text: &str| Name::new(text).unwrap();
    let mut edit = RegistryEdit::open(&path).expect("opened");
    let osaka = edit.registry().invitations[&name("osaka")].clone();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let redeemed = Some(Redemption {
        by: PublicKey::from_bytes([4; 32]),
        at,
        from: "2001:db8::7".parse().unwrap(),
    });
    edit.put_invitation(
        &name("osaka"),
        &Invitation {
            redeemed,
            hub_endpoint: vec!["hub2.example.net:7600".parse().unwrap()],
            ..osaka.clone()
        },
    );
    let second = SecondHub {
        site: site(5, "10.5.0.0/24"),
        endpoint: vec!["hub2.example.net:7600".parse().unwrap()],
    };
    edit.put_second_hub(&name("second"), &second);
    edit.put_site(&name("osaka"), &site(4, "10.3.0.0/24"));
    assert!(edit.remove_site(&name("kobe")));
    assert!(!edit.remove_site(&name("nara")));
    let written = edit.commit().expect("written");
    let text = fs::read_to_string(&path).expect("read");
    assert_eq!(Registry::load(&path).expect("good"), written);
    for kept in [
        "# Ours.\n[network]",
        "class = \"datagram\" # last",
        "# first\n",
        "[app.voice]",
    ] {
        assert!(text.contains(kept), "{kept}: {text}");
    }
    assert!(!text.contains("kobe") && !text.contains(&key(12)), "{text}");
    assert_eq!(written.second_hub, Some((name("second"), second.clone())));
    assert_eq!(
        written.invitations[&name("osaka")].hub_endpoint,
        second.endpoint
    );
    let redeemed = &written.invitations[&name("osaka")].redeemed;
    assert_eq!(redeemed.as_ref().map(|redeemed| redeemed.at), Some(at));
    assert_eq!(written.sites[&name("osaka")], site(4, "10.3.0.0/24"));
    let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o7777;
    assert_eq!(mode, 0o600);
    // What would be wrong is not written, and what is dropped neither.
    let mut edit = RegistryEdit::open(&path).expect("opened");
    edit.put_site(&name("nara"), &site(5, "10.3.0.0/16"));
    let error = edit.commit().expect_err("it overlaps").to_string();
    assert!(error.contains("overlaps"), "{error}");
    let mut edit = RegistryEdit::open(&path).expect("opened");
    edit.remove_site(&name("osaka"));
    drop(edit);
    assert_eq!(fs::read_to_string(&path).expect("read"), text);
    // Expired ones go.
    let mut edit = RegistryEdit::open(&path).expect("opened");
    edit.remove_expired(osaka.expires);
    assert!(edit.document_has("osaka"));
    edit.remove_expired(osaka.expires + Duration::from_secs(1));
    let written = edit.commit().expect("written");
    assert!(written.invitations.is_empty() && written.sites.len() == 2);
}

#[test]
fn every_form_of_a_table_can_be_changed() {
    let inline = format!(
        "{{ public_key = \"{}\", preshared_key = \"{}\", prefixes = [\"10.1.0.0/24\"] }}",
        key(1),
        key(11)
    );
    let table = format!(
        "public_key = \"{}\"\npreshared_key = \"{}\"\nprefixes = [\"10.1.0.0/24\"]\n",
        key(1),
        key(11)
    );
    let head = "[network]\ntenant = \"office\"\n";
    for text in [
        format!("{head}[site]\ntokyo = {inline}"),
        format!("{head}[site.tokyo]\n{table}"),
        format!("site.tokyo = {inline}\n{head}"),
        format!("site = {{ tokyo = {inline} }}\n{head}"),
        format!("{head}[site]\n[site.tokyo]\n{table}"),
    ] {
        let (_directory, path) = file(&text);
        let mut edit = RegistryEdit::open(&path).expect("opened");
        edit.put_site(&Name::new("kobe").unwrap(), &site(2, "10.2.0.0/24"));
        let written = edit
            .commit()
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(written.sites.len(), 2, "{text}");
    }
}

#[test]
fn registry_is_changed_by_one_program_at_a_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("network.toml");
    let tenant = Name::new("office").unwrap();
    RegistryEdit::create(&path, &tenant).expect("made");
    let empty = Registry::load(&path).expect("good");
    assert!(empty.sites.is_empty() && empty.apps.is_empty() && empty.tenant == tenant);
    let error = RegistryEdit::create(&path, &tenant)
        .expect_err("there is one")
        .to_string();
    assert!(error.contains("there is a registry already"), "{error}");
    let held = RegistryEdit::open(&path).expect("opened");
    let error = RegistryEdit::open(&path).err().expect("held").to_string();
    assert!(
        error.contains("another program changes the registry; try again in a moment"),
        "{error}"
    );
    drop(held);
    let mut edit = RegistryEdit::open(&path).expect("opened");
    edit.put_site(&Name::new("kobe").unwrap(), &site(2, "10.2.0.0/24"));
    edit.commit().expect("written");
    let text = fs::read_to_string(&path).expect("read");
    assert!(
        text.contains("# One line for each branch.\n[site]\nkobe = {"),
        "{text}"
    );
    let names: Vec<_> = fs::read_dir(directory.path())
        .expect("listed")
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["network.toml"], "nothing is left beside it");
}
