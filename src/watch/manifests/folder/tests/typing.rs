//! Typing errors, and values that merely look like them.

use super::*;

/// Typing errors that would give a good object another meaning, and the report on each.
#[test]
fn a_typing_error_withdraws_nothing() {
    let good = service("a", "10.0.0.1");
    for (right, wrong, expected) in [
        (
            "kind: Service",
            "kind: Servcie",
            "unknown kind \"Servcie\", did you mean Service?",
        ),
        (
            "apiVersion: v1",
            "apiVersion: V1",
            "unknown apiVersion \"V1\" of Service",
        ),
        (
            "clusterIP:",
            "clusterIp:",
            "unknown field spec.clusterIp, did you mean clusterIP?",
        ),
        (
            "ports:",
            "prots:",
            "unknown field spec.prots, did you mean ports?",
        ),
        (
            "port: 80",
            "prot: 80",
            "unknown field spec.ports[0].prot, did you mean port?",
        ),
        ("spec:", "sepc:", "unknown field sepc, did you mean spec?"),
    ] {
        for list in [false, true] {
            let write = |text: &str| {
                if !list {
                    return text.to_owned();
                }
                let item = text.replace('\n', "\n    ");
                format!("apiVersion: v1\nkind: List\nitems:\n  - {}\n", item.trim())
            };
            assert!(good.contains(right), "{good}");
            let mut folder = Folder::default();
            take(&mut folder, &[("x.yaml", text(&write(&good)))]);
            let bad = good.replace(right, wrong);
            let (events, reports) = take(&mut folder, &[("x.yaml", text(&write(&bad)))]);
            assert_eq!(events, [""; 0], "{wrong}");
            assert!(reports[0].contains(expected), "{wrong}: {reports:?}");
            assert!(reports[0].contains("Service default/a: "), "{reports:?}");
            assert_eq!(folder.faults().count(), 1, "{wrong}");
            let (events, _) = take(&mut folder, &[("x.yaml", text(&write(&good)))]);
            assert_eq!((events.len(), folder.faults().count()), (0, 0), "{wrong}");
        }
    }
}

/// It may belong to a newer Kubernetes.
#[test]
fn an_unknown_field_like_no_other_is_left_out() {
    let mut folder = Folder::default();
    let newer = service("a", "10.0.0.1").replace("spec: {", "spec: {quantum: true, ");
    assert!(newer.contains("quantum"));
    let (events, reports) = take(&mut folder, &[("x.yaml", text(&newer))]);
    assert_eq!(events, ["+default/a"]);
    let expected = "x.yaml: document 1: Service default/a: unknown field spec.quantum; ignoring \
                    this value";
    assert_eq!(reports, [expected]);
    assert_eq!(folder.faults().count(), 0);
}

/// Numbers are read as by `kubectl`, which converts YAML 1.1 to JSON.
#[test]
fn whole_numbers_may_be_written_in_any_way() {
    for number in ["80", "0120", "80.0", "8e1", "0x50", "0b1010000", "8_0"] {
        for list in [false, true] {
            let good = service("a", "10.0.0.1").replace("port: 80", &format!("port: {number}"));
            let written = if list {
                let item = good.replace('\n', "\n    ");
                format!("apiVersion: v1\nkind: List\nitems:\n  - {}\n", item.trim())
            } else {
                good
            };
            let (events, reports) = take(&mut Folder::default(), &[("x.yaml", text(&written))]);
            assert_eq!(
                (&events[..], reports.len()),
                (&["+default/a".to_owned()][..], 0),
                "{number}"
            );
        }
    }
    for number in ["80.5", "x", "1e99"] {
        let bad = service("a", "10.0.0.1").replace("port: 80", &format!("port: {number}"));
        let (events, _) = take(&mut Folder::default(), &[("x.yaml", text(&bad))]);
        assert_eq!(events, [""; 0], "{number}");
    }
}
