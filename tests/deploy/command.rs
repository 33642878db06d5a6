//! The binary in the image understands the commands of the DaemonSet.

use std::{fs, os::unix::fs::symlink, path::PathBuf, process::Command};

use k8s_openapi::api::core::v1::{Container, PodSpec};
use tripod::config::decode;

use super::{config_map, daemon_set, read};
use crate::lab::tripod_binary;

fn pod() -> PodSpec {
    daemon_set().spec.unwrap().template.spec.unwrap()
}

fn words(container: &Container) -> Vec<String> {
    let command = container.command.iter().flatten();
    command
        .chain(container.args.iter().flatten())
        .cloned()
        .collect()
}

#[test]
fn the_command_is_that_of_kubeadm() {
    // cmd/kubeadm/app/phases/addons/proxy/manifests.go
    let kubeadm = [
        "/usr/local/bin/kube-proxy",
        "--config=/var/lib/kube-proxy/config.conf",
        "--hostname-override=$(NODE_NAME)",
    ];
    let pod = pod();
    let confined = [&kubeadm[..], &["--confine=files"]].concat();
    assert_eq!(words(&pod.containers[0]), confined);
    let init = &pod.init_containers.unwrap()[0];
    let (last, first) = words(init)
        .split_last()
        .map(|(l, f)| (l.clone(), f.to_vec()))
        .unwrap();
    assert_eq!(
        (first, &*last),
        (kubeadm.map(Into::into).into(), "--init-only")
    );
}

#[test]
fn the_image_has_the_program_under_that_name() {
    let images = [
        (
            "Dockerfile",
            [
                "COPY --from=build /src/target/static/tripod /usr/local/bin/tripod",
                "RUN ln -s tripod /usr/local/bin/kube-proxy",
            ],
        ),
        (
            "Dockerfile.minimal",
            [
                " && cp target/static/tripod /image/usr/local/bin/ \\",
                " && ln -s tripod /image/usr/local/bin/kube-proxy",
            ],
        ),
    ];
    for (file, lines) in images {
        let steps = read(file);
        for step in lines {
            assert!(
                steps.lines().any(|line| line == step),
                "{file}: no {step:?}"
            );
        }
    }
}

/// The ConfigMap as the kubelet mounts it, and the binary under the name that
/// the image gives it.
fn image(name: &str) -> PathBuf {
    let name = format!("tripod-{name}-{}", std::process::id());
    let root = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&root);
    let mounted = root.join("var/lib/kube-proxy");
    fs::create_dir_all(&mounted).unwrap();
    for (file, text) in config_map().data.unwrap() {
        fs::write(mounted.join(file), text).unwrap();
    }
    let programs = root.join("usr/local/bin");
    fs::create_dir_all(&programs).unwrap();
    symlink(tripod_binary(), programs.join("kube-proxy")).unwrap();
    root
}

#[test]
fn flags_are_accepted() {
    let root = image("flags");
    let place = |path: &str| {
        root.join(path.trim_start_matches('/'))
            .display()
            .to_string()
    };
    let pod = pod();
    for container in pod.init_containers.iter().flatten().chain(&pod.containers) {
        // As the kubelet expands it.
        let node = "$(NODE_NAME)";
        let mut variables = container.env.iter().flatten();
        assert!(variables.any(|variable| variable.name == "NODE_NAME"));
        let words = words(container);
        let words = words.iter().map(|word| word.replace(node, "node-7"));
        let mut words = words.map(|word| match word.split_once("=/") {
            Some((flag, path)) => format!("{flag}={}", place(path)),
            None => word,
        });
        let written = place("written.yaml");
        let output = Command::new(place(&words.next().unwrap()))
            .args(words)
            .arg(format!("--write-config-to={written}"))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", container.name);
        assert!(
            !stderr.contains("warn") && !stderr.contains("WARN"),
            "{stderr}"
        );
        let text = fs::read_to_string(&written).unwrap();
        let decoded = decode::decode(&text).unwrap();
        assert_eq!(decoded.configuration.hostname_override, "node-7", "{text}");
        assert_eq!(decoded.configuration.oom_score_adj, -997, "{text}");
        fs::remove_file(&written).unwrap();
    }
    fs::remove_dir_all(root).unwrap();
}

/// A shell that reads the script completes a subcommand, and a flag of one.
#[test]
fn bash_completes_commands_and_flags() {
    for (words, expected) in [
        (&["tripod", "stat"][..], "status"),
        (&["tripod", "--proxy-m"], "--proxy-mode"),
        (&["tripod", "services", "--wat"], "--watch"),
    ] {
        let script = format!(
            "source <({} completion bash) || exit 1\n\
             COMP_WORDS=({}) COMP_CWORD={}\n\
             _tripod tripod {} {}\n\
             echo \"${{COMPREPLY[@]}}\"",
            tripod_binary().display(),
            words.join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let done = Command::new("bash").args(["-c", &script]).output();
        let done = done.expect("bash(1)");
        let completed = String::from_utf8_lossy(&done.stdout);
        assert_eq!(completed.trim(), expected, "{words:?}: {done:?}");
    }
}

#[test]
fn each_subcommand_has_a_manual_page() {
    let page = |arguments: &[&str]| {
        let done = Command::new(tripod_binary())
            .arg("man")
            .args(arguments)
            .output();
        let done = done.expect("running tripod");
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).expect("a page is text")
    };
    let whole = page(&[]);
    assert!(whole.contains(".TH tripod 8"), "{whole}");
    let names: Vec<&str> = (whole.lines())
        .filter_map(|line| line.strip_prefix("tripod\\-")?.strip_suffix("(8)"))
        .collect();
    assert!(
        names.contains(&"status") && names.len() > 5,
        "{names:?}\n{whole}"
    );
    for name in names {
        if name != "help" {
            let title = format!(".TH tripod-{name} 8");
            let found = page(&[name]);
            assert!(found.contains(&title), "{found}");
        }
    }
}
