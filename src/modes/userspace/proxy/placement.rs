//! Placement of new connections on workers. The kernel chooses a listener by a hash of the
//! addresses, which leaves the busiest of 8 workers with almost twice the mean of 32 connections;
//! so a connection that arrives at a busy worker is moved to the worker with the fewest.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};

/// Work to start on a worker; runs inside its runtime.
pub type Job = Box<dyn FnOnce() + Send>;

/// A worker, as the others see it.
#[derive(Debug)]
struct Seat {
    /// Number of TCP connections that it serves.
    connections: AtomicUsize,
    /// Does not keep the worker alive.
    jobs: WeakUnboundedSender<Job>,
}

/// A worker that knows the others.
#[derive(Clone, Debug)]
pub struct Placement {
    seats: Arc<[Seat]>,
    number: usize,
}

impl Placement {
    /// The placements of the workers that take `jobs`.
    pub fn of_all(jobs: &[UnboundedSender<Job>]) -> Vec<Placement> {
        let seats = jobs.iter().map(|jobs| Seat {
            connections: AtomicUsize::new(0),
            jobs: jobs.downgrade(),
        });
        let seats: Arc<[Seat]> = seats.collect();
        let of = |number| Placement {
            seats: Arc::clone(&seats),
            number,
        };
        (0..jobs.len()).map(of).collect()
    }

    /// Chooses the worker that serves a connection that arrived at this worker, and counts it
    /// there: this worker, unless another has clearly fewer, because waking that one has a cost.
    pub fn place(&self) -> Placed {
        let connections = |number: usize| self.seats[number].connections.load(Relaxed);
        let least = (0..self.seats.len()).min_by_key(|&number| connections(number));
        let least = least.unwrap_or(self.number);
        let few = connections(least);
        let number = if connections(self.number) > few + few / 8 + 1 {
            least
        } else {
            self.number
        };
        self.seats[number].connections.fetch_add(1, Relaxed);
        Placed {
            seats: Arc::clone(&self.seats),
            number,
        }
    }

    /// Runs `job` on the worker `place`, or on this worker if that one has ended. Must be called on
    /// this worker.
    pub fn run(&self, place: usize, job: impl FnOnce() + Send + 'static) {
        if place == self.number {
            return job();
        }
        let Some(jobs) = self.seats[place].jobs.upgrade() else {
            return job();
        };
        if let Err(unsent) = jobs.send(Box::new(job)) {
            (unsent.0)();
        }
    }
}

/// Counts a connection at its worker until this is dropped.
#[derive(Debug)]
pub struct Placed {
    seats: Arc<[Seat]>,
    number: usize,
}

impl Placed {
    pub fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.seats[self.number].connections.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
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
            let open: Vec<_> = came_to.iter().map(|&number| workers[number].place()).collect();
            let counts = (0..8).map(|n| open.iter().filter(|p| p.number() == n).count());
            let most = counts.clone().max().unwrap_or(0);
            let least = counts.min().unwrap_or(0);
            prop_assert!(most <= least + least / 8 + 2, "{most} and {least}");
        }
    }

    #[test]
    fn a_connection_that_ended_counts_no_more() {
        let workers = workers(2);
        for _ in 0..3 {
            assert_eq!(workers[1].place().number(), 1);
        }
    }

    #[test]
    fn a_job_for_a_worker_that_has_ended_is_run_here() {
        let workers = workers(2);
        let (send, run) = std::sync::mpsc::channel();
        workers[0].run(1, move || send.send(()).unwrap());
        run.try_recv().unwrap();
    }
}
