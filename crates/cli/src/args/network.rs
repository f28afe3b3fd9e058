//! The command line of hubs and branches: `keiro init`, `invite`, `revoke`, `rename`, `sites`, `join` and `leave`.

use super::*;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Init {
    #[command(subcommand)]
    pub(crate) role: Option<InitRole>,
    /// The configuration to write; the key goes beside it as private.key
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG_FILE, value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// The gateway's name; this machine's name unless given
    #[arg(long, value_parser = name)]
    pub(crate) name: Option<Name>,
    /// UDP port of every uplink
    #[arg(long, default_value_t = 7600, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Replace a configuration that is there; a key that is there always stays
    #[arg(long)]
    pub(crate) force: bool,
    /// Make it the hub of a network, which branches join
    #[arg(long)]
    pub(crate) hub: bool,
    #[command(flatten)]
    pub(crate) network: InitHub,
}

/// Values of a hub.
#[derive(Args, Debug)]
pub(crate) struct InitHub {
    /// Where branches reach the hub: an address or a host name, and its UDP port; up to three. The public
    /// addresses of the uplinks unless given
    #[arg(long = "endpoint", value_name = "HOST:PORT", requires = "hub")]
    pub(crate) endpoints: Vec<PeerEndpoint>,
    /// A network behind the hub; repeat it for several. Those of interfaces that are no uplinks unless given
    #[arg(long = "prefix", value_name = "PREFIX", requires = "hub")]
    pub(crate) prefixes: Vec<IpNet>,
    /// The tenant that the network's packets belong to
    #[arg(long, value_name = "NAME", default_value = "office", value_parser = name, requires = "hub")]
    pub(crate) tenant: Name,
    /// Open the machine's firewall for the hub without asking
    #[arg(long, requires = "hub", conflicts_with = "no_firewall")]
    pub(crate) yes: bool,
    /// Leave the machine's firewall as it is
    #[arg(long, requires = "hub")]
    pub(crate) no_firewall: bool,
}

/// The hub whose registry is changed.
#[derive(Args, Debug)]
pub(crate) struct HubFile {
    /// The hub's configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG_FILE, value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Invite {
    /// The branch's name
    #[arg(value_parser = name)]
    pub(crate) name: Name,
    /// A network that the branch may claim; repeat it for several. Any that is free unless given
    #[arg(long = "prefix", value_name = "PREFIX")]
    pub(crate) prefixes: Vec<IpNet>,
    /// How long the token is good for
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) expires: Text<Duration>,
    /// Where the branch reaches the hub; up to three. `endpoint` of the configuration unless given
    #[arg(long = "endpoint", value_name = "HOST:PORT")]
    pub(crate) endpoints: Vec<PeerEndpoint>,
    /// Invite a second hub instead of a branch, which branches and this hub reach there; repeat it for several
    #[arg(long = "second-hub", value_name = "HOST:PORT")]
    pub(crate) second_hub: Vec<PeerEndpoint>,
    /// Also if there is such a branch or invitation: its key or token is refused from now on
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) hub: HubFile,
}

#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// The branch's name
    #[arg(value_parser = name)]
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) hub: HubFile,
}

#[derive(Args, Debug)]
pub(crate) struct Rename {
    /// The branch's name
    #[arg(value_parser = name)]
    pub(crate) name: Name,
    /// The name that it gets
    #[arg(value_parser = name)]
    pub(crate) new: Name,
    #[command(flatten)]
    pub(crate) hub: HubFile,
}

#[derive(Args, Debug)]
pub(crate) struct Sites {
    #[command(flatten)]
    pub(crate) hub: HubFile,
    /// Print a JSON document instead of text; units are in the names of its fields
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Join {
    /// The token that `keiro invite` printed; `-` reads it from standard input
    #[arg(required_unless_present = "file")]
    pub(crate) token: Option<String>,
    /// Read the token from this file
    #[arg(long, value_name = "FILE", conflicts_with = "token", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// The branch's name; that of the invitation unless given
    #[arg(long, value_parser = name)]
    pub(crate) name: Option<Name>,
    /// A network behind this machine; repeat it for several. Those of interfaces that are no uplinks unless
    /// given
    #[arg(long = "prefix", value_name = "PREFIX")]
    pub(crate) prefixes: Vec<IpNet>,
    /// Let other sites reach a network behind this machine by other addresses, since theirs are the same:
    /// 192.168.1.0/24=10.99.2.0/24; repeat it for several
    #[arg(long = "map", value_name = "LOCAL=NETWORK")]
    pub(crate) map: Vec<Mapping>,
    /// Do not ask whether name, networks and openings in the firewall are right
    #[arg(long)]
    pub(crate) yes: bool,
    /// Leave the machine's firewall as it is
    #[arg(long)]
    pub(crate) no_firewall: bool,
    /// The configuration to write; the keys go beside it
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG_FILE, value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// Directory for the file that enables forwarding
    #[arg(long, value_name = "DIR", default_value = "/etc/sysctl.d", value_hint = ValueHint::DirPath)]
    pub(crate) sysctl_directory: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Leave {
    /// The configuration that `keiro join` has written
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG_FILE, value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Only close the openings in the firewall
    #[arg(long)]
    pub(crate) openings: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}
