//! Waits until the configuration file is changed.

use std::{
    fs::File,
    io::{self, Read, Seek},
    path::PathBuf,
    time::Duration,
};

use nix::{errno::Errno, sys::inotify::AddWatchFlags};

use crate::kernel::inotify;

/// Time between two readings of the file if inotify is not available.
const READ_PERIOD: Duration = Duration::from_secs(10);

/// A configuration file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Text of the file as it was read.
    pub text: String,
}

/// Ends when the file is written to or renamed, or already differs from the version that was read;
/// the program should then end with an error, so that its supervisor restarts it with the present
/// content of the file.
///
/// As for kube-proxy (`Options.eventHandler` of `cmd/kube-proxy/app/options.go`), the file
/// counts, not the name: where the name is a link, as in a ConfigMap volume, an update puts
/// another file in its place and does not end the program, so that a changed ConfigMap does
/// not restart the proxies of all nodes at once.
///
/// If inotify fails, for example beyond `fs.inotify.max_user_instances`, the file is read
/// every 10 s instead; a renaming is not noticed then. kube-proxy does not start in that case,
/// but all users of a node share that limit, and a proxy that ends serves nothing.
///
/// A pipe or a device has no content that could be compared or change, and reading it again may
/// wait for a writer: it is never waited for.
///
/// # Errors
/// When the file cannot be opened.
pub async fn watch_file(file: &ConfigFile) -> io::Result<()> {
    if !std::fs::metadata(&file.path)?.is_file() {
        tracing::info!(
            file = %file.path.display(),
            "the configuration is not read from a regular file: changes to it are not noticed"
        );
        return std::future::pending().await;
    }
    match notified(file).await {
        Ok(()) => Ok(()),
        Err(error) => read_regularly(file, &error).await,
    }
}

/// Ends when the open file no longer has the text that was read. Logs `why` inotify does not report
/// changes.
async fn read_regularly(file: &ConfigFile, why: &io::Error) -> io::Result<()> {
    let path = file.path.display();
    // Kept open all the time: the file counts, not the name.
    let mut open = File::open(&file.path)?;
    tracing::warn!(
        "{path}: inotify cannot report changes ({why}), so the file is read every {READ_PERIOD:?}; \
         if instances or watches are used up, raise fs.inotify.max_user_instances or \
         max_user_watches, and restart Tripod"
    );
    loop {
        let mut text = Vec::new();
        // A failed reading says nothing about the text.
        let read = open.rewind().and_then(|()| open.read_to_end(&mut text));
        if read.is_ok() && text != file.text.as_bytes() {
            return Ok(());
        }
        tokio::time::sleep(READ_PERIOD).await;
    }
}

/// Like [`watch_file`], but only with inotify.
async fn notified(file: &ConfigFile) -> io::Result<()> {
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
        os::fd::AsRawFd,
        path::Path,
        pin::pin,
        task::Poll,
        time::Duration,
    };

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// A folder of its own with a file `config` that contains `old`; removed on drop.
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
        // The kernel queues events before the change returns, so what has not arrived by
        // now never will; a few turns let the runtime notice it.
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

    #[tokio::test(start_paused = true)]
    async fn without_inotify_the_file_is_read_regularly() {
        let folder = Folder::new("without-inotify");
        let (file, path) = (folder.file("config"), folder.0.join("config"));
        let exhausted = io::Error::from(Errno::EMFILE);
        let mut watch = pin!(read_regularly(&file, &exhausted));
        assert!(timeout(10 * READ_PERIOD, &mut watch).await.is_err());
        fs::write(&path, "new").expect("write");
        let watch = timeout(2 * READ_PERIOD, &mut watch).await;
        watch.expect("it ends").expect("it can be read");

        fs::write(&path, "old").expect("write");
        let mut watch = pin!(read_regularly(&file, &exhausted));
        assert!(now(&mut watch).await.is_pending());
        fs::write(folder.0.join("next"), "new").expect("write");
        fs::rename(folder.0.join("next"), &path).expect("rename");
        let watch = timeout(10 * READ_PERIOD, &mut watch).await;
        assert!(watch.is_err(), "it is another file");
    }

    /// It is at its end, and has no text any more.
    #[tokio::test]
    async fn a_pipe_is_not_read_again() {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(writer);
        let file = ConfigFile {
            path: format!("/proc/self/fd/{}", reader.as_raw_fd()).into(),
            text: "old".to_owned(),
        };
        let mut watch = pin!(watch_file(&file));
        for _ in 0..1000 {
            tokio::task::yield_now().await;
            assert!(now(&mut watch).await.is_pending());
        }
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
