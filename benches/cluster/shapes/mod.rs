//! Clusters of extreme shapes in each mode: the first sync, a restart, a full sync, single changes
//! and a storm of them, and how long calls wait meanwhile.
//!
//! Start and restart are measured with manifests in a folder, because there no server needs the
//! processor at the same time. Changes come from an API server, because changes of a folder are
//! held back until the writer pauses.

mod changes;
mod folder;
mod report;
mod row;
mod shape;
mod starts;
mod written;

use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};

use crate::{ApiServer, guest::GUEST, modes::Mode, node::in_namespace, prepare};

use self::{folder::Folder, row::Row};
pub use self::{
    report::report,
    row::SHAPES_FILE,
    shape::{Shape, shapes},
};

/// How long a start may take. A guest is several times slower.
const LIMIT: Duration = Duration::from_secs(120);
const LIMIT_IN_GUEST: Duration = Duration::from_secs(600);

/// The most files that the kernel lets a process open, unless fs.nr_open was changed.
const FILES: u64 = 1 << 20;

/// Returns the limit, which the environment can set.
fn limit() -> Duration {
    let asked = std::env::var("TRIPOD_BENCH_LIMIT").ok();
    let asked = asked.and_then(|text| text.parse().ok());
    let is_guest = std::env::var_os(GUEST).is_some();
    let usual = if is_guest { LIMIT_IN_GUEST } else { LIMIT };
    asked.map_or(usual, Duration::from_secs)
}

/// Measures one shape in one mode.
pub fn measure(mode: &'static Mode, shape: Shape) {
    println!("{}, {shape}", mode.title);
    // In userspace mode each port takes an open file. Without the right to raise the limit, the
    // row says how many ports were not applied.
    let _ = setrlimit(Resource::RLIMIT_NOFILE, FILES, FILES);
    let done = in_namespace(move || {
        prepare(mode);
        // Before any process: rules that an ended one leaves refuse connections to its local ports, of
        // which the server could get one.
        let api_server = ApiServer::open("shapes");
        let mut row = Row::new(mode.name, shape);
        let folder = Folder::of(mode.name, shape);
        if starts::measure(mode, shape, &folder, &mut row) {
            drop(folder);
            changes::measure(mode, shape, &api_server, &mut row);
        }
    });
    if done.join().is_err() {
        println!("  {shape} was not measured to the end");
    }
}
