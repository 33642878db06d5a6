//! The commands that ask the running proxy: they read its API over the unix socket and
//! print the answers.

pub mod check;
mod connection;
mod diff;
mod explain;
pub mod kubectl;
mod paint;
mod services;
mod status;
pub mod table;
#[cfg(test)]
mod tests;
mod times;
mod watch;

use std::{io, net::SocketAddr, path::Path, process::ExitCode, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use self::connection::{Connection, Failure};
pub use self::connection::{PATIENCE, exchange};
use crate::{
    cli::{self, Ask, Common, Output, Unwritable},
    status_api::{
        Addressee, DIALS_PATH, DIFF_PATH, Destination, DialList, Diff, Explanation,
        ExplanationList, HEALTH_PATH, STATUS_PATH, ServicePort, Status,
    },
};

/// Exit status: the proxy does not answer, or cannot now.
const UNREACHABLE: u8 = 2;

/// Asks, and prints the answer. Returns the exit status: 0; 1 if the proxy is not
/// healthy, there is no such Service, or the answer cannot be written; 2 if the proxy
/// does not answer, or cannot now.
pub async fn ask(ask: &Ask) -> ExitCode {
    let answered = match ask {
        Ask::Status(asked) => how_it_is(asked).await,
        Ask::Services(asked) => services::print(asked).await,
        Ask::Explain(asked) => explain::print(asked).await,
        Ask::Diff(common) => what_differs(common).await,
    };
    answered.unwrap_or_else(|failure| cli::fail(&failure.why, failure.status))
}

/// Asks the running proxy for its state.
///
/// # Errors
/// Says why there is no answer.
pub async fn status_of(socket: &Path) -> Result<Status, String> {
    Ok(Connection::new(socket).get(STATUS_PATH).await?)
}

/// Returns whether a proxy has that socket, even if it is stopped or busy.
pub async fn is_running(socket: &Path) -> bool {
    Connection::new(socket).is_listened_on().await
}

/// Asks the running proxy what happens to a packet, according to the Services alone. `from` is an
/// address, `pod` or `node`.
///
/// # Errors
/// Says why there is no answer within `most`.
pub async fn explanation(
    socket: &Path,
    most: Duration,
    to: SocketAddr,
    protocol: &str,
    from: &str,
) -> Result<Explanation, String> {
    let to = Destination {
        addressee: Addressee::Address(to),
        protocol: Some(protocol.to_owned()),
    };
    let path = explain::path(&to, Some(from), false);
    Ok(Connection::new(socket).within(most).get(&path).await?)
}

/// Asks the running proxy how the kernel differs from the desired state.
///
/// # Errors
/// Says why there is no answer.
pub async fn differences(socket: &Path) -> Result<Diff, String> {
    Ok(Connection::new(socket).get(DIFF_PATH).await?)
}

/// Asks the running proxy for its attempts to reach endpoints of the ServicePort
/// `namespace/name:port`, since the number `after` of an earlier answer, if there was one.
///
/// # Errors
/// Says why there is no answer within `most`, for example because the proxy makes no
/// connections to endpoints.
pub async fn dials(
    most: Duration,
    socket: &Path,
    (service_port, protocol): (&str, &str),
    after: Option<u64>,
) -> Result<DialList, String> {
    let after = after.map_or_else(String::new, |after| format!("&after={after}"));
    let path = format!("{DIALS_PATH}?servicePort={service_port}&protocol={protocol}{after}");
    Ok(Connection::new(socket).within(most).get(&path).await?)
}

/// Resolves `destination` to addresses, each with its port and the protocol in lower case; for a
/// Service, as the running proxy knows it, its cluster IPs of the family of `from`.
///
/// # Errors
/// Says why there are none.
pub async fn addresses(
    socket: &Path,
    destination: &Destination,
    from: &str,
) -> Result<Vec<(SocketAddr, String)>, String> {
    if let Addressee::Address(to) = &destination.addressee {
        let protocol = destination.protocol.as_deref().unwrap_or("tcp");
        return Ok(vec![(*to, protocol.to_owned())]);
    }
    let path = explain::path(destination, Some(from), false);
    let answer: ExplanationList = Connection::new(socket).get(&path).await?;
    let address = |one: Explanation| match one.to.parse() {
        Ok(to) => Ok((to, one.protocol.to_ascii_lowercase())),
        Err(_) => Err(format!("the running Tripod names {} as an address", one.to)),
    };
    answer.items.into_iter().map(address).collect()
}

/// Asks the running proxy for the ServicePorts of all namespaces or of one, or only for those of
/// the Service of this name.
///
/// # Errors
/// Says why there is no answer, for example because there is no such Service.
pub async fn service_ports(
    socket: &Path,
    namespace: Option<&str>,
    name: Option<&str>,
) -> Result<Vec<ServicePort>, String> {
    let connection = Connection::new(socket);
    Ok(services::all(&connection, namespace, name).await?.items)
}

/// Prints the state; with a probe, only why it fails.
async fn how_it_is(asked: &cli::Status) -> Result<ExitCode, Failure> {
    let connection = Connection::new(&asked.common.socket);
    let is_good = match asked.probe {
        None => {
            let status: Status = connection.get(STATUS_PATH).await?;
            let table = |wide| status::table(&status, wide);
            show(&status, asked.common.format.output, table)?;
            status.healthy
        }
        Some(probe) => {
            let failing = status::failing(&connection.get(HEALTH_PATH).await?, probe);
            if !failing.is_empty() {
                cli::put(&format!("{}\n", failing.join("; ")))?;
            }
            failing.is_empty()
        }
    };
    Ok(cli::exit_status(is_good))
}

async fn what_differs(common: &Common) -> Result<ExitCode, Failure> {
    let diff: Diff = Connection::new(&common.socket).get(DIFF_PATH).await?;
    show(&diff, common.format.output, |wide| diff::table(&diff, wide))?;
    Ok(diff::status(&diff))
}

/// Prints `value` in the format `output`; for people that is `table`, which is told whether it is
/// wide.
///
/// # Errors
/// When it cannot be written.
pub fn show(
    value: &impl Serialize,
    output: Output,
    table: impl FnOnce(bool) -> String,
) -> Result<(), Unwritable> {
    let text = match output {
        Output::Table | Output::Wide => table(output == Output::Wide),
        Output::Json => serde_json::to_string_pretty(value).map_err(io::Error::from)? + "\n",
        Output::Yaml => serde_saphyr::to_string(value).map_err(io::Error::other)?,
    };
    cli::put(&text)
}

/// Reads an answer of the API.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        Failure::unanswered(format!(
            "the running Tripod gives an answer that this one does not understand ({error}): \
             ask it with a program of its own version"
        ))
    })
}
