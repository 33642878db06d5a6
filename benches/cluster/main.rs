//! Costs of a large cluster: the program itself, as it runs on a node, next to a server that speaks
//! the API's protocol, in separate network namespaces. Writes sections `scale`, `churn`,
//! `connecting` and `shapes` of docs/benchmarks.md.
//!
//! Arguments, each optional: the parts (`scale`, `churn`, `connecting`, `shapes`), the modes
//! (`nftables`, `iptables-nft`, `iptables-legacy`, `local`, `redirect`, `ipvs`), the
//! numbers of Services, and the shapes, such as `44125x2`. Other shapes than those of the document
//! are only printed. `report` measures nothing and writes the sections from the existing
//! figures. `intervals` instead measures the cost of the shortest time between two syncs, and
//! `compare` runs the program that `KUBE_PROXY` names next to Tripod, in nftables mode unless modes
//! are named.

mod churn;
// Shared with the tests, which use more of it.
#[allow(dead_code)]
#[path = "../../tests/api/cluster.rs"]
mod cluster;
mod compare;
mod connecting;
#[allow(dead_code)]
#[path = "../document/mod.rs"]
mod document;
#[path = "../../tests/api/feed.rs"]
mod feed;
mod figures;
mod guest;
mod intervals;
#[allow(dead_code)]
#[path = "../../tests/lab"]
mod lab {
    pub mod process;
    pub mod guest {
        pub mod boot;
    }
}
mod large;
mod modes;
mod node;
#[allow(dead_code)]
#[path = "../../tests/api/objects.rs"]
mod objects;
mod prober;
mod process;
#[path = "../../tests/api/query.rs"]
mod query;
#[allow(dead_code)]
#[path = "../../tests/api/reviews.rs"]
mod reviews;
mod scale;
#[allow(dead_code)]
#[path = "../../tests/api/server.rs"]
mod server;
mod shapes;
#[path = "../../tests/api/single.rs"]
mod single;
#[allow(dead_code)]
#[path = "../../tests/api/tcp_server.rs"]
mod tcp_server;
#[allow(dead_code)]
#[path = "../../tests/api/tls.rs"]
mod tls;

use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    time::Instant,
};

use self::{
    guest::GUEST,
    large::Size,
    modes::{IPVS, MODES, Mode},
    node::in_namespace,
    process::Tripod,
    server::Server,
    shapes::Shape,
    tcp_server::TcpServer,
    tls::Authority,
};

/// Set in the process that runs inside the namespaces.
const INSIDE: &str = "TRIPOD_BENCH_INSIDE";

const PARTS: [&str; 4] = ["scale", "churn", "connecting", "shapes"];
/// Numbers of Services for the scale, and those with a minute of changes.
const SIZES: [u32; 5] = [10, 100, 1000, 5000, 20_000];
const STORMS: [u32; 3] = [1000, 5000, 20_000];

fn main() -> ExitCode {
    if std::env::var_os(INSIDE).is_none() {
        let own = std::env::current_exe().expect("own path");
        // IPVS answers only to root, not to a user who is root in a namespace.
        let namespaces = if nix::unistd::geteuid().is_root() {
            "-nm"
        } else {
            "-Urnm"
        };
        let failed = Command::new("unshare")
            .args([namespaces, "--"])
            .arg(own)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1")
            .exec();
        eprintln!("cannot run unshare (util-linux): {failed}");
        return ExitCode::FAILURE;
    }
    // A file for xtables' lock, which an ordinary user cannot write outside.
    run("mount -t tmpfs tmpfs /run");
    let asked = Asked::new();
    if asked.names("intervals") {
        in_namespace(intervals::measure)
            .join()
            .expect("it is measured");
        return ExitCode::SUCCESS;
    }
    if asked.names("compare") {
        return compare(&asked);
    }
    if !asked.names("report") {
        for mode in MODES.iter().filter(|mode| asked.mode(mode.name)) {
            measure(mode, &asked);
        }
    }
    if std::env::var_os(GUEST).is_none() {
        figures::report(|part| asked.part(part));
    }
    ExitCode::SUCCESS
}

/// Compares with another program.
fn compare(asked: &Asked) -> ExitCode {
    let kube_proxy = match compare::kube_proxy() {
        Ok(path) => path,
        Err(remedy) => {
            eprintln!("{remedy}");
            return ExitCode::from(2);
        }
    };
    let given = asked.sizes();
    let mut sizes: Vec<u32> = given.iter().filter_map(|word| word.parse().ok()).collect();
    if sizes.is_empty() {
        sizes.extend(compare::SIZES);
    }
    // kube-proxy has no userspace mode, and no guest is started for this.
    let modes = MODES.iter().filter(|mode| asked.names(mode.name));
    let mut modes: Vec<&'static Mode> = modes.collect();
    if modes.is_empty() {
        modes.push(&MODES[0]);
    }
    for mode in modes {
        compare::measure(mode, &sizes, &kube_proxy);
    }
    ExitCode::SUCCESS
}

/// The arguments.
struct Asked(Vec<String>);

impl Asked {
    fn new() -> Asked {
        let words = std::env::args().skip(1);
        // cargo adds --bench.
        Asked(words.filter(|word| !word.starts_with('-')).collect())
    }

    fn names(&self, word: &str) -> bool {
        self.0.iter().any(|given| given == word)
    }

    /// Whether `word` is given, or no word of its kind.
    fn wants(&self, word: &str, is_alike: impl Fn(&str) -> bool) -> bool {
        self.names(word) || !self.0.iter().any(|given| is_alike(given))
    }

    fn part(&self, part: &str) -> bool {
        self.wants(part, |word| PARTS.contains(&word))
    }

    fn mode(&self, mode: &str) -> bool {
        self.wants(mode, |word| MODES.iter().any(|mode| mode.name == word))
    }

    fn size(&self, services: u32) -> bool {
        self.wants(&services.to_string(), is_size)
    }

    /// The shapes to measure: those that are given, or all of the document.
    fn shapes(&self) -> Vec<Shape> {
        let given: Vec<_> = self
            .0
            .iter()
            .filter_map(|word| Shape::parse(word))
            .collect();
        if given.is_empty() {
            shapes::shapes().collect()
        } else {
            given
        }
    }

    fn sizes(&self) -> Vec<String> {
        let words = self.0.iter().filter(|word| is_size(word));
        words.cloned().collect()
    }
}

fn is_size(word: &str) -> bool {
    word.parse::<u32>().is_ok()
}

fn measure(mode: &'static Mode, asked: &Asked) {
    let is_guest = std::env::var_os(GUEST).is_some();
    if mode.name == IPVS && !is_guest {
        // Each part in a separate guest: together they would take longer than its lifetime.
        for part in PARTS.into_iter().filter(|part| asked.part(part)) {
            let mut words = asked.sizes();
            words.extend([part, IPVS].map(str::to_owned));
            if part == "shapes" {
                for shape in asked.shapes() {
                    guest::measure(&[part.to_owned(), IPVS.to_owned(), shape.to_string()]);
                }
            } else {
                guest::measure(&words);
            }
        }
        return;
    }
    for services in SIZES.into_iter().filter(|size| asked.size(*size)) {
        let storm = asked.part("churn") && STORMS.contains(&services);
        let scale = asked.part("scale");
        if !scale && !storm {
            continue;
        }
        println!("{}, {services} Services", mode.title);
        let done = in_namespace(move || with_server(mode, Size::new(services), scale, storm));
        if done.join().is_err() {
            println!("  {services} Services were not measured");
        }
    }
    if asked.part("connecting") {
        println!("{}, connections", mode.title);
        connecting::measure(mode, |services| asked.size(services));
    }
    if asked.part("shapes") {
        for shape in asked.shapes() {
            shapes::measure(mode, shape);
        }
    }
}

/// Prepares the namespace of this thread for a mode.
fn prepare(mode: &Mode) {
    for program in mode
        .engine
        .into_iter()
        .flat_map(|engine| ["iptables", "ip6tables"].map(|program| format!("{program}-{engine}")))
    {
        run(&format!("{program} -w -t mangle -N KUBE-IPTABLES-HINT"));
    }
}

/// An API server on this machine.
struct ApiServer {
    server: Server,
    tcp: TcpServer,
    /// Serves for as long as it is there: fields are dropped in their order.
    _runtime: tokio::runtime::Runtime,
}

impl ApiServer {
    /// Starts one without objects; its files have `name` in theirs.
    fn open(name: &str) -> ApiServer {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let server = Server::new();
        let authority = Authority::new();
        let opened = TcpServer::open(server.clone(), name, &authority, false);
        let tcp = runtime.block_on(opened);
        ApiServer {
            server,
            tcp,
            _runtime: runtime,
        }
    }
}

fn with_server(mode: &'static Mode, size: Size, scale: bool, storm: bool) {
    prepare(mode);
    let ApiServer { server, tcp, .. } = &ApiServer::open("bench");
    server.change(|cluster| size.fill(cluster));
    let begun = Instant::now();
    let tripod = Tripod::of_cluster(mode.flags, &tcp.file("kubeconfig"));
    if scale {
        scale::measure(mode.name, &size, server, &tripod, begun);
    } else {
        tripod.reaches_missing(1.0);
    }
    if storm {
        churn::measure(mode.name, &size, server, &tripod);
    }
}

/// Runs a program with its arguments.
fn run(command: &str) {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let done = Command::new(program).args(words).status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "cannot run {command}"
    );
}
