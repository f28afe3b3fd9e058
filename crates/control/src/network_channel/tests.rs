use super::*;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn prefixes(texts: &[&str]) -> Vec<IpNet> {
    let prefix = |text: &&str| text.parse().expect("a prefix");
    texts.iter().map(prefix).collect()
}

#[test]
fn documents_round_trip() {
    let enrol = Enrol {
        public_key: PublicKey::from_bytes([7; 32]),
        name: name("tokyo"),
        prefixes: prefixes(&["10.1.0.0/24", "2001:db8::/48"]),
    };
    let enrolled = Enrolled {
        name: name("tokyo"),
        hub: name("hub"),
        preshared_key: PresharedKey::from_bytes([3; 32]),
        tenant: name("office"),
        tenant_id: 1,
        prefixes: Vec::new(),
        is_second_hub: true,
        hub_address: Some("10.0.0.1".parse().expect("an address")),
        hub_unix_seconds: 1,
    };
    let refused = EnrolRefused {
        reason: EnrolRefusedReason::Used,
        text: "no".to_owned(),
        hub_unix_seconds: 2,
    };
    for document in [
        Document::Enrol(enrol),
        Document::Enrolled(Box::new(enrolled)),
        Document::EnrolRefused(refused),
    ] {
        let bytes = document.to_bytes().expect("short");
        assert!(bytes.len() <= ENROL_BYTES_MAX);
        assert_eq!(Document::parse(&bytes).expect("one"), document);
    }
}

#[test]
fn fields_of_newer_releases_are_ignored() {
    let newer = br#"{"type": "weather", "sun": true}"#;
    assert_eq!(Document::parse(newer).expect("one"), Document::Unknown);
    let more = br#"{"type": "enrol_refused", "reason": "rain", "text": "", "hub_unix_seconds": 0, "x": [1]}"#;
    let Document::EnrolRefused(refused) = Document::parse(more).expect("one") else {
        panic!("another document");
    };
    assert_eq!(refused.reason, EnrolRefusedReason::Unknown);
}

#[test]
fn invalid_documents_are_refused() {
    let many = vec!["\"10.0.0.0/24\""; SITE_PREFIXES_MAX + 1].join(",");
    let key = PublicKey::from_bytes([7; 32]);
    let enrol = |name: &str, key: &str, prefixes: &str| {
        format!(
            r#"{{"type":"enrol","name":"{name}","public_key":"{key}","prefixes":[{prefixes}]}}"#
        )
    };
    let key = key.to_string();
    assert!(Document::parse(enrol("tokyo", &key, "").as_bytes()).is_ok());
    for text in [
        String::new(),
        "{}".to_owned(),
        "[]".to_owned(),
        "\u{fffd}".to_owned(),
        r#"{"type": 1}"#.to_owned(),
        r#"{"type": "enrol"}"#.to_owned(),
        enrol("", &key, ""),
        enrol("to kyo", &key, ""),
        enrol("tokyo", "AAAA", ""),
        enrol("tokyo", &key, "1"),
        enrol("tokyo", &key, "\"10.0.0.0\""),
        enrol("tokyo", &key, &many),
        "[".repeat(100_000),
        " ".repeat(DOCUMENT_BYTES_MAX + 1),
    ] {
        assert!(Document::parse(text.as_bytes()).is_err(), "{text:.80}");
    }
}

#[test]
fn reasons_serialize_to_their_documented_names() {
    use EnrolRefusedReason as Reason;
    for reason in [
        Reason::Expired,
        Reason::Used,
        Reason::Revoked,
        Reason::NameTaken,
        Reason::Prefix,
        Reason::KeyTaken,
        Reason::Unavailable,
        Reason::Malformed,
    ] {
        let text = serde_json::to_string(&reason).expect("a text");
        assert_eq!(text, format!("\"{}\"", reason.name()));
    }
}
