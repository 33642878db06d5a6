//! Tests of the library as a whole, and what its tests share.

pub mod instructions;

/// Returns how many of `all` random cases or steps a test tries: all with `TRIPOD_ALL_CASES` set,
/// as `make test-all` does, otherwise a quarter.
pub fn cases(all: u32) -> u32 {
    match std::env::var_os("TRIPOD_ALL_CASES") {
        Some(_) => all,
        None => all.div_ceil(4),
    }
}
