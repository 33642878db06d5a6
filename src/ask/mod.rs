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

use std::{net::SocketAddr, path::Path, process::ExitCode, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

pub use self::connection::PATIENCE;
use self::{
    connection::{Connection, Failure},
    paint::Paint,
};
use crate::{
    cli::{self, Ask, Explain, Output, Probe, Question, Repeat},
    status_api::{
        Addressee, DIALS_PATH, DIFF_PATH, Destination, DialList, Diff, Explanation,
        ExplanationList, HEALTH_PATH, Health, STATUS_PATH, ServicePort, Status,
    },
};

/// Exit status: the proxy does not answer, or cannot now.
const UNREACHABLE: u8 = 2;

/// Asks, and prints the answer. Returns the exit status: 0; 1 if the proxy is not
/// healthy, there is no such Service, or the answer cannot be written; 2 if the proxy
/// does not answer, or cannot now.
pub async fn ask(ask: &Ask) -> ExitCode {
    let connection = Connection::new(&ask.socket);
    let answered = match &ask.question {
        Question::Status => how_it_is(&connection, ask.output).await,
        Question::Probe(probe) => probed(&connection, *probe).await,
        Question::Explain(asked) => explain::print(&connection, asked, ask.output).await,
        Question::Diff => what_differs(&connection, ask.output).await,
        Question::Services {
            namespace,
            name,
            repeat,
        } => {
            let namespace = namespace.as_deref();
            let selected = services::Selected::new(namespace, name.as_deref());
            match repeat {
                Repeat::Never => services::print(&connection, &selected, ask.output).await,
                Repeat::OnChange => services::watch(&connection, &selected, ask.output).await,
            }
        }
    };
    answered.unwrap_or_else(|failure| cli::fail(&failure.why, failure.status))
}

/// Asks the running proxy for its state.
///
/// # Errors
/// Says why there is no answer.
pub async fn status_of(socket: &Path) -> Result<Status, String> {
    let answer = Connection::new(socket).get(STATUS_PATH).await;
    answer.map_err(|failure| failure.why)
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
    let path = explain::path(&Explain {
        to: Destination {
            addressee: Addressee::Address(to),
            protocol: Some(protocol.to_owned()),
        },
        from: Some(from.to_owned()),
        kernel: false,
    });
    let answer = Connection::new(socket).within(most).get(&path).await;
    answer.map_err(|failure| failure.why)
}

/// Asks the running proxy how the kernel differs from the desired state.
///
/// # Errors
/// Says why there is no answer.
pub async fn differences(socket: &Path) -> Result<Diff, String> {
    let answer = Connection::new(socket).get(DIFF_PATH).await;
    answer.map_err(|failure| failure.why)
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
    let answer = Connection::new(socket).within(most).get(&path).await;
    answer.map_err(|failure| failure.why)
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
    let path = explain::path(&Explain {
        to: destination.clone(),
        from: Some(from.to_owned()),
        kernel: false,
    });
    let answer = Connection::new(socket).get::<ExplanationList>(&path).await;
    let items = answer.map_err(|failure| failure.why)?.items;
    let address = |one: Explanation| match one.to.parse() {
        Ok(to) => Ok((to, one.protocol.to_ascii_lowercase())),
        Err(_) => Err(format!("the running Tripod names {} as an address", one.to)),
    };
    items.into_iter().map(address).collect()
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
    let selected = services::Selected::new(namespace, name);
    let list = services::all(&connection, &selected).await;
    list.map(|list| list.items).map_err(|failure| failure.why)
}

async fn how_it_is(connection: &Connection<'_>, output: Output) -> Result<ExitCode, Failure> {
    let status: Status = connection.get(STATUS_PATH).await?;
    let table = |wide| status::table(&status, wide, Paint::of_stdout());
    print(&written(&status, output, table)?)?;
    Ok(if status.healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints why a probe fails, if it does.
async fn probed(connection: &Connection<'_>, probe: Probe) -> Result<ExitCode, Failure> {
    let health: Health = connection.get(HEALTH_PATH).await?;
    let failing = status::failing(&health, probe);
    if failing.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!("{}\n", failing.join("; ")))?;
    Ok(ExitCode::FAILURE)
}

async fn what_differs(connection: &Connection<'_>, output: Output) -> Result<ExitCode, Failure> {
    let diff: Diff = connection.get(DIFF_PATH).await?;
    let table = |wide| diff::table(&diff, wide, Paint::of_stdout());
    print(&written(&diff, output, table)?)?;
    Ok(diff::status(&diff))
}

/// Returns `value` in the format `output`; for people that is `table`, which is told whether it is
/// wide.
///
/// # Errors
/// When it cannot be written in that format.
pub fn document(
    value: &impl Serialize,
    output: Output,
    table: impl FnOnce(bool) -> String,
) -> Result<String, String> {
    match output {
        Output::Table | Output::Wide => Ok(table(output == Output::Wide)),
        Output::Json => serde_json::to_string_pretty(value)
            .map(|text| text + "\n")
            .map_err(|error| error.to_string()),
        Output::Yaml => serde_saphyr::to_string(value).map_err(|error| error.to_string()),
    }
}

fn written(
    value: &impl Serialize,
    output: Output,
    table: impl FnOnce(bool) -> String,
) -> Result<String, Failure> {
    document(value, output, table).map_err(Failure::unanswered)
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

fn print(text: &str) -> Result<(), Failure> {
    Ok(cli::put(text)?)
}
