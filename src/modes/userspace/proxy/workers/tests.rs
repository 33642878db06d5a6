//! What the simulation needs of the workers.

use std::sync::Weak;

use super::*;

impl Workers {
    /// The workers, without keeping them alive.
    pub fn all(&self) -> Vec<Weak<Worker>> {
        self.all.iter().map(Arc::downgrade).collect()
    }

    /// Waits until each worker has run all jobs that it was given so far.
    pub fn wait(&self) {
        let (done, ran) = channel::<()>();
        for worker in &self.all {
            let done = done.clone();
            worker.spawn(|| async move { drop(done) });
        }
        drop(done);
        let _ = ran.recv();
    }
}
