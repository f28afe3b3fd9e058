//! Keys as files and configuration hold them: 32 bytes in base64.
//!
//! Reads and refuses; deriving a public key from a private one and making new keys need a curve
//! and randomness and are the core's and the command's.

use std::{
    fmt,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use keiro_config::{regular_file, without_byte_order_mark};
use zeroize::{Zeroize, Zeroizing};

/// Length of every key in bytes (X25519, RFC 7748 §5).
pub const KEY_BYTES: usize = 32;

/// A gateway's private key. Erased when dropped; `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(Secret);

/// A key that two gateways share beside their own ones. Erased when dropped; `Debug` shows
/// nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct PresharedKey(Secret);

/// A gateway's public key. `Display` and `FromStr` are base64 of 32 bytes (44 characters).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

/// Why a text is not a key. The text itself is never repeated: it may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not base64.
    #[error("the key is not base64 (44 characters of A-Z a-z 0-9 + / ending in =)")]
    NotBase64,
    /// Base64 of another number of bytes.
    #[error("the key has {0} bytes instead of 32")]
    WrongLength(usize),
    /// Nothing but zeros, which is no key.
    #[error("the key is all zeros")]
    Zero,
}

/// Why a key file was not accepted. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// There is no such file.
    #[error("{}: no such key file; make one with `keiro genkey > {}` under umask 077", .0.display(), .0.display())]
    Missing(PathBuf),
    /// The file cannot be read.
    #[error("{}: cannot read the key file: {source}; it must be readable by the user keiro runs as", path.display())]
    Unreadable {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not a regular file.
    #[error("{}: not a regular file; name the file that holds the key", .0.display())]
    NotAFile(PathBuf),
    /// Others than the owner may read or write it.
    #[error("{}: others can read or write this key (mode {mode:04o}); run `chmod 600 {}`", path.display(), path.display())]
    Exposed {
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The contents are not a key.
    #[error("{}: {source}; `keiro genkey` makes a new one", path.display())]
    NotAKey {
        path: PathBuf,
        /// What is wrong with the contents.
        source: KeyError,
    },
}

/// Reads a private key: base64 of 32 bytes, one line.
///
/// # Errors
/// The file is missing, unreadable, not a regular file, open to group or others (any bit of
/// `0o077`), or holds something else than a key.
pub fn load_private_key(path: &Path) -> Result<PrivateKey, KeyFileError> {
    load_secret(path).map(PrivateKey)
}

/// Reads a preshared key, under the same rules as [`load_private_key`].
///
/// # Errors
/// As [`load_private_key`].
pub fn load_preshared_key(path: &Path) -> Result<PresharedKey, KeyFileError> {
    load_secret(path).map(PresharedKey)
}

impl PrivateKey {
    /// A key of these bytes.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Secret(bytes))
    }

    /// The bytes. A copy of them must be erased by its owner.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0.0
    }

    /// Base64 as in a key file, without newline; erased when dropped.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.0.0))
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(|bytes| Self(Secret(bytes)))
    }
}

impl PresharedKey {
    /// A key of these bytes.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Secret(bytes))
    }

    /// Base64 as in a key file, without newline; erased when dropped.
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.0.0))
    }

    /// The bytes. A copy of them must be erased by its owner.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0.0
    }
}

impl FromStr for PresharedKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(|bytes| Self(Secret(bytes)))
    }
}

impl PublicKey {
    /// A key of these bytes.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(hidden)")
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(hidden)")
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Secret([u8; KEY_BYTES]);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Why a file of tokens was not accepted. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// There is no such file.
    #[error("{}: no such file; make it with `(umask 077; keiro gentoken > {})`", .0.display(), .0.display())]
    Missing(PathBuf),
    /// It cannot be read, or others can.
    #[error(transparent)]
    File(KeyFileError),
    /// A line is no token.
    #[error("{}: line {line} is not a token; `keiro gentoken` makes one", path.display())]
    NotAToken {
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// No tokens, or too many.
    #[error("{}: {count} tokens; write 1 to {TOKENS_MAX}, one a line", path.display())]
    Count { path: PathBuf, count: usize },
}

/// Tokens of one client. Ours: one in use, and others while it is replaced.
pub const TOKENS_MAX: usize = 4;

/// Reads a client's tokens, one a line, under the same rules as [`load_private_key`]. Each is base64 of 32
/// bytes.
///
/// # Errors
/// As [`load_private_key`]; or there are no tokens or more than [`TOKENS_MAX`].
pub fn load_tokens(path: &Path) -> Result<Vec<Zeroizing<String>>, TokenFileError> {
    let contents = read_secret(path).map_err(|error| match error {
        KeyFileError::Missing(path) => TokenFileError::Missing(path),
        error => TokenFileError::File(error),
    })?;
    let mut tokens = Vec::new();
    for (number, line) in without_byte_order_mark(&contents)
        .split(|byte| *byte == b'\n')
        .enumerate()
    {
        let not_a_token = || TokenFileError::NotAToken {
            path: path.to_owned(),
            line: number + 1,
        };
        let line = std::str::from_utf8(line.trim_ascii()).map_err(|_| not_a_token())?;
        if line.is_empty() {
            continue;
        }
        // Only checked: what the client sends is this text.
        drop(Zeroizing::new(decode(line).map_err(|_| not_a_token())?));
        tokens.push(Zeroizing::new(line.to_owned()));
    }
    match tokens.len() {
        1..=TOKENS_MAX => Ok(tokens),
        count => Err(TokenFileError::Count {
            path: path.to_owned(),
            count,
        }),
    }
}

/// Reads a private key in PEM, under the same rules as [`load_private_key`]; what is in it is not looked at.
///
/// # Errors
/// The file is missing, unreadable, not a regular file, or open to group or others.
pub fn read_secret_pem(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    read_secret_up_to(path, PEM_BYTES_MAX)
}

/// Reads certificates in PEM, which are no secret.
///
/// # Errors
/// The file cannot be read, is not a regular file, or is longer than certificates are.
pub fn read_pem(path: &Path) -> io::Result<Vec<u8>> {
    regular_file::read(path, CERTIFICATES_BYTES_MAX)
}

fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    read_secret_up_to(path, KEY_FILE_BYTES_MAX)
}

fn load_secret(path: &Path) -> Result<Secret, KeyFileError> {
    let contents = read_secret(path)?;
    let not_a_key = |source| KeyFileError::NotAKey {
        path: path.to_owned(),
        source,
    };
    let text = without_byte_order_mark(&contents);
    let text = std::str::from_utf8(text).map_err(|_| not_a_key(KeyError::NotBase64))?;
    decode(text.trim()).map(Secret).map_err(not_a_key)
}

/// The contents of a file that only its owner may read or write, of at most `bytes_max`.
fn read_secret_up_to(path: &Path, bytes_max: u64) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => KeyFileError::Missing(path.to_owned()),
        _ => KeyFileError::Unreadable {
            path: path.to_owned(),
            source,
        },
    };
    let file =
        regular_file::open(path).map_err(|error| match regular_file::is_refused(&error) {
            true => KeyFileError::NotAFile(path.to_owned()),
            false => unreadable(error),
        })?;
    let metadata = file.metadata().map_err(unreadable)?;
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    // The whole capacity at once: a growing buffer would leave copies of the key behind.
    let mut contents = Zeroizing::new(Vec::with_capacity(bytes_max as usize + 1));
    file.take(bytes_max)
        .read_to_end(&mut contents)
        .map_err(unreadable)?;
    Ok(contents)
}

fn decode(text: &str) -> Result<[u8; KEY_BYTES], KeyError> {
    let bytes = Zeroizing::new(STANDARD.decode(text).map_err(|_| KeyError::NotBase64)?);
    let key: [u8; KEY_BYTES] = bytes
        .as_slice()
        .try_into()
        .map_err(|_| KeyError::WrongLength(bytes.len()))?;
    if key == [0; KEY_BYTES] {
        return Err(KeyError::Zero);
    }
    Ok(key)
}

/// A key file is one line of 44 characters; more is not read. Ours: room for spaces and newlines.
const KEY_FILE_BYTES_MAX: u64 = 4096;
/// A private key in PEM is shorter. Ours: room for RSA keys of 16,384 bits.
const PEM_BYTES_MAX: u64 = 64 << 10;
/// A file of certificates is shorter. Ours.
const CERTIFICATES_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn key_file(contents: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("private.key");
        fs::write(&path, contents).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode set");
        (directory, path)
    }

    fn valid() -> String {
        STANDARD.encode([7; KEY_BYTES])
    }

    #[test]
    fn a_private_key_file_is_read() {
        let (_directory, path) = key_file(&format!("{}\n", valid()), 0o600);
        let key = load_private_key(&path).expect("a good key");
        assert_eq!(key.as_bytes(), &[7; KEY_BYTES]);
        assert_eq!(*key.to_base64(), valid());
        assert_eq!(
            load_preshared_key(&path).expect("a good key").as_bytes(),
            &[7; KEY_BYTES]
        );
    }

    #[test]
    fn byte_order_mark_of_a_key_file_is_skipped() {
        let (_directory, path) = key_file(&format!("\u{feff}{}\r\n", valid()), 0o600);
        let key = load_private_key(&path).expect("a good key");
        assert_eq!(key.as_bytes(), &[7; KEY_BYTES]);
        assert!(load_preshared_key(&path).is_ok());
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_remedy() {
        for mode in [0o640, 0o604, 0o660, 0o610, 0o602] {
            let (_directory, path) = key_file(&valid(), mode);
            let error = load_private_key(&path).expect_err("exposed").to_string();
            let shown = path.display();
            assert_eq!(
                error,
                format!(
                    "{shown}: others can read or write this key (mode {mode:04o}); run `chmod 600 {shown}`"
                )
            );
        }
    }

    #[test]
    fn key_files_that_hold_no_key_are_refused() {
        let cases = [
            ("not a key!", "the key is not base64"),
            ("", "the key has 0 bytes instead of 32"),
            ("AAECAw==", "the key has 4 bytes instead of 32"),
            (
                "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
                "the key is all zeros",
            ),
        ];
        for (contents, expected) in cases {
            let (_directory, path) = key_file(contents, 0o600);
            let error = load_private_key(&path).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
            assert!(
                contents.is_empty() || !error.contains(contents),
                "leaks: {error}"
            );
        }
    }

    #[test]
    fn missing_files_and_directories_are_refused() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let missing = directory.path().join("none.key");
        let error = load_private_key(&missing).expect_err("missing").to_string();
        assert!(
            error.contains("no such key file; make one with `keiro genkey"),
            "{error}"
        );
        let error = load_private_key(directory.path())
            .expect_err("directory")
            .to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn fifos_and_devices_are_refused_without_waiting() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let fifo = directory.path().join("fifo.key");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.expect("mkfifo runs").success());
        for path in [fifo, PathBuf::from("/dev/zero")] {
            let error = load_private_key(&path).expect_err("refused").to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let key = PrivateKey::from_bytes([7; KEY_BYTES]);
        assert_eq!(format!("{key:?}"), "PrivateKey(hidden)");
        let key = PresharedKey::from_bytes([7; KEY_BYTES]);
        assert_eq!(format!("{key:?}"), "PresharedKey(hidden)");
    }

    #[test]
    fn public_keys_read_back_what_they_print() {
        let key = PublicKey::from_bytes([9; KEY_BYTES]);
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(key.to_string().len(), 44);
        assert_eq!("x".parse::<PublicKey>(), Err(KeyError::NotBase64));
    }
}
