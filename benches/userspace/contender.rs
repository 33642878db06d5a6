//! Who is measured: processes in front of the same backend.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Something that clients can call to reach the backend.
pub trait Contender {
    /// Returns its name, for the table.
    fn name(&self) -> &'static str;
    /// Where clients call.
    fn address(&self) -> SocketAddr;
    /// The process, if there is one.
    fn process(&self) -> Option<&Process>;

    /// Processor time that it and its children spent so far, in seconds.
    fn cpu(&self) -> f64 {
        self.process().map_or(0.0, |p| {
            // utime and stime are fields 14 and 15 of proc_pid_stat(5), in ticks.
            let ticks: u64 = p.fields("stat", |text| {
                let after = text.rsplit(')').next().unwrap_or("");
                let fields: Vec<u64> = after
                    .split_whitespace()
                    .filter_map(|f| f.parse().ok())
                    .collect();
                fields.get(10..12).map_or(0, |f| f.iter().sum())
            });
            ticks as f64 / 100.0
        })
    }

    /// Resident memory of it and its children, in KiB.
    fn memory(&self) -> Option<u64> {
        self.process().map(|p| {
            p.fields("status", |text| {
                let line = text.lines().find(|l| l.starts_with("VmRSS:"));
                line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok())
                    .unwrap_or(0)
            })
        })
    }
}

/// A process with its folder; both go when it is dropped.
pub struct Process {
    child: Child,
    folder: PathBuf,
}

impl Process {
    /// Starts `program` with a fresh folder in which `file` holds `text`;
    /// `None` if it is not installed.
    fn start(program: &str, arguments: &[&str], file: &str, text: &str) -> Option<Process> {
        let name = program.rsplit('/').next().unwrap_or(program);
        let folder =
            std::env::temp_dir().join(format!("tripod-bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).ok()?;
        let text = text.replace("FOLDER", &folder.to_string_lossy());
        fs::write(folder.join(file), text).ok()?;
        let child = Command::new(program)
            .args(
                arguments
                    .iter()
                    .map(|a| a.replace("FOLDER", &folder.to_string_lossy())),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Process { child, folder }),
            Err(e) => {
                println!("{name} is left out: {e}");
                let _ = fs::remove_dir_all(&folder);
                None
            }
        }
    }

    /// The sum over the process and its children of what `read` finds in the
    /// named file of /proc.
    fn fields(&self, file: &str, read: impl Fn(&str) -> u64) -> u64 {
        let id = self.child.id();
        let children =
            fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let children = children.split_whitespace().map(str::to_owned);
        std::iter::once(id.to_string())
            .chain(children)
            .filter_map(|id| fs::read_to_string(format!("/proc/{id}/{file}")).ok())
            .map(|text| read(&text))
            .sum()
    }

    fn reachable(self, address: SocketAddr) -> Option<Process> {
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if begun.elapsed() > Duration::from_secs(10) {
                println!("{address} is left out: nothing answers there");
                return None;
            }
            thread::yield_now();
        }
        Some(self)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.child.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// No proxy at all.
pub struct Direct {
    backend: SocketAddr,
}

impl Direct {
    /// The backend itself.
    pub fn new(backend: SocketAddr) -> Self {
        Direct { backend }
    }
}

impl Contender for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }
    fn address(&self) -> SocketAddr {
        self.backend
    }
    fn process(&self) -> Option<&Process> {
        None
    }
}

macro_rules! proxy {
    ($type:ident, $name:literal, $address:literal, |$backend:ident| $start:expr) => {
        #[doc = concat!($name, " in front of the backend.")]
        pub struct $type(Process);

        impl $type {
            /// Started, and answering; `None` if it is not installed.
            pub fn start($backend: SocketAddr) -> Option<Self> {
                let process = $start?;
                process
                    .reachable($address.parse().expect("an address"))
                    .map($type)
            }
        }

        impl Contender for $type {
            fn name(&self) -> &'static str {
                $name
            }
            fn address(&self) -> SocketAddr {
                $address.parse().expect("an address")
            }
            fn process(&self) -> Option<&Process> {
                Some(&self.0)
            }
        }
    };
}

proxy!(Tripod, "tripod", "10.96.0.1:80", |backend| Process::start(
    env!("CARGO_BIN_EXE_tripod"),
    &[
        "--proxy-mode=userspace",
        "--userspace-capture=local",
        "--hostname-override=bench",
        "--manifests=FOLDER",
    ],
    "service.yaml",
    &format!(
        "apiVersion: v1
kind: Service
metadata: {{name: bench, namespace: default}}
spec: {{clusterIP: 10.96.0.1, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: bench, namespace: default, labels: {{kubernetes.io/service-name: bench}}}}
addressType: IPv4
ports: [{{port: {}}}]
endpoints: [{{addresses: [{}]}}]
",
        backend.port(),
        backend.ip()
    )
));

proxy!(HaProxy, "haproxy", "127.0.0.1:7001", |backend| {
    Process::start(
        "haproxy",
        &["-f", "FOLDER/haproxy.cfg"],
        "haproxy.cfg",
        &format!(
            "global
  maxconn 4500
  nbthread 2
defaults
  mode tcp
  timeout connect 1s
  timeout client 60s
  timeout server 60s
  option splice-auto
listen bench
  bind 127.0.0.1:7001
  server backend {backend}
"
        ),
    )
});

proxy!(Nginx, "nginx", "127.0.0.1:7002", |backend| Process::start(
    "nginx",
    &["-c", "FOLDER/nginx.conf"],
    "nginx.conf",
    &format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
user root;
worker_processes 2;
pid FOLDER/pid;
error_log FOLDER/error;
events {{ worker_connections 9000; }}
stream {{ server {{ listen 127.0.0.1:7002 reuseport; proxy_pass {backend}; }} }}
"
    )
));
