use super::*;

const HUB_KEY: PublicKey = PublicKey::from_bytes([1; 32]);
const PROVISIONAL: PublicKey = PublicKey::from_bytes([2; 32]);
const SITE_KEY: PublicKey = PublicKey::from_bytes([3; 32]);
const OSAKA_KEY: PublicKey = PublicKey::from_bytes([4; 32]);
const PEER_KEY: PublicKey = PublicKey::from_bytes([5; 32]);

fn config() -> Config {
    let text = format!(
        "[gateway]\nname = \"hub\"\nuplinks = \"auto\"\n\
         [network]\nregistry = \"/etc/keiro/network/registry.toml\"\nendpoint = \"192.0.2.1:7600\"\n\
         [[peer]]\nname = \"partner\"\npublic_key = \"{PEER_KEY}\"\n\
         [tenant.office]\nid = 1\nprefixes = [\"10.0.0.0/24\"]\n"
    );
    Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"))
}

/// With osaka, and invitations of tokyo and kyoto; `more` is behind the one of tokyo.
fn registry(more: &str) -> Registry {
    let psk = PublicKey::from_bytes([9; 32]);
    let kyoto = PublicKey::from_bytes([6; 32]);
    let text = format!(
        "[network]\ntenant = \"office\"\n[site]\n\
         osaka = {{ public_key = \"{OSAKA_KEY}\", preshared_key = \"{psk}\", prefixes = [\"10.2.0.0/24\"] }}\n\
         [invitation]\n\
         kyoto = {{ id = \"0000000000000001\", public_key = \"{kyoto}\", preshared_key = \"{psk}\", \
         expires = 2030-01-01T00:00:00Z }}\n\
         tokyo = {{ id = \"0000000000000002\", public_key = \"{PROVISIONAL}\", preshared_key = \"{psk}\", \
         expires = 2030-01-01T00:00:00Z{more} }}\n"
    );
    Registry::parse(&text, "registry.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn enrol(name: &str, key: PublicKey, prefixes: &[&str]) -> Enrol {
    let prefix = |text: &&str| text.parse().expect("a prefix");
    Enrol {
        public_key: key,
        name: Name::new(name).expect("a name"),
        prefixes: prefixes.iter().map(prefix).collect(),
    }
}

/// Names of as many bytes have one number.
fn by_length(name: &str) -> u32 {
    u32::try_from(name.len()).unwrap_or(u32::MAX)
}

/// No two names of these tests have one number.
fn by_bytes(name: &str) -> u32 {
    let add = |sum: u32, byte: u8| sum.wrapping_mul(31).wrapping_add(u32::from(byte));
    name.bytes().fold(7, add)
}

fn decide_at(now: &str, registry: &Registry, request: &Enrol) -> Decision {
    decide_by(by_bytes, now, registry, request)
}

fn decide_by(app_id: fn(&str) -> u32, now: &str, registry: &Registry, request: &Enrol) -> Decision {
    let config = config();
    let uplinks = ["198.51.100.1".parse().expect("an address")];
    let hub = Hub {
        registry,
        config: &config,
        public_key: HUB_KEY,
        uplinks: &uplinks,
        connected: &[("lan0".to_owned(), "10.7.0.0/16".parse().expect("a prefix"))],
        app_id,
        now: humantime::parse_rfc3339(now).expect("a time"),
    };
    hub.decide(&PROVISIONAL, request)
}

fn decide(registry: &Registry, request: &Enrol) -> Decision {
    decide_at("2029-06-01T00:00:00Z", registry, request)
}

#[track_caller]
fn is_refused(decision: Decision, reason: EnrolRefusedReason, parts: &[&str]) {
    let Decision::Refused(refused) = decision else {
        panic!("{decision:?}");
    };
    assert_eq!(refused.reason, reason, "{refused:?}");
    for part in parts {
        assert!(
            refused.text.contains(part),
            "no `{part}` in {}",
            refused.text
        );
    }
}

#[test]
fn invited_gateway_becomes_a_site_under_any_free_name() {
    for name in ["tokyo", "nagoya"] {
        let request = enrol(name, SITE_KEY, &["10.1.0.0/24", "fd00:1::/64"]);
        let invitation = Name::new("tokyo").expect("a name");
        assert_eq!(
            decide(&registry(""), &request),
            Decision::New { invitation }
        );
    }
}

#[test]
fn invitation_expires_by_the_hubs_clock() {
    let request = enrol("tokyo", SITE_KEY, &["10.1.0.0/24"]);
    let decision = decide_at("2030-06-01T00:00:00Z", &registry(""), &request);
    let parts = ["expired at 2030-01-01T00:00:00Z", "2030-06-01", "--replace"];
    is_refused(decision, EnrolRefusedReason::Expired, &parts);
}

#[test]
fn missing_invitation_counts_as_revoked() {
    let text = "[network]\ntenant = \"office\"\n";
    let registry = Registry::parse(text, "registry.toml").expect("a registry");
    let request = enrol("tokyo", SITE_KEY, &["10.1.0.0/24"]);
    is_refused(
        decide(&registry, &request),
        EnrolRefusedReason::Revoked,
        &["keiro invite"],
    );
}

fn redeemed_by(key: PublicKey) -> String {
    format!(
        ", redeemed_by = \"{key}\", redeemed_at = 2029-05-01T00:00:00Z, redeemed_from = \"203.0.113.5\""
    )
}

#[test]
fn repeated_enrolment_gets_the_same_answer_for_an_hour() {
    let registry = registry(&redeemed_by(OSAKA_KEY));
    for request in [
        enrol("tokyo", OSAKA_KEY, &["10.2.0.0/24"]),
        enrol("another", OSAKA_KEY, &[]),
    ] {
        for time in [
            "2029-05-01T00:00:00Z",
            "2029-05-01T00:59:59Z",
            "2029-04-30T23:30:00Z",
        ] {
            let Decision::Again { site, prefixes, .. } = decide_at(time, &registry, &request)
            else {
                panic!("{request:?}");
            };
            assert_eq!(site.as_str(), "osaka");
            assert_eq!(prefixes, enrol("x", SITE_KEY, &["10.2.0.0/24"]).prefixes);
        }
        for time in [
            "2029-05-01T01:00:00Z",
            "2031-01-01T00:00:00Z",
            "2029-04-30T22:00:00Z",
        ] {
            let parts = ["used at 2029-05-01T00:00:00Z", "--replace"];
            let decision = decide_at(time, &registry, &request);
            is_refused(decision, EnrolRefusedReason::Used, &parts);
        }
    }
}

#[test]
fn used_invitation_refuses_another_key_and_names_its_use() {
    let request = enrol("tokyo", SITE_KEY, &["10.1.0.0/24"]);
    let used = EnrolRefusedReason::Used;
    let decision = decide(&registry(&redeemed_by(OSAKA_KEY)), &request);
    let when = "used at 2029-05-01T00:00:00Z from 203.0.113.5";
    is_refused(decision, used, &[when, "keiro revoke osaka"]);
    // The site was revoked: its key does not come back by the old invitation.
    let decision = decide(&registry(&redeemed_by(SITE_KEY)), &request);
    is_refused(decision, used, &[when, "--replace"]);
}

#[test]
fn enrolment_with_the_name_of_another_site_is_refused() {
    let long = "n".repeat(SITE_NAME_BYTES_MAX + 1);
    for (name, owner) in [
        ("osaka", "another site"),
        ("kyoto", "invited"),
        ("partner", "a peer"),
        ("hub", "the hub"),
        (&*long, "longer"),
    ] {
        let request = enrol(name, SITE_KEY, &["10.1.0.0/24"]);
        is_refused(
            decide(&registry(""), &request),
            EnrolRefusedReason::NameTaken,
            &[owner, "--name"],
        );
    }
}

#[test]
fn enrolment_with_the_key_of_another_site_is_refused() {
    for (key, owner) in [
        (HUB_KEY, "the hub itself"),
        (PROVISIONAL, "the invitation"),
        (OSAKA_KEY, "site `osaka`"),
        (PublicKey::from_bytes([6; 32]), "the invitation of `kyoto`"),
        (PEER_KEY, "peer `partner`"),
    ] {
        let request = enrol("tokyo", key, &["10.1.0.0/24"]);
        is_refused(
            decide(&registry(""), &request),
            EnrolRefusedReason::KeyTaken,
            &[owner],
        );
    }
}

#[test]
fn enrolment_with_foreign_or_uninvited_prefixes_is_refused() {
    let bound = registry(", prefixes = [\"10.1.0.0/16\"]");
    let free = registry("");
    let public = registry(", prefixes = [\"192.0.0.0/8\", \"198.51.100.0/24\"]");
    for (registry, prefixes, parts) in [
        (
            &free,
            &["10.1.0.0/24", "192.0.4.0/24"][..],
            &[
                "192.0.4.0/24 is not private",
                "keiro invite tokyo --prefix 192.0.4.0/24",
            ][..],
        ),
        (&free, &["2001:db8::/64"], &["not private"]),
        (&free, &["100.128.0.0/16"], &["not private"]),
        (
            &free,
            &["10.1.0.5/24"],
            &["bits set behind its prefix; write 10.1.0.0/24"],
        ),
        (&free, &["169.254.3.0/24"], &["never forwarded"]),
        (&free, &["fe80::/64"], &["never forwarded"]),
        (&free, &["127.0.0.0/16"], &["never forwarded"]),
        (&free, &["224.0.1.0/24"], &["never forwarded"]),
        (&public, &["198.51.100.0/24"], &["198.51.100.1"]),
        (
            &free,
            &["10.7.1.0/24"],
            &["10.7.1.0/24", "10.7.0.0/16", "`lan0` is connected to"],
        ),
        (
            &free,
            &["10.2.0.0/25"][..],
            &["10.2.0.0/25", "site `osaka`"][..],
        ),
        (&free, &["10.0.0.0/16"], &["10.0.0.0/16", "the hub"]),
        (&free, &["198.51.100.0/24"], &["198.51.100.1"]),
        (&free, &["0.0.0.0/0"], &["too large"]),
        (&free, &["::/0"], &["too large"]),
        (&free, &[], &["0 prefixes"]),
        (&free, &["10.1.0.0/24", "10.1.0.0/25"], &["the same site"]),
        (
            &bound,
            &["10.3.0.0/24"],
            &["is for 10.1.0.0/16", "10.3.0.0/24"],
        ),
        (&bound, &["10.1.0.0/24", "10.3.0.0/24"], &["10.3.0.0/24"]),
    ] {
        let request = enrol("tokyo", SITE_KEY, prefixes);
        is_refused(
            decide(registry, &request),
            EnrolRefusedReason::Prefix,
            parts,
        );
    }
    let inside = enrol("tokyo", SITE_KEY, &["10.1.7.0/24"]);
    assert!(matches!(decide(&bound, &inside), Decision::New { .. }));
    let permitted = enrol("tokyo", SITE_KEY, &["192.0.4.0/24"]);
    assert!(matches!(decide(&public, &permitted), Decision::New { .. }));
    let private = [
        "10.1.0.0/24",
        "172.31.0.0/24",
        "192.168.4.0/24",
        "100.64.3.0/24",
        "fd12::/48",
    ];
    let request = enrol("tokyo", SITE_KEY, &private);
    assert!(matches!(decide(&free, &request), Decision::New { .. }));
}

#[test]
fn a_name_whose_application_has_the_number_of_another_one_is_refused() {
    let at = "2029-06-01T00:00:00Z";
    // `sites@tokyo` and `sites@osaka`.
    let request = enrol("tokyo", SITE_KEY, &["10.1.0.0/24"]);
    let decision = decide_by(by_length, at, &registry(""), &request);
    let parts = ["`tokyo` has the same number on the wire", "--name"];
    is_refused(decision, EnrolRefusedReason::NameTaken, &parts);
    let request = enrol("nagoya", SITE_KEY, &["10.1.0.0/24"]);
    let decision = decide_by(by_length, at, &registry(""), &request);
    assert!(matches!(decision, Decision::New { .. }), "{decision:?}");
    // Keiro's own has 13 bytes.
    let request = enrol("narashi", SITE_KEY, &["10.1.0.0/24"]);
    let decision = decide_by(by_length, at, &registry(""), &request);
    is_refused(decision, EnrolRefusedReason::NameTaken, &parts[1..]);
}

#[test]
fn a_network_that_another_site_has_too_may_be_mapped_to_one_that_is_free() {
    let offered = |registry: &Registry, prefixes: &[&str], parts: &[&str]| {
        let decision = decide(registry, &enrol("tokyo", SITE_KEY, prefixes));
        is_refused(decision, EnrolRefusedReason::Prefix, parts);
    };
    let all = registry("");
    offered(
        &all,
        &["10.2.0.0/24"],
        &["site `osaka`", "--map 10.2.0.0/24=10.99.0.0/24"],
    );
    // What is claimed beside it is not free, nor what the hub's interfaces have.
    offered(
        &all,
        &["10.2.0.0/24", "10.99.0.0/24"],
        &["--map 10.2.0.0/24=10.99.1.0/24"],
    );
    offered(
        &all,
        &["10.7.3.0/24"],
        &["`lan0`", "--map 10.7.3.0/24=10.99.0.0/24"],
    );
    // Within what the invitation permits.
    let bound = registry(", prefixes = [\"10.2.0.0/22\"]");
    offered(&bound, &["10.2.0.0/24"], &["--map 10.2.0.0/24=10.2.1.0/24"]);
    let full = registry(", prefixes = [\"10.2.0.0/24\"]");
    let decision = decide(&full, &enrol("tokyo", SITE_KEY, &["10.2.0.0/24"]));
    let Decision::Refused(refused) = decision else {
        panic!("{decision:?}");
    };
    assert!(!refused.text.contains("--map"), "{}", refused.text);
}
