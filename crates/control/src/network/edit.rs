//! Changing a registry: what people wrote stays, and a crash leaves the old file or the new one.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use ipnet::IpNet;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Key, Table, TableLike, Value};

use super::{Invitation, Redemption, Registry, SecondHub, Site, text};
use crate::config::{ConfigError, Name, PeerEndpoint};

/// A registry that nothing else changes meanwhile. Dropped without [`commit`](Self::commit), it leaves the file as
/// it is.
pub struct RegistryEdit {
    path: PathBuf,
    registry: Registry,
    document: DocumentMut,
    /// Held until the end.
    _lock: File,
}

/// Why a registry cannot be changed. `Display` says what to try. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// It cannot be read, or the change would make it wrong.
    #[error(transparent)]
    Registry(#[from] ConfigError),
    /// Another program holds the lock.
    #[error("{}: another program changes the registry; try again in a moment", .0.display())]
    Locked(PathBuf),
    /// There is a file already.
    #[error("{}: there is a registry already; remove it first if it is not needed", .0.display())]
    Exists(PathBuf),
    /// The system refuses.
    #[error("{}: cannot write the registry: {source}; is the directory writable for this user?", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// How long to wait for another program that changes the registry: it reads and writes one file.
const LOCK_TIME: Duration = Duration::from_secs(2);
const LOCK_POLL: Duration = Duration::from_millis(10);

impl RegistryEdit {
    /// Makes a registry without sites, whose owner is that of the directory.
    ///
    /// # Errors
    /// There is one already, or it cannot be written.
    pub fn create(path: &Path, tenant: &Name) -> Result<(), EditError> {
        let _lock = lock(path)?;
        if fs::symlink_metadata(path).is_ok() {
            return Err(EditError::Exists(path.to_owned()));
        }
        let contents = format!("{HEAD}[network]\ntenant = \"{tenant}\"\n{REST}");
        replace(path, &contents, None)
    }

    /// Reads the registry at `path` and keeps other programs from changing it.
    ///
    /// # Errors
    /// It is wrong, or another program has held it for two seconds.
    pub fn open(path: &Path) -> Result<Self, EditError> {
        let lock = lock(path)?;
        let text = text::read(path)?;
        let file = path.display().to_string();
        let registry = Registry::parse(&text, &file)?;
        let document = text.parse::<DocumentMut>().map_err(|error| {
            let message = format!("cannot be changed: {}", error.message());
            ConfigError::of_file(
                &file,
                message,
                "write its tables as `keiro init --hub` does",
            )
        })?;
        Ok(Self {
            path: path.to_owned(),
            registry,
            document,
            _lock: lock,
        })
    }

    /// What the file says now, without the changes.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Adds a site, or replaces the one of this name.
    pub fn put_site(&mut self, name: &Name, site: &Site) {
        self.put("site", name, entry_of(site));
    }

    /// Names the second hub.
    pub fn put_second_hub(&mut self, name: &Name, hub: &SecondHub) {
        let mut entry = entry_of(&hub.site);
        entry.insert("endpoint", endpoints(&hub.endpoint));
        self.put("hub", name, entry);
    }

    /// Removes the second hub; `false`: none has this name.
    pub fn remove_second_hub(&mut self, name: &Name) -> bool {
        self.remove("hub", name)
    }

    /// Removes a site; `false`: there is none of this name.
    pub fn remove_site(&mut self, name: &Name) -> bool {
        self.remove("site", name)
    }

    /// Gives a site or the second hub another name. It keeps its place, its comments and the numbers of its
    /// applications, and the invitation that it came by goes with it. `false`: there is none, or the new name is
    /// taken.
    pub fn rename(&mut self, name: &Name, new: &Name) -> bool {
        let registry = &self.registry;
        let Some((_, site)) = registry.members().find(|(of, _)| *of == name) else {
            return false;
        };
        let is_taken = registry.members().any(|(of, _)| of == new);
        let key = site.public_key;
        let wire_name = site.wire_name.clone().unwrap_or_else(|| name.clone());
        let table = match registry.is_second_hub(name) {
            true => "hub",
            false => "site",
        };
        let invitation = registry.invitations.get(name);
        let came_by =
            invitation.is_some_and(|of| of.redeemed.as_ref().is_some_and(|of| of.by == key));
        let renames_invitation = came_by && !registry.invitations.contains_key(new);
        if is_taken {
            return false;
        }
        self.rename_entry(table, name, new);
        if let Some(entry) = self
            .table(table)
            .and_then(|table| table.get_mut(new.as_str()))
            .and_then(Item::as_table_like_mut)
        {
            match wire_name == *new {
                true => entry.remove("wire_name"),
                false => entry.insert("wire_name", toml_edit::value(wire_name.as_str())),
            };
            // Only spaces between the values change.
            entry.fmt();
        }
        if renames_invitation {
            self.rename_entry("invitation", name, new);
        }
        true
    }

    /// Adds an invitation, or replaces the one of this name.
    pub fn put_invitation(&mut self, name: &Name, invitation: &Invitation) {
        let mut entry = InlineTable::new();
        entry.insert("id", invitation.id.to_string().into());
        entry.insert("public_key", invitation.public_key.to_string().into());
        let secret = invitation.preshared_key.to_base64();
        entry.insert("preshared_key", secret.as_str().into());
        if let Some(prefixes) = &invitation.prefixes {
            entry.insert("prefixes", list(prefixes));
        }
        if !invitation.hub_endpoint.is_empty() {
            entry.insert("hub_endpoint", endpoints(&invitation.hub_endpoint));
        }
        entry.insert("expires", time(invitation.expires));
        if let Some(Redemption { by, at, from }) = &invitation.redeemed {
            entry.insert("redeemed_by", by.to_string().into());
            entry.insert("redeemed_at", time(*at));
            entry.insert("redeemed_from", from.to_string().into());
        }
        self.put("invitation", name, entry);
    }

    /// Removes an invitation; `false`: there is none of this name.
    pub fn remove_invitation(&mut self, name: &Name) -> bool {
        self.remove("invitation", name)
    }

    /// Removes invitations that expired before `at`, used or not.
    pub fn remove_expired(&mut self, at: SystemTime) {
        let all = self.registry.invitations.iter();
        let expired: Vec<Name> = all
            .filter(|(_, invitation)| invitation.expires < at)
            .map(|(name, _)| name.clone())
            .collect();
        for name in expired {
            self.remove("invitation", &name);
        }
    }

    /// Writes the changes, so that they are on the disk when this returns.
    ///
    /// # Errors
    /// The registry would be wrong, or cannot be written.
    pub fn commit(self) -> Result<Registry, EditError> {
        let text = self.document.to_string();
        let registry = Registry::parse(&text, &self.path.display().to_string())?;
        let before = fs::symlink_metadata(&self.path).map_err(write_error(&self.path))?;
        replace(&self.path, &text, Some([before.uid(), before.gid()]))?;
        Ok(registry)
    }

    #[cfg(test)]
    pub(super) fn document_has(&self, invitation: &str) -> bool {
        let table = self.document.get("invitation");
        table.is_some_and(|table| table.get(invitation).is_some())
    }

    fn put(&mut self, table: &str, name: &Name, entry: InlineTable) {
        if let Some(table) = self.table(table) {
            // A new value keeps what stands around the key.
            table.insert(name.as_str(), Item::Value(Value::InlineTable(entry)));
        }
    }

    /// An entry under another name, in its place and with what stands around it.
    fn rename_entry(&mut self, table: &str, name: &Name, new: &Name) {
        let Some(table) = self.table(table) else {
            return;
        };
        let keys: Vec<Key> = table
            .iter()
            .filter_map(|(key, _)| table.key(key).cloned())
            .collect();
        // There is no other way to change a key in its place.
        for key in keys {
            let Some(item) = table.remove(key.get()) else {
                continue;
            };
            let key = match key.get() == name.as_str() {
                true => Key::new(new.as_str())
                    .with_leaf_decor(key.leaf_decor().clone())
                    .with_dotted_decor(key.dotted_decor().clone()),
                false => key,
            };
            table.entry_format(&key).or_insert(item);
        }
    }

    fn remove(&mut self, table: &str, name: &Name) -> bool {
        let table = self.table(table);
        table.is_some_and(|table| table.remove(name.as_str()).is_some())
    }

    /// A table of the document, made if there is none.
    fn table(&mut self, key: &str) -> Option<&mut dyn TableLike> {
        let item = self.document.as_table_mut().entry(key);
        // A registry that was read has nothing else there.
        item.or_insert_with(|| Item::Table(Table::new()))
            .as_table_like_mut()
    }
}

fn entry_of(site: &Site) -> InlineTable {
    let mut entry = InlineTable::new();
    entry.insert("public_key", site.public_key.to_string().into());
    let secret = site.preshared_key.to_base64();
    entry.insert("preshared_key", secret.as_str().into());
    entry.insert("prefixes", list(&site.prefixes));
    if let Some(name) = &site.wire_name {
        entry.insert("wire_name", name.as_str().into());
    }
    entry
}

fn endpoints(endpoints: &[PeerEndpoint]) -> Value {
    let endpoints = endpoints.iter().map(ToString::to_string);
    Value::Array(endpoints.collect::<Array>())
}

fn list(prefixes: &[IpNet]) -> Value {
    let prefixes = prefixes.iter().map(ToString::to_string);
    Value::Array(prefixes.collect::<Array>())
}

/// In whole seconds, in UTC.
fn time(at: SystemTime) -> Value {
    let text = humantime::format_rfc3339_seconds(at).to_string();
    match text.parse::<toml_edit::Datetime>() {
        Ok(time) => time.into(),
        Err(_) => unreachable!("RFC 3339 times are those of TOML"),
    }
}

/// Holds the directory: a file of its own would be of the user that made it, and the gateway is another one.
fn lock(path: &Path) -> Result<File, EditError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let file = File::open(directory).map_err(write_error(path))?;
    let until = Instant::now() + LOCK_TIME;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(write_error(path)(error)),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                return Err(EditError::Locked(path.to_owned()));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_POLL),
        }
    }
}

/// Puts a file with this text in the place of the one that is there, if any.
fn replace(path: &Path, text: &str, owner: Option<[u32; 2]>) -> Result<(), EditError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let beside = path.with_extension("toml.new");
    let written = write_beside(&beside, directory, text, owner)
        .and_then(|()| fs::rename(&beside, path))
        .and_then(|()| File::open(directory)?.sync_all());
    written.map_err(|error| {
        // It may have been renamed.
        let _ = fs::remove_file(&beside);
        write_error(path)(error)
    })
}

fn write_beside(
    beside: &Path,
    directory: &Path,
    text: &str,
    owner: Option<[u32; 2]>,
) -> io::Result<()> {
    // Of a program that was killed.
    let _ = fs::remove_file(beside);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(beside)?;
    let made = file.metadata()?;
    let [user, group] = match owner {
        Some(owner) => owner,
        None => {
            let directory = fs::metadata(directory)?;
            [directory.uid(), directory.gid()]
        }
    };
    // The gateway's user keeps its file when an administrator changes it.
    if [made.uid(), made.gid()] != [user, group] {
        std::os::unix::fs::fchown(&file, Some(user), Some(group))?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn write_error(path: &Path) -> impl Fn(io::Error) -> EditError + '_ {
    |source| EditError::Write {
        path: path.to_owned(),
        source,
    }
}

const HEAD: &str = "\
# The registry of a network: its sites and their keys. Only the gateway's user may read it.
# `keiro invite`, `keiro join` and `keiro revoke` change it, and so may you: docs/network.md has every key.

";

const REST: &str = "
# Applications of all sites, with the keys of [[app]]. The first of class \"datagram\" carries the sites' packets.
#[app.office]
#class = \"datagram\"
#latency_target = \"30ms\"

# One line for each branch.
[site]

# Branches that may join.
[invitation]
";
