//! Joins flags and configuration file.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{Cleanup, Job, Own, Stop, Version, flags, options::CommandLine};
use crate::config::{self, Checked, ConfigFile, Effective, KubeProxyConfiguration, Problem, bind};

/// Everything that the user requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The job of the process, such as serving or cleaning up.
    pub job: Job,
    /// The configuration, complete, as `/configz` shows it.
    pub configuration: KubeProxyConfiguration,
    /// The values that follow from the configuration.
    pub effective: Effective,
    /// Address of the API server; `None`: that of the kubeconfig or the service account.
    pub master: Option<String>,
    /// Values of flags that only Tripod has.
    pub own: Own,
    /// The configuration file that was read, which is [watched](config::watch_file) while serving;
    /// `None` if there is none.
    pub file: Option<ConfigFile>,
    /// Lines for the log about settings that have no effect, or an unexpected one.
    pub warnings: Vec<String>,
    /// Every flag with its value or its default, by name, for `/flagz`.
    pub flags: Vec<(&'static str, String)>,
}

/// Applies the configuration file and the flags, and checks the result.
pub(super) fn settle(
    mut line: CommandLine,
    read_file: impl Fn(&Path) -> io::Result<String>,
) -> Result<Settings, Stop> {
    if let Some(version) = version(&line.options.version) {
        return Err(Stop::Answer(version));
    }
    let without_effect = ["machine-id-file", "boot-id-file"].into_iter();
    let given = without_effect.filter(|name| line.has(name));
    let reported = (line.options.version == Version::Reported).then_some("version");
    let mut warnings: Vec<String> = given
        .chain(reported)
        .map(|name| format!("--{name}: accepted, but without effect in Tripod"))
        .collect();
    let mut problems = Vec::new();
    let file = match line.options.config.as_str() {
        "" => {
            from_flags(&mut line);
            None
        }
        path => {
            let file = ConfigFile {
                path: PathBuf::from(path),
                text: read_file(Path::new(path))
                    .map_err(|e| Stop::refused(format!("cannot read --config {path}: {e}")))?,
            };
            from_file(&mut line, &file, &mut problems, &mut warnings)?;
            Some(file)
        }
    };
    let flags = with_values(&line);
    let mut options = line.options;
    if let Some(name) = &options.hostname_override {
        options.configuration.hostname_override.clone_from(name);
    }
    if let Some(range) = &options.own.proxy_port_range {
        options.configuration.port_range.clone_from(range);
    }
    let checked = config::check(options.configuration, problems)
        .map_err(|problems| refusal(&problems, file.as_ref()))?;
    let Checked {
        configuration,
        effective,
        warnings: more,
    } = checked;
    warnings.extend(more);
    let without = match (options.cleanup, options.init_only) {
        (true, _) => Job::Cleanup(Cleanup::default()),
        (false, true) => Job::Init,
        (false, false) => Job::Serve,
    };
    let job = line.job.unwrap_or(without);
    if job == Job::Render && options.own.manifests.is_none() {
        let why = "tripod render needs objects: add --manifests PATH, a folder or a file";
        return Err(Stop::refused(why));
    }
    if job == Job::Serve {
        secure_metrics(&options.own, &mut warnings)?;
    }
    let job = match options.write_config_to.as_str() {
        "" => job,
        // kube-proxy does this before anything else.
        path => Job::WriteConfig(PathBuf::from(path)),
    };
    Ok(Settings {
        job,
        configuration,
        effective,
        master: Some(options.master).filter(|master| !master.is_empty()),
        own: options.own,
        file,
        warnings,
        flags,
    })
}

/// Checks the flags that belong to `--metrics-secure-bind-address`.
fn secure_metrics(own: &Own, warnings: &mut Vec<String>) -> Result<(), Stop> {
    let refused = |why: &str| Err(Stop::refused(why));
    match (&own.tls_cert_file, &own.tls_private_key_file) {
        (Some(_), None) => return refused("--tls-cert-file also needs --tls-private-key-file"),
        (None, Some(_)) => return refused("--tls-private-key-file also needs --tls-cert-file"),
        (Some(_), Some(_)) if own.metrics_secure.is_none() => warnings.push(
            "--tls-cert-file: without effect, because --metrics-secure-bind-address is not given"
                .to_owned(),
        ),
        _ => {}
    }
    if own.metrics_secure.is_some() && own.manifests.is_some() {
        return refused(
            "--metrics-secure-bind-address needs an API server that authorizes clients, and with \
             --manifests there is none; omit one of them",
        );
    }
    Ok(())
}

/// Applies flags that have no field in the configuration, as kube-proxy does
/// (`Options.processV1Alpha1Flags`, `addressFromDeprecatedFlags`).
fn from_flags(line: &mut CommandLine) {
    let options = &mut line.options;
    let c = &mut options.configuration;
    let periods = &options.periods;
    let (sync, min) = match c.mode.as_str() {
        "ipvs" => (periods.ipvs, periods.ipvs_min),
        // kube-proxy would run iptables mode, Tripod runs ipvs mode: the flags of ipvs
        // mode apply where those of iptables mode are not given.
        "" => (
            periods.iptables.or(periods.ipvs),
            periods.iptables_min.or(periods.ipvs_min),
        ),
        _ => (periods.iptables, periods.iptables_min),
    };
    c.sync_period = sync.unwrap_or(c.sync_period);
    c.min_sync_period = min;
    for (port, address, usual) in [
        (
            options.healthz_port,
            &mut c.healthz_bind_address,
            bind::HEALTHZ_PORT,
        ),
        (
            options.metrics_port,
            &mut c.metrics_bind_address,
            bind::METRICS_PORT,
        ),
    ] {
        *address = match port {
            Some(0) => String::new(),
            port => bind::with_port(address, port.unwrap_or(usual)),
        };
    }
}

fn from_file(
    line: &mut CommandLine,
    file: &ConfigFile,
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<String>,
) -> Result<(), Stop> {
    let path = file.path.display();
    let decoded = config::decode::decode(&file.text)
        .map_err(|why| Stop::refused(format!("--config {path} cannot be used: {why}")))?;
    let more = decoded.warnings.into_iter();
    warnings.extend(more.map(|warning| format!("--config {path}: {warning}")));
    let ignored = flags::with_headings().filter(|flag| !flags::is_beside_file(flag));
    let ignored = ignored.filter(|(_, flag)| line.has(flag.name));
    let ignored: Vec<String> = ignored
        .map(|(_, flag)| format!("--{}", flag.name))
        .collect();
    if !ignored.is_empty() {
        warnings.push(format!(
            "ignored, because --config overrides them: {}",
            ignored.join(", ")
        ));
    }
    problems.extend(decoded.problems);
    let options = &mut line.options;
    options.configuration = decoded.configuration;
    // As in kube-proxy (`copyLogsFromFlags`), the flags for logging take precedence over the file.
    let vmodule = std::mem::take(&mut options.configuration.logging.vmodule);
    for flag in flags::LOGGING {
        if let Some((_, value)) = line.given.iter().find(|(name, _)| *name == flag.name) {
            // The value is valid: it was set before.
            let _ = flag.set(options, value);
        }
    }
    options.configuration.logging.vmodule.extend(vmodule);
    Ok(())
}

fn with_values(line: &CommandLine) -> Vec<(&'static str, String)> {
    let mut flags: Vec<_> = flags::all()
        .filter(|flag| !flag.hidden)
        .map(|flag| {
            let given = line.given.iter().find(|(name, _)| *name == flag.name);
            let value = given.map_or_else(|| flag.initial(), |(_, value)| value.clone());
            (flag.name, value)
        })
        .collect();
    flags.sort_unstable();
    flags
}

fn refusal(problems: &[Problem], file: Option<&ConfigFile>) -> Stop {
    let mut text = match file {
        Some(file) => format!("error: --config {} cannot be used:", file.path.display()),
        None => "error: the flags cannot be used:".to_owned(),
    };
    for problem in problems {
        text.push_str(&format!("\n  {problem}"));
    }
    Stop::Refusal(text)
}

/// Returns the version in kube-proxy's form with Tripod's name: `Tripod v0.1.0`.
pub(super) fn version(asked: &Version) -> Option<String> {
    let version = env!("CARGO_PKG_VERSION");
    match asked {
        Version::No | Version::Reported => None,
        Version::Line => Some(format!("Tripod v{version}")),
        Version::Raw => Some(format!(
            "version.Info{{Major:\"{}\", Minor:\"{}\", GitVersion:\"v{version}\", Platform:\"{}/{}\"}}",
            env!("CARGO_PKG_VERSION_MAJOR"),
            env!("CARGO_PKG_VERSION_MINOR"),
            std::env::consts::OS,
            std::env::consts::ARCH,
        )),
    }
}
