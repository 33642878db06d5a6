//! The results of random programs in this kernel, which the simulated one must reproduce.
//! `UPDATE_GOLDEN=1` rewrites the record.

#[path = "../../../crates/simulated/src/ipvs/tests/programs.rs"]
mod programs;

use std::{fs, path::Path};

use super::show;
use crate::lab::run;

const RECORD: &str = "crates/simulated/src/ipvs/tests/transcript.txt";

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn random_programs_do_what_is_recorded() {
    run(|| {
        show("ip link set lo up");
        let found = programs::transcript();
        let record = Path::new(env!("CARGO_MANIFEST_DIR")).join(RECORD);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&record, &found).expect("writing the record");
        }
        let recorded = fs::read_to_string(&record).expect("reading the record");
        for (at, (found, recorded)) in found.lines().zip(recorded.lines()).enumerate() {
            assert_eq!(found, recorded, "line {}", at + 1);
        }
        assert_eq!(found.lines().count(), recorded.lines().count());
    });
}
