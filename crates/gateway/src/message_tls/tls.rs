//! The TLS side of the listener: certificate and key from their files.

use std::{path::Path, sync::Arc};

use keiro_control::{
    config::{Config, ConfigError, MessageTls, MessageTlsFile},
    key,
};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    version::TLS13,
};

/// Reads certificate and key. TLS 1.3 alone: every client is a new one.
///
/// # Errors
/// What is wrong with a file, at the place of the configuration that names it.
pub(super) fn server_config(
    config: &Config,
    tls: &MessageTls,
) -> Result<ServerConfig, ConfigError> {
    let certificate = MessageTlsFile::Cert;
    let chain = certificates(&tls.cert)
        .map_err(|(message, hint)| config.message_tls_error(certificate, &message, hint))?;
    let pem = key::read_secret_pem(&tls.key).map_err(|error| match error {
        key::KeyFileError::Missing(path) => key_error(
            config,
            &format!("{}: no such file", path.display()),
            GENCERT,
        ),
        error => {
            let text = error.to_string();
            let (message, hint) = text.split_once("; ").unwrap_or((&text, ""));
            key_error(config, message, hint)
        }
    })?;
    let path = tls.key.display();
    let private_key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| key_error(config, &format!("{path}: no private key in PEM"), GENCERT))?;
    let mut server = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| key_error(config, &error.to_string(), ""))?
        .with_no_client_auth()
        .with_single_cert(chain, private_key)
        .map_err(|error| {
            let message = format!("{path}: does not fit the certificate: {error}");
            let hint = "name the key that the certificate was made with";
            key_error(config, &message, hint)
        })?;
    // A resumed session would save one signature, and its state would be one more thing to bound.
    server.send_tls13_tickets = 0;
    server.max_early_data_size = 0;
    Ok(server)
}

fn key_error(config: &Config, message: &str, hint: &str) -> ConfigError {
    config.message_tls_error(MessageTlsFile::Key, message, hint)
}

const GENCERT: &str = "`keiro gencert` makes certificate and key";

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, (String, &'static str)> {
    let shown = path.display();
    let pem = key::read_pem(path)
        .map_err(|error| (format!("{shown}: cannot be read: {error}"), GENCERT))?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| (format!("{shown}: not PEM"), GENCERT))?;
    match found.is_empty() {
        true => Err((format!("{shown}: no certificate in PEM"), GENCERT)),
        false => Ok(found),
    }
}
