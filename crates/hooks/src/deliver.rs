//! Hands one event to a command or a webhook.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use rustls::{
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject},
};
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig, TlsProvider},
};
use zeroize::Zeroizing;

use crate::{
    config::{Action, Hook, Webhook},
    occurrence::Occurrence,
};

/// Where a command's programs are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Pause between two looks at a command that runs. Ours.
const STEP: Duration = Duration::from_millis(10);
/// Of a file with certificates. Ours: all authorities that browsers trust are 250 kB.
const AUTHORITIES_BYTES_MAX: u64 = 4 << 20;
const TOKEN_BYTES_MAX: u64 = 4096;

/// Why an event did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum DeliverError {
    /// The program is not there, or this user may not run it.
    #[error("{program} cannot be run: {error}")]
    Unrunnable { program: String, error: io::Error },
    /// It says that it failed.
    #[error("{program} ended with {status}")]
    Failed { program: String, status: String },
    /// It was ended.
    #[error("no end within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The server could not be reached, or is not well.
    #[error("{0}")]
    Unreachable(String),
    /// The server does not want it.
    #[error("the server answered with status {0}")]
    Refused(u16),
    /// A file that the webhook needs.
    #[error("{0}")]
    File(String),
}

impl DeliverError {
    /// Whether it may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::TimedOut(_) | Self::Unrunnable { .. } | Self::Failed { .. } | Self::File(_) => {
                false
            }
            // RFC 9110 §15.6, RFC 6585 §4.
            Self::Refused(status) => *status >= 500 || *status == 429,
        }
    }
}

/// Hands it over, once.
///
/// # Errors
/// It did not arrive, or the command failed.
pub fn deliver(hook: &Hook, occurrence: &Occurrence) -> Result<(), DeliverError> {
    match &hook.action {
        Action::Command(words) => run(words, hook.timeout, occurrence),
        Action::Webhook(webhook) => post(webhook, hook.timeout, occurrence),
    }
}

fn run(words: &[String], timeout: Duration, occurrence: &Occurrence) -> Result<(), DeliverError> {
    let (program, arguments) = words.split_first().expect("a command has a program");
    let unrunnable = |error| DeliverError::Unrunnable {
        program: program.clone(),
        error,
    };
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("LANG", "C.UTF-8")
        .envs(occurrence.environment())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // Of its own, so that what it starts is ended with it.
        .process_group(0)
        .spawn()
        .map_err(unrunnable)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command need not read it, and it fits into the pipe.
        let _ = writeln!(stdin, "{}", occurrence.document());
    }
    let status = wait(&mut child, timeout).map_err(unrunnable)?;
    match status {
        None => Err(DeliverError::TimedOut(timeout)),
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(DeliverError::Failed {
            program: program.clone(),
            status: status.to_string(),
        }),
    }
}

/// Its exit status; `None`: it took too long, and was killed with all that it started.
fn wait(child: &mut Child, timeout: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() >= timeout {
            break;
        }
        thread::sleep(STEP);
    }
    // It has not been waited for, so the number is still its own.
    if let Ok(leader) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
    }
    child.wait()?;
    Ok(None)
}

fn post(webhook: &Webhook, timeout: Duration, occurrence: &Occurrence) -> Result<(), DeliverError> {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .timeout_global(Some(timeout));
    if webhook.url.starts_with("https://") {
        config = config.tls_config(tls(&webhook.authorities)?);
    }
    let agent: Agent = config.build().into();
    let mut request = agent
        .post(&webhook.url)
        .header("content-type", "application/json")
        .header("user-agent", "keiro");
    if let Some(file) = &webhook.token_file {
        let token = Zeroizing::new(read(file, TOKEN_BYTES_MAX)?);
        let token = Zeroizing::new(String::from_utf8_lossy(&token).trim().to_owned());
        request = request.header("authorization", format!("Bearer {}", *token));
    }
    // The error's text names the host and not what follows it.
    let answer = request.send(occurrence.document());
    let answer = answer.map_err(|error| DeliverError::Unreachable(error.to_string()))?;
    match answer.status().as_u16() {
        200..=299 => Ok(()),
        status => Err(DeliverError::Refused(status)),
    }
}

fn tls(authorities: &Path) -> Result<TlsConfig, DeliverError> {
    let pem = read(authorities, AUTHORITIES_BYTES_MAX)?;
    let wrong = |why: &str| DeliverError::File(format!("{}: {why}", authorities.display()));
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| wrong("not PEM"))?;
    if found.is_empty() {
        return Err(wrong("no certificate is in it"));
    }
    let roots: Vec<_> = found
        .iter()
        .map(|der| Certificate::from_der(der).to_owned())
        .collect();
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::new_with_certs(&roots))
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
        .build())
}

fn read(file: &Path, bytes_max: u64) -> Result<Vec<u8>, DeliverError> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take(bytes_max).read_to_end(&mut bytes));
    read.map_err(|error| DeliverError::File(format!("{}: {error}", file.display())))?;
    Ok(bytes)
}
