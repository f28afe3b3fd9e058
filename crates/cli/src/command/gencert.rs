//! `keiro gencert`: a certificate that is signed with its own key.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use aws_lc_rs::digest;
use rcgen::{CertificateParams, DnType, KeyPair};

use crate::{args, failure::Failure, output};

pub(crate) fn gencert(args: &args::Gencert) -> Result<(), Failure> {
    let failed = |error: rcgen::Error| {
        Failure::new("no certificate can be made of these addresses and names").because(error)
    };
    let mut params = CertificateParams::new(args.names.clone()).map_err(failed)?;
    params
        .distinguished_name
        .push(DnType::CommonName, "Keiro gateway");
    let key = KeyPair::generate().map_err(failed)?;
    let cert = params.self_signed(&key).map_err(failed)?;
    // Both or neither: a key without its certificate would only be in the way.
    let mut key_file = create(&args.key, 0o600)?;
    let cert_file = create(&args.cert, 0o644);
    let written = cert_file.and_then(|mut cert_file| {
        write(&mut key_file, &args.key, &key.serialize_pem())?;
        write(&mut cert_file, &args.cert, &cert.pem())
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&args.key);
    }
    written?;
    let fingerprint = digest::digest(&digest::SHA256, cert.der());
    let fingerprint: Vec<String> = fingerprint
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect();
    output::text(format_args!(
        "SHA-256 fingerprint: {}\n",
        fingerprint.join(":")
    ))
}

fn create(path: &Path, mode: u32) -> Result<File, Failure> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path);
    created.map_err(|error| {
        Failure::new(format!("cannot make {}", path.display()))
            .because(error)
            .hint("remove it if it is not needed any more, or name another with --cert and --key")
    })
}

fn write(file: &mut File, path: &Path, text: &str) -> Result<(), Failure> {
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    written.map_err(|error| Failure::new(format!("cannot write {}", path.display())).because(error))
}
