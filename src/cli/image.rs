//! `smolet image ls|pull|rm|import`: the images of this node's runtime, whichever it is. No agent is asked but for the embedded
//! runtime's own socket.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use super::{fail, print};
use crate::clock::{SharedClock, SystemClock};
use crate::config::paths;
use crate::cri::choice::{RuntimeChoice, choose_here};
use crate::cri::endpoint::{Candidates, Origin, find};
use crate::cri::{GrpcRuntime, Image, Runtime as _, RuntimeError};
use crate::executor::Executor;
use crate::image::name::for_runtime;
use crate::limits::IMAGES_SHOWN_MAX;
use crate::printers::style::Style;
use crate::printers::text::{Cell, columns, harmless};
use crate::proto::runtime::v1::PodSandboxConfig;

/// Digits of an image's id that are shown, as by crictl.
const ID_DIGITS: usize = 13;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The runtime's CRI socket, or embedded [default: the node's runtime]
    #[arg(long, value_name = "URI", global = true)]
    runtime_endpoint: Option<String>,
    /// The agent's state directory
    #[arg(long, value_name = "DIR", default_value = paths::ROOT_DIR, global = true)]
    root_dir: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the images
    Ls,
    /// Pull an image from its registry
    Pull {
        /// Its name
        image: String,
    },
    /// Remove images
    Rm {
        /// Their names or ids
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Give archives (docker save, OCI layout) to the agent, which imports them and keeps their images as long as it has them
    Import {
        /// Their files
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
}

pub(super) fn run(args: &Args) -> ExitCode {
    match &args.command {
        Command::Import { archives } => {
            for archive in archives {
                if let Err(why) = import(&args.root_dir.join("images"), archive) {
                    return fail(&format!("{}: {why}", archive.display()));
                }
            }
            ExitCode::SUCCESS
        }
        command => {
            let executor = Rc::new(Executor::new());
            let done = async_io::block_on(executor.run(call(args, command, &executor)));
            print(done)
        }
    }
}

/// Copies an archive to where the agent imports from; it appears there whole.
fn import(images: &Path, archive: &Path) -> Result<(), String> {
    let name = archive.file_name().and_then(|name| name.to_str()).ok_or("has no file name")?;
    let name = name.strip_suffix(".tar").unwrap_or(name);
    let (whole, part) = (images.join(format!("{name}.tar")), images.join(format!("{name}.tar.part")));
    let failed = |error: std::io::Error| format!("{}: {error}", images.display());
    fs::create_dir_all(images).map_err(failed)?;
    fs::copy(archive, &part).map_err(|error| error.to_string())?;
    fs::rename(&part, &whole).map_err(failed)
}

/// A call to the runtime; the text to print.
async fn call(args: &Args, command: &Command, executor: &Rc<Executor>) -> Result<String, String> {
    let clock: SharedClock = Rc::new(SystemClock);
    let candidates = match choose_here(args.runtime_endpoint.as_deref(), &args.root_dir)? {
        RuntimeChoice::Sockets(candidates) => candidates,
        RuntimeChoice::Embedded => {
            Candidates { origin: Origin::Flag, sockets: vec![paths::CRI_SOCKET.into()] }
        }
    };
    let found = find(&candidates, executor, &clock).await.map_err(|error| error.to_string())?;
    let runtime = found.runtime;
    let failed = |error: RuntimeError| error.to_string();
    match command {
        Command::Ls => list(&runtime).await.map_err(failed),
        Command::Pull { image } => {
            let name = for_runtime(image).map_err(|why| format!("{}: {why}", harmless(image)))?;
            let pulled = runtime.pull_image(&name, None, &PodSandboxConfig::default()).await;
            pulled.map(|reference| format!("{reference}\n")).map_err(failed)
        }
        Command::Rm { images } => {
            for image in images {
                runtime.remove_image(image).await.map_err(|error| format!("{}: {error}", harmless(image)))?;
            }
            Ok(String::new())
        }
        Command::Import { .. } => Ok(String::new()),
    }
}

/// A row for each name of each image, as `crictl images`.
async fn list(runtime: &GrpcRuntime) -> Result<String, RuntimeError> {
    let mut images: Vec<Image> = Vec::new();
    let mut left_out = 0_usize;
    let mut each = |image| if images.len() < IMAGES_SHOWN_MAX { images.push(image) } else { left_out += 1 };
    runtime.list_images(&mut each).await?;
    let mut rows: Vec<[String; 3]> = Vec::new();
    for image in &images {
        let id: String = image.id.trim_start_matches("sha256:").chars().take(ID_DIGITS).collect();
        let size = format!("{}MB", image.size_bytes.div_ceil(1_000_000));
        let digest = image.repo_digests.iter().take(1);
        let names = if image.repo_tags.is_empty() { digest } else { image.repo_tags.iter().take(usize::MAX) };
        let before = rows.len();
        rows.extend(names.map(|name| [name.to_string(), id.clone(), size.clone()]));
        if rows.len() == before {
            rows.push(["<none>".to_owned(), id, size]);
        }
    }
    rows.sort();
    rows.insert(0, ["IMAGE", "ID", "SIZE"].map(str::to_owned));
    let cells: Vec<Vec<Cell>> = rows.into_iter().map(|row| row.map(Cell::from).into()).collect();
    let mut text = columns(&cells, 0, Style::PLAIN);
    if left_out > 0 {
        let _ = writeln!(text, "({left_out} more)");
    }
    Ok(text)
}
