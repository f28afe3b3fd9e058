//! The addresses at which peers were reached last, in a file of the state directory.
//!
//! One line for each name: the name and its addresses, with spaces between. A file that is wrong is the same as
//! none: what is in it is only tried.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{self, Read},
    net::IpAddr,
    path::{Path, PathBuf},
};

use keiro_control::config::HostName;

use super::ADDRESSES_MAX;

/// The file's name.
const FILE: &str = "endpoints";
/// A longer file is not read. Ours: names of some thousand peers.
const BYTES_MAX: u64 = 1 << 20;

/// What is in the file.
#[derive(Debug, Default)]
pub(crate) struct KeptEndpoints {
    file: PathBuf,
    addresses: BTreeMap<HostName, Vec<IpAddr>>,
}

impl KeptEndpoints {
    /// What an earlier run has kept.
    pub(crate) fn load(state_directory: &Path) -> Self {
        let file = state_directory.join(FILE);
        let text = match read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "the addresses of peers that were kept are not read");
                String::new()
            }
        };
        Self {
            addresses: parse(&text),
            file,
        }
    }

    /// None, if no address of the name was kept.
    pub(super) fn addresses(&self, name: &HostName) -> &[IpAddr] {
        self.addresses.get(name).map_or(&[], Vec::as_slice)
    }

    /// Keeps these, if they are others than before. Names that are not there are forgotten.
    pub(crate) fn replace(&mut self, addresses: BTreeMap<HostName, Vec<IpAddr>>) {
        if addresses == self.addresses {
            return;
        }
        self.addresses = addresses;
        let beside = self.file.with_extension("new");
        let written =
            fs::write(&beside, self.text()).and_then(|()| fs::rename(&beside, &self.file));
        if let Err(error) = written {
            tracing::warn!(
                file = %self.file.display(), %error,
                "the addresses of peers are not kept; without DNS they are not reached after a restart"
            );
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, addresses) in &self.addresses {
            text.push_str(name.as_str());
            for ip in addresses {
                // Writing to a String cannot fail.
                let _ = write!(text, " {ip}");
            }
            text.push('\n');
        }
        text
    }
}

/// # Errors
/// It is too long, or cannot be read.
fn read(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(file)?
        .take(BYTES_MAX)
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 >= BYTES_MAX {
        true => Err(io::Error::from(io::ErrorKind::FileTooLarge)),
        false => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

pub(super) fn parse(text: &str) -> BTreeMap<HostName, Vec<IpAddr>> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let name = HostName::new(words.next()?)?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for ip in words.filter_map(|word| word.parse().ok()) {
            if !addresses.contains(&ip) && addresses.len() < ADDRESSES_MAX {
                addresses.push(ip);
            }
        }
        (!addresses.is_empty()).then_some((name, addresses))
    };
    text.lines().filter_map(line).collect()
}
