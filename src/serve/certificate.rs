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
    #[error("{}: it has no CERTIFICATE section", .0.display())]
    Empty(PathBuf),
    /// No certificate can be made.
    #[error("cannot create a certificate for {}: {reason}", names.join(", "))]
    SelfSigned {
        /// Host names and addresses that it was to be for.
        names: Vec<String>,
        /// Why the library refused them.
        #[source]
        reason: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl CertificateError {
    /// Returns whether a file could not be read, whatever is in it.
    fn is_of_reading(&self) -> bool {
        matches!(
            self,
            CertificateError::File {
                reason: pem::Error::Io(_),
                ..
            }
        )
    }
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
        self.config_after(|| config(&self.identity))
    }

    /// Returns the same; `read` reads the files if they were changed.
    fn config_after(
        &self,
        read: impl FnOnce() -> Result<ServerConfig, CertificateError>,
    ) -> Arc<ServerConfig> {
        let mut current = self.current.lock();
        // Before the files are read: a change while they are is noticed at the next call.
        let stamps = stamps(&self.identity);
        if stamps != current.stamps {
            match read() {
                Ok(config) => {
                    current.stamps = stamps;
                    current.config = Arc::new(config);
                    current.logged.end();
                    tracing::info!("the certificate of the secure metrics address was read again");
                }
                Err(error) => {
                    // What cannot be read (the process may open no more files) may be at the next
                    // call; what is wrong in the files stays so until they are changed again.
                    if !error.is_of_reading() {
                        current.stamps = stamps;
                    }
                    let text = error.to_string();
                    if current.logged.differs(&text) {
                        tracing::warn!("{text}; the previous certificate stays in use");
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nix::errno::Errno;

    use super::*;

    /// Writes a certificate of its own with its key to new files: the time of a change has the
    /// kernel's ticks, and the size may be as before.
    fn write(identity: &Identity) {
        let Identity::Files { certificate, key } = identity else {
            panic!("{identity:?}");
        };
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        for (path, text) in [
            (certificate, made.cert.pem()),
            (key, made.signing_key.serialize_pem()),
        ] {
            let new = path.with_extension("new");
            fs::write(&new, text).unwrap();
            fs::rename(&new, path).unwrap();
        }
    }

    #[test]
    fn changed_files_that_cannot_be_read_are_read_later() {
        let folder = std::env::temp_dir().join(format!("tripod-identity-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = |name| folder.join(name);
        let identity = Identity::Files {
            certificate: path("tls.crt"),
            key: path("tls.key"),
        };
        write(&identity);
        let served = Certificate::open(identity.clone()).unwrap();
        let first = served.config();
        write(&identity);
        let attempts = Cell::new(0);
        let fails = |reason| {
            let after = served.config_after(|| {
                attempts.set(attempts.get() + 1);
                Err(CertificateError::File {
                    path: path("tls.crt"),
                    reason,
                })
            });
            assert!(Arc::ptr_eq(&after, &first), "what was read before is used");
        };
        for number in 1..=2 {
            fails(pem::Error::Io(Errno::EMFILE.into()));
            assert_eq!(attempts.get(), number);
        }
        let second = served.config();
        assert!(!Arc::ptr_eq(&second, &first), "it is read again");
        assert!(Arc::ptr_eq(&second, &served.config()), "once");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_with_wrong_contents_are_read_once() {
        let folder = std::env::temp_dir().join(format!("tripod-wrong-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let identity = Identity::Files {
            certificate: folder.join("tls.crt"),
            key: folder.join("tls.key"),
        };
        write(&identity);
        let served = Certificate::open(identity.clone()).unwrap();
        let first = served.config();
        fs::write(folder.join("tls.crt"), "nothing").unwrap();
        assert!(Arc::ptr_eq(&first, &served.config()));
        served.config_after(|| panic!("nothing was changed since"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
