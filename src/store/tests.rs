//! The status store: records decode to equal statuses, and the order of cuts when it is full.

use fastrand::Rng;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, HostIP, LinuxContainerUser, PodCondition, PodIP, PodStatus, ResourceClaim,
    ResourceRequirements, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::codec::{decode, encode};
use super::cut::{Cut, cut};
use super::statuses::StatusStore;
use crate::limits::{
    CONTAINERS_PER_LIST_MAX, PODS_BYTES_MAX, PODS_MAX, STATUS_BARE_CONTAINER_BYTES, STATUS_BARE_POD_BYTES,
    STATUS_ENTRY_BYTES, STATUS_STORE_BYTES_MIN,
};
use crate::model::PodUid;

fn maybe<T>(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    if rng.bool() { Some(make(rng)) } else { None }
}

fn list<T>(rng: &mut Rng, mut make: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    (0..rng.usize(0..4)).map(|_| make(rng)).collect()
}

fn text(rng: &mut Rng) -> String {
    match rng.u8(0..4) {
        0 => String::new(),
        1 => ["Running", "True", "Ready", "Completed", "cpu", "Error"][rng.usize(0..6)].to_owned(),
        2 => (0..rng.usize(0..300)).map(|_| rng.char(..)).collect(),
        _ => (0..rng.usize(1..40)).map(|_| rng.alphanumeric()).collect(),
    }
}

fn time(rng: &mut Rng) -> Time {
    let nanos = if rng.bool() { 0 } else { rng.i32(0..1_000_000_000) };
    Time(Timestamp::new(rng.i64(-100_000_000_000..200_000_000_000), nanos).unwrap())
}

fn quantities(rng: &mut Rng) -> std::collections::BTreeMap<String, Quantity> {
    list(rng, |rng| (text(rng), Quantity(text(rng)))).into_iter().collect()
}

fn resources(rng: &mut Rng) -> ResourceRequirements {
    ResourceRequirements {
        requests: maybe(rng, quantities),
        limits: maybe(rng, quantities),
        claims: maybe(rng, |rng| {
            list(rng, |rng| ResourceClaim { name: text(rng), request: maybe(rng, text) })
        }),
    }
}

fn state(rng: &mut Rng) -> ContainerState {
    ContainerState {
        waiting: maybe(rng, |rng| ContainerStateWaiting {
            reason: maybe(rng, text),
            message: maybe(rng, text),
        }),
        running: maybe(rng, |rng| ContainerStateRunning { started_at: maybe(rng, time) }),
        terminated: maybe(rng, |rng| ContainerStateTerminated {
            exit_code: rng.i32(..),
            signal: maybe(rng, |rng| rng.i32(..)),
            reason: maybe(rng, text),
            message: maybe(rng, text),
            started_at: maybe(rng, time),
            finished_at: maybe(rng, time),
            container_id: maybe(rng, text),
        }),
    }
}

fn container(rng: &mut Rng) -> ContainerStatus {
    ContainerStatus {
        name: text(rng),
        state: maybe(rng, state),
        last_state: maybe(rng, state),
        ready: rng.bool(),
        restart_count: rng.i32(..),
        image: text(rng),
        image_id: text(rng),
        container_id: maybe(rng, text),
        started: maybe(rng, Rng::bool),
        allocated_resources: maybe(rng, quantities),
        resources: maybe(rng, resources),
        volume_mounts: maybe(rng, |rng| {
            list(rng, |rng| VolumeMountStatus {
                name: text(rng),
                mount_path: text(rng),
                read_only: maybe(rng, Rng::bool),
                recursive_read_only: maybe(rng, text),
                volume_status: None,
            })
        }),
        user: maybe(rng, |rng| ContainerUser {
            linux: maybe(rng, |rng| LinuxContainerUser {
                uid: rng.i64(..),
                gid: rng.i64(..),
                supplemental_groups: maybe(rng, |rng| list(rng, |rng| rng.i64(..))),
            }),
        }),
        stop_signal: maybe(rng, text),
        allocated_resources_status: None,
    }
}

fn status(rng: &mut Rng) -> PodStatus {
    PodStatus {
        phase: maybe(rng, text),
        reason: maybe(rng, text),
        message: maybe(rng, text),
        start_time: maybe(rng, time),
        observed_generation: maybe(rng, |rng| rng.i64(..)),
        pod_ip: maybe(rng, text),
        pod_ips: maybe(rng, |rng| list(rng, |rng| PodIP { ip: text(rng) })),
        host_ip: maybe(rng, text),
        host_ips: maybe(rng, |rng| list(rng, |rng| HostIP { ip: text(rng) })),
        qos_class: maybe(rng, text),
        conditions: maybe(rng, |rng| {
            list(rng, |rng| PodCondition {
                type_: text(rng),
                status: text(rng),
                last_transition_time: maybe(rng, time),
                reason: maybe(rng, text),
                message: maybe(rng, text),
                observed_generation: maybe(rng, |rng| rng.i64(..)),
                last_probe_time: maybe(rng, time),
            })
        }),
        container_statuses: maybe(rng, |rng| list(rng, container)),
        init_container_statuses: maybe(rng, |rng| list(rng, container)),
        ephemeral_container_statuses: maybe(rng, |rng| list(rng, container)),
        resources: maybe(rng, resources),
        allocated_resources: maybe(rng, quantities),
        nominated_node_name: maybe(rng, text),
        resize: maybe(rng, text),
        ..PodStatus::default()
    }
}

#[test]
fn any_status_decodes_equal_and_damage_is_detected_or_harmless() {
    for seed in 0..crate::cases(1500) {
        let mut rng = Rng::with_seed(seed);
        let status = status(&mut rng);
        let record = encode(&status);
        assert_eq!(decode(&record).unwrap(), status, "seed {seed}");
        let end = rng.usize(0..record.len());
        assert!(decode(&record[..end]).is_err(), "seed {seed}: cut at {end}");
        let mut longer = record.clone();
        longer.push(rng.u8(..));
        assert!(decode(&longer).is_err(), "seed {seed}: a byte too many");
        // No panic, whatever it decodes to.
        let mut flipped = record;
        flipped[end] ^= 1 << rng.u8(0..8);
        let _ = decode(&flipped);
    }
}

#[test]
fn words_are_one_byte_and_numbers_of_words_never_change() {
    let of = |phase: &str| encode(&PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() });
    assert_eq!(of("Running"), [0xbf, 0, 2, 0xff]);
    assert_eq!(of("PostStartHookError"), [0xbf, 0, 0x18, 53, 0xff], "the last word");
    assert_eq!(of("Odd"), [0xbf, 0, 0x63, b'O', b'd', b'd', 0xff]);
    assert!(decode(&[0xbf, 0, 0x18, 54, 0xff]).is_err(), "a word of a newer version");
    let newer = decode(&[0xbf, 0, 2, 0x18, 99, 0x9f, 1, 0xbf, 0xff, 0xff, 0xff]).unwrap();
    assert_eq!(newer.phase.as_deref(), Some("Running"), "a field of a newer version is skipped");
}

#[test]
fn a_list_without_end_is_refused() {
    let mut bomb = vec![0xbf, 11, 0x9f];
    bomb.extend([0xbf, 0xff].repeat(2000));
    bomb.extend([0xff, 0xff]);
    assert!(decode(&bomb).is_err());
}

/// The latest time in a stored status: merging truncates times to seconds.
fn latest() -> Time {
    Time(Timestamp::from_second(Timestamp::MAX.as_second()).unwrap())
}

/// A pod with the largest bared record.
fn worst(containers: usize) -> PodStatus {
    let long = "x".repeat(5000);
    let end = ContainerStateTerminated {
        exit_code: i32::MIN,
        signal: None,
        reason: Some(long.clone()),
        message: Some(long.clone()),
        started_at: Some(latest()),
        finished_at: Some(latest()),
        container_id: Some(long.clone()),
    };
    let end = ContainerState { terminated: Some(end), ..ContainerState::default() };
    let container = |n: usize| ContainerStatus {
        name: format!("{n:063}"),
        container_id: Some("i".repeat(crate::limits::STATUS_ID_BYTES_CUT)),
        restart_count: i32::MAX,
        ready: true,
        started: Some(true),
        state: Some(end.clone()),
        last_state: Some(end.clone()),
        image: long.clone(),
        image_id: long.clone(),
        ..ContainerStatus::default()
    };
    let known = [
        "PodScheduled",
        "Ready",
        "Initialized",
        "ContainersReady",
        "PodResizeInProgress",
        "PodResizePending",
        "PodReadyToStartContainers",
        "AllContainersRestarting",
        "DisruptionTarget",
    ];
    let condition = |kind: &&str| PodCondition {
        type_: (*kind).to_owned(),
        status: "Unknown".to_owned(),
        reason: Some(long.clone()),
        message: Some(long.clone()),
        last_transition_time: Some(latest()),
        observed_generation: Some(i64::MAX),
        ..PodCondition::default()
    };
    let mut conditions: Vec<PodCondition> = known.iter().map(condition).collect();
    conditions.push(condition(&"example.com/of-somebody-else"));
    PodStatus {
        phase: Some("Running".to_owned()),
        reason: Some(long.clone()),
        message: Some(long.clone()),
        start_time: Some(latest()),
        observed_generation: Some(i64::MAX),
        pod_ip: Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".to_owned()),
        host_ip: Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".to_owned()),
        qos_class: Some("BestEffort".to_owned()),
        conditions: Some(conditions),
        container_statuses: Some((0..containers).map(container).collect()),
        ..PodStatus::default()
    }
}

#[test]
fn bared_records_are_within_the_limits() {
    for containers in [0, 1, CONTAINERS_PER_LIST_MAX] {
        let mut status = worst(containers);
        cut(&mut status, Cut::Bare);
        let bytes = encode(&status).len() + STATUS_ENTRY_BYTES;
        let limit = STATUS_BARE_POD_BYTES + containers * STATUS_BARE_CONTAINER_BYTES;
        assert!(bytes <= limit, "{containers} containers: {bytes} of {limit} bytes");
        let again = status.clone();
        cut(&mut status, Cut::Messages);
        cut(&mut status, Cut::Bare);
        assert_eq!(status, again, "cutting twice changes nothing");
    }
}

fn uid(n: usize) -> PodUid {
    PodUid::from(format!("{n:036}"))
}

#[test]
fn the_worst_statuses_of_all_pods_fit_into_the_smallest_store() {
    let mut store = StatusStore::new(STATUS_STORE_BYTES_MIN);
    let containers = PODS_BYTES_MAX / crate::limits::CONTAINER_BYTES;
    for pod in 0..PODS_MAX {
        let share = containers / PODS_MAX + usize::from(pod < containers % PODS_MAX);
        assert!(store.put(&uid(pod), worst(share)));
    }
    let usage = store.usage();
    assert_eq!((usage.records, usage.refused, usage.evicted), (PODS_MAX, 0, 0));
    assert!(usage.bytes <= usage.bytes_max && usage.bared > 0, "{usage:?}");
    // The same status again is no change, although it was cut.
    let revision = store.revision();
    let share = containers / PODS_MAX + 1;
    assert!(!store.put(&uid(0), worst(share)));
    assert_eq!(store.revision(), revision);
}

/// A status of about this many bytes, most of them a message.
fn wordy(phase: &str, bytes: usize) -> PodStatus {
    PodStatus { phase: Some(phase.to_owned()), message: Some("m".repeat(bytes)), ..PodStatus::default() }
}

#[test]
fn messages_are_cut_first_of_ended_pods_before_others_and_records_of_unwanted_pods_are_dropped_last() {
    let mut store = StatusStore::new(10_000);
    for (pod, phase) in [(0, "Running"), (1, "Failed"), (2, "Running")] {
        assert!(store.put(&uid(pod), wordy(phase, 3000)));
    }
    let kept = |store: &StatusStore, pod| store.status(&uid(pod)).unwrap().message.map(|m| m.len());
    assert_eq!([0, 1, 2].map(|pod| kept(&store, pod)), [Some(3000); 3]);
    assert!(store.put(&uid(3), wordy("Running", 3000)));
    assert_eq!([0, 1, 2, 3].map(|pod| kept(&store, pod)), [Some(3000), Some(128), Some(3000), Some(3000)]);
    assert!(store.has_ended(&uid(1)) && !store.has_ended(&uid(0)));
    // Stored whole again only when there is enough free space.
    assert!(!store.put(&uid(1), wordy("Failed", 3000)));
    store.forget(&uid(0));
    assert!(store.put(&uid(1), wordy("Failed", 1000)));
    assert_eq!(kept(&store, 1), Some(1000));

    // A store smaller than the least configurable size.
    let mut store = StatusStore::new(1000);
    store.put(&uid(0), wordy("Running", 5000));
    store.put(&uid(1), wordy("Running", 5000));
    for pod in 2..6 {
        store.put(&uid(pod), wordy("Running", 50));
    }
    store.set_wanted(&uid(1), false);
    assert_eq!(store.usage().evicted, 0);
    let mut pod = 6;
    while store.usage().refused == 0 {
        store.put(&uid(pod), wordy("Running", 50));
        pod += 1;
        assert!(pod < 100, "{:?}", store.usage());
    }
    let usage = store.usage();
    assert_eq!((usage.evicted, usage.refused), (1, 1), "{usage:?}");
    assert!(!store.contains(&uid(1)) && !store.contains(&uid(pod - 1)) && store.contains(&uid(0)));
    assert!(usage.bytes <= usage.bytes_max && usage.bared > 0, "{usage:?}");
}

#[test]
fn each_change_has_a_revision_of_its_own() {
    let mut store = StatusStore::new(STATUS_STORE_BYTES_MIN);
    let running = || wordy("Running", 10);
    assert!(store.put(&uid(1), running()) && store.put(&uid(2), running()));
    let seen = store.revision();
    assert!(!store.put(&uid(1), running()), "the same again");
    assert_eq!(store.revision(), seen);
    assert!(store.put(&uid(2), wordy("Failed", 10)) && store.put(&uid(1), wordy("Failed", 10)));
    store.forget(&uid(3));
    assert!(seen < store.revision_of(&uid(2)) && store.revision_of(&uid(2)) < store.revision_of(&uid(1)));
    assert_eq!(store.revision(), store.revision_of(&uid(1)));
    store.forget(&uid(2));
    assert!(store.revision() > store.revision_of(&uid(1)));
    assert_eq!(store.revision_of(&uid(2)), 0);
}
