//! Long syncs and comparisons on a thread of their own.
//!
//! Modes that talk to the kernel directly block while it works. On another thread, their long calls
//! let the first one still answer liveness probes.

use std::{io, panic::resume_unwind, sync::Arc};

use tokio::{
    runtime::{self, Runtime},
    sync::{Mutex, oneshot},
    task::spawn_blocking,
};

use super::{Asked, Compared, Mode, Outcomes, SyncError, both_failed, comparison};
use crate::services::{Changes, ServiceMap};

/// A sync of so few changed ServicePorts is over in milliseconds, and is not worth
/// a copy of the map and a thread.
const FEW: usize = 50;

/// Runs `work` on a thread of its own, with a runtime: that of the first thread may end
/// before the work does.
async fn on_its_own_thread<T: Send + 'static>(
    work: impl FnOnce(io::Result<Runtime>) -> T + Send + 'static,
) -> T {
    let done = spawn_blocking(|| {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        work(runtime)
    });
    match done.await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The process is ending.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Has `mode`, which holds nothing that is bound to the runtime, sync: on another thread if that
/// takes long. A sync whose result is no longer awaited continues to its end, and so leaves nothing
/// half done.
pub async fn sync(
    mode: &Arc<Mutex<impl Mode + 'static>>,
    map: &ServiceMap,
    asked: Asked<'_>,
) -> Outcomes {
    let mut mode = Arc::clone(mode).lock_owned().await;
    // A retry reads the whole state of the kernel, if that may differ from the known one.
    let large = |changes: &Changes| changes.full || changes.retry || changes.ports.len() > FEW;
    let mut of_families = asked.into_iter();
    if !of_families.any(|(_, changes)| changes.is_some_and(large)) && !mode.observes(asked) {
        return mode.sync(map, asked).await;
    }
    // The map is a table of references.
    let (map, changes) = (map.clone(), asked.map(|_, changes| changes.cloned()));
    on_its_own_thread(move |runtime| {
        let asked = changes.as_ref().map(|_, changes| changes.as_ref());
        match runtime {
            Ok(runtime) => runtime.block_on(mode.sync(&map, asked)),
            Err(error) => both_failed(asked, SyncError::Runtime(error)),
        }
    })
    .await
}

/// Has `mode` compare, on another thread, like [`sync`].
pub async fn compare(mode: &Arc<Mutex<impl Mode + 'static>>, map: &ServiceMap) -> Compared {
    let mut mode = Arc::clone(mode).lock_owned().await;
    let map = map.clone();
    // Dropped with this future: a comparison that is awaited no more keeps no sync waiting.
    let (_awaited, given_up) = oneshot::channel::<()>();
    on_its_own_thread(move |runtime| match runtime {
        Ok(runtime) => runtime.block_on(async {
            tokio::select! {
                compared = mode.compare(&map) => compared,
                _ = given_up => Compared::default(),
            }
        }),
        Err(error) => comparison::both_failed(SyncError::Runtime(error)),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, channel},
        thread::{self, ThreadId},
        time::Duration,
    };

    use net::PerFamily;

    use super::*;
    use crate::{
        config::ModeName,
        modes::{ExplainResult, Packet, SyncReport, progress::SyncProgress},
    };

    /// Longer than anything here takes unless it hangs.
    const DEADLINE: Duration = Duration::from_secs(20);

    /// Blocks in each sync until the test lets it continue.
    struct Slow {
        go: Receiver<()>,
        at: Vec<ThreadId>,
        observes: bool,
    }

    impl Slow {
        fn new(go: Receiver<()>, observes: bool) -> Arc<Mutex<Slow>> {
            let at = Vec::new();
            Arc::new(Mutex::new(Slow { go, at, observes }))
        }
    }

    impl Mode for Slow {
        fn name(&self) -> ModeName {
            ModeName::Ipvs
        }

        async fn sync(&mut self, _: &ServiceMap, asked: Asked<'_>) -> Outcomes {
            self.at.push(thread::current().id());
            let signal = self.go.recv_timeout(DEADLINE);
            signal.expect("the other tasks run meanwhile");
            asked.map(|_, changes| changes.map(|_| Ok(SyncReport::default())))
        }

        fn observes(&self, _: Asked<'_>) -> bool {
            self.observes
        }

        /// Waits for an answer that does not come.
        async fn compare(&mut self, _: &ServiceMap) -> Compared {
            std::future::pending().await
        }

        async fn explain(&mut self, _: &ServiceMap, _: &Packet) -> ExplainResult {
            Err(SyncError::Runtime(io::Error::other("no test asks")))
        }

        fn progress(&self) -> PerFamily<SyncProgress> {
            PerFamily::default()
        }
    }

    fn v4(changes: &Changes) -> Asked<'_> {
        PerFamily {
            v4: Some(changes),
            v6: None,
        }
    }

    #[tokio::test]
    async fn a_comparison_that_is_given_up_keeps_no_sync_waiting() {
        let (sender, go) = channel();
        let mode = Slow::new(go, false);
        let (map, changes) = (ServiceMap::default(), Changes::default());
        let given_up = tokio::time::timeout(Duration::from_millis(10), compare(&mode, &map));
        given_up.await.unwrap_err();
        sender.send(()).unwrap();
        let synced = tokio::time::timeout(DEADLINE, sync(&mode, &map, v4(&changes)));
        assert!(matches!(synced.await.expect("it begins").v4, Some(Ok(_))));
    }

    #[tokio::test]
    async fn a_sync_that_reads_everything_leaves_the_thread_to_others() {
        let full = |full| Changes {
            full,
            ..Changes::default()
        };
        let retry = Changes {
            retry: true,
            ..Changes::default()
        };
        for (changes, observes, here) in [
            (full(false), false, true),
            (full(true), false, false),
            (retry, false, false),
            (full(false), true, false),
        ] {
            let (sender, go) = channel();
            let mode = Slow::new(go, observes);
            sender.send(()).unwrap();
            sync(&mode, &ServiceMap::default(), v4(&changes)).await;
            let at = mode.lock().await.at.clone();
            assert_eq!(at == [thread::current().id()], here, "{changes:?}");
        }
    }

    #[tokio::test]
    async fn a_full_sync_leaves_the_thread_to_others() {
        let (sender, go) = channel();
        let mode = Slow::new(go, false);
        let (map, mut changes) = (ServiceMap::default(), Changes::default());
        sender.send(()).unwrap();
        sync(&mode, &map, v4(&changes)).await;
        changes.full = true;
        let later = async {
            tokio::task::yield_now().await;
            sender.send(()).unwrap();
        };
        let (synced, ()) = tokio::join!(sync(&mode, &map, v4(&changes)), later);
        assert!(matches!(synced.v4, Some(Ok(_))) && synced.v6.is_none());
        let at = mode.lock().await.at.clone();
        assert_eq!(at[0], thread::current().id(), "a small one");
        assert_ne!(at[1], at[0], "a full one");

        // One that is given up ends, before the next begins.
        let given_up = tokio::time::timeout(Duration::ZERO, sync(&mode, &map, v4(&changes)));
        given_up.await.unwrap_err();
        sender.send(()).unwrap();
        sender.send(()).unwrap();
        sync(&mode, &map, v4(&changes)).await;
        assert_eq!(mode.lock().await.at.len(), 4);
    }
}
