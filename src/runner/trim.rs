//! Returns memory to the system that was needed for a moment.

/// Has the allocator return what is free to the system. glibc keeps freed
/// memory, which is right for what comes and goes; but the first list of a
/// large cluster and its first sync take more for a moment than all that
/// follows.
pub(super) fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim(3) takes no pointers and may be called at any
        // time, from any thread.
        unsafe { nix::libc::malloc_trim(0) };
    }
}
