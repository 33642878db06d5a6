//! A folder that is created late, removed, or replaced as a whole.

use super::*;

#[test]
fn nothing_is_said_before_the_folder_can_be_read() {
    run(async {
        let scratch = Scratch::new("unreadable");
        let dir = scratch.at("above/dir");
        let (sender, mut batches) = mpsc::channel(1);
        let health = Arc::<SourceHealth>::default();
        let period = Duration::from_millis(20);
        tokio::spawn(follow(dir.clone(), sender, period, Arc::clone(&health)));
        let has_failed = || health.kinds().values().any(|kind| kind.trouble.is_some());
        while !has_failed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let made = scratch.at("made");
        fs::create_dir(&made).expect("folder");
        fs::write(made.join("a.yaml"), service("a")).expect("write");
        fs::create_dir(scratch.at("above")).expect("folder");
        fs::rename(&made, &dir).expect("rename");
        let first = timeout(Duration::from_secs(20), batches.recv()).await;
        let first = first.expect("a batch within 20 s").expect("the task lives");
        assert_eq!(first.len(), 1, "all that is in the folder");
    });
}

#[test]
fn the_folder_may_come_late_go_and_be_replaced() {
    run(async {
        let scratch = Scratch::new("folder");
        let dir = scratch.at("above/dir");
        let mut follower = Follower::of(&dir);
        fs::create_dir_all(&dir).expect("folder");
        fs::write(dir.join("a.yaml"), service("a")).expect("write");
        follower.until(&["a"]).await;
        // Replaced by another one: its content counts, all at once.
        fs::create_dir(scratch.at("above/new")).expect("folder");
        fs::write(scratch.at("above/new/b.yaml"), service("b")).expect("write");
        fs::rename(&dir, scratch.at("above/old")).expect("rename");
        fs::rename(scratch.at("above/new"), &dir).expect("rename");
        follower.until(&["b"]).await;
        fs::write(dir.join("c.yaml"), service("c")).expect("write");
        follower.until(&["b", "c"]).await;
        // Removing the folder leaves everything in use.
        fs::remove_dir_all(&dir).expect("remove");
        fs::create_dir(&dir).expect("folder");
        fs::write(dir.join("d.yaml"), service("d")).expect("write");
        follower.until(&["d"]).await;
    });
}
