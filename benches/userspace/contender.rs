//! The contenders: processes on nodes between the same client and the same backend.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Child,
    thread,
    time::{Duration, Instant},
};

use super::{
    load,
    network::{Network, Node, addresses},
    processors::Part,
};

/// Time limit until a contender answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// Something that clients can call to reach the backend.
pub struct Contender {
    /// Its name, for the tables.
    pub name: String,
    address: SocketAddr,
    /// `None` for the direct connection, without a proxy.
    process: Option<Process>,
    _node: Node,
}

/// A process with its folder; dropping it ends the one and removes the other.
struct Process {
    child: Child,
    folder: PathBuf,
}

/// How a proxy is started.
struct Recipe {
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    file: &'static str,
    text: fn(&Node) -> String,
    called: fn(&Node) -> SocketAddr,
}

/// Names another build of Tripod, which is measured next to this one.
const BESIDE: &str = "TRIPOD_BESIDE";

/// Additional arguments for this build of Tripod; the other one gets none.
const ARGUMENTS: &str = "TRIPOD_ARGUMENTS";

const TRIPOD: &str = env!("CARGO_BIN_EXE_tripod");

const RECIPES: [Recipe; 4] = [
    Recipe {
        name: "HAProxy",
        program: "haproxy",
        arguments: &["-f", "FOLDER/haproxy.cfg"],
        file: "haproxy.cfg",
        text: haproxy,
        called: |node| node.own,
    },
    Recipe {
        name: "nginx stream",
        program: "nginx",
        arguments: &["-c", "FOLDER/nginx.conf"],
        file: "nginx.conf",
        text: nginx,
        called: |node| node.own,
    },
    Recipe {
        name: "Tripod local",
        program: TRIPOD,
        arguments: &[
            "--proxy-mode=userspace",
            "--userspace-capture=local",
            "--hostname-override=bench",
            "--manifests=FOLDER",
        ],
        file: "service.yaml",
        text: service,
        called: |node| node.service,
    },
    Recipe {
        name: "Tripod redirect",
        program: TRIPOD,
        arguments: &[
            "--proxy-mode=userspace",
            "--userspace-capture=redirect",
            "--hostname-override=bench",
            "--manifests=FOLDER",
        ],
        file: "service.yaml",
        text: service,
        called: |node| node.service,
    },
];

impl Contender {
    /// Starts all installed contenders, the direct connection first.
    pub fn start_all(network: &Network) -> Vec<Contender> {
        let node = network.node(0);
        let mut all = vec![Contender {
            name: "direct".to_owned(),
            address: node.backend,
            process: None,
            _node: node,
        }];
        let others = RECIPES.iter().map(|recipe| (recipe, None));
        let beside = std::env::var(BESIDE).ok();
        let beside = beside.iter().flat_map(|program| {
            let of_tripod = RECIPES.iter().filter(|recipe| recipe.program == TRIPOD);
            of_tripod.map(|recipe| (recipe, Some(program.as_str())))
        });
        for (number, (recipe, program)) in (1..).zip(others.chain(beside)) {
            match recipe.start(program, network, number) {
                Ok(contender) => all.push(contender),
                Err(error) => eprintln!("{} is excluded: {error}", recipe.name),
            }
        }
        all
    }

    /// Where clients call.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Processor time of it and its children so far, in seconds.
    pub fn cpu(&self) -> f64 {
        // utime and stime are fields 14 and 15 of proc_pid_stat(5), in ticks.
        let ticks = self.fields("stat", |text| {
            let after = text.rsplit(')').next().unwrap_or("");
            let fields: Vec<u64> = after
                .split_whitespace()
                .filter_map(|f| f.parse().ok())
                .collect();
            fields.get(10..12).map_or(0, |f| f.iter().sum())
        });
        ticks.unwrap_or(0) as f64 / 100.0
    }

    /// Resident memory of it and its children, in KiB.
    pub fn memory(&self) -> Option<u64> {
        self.fields("status", |text| {
            let line = text.lines().find(|l| l.starts_with("VmRSS:"));
            line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok())
                .unwrap_or(0)
        })
    }

    /// Sums the numbers that `read` finds in the named file of /proc of the process and its
    /// children.
    fn fields(&self, file: &str, read: impl Fn(&str) -> u64) -> Option<u64> {
        let id = self.process.as_ref()?.child.id();
        let children =
            fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let children = children.split_whitespace().map(str::to_owned);
        let all = std::iter::once(id.to_string()).chain(children);
        let texts = all.filter_map(|id| fs::read_to_string(format!("/proc/{id}/{file}")).ok());
        Some(texts.map(|text| read(&text)).sum())
    }
}

impl Recipe {
    /// Starts it, or another `program` instead.
    fn start(
        &self,
        program: Option<&str>,
        network: &Network,
        number: u8,
    ) -> Result<Contender, String> {
        let node = network.node(number);
        let folder = Path::new("/run/bench").join(number.to_string());
        let in_folder = |word: &str| word.replace("FOLDER", &folder.to_string_lossy());
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let text = in_folder(&(self.text)(&node));
        fs::write(folder.join(self.file), text).map_err(|error| error.to_string())?;
        let more = match program {
            None if self.program == TRIPOD => std::env::var(ARGUMENTS).unwrap_or_default(),
            _ => String::new(),
        };
        let name = match program {
            Some(program) => format!("{} ({program})", self.name),
            None => format!("{} {more}", self.name).trim_end().to_owned(),
        };
        let program = match (program, self.program, std::env::var("TRIPOD")) {
            (None, TRIPOD, Ok(other)) => other,
            (program, own, _) => program.unwrap_or(own).to_owned(),
        };
        let words = self.arguments.iter().copied();
        let words = words.chain(more.split_whitespace());
        let arguments: Vec<_> = words.map(in_folder).collect();
        let child = Part::Proxy.run(|| node.spawn(&program, &arguments));
        let process = Process {
            child: child.map_err(|error| error.to_string())?,
            folder,
        };
        let address = (self.called)(&node);
        let begun = Instant::now();
        let answers = || {
            let limit = Duration::from_millis(100);
            TcpStream::connect_timeout(&address, limit).is_ok()
        };
        while !network.client.enter(answers) {
            if begun.elapsed() > PATIENCE {
                return Err(format!("nothing answers at {address}"));
            }
            thread::yield_now();
        }
        Ok(Contender {
            name,
            address,
            process: Some(process),
            _node: node,
        })
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

/// It opens no file beyond its limit; each connection and each pipe takes two.
fn haproxy(node: &Node) -> String {
    format!(
        "global
  maxconn {}
  maxpipes 100
  nbthread {}
defaults
  mode tcp
  timeout connect 1s
  timeout client 600s
  timeout server 600s
  option splice-auto
listen bench
  bind :{}
  server backend {}
",
        load::idle_connections() + 50,
        Part::Proxy.processors().len(),
        node.own.port(),
        node.backend
    )
}

fn nginx(node: &Node) -> String {
    format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
user root;
worker_processes {};
pid FOLDER/pid;
error_log FOLDER/error;
events {{ worker_connections {}; }}
stream {{ server {{ listen {} reuseport; proxy_pass {}; }} }}
",
        Part::Proxy.processors().len(),
        // Each worker counts both sides of a connection.
        2 * load::idle_connections(),
        node.own.port(),
        node.backend
    )
}

fn service(node: &Node) -> String {
    let services = addresses(node.service).enumerate().map(|(number, called)| {
        format!(
            "apiVersion: v1
kind: Service
metadata: {{name: bench-{number}, namespace: default}}
spec: {{clusterIP: {}, ports: [{{port: {}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: bench-{number}
  namespace: default
  labels: {{kubernetes.io/service-name: bench-{number}}}
addressType: IPv4
ports: [{{port: {}}}]
endpoints: [{{addresses: [{}]}}]
",
            called.ip(),
            called.port(),
            node.backend.port(),
            node.backend.ip()
        )
    });
    services.collect::<Vec<_>>().join("---\n")
}
