//! Arguments → Config → `node::run` → exit code; nothing else.

use std::process::ExitCode;

/// One heap for all threads, as musl's is.
#[cfg(not(target_env = "musl"))]
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    smolet::cli::main()
}
