//! Command lines of `tripod trace`.

use super::*;
use crate::status_api::Destination;

#[test]
fn packets_that_are_followed() {
    let trace = |arguments: &[&str]| match settings(&[&["trace"], arguments].concat()).job {
        Job::Trace(trace) => trace,
        other => panic!("{arguments:?}: {other:?}"),
    };
    let usual = trace(&["--to=[fd00::a]:53/udp"]);
    let expected = Trace {
        to: Destination::read("[fd00::a]:53/udp").unwrap(),
        from: None,
        count: 10,
        timeout: Duration::from_secs(10),
        common: Common {
            format: Format {
                output: Output::Table,
            },
            socket: "/run/tripod/tripod.sock".into(),
        },
    };
    assert_eq!(usual, expected);
    let given = trace(&[
        "--to=10.96.0.10:80",
        "--from=10.244.0.9",
        "--count=1",
        "--timeout=1m",
        "-ojson",
        "--status-socket=/s",
    ]);
    let expected = Trace {
        to: Destination::read("10.96.0.10:80").unwrap(),
        from: Some([10, 244, 0, 9].into()),
        count: 1,
        timeout: Duration::from_secs(60),
        common: Common {
            format: Format {
                output: Output::Json,
            },
            socket: "/s".into(),
        },
    };
    assert_eq!(given, expected);
    for (format, output) in [("wide", Output::Wide), ("yaml", Output::Yaml)] {
        assert_eq!(
            trace(&["--to=10.96.0.10:80", "-o", format])
                .common
                .format
                .output,
            output
        );
    }
}
