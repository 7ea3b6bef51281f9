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
    // A function is in the first of these that has its name; the last of those that stand after `.text` comes right behind it.
    let mut script = put_into_the_cold() + &put_together() + &put_in_its_own_segment() + &put_apart();
    // A panic of the release binary ends it at once (`panic = "abort"`), so nobody reads the tables by which one unwinds: a seventh
    // of the binary, and a fiftieth of that for 32-bit ARM, which has tables of its own. std comes compiled with them, and the
    // compiler has no option that leaves them out.
    script += "SECTIONS { /DISCARD/ : { *(.eh_frame .eh_frame.* .gcc_except_table .gcc_except_table.*) \
               *(.ARM.exidx .ARM.exidx.* .ARM.extab .ARM.extab.*) } } INSERT AFTER .text;\n";
    println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
    let path = Path::new(&out).join("small.ld");
    std::fs::write(&path, script)?;
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", path.display());
    if env::var("CARGO_CFG_TARGET_ENV")? == "gnu" && env::var("HOST")? == env::var("TARGET")? {
        link_c_library_statically(Path::new(&out))?;
    }
    Ok(())
}

/// What no process runs while nothing out of the ordinary happens, by the names of its functions. `cross/cold.py` has found it.
const COLD: &str = include_str!("cross/cold.txt");

/// What runs in a cluster only, beside [`NEVER`], likewise.
const CLUSTER: &str = include_str!("cross/cluster.txt");

/// What runs only where smolet is the container runtime, beside [`EMBEDDED`], likewise.
const RUNTIME: &str = include_str!("cross/embedded.txt");

/// What an agent alone never runs, by the names of its functions: TLS, clusters, commands, compression, what is read of a
/// checkpoint. As traced (`qemu-x86_64 -d in_asm`) with the ten examples; one function that runs keeps 64 KiB resident, so where a
/// name has some of both, finer ones stand here.
const NEVER: &[&str] = &[
    "_ZN6smolet8node_api*",
    "_ZN6smolet4node7cluster*",
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
    "_ZN6smolet7flannel*",
    "_ZN6smolet14network_policy*",
    "_ZN6smolet4node14network_policy*",
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
    "_ZN6smolet5store7offline*",
    "*smolet..store..offline*",
    "_ZN6smolet6source11api_offline*",
    "_ZN6smolet7systemd7Systemd*",
    "_ZN6smolet7systemd4wire*",
    "_ZN6smolet6render6labels16pre_stop*",
    "_ZN6base64*",
    "_ZN*_$LT$base64..*",
    "*minicbor..decode..Decode*",
    "_ZN6memchr*",
    "*ClientSessionMemoryCache*",
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
    "_ZN6smolet4node8node_api9streaming*",
    "_ZN6smolet4node8node_api3run*",
    "_ZN6smolet4node8node_api20UsageReader*",
    "_ZN6smolet4x509*",
    "_ZN6smolet12certificates*",
    "_ZN5alloc11collections5btree3fix176_*",
    "_ZN6smolet4node7cgroups11NodeCgroups9s*",
    "_ZN96_$LT$futures_lite..stream..Unfold*",
    "_ZN6smolet4node10node_stats7measure*",
    "_ZN140_$LT$clap_builder..builder..valu*",
    "_ZN6smolet6decode4yaml6syntax17*",
    "_ZN84_$LT$k8s_openapi.._byte_string..*",
    "_ZN6smolet6render9container11stop_sign*",
    "_ZN110_$LT$k8s_openapi..v1_36..api..co*",
    "_ZN59_$LT$rustls..error..Error*",
    "_ZN4jiff3fmt6offset6Parser5parse*",
    "__intscan*",
    "_ZN6smolet5model8debugger8Debugger9con*",
    "_ZN5hyper5proto2h16decode7Decoder6deco*",
    // Of these one short function or another runs: next to the rest, they keep no piece of their own.
    "_ZN6smolet7systemd7Session*",
    "_ZN42_$LT$$RF$T$u20$as$u20$core..fmt..*",
];

/// What every process of smolet runs, a monitor too: start-up, the standard library, the C library, and what generic code is made of.
const COMMON: &[&str] = &[
    "main",
    "_start*",
    "_ZN6smolet4main*",
    // The test of the first argument. The rest of a monitor is with the embedded runtime.
    "_ZN6smolet7monitor7process4main*",
    "_ZN6smolet10filesystem*",
    "_ZN*_$LT$smolet..model..time..*",
    // The standard library's own code, which has the newer names.
    "_R*",
    "_ZN3std*",
    "_ZN*_$LT$std..*",
    "_ZN6rustix*",
    "_ZN4itoa*",
    "_ZN*itoa..Unsigned$GT$*",
    "_ZN10serde_json*",
    "_ZN*serde_json..*",
    "_ZN10serde_core2de5impls*",
    "_ZN10serde_core3ser*",
    // Pieces of many functions, which the compiler found to be the same.
    "OUTLINED_FUNCTION_*",
    "_ZN4core3fmt*",
    "_ZN4core3str*",
    "_ZN4core5slice*",
    "_ZN*_$LT$core..slice..*",
    "_ZN4core5array*",
    "_ZN*_$LT$core..array..*",
    "_ZN*_$LT$core..ops..range..*",
    "_ZN4core3cmp*",
    "_ZN4core6option*",
    "_ZN*_$LT$core..option..Option$LT$T$GT$$u20$as$u20$core..*",
    "_ZN4core6result*",
    "_ZN4core4iter*",
    "_ZN*_$LT$core..iter..*",
    "_ZN*alloc..string..ToString$GT$*",
    "_ZN5alloc5slice*",
    "_ZN5alloc7raw_vec*",
    "_ZN*_$LT$alloc..raw_vec..*",
    "_ZN5alloc3vec*",
    "_ZN*_$LT$alloc..vec..*$GT$$u20$as$u20$core..ops..*",
    // Of what is listed below, the little that every agent runs.
    "_ZN6smolet5image7archive4plan8Platform*",
    "_ZN6smolet4node7cluster11mirror_pods7name_of*",
    "_ZN6smolet4node8node_api7spec_of*",
    "_ZN6smolet6decode4json4read*",
    "_ZN6smolet6decode4json12last_of_each*",
    "_ZN6smolet6decode4json78_$LT$impl$u20$serde_core..de..Deserialize$u20$for$u20$smolet..decode..Node$GT$*",
    "_ZN6smolet7runtime7selinux10is_enabled*",
    "_ZN6smolet3oci7machine12has_apparmor*",
    "_ZN42_$LT$$RF$T$u20$as$u20$core..fmt..Debug$GT$*",
    "_ZN6smolet11image_store6shared15Shared$LT$T$GT$6borrow*",
    "_ZN6smolet4sync4kill16remove_container*",
    "_ZN6smolet7monitor13wait_readable*",
    "_ZN6smolet7runtime4host14cgroup_version*",
    "_ZN6smolet7runtime5stats10is_unified*",
    // Here and not with their types: of those that are the same one is left, whoever's name it has.
    "_ZN4core3ptr*drop_in_place$LT$*",
];

/// What is in that segment, by the names of its functions.
const EMBEDDED: &[&str] = &[
    // Commands, and what a node does once in a while at most.
    "_ZN6smolet6doctor*",
    "_ZN6smolet3cli7session*",
    "_ZN6smolet3cli6client*",
    "_ZN6smolet3cli4logs*",
    "_ZN6smolet3cli4exec*",
    "_ZN6smolet3cli5agent*",
    "_ZN6smolet3cli8archives*",
    "_ZN6smolet3cli9k3s_flags*",
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
    "_ZN6smolet6volume3nfs3Nfs*",
    "_ZN6smolet6volume3nfs7Mounted*",
    "_ZN6smolet8eviction4rank*",
    "_ZN2h26server*",
    "_ZN5hyper5proto2h26server*",
    "_ZN5hyper6server4conn5http2*",
    "_ZN6smolet3k3s*",
    "_ZN*_$LT$smolet..k3s..*",
    "_ZN6smolet13service_proxy*",
    "_ZN*_$LT$smolet..service_proxy..*",
    "_ZN6smolet4node13service_proxy*",
    "_ZN6smolet8nftables*",
    "_ZN6smolet7netlink*",
    "_ZN6smolet6source4http*",
    "_ZN6smolet4sync7actuate*",
    "_ZN6smolet4node5drain*",
    "_ZN6smolet5model3nfs*",
    "_ZN6smolet6podcmd*",
    "_ZN6smolet6userns*",
    "_ZN6smolet3cni*",
    "_ZN6smolet5facts16embedded_runtime*",
    "_ZN6smolet3cli7pod_arg*",
    "_ZN6smolet6source5check*",
    "_ZN6smolet5image2gc*",
    "_ZN6smolet5image6pulled11PullManager*",
    "_ZN6smolet5image7keyring12DockerConfig*",
    "_ZN6smolet5image7keyring5Login*",
    "_ZN6smolet5image13archive_store12ArchiveStore7unlabel*",
    "_ZN6smolet4node8image_gc7ImageGc11remove_next*",
    "_ZN6smolet5admit9resources10given_back17*",
    "_ZN6smolet5store8statuses11StatusStore7cut_one*",
    "_ZN6smolet6decode5typed7nearest*",
    "_ZN6smolet6decode10FieldError*",
    "_ZN6smolet4text20qualified_name_error*",
    "_ZN6smolet7metrics*",
    "_ZN6smolet4logs6choose*",
    "_ZN12clap_builder6output5usage5Usage15write_arg_usage*",
    "_ZN12clap_builder6output5usage5Usage20write_usage_no_title*",
    "_ZN12clap_builder7builder7command7Command25_build_bin_names_internal*",
    "_ZN12clap_builder7builder7command7Command14write_help_err*",
    "_ZN12clap_builder7builder7command7Command12format_group*",
    "_ZN12clap_builder7builder3arg3Arg18stylize_arg_suffix*",
    "_ZN7anstyle*",
    "_ZN5hyper6client4conn5http1*",
    "_ZN12simd_adler32*",
    "_ZN13granit_parser6parser15Parser$LT$T$GT$16recover_document*",
    "_ZN13granit_parser6parser15Parser$LT$T$GT$15register_anchor*",
    "_ZN13granit_parser6parser15Parser$LT$T$GT$21proceed_next_document*",
    "_ZN13granit_parser7scanner16Scanner$LT$T$GT$28scan_uri_escapes*",
    "_ZN*smolet..proto..runtime..v1..ContainerConfig$u20$as$u20$prost..message..Message$GT$11merge_field*",
    "_ZN*smolet..proto..runtime..v1..PodSandboxConfig$u20$as$u20$prost..message..Message$GT$11merge_field*",
    "_ZN*smolet..proto..runtime..v1..Metric*",
    "_ZN*smolet..proto..runtime..v1..ContainerMetrics*",
    "_ZN*smolet..proto..runtime..v1..PodSandboxMetrics*",
    // In a cluster too: certificates, TLS 1.2 and RSA keys, claims, logs and streams for kubectl.
    "_ZN6smolet12certificates9requester20CertificateRequester*",
    "_ZN6smolet12certificates5files*",
    "_ZN6smolet12certificates7serving*",
    "_ZN6smolet6source10api_claims*",
    "_ZN6smolet4node3top*",
    "_ZN6smolet4node7streams*",
    "_ZN6smolet4logs4read*",
    "_ZN6smolet4logs4line*",
    "_ZN6smolet5store3cut*",
    "_ZN6smolet5store7offline7content5whole*",
    "_ZN6smolet5store7offline7content6decode*",
    "_ZN6smolet5store7offline4tree4read*",
    "_ZN6rustls5tls12*",
    "*rustls..client..tls12..*",
    "*rustls..server..tls12..*",
    "_ZN6rustls6client3ech*",
    "_ZN6rustls8compress*",
    "_ZN6webpki3crl*",
    "_ZN4ring3rsa7keypair7KeyPair4sign*",
    "_ZN4ring3rsa7keypair7KeyPair8from_der*",
    "_ZN*_$LT$h2..server..Peer*",
    "printf_core*",
    "_ZN*_$LT$jiff..error..ErrorKind*",
    "_ZN4jiff3fmt7strtime14BrokenDownTime7to_date7to_date*",
    "_ZN4jiff3fmt7strtime14BrokenDownTime12to_timestamp*",
    "_ZN6smolet4node5agent14Agent$LT$R$GT$6gauges*",
    "_ZN*NodeRuntime$u20$as$u20$smolet..cri..Runtime$GT$20list_container_stats*",
    "_ZN*NodeRuntime$u20$as$u20$smolet..cri..Runtime$GT$20reopen_container_log*",
    "_ZN*GrpcRuntime$u20$as$u20$smolet..cri..Runtime$GT$12remove_image*",
    "_ZN6smolet3cri7convert15container_stats*",
    "_ZN6smolet3cri5store10ImageStore8labelled28_$u7b$$u7b$closure$u7d$$u7d$28_*",
    "_ZN6smolet3cri5store10ImageStore12update_image*",
    "_ZN6smolet4node4pods10allocation*8allocate*",
    "_ZN6smolet4node7cgroups11NodeCgroups12weigh_slices*",
    "_ZN5hyper5proto2h14role6Server33encode_headers_with_original_case*",
    "_ZN5hyper5proto2h14conn21Conn$LT$I$C$B$C$T$GT$14poll_read_body*",
    "_ZN5hyper5proto2h24ping6Ponger*",
    "_ZN*_$LT$hyper..proto..h1..dispatch..Client$LT$*",
    "_ZN8blocking*",
    "rust_eh_personality",
    "_ZN6smolet4node4pods7endings*",
    "_ZN6smolet4node4logs*",
    "_ZN6smolet4node8image_gc7disk_at*",
    "_ZN6smolet4node8image_gc4list*",
    "_ZN6smolet4sync4kill16remove_container*",
    "_ZN6smolet6source9resources9aggregate*",
    "_ZN6smolet5image7keyring6object*",
    "_ZN6smolet4logs5files7Rotated*",
    "_ZN6smolet4logs6follow*",
    "_ZN*_$LT$smolet..logs..read..*",
    "_ZN*_$LT$smolet..cri..endpoint..EndpointError*",
    "_ZN*_$LT$smolet..node..cgroups..PodsCgroups$u20$as$u20$smolet..sync..actuate..*",
    "_ZN*NodeRuntime$u20$as$u20$smolet..cri..Runtime$GT$13streaming_url*",
    "_ZN*GrpcRuntime$u20$as$u20$smolet..cri..Runtime$GT$13streaming_url*",
    "_ZN*_$LT$minicbor..decode..error..*",
    "_ZN*_$LT$k8s_openapi..v1_36..api..core..v1..pod_affinity_term..*",
    "_ZN*_$LT$clap_builder..builder..command..Command$u20$as$u20$core..clone..*",
    "_ZN*_$LT$clap_builder..builder..arg..Arg$u20$as$u20$core..clone..*",
    "_ZN*_$LT$hyper..proto..h2..server..*",
    "_ZN*_$LT$hyper..client..conn..http1..*",
    "_ZN5hyper5proto2h14conn21Conn$LT$I$C$B$C$T$GT$14poll_read_head*",
    "_ZN8httparse8Response*",
    "_ZN*_$LT$alloc..vec..into_iter..IntoIter$LT$T$C$A$GT$$u20$as$u20$core..iter..traits..iterator..Iterator$GT$4fold*",
    "_ZN*_$LT$smolet..decode..typed..Reader$u20$as$u20$serde_core..de..Deserializer$GT$18deserialize_struct*",
    "_ZN*_$LT$smolet..decode..typed..Reader$u20$as$u20$serde_core..de..Deserializer$GT$15deserialize_any*",
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

/// The sections of the functions with these names, each by itself: what belongs together lies together.
fn sections_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let sections = names.into_iter().map(|name| format!("*(.text.{name} .text.unlikely.{name})"));
    sections.collect::<Vec<_>>().join(" ")
}

/// What never runs stands by itself: the kernel maps a program in pieces of 64 KiB round what is run of it, and between other
/// code nearly all of this was resident, a fifth of the program.
fn put_apart() -> String {
    let sections = sections_of(NEVER.iter().copied().chain(names_in(CLUSTER)));
    format!(
        "SECTIONS {{ .text.never : {{ *libring-*:*(.text .text.*) *libunwind*:*(.text .text.*) {sections} }} }} INSERT AFTER .text;\n"
    )
}

/// The lines of a list.
fn names_in(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.starts_with('#') && !line.is_empty())
}

/// What is cold lies behind the embedded runtime, in its segment: between what an agent runs it was a quarter of what was resident.
fn put_into_the_cold() -> String {
    format!("SECTIONS {{ .text.cold : {{ {} }} }} INSERT AFTER .text;\n", sections_of(names_in(COLD)))
}

/// What every process runs lies together: a monitor runs 70 KB of functions, which kept 2.3 MB of the program resident where they lay
/// between others.
fn put_together() -> String {
    let sections = sections_of(COMMON.iter().copied());
    // But for what no agent runs alone: names of hosts, printf.
    let apart =
        "EXCLUDE_FILE(*vfprintf.o *intscan.o *res_msend.o *lookup_name.o *getaddrinfo.o *inet_pton.o)";
    format!(
        "SECTIONS {{ .text.common : {{ *libc.a:*({apart} .text {apart} .text.*) *libzigc.a:*(.text .text.*) *compiler_*:*(.text .text.*) *rcrt1.o(.text .text.*) {sections} }} }} INSERT BEFORE .text;\n"
    )
}

/// What runs only where smolet is the container runtime itself, and what an agent runs once in a while at most, in a segment of its own:
/// the kernel maps of it what is run, whatever pieces of the file it keeps in memory.
///
/// The load address that differs from the address makes both linkers begin a segment, and the hole before it keeps the kernel from
/// mapping the two as one. Its address is as far into a page as what ends before it, or the file would have zeros up to the next
/// page's begin: pages have 64 KiB for ARM's linkers. It is the last of the executable ones, as what follows would have that load
/// address too.
fn put_in_its_own_segment() -> String {
    let sections = sections_of(EMBEDDED.iter().copied().chain(names_in(RUNTIME)));
    format!(
        "SECTIONS {{ .text.embedded ALIGN(0x10000) + 0x10000 + (. & 0xffff) : AT(ADDR(.text.embedded) + 0x10000000) {{ {sections} }} }} INSERT AFTER .text;\n"
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
