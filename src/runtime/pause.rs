//! The first process of a pod's PID namespace, for pods whose containers share one (`shareProcessNamespace`): a container of the OCI
//! runtime with a monitor, whose program is smolet's own mode `pause`. Without it a pod has no process of its own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use super::context::{Context, failed};
use super::force;
use super::monitors;
use super::oci_runtime::OciRuntime;
use super::sandbox::Sandbox;
use super::spec;
use super::users::{self, Users};
use crate::cri::RuntimeResult;
use crate::limits::{MONITOR_END_PERIOD, PAUSE_END_TIME};
use crate::monitor;
use crate::proto::runtime::v1 as cri;

/// Its bundle in the sandbox's directory.
pub(super) const PAUSE: &str = "pause";
/// The mode of the binary.
const MODE: &str = "pause";

/// Starts it.
///
/// # Errors
/// The OCI runtime's.
pub(super) async fn start(
    context: &Rc<Context>,
    sandbox: &Sandbox,
    config: &cri::PodSandboxConfig,
    run_dir: PathBuf,
) -> RuntimeResult<()> {
    let (id, handler) = (sandbox.id().as_str(), &*sandbox.handler());
    let runtime = OciRuntime::of(context, handler)?;
    let root = Users::of(config).map_err(failed)?.as_ref().map(Users::root);
    let arguments = monitor::Arguments {
        id: id.to_owned(),
        bundle: run_dir.join(PAUSE),
        runtime: runtime.path().to_owned(),
        runtime_arguments: runtime.global_arguments(),
        owner: root,
        ..monitor::Arguments::default()
    };
    let (id_, config, node) = (id.to_owned(), config.clone(), context.node_of(handler));
    let ours = context.settings.run_dir.parent().unwrap_or(&context.settings.run_dir).to_owned();
    let program = context.settings.program.clone();
    let labels = sandbox.selinux();
    let pause_dir = run_dir.join(PAUSE);
    let dir = pause_dir.clone();
    let prepare = move || {
        let rootfs = dir.join("rootfs");
        let failed_at = |error: std::io::Error| failed(format!("{}: {error}", dir.display()));
        std::fs::create_dir_all(&rootfs).map_err(failed_at)?;
        if let Some(root) = root {
            for dir in [&run_dir, &dir] {
                users::let_pass(dir, root).map_err(failed_at)?;
            }
            users::give(&rootfs, root).map_err(failed_at)?;
            users::let_reach(&rootfs, &ours, root).map_err(failed_at)?;
        }
        let json = spec::of_pause((&id_, &config), (&rootfs, &program), &run_dir, labels.as_ref(), &node)?;
        let beside = dir.join("config.json.new");
        crate::filesystem::replace_unsynced(&dir.join("config.json"), &beside, &json).map_err(failed_at)?;
        monitor::write_arguments(&dir, &arguments).map_err(|error| failed(error.to_string()))
    };
    context.blocking(prepare).await?;
    monitors::spawn(context, pause_dir).await.map(drop).map_err(|error| failed(error.to_string()))
}

/// Ends it, and everything in its PID namespace. Idempotent. Its monitor has ended too, and writes nothing any more.
///
/// # Errors
/// It may run on.
pub(super) async fn end(
    context: &Rc<Context>,
    id: &str,
    runtime: RuntimeResult<OciRuntime>,
    run_dir: &Path,
) -> RuntimeResult<()> {
    let dir = run_dir.join(PAUSE);
    let target = force::Target { id, runtime, dir: dir.clone(), cgroup: String::new() };
    Box::pin(force::end(context, target)).await?;
    let tries = PAUSE_END_TIME.as_millis() / MONITOR_END_PERIOD.as_millis();
    for _ in 0..tries {
        let dir = dir.clone();
        if !context.blocking(move || monitor::is_alive(&dir).unwrap_or_default()).await {
            return Ok(());
        }
        context.clock.sleep(MONITOR_END_PERIOD).await;
    }
    Err(failed(format!("the monitor of the first process of sandbox {id} has not ended; retry")))
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It runs, with its monitor.
    Runs,
    /// It runs, and its monitor was killed.
    Abandoned,
    /// It has ended, and with it every process of its namespace.
    Ended,
}

/// Blocking.
pub(super) fn seen(run_dir: &Path) -> Seen {
    let is_alive = monitor::is_alive(&run_dir.join(PAUSE)).unwrap_or_default();
    match (runs(run_dir), is_alive) {
        (true, true) => Seen::Runs,
        (true, false) => Seen::Abandoned,
        (false, _) => Seen::Ended,
    }
}

/// Its process ID; 0 when it does not run. Blocking.
pub(super) fn pid(run_dir: &std::path::Path) -> u32 {
    let init = monitor::init_of(&run_dir.join(PAUSE)).ok().flatten();
    init.filter(monitor::Init::is_there).map_or(0, |init| init.pid)
}

/// It still runs. Blocking.
pub(super) fn runs(run_dir: &Path) -> bool {
    let init = monitor::init_of(&run_dir.join(PAUSE)).ok().flatten();
    init.is_some_and(|init| !init.exits_within(Duration::ZERO))
}

/// `smolet pause`: reaps what containers of the pod leave, until it is killed. `None` when the command line is another one.
pub fn main() -> Option<ExitCode> {
    use async_signal::{Signal, Signals};
    use rustix::process::{WaitOptions, wait};
    use smol::stream::StreamExt as _;
    if std::env::args_os().nth(1)? != MODE || rustix::process::getpid().as_raw_nonzero().get() != 1 {
        return None;
    }
    let Ok(mut ended) = Signals::new([Signal::Child]) else { return Some(ExitCode::FAILURE) };
    smol::block_on(async {
        // Orphans of the namespace become children of its first process.
        while let Some(Ok(_)) = ended.next().await {
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        }
    });
    Some(ExitCode::SUCCESS)
}
