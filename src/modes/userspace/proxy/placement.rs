//! Which worker serves a new connection. The kernel chooses a listener by a hash of the addresses,
//! which leaves the busiest of 8 workers with almost twice the mean of 32 connections; so a
//! connection that arrives at a busy worker is moved to the worker with the fewest.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};

/// Work to start on a worker; runs inside its runtime.
pub type Job = Box<dyn FnOnce() + Send>;

/// A worker, as the others see it.
#[derive(Debug)]
pub struct Seat {
    /// Number of TCP connections that it serves.
    connections: AtomicUsize,
    /// Does not keep the worker alive.
    jobs: WeakUnboundedSender<Job>,
}

impl Seat {
    fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Counts a connection no more.
    pub fn leave(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }
}

/// A worker that knows the others.
#[derive(Clone, Debug)]
pub struct Placement {
    all: Arc<[Arc<Seat>]>,
    own: Arc<Seat>,
}

impl Placement {
    /// The placements of the workers that take `jobs`.
    pub fn of_all(jobs: &[UnboundedSender<Job>]) -> Vec<Placement> {
        let seats = jobs.iter().map(|jobs| Seat {
            connections: AtomicUsize::new(0),
            jobs: jobs.downgrade(),
        });
        let all: Arc<[_]> = seats.map(Arc::new).collect();
        let of = |own: &Arc<Seat>| Placement {
            all: Arc::clone(&all),
            own: Arc::clone(own),
        };
        all.iter().map(of).collect()
    }

    /// Chooses the worker that serves a connection that arrived at this worker, and counts it
    /// there: this worker, unless another has clearly fewer, because waking that one has a cost.
    pub fn take_seat(&self) -> Arc<Seat> {
        let least = self.all.iter().min_by_key(|seat| seat.connections());
        let least = least.unwrap_or(&self.own);
        let few = least.connections();
        let seat = if self.own.connections() > few + few / 8 + 1 {
            least
        } else {
            &self.own
        };
        seat.connections.fetch_add(1, Relaxed);
        Arc::clone(seat)
    }

    /// Runs `job` on the worker of `seat`, or on this worker if that one has ended. Must be called
    /// on this worker.
    pub fn run(&self, seat: &Arc<Seat>, job: impl FnOnce() + Send + 'static) {
        if Arc::ptr_eq(seat, &self.own) {
            return job();
        }
        let Some(jobs) = seat.jobs.upgrade() else {
            return job();
        };
        if let Err(unsent) = jobs.send(Box::new(job)) {
            (unsent.0)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use proptest::{collection::vec, prelude::*};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn workers(count: usize) -> Vec<Placement> {
        let jobs: Vec<_> = (0..count).map(|_| unbounded_channel().0).collect();
        Placement::of_all(&jobs)
    }

    proptest! {
        #[test]
        fn wherever_they_come_in_no_worker_has_many_more_than_another(
            came_to in vec(0..8_usize, 0..200),
        ) {
            let workers = workers(8);
            for number in came_to {
                workers[number].take_seat();
            }
            let counts = workers.iter().map(|worker| worker.own.connections());
            let most = counts.clone().max().unwrap_or(0);
            let least = counts.min().unwrap_or(0);
            prop_assert!(most <= least + least / 8 + 2, "{most} and {least}");
        }
    }

    #[test]
    fn a_connection_that_ended_counts_no_more() {
        let workers = workers(2);
        for _ in 0..3 {
            let seat = workers[1].take_seat();
            assert!(Arc::ptr_eq(&seat, &workers[1].own));
            seat.leave();
        }
    }

    #[test]
    fn a_job_for_a_worker_that_has_ended_is_run_here() {
        let workers = workers(2);
        let (send, run) = channel();
        workers[0].run(&workers[1].own, move || send.send(()).unwrap());
        run.try_recv().unwrap();
    }
}
