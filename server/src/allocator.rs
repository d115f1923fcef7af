//! How the C library's allocator gives memory back in a process that serves for long.
//!
//! Left alone, it learns from the first large buffer that is freed to keep all such memory, and it does so in eight arenas per
//! core. Chunks that wait for slow readers then lie scattered over what pieces of tensors once took, none of which goes back:
//! 200 readers of different versions made that half a gigabyte.

/// Set the allocator up for serving, where that is known how. Threads that are started later heed it.
pub fn serve_long() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::serve_long();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int, mallopt};
    use std::thread::available_parallelism;

    /// Longer buffers, such as the pieces of tensors, are mapped by themselves and go back when they are freed: the
    /// chunks that are made of them, which stay, are shorter.
    const MAP_FROM: c_int = 4 << 20;
    /// An arena may keep so much at its end: what is asked for again in a moment.
    const KEEP: c_int = 16 << 20;

    pub(super) fn serve_long() {
        let cores = available_parallelism().map_or(2, usize::from);
        let arenas = c_int::try_from(cores.max(2)).unwrap_or(c_int::MAX);
        for (parameter, value) in [
            (M_MMAP_THRESHOLD, MAP_FROM),
            (M_TRIM_THRESHOLD, KEEP),
            (M_ARENA_MAX, arenas),
        ] {
            // SAFETY: it takes two integers, locks what it changes, and affects no memory that was handed out. It refuses
            // values that it does not like, which costs memory only.
            unsafe { mallopt(parameter, value) };
        }
    }
}
