//! `tripod render` compared with the rules that kube-proxy 1.36 left in the kernel.

use std::process::Command;

use crate::lab::{
    recorded::{self, Case, ChainName, Folder, Ruleset},
    tripod_binary,
};

/// Deliberate differences of Tripod: case, a word of each difference, reason.
const EXCEPTIONS: [(&str, &str, &str); 0] = [];

#[test]
fn rendered_rules_equal_the_recordings() {
    let mut wrong = Vec::new();
    for case in recorded::cases() {
        for (file, given) in rendered(&case, &[]) {
            let found = recorded_rules(&case, file).differences(&given);
            let found = found.iter().filter(|line| {
                let mut exceptions = EXCEPTIONS.iter();
                !exceptions.any(|(name, word, _)| *name == case.name && line.contains(word))
            });
            wrong.extend(found.map(|line| format!("{} {file}: {line}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns whether packets are looked up in a chain, or it is one of the index.
fn finds_services(name: &ChainName) -> bool {
    let shared = ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS"];
    let own = name.chain.starts_with("KUBE-SVC-IDX-") || name.chain == "KUBE-PROXY-FIREWALL";
    own || shared.contains(&name.chain.as_str())
}

#[test]
fn with_an_index_everything_beside_it_equals_the_recordings() {
    for case in recorded::cases() {
        for (file, given) in rendered(&case, &["--iptables-dispatch=indexed"]) {
            let recorded = recorded_rules(&case, file).without(finds_services);
            let found = recorded.differences(&given.without(finds_services));
            assert!(
                found.is_empty(),
                "{} {file}: {}",
                case.name,
                found.join("\n")
            );
        }
    }
}

const V4: &str = "iptables-save.txt";
const V6: &str = "ip6tables-save.txt";

/// Flags, the file in whose rules they show, and a part of such a rule.
const FLAGS: [(&[&str], &str, &str); 12] = [
    (
        &["--iptables-masquerade-bit=3"],
        V4,
        "-j MARK --set-xmark 0x8/0x8",
    ),
    (
        &["--iptables-masquerade-bit=3"],
        V6,
        "-m mark ! --mark 0x8/0x8 -j RETURN",
    ),
    (
        &["--detect-local-mode=NodeCIDR"],
        V4,
        "! -s 10.244.0.0/24 -d 10.0.1.20/32",
    ),
    (
        &["--detect-local-mode=NodeCIDR"],
        V6,
        "! -s fd00:10:244::/64 -d fd00:10:96::20/128",
    ),
    (
        &[
            "--detect-local-mode=BridgeInterface",
            "--pod-bridge-interface=cni0",
        ],
        V4,
        "-d 10.0.1.20/32 ! -i cni0 -p tcp",
    ),
    (
        &[
            "--detect-local-mode=InterfaceNamePrefix",
            "--pod-interface-name-prefix=cali",
        ],
        V6,
        "-d fd00:10:96::20/128 ! -i cali+ -p tcp",
    ),
    (
        &["--iptables-localhost-nodeports=false"],
        V4,
        "! -d 127.0.0.0/8 -m comment",
    ),
    (
        &["--nodeport-addresses=192.168.0.0/16"],
        V4,
        "-d 192.168.0.0/16 -m comment",
    ),
    // All addresses of a family without a network are served.
    (
        &["--nodeport-addresses=192.168.0.0/16"],
        V6,
        "! -d ::1/128 -m comment",
    ),
    (
        &["--nodeport-addresses=0.0.0.0/0"],
        V4,
        "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
    ),
    (&["--masquerade-all"], V6, "-d fd00:10:96::20/128 -p tcp"),
    (
        &["--iptables-dispatch=indexed"],
        V4,
        "-d 10.0.0.0/22 -j KUBE-SVC-IDX-",
    ),
];

/// Each flag shows in the rules of its file.
#[test]
fn flags_show_in_the_rules() {
    let dual = recorded::cases()
        .into_iter()
        .find(|case| case.name == "17-dualstack");
    let dual = dual.expect("the case");
    for (flags, file, rule) in FLAGS {
        let text = render(&dual, flags);
        let (v4, v6) = text
            .split_once("# ip6tables-restore")
            .expect("both families");
        let text = if file == V4 { v4 } else { v6 };
        let of_chain = |line: &&str| line.starts_with("-A KUBE-") || line.starts_with("-I KUBE-");
        let mut lines = text.lines().filter(of_chain);
        assert!(
            lines.any(|line| line.contains(rule)),
            "{flags:?}: no {rule} in\n{text}"
        );
    }
    let liberal = render(&dual, &["--conntrack-tcp-be-liberal"]);
    assert!(!liberal.contains("INVALID"), "{liberal}");
}

#[test]
fn what_cannot_be_rendered_is_reported() {
    let cases: [(&[&str], i32, &str); 3] = [
        (&["--proxy-mode=iptables"], 2, "--manifests PATH"),
        (&["--iptables-dispatch=magic"], 2, "auto, linear or indexed"),
        (
            &["--proxy-mode=iptables", "--manifests=/nonexistent"],
            1,
            "/nonexistent",
        ),
    ];
    for (arguments, code, word) in cases {
        let output = tripod(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(
            errors.contains(word),
            "{arguments:?}: no {word:?} in {errors}"
        );
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

fn recorded_rules(case: &Case, file: &str) -> Ruleset {
    Ruleset::parse(&case.read(&format!("iptables/{file}")))
}

/// Renders a case, and returns each part with the file that it should equal.
fn rendered(case: &Case, more: &[&str]) -> [(&'static str, Ruleset); 2] {
    let text = render(case, more);
    let inputs = text.split_once("# ip6tables-restore");
    let (v4, v6) = inputs.expect("a line before each family");
    assert!(v4.starts_with("# iptables-restore --noflush\n"), "{v4}");
    let v6 = v6.strip_prefix(" --noflush\n").expect("its option");
    [("iptables-save.txt", v4), ("ip6tables-save.txt", v6)]
        .map(|(file, text)| (file, Ruleset::parse(text)))
}

fn tripod(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(tripod_binary());
    command
        .arg("render")
        .args(arguments)
        .output()
        .expect("running tripod")
}

/// Renders a case, with flags in addition to those of its recording.
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
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", case.name);
    String::from_utf8(output.stdout).expect("text")
}
