//! The first process of a pod's PID namespace, for pods whose containers share one (`shareProcessNamespace`): a container of the OCI
//! runtime with a monitor, whose program is smolet's own mode `pause`. Without it a pod has no process of its own.

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use super::context::{Context, failed};
use super::monitors;
use super::oci_runtime::OciRuntime;
use super::spec;
use super::users::{self, Users};
use crate::cri::RuntimeResult;
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
    (id, handler): (&str, &str),
    config: &cri::PodSandboxConfig,
    run_dir: PathBuf,
) -> RuntimeResult<()> {
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
    let (program, of) = (context.settings.program.clone(), run_dir.join(PAUSE));
    let ours = context.settings.run_dir.parent().unwrap_or(&context.settings.run_dir).to_owned();
    let write = move || {
        let dir = run_dir.join(PAUSE);
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
        let json = spec::of_pause((&id_, &config), (&rootfs, &program), &run_dir, &node)?;
        let beside = dir.join("config.json.new");
        crate::filesystem::replace_unsynced(&dir.join("config.json"), &beside, &json).map_err(failed_at)?;
        monitor::write_arguments(&dir, &arguments).map_err(|error| failed(error.to_string()))
    };
    context.blocking(write).await?;
    monitors::spawn(context, of).await.map(drop).map_err(|error| failed(error.to_string()))
}

/// Ends it, and everything in its PID namespace. Idempotent.
///
/// # Errors
/// The OCI runtime's.
pub(super) async fn end(context: &Rc<Context>, (id, handler): (&str, &str)) -> RuntimeResult<()> {
    match OciRuntime::of(context, handler) {
        Ok(runtime) => runtime.delete(id).await,
        // A handler that is not configured any more leaves nothing of this boot.
        Err(_) => Ok(()),
    }
}

/// Its process ID; 0 when it does not run. Blocking.
pub(super) fn pid(run_dir: &std::path::Path) -> u32 {
    let init = monitor::init_of(&run_dir.join(PAUSE)).ok().flatten();
    init.filter(monitor::Init::is_there).map_or(0, |init| init.pid)
}

/// It still runs. Blocking.
pub(super) fn runs(run_dir: &std::path::Path) -> bool {
    pid(run_dir) != 0
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
