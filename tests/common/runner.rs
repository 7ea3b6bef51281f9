//! Starts a program of the target: directly, or through an emulator.

use std::ffi::OsStr;
use std::process::Command;

/// True under an emulator, whose time and memory are not the program's.
pub fn is_emulated() -> bool {
    std::env::var_os("SMOLET_TEST_RUNNER").is_some()
}

/// True of a `smolet` of `SMOLET_BIN` that was built without TLS (cross/arm.sh).
pub fn is_plain() -> bool {
    std::env::var_os("SMOLET_TEST_PLAIN").is_some()
}

/// A command that runs `program`. On a machine of another architecture `SMOLET_TEST_RUNNER` has the emulator's command
/// (`qemu-arm-static -cpu cortex-a7`), as cargo's own `runner` for the tests themselves.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let words = std::env::var("SMOLET_TEST_RUNNER").unwrap_or_default();
    let mut words = words.split_whitespace();
    match words.next() {
        Some(runner) => {
            let mut command = Command::new(runner);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// The `smolet` under test: that of `SMOLET_BIN` (the release build), else this build's.
pub fn smolet() -> Command {
    command(std::env::var_os("SMOLET_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_smolet").into()))
}
