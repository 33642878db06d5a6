use proptest::prelude::*;

use super::*;
use crate::services::ObjectName;

fn read(text: &str, format: Format) -> Result<Contents<ApiObject>, Broken> {
    super::read(text, format, |_, object, _| object)
}

fn kinds(contents: &Contents<ApiObject>) -> Vec<&'static str> {
    let objects = contents.objects.iter();
    objects
        .map(|object| match object {
            ApiObject::Service(_) => "Service",
            ApiObject::EndpointSlice(_) => "EndpointSlice",
            ApiObject::Node(_) => "Node",
            ApiObject::ServiceCidr(_) => "ServiceCIDR",
        })
        .collect()
}

#[test]
fn documents_and_what_they_hold() {
    const NONE: &[&str] = &[];
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n";
    let cases: [(&str, Format, &[&str], &[&str]); 12] = [
        ("# nothing\n", Format::Yaml, NONE, NONE),
        ("---\n", Format::Yaml, NONE, NONE),
        ("--- # empty\n...\n", Format::Yaml, NONE, NONE),
        (service, Format::Yaml, &["Service"], NONE),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
            Format::Yaml,
            NONE,
            &["v1 Pod"],
        ),
        (
            "apiVersion: serving.knative.dev/v1\nkind: Service\nspec: {ports: nonsense}\n",
            Format::Yaml,
            NONE,
            &["serving.knative.dev/v1 Service"],
        ),
        (
            "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n",
            Format::Yaml,
            NONE,
            &["discovery.k8s.io/v1beta1 EndpointSlice"],
        ),
        (
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service}\n\
             - {apiVersion: apps/v1, kind: Deployment, spec: [1]}\n- {apiVersion: v1, kind: Node}\n",
            Format::Yaml,
            &["Service", "Node"],
            &["apps/v1 Deployment"],
        ),
        (
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\n\
             items: [{addressType: IPv4, endpoints: []}]\n",
            Format::Yaml,
            &["EndpointSlice"],
            NONE,
        ),
        (
            "items: [{spec: {}}]\nkind: ServiceList\napiVersion: v1\n",
            Format::Yaml,
            &["Service"],
            NONE,
        ),
        (
            "apiVersion: v1\nkind: List\nitems:\n",
            Format::Yaml,
            NONE,
            NONE,
        ),
        (
            "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[{\"kind\":\"Service\",\"apiVersion\":\"v1\"}]}",
            Format::Json,
            &["Service"],
            NONE,
        ),
    ];
    for (text, format, objects, ignored) in cases {
        let contents = read(text, format).unwrap_or_else(|broken| panic!("{text}\n{broken:?}"));
        assert_eq!(kinds(&contents), objects, "{text}");
        assert_eq!(contents.ignored, ignored, "{text}");
    }
}

#[test]
fn faults_name_their_line() {
    let cases = [
        ("a: [1\n", Format::Yaml, None, ""),
        ("just words\n", Format::Yaml, Some(1), "`key: value` pairs"),
        ("kind: Service\n", Format::Yaml, None, "no apiVersion"),
        ("apiVersion: v1\n", Format::Yaml, None, "no kind"),
        (
            "apiVersion: v1\nkind: Service\nspec:\n  ports:\n  - port: eighty\n",
            Format::Yaml,
            Some(5),
            "expected a whole number (at `- port: eighty`)",
        ),
        (
            "apiVersion: v1\nkind: Service\nspec:\n\tports: []\n",
            Format::Yaml,
            Some(4),
            "",
        ),
        (
            "{\n\"apiVersion\": \"v1\",\n\"kind\": \"Service\",\n\"spec\": 7}",
            Format::Json,
            Some(4),
            "invalid type",
        ),
        ("{\n\"a\": \n", Format::Json, Some(3), "EOF"),
    ];
    for (text, format, line, reason) in cases {
        let broken = read(text, format).expect_err(text);
        if line.is_some() {
            assert_eq!(broken.line, line, "{text}\n{broken:?}");
        }
        assert!(broken.reason.contains(reason), "{text}\n{broken:?}");
        assert!(!broken.reason.is_empty() && !broken.reason.contains('\n'));
        assert!(!broken.reason.contains(" line "), "{broken:?}");
    }
}

/// The items that were read, and the others with their line and key.
fn items(text: &str, format: Format) -> (Vec<usize>, Vec<String>) {
    let contents = super::read(text, format, |item, _, _| item.expect("a list"));
    let contents = contents.unwrap_or_else(|broken| panic!("{text}\n{broken:?}"));
    let broken = contents.broken.into_iter().map(|broken| {
        let line = broken.line.map(|line| format!("line {line}: "));
        let key = broken.key.as_ref().map(ObjectName::to_string);
        format!(
            "{}{broken} [{}]",
            line.unwrap_or_default(),
            key.unwrap_or_default()
        )
    });
    (contents.objects, broken.collect())
}

#[test]
fn a_broken_item_does_not_hide_the_others() {
    let list = |items: &[&str]| {
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{}\n]}}",
            items.join(",\n")
        )
    };
    let good = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}"#;
    let named = r#"{"spec":{"ports":[{"port":"x"}]},"apiVersion":"v1","kind":"Service","metadata":{"name":"b","namespace":"n"}}"#;
    let labels = r#"{"apiVersion":"v1","kind":"Node","metadata":{"labels":[1],"name":"node-1"}}"#;
    let nameless = r#"{"apiVersion":"v1","kind":"Service","metadata":[7]}"#;
    let text = list(&[
        named,
        good,
        "null",
        "3",
        labels,
        "{\"metadata\":{\"name\":\"k\"}}",
        good,
        r#"{"apiVersion":"v1","kind":"Secret","data":[1]}"#,
        nameless,
        r#"{"apiVersion":1,"kind":"Service"}"#,
        good,
    ]);
    for format in [Format::Json, Format::Yaml] {
        let (read, broken) = items(&text, format);
        assert_eq!(read, [1, 6, 10], "{broken:#?}");
        let begin = [
            "line 2: items[0]: Service n/b: ",
            "items[2]: not a Kubernetes object: expected `key: value` pairs []",
            "items[3]: not a Kubernetes object: expected `key: value` pairs []",
            "line 6: items[4]: Node node-1: ",
            "items[5]: not a Kubernetes object: it has no apiVersion []",
            "line 10: items[8]: ",
            "items[9]: not a Kubernetes object: it has no apiVersion []",
        ];
        assert_eq!(broken.len(), begin.len(), "{broken:#?}");
        for (broken, begin) in broken.iter().zip(begin) {
            assert!(broken.starts_with(begin), "{broken:#?}");
        }
        assert!(
            broken[0].ends_with("[Service n/b]") && broken[5].ends_with(" []"),
            "{broken:#?}"
        );
    }
}

#[test]
fn items_of_a_block_list_and_of_a_typed_one() {
    let text = "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: &m {name: a}\n  spec: [1]\n\
                -\n- metadata: *m\n- kind: [1]\n  metadata: {name: c}\n- metadata: {name: d, namespace: {}}\n  spec: 1\n";
    let (read, broken) = items(text, Format::Yaml);
    assert_eq!(read, [2], "{broken:#?}");
    let begin = [
        "line 5: items[0]: Service default/a: ",
        "items[1]: not a K",
        "items[3]: not a K",
        "line 10: items[4]: ",
    ];
    assert_eq!(broken.len(), begin.len(), "{broken:#?}");
    for (broken, begin) in broken.iter().zip(begin) {
        assert!(broken.starts_with(begin), "{broken:#?}");
    }
    // The namespace is unreadable, so the object may be any.
    assert!(broken[3].ends_with(" []"), "{broken:#?}");
}

/// For each broken item the list is read again.
#[test]
fn a_long_list_of_broken_items_is_given_up() {
    let pad = " ".repeat(8 << 20);
    let item = "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"spec\":1}";
    let items_text = vec![item; 1_000].join(",");
    let text = format!("{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[{items_text}]{pad}}}");
    let (read, broken) = items(&text, Format::Json);
    assert!(read.is_empty());
    assert_eq!(broken.len(), 10);
    assert!(
        broken
            .last()
            .is_some_and(|last| last.starts_with("too many")),
        "{broken:?}"
    );
}

#[test]
fn texts_made_to_exhaust_are_refused() {
    let mut laughs = String::from("apiVersion: v1\nkind: Service\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..10 {
        let last = format!("*a{}", level - 1);
        let items = [last.as_str(); 10].join(",");
        laughs += &format!("a{level}: &a{level} [{items}]\n");
    }
    let deep_flow = format!(
        "apiVersion: v1\nkind: Service\nspec: {}",
        "[".repeat(100_000)
    );
    let deep_block = format!("kind: Service\na:\n{}", "- ".repeat(100_000));
    let deep_json = "[".repeat(100_000);
    for (text, format) in [
        (&laughs, Format::Yaml),
        (&deep_flow, Format::Yaml),
        (&deep_block, Format::Yaml),
        (&deep_json, Format::Json),
    ] {
        let started = std::time::Instant::now();
        let broken = read(text, format).expect_err("refused");
        assert!(started.elapsed().as_secs() < 10, "{broken:?}");
        assert!(broken.reason.len() < 500, "{broken:?}");
    }
}

#[test]
fn a_large_list_is_read() {
    let mut text = String::from("apiVersion: v1\nkind: ServiceList\nitems:\n");
    for i in 0..5_000 {
        text += &format!(
            "- metadata: {{name: s{i}, labels: {{a: b, c: d, e: f}}}}\n  spec:\n    \
             ports:\n    - {{name: http, port: 80, protocol: TCP, targetPort: 8080}}\n"
        );
    }
    let contents = read(&text, Format::Yaml).expect("read");
    assert_eq!(contents.objects.len(), 5_000);
}

/// Words of manifests in random order, which are closer to real mistakes than random text.
fn scrambled() -> impl Strategy<Value = String> {
    let words = vec![
        "apiVersion: v1\n",
        "kind: Service\n",
        "kind: List\n",
        "items:\n",
        "- ",
        "  ",
        "spec:\n",
        "ports:\n",
        "port: 80\n",
        "metadata: {name: a}\n",
        "{",
        "}",
        "[",
        "]",
        "&a ",
        "*a",
        "<<: *a\n",
        "\"",
        "'",
        "|\n",
        "---\n",
        "...\n",
        "# c\n",
        ": ",
        "\t",
        "!!str ",
        "null\n",
        "%YAML 1.2\n",
        ",",
    ];
    let word = prop::sample::select(words);
    prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in prop_oneof![any::<String>(), scrambled()]) {
        let _ = read(&text, Format::Yaml);
        let _ = read(&text, Format::Json);
    }
}

#[test]
fn documents_of_others_are_not_quoted() {
    let text = "apiVersion: v1\nkind: Secret\ndata: {password: {hunter2\n";
    let broken = read(text, Format::Yaml).expect_err("broken");
    assert!(!broken.reason.contains("hunter2"), "{broken:?}");
}
