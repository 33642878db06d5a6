//! The threads of the data path. Each has a runtime of its own, so that a
//! connection lives and dies on one core; the kernel spreads new connections
//! over them (SO_REUSEPORT).

use std::{io, thread};

use tokio::{
    runtime::Builder,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::{LocalSet, spawn_local},
};

/// Something to start on a worker; runs inside its `LocalSet`.
type Job = Box<dyn FnOnce() + Send>;

/// The workers. They end when this is dropped, and what they carry with them.
#[derive(Debug)]
pub struct Workers {
    jobs: Vec<UnboundedSender<Job>>,
}

impl Workers {
    /// Starts `count` workers, at least one.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be made.
    pub fn start(count: usize) -> io::Result<Self> {
        let jobs = (0..count.max(1))
            .map(|i| {
                let (send, receive) = unbounded_channel();
                let runtime = Builder::new_current_thread().enable_all().build()?;
                thread::Builder::new()
                    .name(format!("worker-{i}"))
                    .spawn(move || LocalSet::new().block_on(&runtime, work(receive)))?;
                Ok(send)
            })
            .collect::<io::Result<_>>()?;
        Ok(Workers { jobs })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.jobs.len()
    }

    /// Runs what `start` makes on worker `i` (modulo their number).
    pub fn spawn<F>(&self, i: usize, start: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let job = move || {
            spawn_local(start());
        };
        // A worker takes jobs until `self` is dropped.
        let _ = self.jobs[i % self.jobs.len()].send(Box::new(job));
    }
}

async fn work(mut jobs: UnboundedReceiver<Job>) {
    while let Some(job) = jobs.recv().await {
        job();
    }
}
