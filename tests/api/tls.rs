//! Certificates of a server and its clients, and the authorities that signed them.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};

/// An authority that signs for servers and clients.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Authority(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs for a host or a client.
    pub fn identity(&self, name: &str) -> Identity {
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        Identity {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// For a server that speaks HTTP/1.1 and HTTP/2; with `clients`, only for clients that this
    /// authority signed.
    pub fn acceptor(&self, host: &str, clients: bool) -> TlsAcceptor {
        self.acceptor_of(host, clients, &[b"h2", b"http/1.1"])
    }

    /// For a server that speaks these protocols, by their names in ALPN.
    pub fn acceptor_of(&self, host: &str, clients: bool, protocols: &[&[u8]]) -> TlsAcceptor {
        let identity = self.identity(host);
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let config = if clients {
            let verifier = WebPkiClientVerifier::builder(self.roots()).build().unwrap();
            ServerConfig::builder().with_client_cert_verifier(verifier)
        } else {
            ServerConfig::builder().with_no_client_auth()
        };
        let mut config = config.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }

    /// For a client that trusts this authority.
    pub fn connector(&self) -> TlsConnector {
        let config = ClientConfig::builder().with_root_certificates(self.roots());
        TlsConnector::from(Arc::new(config.with_no_client_auth()))
    }
}

/// For a client that trusts every certificate, as scrapers of self-signed ones do.
pub fn trusting_anyone() -> TlsConnector {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Anyone(provider.signature_verification_algorithms));
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    TlsConnector::from(Arc::new(config.with_no_client_auth()))
}

#[derive(Debug)]
struct Anyone(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
