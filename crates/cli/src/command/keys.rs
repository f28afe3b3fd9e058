//! `keiro genkey`, `keiro gentoken` and `keiro pubkey`.

use std::{
    fs::File,
    io::{self, Read},
    os::{fd::AsFd, unix::fs::MetadataExt},
};

use keiro_control::{PrivateKey, PublicKey};

use crate::{
    failure::Failure,
    output::{self, message},
};

/// Longest private key read. Ours: 44 characters, and room for spaces and newlines.
const KEY_TEXT_BYTES_MAX: u64 = 4096;

pub(crate) fn genkey() -> Result<(), Failure> {
    secret("key", "genkey > private.key")
}

pub(crate) fn gentoken() -> Result<(), Failure> {
    secret("token", "gentoken > client.token")
}

/// Prints 32 random bytes.
fn secret(what: &str, example: &str) -> Result<(), Failure> {
    let key = random_key()?;
    if let Some(mode) = exposed_mode(&io::stdout()) {
        message!(
            "keiro: warning: others can read the file that the {what} is written to (mode {mode:04o}); run \
             `chmod 600` on it, or make it with `(umask 077; keiro {example})`"
        );
    }
    output::text(format_args!("{}\n", *key.to_base64()))
}

/// The permission bits of a regular file that others than its owner can read or write; `None`: it is none, or
/// they cannot.
fn exposed_mode(output: &impl AsFd) -> Option<u32> {
    let file = File::from(output.as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok()?;
    let mode = metadata.mode() & 0o7777;
    (metadata.is_file() && mode & 0o077 != 0).then_some(mode)
}

pub(crate) fn pubkey() -> Result<(), Failure> {
    let mut text = String::new();
    let read = io::stdin()
        .lock()
        .take(KEY_TEXT_BYTES_MAX)
        .read_to_string(&mut text);
    let key = match read {
        // An editor may have begun the file with a byte order mark.
        Ok(_) => text
            .trim_start_matches('\u{feff}')
            .trim()
            .parse::<PrivateKey>(),
        Err(error) => {
            return Err(
                Failure::new("cannot read a private key from standard input").because(error),
            );
        }
    };
    let key = key.map_err(|error| {
        Failure::new("standard input holds no private key")
            .because(error)
            .hint("keiro genkey | keiro pubkey, or keiro pubkey < private.key")
    })?;
    output::text(format_args!("{}\n", public_key(&key)))
}

/// A new private key from the operating system's randomness.
pub(crate) fn random_key() -> Result<PrivateKey, Failure> {
    let mut bytes = [0; keiro_control::key::KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new("the operating system gives no random numbers").because(error)
    })?;
    Ok(PrivateKey::from_bytes(bytes))
}

/// The public half of `key`.
pub(crate) fn public_key(key: &PrivateKey) -> PublicKey {
    let key = keiro_core::PrivateKey::from_bytes(*key.as_bytes());
    PublicKey::from_bytes(*key.public_key().as_bytes())
}
