//! The report, and its rows.

use serde::Serialize;

use super::{changes::ModeChanges, state::Group};

/// Whether a difference matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Importance {
    /// Clients, endpoints or the operator notice.
    Difference,
    /// For information: the configuration keeps its meaning.
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
    /// The behaviour of kube-proxy.
    pub kube_proxy: String,
    /// The behaviour of Tripod.
    pub tripod: String,
    /// The remedy.
    pub to_do: String,
    /// The modes of Tripod to which it applies.
    pub modes: Vec<String>,
}

/// The rows of all modes, while they are collected.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) all: Vec<Row>,
    /// The mode to which further rows apply.
    pub(super) mode: String,
}

impl Rows {
    fn add(&mut self, importance: Importance, [setting, kube_proxy, tripod, to_do]: [&str; 4]) {
        let new = Row {
            setting: setting.to_owned(),
            importance,
            kube_proxy: kube_proxy.to_owned(),
            tripod: tripod.to_owned(),
            to_do: to_do.to_owned(),
            modes: vec![self.mode.clone()],
        };
        let is_known = |row: &&mut Row| {
            let modes = row.modes.clone();
            **row
                == Row {
                    modes,
                    ..new.clone()
                }
        };
        match self.all.iter_mut().find(is_known) {
            Some(known) => known.modes.extend(new.modes),
            None => self.all.push(new),
        }
    }

    /// Adds a row: the setting, the behaviour of kube-proxy and of Tripod, and the remedy.
    pub(super) fn differs(&mut self, row: [&str; 4]) {
        self.add(Importance::Difference, row);
    }

    /// Adds a row that is only for information.
    pub(super) fn note(&mut self, row: [&str; 4]) {
        self.add(Importance::Note, row);
    }
}

/// The mode that Tripod would run, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chosen {
    /// Its name; `None` if none can run.
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
    /// A description of the configuration's origin.
    pub configuration: String,
    /// The mode that kube-proxy runs with it.
    pub kube_proxy_mode: String,
    /// The mode that Tripod is requested to run with it.
    pub asked: String,
    /// The mode that this node would get; `None` if this machine was not examined.
    pub node: Option<Chosen>,
    /// The differences, mode by mode.
    pub differences: Vec<Row>,
    /// The objects of kube-proxy, or of an earlier Tripod, in this kernel.
    pub kernel: Vec<Group>,
    /// Objects that could not be read, each with the reason.
    pub unknown: Vec<String>,
    /// For each mode, the changes line by line if it starts; `None` if the cluster's objects were
    /// not given.
    pub changes: Option<Vec<ModeChanges>>,
    /// Why added lines may be missing, and too many lines be listed as removed; `None` if the
    /// objects are complete.
    pub incomplete: Option<String>,
}

impl Report {
    /// Returns the decisive mode: that which this node would get, or the requested one if no node
    /// was examined; `None` if this node can run none.
    pub(super) fn decisive(&self) -> Option<&str> {
        match &self.node {
            Some(chosen) => chosen.mode.as_deref(),
            None => Some(&self.asked),
        }
    }

    /// Returns whether there is an important difference in the decisive mode, or no mode can run.
    pub fn differs(&self) -> bool {
        self.decisive().is_none_or(|mode| {
            self.differences.iter().any(|row| {
                row.importance == Importance::Difference && row.modes.iter().any(|of| of == mode)
            })
        })
    }
}
