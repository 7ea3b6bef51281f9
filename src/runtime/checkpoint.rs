//! `CheckpointContainer` (KEP-2008): the state of a container in an archive, while it runs on. I/O. The OCI runtime and CRIU make the images
//! of its processes, GNU `tar` the archive, whose files have the names of containerd's and CRI-O's: `checkpointctl` shows it.
//!
//! ```text
//!     checkpoint/         CRIU's images of the processes
//!     config.dump         the container's id, name, image and times
//!     spec.dump           its runtime-spec
//!     status.dump         its status in the CRI
//!     rootfs-diff.tar     what it has written, if its root file system is an overlay; with overlayfs' whiteouts
//!     container.log       its log
//!     dump.log stats-dump CRIU's own
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use super::container::{Container, Containers};
use super::context::{failed, full, invalid, make_dir, not_now};
use super::process::{self, Program};
use super::records::{ContainerPhase, ContainerRecord};
use super::settings::{Settings, find_program};
use super::status;
use crate::cri::{RuntimeError, RuntimeResult};
use crate::filesystem::{Filesystem, read_start};
use crate::limits::{
    CHECKPOINT_DISK_FREE_MIN, CHECKPOINT_SWEEP_PERIOD, CHECKPOINT_SWEEPS, CHECKPOINT_TIME,
    CRIU_LOG_BYTES_MAX, KIB, PROGRAM_ERROR_BYTES_MAX, SHOWN_SPEC_BYTES_MAX,
};
use crate::model::Wall;
use crate::monitor;
use crate::oci::runtime_spec::Map;
use crate::proto::runtime::v1 as cri;
use crate::text::start_of;
use crate::tree;

const IMAGES: &str = "checkpoint";
/// The OCI runtime gives CRIU the settings of this file.
const ANNOTATION: &str = "org.criu.config";
/// CRIU's settings for a container, in its bundle.
const CONFIG: &str = "criu.conf";
/// A copy of the archive on another file system, until it is whole; the next one in that directory replaces it.
const COPY: &str = ".smolet-checkpoint.tar";
/// What CRIU leaves in its work directory.
const OF_CRIU: [&str; 2] = ["dump.log", "stats-dump"];

/// What a checkpoint is made of.
pub(super) struct Asked {
    pub(super) request: cri::CheckpointContainerRequest,
    /// What the container takes now.
    pub(super) stats: cri::ContainerStats,
    /// The directory of its pod's logs.
    pub(super) logs: String,
}

/// Annotations of the runtime-spec of a container with that bundle, by which the OCI runtime gives CRIU its settings.
pub(super) fn annotations(bundle: &Path) -> Map {
    Map::from([(ANNOTATION.to_owned(), bundle.join(CONFIG).display().to_string())])
}

/// The directory in which one is made.
fn dir(settings: &Settings) -> PathBuf {
    settings.root_dir.join(IMAGES)
}

/// The archive until it is whole.
fn archive(settings: &Settings) -> PathBuf {
    settings.root_dir.join("checkpoint.tar")
}

/// Removes what an agent that was killed has left, and says whether there was something. A CRIU that outlived it cannot go on then, and
/// undoes what it did. Blocking.
pub(super) fn sweep(settings: &Settings) -> bool {
    let mut found = false;
    for path in [dir(settings), archive(settings)] {
        found |= path.symlink_metadata().is_ok();
        if let Err(error) = remove(&path) {
            log::warn!(
                "checkpoint: {} cannot be removed: {error}; the next checkpoint or start tries again",
                path.display()
            );
        }
    }
    found
}

/// Where an agent was killed, its programs may have outlived it: runc makes its directory, and `tar` its archive, after that agent's end and
/// this one's beginning. Removes them too, for a while.
pub(super) fn sweep_later(containers: &Rc<Containers>) -> smol::Task<()> {
    let of_task = containers.clone();
    let sweep_again = async move {
        let context = &of_task.context;
        for _ in 0..CHECKPOINT_SWEEPS {
            context.clock.sleep(CHECKPOINT_SWEEP_PERIOD).await;
            let _turn = of_task.turn_of_checkpoint().await;
            let settings = context.settings.clone();
            context.blocking(move || sweep(&settings)).await;
        }
    };
    containers.context.task("rest of a checkpoint", sweep_again)
}

fn remove(path: &Path) -> io::Result<()> {
    match tree::remove(path, || true) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes one, to the end: CRIU alone undoes what it does to the container and to its network. One is made at a time: it is the caller's
/// turn.
///
/// # Errors
/// It does not run; a program is missing; the disk has too little space; the programs'.
pub(super) async fn make(
    containers: &Containers,
    container: &Rc<Container>,
    asked: Asked,
) -> RuntimeResult<()> {
    let named = format!("checkpoint of container {}", container.id());
    let location = PathBuf::from(&asked.request.location);
    if !location.is_absolute() || location.file_name().is_none() {
        return Err(invalid(format!(
            "{named}: location {:?} is no absolute path of a file",
            asked.request.location
        )));
    }
    if container.phase() != ContainerPhase::Running {
        return Err(not_now(format!("{named}: only a container that runs has one")));
    }
    let made = Box::pin(write(containers, container, &asked, location)).await;
    let settings = containers.context.settings.clone();
    containers.context.blocking(move || sweep(&settings)).await;
    made.map_err(|error| with_name(error, &named))
}

/// How long a client waits for one.
///
/// # Errors
/// It asks for less than nothing.
pub(super) fn time_of(request: &cri::CheckpointContainerRequest) -> RuntimeResult<Duration> {
    match request.timeout {
        ..0 => Err(invalid(format!(
            "checkpoint of container {}: timeout {} is negative; give seconds, or 0",
            request.container_id, request.timeout
        ))),
        0 => Ok(CHECKPOINT_TIME),
        seconds => Ok(Duration::from_secs(seconds.unsigned_abs()).min(CHECKPOINT_TIME)),
    }
}

fn with_name(error: RuntimeError, named: &str) -> RuntimeError {
    match error {
        RuntimeError::Failed { code, message } => {
            RuntimeError::Failed { code, message: format!("{named}: {message}") }
        }
        other => failed(format!("{named}: {other}")),
    }
}

/// The OCI runtime looks for it in `PATH`.
fn has_criu() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("criu").is_file())
}

async fn write(
    containers: &Containers,
    container: &Rc<Container>,
    asked: &Asked,
    location: PathBuf,
) -> RuntimeResult<()> {
    let context = &containers.context;
    let (dir, target, archive) = (dir(&context.settings), location.clone(), archive(&context.settings));
    let bytes = needed(&asked.stats);
    let (made, bundle) = (dir.clone(), containers.run_dir(container.id()));
    let prepare = move || {
        if !has_criu() {
            return Err(failed("CRIU is not installed; apt install criu"));
        }
        let spec = read_start(&bundle.join("config.json"), SHOWN_SPEC_BYTES_MAX).unwrap_or_default();
        if !String::from_utf8_lossy(&spec).contains(ANNOTATION) {
            return Err(not_now("it was made by an older smolet; create it anew"));
        }
        let tar = find_program("tar").ok_or_else(|| failed("tar is not installed; apt install tar"))?;
        remove(&made).and_then(|()| make_dir(&made.join(IMAGES))).map_err(|error| at(&made, &error))?;
        let above = target.parent().unwrap_or(&target);
        for disk in [&*made, above] {
            let free = Filesystem::of(disk).map_err(|error| at(disk, &error))?.bytes_free;
            if free < bytes.saturating_add(CHECKPOINT_DISK_FREE_MIN) {
                return Err(full(format!(
                    "{} has {free} bytes left, and the checkpoint may take {bytes}; free some space",
                    disk.display()
                )));
            }
        }
        let settings = external_files(&bundle).and_then(|text| std::fs::write(bundle.join(CONFIG), text));
        settings.map_err(|error| at(&bundle, &error))?;
        Ok(tar)
    };
    let tar = context.blocking(prepare).await?;
    let id = container.id().as_str();
    if let Err(error) = containers.oci_runtime(container)?.checkpoint(id, &dir.join(IMAGES), &dir).await {
        let said = context.blocking(move || said_by_criu(&dir)).await;
        return Err(failed(format!("{error}{said}")));
    }
    if let Some(written) = containers.images.written_dir(id) {
        let changes = dir.join("rootfs-diff.tar");
        run_tar(containers, &tar, &["--sparse", "--xattrs", "--xattrs-include=*"], &changes, &written)
            .await?;
    }
    let (bundle, into, made) = (containers.run_dir(container.id()), dir.clone(), archive.clone());
    let status = status::status(id, &container.record.borrow(), &asked.logs);
    let record = container.record.borrow().clone();
    let now = Wall(context.now());
    let runtime = record.oci_runtime.clone();
    let describe = move || describe(&into, &bundle, &(status, record), (&runtime, now), &made);
    context.blocking(describe).await.map_err(|error| at(&dir, &error))?;
    run_tar(containers, &tar, &["--sparse"], &archive, &dir).await?;
    let published =
        context.blocking(move || publish(&archive, &location).map_err(|error| at(&location, &error)));
    published.await
}

/// Moves the archive to where it was asked for. What is there is replaced, and no link is followed.
fn publish(archive: &Path, location: &Path) -> io::Result<()> {
    match std::fs::rename(archive, location) {
        // On another file system.
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {}
        renamed => return renamed,
    }
    // That of an agent that was killed.
    let copy = location.with_file_name(COPY);
    remove(&copy)?;
    let copied = create(&copy)
        .and_then(|mut to| io::copy(&mut File::open(archive)?, &mut to))
        .and_then(|_| std::fs::rename(&copy, location));
    if copied.is_err() {
        let _ = std::fs::remove_file(&copy);
    }
    copied
}

/// A new file that nobody else may read: it has the container's memory.
fn create(path: &Path) -> io::Result<File> {
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// CRIU's settings: what of the container's standard streams is the monitor's is not in the container's file systems.
fn external_files(bundle: &Path) -> io::Result<String> {
    let init = monitor::init_of(bundle).map_err(io::Error::other)?;
    let init = init.filter(monitor::Init::is_there).ok_or_else(|| io::Error::other("it has ended"))?;
    let mut lines = Vec::new();
    for stream in 0..3 {
        let of = |what: &str| PathBuf::from(format!("/proc/{}/{what}/{stream}", init.pid));
        // A stream that was closed, or is the container's own.
        let Ok(path) = std::fs::read_link(of("fd")) else { continue };
        if !path.starts_with(bundle) {
            continue;
        }
        let info = String::from_utf8_lossy(&read_start(&of("fdinfo"), KIB)?).into_owned();
        let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u32>().ok());
        let line = format!(
            "external file[{:x}:{:x}]\n",
            mount.unwrap_or_default(),
            std::fs::metadata(of("fd"))?.ino()
        );
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    Ok(lines.concat())
}

/// The root cause in CRIU's log, which goes with the directory.
fn said_by_criu(dir: &Path) -> String {
    let read = |dir: &Path| read_start(&dir.join(OF_CRIU[0]), CRIU_LOG_BYTES_MAX).ok();
    let log = read(dir).or_else(|| read(&dir.join(IMAGES))).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    // Not being allowed to open more files is none.
    let errors = log.lines().filter_map(|line| line.split_once("Error ").map(|(_, error)| error.trim()));
    let mut errors = errors.filter(|error| !error.contains("RLIMIT_NOFILE"));
    let error = errors.next();
    error.map(|error| format!(": CRIU: {}", start_of(error, PROGRAM_ERROR_BYTES_MAX))).unwrap_or_default()
}

/// Twice what the processes and their files take: the images, and the archive of them.
fn needed(stats: &cri::ContainerStats) -> u64 {
    let value = |value: Option<&cri::UInt64Value>| value.map(|of| of.value).unwrap_or_default();
    let memory = stats.memory.as_ref().map(|memory| value(memory.usage_bytes.as_ref())).unwrap_or_default();
    let files = stats.writable_layer.as_ref().map(|of| value(of.used_bytes.as_ref())).unwrap_or_default();
    memory.saturating_add(files).saturating_mul(2)
}

fn at(path: &Path, error: &io::Error) -> RuntimeError {
    failed(format!("{}: {error}", path.display()))
}

/// Writes the files beside CRIU's, and the empty archive.
fn describe(
    dir: &Path,
    bundle: &Path,
    (status, record): &(cri::ContainerStatus, ContainerRecord),
    (runtime, now): (&str, Wall),
    archive: &Path,
) -> io::Result<()> {
    std::fs::copy(bundle.join("config.json"), dir.join("spec.dump"))?;
    std::fs::write(dir.join("config.dump"), config_of(status, runtime, record.created_at, now).to_string())?;
    std::fs::write(dir.join("status.dump"), status_of(status).to_string())?;
    // A container may have no log, and a log that is being rotated may not be there.
    if !status.log_path.is_empty() {
        let _ = std::fs::copy(&status.log_path, dir.join("container.log"));
    }
    for name in OF_CRIU {
        // runc leaves them in its work directory, crun in that of the images.
        if !dir.join(name).exists() {
            let _ = std::fs::rename(dir.join(IMAGES).join(name), dir.join(name));
        }
    }
    create(archive).map(drop)
}

/// `ContainerConfig` of checkpointctl's metadata.
fn config_of(status: &cri::ContainerStatus, runtime: &str, created_at: i64, now: Wall) -> Value {
    let name = status.metadata.as_ref().map(|metadata| &*metadata.name).unwrap_or_default();
    let image = status.image.as_ref().map(|image| &*image.image).unwrap_or_default();
    object(vec![
        ("id", (&*status.id).into()),
        ("name", name.into()),
        ("rootfsImage", image.into()),
        ("rootfsImageRef", (&*status.image_ref).into()),
        ("rootfsImageName", image.into()),
        ("runtime", runtime.into()),
        ("createdTime", Wall(created_at).to_string().into()),
        ("checkpointedTime", now.to_string().into()),
        ("restoredTime", "0001-01-01T00:00:00Z".into()),
        ("restored", false.into()),
    ])
}

fn object(entries: Vec<(&str, Value)>) -> Value {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn texts(map: &BTreeMap<String, String>) -> Value {
    map.iter().map(|(name, value)| (name.clone(), Value::from(&**value))).collect()
}

/// The CRI's `ContainerStatus`, in the words of its JSON.
fn status_of(status: &cri::ContainerStatus) -> Value {
    let (name, attempt) = status.metadata.as_ref().map_or(("", 0), |of| (&of.name, of.attempt));
    let image = status.image.as_ref().map(|image| &*image.image).unwrap_or_default();
    object(vec![
        ("id", (&*status.id).into()),
        ("metadata", object(vec![("name", name.into()), ("attempt", attempt.into())])),
        ("state", status.state.into()),
        ("created_at", status.created_at.into()),
        ("started_at", status.started_at.into()),
        ("image", object(vec![("image", image.into())])),
        ("image_ref", (&*status.image_ref).into()),
        ("labels", texts(&status.labels)),
        ("annotations", texts(&status.annotations)),
        ("log_path", (&*status.log_path).into()),
    ])
}

/// Puts everything in a directory into an archive.
async fn run_tar(
    containers: &Containers,
    tar: &Path,
    options: &[&str],
    archive: &Path,
    dir: &Path,
) -> RuntimeResult<()> {
    let mut arguments: Vec<OsString> = vec!["--create".into(), "--file".into(), archive.into()];
    arguments.extend(options.iter().map(OsString::from));
    arguments.extend(["--directory".into(), dir.into(), ".".into()]);
    let program = Program {
        path: tar.to_owned(),
        arguments,
        environment: Vec::new(),
        stdin: Vec::new(),
        stdout_bytes_max: KIB,
        stderr_bytes_max: PROGRAM_ERROR_BYTES_MAX,
        // It ends with what it reads.
        time: None,
        command: None,
        owner: None,
        outlives: false,
        room: None,
    };
    let context = &containers.context;
    let ran = process::run(&context.blocking, &context.clock, program).await;
    let output = ran.map_err(|error| failed(error.to_string()))?;
    match output.status.code() {
        // 1: a file changed while it was read, as the container runs.
        Some(0 | 1) => Ok(()),
        _ => Err(failed(format!("tar: {}", output.last_error()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_needs_room_for_the_images_and_the_archive() {
        let value = |value| Some(cri::UInt64Value { value });
        let stats = cri::ContainerStats {
            memory: Some(cri::MemoryUsage { usage_bytes: value(300), ..Default::default() }),
            writable_layer: Some(cri::FilesystemUsage { used_bytes: value(20), ..Default::default() }),
            ..Default::default()
        };
        assert_eq!((needed(&stats), needed(&cri::ContainerStats::default())), (640, 0));
    }

    #[test]
    fn the_first_error_of_criu_is_told() {
        let dir = std::env::temp_dir().join(format!("smolet-criu-{}", std::process::id()));
        std::fs::create_dir_all(dir.join(IMAGES)).unwrap();
        assert_eq!(said_by_criu(&dir), "");
        let log = "(0.01) Error (criu/util.c:1): rlimit: Can't setup RLIMIT_NOFILE for self\n(0.02) Warn  x\n\
                   (0.03) Error (criu/files.c:2): Can't dump it\n(0.04) Error (criu/cr-dump.c:3): Dumping FAILED.\n";
        std::fs::write(dir.join(IMAGES).join("dump.log"), log).unwrap();
        assert_eq!(said_by_criu(&dir), ": CRIU: (criu/files.c:2): Can't dump it");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
