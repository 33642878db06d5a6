//! Where objects come from: a folder of manifests now, the API server next. Both give the same events.

pub mod manifests;
