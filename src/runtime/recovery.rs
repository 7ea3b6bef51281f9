//! Containers at the start: their records are read, half-made ones removed, running ones watched, ended ones reported.
//!
//! | record | monitor, files | becomes |
//! |---|---|---|
//! | none, Making, Removing | | removed |
//! | Created | of this boot | Created |
//! | Starting | its process is recorded, or the OCI runtime says that it runs | Running |
//! | Starting | | ended and removed from the OCI runtime: Exited, `StartError` |
//! | Running | exit file | Exited with it |
//! | Running | monitor lives | Running |
//! | Running | monitor was killed | Running with a new monitor, else ended: Exited 255 |
//! | any of these | of an earlier boot | Exited 255, `Unknown` |
//! | Exited | | Exited; the OCI runtime forgets it |

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::container::{Container, Containers, OfSandbox};
use super::context::{failed, is_id};
use super::oci_runtime::OciRuntime;
use super::records::{self, ContainerPhase, ContainerRecord};
use super::sandbox::Sandboxes;
use crate::cri::RuntimeResult;
use crate::filesystem::read_start;
use crate::limits::{CONTAINER_CREATE_TIME, KIB, MONITOR_END_PERIOD, RUNTIME_ENTRIES_READ_MAX};
use crate::model::{ContainerId, SortedSet};
use crate::monitor::{self, EXIT_CODE_UNKNOWN};

/// Reads all containers, and puts each into a state that its record says from now on.
///
/// # Errors
/// The directories cannot be read.
pub(super) async fn recover(containers: &Rc<Containers>, sandboxes: &Sandboxes) -> RuntimeResult<()> {
    let settings = &containers.context.settings;
    let (dir, run_dir, oci) = (settings.containers(), settings.containers_run(), settings.oci_state());
    let found = containers.context.blocking(move || found(&dir, &run_dir, &oci)).await;
    let mut found = found.map_err(|error| failed(format!("the containers' directories: {error}")))?;
    // A root file system that no container has: its creation ended before the directory was there, or after it was gone.
    for name in containers.images.rootfs_names().await? {
        let id = name.split('-').next().unwrap_or_default();
        if is_id(id) && !found.iter().any(|(known, _)| known == id) {
            found.push((id.to_owned(), None));
        }
    }
    for (id, record) in found {
        // The OCI runtime knows the first process of a pod's PID namespace by the sandbox's id.
        if sandboxes.find(&id).is_some() {
            continue;
        }
        let record = record.unwrap_or_default();
        let sandbox = sandboxes.find(&record.sandbox);
        let of = sandbox.as_deref().map(OfSandbox::of).unwrap_or_default();
        let container = Container::new(ContainerId::from(&*id), record, of);
        containers.insert(&container);
        Box::pin(one(containers, &container, sandbox.is_some())).await;
    }
    Ok(())
}

async fn one(containers: &Rc<Containers>, container: &Rc<Container>, has_sandbox: bool) {
    let is_of_this_boot = container.record.borrow().boot == containers.context.boot;
    let phase = container.phase();
    match phase {
        _ if !has_sandbox => remove(containers, container).await,
        ContainerPhase::Making | ContainerPhase::Removing => remove(containers, container).await,
        ContainerPhase::Exited => {
            if is_of_this_boot {
                containers.clean_up(container).await;
            }
        }
        ContainerPhase::Created | ContainerPhase::Starting | ContainerPhase::Running if !is_of_this_boot => {
            let end = (EXIT_CODE_UNKNOWN, containers.context.now());
            containers.set_exited(container, end, "Unknown", "the machine was restarted").await;
        }
        ContainerPhase::Created => {}
        ContainerPhase::Starting => starting(containers, container).await,
        ContainerPhase::Running => running(containers, container).await,
    }
}

async fn remove(containers: &Rc<Containers>, container: &Rc<Container>) {
    end_makers(containers, container).await;
    if let Err(error) = containers.remove(container).await {
        log::warn!(
            "container {}: half-made or removed, and not gone: {error}; retrying at its removal",
            container.id()
        );
    }
}

/// The agent ended while it was started.
async fn starting(containers: &Rc<Containers>, container: &Rc<Container>) {
    end_makers(containers, container).await;
    let dir = containers.run_dir(container.id());
    let init = containers.context.blocking(move || monitor::init_of(&dir).ok().flatten()).await;
    let has_started = match OciRuntime::of(&containers.context, container.handler()) {
        _ if init.is_some() => true,
        // Its monitor was killed before it had recorded the process.
        Ok(runtime) => runtime.state(container.id().as_str()).await.as_deref() == Some("running"),
        Err(_) => false,
    };
    if has_started {
        {
            let mut record = container.record.borrow_mut();
            record.phase = ContainerPhase::Running;
            record.started_at = containers.context.now();
        }
        running(containers, container).await;
        return;
    }
    containers.delete_oci(container).await;
    let end = (128, containers.context.now());
    containers.set_exited(container, end, "StartError", "the agent ended while it was started").await;
}

async fn running(containers: &Rc<Containers>, container: &Rc<Container>) {
    // Watched first: an exit between the two would be missed.
    if let Err(error) = containers.watch(container).await {
        log::warn!("{error}");
    }
    containers.look(container).await;
    if container.phase() == ContainerPhase::Exited {
        containers.clean_up(container).await;
    }
}

/// Waits until a monitor that is still making the container has done so or given up, and kills what is left of one that was
/// killed: afterwards nothing adds to the container any more.
async fn end_makers(containers: &Rc<Containers>, container: &Rc<Container>) {
    let tries = CONTAINER_CREATE_TIME.as_millis() / MONITOR_END_PERIOD.as_millis();
    for _ in 0..tries {
        let dir = containers.run_dir(container.id());
        let is_making = containers.context.blocking(move || {
            monitor::is_alive(&dir).unwrap_or_default() && monitor::init_of(&dir).ok().flatten().is_none()
        });
        if !is_making.await {
            break;
        }
        containers.context.clock.sleep(MONITOR_END_PERIOD).await;
    }
    let id = container.id().as_str().to_owned();
    let killed = containers.context.blocking(move || kill_makers(&id)).await;
    if killed {
        // A killed process takes a moment to exit.
        containers.context.clock.sleep(Duration::from_millis(50)).await;
    }
}

/// Kills programs that have the container's id among their arguments: an OCI runtime whose monitor was killed. Its monitor has it
/// too, in the name of its directory; it is killed as well, since the container is removed. Blocking.
fn kill_makers(id: &str) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return false };
    let mut killed = false;
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        let Ok(line) = read_start(&entry.path().join("cmdline"), 4 * KIB) else { continue };
        let mut arguments = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let program = arguments.next().unwrap_or_default().into_owned();
        let is_maker = ["runc", "crun", "youki", "smolet", "exe"]
            .iter()
            .any(|name| Path::new(&program).file_name().is_some_and(|of| of == *name));
        if is_maker && pid != rustix::process::getpid() && arguments.any(|argument| argument.contains(id)) {
            killed |= kill_process(pid, Signal::KILL).is_ok();
        }
    }
    killed
}

/// Ids of containers, with their records; `None` for one without a readable record.
type Found = Vec<(String, Option<ContainerRecord>)>;

/// Reads the directories of containers, which are made if they are not there. Blocking.
fn found(dir: &Path, run_dir: &Path, oci: &Path) -> std::io::Result<Found> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut seen = SortedSet::new();
    let mut found = Found::new();
    for at in [dir, run_dir, oci] {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(at)?;
        for entry in std::fs::read_dir(at)?.take(RUNTIME_ENTRIES_READ_MAX) {
            let Ok(id) = entry?.file_name().into_string() else { continue };
            if !is_id(&id) || !seen.insert(id.clone()) {
                continue;
            }
            let record = records::read(&dir.join(&id));
            if let Err(error) = &record {
                log::warn!("container {id}: its record cannot be read ({error}); it is removed");
            }
            found.push((id, record.ok()));
        }
    }
    Ok(found)
}
