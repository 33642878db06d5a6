//! `tripod render` beside what kube-proxy 1.36 left in the kernel.

use std::process::Command;

use crate::lab::{
    recorded::{self, Case, Ruleset},
    tripod_binary,
};

/// Where Tripod differs on purpose: case, a word of each difference, reason.
const EXCEPTIONS: [(&str, &str, &str); 0] = [];

#[test]
fn rendered_rules_equal_the_recordings() {
    let mut wrong = Vec::new();
    for case in recorded::cases() {
        let rendered = render(&case, &[]);
        let (v4, v6) = rendered
            .split_once("# ip6tables-restore")
            .expect("both families");
        for (file, given) in [("iptables-save.txt", v4), ("ip6tables-save.txt", v6)] {
            let given = given.split_once('\n').expect("a first line").1;
            let recorded = Ruleset::parse(&case.read(&format!("iptables/{file}")));
            let found = recorded.differences(&Ruleset::parse(given));
            let found = found.iter().filter(|line| {
                let mut exceptions = EXCEPTIONS.iter();
                !exceptions.any(|(name, word, _)| *name == case.name && line.contains(word))
            });
            wrong.extend(found.map(|line| format!("{} {file}: {line}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is printed for a case, with more flags than those of its recording.
fn render(case: &Case, more: &[&str]) -> String {
    let folder = Folder::new(&case.name);
    case.write_manifests(&folder.0);
    let output = Command::new(tripod_binary())
        .args(["render", "--proxy-mode=iptables", "--manifests"])
        .arg(&folder.0)
        .args(recorded::FLAGS)
        .args(&case.args)
        .args(more)
        .output()
        .expect("running tripod");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", case.name);
    String::from_utf8(output.stdout).expect("text")
}

/// A folder of this process, gone afterwards.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("tripod-render-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
