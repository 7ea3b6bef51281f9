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
    let mut script = put_in_its_own_segment() + &put_apart();
    if env::var("CARGO_CFG_TARGET_ARCH")? == "x86_64" {
        // A panic of the release binary ends it at once (`panic = "abort"`), so nobody reads `.eh_frame`, a seventh of the
        // binary. std comes compiled with it, and the compiler has no option that leaves it out.
        script += "SECTIONS { /DISCARD/ : { *(.eh_frame .eh_frame.* .gcc_except_table .gcc_except_table.*) } } INSERT AFTER .text;\n";
        println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
    }
    let path = Path::new(&out).join("small.ld");
    std::fs::write(&path, script)?;
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", path.display());
    if env::var("CARGO_CFG_TARGET_ENV")? == "gnu" && env::var("HOST")? == env::var("TARGET")? {
        link_c_library_statically(Path::new(&out))?;
    }
    Ok(())
}

/// What an agent alone never runs, by the names of its functions: TLS, clusters, commands, compression, what is read of a
/// checkpoint. As traced (`qemu-x86_64 -d in_asm`) with the ten examples; one function that runs keeps 64 KiB resident, so where a
/// name has some of both, finer ones stand here.
const NEVER: &[&str] = &[
    "_ZN6smolet8node_api*",
    "_ZN6smolet4node7cluster*",
    "_ZN6smolet4node3top*",
    "_ZN6smolet4node7streams*",
    "_ZN6smolet4node8shutdown15ShutdownManager5begin*",
    "_ZN6smolet4node8shutdown15ShutdownManager6cancel*",
    "_ZN6smolet4node8shutdown6revive*",
    "_ZN6smolet4kube6access*",
    "_ZN6smolet4kube7backoff*",
    "_ZN6smolet4kube6client*",
    "_ZN6smolet4kube5error*",
    "_ZN6smolet4kube6follow5*",
    "_ZN6smolet4kube6follow6*",
    "_ZN6smolet6decode4json*",
    "_ZN6smolet4kube10kubeconfig*",
    "_ZN6smolet4kube4link*",
    "_ZN6smolet4kube4path*",
    "_ZN6smolet4kube5split*",
    "_ZN6smolet4kube3tls*",
    "_ZN*_$LT$smolet..kube..*",
    "_ZN6smolet7cluster*",
    "_ZN6smolet5admit8affinity*",
    "_ZN6smolet5admit8features*",
    "_ZN6smolet5admit6taints*",
    "_ZN6smolet10allocation7pending*",
    "_ZN6smolet8iptables*",
    "_ZN6smolet15kernel_tunables*",
    "_ZN6smolet6source14api_local_pods*",
    "*smolet..source..api*",
    "_ZN6smolet6source*3api*",
    "_ZN6smolet6source11api_objects*",
    "_ZN6smolet6source5claim*",
    "_ZN4ring*",
    "*ring_core*",
    "_ZN*_$LT$ring..*",
    "_ZN6webpki*",
    "_ZN*_$LT$webpki..*",
    "_ZN6rustls4msgs*",
    "_ZN6rustls6server*",
    "_ZN6rustls6client*",
    "_ZN6rustls6webpki*",
    "_ZN6rustls5tls13*",
    "_ZN6rustls5tls12*",
    "_ZN6rustls6crypto*",
    "_ZN6rustls4conn*",
    "_ZN6rustls12common_state11*",
    "_ZN6rustls5enums*",
    "*rustls..client..hs..*",
    "*rustls..server..*",
    "*rustls..webpki..*",
    "*rustls..enums..*",
    "*rustls..crypto..ring*",
    "*rustls..conn..*",
    "_ZN16rustls_pki_types*",
    "_ZN14futures_rustls*",
    "_ZN4time*",
    "_ZN6smolet3net*",
    "_ZN6smolet5probe4http*",
    "_ZN6smolet5probe3run*",
    "_ZN6smolet5probe7handler*",
    "_ZN6smolet4hook*",
    "_ZN6smolet4logs4read*",
    "_ZN6smolet4logs4line*",
    "_ZN6smolet5store3cut*",
    "_ZN6smolet5store7offline*",
    "*smolet..store..offline*",
    "_ZN6smolet6source11api_offline*",
    "_ZN6smolet7systemd7Systemd*",
    "_ZN6smolet7systemd4wire*",
    "_ZN6smolet6render6labels16pre_stop*",
    "_ZN6base64*",
    "_ZN*_$LT$base64..*",
    "*minicbor..decode..Decode*",
    "printf_core*",
    "_ZN6memchr*",
    "*ClientSessionMemoryCache*",
    "_ZN61_$LT$jiff..error..ErrorKind*",
    "__res_msend*",
    "__lookup_name*",
    "getaddrinfo*",
    "inet_pton*",
    "_ZN*_$LT$rustls..msgs..*",
    "_ZN*_$LT$rustls..client..tls1*",
    "_ZN6smolet4node8node_api13node_question*",
    "_ZN6smolet4node8node_api9record_of*",
    "_ZN6smolet4node8node_api10running_id*",
    "_ZN6smolet4node8node_api9stream_at*",
    "_ZN6smolet4node8node_api9attach_to*",
    "_ZN6smolet4node8node_api7reaches*",
    "_ZN6smolet4node8node_api10forward_to*",
    "_ZN6smolet4node8node_api10locate_log*",
    "_ZN6smolet4node8node_api12running_pods*",
    "_ZN6smolet4node8node_api11measure_all*",
    "_ZN6smolet4node8node_api7spec_of*",
    "_ZN6smolet4node8node_api9streaming*",
    "_ZN6smolet4node8node_api3run*",
    "_ZN6smolet4node8node_api20UsageReader*",
    "_ZN6smolet4x509*",
    "_ZN6smolet12certificates*",
    "_ZN5alloc11collections5btree4node214Ha*",
    "_ZN5alloc11collections5btree3fix176_*",
    "_ZN6smolet4node7cgroups11NodeCgroups9s*",
    "_ZN96_$LT$futures_lite..stream..Unfold*",
    "_ZN6smolet4node10node_stats7measure*",
    "_ZN140_$LT$clap_builder..builder..valu*",
    "_ZN6smolet6decode4yaml6syntax17*",
    "_ZN58_$LT$h2..server..Peer*",
    "_ZN84_$LT$k8s_openapi.._byte_string..*",
    "_ZN6smolet6render9container11stop_sign*",
    "_ZN110_$LT$k8s_openapi..v1_36..api..co*",
    "_ZN59_$LT$rustls..error..Error*",
    "_ZN4jiff3fmt6offset6Parser5parse*",
    "__intscan*",
    "_ZN6smolet6cgroup14kill_processes*",
    "_ZN6smolet5model8debugger8Debugger9con*",
    "_ZN5hyper5proto2h16decode7Decoder6deco*",
    "_ZN5hyper5proto2h14role6Serve*",
    // Of these one short function or another runs: next to the rest, they keep no piece of their own.
    "_ZN6smolet7systemd7Session*",
    "_ZN42_$LT$$RF$T$u20$as$u20$core..fmt..*",
];

/// What is in that segment, by the names of its functions.
const EMBEDDED: &[&str] = &[
    // Commands, and what a node does once in a while at most.
    "_ZN6smolet6doctor*",
    "_ZN6smolet3cli7session*",
    "_ZN6smolet3cli6client*",
    "_ZN6smolet3cli4logs*",
    "_ZN6smolet3cli4exec*",
    "_ZN6smolet5image6import4read*",
    "_ZN6smolet5image7archive*",
    "_ZN6smolet3cri5store6*",
    "_ZN6smolet7systemd6logind*",
    "_ZN12clap_builder5error*",
    "*help_template*",
    "_ZN11miniz_oxide*",
    "_ZN6flate2*",
    "*$LT$flate2..*",
    "_ZN9crc32fast*",
    "_ZN9libunwind*",
    "_ZN9jiff_core2tz*",
    "_ZN6smolet8printers4yaml*",
    "_ZN6smolet5admit7preempt*",
    "_ZN6smolet10allocation8resizing*",
    "_ZN5rcgen*",
    "_ZN*_$LT$rcgen..*",
    "_ZN5yasna*",
    "_ZN6smolet3cli5check*",
    "_ZN6smolet3cli5debug*",
    "_ZN6smolet3cli6attach*",
    "_ZN6smolet3cli12port_forward*",
    "_ZN6smolet3cli8describe*",
    "_ZN6smolet3cli8terminal*",
    "_ZN6smolet3cli5stdio*",
    "_ZN6smolet9streaming*",
    "_ZN6smolet5volume3nfs*",
    "_ZN6smolet9eviction4rank*",
    "_ZN2h26server*",
    "_ZN5hyper5proto2h26server*",
    "_ZN5hyper6server4conn5http2*",
    // The embedded runtime.
    "_ZN6smolet7runtime*",
    "_ZN6smolet7monitor*",
    "_ZN6smolet3oci*",
    "_ZN6smolet11image_store*",
    "_ZN6smolet8registry*",
    "_ZN6smolet10cri_server*",
    "_ZN6smolet4grpc6server*",
    "_ZN6smolet9streaming6server*",
    "_ZN6smolet3cli5image*",
    "*smolet..runtime..*",
    "*smolet..monitor..*",
    "*smolet..oci..*",
    "*smolet..image_store..*",
    "*smolet..registry..*",
    "*smolet..cri_server..*",
    "*smolet..grpc..server..*",
    "*smolet..streaming..server..*",
    "*ruzstd*",
    "*basic_toml*",
    "*regex_lite*",
    // What only a server of the CRI does with its messages.
    "*Request$u20$as$u20$prost..message..Message$GT$11merge_field*",
    "*Response$u20$as$u20$prost..message..Message$GT$10encode_raw*",
    "*Response$u20$as$u20$prost..message..Message$GT$11encoded_len*",
];

/// What never runs stands by itself: the kernel maps a program in pieces of 64 KiB round what is run of it, and between other
/// code nearly all of this was resident, a fifth of the program.
fn put_apart() -> String {
    // Each by itself: what belongs together lies together.
    let sections: Vec<String> =
        NEVER.iter().map(|name| format!("*(.text.{name} .text.unlikely.{name})")).collect();
    format!(
        "SECTIONS {{ .text.never : {{ *libring-*:*(.text .text.*) *libunwind*:*(.text .text.*) {} }} }} INSERT BEFORE .text;\n",
        sections.join(" ")
    )
}

/// What runs only where smolet is the container runtime itself, and what an agent runs once in a while at most, in a segment of its own:
/// the kernel maps of it what is run, whatever pieces of the file it keeps in memory.
///
/// The load address that differs from the address makes both linkers begin a segment, and the hole before it keeps the kernel from
/// mapping the two as one. It is the last of the executable ones, as what follows would have that load address too.
fn put_in_its_own_segment() -> String {
    let sections: Vec<String> =
        EMBEDDED.iter().map(|name| format!("*(.text.{name} .text.unlikely.{name})")).collect();
    format!(
        "SECTIONS {{ .text.embedded ALIGN(0x10000) + 0x10000 : AT(ADDR(.text.embedded) + 0x10000000) {{ {} }} }} INSERT AFTER .text;\n",
        sections.join(" ")
    )
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
