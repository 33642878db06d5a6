//! A registry of images on a loopback port, with TLS.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use super::done;
use crate::lab::{Group, die_with_parent, eventually};

/// Ends with the test.
pub struct Registry {
    folder: PathBuf,
    /// Address and port.
    pub address: String,
    _process: Group,
}

impl Registry {
    /// Starts `program`, Debian's docker-registry, with its files in `folder`.
    pub fn start(program: &Path, folder: &Path) -> Registry {
        fs::create_dir_all(folder).expect("a folder");
        let settings = r#"{
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": "objects"}},
            "http": {"addr": "127.0.0.1:0", "tls": {"certificate": "tls.crt", "key": "tls.key"}}
        }"#;
        fs::write(folder.join("config.yml"), settings).expect("a file");
        let mut certificate = Command::new("openssl");
        certificate.args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ]);
        certificate.args([
            "-keyout",
            "tls.key",
            "-out",
            "tls.crt",
            "-subj",
            "/CN=registry",
        ]);
        certificate.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
        done(certificate.current_dir(folder));
        let mut command = die_with_parent(program);
        command
            .args(["serve", "config.yml"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("log")).expect("a file"));
        let process = Group::spawn(&mut command).expect("starting the registry");
        let address = eventually("the registry listens", Duration::from_secs(30), || {
            let log = fs::read_to_string(folder.join("log")).expect("its log");
            let address = log.split("listening on ").nth(1).and_then(|rest| {
                let end = rest.find([',', '"'])?;
                Some(rest[..end].to_owned())
            });
            address.ok_or(log)
        });
        Registry {
            folder: folder.to_owned(),
            address,
            _process: process,
        }
    }

    /// Path of the certificate that programs in Go trust by `SSL_CERT_FILE`.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("tls.crt")
    }

    /// The path at which it stores an object: a manifest or a layer.
    pub fn object(&self, digest: &str) -> PathBuf {
        let sum = digest.strip_prefix("sha256:").expect("a digest");
        let objects = self.folder.join("objects/docker/registry/v2/blobs/sha256");
        objects.join(&sum[..2]).join(sum).join("data")
    }
}
