//! Ends of containers and of pods' first processes: seen by inotify, read from their monitors' files. Monitors that were killed are
//! replaced.
//!
//! | monitor | `exit` | first process | what follows |
//! |---|---|---|---|
//! | any | there | any | the container has exited |
//! | lives | none | any | it runs |
//! | killed | none | there | a new monitor; where there cannot be one the container runs on, and it is tried again |
//! | killed | none | gone | a new monitor records the end; where there cannot be one the exit code is unknown |

use std::io;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use super::container::{Container, Containers};
use super::pause::PAUSE;
use super::records::ContainerPhase;
use super::sandboxes::Sandboxes;
use super::watch::Change;
use crate::limits::{
    ADOPT_RETRY_MAX, ADOPT_RETRY_MIN, CLEAN_UP_PAUSE, LOCK_RELEASE_TIME, WATCH_RETRY_PERIOD,
};
use crate::model::ContainerId;
use crate::monitor::{self, EXIT_CODE_UNKNOWN, MonitorError};

/// Follows them.
pub(super) async fn follow(containers: Rc<Containers>, sandboxes: Rc<Sandboxes>) {
    loop {
        match containers.watch().next().await {
            Ok(changes) => {
                for change in changes {
                    match change {
                        Change::Look(id) => look_at(&containers, Some(&sandboxes), &id),
                        Change::LookEverywhere => look_everywhere(&containers, &sandboxes),
                    }
                }
            }
            Err(error) => {
                let seconds = WATCH_RETRY_PERIOD.as_secs();
                log::error!(
                    "inotify of containers: {error}; looking at all of them every {seconds} s until it works again"
                );
                let lost = loop {
                    match containers.watch().renew().await {
                        Ok(lost) => break lost,
                        Err(error) => log::debug!("inotify of containers: {error}"),
                    }
                    look_everywhere(&containers, &sandboxes);
                    containers.context.clock.sleep(WATCH_RETRY_PERIOD).await;
                };
                for (id, error) in lost {
                    watch_later(&containers, Some(&sandboxes), &id, &error);
                }
                // What happened meanwhile was told to nobody.
                look_everywhere(&containers, &sandboxes);
                containers.context.clock.sleep(WATCH_RETRY_PERIOD).await;
            }
        }
    }
}

/// Looks at a container, or at the first process of a sandbox.
fn look_at(containers: &Rc<Containers>, sandboxes: Option<&Rc<Sandboxes>>, id: &ContainerId) {
    match (containers.find(id.as_str()), sandboxes) {
        (Some(container), _) => look_soon(containers, &container),
        (None, Some(sandboxes)) => sandboxes.look_soon(id.as_str()),
        (None, None) => {}
    }
}

fn look_everywhere(containers: &Rc<Containers>, sandboxes: &Rc<Sandboxes>) {
    for container in containers.all() {
        look_soon(containers, &container);
    }
    sandboxes.look_at_all_soon();
}

/// Looks at a container in a task of its own: a slow one does not keep the others' ends from being seen. At most one look waits for
/// another one of the same container. What the OCI runtime has of one that has ended goes after what is started in its place.
fn look_soon(containers: &Rc<Containers>, container: &Rc<Container>) {
    if container.phase() != ContainerPhase::Running || container.expect_look() {
        return;
    }
    let (containers, container) = (containers.clone(), container.clone());
    let context = containers.context.clone();
    let clock = context.clock.clone();
    let work = async move {
        look(&containers, &container).await;
        if container.phase() == ContainerPhase::Running {
            // The kernel tells that a killed monitor's lock is closed before it lets go of it.
            clock.sleep(LOCK_RELEASE_TIME).await;
            look(&containers, &container).await;
        }
        if container.phase() == ContainerPhase::Exited && container.ends_by_itself() {
            clock.sleep(CLEAN_UP_PAUSE).await;
        }
        containers.clean_up(&container).await;
    };
    drop(context.to_the_end("end of a container", work));
}

/// Watches for the end of a container, or of the first process of a sandbox that has one.
pub(super) async fn watch(containers: &Rc<Containers>, sandboxes: Option<&Rc<Sandboxes>>, id: &ContainerId) {
    let Some((_, dir)) = awaited(containers, sandboxes, id) else { return };
    if let Err(error) = containers.watch().add(id, dir).await {
        watch_later(containers, sandboxes, id, &error);
    }
}

/// Where the end of that container, or of the first process of that sandbox, is seen, and whose it is; `None` when it has ended.
fn awaited(
    containers: &Containers,
    sandboxes: Option<&Rc<Sandboxes>>,
    id: &ContainerId,
) -> Option<(&'static str, PathBuf)> {
    if let Some(container) = containers.find(id.as_str()) {
        let is_awaited = matches!(container.phase(), ContainerPhase::Starting | ContainerPhase::Running);
        return is_awaited.then(|| ("container", containers.run_dir(id)));
    }
    let sandboxes = sandboxes?;
    let sandbox = sandboxes.find(id.as_str())?;
    let is_awaited = sandbox.shares_pids() && !sandbox.is_stopped();
    is_awaited.then(|| ("first process of sandbox", sandboxes.run_dir(sandbox.id()).join(PAUSE)))
}

/// For a directory that cannot be watched, as root has no watch left: it is looked at now and then, until it can be.
pub(super) fn watch_later(
    containers: &Rc<Containers>,
    sandboxes: Option<&Rc<Sandboxes>>,
    id: &ContainerId,
    why: &io::Error,
) {
    let Some((what, _)) = awaited(containers, sandboxes, id) else { return };
    log::warn!(
        "{what} {id}: inotify: {why}; it is looked at every {} s until it can be watched (fs.inotify.max_user_watches)",
        WATCH_RETRY_PERIOD.as_secs()
    );
    let (weak, sandboxes, id) = (Rc::downgrade(containers), sandboxes.cloned(), id.clone());
    let clock = containers.context.clock.clone();
    let look = async move {
        loop {
            clock.sleep(WATCH_RETRY_PERIOD).await;
            let Some(containers) = Weak::upgrade(&weak) else { return };
            let Some((_, dir)) = awaited(&containers, sandboxes.as_ref(), &id) else { return };
            // Watched first: an end between the two would be missed.
            let is_watched = containers.watch().add(&id, dir).await.is_ok();
            look_at(&containers, sandboxes.as_ref(), &id);
            if is_watched {
                return;
            }
        }
    };
    drop(containers.context.to_the_end("end that is not watched", look));
}

/// What the files of a container's monitor say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Exited(monitor::Exit),
    /// Its monitor lives.
    Watched,
    /// Its monitor was killed.
    Abandoned {
        /// Its first process has not exited.
        runs: bool,
    },
}

/// Blocking.
fn seen(dir: &Path) -> Result<Seen, MonitorError> {
    // In this order: a monitor records the exit before it lets go of its lock.
    let is_alive = monitor::is_alive(dir)?;
    if let Some(exit) = monitor::exit_of(dir)? {
        return Ok(Seen::Exited(exit));
    }
    if is_alive {
        return Ok(Seen::Watched);
    }
    let init = monitor::init_of(dir)?;
    Ok(Seen::Abandoned { runs: init.is_some_and(|init| !init.exits_within(Duration::ZERO)) })
}

/// Reads the exit of a running container, if there is one. A container whose monitor was killed gets a new one.
pub(super) async fn look(containers: &Rc<Containers>, container: &Rc<Container>) {
    let _looking = container.begin_look().await;
    if container.phase() != ContainerPhase::Running {
        return;
    }
    match see(containers, container).await {
        Ok(Seen::Exited(exit)) => take_exit(containers, container, exit).await,
        Ok(Seen::Watched) => container.adoption().reset(),
        // Each try is an event for the next one.
        Ok(Seen::Abandoned { runs: true }) if container.adoption().is_awaited() => {}
        Ok(Seen::Abandoned { runs: false }) if container.adoption().is_awaited() => {
            Box::pin(end_unseen(containers, container, "its monitor was killed")).await;
        }
        Ok(Seen::Abandoned { .. }) => Box::pin(adopt(containers, container)).await,
        Err(error) => {
            log::warn!("container {}: {error}; looking again", container.id());
            retry(containers, container);
        }
    }
}

async fn see(containers: &Rc<Containers>, container: &Container) -> Result<Seen, MonitorError> {
    let dir = containers.run_dir(container.id());
    containers.context.blocking(move || seen(&dir)).await
}

async fn take_exit(containers: &Rc<Containers>, container: &Rc<Container>, exit: monitor::Exit) {
    let reason = match (exit.oom_killed, exit.code) {
        (true, _) => "OOMKilled",
        (false, 0) => "Completed",
        (false, _) => "Error",
    };
    containers.set_exited(container, (exit.code, exit.finished_at), reason, "").await;
}

/// A new monitor for a container whose monitor was killed. A container that runs goes on also where there cannot be one now.
async fn adopt(containers: &Rc<Containers>, container: &Rc<Container>) {
    let id = container.id();
    let adopted = containers.context.adopt(containers.run_dir(id)).await;
    let why = match &adopted {
        Ok(_) => "its new monitor was killed too".to_owned(),
        Err(error) => format!("its monitor was killed: {error}"),
    };
    match see(containers, container).await {
        Ok(Seen::Exited(exit)) => take_exit(containers, container, exit).await,
        Ok(Seen::Watched) => log::warn!("container {id}: its monitor was killed; it has a new one"),
        Ok(Seen::Abandoned { runs: false }) => Box::pin(end_unseen(containers, container, &why)).await,
        Ok(Seen::Abandoned { runs: true }) => {
            log::warn!("container {id}: {why}; it runs on without a log, and gets a monitor later");
            retry(containers, container);
        }
        Err(error) => {
            log::warn!("container {id}: {error}; looking again");
            retry(containers, container);
        }
    }
}

/// Its first process has exited, or was never there, and no monitor can record it.
async fn end_unseen(containers: &Rc<Containers>, container: &Rc<Container>, why: &str) {
    match containers.end(container).await {
        Ok(()) => {
            log::warn!("container {}: {why}; its exit code is unknown", container.id());
            let end = (EXIT_CODE_UNKNOWN, containers.context.now());
            containers.set_exited(container, end, "Unknown", why).await;
        }
        Err(error) => {
            log::warn!("{error}; looking again");
            retry(containers, container);
        }
    }
}

/// Looks again later; the pause doubles.
pub(super) fn retry(containers: &Rc<Containers>, container: &Rc<Container>) {
    let Some(pause) = container.adoption().await_next() else { return };
    let (weak, container, clock) =
        (Rc::downgrade(containers), container.clone(), containers.context.clock.clone());
    let again = async move {
        clock.sleep(pause).await;
        container.adoption().set_due();
        if let Some(containers) = Weak::upgrade(&weak) {
            look_soon(&containers, &container);
        }
    };
    drop(containers.context.to_the_end("monitor of a container", again));
}

/// The pause before a try that follows so many failed ones. PURE.
pub(super) fn pause_after(failures: u32) -> Duration {
    ADOPT_RETRY_MIN.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(ADOPT_RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_counts_whether_or_not_its_monitor_lives() {
        let dir = std::env::temp_dir().join(format!("smolet-ends-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(seen(&dir).unwrap(), Seen::Abandoned { runs: false });
        let lock = std::fs::File::create(dir.join(monitor::names::LOCK)).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert_eq!(seen(&dir).unwrap(), Seen::Watched);
        let exit = monitor::Exit { code: 3, finished_at: 7, oom_killed: false };
        std::fs::write(dir.join(monitor::names::EXIT), serde_json::to_vec(&exit).unwrap()).unwrap();
        assert_eq!(seen(&dir).unwrap(), Seen::Exited(exit));
        drop(lock);
        assert_eq!(seen(&dir).unwrap(), Seen::Exited(exit));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_pause_doubles_up_to_its_limit() {
        let pauses: Vec<u64> = [0, 1, 2, 3, 5, 6, 40, u32::MAX].map(|n| pause_after(n).as_secs()).into();
        assert_eq!(pauses, [1, 2, 4, 8, 32, 60, 60, 60]);
    }
}
