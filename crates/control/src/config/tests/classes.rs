//! Applications of built-in classes.

use super::*;

const BASE: &str = r#"
[gateway]
name = "a"
[[path]]
name = "wan"
local = "192.0.2.1:7600"
rate = "10Mbit"
[[peer]]
name = "b"
public_key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
[[app]]
name = "ip"
class = "datagram"
peer = "b"
path = "wan"
paths = "one"
[tenant.blue]
id = 1
prefixes = ["10.1.0.0/16"]
CLASSES
[tenant.blue.peer.b]
prefixes = ["10.2.0.0/16"]
app = "ip"
[tenant.red]
id = 2
prefixes = ["10.3.0.0/16"]
CLASSES
[tenant.red.peer.b]
prefixes = ["10.4.0.0/16"]
app = "ip"
"#;

fn with_classes(classes: &str) -> Config {
    let text = BASE.replace("CLASSES", classes);
    let config = Config::parse(&text, "f").unwrap_or_else(|error| panic!("{error}"));
    config.with_classes()
}

#[test]
fn each_class_is_an_application_of_the_peer_that_tenants_share() {
    let config = with_classes("classes = \"auto\"");
    let names: Vec<&str> = config.apps.iter().map(|app| app.name.as_str()).collect();
    let expected = [
        "ip",
        "voice@ip",
        "games@ip",
        "interactive@ip",
        "web@ip",
        "bulk@ip",
        "backup@ip",
    ];
    assert_eq!(names, expected);
    let base = config.tenants[0].peers[0].app;
    assert_eq!(config.tenants[0].class_apps, config.tenants[1].class_apps);
    assert_eq!(config.tenants[0].class_apps[&base].len(), 6);
    let [voice, bulk] = [1, 5].map(|number| &config.apps[number]);
    assert_eq!(voice.latency_target, Some(Duration::from_millis(100)));
    assert!(voice.is_essential() && !bulk.is_essential());
    assert_eq!((bulk.latency_target, bulk.peer), (None, PeerIndex(0)));
    // The operator's pin of the tenant's traffic holds for all of it.
    assert!(config.apps.iter().all(|app| app.path == Some(PathIndex(0))));
    assert_eq!(config.clone().with_classes().apps, config.apps);
}

/// An application of the file belongs to another peer than the one whose classes have the same name.
#[test]
fn a_class_is_left_out_where_its_application_belongs_to_another_peer() {
    let second = "[[peer]]\nname = \"c\"\npublic_key = \"AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\"\n\
                  [[app]]\nname = \"other\"\nclass = \"datagram\"\npeer = \"c\"\n";
    let more = "[tenant.red.peer.c]\nprefixes = [\"10.5.0.0/16\"]\napp = \"other\"\n";
    let text = BASE.replace("CLASSES", "classes = \"auto\"");
    let text = text.replace("[tenant.blue]", &format!("{second}[tenant.blue]")) + more;
    let mut config = Config::parse(&text, "f").unwrap_or_else(|error| panic!("{error}"));
    // As a network calls the application that leads to its site `ip`.
    config.apps[1].name = Name::of("office", "ip");
    let config = config.with_classes();
    let [of_ip, of_other] = [AppIndex(0), AppIndex(1)].map(|base| {
        let tenant = &config.tenants[1];
        tenant.class_apps[&base].clone()
    });
    assert_eq!((of_ip.len(), of_other.len()), (6, 0));
    for of in of_ip {
        assert_eq!(config[of.app].peer, PeerIndex(0));
    }
    assert_eq!(config.warnings().len(), 6);
    let warning = config.warnings()[0].to_string();
    assert!(
        warning.contains("`voice@ip` belongs to peer `b`"),
        "{warning}"
    );
    assert_eq!(config.clone().with_classes().warnings(), config.warnings());
}

#[test]
fn without_classes_no_applications_are_added() {
    for off in ["", "classes = \"off\""] {
        assert_eq!(with_classes(off).apps.len(), 1);
    }
}

#[test]
fn domains_of_a_rule_are_read_and_invalid_ones_refused() {
    let rule = |domains: &str| {
        let rule = format!("[[tenant.blue.rule]]\napp = \"ip\"\ndomains = {domains}\n");
        Config::parse(&(BASE.replace("CLASSES", "") + &rule), "f")
    };
    let config = rule("[\"*.Zoom.us\", \"erp.example.com\"]").expect("valid");
    let read: Vec<String> = config.tenants[0].rules[0]
        .domains
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(read, ["*.zoom.us", "erp.example.com"]);
    for (wrong, part) in [
        ("[]", "0 names"),
        ("\"zoom.us\"", "this is a text"),
        ("[\"zoom us\"]", "not a domain name"),
        ("[\"*zoom.us\"]", "not a domain name"),
    ] {
        let error = rule(wrong).expect_err(wrong).to_string();
        assert!(error.contains("domains") && error.contains(part), "{error}");
    }
}

#[test]
fn resolvers_are_addresses() {
    let read = |resolvers: &str| {
        let key = format!("resolvers = {resolvers}");
        Config::parse(&BASE.replace("CLASSES", &key), "f")
    };
    let config = read("[\"10.1.0.53\", \"fd00::53\"]").expect("valid");
    let expected: [IpAddr; 2] =
        ["10.1.0.53", "fd00::53"].map(|text| text.parse().expect("an address"));
    assert_eq!(config.tenants[0].resolvers, expected);
    for wrong in [
        "\"10.1.0.53\"",
        "[\"10.1.0.0/24\"]",
        "[\"dns.example\"]",
        "[53]",
    ] {
        let error = read(wrong).expect_err(wrong).to_string();
        assert!(error.contains("resolvers"), "{error}");
    }
}

#[test]
fn more_names_in_rules_than_are_compared_are_refused() {
    let rule = |number: usize| {
        let names = (0..64).map(|name| format!("\"n{name}.r{number}.example\""));
        let names: Vec<String> = names.collect();
        let names = names.join(", ");
        format!("[[tenant.blue.rule]]\napp = \"ip\"\ndomains = [{names}]\n")
    };
    let read = |rules: usize| {
        let rules: String = (0..rules).map(rule).collect();
        // Names that are there already count once.
        let again = rule(0);
        Config::parse(&(BASE.replace("CLASSES", "") + &rules + &again), "f")
    };
    assert_eq!(read(64).expect("valid").tenants[0].rules.len(), 65);
    let error = read(66).expect_err("too many");
    assert_eq!(error.problems().len(), 1);
    assert!(
        error.to_string().contains("more than 4096 names"),
        "{error}"
    );
}
