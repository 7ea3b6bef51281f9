//! Arguments → Config → `node::run` → exit code; nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    smolet::cli::main()
}
