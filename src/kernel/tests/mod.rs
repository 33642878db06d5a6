//! Readers of the kernel's answers on arbitrary bytes.

pub mod fuzz;
