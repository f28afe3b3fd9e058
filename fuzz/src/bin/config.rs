//! The text of a gateway's configuration: it is read or refused with a place, and renaming the keys of an
//! earlier release changes nothing else.
#![no_main]

use fuzz::seeds;
use keiro_control::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: seeds::write(seeds::configurations()), |data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let config = match Config::parse(text, "fuzz.toml") {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let rewrite = Config::rename_old_keys(text, "fuzz.toml").expect("it was read");
    let again = Config::parse(&rewrite.text, "fuzz.toml").expect("it still is");
    assert!(config.diff(&again).is_empty(), "{}", config.diff(&again));
    assert_eq!(rewrite.changes.is_empty(), config.warnings().is_empty());
    assert!(again.warnings().is_empty());
    let twice = Config::rename_old_keys(&rewrite.text, "fuzz.toml").expect("as before");
    assert_eq!(twice.text, rewrite.text);
});
