//! A single named file, which is followed whatever its name.

use super::*;

#[test]
fn a_file_that_is_named_counts_alone() {
    run(async {
        for name in ["a.yaml", "a.txt", ".a"] {
            let scratch = Scratch::new("single");
            fs::write(scratch.at(name), service("a")).expect("write");
            fs::write(scratch.at("b.yaml"), service("b")).expect("write");
            let mut follower = Follower::of(&scratch.at(name));
            follower.until(&["a"]).await;
            // Written in place.
            fs::write(scratch.at(name), service("aa")).expect("write");
            follower.until(&["aa"]).await;
            // Replaced by another file.
            fs::write(scratch.at("new"), service("ab")).expect("write");
            fs::rename(scratch.at("new"), scratch.at(name)).expect("rename");
            follower.until(&["ab"]).await;
            assert_eq!(follower.received, 3, "{name}");
        }
    });
}

#[test]
fn a_file_that_goes_away_stays_in_force_until_it_is_back() {
    run(async {
        let scratch = Scratch::new("gone");
        let path = scratch.at("a.yaml");
        fs::write(&path, service("a")).expect("write");
        let (sender, mut batches) = mpsc::channel(1);
        let health = Arc::<SourceHealth>::default();
        let period = Duration::from_millis(20);
        tokio::spawn(follow(path.clone(), sender, period, Arc::clone(&health)));
        let mut next = async || {
            let batch = timeout(Duration::from_secs(20), batches.recv()).await;
            let batch = batch.expect("a batch within 20 s").expect("the task lives");
            batch.len()
        };
        assert_eq!(next().await, 1, "all of the file");
        fs::remove_file(&path).expect("remove");
        let has_failed = || health.kinds().values().any(|kind| kind.trouble.is_some());
        let failed = async {
            while !has_failed() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let noticed = timeout(Duration::from_secs(20), failed).await;
        noticed.expect("it is noticed within 20 s");
        fs::write(&path, service("b")).expect("write");
        assert_eq!(next().await, 2, "one Service goes and another one comes");
    });
}

#[test]
fn a_path_that_cannot_be_read_is_named() {
    let scratch = Scratch::new("check");
    fs::write(scratch.at("a.yaml"), service("a")).expect("write");
    for (path, is_read) in [
        (scratch.0.clone(), true),
        (scratch.at("a.yaml"), true),
        (scratch.at("none"), false),
        (scratch.at("a.yaml/none"), false),
    ] {
        let checked = check(&path);
        assert_eq!(checked.is_ok(), is_read, "{checked:?}");
        if let Err(why) = checked {
            assert!(why.contains(&*path.to_string_lossy()), "{why}");
        }
    }
}
