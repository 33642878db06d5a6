//! Processors for clients, backend and proxy: where they share one, what a proxy costs is hidden by
//! what the others cost.

use std::sync::OnceLock;

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// What runs on processors of its own, as far as there are enough of them.
#[derive(Clone, Copy)]
pub enum Part {
    Client,
    Backend,
    Proxy,
}

impl Part {
    /// Runs `body` on the processors of this part. Threads and programs that it starts stay there.
    pub fn run<T>(self, body: impl FnOnce() -> T) -> T {
        let before = sched_getaffinity(Pid::from_raw(0)).expect("the thread's processors");
        pin(&self.processors());
        let result = body();
        sched_setaffinity(Pid::from_raw(0), &before).expect("processors that were allowed before");
        result
    }

    /// The numbers of its processors. A proxy has all that client and backend leave.
    pub fn processors(self) -> Vec<usize> {
        let all = allowed();
        match (self, all.len()) {
            (_, ..=1) => all.to_vec(),
            (Part::Proxy, 2) => vec![all[1]],
            (Part::Backend, 3..) => vec![all[1]],
            (Part::Proxy, 3..) => all[2..].to_vec(),
            (Part::Client | Part::Backend, _) => vec![all[0]],
        }
    }
}

fn pin(processors: &[usize]) {
    let mut set = CpuSet::new();
    for number in processors {
        set.set(*number).expect("a number of this machine");
    }
    sched_setaffinity(Pid::from_raw(0), &set).expect("processors that this process may use");
}

/// The processors of this process when it started.
fn allowed() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let set = sched_getaffinity(Pid::from_raw(0)).expect("the process's processors");
        let numbers = 0..CpuSet::count();
        numbers
            .filter(|number| set.is_set(*number) == Ok(true))
            .collect()
    })
}

/// Says which part has which processors.
pub fn described() -> String {
    let of = |part: Part| {
        let numbers: Vec<_> = part.processors().iter().map(usize::to_string).collect();
        numbers.join(", ")
    };
    format!(
        "the client is pinned to processor {}, the backend to {}, each proxy to {}",
        of(Part::Client),
        of(Part::Backend),
        of(Part::Proxy)
    )
}
