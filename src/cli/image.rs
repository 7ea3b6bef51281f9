//! `smolet image ls|pull|rm|import`: the images of this node's runtime, whichever it is. No agent is asked but for the embedded
//! runtime's own socket.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use super::archives::import_all;
use super::{client, fail, print, say};
use crate::clock::{SharedClock, SystemClock};
use crate::config::paths;
use crate::cri::choice::{RuntimeChoice, choose_here};
use crate::cri::endpoint::{Candidates, Origin, find};
use crate::cri::{GrpcRuntime, Image, Runtime as _, RuntimeError};
use crate::executor::Executor;
use crate::image::credentials::{self, NODE_LOGINS};
use crate::image::name::{ImageName, for_runtime};
use crate::limits::{IMAGES_SHOWN_MAX, PULL_LOGINS_MAX};
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
    /// The agent's state directory [default: that of the agent that runs, else /var/lib/smolet]
    #[arg(long, value_name = "DIR", global = true)]
    root_dir: Option<PathBuf>,
    /// The agent's local socket
    #[arg(long, value_name = "PATH", default_value = paths::SOCKET, global = true)]
    socket: PathBuf,
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
        /// Their files; - is standard input
        #[arg(required = true)]
        archives: Vec<PathBuf>,
        /// Where the agent imports from, its --images-dir [default: that of the agent that runs, else images in the state directory]
        #[arg(long, value_name = "DIR")]
        images_dir: Option<PathBuf>,
    },
}

pub(super) fn run(args: &Args) -> ExitCode {
    let of_agent = if args.root_dir.is_some() { None } else { client::directories(&args.socket) };
    let root_dir = args.root_dir.clone().or_else(|| Some(of_agent.as_ref()?.root.clone()));
    let root_dir = root_dir.unwrap_or_else(|| paths::ROOT_DIR.into());
    match &args.command {
        Command::Import { archives, images_dir } => {
            let images = images_dir.clone().or(of_agent.map(|of| of.images));
            match import_all(&images.unwrap_or_else(|| root_dir.join("images")), archives) {
                Ok(()) => ExitCode::SUCCESS,
                Err(why) => fail(&why),
            }
        }
        command => {
            let executor = Rc::new(Executor::new());
            let done = async_io::block_on(executor.run(call(args, &root_dir, command, &executor)));
            print(done)
        }
    }
}

/// With the credentials of the node's own file, one after the other, as the agent pulls for a pod without a pull secret.
async fn pull(runtime: &GrpcRuntime, root_dir: &Path, image: &str) -> Result<String, String> {
    let named = |why: String| format!("{}: {why}", harmless(image));
    let name = for_runtime(image).map_err(named)?;
    let repository = ImageName::parse(image).map_err(named)?.repository;
    let of_node = credentials::of_node(&root_dir.join(NODE_LOGINS));
    if let Some(complaint) = &of_node.complaint {
        say(complaint);
    }
    let sandbox = PodSandboxConfig::default();
    let logins: Vec<_> = of_node.keyring.lookup(&repository).into_iter().take(PULL_LOGINS_MAX).collect();
    let mut failed = None;
    for login in &logins {
        let auth = login.auth();
        match runtime.pull_image(&name, Some(&auth), &sandbox).await {
            Ok(reference) => return Ok(format!("{reference}\n")),
            Err(error) => failed = Some(credentials::without_login(error.to_string(), &auth)),
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let pulled = runtime.pull_image(&name, None, &sandbox).await;
    pulled.map(|reference| format!("{reference}\n")).map_err(|error| error.to_string())
}

/// A call to the runtime; the text to print.
async fn call(
    args: &Args,
    root_dir: &Path,
    command: &Command,
    executor: &Rc<Executor>,
) -> Result<String, String> {
    let clock: SharedClock = Rc::new(SystemClock);
    let candidates = match choose_here(args.runtime_endpoint.as_deref(), root_dir)? {
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
        Command::Pull { image } => pull(&runtime, root_dir, image).await,
        Command::Rm { images } => {
            for image in images {
                let failed = |error: RuntimeError| format!("{}: {error}", harmless(image));
                // The CRI removes what is not there as well.
                if runtime.image_status(image).await.map_err(failed)?.is_none() {
                    return Err(format!("{}: no such image; smolet image ls lists them", harmless(image)));
                }
                runtime.remove_image(image).await.map_err(failed)?;
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
