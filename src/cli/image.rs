//! `smolet image ls|pull|rm|import`: the images of this node's runtime, whichever it is. No agent is asked but for the embedded
//! runtime's own socket.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use sha2::{Digest as _, Sha256};

use super::{fail, print};
use crate::clock::{SharedClock, SystemClock};
use crate::config::paths;
use crate::cri::choice::{RuntimeChoice, choose_here};
use crate::cri::endpoint::{Candidates, Origin, find};
use crate::cri::{GrpcRuntime, Image, Runtime as _, RuntimeError};
use crate::executor::Executor;
use crate::image::name::for_runtime;
use crate::limits::{IMAGES_SHOWN_MAX, IMPORT_BYTES_MAX, LAYER_FEED_BYTES};
use crate::printers::style::Style;
use crate::printers::text::{Cell, columns, harmless};
use crate::proto::runtime::v1::PodSandboxConfig;
use crate::text::hex;

/// Digits of an image's id that are shown, as by crictl.
const ID_DIGITS: usize = 13;
/// Digits of an archive's digest in the name of its file.
const ARCHIVE_DIGITS: usize = 24;

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
        /// Their files; - is standard input
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
}

pub(super) fn run(args: &Args) -> ExitCode {
    match &args.command {
        Command::Import { archives } => {
            for archive in archives {
                let images = args.root_dir.join("images");
                let imported = if archive.as_os_str() == "-" {
                    import_stream(&images, std::io::stdin().lock())
                } else {
                    import(&images, archive)
                };
                if let Err(why) = imported {
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
    make_dir(images).map_err(failed)?;
    fs::copy(archive, &part).map_err(|error| error.to_string())?;
    fs::rename(&part, &whole).map_err(failed)
}

/// The agent makes it and the directories above in the same way: what is in them is root's alone.
fn make_dir(images: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(images)
}

/// The same with an archive that has no name: it gets that of its digest, so that a second import of it changes nothing.
fn import_stream(images: &Path, mut archive: impl Read) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", images.display());
    make_dir(images).map_err(failed)?;
    let part = images.join(format!("import-{}.tar.part", std::process::id()));
    let written = write_part(&part, &mut archive).and_then(|digest| {
        fs::rename(&part, images.join(format!("import-{}.tar", &digest[..ARCHIVE_DIGITS]))).map_err(failed)
    });
    if written.is_err() {
        // It may not be there; the error that counts is the first one.
        let _ = fs::remove_file(&part);
    }
    written
}

/// Writes the archive into the file; its digest in hexadecimal digits.
fn write_part(part: &Path, archive: &mut impl Read) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", part.display());
    let file = fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(part);
    let mut file = file.map_err(failed)?;
    let (mut digest, mut buffer, mut length) = (Sha256::new(), vec![0; LAYER_FEED_BYTES], 0_u64);
    loop {
        let read = match archive.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.to_string()),
        };
        if read == 0 {
            break;
        }
        length += read as u64;
        if length > IMPORT_BYTES_MAX {
            return Err(format!("has more than {IMPORT_BYTES_MAX} bytes; import a file"));
        }
        digest.update(&buffer[..read]);
        file.write_all(&buffer[..read]).map_err(failed)?;
    }
    if length == 0 {
        return Err("is empty; check the command that writes the archive".to_owned());
    }
    Ok(hex(&digest.finalize()[..]))
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the pipe broke"))
        }
    }

    #[test]
    fn an_archive_from_standard_input_appears_whole_and_once() {
        let images = std::env::temp_dir().join(format!("smolet-import-{}", std::process::id()));
        let _ = fs::remove_dir_all(&images);
        let names = || {
            let entries = fs::read_dir(&images).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let archive = vec![7; 3 * LAYER_FEED_BYTES + 1];
        import_stream(&images, &*archive).unwrap();
        import_stream(&images, &*archive).unwrap();
        let [name] = &*names() else { panic!("{:?}", names()) };
        assert!(
            name.starts_with("import-") && Path::new(name).extension().is_some_and(|of| of == "tar"),
            "{name}"
        );
        assert_eq!(fs::read(images.join(name)).unwrap(), archive);
        // What is not whole does not appear.
        assert_eq!(import_stream(&images, b"begun".chain(Broken)), Err("the pipe broke".to_owned()));
        assert!(import_stream(&images, std::io::empty()).unwrap_err().starts_with("is empty"));
        assert_eq!(names().len(), 1);
        fs::remove_dir_all(&images).unwrap();
    }
}
