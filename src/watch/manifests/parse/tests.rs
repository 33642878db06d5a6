use proptest::prelude::*;

use super::*;

fn read(text: &str, format: Format) -> Result<Contents<ApiObject>, Broken> {
    super::read(text, format, |object| object)
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
            "a whole number belongs here (at `- port: eighty`)",
        ),
        (
            "apiVersion: v1\nkind: Service\nspec:\n\tports: []\n",
            Format::Yaml,
            Some(4),
            "",
        ),
        (
            "apiVersion: v1\nkind: List\nitems:\n- kind: Service\n",
            Format::Yaml,
            None,
            "items[0]: not a Kubernetes object: it has no apiVersion",
        ),
        (
            "apiVersion: v1\nkind: List\nitems:\n- kind: Service\n  apiVersion: v1\n  spec: {ports: [{port: x}]}\n",
            Format::Yaml,
            Some(6),
            "a whole number",
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

/// Returns words of manifests in any order, which are nearer to real mistakes
/// than any text.
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
