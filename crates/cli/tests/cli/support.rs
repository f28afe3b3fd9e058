//! The bundle of `keiro support`: what is in it, and that no secret is.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    gateway::{Gateway, free, path},
    harness::{Site, finish, run, shown},
};

/// Made up, as `keiro genkey` makes them.
const PRESHARED: &str = "b7X0yq1k4k1q5u2y8m3v6w9z0a1s2d3f4g5h6j7k8l8=";
const TOKEN: &str = "Q2hhbmdlIG1lIHBsZWFzZSwgSSBhbSBhIHRva2VuISE=";
const PASSWORD: &str = "correct-horse-battery";

/// A site whose files hold secrets, also where they should not be.
fn site_with_secrets() -> (Site, Vec<String>) {
    let site = Site::new();
    for (file, secret) in [
        ("peer.psk", PRESHARED),
        ("client.token", TOKEN),
        ("etcd.password", PASSWORD),
    ] {
        site.write(file, &format!("{secret}\n"));
        site.set_mode(file, 0o600);
    }
    let private = fs::read_to_string(site.path("private.key")).expect("the key");
    let secrets = [private.trim(), PRESHARED, TOKEN, PASSWORD].map(str::to_owned);
    (site, secrets.to_vec())
}

/// The texts of a bundle, by their names.
fn unpacked(bundle: &Path, into: &Path) -> Vec<(String, String)> {
    fs::create_dir_all(into).expect("a directory");
    let mut tar = Command::new("tar");
    tar.arg("-xzf")
        .arg(bundle)
        .arg("-C")
        .arg(into)
        .arg("--strip-components=1");
    finish(&mut tar, b"").expect_code(0);
    let mut texts = Vec::new();
    let mut directories = vec![into.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            match entry.path() {
                path if path.is_dir() => directories.push(path),
                path => texts.push((
                    name_in(into, &path),
                    fs::read_to_string(&path).expect("a text"),
                )),
            }
        }
    }
    texts
}

fn name_in(root: &Path, path: &Path) -> String {
    let name = path.strip_prefix(root).expect("below the root");
    name.display().to_string()
}

#[track_caller]
fn assert_no_secret(texts: &[(String, String)], secrets: &[String]) {
    for (name, text) in texts {
        for secret in secrets {
            assert!(
                !text.contains(secret.as_str()),
                "{secret} in {name}:\n{text}"
            );
        }
    }
}

#[track_caller]
fn text<'a>(texts: &'a [(String, String)], name: &str) -> &'a str {
    let found = texts.iter().find(|(of, _)| of == name);
    let names: Vec<&String> = texts.iter().map(|(name, _)| name).collect();
    &found.unwrap_or_else(|| panic!("no {name} in {names:?}")).1
}

#[test]
fn a_configuration_full_of_secrets_is_bundled_without_them_and_without_a_gateway() {
    let (site, secrets) = site_with_secrets();
    let private = &secrets[0];
    let configuration = format!(
        "{}preshared_key = \"{PRESHARED}\" # {PASSWORD}\n# token {TOKEN}\n[store]\nkind = \"etcd\"\n\
         endpoints = [\"https://root:{PASSWORD}@127.0.0.1:2379\"]\npassword = \"{PASSWORD}\"\n\
         [[peer]]\nname = \"osaka\"\npublic_key = \"{}\"\npreshared_key_file = \"{private}\"\n",
        site.gateway("tokyo"),
        site.public_key()
    );
    let file = site.write("gateway.toml", &configuration);
    let bundle = site.path("bundle.tar.gz");
    let args = [
        "support",
        "--config",
        &shown(&file),
        "--output",
        &shown(&bundle),
    ];
    let ran = run(args).expect_code(0);
    assert_eq!(ran.stdout.trim(), shown(&bundle));
    let ran = ran.says(&[
        "secrets were removed",
        "not there: gateway/status.json: no gateway answers",
    ]);
    assert!(!ran.stderr.contains(PASSWORD), "{}", ran.stderr);
    let mode = fs::metadata(&bundle)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let texts = unpacked(&bundle, &site.path("unpacked"));
    assert_no_secret(&texts, &secrets);
    let shown_file = text(&texts, "configuration/gateway.toml");
    assert!(
        shown_file.contains("osaka") && shown_file.contains(&site.public_key()),
        "{shown_file}"
    );
    assert!(text(&texts, "configuration/problems.txt").contains("unknown key `preshared_key`"));
    assert!(text(&texts, "README.txt").contains("configuration/gateway.toml"));
    assert!(text(&texts, "machine/kernel.txt").contains("Linux"));
    text(&texts, "doctor.json");
    run(args)
        .expect_code(1)
        .says(&["bundle.tar.gz exists", "--output"]);
}

#[test]
fn a_running_gateway_is_bundled_with_its_explanations_and_without_secrets() {
    let (site, secrets) = site_with_secrets();
    let bundle: PathBuf = site.path("bundle.tar.gz");
    let unpack = site.path("unpacked");
    let configuration = format!(
        "{}{}[[peer]]\nname = \"osaka\"\npublic_key = \"{}\"\npreshared_key_file = \"{}\"\n\
         [[app]]\nname = \"orders\"\npeer = \"osaka\"\nclass = \"message\"\n",
        site.gateway("tokyo"),
        path("near", free("127.0.0.1")),
        Site::new().public_key(),
        shown(&site.path("peer.psk")),
    );
    let gateway = Gateway::start(site, &configuration);
    gateway.ready();
    let file = shown(&gateway.site.path("gateway.toml"));
    run(["support", "--config", &file, "--output", &shown(&bundle)]).expect_code(0);
    let texts = unpacked(&bundle, &unpack);
    assert_no_secret(&texts, &secrets);
    let status: serde_json::Value =
        serde_json::from_str(text(&texts, "gateway/status.json")).expect("JSON");
    assert_eq!(status["name"], "tokyo");
    assert_eq!(status["public_key"], gateway.site.public_key());
    for name in [
        "version",
        "paths",
        "apps",
        "peers",
        "tenants",
        "explain-1",
        "plan",
    ] {
        text(&texts, &format!("gateway/{name}.json"));
    }
    text(&texts, "events.jsonl");
}
