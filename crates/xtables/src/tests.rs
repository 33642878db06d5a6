use std::{env, fs};

use testing::logged;

use super::*;

#[test]
fn a_try_waits_for_who_holds_the_lock() {
    // The lock is one for the whole machine, so a stand-in reports that it is held.
    let dir = env::temp_dir().join(format!("tripod-lock-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let script = dir.join("restore");
    let text = "echo x >> \"$0.runs\"\n[ $(wc -l < \"$0.runs\") -gt 2 ] && exit 0\n\
                echo 'Another app is currently holding the xtables lock.' >&2\nexit 4\n";
    fs::write(&script, text).unwrap();
    let program = Program {
        path: "/bin/sh".into(),
        applet: Some(script.to_string_lossy().into_owned()),
        name: "iptables-restore".to_owned(),
        namespace: Namespace::Node,
    };
    let xtables = Xtables {
        family: Family::V4,
        restore: program.clone(),
        save: program,
    };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let mut found = Ok(());
    let log = logged(|| {
        let rule = Rule::new().target(rule::Target::Return);
        found = runtime.block_on(xtables.check(Table::Nat, &rule));
    });
    let runs = fs::read_to_string(dir.join("restore.runs")).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(found.is_ok(), "{found:?}");
    assert_eq!(runs.lines().count(), 4, "two locked, the try, its clean-up");
    let [held, free] = &log[..] else {
        panic!("{log:#?}");
    };
    assert!(held.contains("fuser /run/xtables.lock"), "{held}");
    assert!(
        free.contains("the lock of iptables is free again"),
        "{free}"
    );
}
