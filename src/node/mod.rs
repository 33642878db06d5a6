//! The node: its name, the addresses of its node ports, and its settings that are made before
//! serving.

pub mod addresses;
mod ports;
mod prepare;

pub use self::{
    ports::{ActedOn, NodePorts, Served},
    prepare::{prepare, set_oom_score},
};

/// Returns the node's name: `hostname_override` if given, else the machine's
/// host name, as kube-proxy finds it (`k8s.io/component-helpers/node/util`
/// `GetHostname`): without surrounding space, in lower case.
///
/// # Errors
/// When the machine's host name is empty or cannot be read.
pub fn name(hostname_override: &str) -> Result<String, String> {
    let given = match hostname_override.trim() {
        "" => nix::unistd::gethostname()
            .map_err(|e| format!("cannot read the machine's host name: {e}"))?
            .to_string_lossy()
            .trim()
            .to_lowercase(),
        name => name.to_lowercase(),
    };
    match given.as_str() {
        "" => {
            Err("this machine's host name is empty; name the node with --hostname-override".into())
        }
        _ => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_override_is_taken_as_kube_proxy_takes_it() {
        assert_eq!(super::name(" Node-1 "), Ok("node-1".to_owned()));
        assert!(super::name("").is_ok_and(|n| !n.is_empty()));
    }
}
