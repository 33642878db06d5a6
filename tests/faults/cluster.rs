//! The source of the objects: a folder of manifests, or an API server on the node.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    api::{server::Server, tcp_server::TcpServer, tls::Authority},
    lab::{EndpointChoice, Lab, Service},
};

pub struct Cluster {
    api: Option<Api>,
}

struct Api {
    server: Server,
    tcp: Option<TcpServer>,
    /// Its threads are in the node's namespace.
    runtime: Option<Runtime>,
}

impl Cluster {
    /// The laboratory's folder of manifests.
    pub fn of_manifests() -> Cluster {
        Cluster { api: None }
    }

    /// Starts an API server.
    pub fn of_api(lab: &Lab) -> Cluster {
        let server = Server::new();
        let addresses = lab
            .node
            .addresses
            .map(|address| json!({"type": "InternalIP", "address": address}));
        server.change(|cluster| {
            cluster.put(json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"},
                "status": {"addresses": addresses},
            }));
        });
        let (runtime, tcp) = lab.node.enter(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            let authority = Authority::new();
            let opened = TcpServer::open(server.clone(), "faults", &authority, false);
            let tcp = runtime.block_on(opened);
            let url = format!(
                "server: \"https://{}\", certificate-authority: ca.crt",
                tcp.address
            );
            tcp.configure(&url, "tokenFile: token");
            (runtime, tcp)
        });
        Cluster {
            api: Some(Api {
                server,
                tcp: Some(tcp),
                runtime: Some(runtime),
            }),
        }
    }

    /// Returns the flag by which Tripod finds the objects.
    pub fn flag(&self, lab: &Lab) -> [PathBuf; 2] {
        match self.api.as_ref().and_then(|api| api.tcp.as_ref()) {
            None => ["--manifests".into(), lab.manifests().into()],
            Some(tcp) => ["--kubeconfig".into(), tcp.file("kubeconfig")],
        }
    }

    pub fn publish(&self, lab: &Lab, service: &Service, endpoints: &[&str]) {
        let endpoints = endpoints.iter();
        let endpoints: Vec<_> = endpoints
            .map(|name| EndpointChoice::ready(name).on("node"))
            .collect();
        lab.publish_endpoints(service, &endpoints);
        for object in self.objects(lab, service) {
            self.change(|server| server.change(|cluster| cluster.put(object)));
        }
    }

    pub fn withdraw(&self, lab: &Lab, service: &Service) {
        for object in self.objects(lab, service) {
            self.change(|server| server.change(|cluster| cluster.delete(&object)));
        }
        lab.withdraw(service);
    }

    /// Reads the objects of its manifest, for the server.
    fn objects(&self, lab: &Lab, service: &Service) -> Vec<Value> {
        if self.api.is_none() {
            return Vec::new();
        }
        let file = lab.manifests().join(format!("{}.json", service.name));
        let text = std::fs::read_to_string(file).expect("it was published");
        let list: Value = serde_json::from_str(&text).expect("it is JSON");
        list["items"].as_array().expect("it is a list").clone()
    }

    fn change(&self, change: impl FnOnce(&Server)) {
        if let Some(api) = &self.api {
            change(&api.server);
        }
    }

    /// Delays each answer and each event by this time from now on.
    pub fn slow(&self, by: Duration) {
        self.change(|server| server.script().slow = by);
    }

    pub fn down(&self) {
        self.change(Server::down);
    }

    pub fn up(&self) {
        self.change(Server::up);
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.tcp = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
