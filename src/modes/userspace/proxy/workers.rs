//! The threads of the data path. Each has its own runtime, so that a connection stays on one core;
//! the kernel distributes new connections among them (SO_REUSEPORT).

#[cfg(test)]
mod tests;

use std::{
    io, mem,
    os::fd::AsFd,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel, sync_channel},
    },
    thread,
    time::Duration,
};

use net::Protocol;
use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, LocalOptions},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::spawn_local,
};

use super::{
    Shared,
    listener::Listener,
    placement::{Job, Placement},
    tcp, udp,
};
use crate::kernel::socket::{
    listening::identity,
    poller::{Poller, Remaining, Token},
};

/// The workers. They end, with the connections that they relay, when this and all their listeners
/// are dropped. Drop the listeners first: then none of the workers' sockets is open after this is
/// dropped.
#[derive(Debug)]
pub struct Workers {
    all: Vec<Arc<Worker>>,
    /// Disconnected once all threads have ended.
    ended: Mutex<Receiver<()>>,
}

/// How long to wait for the threads to end. They only have to close sockets.
const END: Duration = Duration::from_secs(1);

/// One worker: a thread that accepts and serves connections.
#[derive(Debug)]
pub struct Worker {
    jobs: UnboundedSender<Job>,
    /// Placement of the connections that it accepts.
    pub placement: Placement,
    /// Its TCP listeners.
    pub tcp: Arc<Poller<tcp::Listener>>,
    /// Its UDP listeners.
    pub udp: Arc<Poller<udp::Listener>>,
}

impl Workers {
    /// Starts `count` workers, at least one.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be created.
    pub fn start(count: usize, shared: &Arc<Shared>) -> io::Result<Self> {
        let (running, ended) = channel();
        let channels = (0..count.max(1)).map(|_| unbounded_channel());
        let (senders, receivers): (Vec<_>, Vec<_>) = channels.unzip();
        let placements = Placement::of_all(&senders);
        let parts = senders.into_iter().zip(receivers).zip(placements);
        let workers = parts.enumerate().map(|(i, ((jobs, receive), placement))| {
            let worker = Worker {
                jobs,
                placement,
                tcp: Arc::new(Poller::new()?),
                udp: Arc::new(Poller::new()?),
            };
            start_thread(i, receive, running.clone())?;
            let (poller, of_tcp) = (Arc::clone(&worker.tcp), Arc::clone(shared));
            let placement = worker.placement.clone();
            worker.spawn(async move || {
                let accept = async |listener: &Arc<tcp::Listener>| {
                    tcp::accept(&of_tcp, &placement, listener).await
                };
                serve(poller, &of_tcp, accept).await;
            });
            if let Some(ring) = shared.options.rings.take() {
                worker.spawn(|| tcp::ring::run(ring));
            }
            // Apart from TCP, which waits for descriptors.
            let (poller, of_udp) = (Arc::clone(&worker.udp), Arc::clone(shared));
            worker.spawn(async move || {
                let receive = async |listener: &Arc<udp::Listener>| udp::receive(listener);
                serve(poller, &of_udp, receive).await;
            });
            Ok(Arc::new(worker))
        });
        Ok(Workers {
            all: workers.collect::<io::Result<_>>()?,
            ended: Mutex::new(ended),
        })
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns `count` workers, starting with number `first` (modulo the number of workers).
    pub fn some(&self, first: usize, count: usize) -> impl Iterator<Item = &Arc<Worker>> {
        let all = self.all.len();
        self.all.iter().cycle().skip(first % all).take(count)
    }

    /// The worker with this `number` (modulo the number of workers).
    pub fn one(&self, number: usize) -> &Arc<Worker> {
        &self.all[number % self.all.len()]
    }
}

impl Drop for Workers {
    /// Waits for the threads: another process may conclude from the end of this one that its
    /// sockets are closed.
    fn drop(&mut self) {
        drop(mem::take(&mut self.all));
        let _ = self.ended.lock().recv_timeout(END);
    }
}

impl Worker {
    /// Runs the future that `start` returns on this worker.
    pub fn spawn<F>(&self, start: impl FnOnce() -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let job = move || {
            spawn_local(start());
        };
        // A worker accepts jobs until `self` is dropped.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Has a socket served at once that waits, if it has something.
    pub fn wake(&self, protocol: Protocol, token: Token) {
        match protocol {
            Protocol::Udp => self.udp.wake(token),
            Protocol::Tcp | Protocol::Sctp => self.tcp.wake(token),
        }
    }

    /// Returns whether a socket no longer listens although this process did not close it.
    pub fn has_ended(&self, protocol: Protocol, token: Token) -> bool {
        fn has_ended(listener: Option<Arc<impl AsFd>>) -> bool {
            listener.is_none_or(|listener| identity(&*listener).is_none())
        }
        match protocol {
            Protocol::Udp => has_ended(self.udp.get(token)),
            Protocol::Tcp | Protocol::Sctp => has_ended(self.tcp.get(token)),
        }
    }

    /// Stops serving a socket. Ends the associations of a UDP listener; returns a TCP listener, at
    /// which connections may wait.
    pub fn remove(&self, protocol: Protocol, token: Token) -> Option<Arc<tcp::Listener>> {
        if protocol != Protocol::Udp {
            return self.tcp.remove(token);
        }
        if let Some(listener) = self.udp.remove(token) {
            udp::close(&listener);
        }
        None
    }
}

/// Serves the listeners of `poller` by `serve`, unless it is another process that serves them.
async fn serve<T: 'static>(
    poller: Arc<Poller<Listener<T>>>,
    shared: &Shared,
    serve: impl AsyncFn(&Arc<Listener<T>>) -> Remaining,
) {
    let serve = async |listener: &Arc<Listener<T>>| {
        if shared.options.handover.holding().is_left() || listener.is_left() {
            return Remaining::Waiting;
        }
        serve(listener).await
    };
    poller.run(serve).await;
}

/// Starts the thread of worker `number`, which runs `jobs` until their sender is dropped, and then
/// drops `running`. The runtime is created on the thread, because a single-threaded one cannot be
/// created on another thread.
fn start_thread(
    number: usize,
    jobs: UnboundedReceiver<Job>,
    running: Sender<()>,
) -> io::Result<()> {
    let (sender, receiver) = sync_channel(1);
    let run = move || {
        let _running = running;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => {
                let _ = sender.send(Ok(()));
                runtime.block_on(work(jobs));
            }
            Err(error) => {
                let _ = sender.send(Err(error));
            }
        }
    };
    thread::Builder::new()
        .name(format!("worker-{number}"))
        .spawn(run)?;
    receiver.recv().map_err(io::Error::other)?
}

async fn work(mut jobs: UnboundedReceiver<Job>) {
    while let Some(job) = jobs.recv().await {
        job();
    }
}
