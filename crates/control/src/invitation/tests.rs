use super::*;

fn endpoint(text: &str) -> PeerEndpoint {
    text.parse().expect("an endpoint")
}

fn token() -> Token {
    Token {
        id: InvitationId([0xa7; ID_BYTES]),
        secret: Secret::from_bytes([0x5a; SECRET_BYTES]),
        hub_key: PublicKey::from_bytes([9; KEY_BYTES]),
        hub_endpoints: vec![endpoint("hub.example.net:7600")],
        expires_unix_seconds: 1_800_000_000,
        site: Name::new("tokyo").expect("a name"),
    }
}

#[test]
fn invitation_tokens_round_trip() {
    let host = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(57));
    let long = endpoint(&format!("{host}:65535"));
    for endpoints in [
        vec![endpoint("192.0.2.1:7600")],
        vec![
            endpoint("hub.example.net:7600"),
            endpoint("[2001:db8::1]:1"),
        ],
        vec![long.clone(), endpoint("192.0.2.1:7600"), long],
    ] {
        for site in ["t", &"s".repeat(64)] {
            let token = Token {
                hub_endpoints: endpoints.clone(),
                site: Name::new(site).expect("a name"),
                ..token()
            };
            let text = token.to_string();
            assert!(text.starts_with("keiro1"), "{text}");
            assert!(text.len() <= TOKEN_TEXT_MAX, "{}", text.len());
            assert_eq!(text.parse(), Ok(token));
        }
    }
    let text = token().to_string();
    assert!(text.len() < 160, "{} characters", text.len());
}

#[test]
fn white_space_in_a_token_is_ignored() {
    let text = token().to_string();
    let cut: Vec<&str> = text
        .as_bytes()
        .chunks(7)
        .map(|part| str::from_utf8(part).expect("ASCII"))
        .collect();
    let wrapped = format!("\n  {}\r\n", cut.join("\r\n\t "));
    assert_eq!(wrapped.parse(), Ok(token()));
}

#[test]
fn single_character_changes_of_a_token_are_detected() {
    let text = token().to_string();
    let others = ('!'..='~').chain(['\0', '\u{7f}', 'é']);
    let others: Vec<char> = others.collect();
    for (position, character) in text.char_indices() {
        for other in others.iter().filter(|other| **other != character) {
            let mut changed = text.clone();
            changed.replace_range(position..=position, &other.to_string());
            let found = changed.parse::<Token>();
            assert!(found.is_err(), "{other:?} at {position}: {found:?}");
        }
        // One that is left out, and one that is there twice.
        let mut shorter = text.clone();
        shorter.remove(position);
        assert!(shorter.parse::<Token>().is_err(), "without {position}");
        let mut longer = text.clone();
        longer.insert(position, character);
        assert!(longer.parse::<Token>().is_err(), "{position} twice");
    }
}

#[test]
fn faults_of_tokens_are_distinguished() {
    let text = token().to_string();
    for missing in 1..text.len() - 40 {
        let cut = &text[..text.len() - missing];
        assert_eq!(
            cut.parse::<Token>(),
            Err(TokenError::Truncated),
            "{missing}"
        );
    }
    let (first, last) = text.split_at(text.len() - 20);
    let swapped: String = last.chars().rev().collect();
    for (text, error) in [
        ("", TokenError::NotAToken),
        ("hello", TokenError::NotAToken),
        ("keiroX", TokenError::NotAToken),
        ("keiro", TokenError::Truncated),
        ("keiro1", TokenError::Truncated),
        (
            &text.replacen("keiro1", "keiro2", 1),
            TokenError::OtherVersion(2),
        ),
        (&format!("{first}{swapped}"), TokenError::Altered),
        (&format!("{text}AAAA"), TokenError::Altered),
        (&format!("{text}="), TokenError::Altered),
        (&"k".repeat(TOKEN_TEXT_MAX + 1), TokenError::TooLong),
        (&" ".repeat(TOKEN_TEXT_MAX), TokenError::NotAToken),
    ] {
        assert_eq!(text.parse::<Token>(), Err(error), "{text}");
    }
}

#[test]
fn expiry_is_judged_by_a_given_clock() {
    let token = token();
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    assert!(!token.is_expired(at(1_799_999_999)));
    assert!(token.is_expired(at(1_800_000_000)));
    let far = Token {
        expires_unix_seconds: u64::MAX,
        ..token
    };
    assert!(!far.is_expired(at(0)));
    assert_eq!(far.to_string().parse(), Ok(far));
}

#[test]
fn keys_derived_from_a_secret_are_stable_and_distinct() {
    let secret = Secret::from_bytes([1; SECRET_BYTES]);
    let again = Secret::from_bytes([1; SECRET_BYTES]);
    let other = Secret::from_bytes([2; SECRET_BYTES]);
    assert!(secret.provisional_key() == again.provisional_key());
    assert!(secret.preshared_key() == again.preshared_key());
    assert!(secret.provisional_key() != other.provisional_key());
    assert!(secret.preshared_key() != other.preshared_key());
    assert_ne!(
        secret.provisional_key().as_bytes(),
        secret.preshared_key().as_bytes()
    );
}

#[test]
fn secrets_are_not_printed() {
    let token = token();
    let shown = format!("{token:?} {:?}", token.secret);
    assert_eq!(shown, "Token(a7a7a7a7a7a7a7a7 for tokyo) Secret(hidden)");
}
