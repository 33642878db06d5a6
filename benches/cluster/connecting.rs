//! Connection setup with few and many Services: the time from the beginning of a connection to the
//! first byte of the endpoint.

use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    cluster::Cluster,
    figures::{CONNECTING, blank, decimal},
    guest::GUEST,
    large::{BACKENDS, Size},
    modes::{Mode, ModeName},
    node::{call, in_namespace, part},
    prepare,
    process::Tripod,
};

/// Numbers of Services that are compared; the first is the reference for the others.
const SIZES: [u32; 7] = [1, 10, 100, 1000, 5000, 10_000, 20_000];
/// The largest number in a guest, which takes too long for larger ones.
const MOST_IN_GUEST: u32 = 5000;
/// Number of connections in each turn, and number of turns.
const CALLS: usize = 64;
const TURNS: usize = 50;
/// Time limit until the Services are applied.
const LIMIT: Duration = Duration::from_secs(60);

/// A namespace in which connections are made on request.
struct Caller {
    services: u32,
    ask: Sender<()>,
    answer: Receiver<Vec<Duration>>,
    times: Vec<Duration>,
}

/// A folder with the objects; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn of(mode: ModeName, size: &Size) -> Folder {
        let name = format!(
            "tripod-bench-{mode}-{}-{}",
            size.services,
            std::process::id()
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        let mut cluster = Cluster::default();
        size.fill(&mut cluster);
        let items: Vec<_> = cluster.all().collect();
        let list = json!({"kind": "List", "apiVersion": "v1", "items": items});
        std::fs::write(path.join("all.json"), list.to_string()).expect("its objects");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Caller {
    /// Starts `mode` with this number of Services; without a mode the endpoint itself is called.
    fn new(mode: Option<&'static Mode>, services: u32) -> Caller {
        let (ask, asked) = channel();
        let (answers, answer) = channel();
        in_namespace(move || {
            let size = Size::new(services);
            let running = mode.map(|mode| {
                prepare(mode);
                let folder = Folder::of(mode.name, &size);
                let tripod = Tripod::of_folder(mode.flags, &folder.0);
                (tripod, folder)
            });
            let called = match &running {
                Some(_) => size.called(),
                None => vec![BACKENDS[0]],
            };
            let begun = Instant::now();
            let mut all = false;
            while !all && begun.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(100));
                all = called.iter().all(|ip| call(*ip).is_some());
            }
            for () in asked {
                // If some are not served, there are no figures.
                let turns = called.iter().cycle().take(if all { CALLS } else { 0 });
                let times = turns.filter_map(|ip| Some(call(*ip)?.took)).collect();
                if answers.send(times).is_err() {
                    return;
                }
            }
        });
        Caller {
            services,
            ask,
            answer,
            times: Vec::new(),
        }
    }

    fn turn(&mut self) {
        self.ask.send(()).expect("the namespace is there");
        let times = self.answer.recv().expect("calls are answered");
        self.times.extend(times);
    }
}

/// Measures `mode`. All numbers of Services run at the same time and are called in turns, so that a
/// slow moment does not affect only one of them.
pub fn measure(mode: &'static Mode, asked: impl Fn(u32) -> bool) {
    let most = match std::env::var_os(GUEST) {
        Some(_) => MOST_IN_GUEST,
        None => u32::MAX,
    };
    let sizes = SIZES.into_iter().filter(|size| *size <= most);
    let sizes = sizes.filter(|size| asked(*size));
    let mut callers = vec![Caller::new(None, 1)];
    // One after the other: the first answer shows that everything is applied.
    for size in sizes {
        let mut caller = Caller::new(Some(mode), size);
        caller.turn();
        caller.times.clear();
        callers.push(caller);
    }
    for _ in 0..TURNS {
        callers.iter_mut().for_each(Caller::turn);
    }
    for (at, caller) in callers.iter_mut().enumerate() {
        caller.times.sort_unstable();
        let microseconds =
            |percent| part(&caller.times, percent).map_or_else(blank, |ms| decimal(ms * 1000.0, 1));
        let services = if at == 0 { 0 } else { caller.services };
        let row = vec![
            mode.name.to_owned(),
            services.to_string(),
            caller.times.len().to_string(),
            microseconds(50),
            microseconds(99),
        ];
        println!("  {}", row.join(" "));
        CONNECTING.put(row);
    }
}
