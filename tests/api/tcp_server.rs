//! The server on a port of this machine, for clients that come over TCP.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use tripod::api_client::Connection;

use super::{server::Server, tls::Authority};

const HERE: &str = "127.0.0.1";
/// The name in a client's certificate.
const CLIENT: &str = "node-a";

/// A server on a port of this machine, and the files of a client.
pub struct TcpServer {
    pub server: Server,
    pub address: SocketAddr,
    host: String,
    tls: Arc<Mutex<TlsAcceptor>>,
    dir: PathBuf,
}

impl TcpServer {
    /// Opens it to clients of `authority`, who need a certificate of it if `clients` is set.
    pub async fn open(
        server: Server,
        name: &str,
        authority: &Authority,
        clients: bool,
    ) -> TcpServer {
        TcpServer::open_at(HERE, server, name, authority, clients).await
    }

    /// Does the same at another address than loopback's.
    pub async fn open_at(
        host: &str,
        server: Server,
        name: &str,
        authority: &Authority,
        clients: bool,
    ) -> TcpServer {
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        TcpServer::open_by(listener, host, server, name, authority, clients)
    }

    /// Does the same with a listening socket, such as one of another network namespace.
    pub fn open_by(
        listener: TcpListener,
        host: &str,
        server: Server,
        name: &str,
        authority: &Authority,
        clients: bool,
    ) -> TcpServer {
        let dir = std::env::temp_dir().join(format!("tripod-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let address = listener.local_addr().unwrap();
        let tls = Arc::new(Mutex::new(authority.acceptor(host, clients)));
        tokio::spawn({
            let (server, tls) = (server.clone(), Arc::clone(&tls));
            async move {
                while let Ok((socket, _)) = listener.accept().await {
                    if server.script().down {
                        continue;
                    }
                    let acceptor = tls.lock().unwrap().clone();
                    server.serve(socket, acceptor);
                }
            }
        });
        let tcp = TcpServer {
            server,
            address,
            host: host.to_owned(),
            tls,
            dir,
        };
        tcp.write("ca.crt", &authority.pem());
        tcp.client(authority);
        tcp.write("token", "first\n");
        tcp.point_to(&format!("https://{address}"));
        tcp
    }

    /// Writes a temporary file and renames it, like programs that rotate credentials.
    pub fn write(&self, name: &str, text: &str) {
        let beside = self.dir.join(".beside");
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.dir.join(name)).unwrap();
    }

    pub fn client(&self, authority: &Authority) {
        let identity = authority.identity(CLIENT);
        self.write("client.crt", &identity.certificate);
        self.write("client.key", &identity.key);
    }

    /// Its paths are relative to its folder.
    pub fn point_to(&self, url: &str) {
        let user = "tokenFile: token, client-certificate: client.crt, client-key: client.key";
        self.configure(
            &format!("server: {url}, certificate-authority: ca.crt"),
            user,
        );
    }

    /// Writes a kubeconfig with these fields of the cluster and the user.
    pub fn configure(&self, cluster: &str, user: &str) {
        let text = format!(
            "apiVersion: v1\n\
             kind: Config\n\
             current-context: it\n\
             contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n\
             clusters: [{{name: it, cluster: {{{cluster}}}}}]\n\
             users: [{{name: it, user: {{{user}}}}}]\n"
        );
        self.write("kubeconfig", &text);
    }

    /// Admits clients of another authority from now on.
    pub fn trust(&self, authority: &Authority, clients: bool) {
        *self.tls.lock().unwrap() = authority.acceptor(&self.host, clients);
    }

    /// Speaks these protocols, by their names in ALPN, from now on.
    pub fn speak(&self, authority: &Authority, protocols: &[&[u8]]) {
        *self.tls.lock().unwrap() = authority.acceptor_of(&self.host, false, protocols);
    }

    /// The connection of its client.
    pub fn connection(&self) -> Connection {
        Connection {
            kubeconfig: Some(self.file("kubeconfig")),
            qps: 1000.0,
            ..Connection::default()
        }
    }

    /// A file of its client.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
