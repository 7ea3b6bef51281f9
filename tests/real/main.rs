//! smolet on a real containerd: the built binary, real pods, real crashes.
//!
//! Root only; `make real` runs it. One private containerd (tests/env/runtime.sh) serves all tests, one after the
//! other; with `SMOLET_TEST_RUNTIME=embedded` (`make real-embedded`) it is a smolet with the embedded runtime, by its CRI, with
//! `crio` (`make real-crio`) the CRI-O that `CRIO` names. Each test has an agent of its own (state, manifests, socket, node name) and
//! leaves no pod behind. The harness is this file's own, because libtest offers no place to take the runtime down, whatever a test
//! does.
//!
//! All of it happens in a mount namespace of its own: what is mounted for a test is nobody else's and ends with it.
//!
//! `SMOLET_BIN` names the binary to test, by default cargo's build of this profile. Arguments are parts of test
//! names. The truth is what the CRI reports; `smolet pods -o json` is tested against it.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::print_stdout, reason = "figures, and what the agent said last")]

mod agent;
mod crash;
mod debug;
mod devices;
mod events;
mod examples;
mod exec;
mod finding;
mod handover;
mod hooks;
mod images;
#[path = "../common/kubelet.rs"]
mod kubelet;
mod life;
mod logs;
mod moving;
#[cfg(feature = "tls")]
mod node_api;
mod pressure;
mod probes;
mod promises;
mod recovery;
mod refusal;
mod registry;
mod resize;
mod runtime;
#[path = "../common/seeds.rs"]
mod seeds;
mod settings;
mod shims;
mod shutdown;
mod volumes;
mod why;

use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::time::Instant;

use runtime::{Kind, Runtime};

type Test = (&'static str, fn(&Runtime));

macro_rules! tests {
    ($($(#[$when:meta])* $module:ident::$name:ident),* $(,)?) => {
        &[$($(#[$when])* (concat!(stringify!($module), "::", stringify!($name)), $module::$name)),*]
    };
}

const TESTS: &[Test] = tests![
    life::a_pod_runs_with_address_log_and_volume,
    life::init_containers_run_in_order_and_a_sidecar_stays,
    life::a_pod_that_ends_is_not_started_again,
    life::an_exit_is_followed_by_restarts_with_back_off,
    life::a_new_image_restarts_that_container_in_place,
    life::another_change_replaces_the_pod,
    life::a_removed_manifest_ends_the_pod_gracefully,
    life::a_missing_image_is_named,
    logs::what_containers_write_is_shown_by_stream_and_by_life,
    logs::a_log_is_rotated_under_load_and_followed_without_a_gap,
    logs::a_pods_logs_in_memory_are_bounded_and_their_end_comes_through_a_boot,
    volumes::variables_come_from_config_maps_and_secrets,
    volumes::files_come_from_config_maps_and_secrets_and_follow_them,
    volumes::volumes_are_what_the_spec_says,
    devices::a_device_is_open_to_the_container_that_mounts_it,
    devices::a_device_that_comes_and_changes_is_usable_soon,
    devices::a_device_that_changes_is_given_to_the_running_container,
    devices::a_device_that_comes_back_ends_the_crash_back_off,
    volumes::a_sub_path_leads_nowhere_outside_its_volume,
    volumes::an_empty_dir_that_outgrows_its_limit_ends_its_pod,
    volumes::a_pod_that_takes_more_disk_than_it_may_fails_for_good,
    images::private_images_are_pulled_with_the_right_login_only,
    images::archives_are_imported_and_their_pods_start_without_a_registry,
    images::an_image_in_two_archives_is_that_of_the_last,
    images::archives_that_cannot_be_imported_are_named,
    images::compressed_archives_are_imported_and_listed_images_are_pulled,
    images::mirrors_and_logins_of_k3s_reach_containerd,
    images::layers_that_a_power_cut_may_have_emptied_are_unpacked_again,
    images::an_image_is_a_volume_where_the_runtime_mounts_images,
    pressure::short_of_disk_what_nobody_needs_goes_and_then_who_has_written_most,
    pressure::short_of_memory_the_ranked_pod_goes_and_comes_again,
    settings::names_hosts_and_resolver_are_as_the_pod_says,
    settings::namespaces_are_the_nodes_the_pods_or_the_containers,
    settings::users_and_rights_are_as_the_security_context_says,
    settings::cgroups_of_pods_and_classes_are_the_kubelets,
    resize::a_running_pod_gets_other_cpu_and_memory,
    settings::a_runtime_class_is_a_handler_of_the_runtime,
    settings::last_words_are_kept_within_their_limits,
    settings::a_stop_signal_is_the_containers_or_its_neglect_is_told,
    settings::what_this_machine_cannot_show_is_named,
    events::an_exit_is_told_and_waits_for_no_relist,
    events::events_come_again_after_containerd_was_killed,
    probes::each_kind_of_probe_tells_a_good_container_from_a_bad_one,
    probes::a_grpc_server_is_asked_for_its_health,
    probes::a_container_that_hangs_is_replaced_at_once,
    hooks::hooks_run_after_the_start_and_before_the_stop,
    shims::many_lives_of_pods_leave_no_shim,
    shutdown::pods_end_with_the_machine_and_come_back,
    recovery::a_killed_agent_takes_its_pods_up_again,
    recovery::an_agent_killed_while_it_starts_pods_doubles_nothing,
    recovery::what_happened_while_the_agent_was_away_is_made_good,
    recovery::pods_and_agent_outlive_containerd,
    recovery::a_sandbox_stopped_from_outside_is_replaced,
    recovery::a_container_removed_from_outside_is_replaced,
    recovery::a_restart_count_survives_the_loss_of_record_and_log,
    handover::a_node_goes_from_a_kubelet_to_smolet_and_back,
    moving::pods_end_in_the_runtime_that_a_node_leaves_and_run_embedded,
    recovery::a_process_that_the_runtime_forgot_ends_with_its_pod,
    crash::thirty_kills_during_churn_double_nothing,
    crash::a_full_or_read_only_disk_is_survived,
    refusal::a_second_agent_on_the_same_state_is_refused,
    refusal::an_invalid_manifest_keeps_the_pod,
    refusal::hostile_manifests_do_not_end_the_agent,
    refusal::foreign_pods_are_left_alone,
    refusal::once_tells_what_became_of_each_pod,
    refusal::check_judges_manifests_without_an_agent,
    why::doctor_judges_the_machine_and_its_runtime,
    why::top_shows_what_pods_use,
    why::events_are_followed_while_they_happen,
    exec::a_command_has_its_outputs_and_its_exit_code,
    exec::input_goes_in_to_its_end_and_fifty_megabytes_come_back,
    exec::a_reader_that_has_enough_ends_the_command_quietly,
    exec::a_terminal_has_the_size_of_ours_and_is_given_back,
    exec::the_main_process_is_joined_and_left,
    exec::ports_of_a_pod_are_reached_by_many_at_once,
    #[cfg(feature = "tls")]
    node_api::logs_commands_and_ports_of_pods_are_reached_through_it,
    debug::a_container_looks_into_a_pod_that_runs,
    examples::ten_manifests_of_a_gateway_run_unchanged,
    promises::an_idle_agent_costs_no_more_than_promised,
    probes::probing_thirty_pods_costs_little,
];

const NO_TESTS: &[(&str, &str)] = &[];

/// What CRI-O does not have, and why.
const NOT_ON_CRIO: &[(&str, &str)] = &[
    ("images::archives_are_imported_and_their_pods_start_without_a_registry", IMPORTS),
    ("images::an_image_in_two_archives_is_that_of_the_last", IMPORTS),
    ("images::archives_that_cannot_be_imported_are_named", IMPORTS),
    ("images::compressed_archives_are_imported_and_listed_images_are_pulled", IMPORTS),
    ("images::layers_that_a_power_cut_may_have_emptied_are_unpacked_again", "CRI-O repairs its own store"),
    ("images::mirrors_and_logins_of_k3s_reach_containerd", "k3s has containerd"),
    ("moving::pods_end_in_the_runtime_that_a_node_leaves_and_run_embedded", IMPORTS),
    ("pressure::short_of_disk_what_nobody_needs_goes_and_then_who_has_written_most", IMPORTS),
    (
        "resize::a_running_pod_gets_other_cpu_and_memory",
        "with cgroup v1 it leaves a dead container's quota, which may be larger than the pod's new one",
    ),
];

const IMPORTS: &str = "no service imports archives";

/// Goes on in a mount namespace of its own. `/` is a shared mount there, as systemd makes it: containerd wants that of
/// what a pod mounts with HostToContainer.
fn with_own_mounts() {
    const DONE: &str = "SMOLET_TEST_OWN_MOUNTS";
    if std::env::var_os(DONE).is_some() {
        return;
    }
    let error = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "slave",
            "sh",
            "-c",
            "mount --make-rshared / && exec \"$0\" \"$@\"",
        ])
        .arg(std::env::current_exe().expect("our own path"))
        .args(std::env::args_os().skip(1))
        .env(DONE, "1")
        .exec();
    panic!("unshare: {error}");
}

/// Which tests this process runs, of how many processes side by side: `SMOLET_TEST_SHARE=2/3`. Each has a containerd of its
/// own.
fn share() -> (usize, usize) {
    let Some(share) = std::env::var_os("SMOLET_TEST_SHARE") else { return (1, 1) };
    let share = share.into_string().expect("SMOLET_TEST_SHARE is K/N");
    let (number, of) = share.split_once('/').expect("SMOLET_TEST_SHARE is K/N");
    let (number, of) = (number.parse().expect("a number"), of.parse().expect("a number"));
    assert!((1..=of).contains(&number), "SMOLET_TEST_SHARE: {number} of {of}");
    (number, of)
}

fn main() -> ExitCode {
    with_own_mounts();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w));
    let (number, of) = share();
    let (name, on, without) = match Kind::chosen() {
        Kind::Containerd => ("real", "a real containerd", NO_TESTS),
        Kind::Embedded => ("embedded", "the embedded runtime", NO_TESTS),
        Kind::CriO => ("crio", "a real CRI-O", NOT_ON_CRIO),
    };
    let has = |name: &str| without.iter().all(|(lacking, _)| *lacking != name);
    let fitting = TESTS.iter().filter(|(name, _)| is_wanted(name) && has(name));
    let chosen: Vec<&Test> = fitting.skip(number - 1).step_by(of).collect();
    without.iter().for_each(|(name, why)| println!("not on {on}: {name}: {why}"));
    println!("\nrunning {} tests on {on}", chosen.len());
    assert!(!chosen.is_empty(), "no test is called like any of {wanted:?}");

    let started = Instant::now();
    let runtime = Runtime::up(&format!("{name}-{number}"));
    let mut failed = Vec::new();
    for (name, test) in &chosen {
        let at = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            test(&runtime);
            runtime.assert_empty();
        }));
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {word} ({:.1} s)", at.elapsed().as_secs_f64());
        if outcome.is_err() {
            failed.push(*name);
            runtime.recover();
            runtime.remove_all_pods();
        }
    }
    drop(runtime);

    let (passed, word) = (chosen.len() - failed.len(), if failed.is_empty() { "ok" } else { "FAILED" });
    failed.iter().for_each(|name| println!("failed: {name}"));
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; 0 ignored; finished in {:.1}s\n",
        failed.len(),
        started.elapsed().as_secs_f64()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
