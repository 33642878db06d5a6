//! Starts the parts and joins them; nothing else.

fn main() {}
