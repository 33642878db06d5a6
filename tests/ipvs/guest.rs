//! ipvs mode in a kernel that has IPVS.

use crate::lab::{
    acceptance,
    guest::{Profile, in_guest},
};

#[test]
fn guest_full_ipvs_recordings() {
    in_guest(Profile::Full, &["ipvs::vectors::in_guest::"], &[]);
}

#[test]
fn guest_full_ipvs_behaviour() {
    in_guest(Profile::Full, &["ipvs::repair::"], &[]);
}

#[test]
fn guest_full_ipvs_faults() {
    let names = [
        "ipvs::annotations::",
        "ipvs::drain::",
        "ipvs::sets::",
        "ipvs::stale::",
    ];
    in_guest(Profile::Full, &names, &[]);
}

#[test]
fn guest_full_ipvs_blocked() {
    in_guest(Profile::Full, &["ipvs::blocked::"], &[]);
}

#[test]
fn guest_full_ipvs_order() {
    in_guest(Profile::Full, &["ipvs::order::"], &[]);
}

#[test]
fn guest_full_ipvs_traffic() {
    let names = ["ipvs::adoption::", "ipvs::traffic::"];
    let sizes = acceptance().then_some(("TRIPOD_ACCEPTANCE", "1"));
    in_guest(Profile::Full, &names, sizes.as_slice());
}

#[test]
fn guest_full_ipvs_scale() {
    let sizes = acceptance().then_some(("TRIPOD_ACCEPTANCE", "1"));
    in_guest(Profile::Full, &["ipvs::scale::"], sizes.as_slice());
}
