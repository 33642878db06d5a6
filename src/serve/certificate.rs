//! The certificate of a server, read again when its files change.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio_rustls::rustls::{
    self, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem, pem::PemObject},
};

use crate::log_once::LogOnce;

/// Where a certificate and its key come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Files in PEM, which may change at any time.
    Files {
        /// The certificate, followed by those of intermediate authorities.
        certificate: PathBuf,
        /// Its private key.
        key: PathBuf,
    },
    /// Made anew by each process, for these host names and addresses. It proves to nobody who
    /// serves.
    SelfSigned(Vec<String>),
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file cannot be read.
    #[error("{}: {reason}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        reason: pem::Error,
    },
    /// Certificate and key do not fit, or are of an unknown kind.
    #[error("certificate {} with key {}: {reason}", certificate.display(), key.display())]
    Pair {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the key.
        key: PathBuf,
        /// What is wrong with them.
        #[source]
        reason: rustls::Error,
    },
    /// There is no certificate in the file.
    #[error("{}: it has no section CERTIFICATE", .0.display())]
    Empty(PathBuf),
    /// No certificate can be made.
    #[error("no certificate for {} can be made: {reason}", names.join(", "))]
    SelfSigned {
        /// Host names and addresses that it was to be for.
        names: Vec<String>,
        /// Why the library refused them.
        #[source]
        reason: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The current certificate.
#[derive(Debug)]
pub(super) struct Certificate {
    identity: Identity,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// Stamps of the files when they were last read.
    stamps: [Option<Stamp>; 2],
    logged: LogOnce,
}

/// Device, inode, size, and time of the last change: what differs when a file was
/// written or replaced, also behind a link (volumes of Secrets).
type Stamp = (u64, u64, u64, i64, i64);

impl Certificate {
    /// Reads or makes the certificate.
    pub(super) fn open(identity: Identity) -> Result<Certificate, CertificateError> {
        let stamps = stamps(&identity);
        let config = Arc::new(config(&identity)?);
        let current = Current {
            config,
            stamps,
            logged: LogOnce::default(),
        };
        Ok(Certificate {
            identity,
            current: Mutex::new(current),
        })
    }

    /// Returns the TLS configuration with it. While changed files cannot be used (one was written,
    /// the other not yet), their last content stays in use.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock();
        // Before the files are read: a change while they are is noticed at the next call.
        let stamps = stamps(&self.identity);
        if stamps != current.stamps {
            current.stamps = stamps;
            match config(&self.identity) {
                Ok(config) => {
                    current.config = Arc::new(config);
                    current.logged.end();
                    tracing::info!("the certificate of the secure metrics address was read again");
                }
                Err(error) => {
                    let text = error.to_string();
                    if current.logged.differs(&text) {
                        tracing::warn!("{text}; the certificate from before stays in use");
                    }
                }
            }
        }
        Arc::clone(&current.config)
    }
}

fn config(identity: &Identity) -> Result<ServerConfig, CertificateError> {
    let (chain, key) = match identity {
        Identity::Files { certificate, key } => (chain(certificate)?, private_key(key)?),
        Identity::SelfSigned(names) => self_signed(names)?,
    };
    let failed = |reason| match identity.clone() {
        Identity::Files { certificate, key } => CertificateError::Pair {
            certificate,
            key,
            reason,
        },
        Identity::SelfSigned(names) => CertificateError::SelfSigned {
            names,
            reason: reason.into(),
        },
    };
    let provider = Arc::new(ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config =
        builder.and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(failed)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let failed = |reason| CertificateError::File {
        path: path.to_owned(),
        reason,
    };
    let text = fs::read(path).map_err(|reason| failed(pem::Error::Io(reason)))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(failed)?;
    if chain.is_empty() {
        return Err(CertificateError::Empty(path.to_owned()));
    }
    Ok(chain)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let key = fs::read(path).map_err(pem::Error::Io);
    let key = key.and_then(|text| PrivateKeyDer::from_pem_slice(&text));
    key.map_err(|reason| CertificateError::File {
        path: path.to_owned(),
        reason,
    })
}

/// Makes a certificate that never expires: nothing can be verified by it in any case.
fn self_signed(
    names: &[String],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), CertificateError> {
    let made = rcgen::generate_simple_self_signed(names.to_vec());
    let made = made.map_err(|reason| CertificateError::SelfSigned {
        names: names.to_vec(),
        reason: reason.into(),
    })?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    Ok((vec![made.cert.der().clone()], key.into()))
}

fn stamps(identity: &Identity) -> [Option<Stamp>; 2] {
    match identity {
        Identity::Files { certificate, key } => [certificate, key].map(|path| stamp(path).ok()),
        Identity::SelfSigned(_) => [None, None],
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let file = fs::metadata(path)?;
    Ok((
        file.dev(),
        file.ino(),
        file.size(),
        file.ctime(),
        file.ctime_nsec(),
    ))
}
