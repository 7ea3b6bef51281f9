//! Makes the release binary small: static, without unwind tables.

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    link_small()
}

/// Links the release binary for a device: one static file without tables that nobody reads.
fn link_small() -> Result<(), Box<dyn Error>> {
    // Test binaries unwind, and want their build to be quick.
    if env::var("PROFILE")? != "release" {
        return Ok(());
    }
    let out = env::var("OUT_DIR")?;
    if env::var("CARGO_CFG_TARGET_ARCH")? == "x86_64" {
        leave_out_unwind_tables(Path::new(&out))?;
    }
    if env::var("CARGO_CFG_TARGET_ENV")? == "gnu" && env::var("HOST")? == env::var("TARGET")? {
        link_c_library_statically(Path::new(&out))?;
    }
    Ok(())
}

/// A panic of the release binary ends it at once (`panic = "abort"`), so nobody reads `.eh_frame`, a seventh of the
/// binary. std comes compiled with it, and the compiler has no option that leaves it out.
fn leave_out_unwind_tables(out: &Path) -> Result<(), Box<dyn Error>> {
    let script = out.join("no-unwind-tables.ld");
    std::fs::write(
        &script,
        "SECTIONS { /DISCARD/ : { *(.eh_frame) *(.eh_frame.*) *(.gcc_except_table) *(.gcc_except_table.*) } }\n\
         INSERT AFTER .text;\n",
    )?;
    println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", script.display());
    Ok(())
}

/// A shared glibc and its loader keep 1.7 MB resident in every process, the parts of it that smolet uses a third of
/// that. `-Ctarget-feature=+crt-static` would do it for the proc macros too, which fails; so the names under which the
/// linker looks for the shared libraries lead to the static ones. Where those are not installed it stays as it is.
fn link_c_library_statically(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=CC");
    let cc = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    for (shared, archive) in [("libc.so", "libc.a"), ("libm.so", "libm.a"), ("libgcc_s.so", "libgcc_eh.a")] {
        let found = Command::new(&cc).arg(format!("-print-file-name={archive}")).output()?.stdout;
        let found = String::from_utf8(found)?;
        // The bare name comes back when there is no such file.
        if !Path::new(found.trim()).is_absolute() {
            println!("cargo::warning={archive} is not installed: the binary will need the shared C library");
            return Ok(());
        }
        std::fs::write(out.join(shared), format!("INPUT({})\n", found.trim()))?;
    }
    println!("cargo::rustc-link-arg-bins=-L{}", out.display());
    println!("cargo::rustc-link-arg-bins=-static-pie");
    // Five thousand addresses that the start-up code corrects take a bit each in the place of 24 bytes.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // Functions that are the same stand there once.
    println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    Ok(())
}
