//! Containers at the start: their records are read, half-made ones removed, running ones watched, ended ones reported.
//!
//! | record | monitor, files | becomes |
//! |---|---|---|
//! | none, Making | | removed |
//! | Removing | | removed behind the start |
//! | Created | of this boot | Created |
//! | Starting | its process is recorded, or its exit | as Running |
//! | Starting | otherwise | ended and removed from the OCI runtime: Exited, `StartError` |
//! | Running | exit file | Exited with it |
//! | Running | monitor lives | Running |
//! | Running | monitor was killed | Running, with a new monitor where there can be one |
//! | Running | monitor was killed, no process | Exited 255 |
//! | any of these | of an earlier boot | Exited 255, `Unknown` |
//! | Exited | | Exited; the OCI runtime forgets it |

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::container::{Container, Containers, OfSandbox};
use super::context::{failed, is_id, make_dir};
use super::ends;
use super::makers;
use super::records::{self, ContainerPhase, ContainerRecord};
use super::sandboxes::Sandboxes;
use crate::cri::RuntimeResult;
use crate::limits::{
    CONTAINER_MOUNTS_MAX, RECOVERIES_AT_ONCE_MAX, REMOVAL_RETRY_MAX, REMOVAL_RETRY_MIN,
    RUNTIME_ENTRIES_READ_MAX,
};
use crate::model::{ContainerId, SortedSet};
use crate::monitor::{self, EXIT_CODE_UNKNOWN};

/// Reads all containers, and puts each into a state that its record says from now on.
///
/// # Errors
/// The directories cannot be read.
pub(super) async fn recover(containers: &Rc<Containers>, sandboxes: &Rc<Sandboxes>) -> RuntimeResult<()> {
    let settings = &containers.context.settings;
    let (dir, run_dir, oci) = (settings.containers(), settings.containers_run(), settings.oci_state());
    let found = containers.context.blocking(move || found(&dir, &run_dir, &oci)).await;
    let mut found = found.map_err(|error| failed(format!("the containers' directories: {error}")))?;
    // A root file system that no container has: its creation ended before the directory was there, or after it was gone.
    let rootfs = containers.images.rootfs_names().await?;
    for name in &rootfs {
        let id = name.split('-').next().unwrap_or_default();
        if is_id(id) && !found.iter().any(|(known, _)| known == id) {
            found.push((id.to_owned(), None));
        }
    }
    for sandbox in sandboxes.all() {
        ends::watch(containers, Some(sandboxes), &ContainerId::from(sandbox.id().as_str())).await;
        sandboxes.look_soon(sandbox.id().as_str());
    }
    let mut tasks = VecDeque::new();
    for (id, record) in found {
        // The OCI runtime knows the first process of a pod's PID namespace by the sandbox's id.
        if sandboxes.find(&id).is_some() {
            continue;
        }
        // Of one without a record: what it may have mounted.
        let torn = || ContainerRecord { image_mounts: image_mounts_of(&id, &rootfs), ..Default::default() };
        let record = record.unwrap_or_else(torn);
        let sandbox = sandboxes.find(&record.sandbox);
        let of = sandbox.as_deref().map(OfSandbox::of).unwrap_or_default();
        let container = Container::new(ContainerId::from(&*id), record, of);
        containers.insert(&container);
        let (containers, has_sandbox) = (containers.clone(), sandbox.is_some());
        // Some wait for a monitor that still works: not one after the other.
        if tasks.len() >= RECOVERIES_AT_ONCE_MAX
            && let Some(first) = tasks.pop_front()
        {
            first.await;
        }
        let context = containers.context.clone();
        // Its writable layer may take long: behind the start. It is listed as ended meanwhile.
        let is_awaited = !has_sandbox || container.phase() != ContainerPhase::Removing;
        let recover = async move { one(&containers, &container, has_sandbox).await };
        let task = context.to_the_end("container of an earlier start", recover);
        tasks.extend(is_awaited.then_some(task));
    }
    for task in tasks {
        task.await;
    }
    Ok(())
}

/// How many images a container has mounted at most, by the names of all root file systems. PURE.
fn image_mounts_of(id: &str, rootfs: &[String]) -> u32 {
    let index = |name: &String| name.strip_prefix(id)?.strip_prefix('-')?.parse().ok();
    let highest: Option<u32> = rootfs.iter().filter_map(index).max();
    highest
        .map_or(0, |highest| highest.saturating_add(1))
        .min(u32::try_from(CONTAINER_MOUNTS_MAX).unwrap_or(u32::MAX))
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
    let dir = containers.run_dir(container.id());
    makers::end(&containers.context, container.id().as_str(), &dir).await;
    if let Err(error) = containers.remove(container).await {
        log::warn!("container {}: half-made or removed, and not gone: {error}; retrying", container.id());
        remove_later(containers, container.id().clone());
    }
}

/// Tries again, as nobody else may know of it; the pause between two tries doubles.
fn remove_later(containers: &Rc<Containers>, id: ContainerId) {
    let (weak, clock) = (Rc::downgrade(containers), containers.context.clock.clone());
    let again = async move {
        let mut pause = REMOVAL_RETRY_MIN;
        loop {
            clock.sleep(pause).await;
            pause = (pause * 2).min(REMOVAL_RETRY_MAX);
            let Some(containers) = weak.upgrade() else { return };
            // Removed by who listed it.
            let Some(container) = containers.find(id.as_str()) else { return };
            match containers.remove(&container).await {
                Ok(()) => return log::info!("container {id}: removed now"),
                Err(error) => log::debug!("container {id}: {error}"),
            }
        }
    };
    drop(containers.context.to_the_end("half-made container", again));
}

/// The agent ended while it was started. What its monitor has begun goes on.
async fn starting(containers: &Rc<Containers>, container: &Rc<Container>) {
    let dir = containers.run_dir(container.id());
    makers::wait(&containers.context, &dir).await;
    let files = dir.clone();
    let look = move || {
        let (init, exit) = (monitor::init_of(&files), monitor::exit_of(&files));
        let init = init.ok().flatten().map(|init| init.age().unwrap_or_default());
        init.or_else(|| exit.ok().flatten().map(|_| Duration::ZERO))
    };
    // Its monitor has recorded its process: it was started, whatever became of it.
    if let Some(ago) = containers.context.blocking(look).await {
        containers.set_running(container, ago).await;
        return running(containers, container).await;
    }
    makers::end(&containers.context, container.id().as_str(), &dir).await;
    match containers.end(container).await {
        Ok(()) => {
            let end = (128, containers.context.now());
            containers.set_exited(container, end, "StartError", "the agent ended while it was started").await;
        }
        Err(error) => {
            log::warn!("{error}; it may have been started, and counts as running");
            containers.set_running(container, Duration::ZERO).await;
            running(containers, container).await;
        }
    }
}

async fn running(containers: &Rc<Containers>, container: &Rc<Container>) {
    containers.hold_outputs(container);
    // Watched first: an exit between the two would be missed.
    ends::watch(containers, None, container.id()).await;
    ends::look(containers, container).await;
    if container.phase() == ContainerPhase::Exited {
        containers.clean_up(container).await;
    }
}

/// Ids of containers, with their records; `None` for one without a readable record.
type Found = Vec<(String, Option<ContainerRecord>)>;

/// Reads the directories of containers, which are made if they are not there. Blocking.
fn found(dir: &Path, run_dir: &Path, oci: &Path) -> std::io::Result<Found> {
    let mut seen = SortedSet::new();
    let mut found = Found::new();
    for at in [dir, run_dir, oci] {
        make_dir(at)?;
        for entry in std::fs::read_dir(at)?.take(RUNTIME_ENTRIES_READ_MAX) {
            let Ok(id) = entry?.file_name().into_string() else { continue };
            if !is_id(&id) || !seen.insert(id.clone()) {
                continue;
            }
            let record = records::read(&dir.join(&id));
            let record = record.map_err(|error| std::io::Error::other(format!("{id}: {error}")))?;
            found.push((id, record));
        }
    }
    Ok(found)
}
