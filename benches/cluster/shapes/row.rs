//! One row of `shapes.csv`, which is written as far as it is measured.

use std::{collections::BTreeMap, time::Duration};

use super::shape::{SHAPES, Shape};
use crate::{
    document::machine::kernel,
    figures::{File, decimal},
    modes::ModeName,
    prober::Compared,
};

const COLUMNS: [&str; 28] = [
    "mode",
    "shape",
    "kernel",
    "first_sync_s",
    "first_sync_alone_s",
    "first_peak_mib",
    "first_direct_ms",
    "failed",
    "restart_s",
    "restart_written",
    "restart_wait_ms",
    "restart_direct_ms",
    "restart_calls_failed",
    "resync_s",
    "resync_wait_ms",
    "resync_direct_ms",
    "resync_calls_failed",
    "change_p50_ms",
    "change_max_ms",
    "change_wait_ms",
    "change_direct_ms",
    "change_calls_failed",
    "storm_a_second",
    "storm_p50_ms",
    "storm_p99_ms",
    "storm_caught_up_ms",
    "storm_wait_ms",
    "storm_peak_mib",
];

pub const SHAPES_FILE: File = File("shapes", &COLUMNS);

/// The figures of one shape in one mode.
pub struct Row {
    figures: BTreeMap<&'static str, String>,
    /// Only the shapes of the document are stored.
    is_stored: bool,
}

impl Row {
    pub fn new(mode: ModeName, shape: Shape) -> Row {
        let figures = [
            ("mode", mode.to_owned()),
            ("shape", shape.to_string()),
            ("kernel", kernel()),
        ];
        Row {
            figures: figures.into_iter().collect(),
            is_stored: SHAPES.contains(&&*shape.to_string()),
        }
    }

    pub fn set(&mut self, column: &'static str, figure: impl Into<String>) {
        debug_assert!(COLUMNS.contains(&column), "{column}");
        let figure = figure.into();
        println!("  {column}: {figure}");
        self.figures.insert(column, figure);
    }

    pub fn seconds(&mut self, column: &'static str, time: Duration) {
        self.set(column, decimal(time.as_secs_f64(), 3));
    }

    pub fn milliseconds(&mut self, column: &'static str, time: Duration) {
        self.set(column, decimal(time.as_secs_f64() * 1000.0, 2));
    }

    /// Sets the columns about calls while something ran.
    pub fn waits(&mut self, [wait, direct, failed]: [&'static str; 3], waits: Compared) {
        self.milliseconds(direct, waits.direct.longest);
        if let Some(through) = waits.through {
            self.milliseconds(wait, through.longest);
            self.set(failed, through.failed.to_string());
            println!("  {} of {} calls took longer", through.long, through.calls);
        }
    }

    /// Writes what is known so far.
    pub fn put(&self) {
        if self.is_stored {
            let cell = |column| self.figures.get(column).cloned().unwrap_or_default();
            SHAPES_FILE.put(COLUMNS.into_iter().map(cell).collect());
        }
    }
}
