//! Reads the objects of one document.

use std::{borrow::Cow, fmt};

use k8s_openapi::{
    Resource,
    api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
        networking::v1::ServiceCIDR,
    },
};
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::watch::wire;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Yaml,
    Json,
}

/// An object as the API defines it.
#[derive(Debug)]
pub(super) enum ApiObject {
    Service(Box<Service>),
    EndpointSlice(Box<EndpointSlice>),
    Node(Box<Node>),
    ServiceCidr(Box<ServiceCIDR>),
}

/// The objects of one document; a `T` is made of each.
#[derive(Debug)]
pub(super) struct Contents<T> {
    pub(super) objects: Vec<T>,
    /// Kinds that are not for a service proxy, as `apiVersion kind`.
    pub(super) ignored: Vec<String>,
}

/// Why a document cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// Line within the document's text, from 1.
    pub(super) line: Option<usize>,
    pub(super) reason: String,
}

/// Kinds that a service proxy reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Service,
    EndpointSlice,
    Node,
    ServiceCidr,
}

impl Kind {
    fn of(api_version: &str, kind: &str) -> Option<Kind> {
        match (api_version, kind) {
            (Service::API_VERSION, Service::KIND) => Some(Kind::Service),
            (EndpointSlice::API_VERSION, EndpointSlice::KIND) => Some(Kind::EndpointSlice),
            (Node::API_VERSION, Node::KIND) => Some(Kind::Node),
            (ServiceCIDR::API_VERSION, ServiceCIDR::KIND) => Some(Kind::ServiceCidr),
            _ => None,
        }
    }
}

/// Reads a document. `each` is called with every object before the next is
/// read: an object in the API's form takes several times the memory of its
/// reduced form, and reduced objects would lie scattered over all that memory,
/// which the allocator could not give back. A document of nothing but comments
/// has no objects.
pub(super) fn read<T>(
    text: &str,
    format: Format,
    mut each: impl FnMut(ApiObject) -> T,
) -> Result<Contents<T>, Broken> {
    let Some(header) = decode(text, format, Seed::<Option<Header>>::default())? else {
        return Ok(Contents {
            objects: Vec::new(),
            ignored: Vec::new(),
        });
    };
    let (api_version, kind) = header.identity()?;
    if let Some(kind) = Kind::of(&api_version, &kind) {
        let object = decode(text, format, ObjectSeed(kind));
        let object = object.map_err(|broken| broken.quoting(text))?;
        return Ok(Contents {
            objects: vec![each(object)],
            ignored: Vec::new(),
        });
    }
    match kind.strip_suffix("List") {
        Some("") if api_version == "v1" => read_list(text, format, None, each),
        Some(of) if Kind::of(&api_version, of).is_some() => {
            read_list(text, format, Some((&api_version, of)), each)
        }
        _ => Ok(Contents {
            objects: Vec::new(),
            ignored: vec![format!("{api_version} {kind}")],
        }),
    }
}

/// Reads a list. Items of a list of one kind need not repeat their kind, and
/// an API server does not write it there.
fn read_list<T>(
    text: &str,
    format: Format,
    of: Option<(&str, &str)>,
    each: impl FnMut(ApiObject) -> T,
) -> Result<Contents<T>, Broken> {
    let list = decode(text, format, Seed::<ListHeader>::default())?;
    let mut ignored = Vec::new();
    let mut kinds = Vec::new();
    for (i, item) in list.items.unwrap_or_default().into_iter().enumerate() {
        let item = item.unwrap_or_default();
        let (api_version, kind) = match of {
            Some((api_version, kind)) if item.kind.is_none() => {
                (api_version.to_owned(), kind.to_owned())
            }
            _ => item.identity().map_err(|broken| Broken {
                reason: format!("items[{i}]: {}", broken.reason),
                ..broken
            })?,
        };
        let known = Kind::of(&api_version, &kind);
        if known.is_none() {
            ignored.push(format!("{api_version} {kind}"));
        }
        kinds.push(known);
    }
    let seed = ListSeed {
        kinds: &kinds,
        each,
    };
    let objects = decode(text, format, seed).map_err(|broken| broken.quoting(text))?;
    Ok(Contents { objects, ignored })
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    api_version: Option<String>,
    kind: Option<String>,
}

impl Header {
    fn identity(self) -> Result<(String, String), Broken> {
        let filled = |field: Option<String>| field.filter(|text| !text.is_empty());
        match (filled(self.api_version), filled(self.kind)) {
            (Some(api_version), Some(kind)) => Ok((api_version, kind)),
            (None, _) => Err(Broken::because(
                "not a Kubernetes object: it has no apiVersion",
            )),
            (_, None) => Err(Broken::because("not a Kubernetes object: it has no kind")),
        }
    }
}

#[derive(Debug, Deserialize)]
struct ListHeader {
    items: Option<Vec<Option<Header>>>,
}

impl Broken {
    fn because(reason: impl Into<String>) -> Broken {
        Broken {
            line: None,
            reason: reason.into(),
        }
    }

    /// Adds the faulty line, which may only be done for kinds that a service
    /// proxy reads: any other document may be a Secret.
    fn quoting(self, text: &str) -> Broken {
        let line = self
            .line
            .and_then(|line| text.lines().nth(line.checked_sub(1)?));
        let Some(line) = line.map(str::trim).filter(|line| !line.is_empty()) else {
            return self;
        };
        let (quote, dots) = match line.char_indices().nth(LONGEST_QUOTE) {
            Some((end, _)) => (&line[..end], " ..."),
            None => (line, ""),
        };
        Broken {
            reason: format!("{} (at `{quote}{dots}`)", self.reason),
            ..self
        }
    }
}

/// Characters of a faulty line that a message repeats at most.
const LONGEST_QUOTE: usize = 60;

fn decode<'de, S>(text: &'de str, format: Format, seed: S) -> Result<S::Value, Broken>
where
    S: DeserializeSeed<'de>,
{
    match format {
        Format::Yaml => {
            let options = yaml_options(text.len());
            let read = serde_saphyr::with_deserializer_from_str_with_options(
                text,
                options,
                |deserializer| seed.deserialize(deserializer),
            );
            read.map_err(|error| yaml_error(&error))
        }
        Format::Json => {
            let mut deserializer = serde_json::Deserializer::from_str(text);
            let read = seed.deserialize(&mut deserializer);
            let read = read.and_then(|value| deserializer.end().map(|()| value));
            read.map_err(|error| json_error(&error))
        }
    }
}

/// Limits under which no document costs more than its size warrants. Aliases
/// are rare in manifests, and the only way for a short text to become long.
fn yaml_options(length: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 64,
            max_nodes: length + 1_000,
            max_events: 2 * length + 1_000,
            max_anchors: 1_000,
            max_aliases: 10_000,
            max_merge_keys: 10_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 200_000,
            max_replay_stack_depth: 16,
        },
        with_snippet: false,
    }
}

fn yaml_error(error: &serde_saphyr::Error) -> Broken {
    let error = error.without_snippet();
    let line = error.location().map(|location| location.line());
    let text = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
    Broken {
        line: line
            .filter(|line| *line > 0)
            .and_then(|line| usize::try_from(line).ok()),
        reason: in_words(one_line(without_position(&text))),
    }
}

/// Replaces the parser's commonest words, which name Rust's types and YAML's
/// grammar.
fn in_words(reason: String) -> String {
    match reason.as_str() {
        "invalid i32" | "invalid i64" => "a whole number belongs here".to_owned(),
        "expected mapping start" => "`key: value` pairs belong here".to_owned(),
        "expected string scalar" => "a single value belongs here".to_owned(),
        "expected sequence start" => "a list belongs here".to_owned(),
        "recursion limit exceeded" => "nested too deeply".to_owned(),
        _ => reason,
    }
}

fn json_error(error: &serde_json::Error) -> Broken {
    let text = error.to_string();
    Broken {
        line: Some(error.line()).filter(|line| *line > 0),
        reason: one_line(without_position(&text)),
    }
}

/// Removes the position from the parser's words: within a document it would
/// mislead, and the caller gives it.
fn without_position(text: &str) -> &str {
    match text.find(" at line ") {
        Some(at) => &text[..at],
        None => text,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Deserializes a type by its own `Deserialize`.
struct Seed<T>(std::marker::PhantomData<T>);

impl<T> Default for Seed<T> {
    fn default() -> Self {
        Seed(std::marker::PhantomData)
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Seed<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::deserialize(deserializer)
    }
}

struct ObjectSeed(Kind);

impl<'de> DeserializeSeed<'de> for ObjectSeed {
    type Value = ApiObject;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ApiObject, D::Error> {
        Ok(match self.0 {
            Kind::Service => ApiObject::Service(by::<wire::Service, _, _>(deserializer)?),
            Kind::EndpointSlice => {
                ApiObject::EndpointSlice(by::<wire::EndpointSlice, _, _>(deserializer)?)
            }
            Kind::Node => ApiObject::Node(by::<wire::Node, _, _>(deserializer)?),
            Kind::ServiceCidr => {
                ApiObject::ServiceCidr(by::<wire::ServiceCidr, _, _>(deserializer)?)
            }
        })
    }
}

/// Reads an object in the form `W`, without what no proxy reads.
fn by<'de, W, T, D>(deserializer: D) -> Result<Box<T>, D::Error>
where
    W: Deserialize<'de> + Into<T>,
    D: Deserializer<'de>,
{
    Ok(Box::new(W::deserialize(deserializer)?.into()))
}

/// Reads the objects of a list whose items have these kinds; `None` is a kind
/// that a service proxy does not use.
struct ListSeed<'a, F> {
    kinds: &'a [Option<Kind>],
    each: F,
}

impl<'de, T, F: FnMut(ApiObject) -> T> DeserializeSeed<'de> for ListSeed<'_, F> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T, F: FnMut(ApiObject) -> T> Visitor<'de> for ListSeed<'_, F> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut objects = Vec::new();
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key == "items" {
                objects = map.next_value_seed(ItemsSeed(&mut self))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(objects)
    }
}

struct ItemsSeed<'a, 'k, F>(&'a mut ListSeed<'k, F>);

impl<'de, T, F: FnMut(ApiObject) -> T> DeserializeSeed<'de> for ItemsSeed<'_, '_, F> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, T, F: FnMut(ApiObject) -> T> Visitor<'de> for ItemsSeed<'_, '_, F> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut objects = Vec::new();
        for kind in self.0.kinds {
            let more = match kind {
                Some(kind) => match items.next_element_seed(ObjectSeed(*kind))? {
                    Some(object) => {
                        objects.push((self.0.each)(object));
                        true
                    }
                    None => false,
                },
                None => items.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(objects)
    }
}

#[cfg(test)]
mod tests;
