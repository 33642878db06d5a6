use super::*;

#[tokio::test]
async fn a_try_waits_for_who_holds_the_lock() {
    // The lock is one for the whole machine, so a stand-in says it is held.
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
    };
    let xtables = Xtables {
        family: Family::V4,
        restore: program.clone(),
        save: program,
    };
    let found = xtables.check("nat", "-j RETURN").await;
    let runs = fs::read_to_string(dir.join("restore.runs")).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(found.is_ok(), "{found:?}");
    assert_eq!(runs.lines().count(), 4, "two locked, the try, its clean-up");
}

#[test]
fn the_offending_line_is_found_in_each_wording() {
    let batch = "*nat\n:X - [0:0]\n-A X -j NOPE\nCOMMIT\n";
    let cases = [
        ("iptables-restore: line 3 failed", Some("-A X -j NOPE")),
        ("Error occurred at line: 3", Some("-A X -j NOPE")),
        ("line 2: CHAIN_ADD failed (File exists)", Some(":X - [0:0]")),
        ("line 0 is none", None),
        ("line 99 failed", None),
        ("Another app is holding the lock", None),
        ("line", None),
    ];
    for (message, line) in cases {
        assert_eq!(offending_line(message, batch), line, "{message}");
    }
}

fn program(script: &str) -> Program {
    Program {
        path: PathBuf::from("/bin/sh"),
        applet: Some("-c".to_owned()),
        name: script.to_owned(),
    }
}

#[tokio::test]
async fn what_the_program_says_is_the_error() {
    let program = program("iptables-restore");
    let script = "echo 'oops at line 2' >&2; exit 1";
    let output = program.run(&[script], "").await.unwrap();
    let error = program.checked(output, "a\nb\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "iptables-restore: oops at line 2 (at: b)"
    );
}

#[tokio::test]
async fn a_large_batch_to_a_talkative_program_does_not_stall() {
    let program = program("cat");
    let batch = "-A X\n".repeat(200_000);
    let output = program.run(&["cat; cat /dev/null"], &batch).await.unwrap();
    assert_eq!(output.stdout.len(), batch.len());
    // One that does not read at all is no failure of ours either.
    assert!(
        program
            .run(&["exit 0"], &batch)
            .await
            .unwrap()
            .status
            .success()
    );
}
