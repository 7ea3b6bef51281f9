//! Arguments → Config → `node::run` → exit code; nothing else.

use std::process::ExitCode;

/// One heap for all threads, on every target.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    smolet::cli::main()
}
