//! Credentials from a program (`users[].user.exec` of a kubeconfig), by the
//! protocol of client-go's credential plugins
//! (`k8s.io/client-go/pkg/apis/clientauthentication`).

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Output, Stdio},
    time::Duration,
};

use jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    time::timeout,
};

/// How long a plugin may run. client-go sets no limit; a plugin that hangs would then
/// prevent the proxy from ever starting.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum size of a plugin's standard output, and the most that is read of its standard error, in
/// bytes.
const LONGEST_OUTPUT: u64 = 1 << 20;
/// Maximum length of a plugin's message in ours, in characters.
const LONGEST_MESSAGE: usize = 1000;

/// Versions of the protocol that client-go still supports.
const VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];

/// Why a plugin provided no credentials.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The kubeconfig does not say enough, or requests the impossible.
    #[error("{0}")]
    Unusable(String),
    /// The plugin could not be started.
    #[error("it cannot be run: {0}")]
    Start(#[source] io::Error),
    /// The plugin did not end in time.
    #[error("it did not end within {} s and was killed", .0.as_secs())]
    Hangs(Duration),
    /// The plugin failed.
    #[error("it failed ({status}): {message}")]
    Failed {
        /// How it ended.
        status: std::process::ExitStatus,
        /// The last line of its standard error.
        message: String,
    },
    /// The output of the plugin is not an answer.
    #[error("its answer cannot be used: {0}")]
    Answer(String),
}

/// The answer of a plugin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    token: Option<String>,
    /// A client certificate and its key, in PEM.
    identity: Option<(String, String)>,
    /// When they expire; `None` if they are valid until the server refuses them.
    pub(super) expires: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    kind: String,
    api_version: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Runs the plugin; one that hangs is killed with all processes that it started.
pub(super) async fn run(plugin: &ExecConfig) -> Result<Credentials, PluginError> {
    run_within(plugin, PATIENCE).await
}

async fn run_within(plugin: &ExecConfig, patience: Duration) -> Result<Credentials, PluginError> {
    let version = check(plugin)?;
    let mut command = command(plugin, version)?;
    let child = command.spawn().map_err(PluginError::Start)?;
    let group = child.id().and_then(|id| i32::try_from(id).ok());
    let output = match timeout(patience, output(child)).await {
        Ok(Ok(Some(output))) => output,
        ended => {
            // The program itself is killed on drop; it leads a process group of its own.
            if let Some(group) = group {
                let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
            }
            return Err(match ended {
                Ok(Err(error)) => PluginError::Start(error),
                Ok(Ok(_)) => {
                    PluginError::Answer(format!("it is larger than {} MiB", LONGEST_OUTPUT >> 20))
                }
                Err(_) => PluginError::Hangs(patience),
            });
        }
    };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.trim().lines().last().unwrap_or_default();
        return Err(PluginError::Failed {
            status: output.status,
            message: line.chars().take(LONGEST_MESSAGE).collect(),
        });
    }
    read(&output.stdout, version)
}

/// Waits for the end of a plugin. Returns its output and exit status; `None` if it writes too much.
async fn output(mut child: Child) -> io::Result<Option<Output>> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
        return Err(io::Error::other("no pipe"));
    };
    let (mut answer, mut errors) = (Vec::new(), Vec::new());
    let mut limited = stderr.take(LONGEST_OUTPUT);
    let errors_read = async {
        limited.read_to_end(&mut errors).await?;
        // A plugin that complains at length must not wait for a reader.
        tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await
    };
    let answer_read = async {
        let mut limited = stdout.take(LONGEST_OUTPUT + 1);
        limited.read_to_end(&mut answer).await?;
        if answer.len() as u64 > LONGEST_OUTPUT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(())
    };
    let read = async { tokio::try_join!(answer_read, errors_read, child.wait()) };
    match read.await {
        Ok(((), _, status)) => Ok(Some(Output {
            status,
            stdout: answer,
            stderr: errors,
        })),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks that the plugin can be used, and returns its version of the protocol.
fn check(plugin: &ExecConfig) -> Result<&str, PluginError> {
    let unusable = |text: String| Err(PluginError::Unusable(text));
    let version = plugin.api_version.as_deref().unwrap_or_default();
    if !VERSIONS.contains(&version) {
        let known = VERSIONS.join(" or ");
        return unusable(format!("its apiVersion is {version:?}, not {known}"));
    }
    if plugin.interactive_mode == Some(ExecInteractiveMode::Always) {
        return unusable("it wants a terminal (interactiveMode: Always)".to_owned());
    }
    Ok(version)
}

fn command(plugin: &ExecConfig, version: &str) -> Result<Command, PluginError> {
    let Some(program) = plugin.command.as_deref().filter(|name| !name.is_empty()) else {
        return Err(PluginError::Unusable("it has no command".to_owned()));
    };
    let mut request = json!({
        "kind": "ExecCredential",
        "apiVersion": version,
        "spec": {"interactive": false},
    });
    if let Some(cluster) = &plugin.cluster {
        let cluster = serde_json::to_value(cluster);
        request["spec"]["cluster"] = cluster
            .map_err(|error| PluginError::Unusable(format!("the cluster's data: {error}")))?;
    }
    let mut command = std::process::Command::new(program);
    command
        .args(plugin.args.iter().flatten())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    for variable in plugin.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    command.env("KUBERNETES_EXEC_INFO", request.to_string());
    let mut command = Command::from(command);
    command.kill_on_drop(true);
    Ok(command)
}

fn read(output: &[u8], version: &str) -> Result<Credentials, PluginError> {
    let wrong = |text: String| PluginError::Answer(text);
    // The protocol requires JSON; client-go accepts YAML as well, and some plugins write it.
    let answer: Answer =
        serde_saphyr::from_slice(output).map_err(|error| wrong(error.to_string()))?;
    if (&*answer.kind, &*answer.api_version) != ("ExecCredential", version) {
        let (kind, other) = (&answer.kind, &answer.api_version);
        let text = format!("it is {kind} of {other}, not ExecCredential of {version}");
        return Err(wrong(text));
    }
    let status = answer.status.ok_or_else(|| wrong("no status".to_owned()))?;
    let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
    let (certificate, key) = (
        filled(status.client_certificate_data),
        filled(status.client_key_data),
    );
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return Err(wrong(
                "a certificate without key, or the reverse".to_owned(),
            ));
        }
    };
    let token = filled(status.token);
    if token.is_none() && identity.is_none() {
        return Err(wrong("neither a token nor a certificate".to_owned()));
    }
    let expires = filled(status.expiration_timestamp).map(|text| text.parse());
    let expires = expires
        .transpose()
        .map_err(|error| wrong(format!("expirationTimestamp: {error}")))?;
    Ok(Credentials {
        token,
        identity,
        expires,
    })
}

impl Credentials {
    /// Returns the client certificate, in PEM.
    pub(super) fn certificate(&self) -> Option<&str> {
        self.identity
            .as_ref()
            .map(|(certificate, _)| certificate.as_str())
    }

    /// Replaces the plugin by these credentials.
    pub(super) fn put_into(self, user: &mut AuthInfo) {
        user.exec = None;
        user.token = self.token.map(Into::into);
        if let Some((certificate, key)) = self.identity {
            let encode = |pem: String| data_encoding::BASE64.encode(pem.as_bytes());
            user.client_certificate_data = Some(encode(certificate));
            user.client_key_data = Some(encode(key).into());
        }
    }
}

/// The plugin of `user`, if it is used: as in client-go and kube, credentials in the kubeconfig
/// itself take precedence.
pub(super) fn of(user: &AuthInfo) -> Option<&ExecConfig> {
    let otherwise = user.token.is_some() || user.token_file.is_some() || user.username.is_some();
    user.exec.as_ref().filter(|_| !otherwise)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn plugin(script: &str) -> ExecConfig {
        let text = serde_json::json!({
            "apiVersion": VERSIONS[0], "command": "sh", "args": ["-c", script],
            "env": [{"name": "GREETING", "value": "hello"}], "interactiveMode": "Never",
        });
        serde_json::from_value(text).unwrap()
    }

    fn answer(status: &str) -> String {
        let version = VERSIONS[0];
        format!(r#"{{"kind":"ExecCredential","apiVersion":"{version}","status":{status}}}"#)
    }

    #[tokio::test]
    async fn a_plugin_gets_the_request_and_gives_credentials() {
        // Its answer is the request, with a status added.
        let script = r#"status='"token":"'$GREETING'","expirationTimestamp":"2027-01-02T03:04:05Z"'
            echo "$KUBERNETES_EXEC_INFO" | sed "s/\"spec\":{\"interactive\":false/\"status\":{$status/""#;
        let found = run(&plugin(script)).await.unwrap();
        let expected = Credentials {
            token: Some("hello".to_owned()),
            identity: None,
            expires: Some("2027-01-02T03:04:05Z".parse().unwrap()),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_no_answer_is_named() {
        let cases = [
            ("{}", "kind"),
            ("nonsense", ""),
            (&answer("null"), "no status"),
            (&answer("{}"), "neither a token nor a certificate"),
            (&answer(r#"{"token":""}"#), "neither"),
            (&answer(r#"{"clientKeyData":"x"}"#), "without key"),
            (
                &answer(r#"{"token":"x","expirationTimestamp":"soon"}"#),
                "expirationTimestamp",
            ),
            (
                r#"{"kind":"ExecCredential","apiVersion":"v1","status":{"token":"x"}}"#,
                "ExecCredential of v1",
            ),
        ];
        for (text, expected) in cases {
            let error = read(text.as_bytes(), VERSIONS[0]).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let yaml = format!(
            "kind: ExecCredential\napiVersion: {}\nstatus: {{token: x}}\n",
            VERSIONS[0]
        );
        read(yaml.as_bytes(), VERSIONS[0]).unwrap();
    }

    #[tokio::test]
    async fn a_plugin_that_fails_is_named_by_what_it_says() {
        let failed = run(&plugin("echo first >&2; echo 'log in again' >&2; exit 3")).await;
        let error = failed.unwrap_err().to_string();
        assert!(
            error.contains("log in again") && error.contains('3'),
            "{error}"
        );
        let terminal = ExecConfig {
            interactive_mode: Some(ExecInteractiveMode::Always),
            ..plugin("")
        };
        let error = run(&terminal).await.unwrap_err().to_string();
        assert!(error.contains("interactiveMode"), "{error}");
    }

    #[tokio::test]
    async fn a_plugin_that_writes_without_end_is_killed() {
        let begun = Instant::now();
        let error = run(&plugin("yes")).await.unwrap_err().to_string();
        assert!(error.contains("larger than 1 MiB"), "{error}");
        let script = "yes >&2 & sleep 0.5; kill $!; exit 3";
        let error = run(&plugin(script)).await.unwrap_err().to_string();
        assert!(error.ends_with(": y"), "{error}");
        assert!(begun.elapsed() < PATIENCE);
    }

    #[tokio::test]
    async fn a_plugin_that_hangs_is_killed_with_what_it_started() {
        let begun = Instant::now();
        // The pipe stays open while the plugin's child lives.
        let file = std::env::temp_dir().join(format!("tripod-plugin-{}", std::process::id()));
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let hangs = run_within(&plugin(&script), Duration::from_millis(300)).await;
        assert!(matches!(hangs, Err(PluginError::Hangs(_))), "{hangs:?}");
        assert!(begun.elapsed() < PATIENCE);
        let child = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let status = format!("/proc/{}/stat", child.trim());
        let lives = || std::fs::read_to_string(&status).is_ok_and(|stat| !stat.contains(") Z "));
        while lives() {
            assert!(begun.elapsed() < PATIENCE, "it lives on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
