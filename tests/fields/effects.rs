//! What the agent makes of a manifest: every call of the runtime and every file, as far as they follow from the pod.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service, Volume};
use serde_json::{Value, json};
use smolet::eviction::pods::priority;
use smolet::hook::Hook;
use smolet::image::name::for_runtime;
use smolet::image::pull::PullPolicy;
use smolet::limits::CRASH_BACKOFF_MAX;
use smolet::model::annotations::CONFIG_HASH;
use smolet::model::backoff::Backoff;
use smolet::model::object::named_by;
use smolet::model::{
    ContainerKind, ContainerMeta, ContainerState, ContainerStatus, DesiredPod, Mono, NamespaceMode, Now,
    Objects, ObservedPod, SandboxNetwork, SandboxState, SandboxStatus, Side, Sizes, Wall,
};
use smolet::probe::handler::Handler;
use smolet::probe::prober::Schedule;
use smolet::probe::timeout;
use smolet::proto::runtime::v1::ImageSpec;
use smolet::render::admission::runtime_handler;
use smolet::render::{
    ContainerInput, EnvSources, ManifestObjects, NodeSettings, ResolvConf, UserNamespace, container_config,
    hosts_file, sandbox_config,
};
use smolet::source::NodeName;
use smolet::source::manifest::parse;
use smolet::status::{NoFacts, StatusInput, pod_status};
use smolet::sync::order::grace_period;
use smolet::sync::plan::{PlanInput, plan};
use smolet::sync::rules::should_all_containers_restart;
use smolet::sync::{KillReason, Probes};
use smolet::volume::usage::limited;
use smolet::volume::{
    EnvFile, Mounts, VolumeImages, container_mounts, env_files, files, host_paths, image_volumes,
    nfs_volumes, pod_volumes,
};

/// Who acts on a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The check of the manifest: it is refused.
    Check,
    /// `RunPodSandbox`, and the handler it is called for.
    Sandbox,
    /// `CreateContainer` of some container, its mounts and variables included, and what is bound for it before.
    Container,
    /// What is made on disk before the pod starts.
    Volumes,
    /// The pod's hosts file.
    Hosts,
    /// `PullImage`: whether it is called, and the objects the pod may take its logins from.
    Pull,
    /// What is started again after which end.
    Plan,
    /// How long a container has between its stop signal and its end.
    Stop,
    /// What probes and hooks do and when, and how long a container has that they end.
    Probe,
    /// When it ends as the node shuts down, or is short of something.
    Shutdown,
    /// The pod's status, and with it the end of a pod that ran too long.
    Status,
}

pub const OWNERS: [Owner; 11] = [
    Owner::Check,
    Owner::Sandbox,
    Owner::Container,
    Owner::Volumes,
    Owner::Hosts,
    Owner::Pull,
    Owner::Plan,
    Owner::Stop,
    Owner::Probe,
    Owner::Shutdown,
    Owner::Status,
];

/// What each owner does.
pub struct Effects {
    pub problems: Vec<String>,
    pod: Option<(DesiredPod, Objects)>,
}

const NOW: Now = Now { mono: Mono(1_000_000_000_000), wall: Wall(1_000_000_000_000) };
/// How long the pod has been active for the status.
const ACTIVE: Duration = Duration::from_mins(1);

/// Reads a pod with the objects it names, as the agent does.
pub fn effects(pod: &Value) -> Effects {
    let map = |name: &str, data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ns"}, "data": data});
    let secret = |name: &str, data: Value| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "ns"},
            "stringData": data})
    };
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        pod,
        map("m", json!({"k": "1", "other": "22"})), map("m2", json!({"k": "333", "other": "1"})),
        secret("s", json!({"k": "1", "other": "22"})), secret("s2", json!({"k": "333", "other": "1"})),
    ]});
    let bytes = list.to_string().into_bytes();
    let parsed = parse(&Arc::from("f.json"), &bytes, &NodeName::new("n"), Wall(0), 1 << 20);
    let objects = parsed
        .objects
        .into_iter()
        .map(|object| (object.object.key(Side::Manifests), object.object))
        .collect();
    let desired = |mut pod: Pod| {
        // It changes with every field of the manifest, whoever heeds it.
        pod.metadata.annotations.get_or_insert_default().remove(CONFIG_HASH);
        DesiredPod::new(pod)
    };
    Effects {
        problems: parsed.problems.iter().map(ToString::to_string).collect(),
        pod: parsed.pods.into_iter().next().map(|pod| (desired(pod.pod), objects)),
    }
}

fn node() -> NodeSettings {
    let mut node = NodeSettings::new("n", "/var/lib/smolet");
    node.memory_capacity_bytes = 4 << 30;
    node.memory_allocatable_bytes = 4 << 30;
    node.cluster_domain = "cluster.local".into();
    node.resolv_conf = Some(ResolvConf::parse("nameserver 192.0.2.53\n"));
    node
}

impl Effects {
    /// All that this owner does; for a pod that is refused, why it is.
    pub fn of(&self, owner: Owner) -> String {
        let Some((pod, objects)) = &self.pod else { return self.problems.join("\n") };
        let node = node();
        match owner {
            Owner::Check => self.problems.join("\n"),
            Owner::Sandbox => {
                format!("{:?} {:#?}", runtime_handler(pod), sandbox_config(&node, pod, 0, users(pod)))
            }
            Owner::Container => {
                let containers = containers(pod).map(|(kind, index, container)| {
                    let variables = container.env.as_deref().unwrap_or_default();
                    let env = Sources {
                        objects: ManifestObjects(Rc::new(objects.clone())),
                        files: env_files(pod, variables, "/pod"),
                    };
                    let mut input = ContainerInput {
                        pod,
                        kind,
                        index,
                        restart_count: 0,
                        image_ref: "sha256:1",
                        image: None,
                        pod_ips: &["10.0.0.9".into()],
                        mounts: &[],
                        termination_log: Some("/t"),
                        target: None,
                        recursive_read_only: true,
                        annotations: &[],
                        user_namespace: users(pod),
                        env: &env,
                    };
                    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
                    let variables = input.variables(&node).unwrap_or_default();
                    let Mounts { mounts, sub_paths } =
                        container_mounts(pod, &container.name, mounts, &images(pod), &variables, "/pod")
                            .expect("its volumes are there");
                    input.mounts = &mounts;
                    format!("{sub_paths:#?}\n{:#?}\n", container_config(&node, &input))
                });
                containers.collect()
            }
            Owner::Volumes => {
                let steps =
                    (pod_volumes(files::Sources { pod, node: &node, objects }, "/pod"), host_paths(pod));
                format!("{steps:#?}\n{:#?}\n{:#?}", nfs_volumes(pod, "/pod"), limited(pod, "/pod"))
            }
            Owner::Hosts => hosts_file(&node, pod, &["10.0.0.9".into()], "of the node").unwrap(),
            Owner::Pull => {
                let pull = |image: &str, policy| {
                    format!("{:?} {:?}\n", for_runtime(image), PullPolicy::parse(policy))
                };
                let pulls = containers(pod).map(|(_, _, container)| {
                    let mounted = image_volumes(pod, container.volume_mounts.as_deref().unwrap_or_default());
                    let of_volumes = mounted.iter().map(|of| pull(of.reference, of.pull_policy));
                    let image = container.image.as_deref().unwrap_or_default();
                    let own = pull(image, container.image_pull_policy.as_deref());
                    of_volumes.collect::<String>() + &own
                });
                format!("{} with {:?}", pulls.collect::<String>(), named_by(&pod.pod))
            }
            Owner::Plan => plans(pod),
            Owner::Stop => {
                let grace = |(_, _, container)| grace_period(pod, Some(container), KillReason::Unknown);
                format!("{:?}", containers(pod).map(grace).collect::<Vec<_>>())
            }
            Owner::Shutdown => priority(pod).to_string(),
            Owner::Probe => containers(pod).map(|(_, _, container)| probes(pod, container)).collect(),
            Owner::Status => {
                let input = StatusInput {
                    pod: &pod.pod,
                    observed: &ObservedPod::default(),
                    previous: None,
                    facts: &NoFacts,
                    is_terminal: false,
                    resizes: &[],
                    active_for: Some(ACTIVE),
                    pod_cgroup: None,
                    agent_start: NOW.wall,
                    host_ips: &[],
                    ipv6_first: false,
                    runtime_name: "containerd",
                    recursive_read_only: false,
                };
                format!("{:#?}", pod_status(&input))
            }
        }
    }
}

fn probes(pod: &DesiredPod, container: &Container) -> String {
    let ip = Some(IpAddr::from([10, 0, 0, 9]));
    let probes = [&container.liveness_probe, &container.readiness_probe, &container.startup_probe];
    let each = probes.into_iter().map(|probe| {
        let Some(probe) = probe else { return String::new() };
        let handler = Handler::of_probe(probe, container, ip);
        format!("{handler:?} {:?} {:?}\n", Schedule::new(probe), timeout(probe))
    });
    let grace = |reason| grace_period(pod, Some(container), reason);
    let grace = (grace(KillReason::LivenessProbe), grace(KillReason::StartupProbe));
    let lifecycle = container.lifecycle.as_ref();
    let hooks = lifecycle.map(|own| [own.post_start.as_ref(), own.pre_stop.as_ref()]).unwrap_or_default();
    let ports = container.ports.as_deref().unwrap_or_default();
    let hooks = hooks.map(|hook| hook.map(|hook| Hook::of(hook, ports, ip)));
    format!("{}{grace:?} {hooks:?}\n", each.collect::<String>())
}

/// The images of the pod's image volumes, once they are there.
fn images(pod: &DesiredPod) -> VolumeImages {
    let volumes = pod.spec().volumes.iter().flatten();
    let image = |name: &str| ImageSpec { image: name.to_owned(), ..ImageSpec::default() };
    let of = |volume: &Volume| {
        Some((volume.name.as_str().into(), image(volume.image.as_ref()?.reference.as_deref()?)))
    };
    volumes.filter_map(of).collect()
}

/// The users of a pod that wants its own.
fn users(pod: &DesiredPod) -> Option<UserNamespace> {
    (pod.spec().host_users == Some(false)).then_some(UserNamespace { first: 131_072 })
}

/// The objects, and files of variables that differ by their place.
struct Sources {
    objects: ManifestObjects,
    files: Vec<EnvFile>,
}

impl EnvSources for Sources {
    fn config_map(&self, pod: &DesiredPod, name: &str) -> Result<Option<Arc<ConfigMap>>, String> {
        self.objects.config_map(pod, name)
    }

    fn secret(&self, pod: &DesiredPod, name: &str) -> Result<Option<Arc<Secret>>, String> {
        self.objects.secret(pod, name)
    }

    fn services(&self, pod: &DesiredPod) -> Rc<[Service]> {
        self.objects.services(pod)
    }

    fn volume_file(&self, volume: &str, path: &str) -> Result<Option<Rc<str>>, String> {
        let known = self.files.iter().any(|file| *file.volume == *volume && *file.path == *path);
        Ok(known.then(|| format!("k='{volume} {path}'\nl='another'\n").into()))
    }
}

fn containers(pod: &DesiredPod) -> impl Iterator<Item = (ContainerKind, usize, &Container)> {
    fn of(
        kind: ContainerKind,
        list: &[Container],
    ) -> impl Iterator<Item = (ContainerKind, usize, &Container)> {
        list.iter().enumerate().map(move |(index, container)| (kind, index, container))
    }
    of(ContainerKind::Init, pod.init_containers()).chain(of(ContainerKind::App, pod.containers()))
}

/// The plans for each container that ended with each of some exit codes, or runs with another CPU than it is to have, with and without a sandbox that is good: an
/// init container while no app container was made, an app container while the others run.
fn plans(pod: &DesiredPod) -> String {
    let mut all = String::new();
    for (kind, index, container) in containers(pod) {
        for exit_code in [Some(0), Some(1), Some(7), Some(9), None] {
            for state in [SandboxState::Ready, SandboxState::NotReady] {
                let record = |(of, place, other): (ContainerKind, usize, &Container)| {
                    let it = (of, place) == (kind, index);
                    let (state, code) = match of {
                        _ if it => exit_code
                            .map_or((ContainerState::Running, 0), |code| (ContainerState::Exited, code)),
                        ContainerKind::Init => (ContainerState::Exited, 0),
                        ContainerKind::App | ContainerKind::Ephemeral => (ContainerState::Running, 0),
                    };
                    let hash = if of == ContainerKind::Init {
                        pod.init_hashes[place]
                    } else {
                        pod.app_hashes[place]
                    };
                    let made = it || kind == ContainerKind::App;
                    made.then(|| status(&other.name, state, code, hash))
                };
                let observed = ObservedPod {
                    ips: Vec::new(),
                    sandboxes: vec![sandbox(state)],
                    containers: containers(pod).filter_map(record).collect(),
                };
                let input = PlanInput {
                    pod,
                    observed: &observed,
                    probes: &Probes::default(),
                    backoff: &Backoff::new(Mono(0), CRASH_BACKOFF_MAX),
                    now: NOW,
                    restart_all: should_all_containers_restart(pod, &observed),
                    resizing: false,
                };
                let _ = writeln!(all, "{} {exit_code:?} {state:?}: {:#?}", container.name, plan(&input));
            }
        }
    }
    all
}

fn sandbox(state: SandboxState) -> SandboxStatus {
    SandboxStatus {
        id: "sb".into(),
        attempt: 1,
        state,
        created_at: Wall(0),
        network_namespace: Some(NamespaceMode::Pod),
        network: Some(SandboxNetwork { ip: "10.0.0.9".into(), additional_ips: Vec::new() }),
    }
}

fn status(name: &str, state: ContainerState, exit_code: i32, hash: u32) -> ContainerStatus {
    let ended = state == ContainerState::Exited;
    ContainerStatus {
        id: format!("id-{name}").into(),
        name: name.into(),
        sandbox_id: "sb".into(),
        state,
        started_at: Some(Wall(0)),
        finished_at: ended.then_some(NOW.wall),
        finished_mono: ended.then_some(NOW.mono),
        exit_code,
        meta: ContainerMeta {
            hash: u64::from(hash),
            sizes: Some(Sizes {
                cpu_request: 1,
                cpu_limit: 1,
                memory_request: 64 << 20,
                memory_limit: 64 << 20,
            }),
            ..ContainerMeta::default()
        },
        ..ContainerStatus::default()
    }
}
