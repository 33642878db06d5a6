//! Waits until the configuration file is changed.

use std::{io, path::PathBuf};

use nix::{errno::Errno, sys::inotify::AddWatchFlags};

use crate::kernel::inotify;

/// A configuration file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Text of the file as it was read.
    pub text: String,
}

/// Ends when the file is written to or renamed, or already differs from what
/// was read; the program should then end with an error, so that its supervisor
/// starts it with what is in the file now.
///
/// As for kube-proxy (`Options.eventHandler` of
/// `cmd/kube-proxy/app/options.go`), it is the file that counts, not the name:
/// where a link leads to it, as in a ConfigMap volume, an update puts another
/// file in its place and does not end the program, so that a changed ConfigMap
/// does not restart the proxies of all nodes at once.
///
/// # Errors
/// When the file cannot be watched.
pub async fn watch_file(file: &ConfigFile) -> io::Result<()> {
    let inotify = inotify::open()?;
    let changes = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVE_SELF;
    inotify.get_ref().add_watch(&file.path, changes)?;
    if std::fs::read(&file.path)? != file.text.as_bytes() {
        return Ok(());
    }
    loop {
        let mut ready = inotify.readable().await?;
        match ready.get_inner().read_events() {
            Ok(events) => {
                // The kernel always sends IN_IGNORED when the file is gone, and
                // IN_Q_OVERFLOW when it dropped events.
                let changes = changes | AddWatchFlags::IN_Q_OVERFLOW;
                if events.iter().any(|event| event.mask.intersects(changes)) {
                    return Ok(());
                }
                tracing::info!(
                    file = %file.path.display(),
                    "the configuration file was replaced or removed; it is read again at the next start"
                );
            }
            Err(Errno::EAGAIN) => ready.clear_ready(),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        future::{Future, poll_fn},
        path::Path,
        pin::pin,
        task::Poll,
        time::Duration,
    };

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// A folder of its own with a file `config` that says `old`, gone with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("tripod-watch-file-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            fs::create_dir_all(&dir).expect("folder");
            fs::write(dir.join("config"), "old").expect("file");
            Folder(dir)
        }

        fn file(&self, name: &str) -> ConfigFile {
            ConfigFile {
                path: self.0.join(name),
                text: "old".to_owned(),
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Returns whether the watch of `config` ends after `change`.
    async fn ends(name: &str, change: impl FnOnce(&Path)) -> bool {
        let folder = Folder::new(name);
        let file = folder.file("config");
        let mut watch = pin!(watch_file(&file));
        assert!(now(&mut watch).await.is_pending());
        change(&folder.0);
        // The kernel queues events before the change returns, so what has not
        // come by now never will; a few turns let the runtime hear of it.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
            if let Poll::Ready(result) = now(&mut watch).await {
                result.expect("can be watched");
                return true;
            }
        }
        false
    }

    async fn now<F: Future>(future: &mut std::pin::Pin<&mut F>) -> Poll<F::Output> {
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
    }

    #[tokio::test]
    async fn a_write_and_a_rename_end_it() {
        let write = |dir: &Path| fs::write(dir.join("config"), "new").expect("write");
        assert!(ends("write", write).await);
        let rename = |dir: &Path| fs::rename(dir.join("config"), dir.join("x")).expect("rename");
        assert!(ends("rename", rename).await);
    }

    #[tokio::test]
    async fn another_file_in_its_place_does_not() {
        let replace = |dir: &Path| {
            fs::write(dir.join("next"), "new").expect("write");
            fs::rename(dir.join("next"), dir.join("config")).expect("rename");
        };
        assert!(!ends("replace", replace).await);
        let remove = |dir: &Path| fs::remove_file(dir.join("config")).expect("remove");
        assert!(!ends("remove", remove).await);
    }

    #[tokio::test]
    async fn a_change_before_the_watch_ends_it_at_once() {
        let folder = Folder::new("before");
        fs::write(folder.0.join("config"), "new").expect("write");
        let file = folder.file("config");
        let watch = timeout(SOON, watch_file(&file)).await;
        watch.expect("ends").expect("can be watched");
        let missing = folder.file("missing");
        let watch = timeout(SOON, watch_file(&missing)).await;
        let error = watch.expect("ends").expect_err("is missing");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
