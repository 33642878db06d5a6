//! The report, and the rows that it consists of.

use serde::Serialize;

use super::{changes::ModeChanges, state::Group};

/// Whether a difference matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Importance {
    /// Clients, endpoints or the operator notice.
    Difference,
    /// For information: what is configured keeps its meaning.
    Note,
}

/// Something that Tripod does differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The setting in the configuration, or the subject.
    pub setting: String,
    /// Whether the difference matters, or is only for information.
    pub importance: Importance,
    /// What kube-proxy does.
    pub kube_proxy: String,
    /// What Tripod does.
    pub tripod: String,
    /// What can be done about it.
    pub to_do: String,
    /// The modes of Tripod to which it applies.
    pub modes: Vec<String>,
}

impl Row {
    /// Returns whether both say the same, whatever the modes.
    pub(super) fn is_about_the_same(&self, other: &Row) -> bool {
        let words = |row: &Row| {
            let Row {
                setting,
                kube_proxy,
                tripod,
                to_do,
                ..
            } = row;
            [setting, kube_proxy, tripod, to_do].map(String::clone)
        };
        self.importance == other.importance && words(self) == words(other)
    }
}

/// The rows of one mode, while they are collected.
#[derive(Debug, Default)]
pub(super) struct Rows(Vec<Row>);

impl Rows {
    fn add(&mut self, importance: Importance, [setting, kube_proxy, tripod, to_do]: [&str; 4]) {
        self.0.push(Row {
            setting: setting.to_owned(),
            importance,
            kube_proxy: kube_proxy.to_owned(),
            tripod: tripod.to_owned(),
            to_do: to_do.to_owned(),
            modes: Vec::new(),
        });
    }

    /// Adds setting, what kube-proxy does, what Tripod does, and what to do.
    pub(super) fn differs(&mut self, row: [&str; 4]) {
        self.add(Importance::Difference, row);
    }

    /// Adds the same, for what does not matter.
    pub(super) fn note(&mut self, row: [&str; 4]) {
        self.add(Importance::Note, row);
    }

    /// Returns the rows, without modes.
    pub(super) fn into_rows(self) -> Vec<Row> {
        self.0
    }
}

/// The mode that Tripod would run, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chosen {
    /// Its name; `None`: none can run.
    pub mode: Option<String>,
    /// For each better mode, the reason why it cannot run.
    pub passed_over: Vec<String>,
    /// Optional features that the mode lacks on this kernel.
    pub lost: Vec<String>,
}

/// The whole report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Where the configuration comes from, in words.
    pub configuration: String,
    /// The mode that kube-proxy runs with it.
    pub kube_proxy_mode: String,
    /// The mode that Tripod is asked to run with it.
    pub asked: String,
    /// What this node would get; `None`: this machine was not examined.
    pub node: Option<Chosen>,
    /// What differs, mode by mode.
    pub differences: Vec<Row>,
    /// What kube-proxy, or an earlier Tripod, has in this kernel.
    pub kernel: Vec<Group>,
    /// What could not be read of it, each with the reason.
    pub unknown: Vec<String>,
    /// For each mode, what changes line by line if it starts; `None`: the cluster's
    /// objects were not given.
    pub changes: Option<Vec<ModeChanges>>,
    /// Why lines are missing among those that would be added, and may be among those that would be
    /// removed; `None`: the objects are complete.
    pub incomplete: Option<String>,
}

impl Report {
    /// Returns the mode that decides: the one that this node would get, or the one asked for if no
    /// node was examined; `None`: this node can run none.
    pub(super) fn decisive(&self) -> Option<&str> {
        match &self.node {
            Some(chosen) => chosen.mode.as_deref(),
            None => Some(&self.asked),
        }
    }

    /// Returns whether something that matters differs in the mode that decides, or no
    /// mode can run.
    pub fn differs(&self) -> bool {
        self.decisive().is_none_or(|mode| {
            self.differences.iter().any(|row| {
                row.importance == Importance::Difference && row.modes.iter().any(|of| of == mode)
            })
        })
    }
}
