//! Flags about logs, metrics and health.

use crate::{
    cli::flag::{Field, Flag, path},
    config::{bind, notation, quantity},
    status_api::SOCKET,
};

pub(super) const OBSERVING: &[Flag] = &[
    Flag::new(
        "healthz-bind-address",
        "IP:PORT",
        Field::Set(
            |o, text| {
                bind::check_flag(text)?;
                // kube-proxy's flag also has no effect then (`IPPortVar`).
                if !text.is_empty() {
                    o.configuration.healthz_bind_address = text.to_owned();
                }
                Ok(())
            },
            "0.0.0.0:10256",
        ),
        "Address at which /healthz and /livez are served; an empty value has no effect",
    )
    .line("Address of /healthz and /livez")
    .common(),
    Flag::new(
        "metrics-bind-address",
        "IP:PORT",
        Field::Set(
            |o, text| {
                bind::check_flag(text)?;
                o.configuration.metrics_bind_address = text.to_owned();
                Ok(())
            },
            "127.0.0.1:10249",
        ),
        "Address at which /metrics is served; empty: nowhere",
    )
    .line("Address of /metrics")
    .common(),
    Flag::new(
        "metrics-secure-bind-address",
        "IP:PORT",
        Field::Set(
            |o, text| {
                let address = Some(text).filter(|text| !text.is_empty());
                o.own.metrics_secure = address.map(bind::parse).transpose()?;
                Ok(())
            },
            "",
        ),
        "Address at which the same is served over TLS, to clients that the API server authorizes \
         (bearer tokens, TokenReview and SubjectAccessReview); empty: nowhere",
    )
    .beside_file(),
    Flag::new(
        "tls-cert-file",
        "FILE",
        Field::Set(|o, text| path(&mut o.own.tls_cert_file, text), ""),
        "PEM file with the certificate of --metrics-secure-bind-address, followed by intermediate \
         certificates; read again when it changes. Without it, Tripod creates a self-signed \
         certificate at each start",
    )
    .beside_file(),
    Flag::new(
        "tls-private-key-file",
        "FILE",
        Field::Set(|o, text| path(&mut o.own.tls_private_key_file, text), ""),
        "PEM file with the private key of --tls-cert-file; read again when it changes",
    )
    .beside_file(),
    Flag::new(
        "service-metrics",
        "NAMESPACE,...",
        Field::List(|o| &mut o.own.service_metrics),
        "Namespaces for whose Services the metrics include the connections and bytes of each \
         endpoint, as far as the mode counts them; *: all namespaces. Each endpoint adds several \
         series",
    )
    .beside_file(),
    Flag::new(
        "status-socket",
        "PATH",
        Field::Set(|o, text| path(&mut o.own.status_socket, text), SOCKET),
        "Unix socket at which this process answers tripod status and the other commands, only for \
         root; empty: none",
    )
    .line("Unix socket of the proxy")
    .beside_file(),
    Flag::switch(
        "bind-address-hard-fail",
        |o| &mut o.configuration.bind_address_hard_fail,
        "Exit if one of these addresses cannot be bound, instead of trying again",
    ),
    Flag::switch(
        "profiling",
        |o| &mut o.configuration.enable_profiling,
        "Accepted for compatibility: Tripod has no /debug/pprof",
    ),
    Flag::text(
        "show-hidden-metrics-for-version",
        "VERSION",
        |o| &mut o.configuration.show_hidden_metrics_for_version,
        "Accepted for compatibility: Tripod hides no metric",
    ),
    Flag::new(
        "healthz-port",
        "PORT",
        Field::Set(|o, text| port(&mut o.healthz_port, text), ""),
        "Port for --healthz-bind-address if that names none; 0: serve nowhere",
    )
    .hidden(),
    Flag::new(
        "metrics-port",
        "PORT",
        Field::Set(|o, text| port(&mut o.metrics_port, text), ""),
        "Port for --metrics-bind-address if that names none; 0: serve nowhere",
    )
    .hidden(),
];

pub(in crate::cli) const LOGGING: &[Flag] = &[
    Flag::new(
        "v",
        "LEVEL",
        Field::Set(
            |o, text| {
                let level = text.parse().ok().filter(|level| *level <= i32::MAX as u32);
                o.configuration.logging.verbosity =
                    level.ok_or("it must be a whole number, 0 or greater")?;
                Ok(())
            },
            "0",
        ),
        "How much is logged: 0, what an operator must know; 2, each sync as well; 4, each failed \
         attempt to reach an endpoint as well",
    )
    .line("How much is logged: 0, 2 (each sync too) or 4")
    .common()
    .short('v'),
    Flag::text(
        "logging-format",
        "FORMAT",
        |o| &mut o.configuration.logging.format,
        "text or json",
    )
    .common(),
    Flag::time(
        "log-flush-frequency",
        |o| &mut o.configuration.logging.flush_frequency,
        "Accepted for compatibility: Tripod writes each line at once",
    ),
    Flag::new(
        "vmodule",
        "PATTERN=N,...",
        Field::Add(|o, text| {
            let items = notation::vmodule(text)?;
            o.configuration.logging.vmodule.extend(items);
            Ok(())
        }),
        "Accepted for compatibility: the verbosity is the same for all files",
    ),
    Flag::switch(
        "log-text-split-stream",
        |o| &mut o.configuration.logging.options.text.split_stream,
        "Accepted for compatibility: the log goes to standard error",
    ),
    Flag::new(
        "log-text-info-buffer-size",
        "SIZE",
        Field::Set(
            |o, text| {
                size(
                    &mut o.configuration.logging.options.text.info_buffer_size,
                    text,
                )
            },
            "",
        ),
        "Accepted for compatibility: nothing is buffered",
    ),
    Flag::switch(
        "log-json-split-stream",
        |o| &mut o.configuration.logging.options.json.split_stream,
        "Accepted for compatibility: the log goes to standard error",
    ),
    Flag::new(
        "log-json-info-buffer-size",
        "SIZE",
        Field::Set(
            |o, text| {
                size(
                    &mut o.configuration.logging.options.json.info_buffer_size,
                    text,
                )
            },
            "",
        ),
        "Accepted for compatibility: nothing is buffered",
    ),
];

fn port(into: &mut Option<u16>, text: &str) -> Result<(), String> {
    let port = text.parse::<u16>();
    *into = Some(port.map_err(|_| "it must be a port from 0 to 65535")?);
    Ok(())
}

fn size(into: &mut String, text: &str) -> Result<(), String> {
    quantity::is_nonzero(text)?;
    *into = text.to_owned();
    Ok(())
}
