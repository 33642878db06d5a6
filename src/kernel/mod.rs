//! Thin doors to the kernel. Nothing here knows of Services.
