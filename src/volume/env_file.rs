//! Files in volumes that environment variables come from (`fileKeyRef`, KEP-3721). [`of`] is PURE; reading is blocking I/O,
//! and may hang: a container may have replaced the file by a symlink to anywhere.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::EnvVar;
use rustix::fs::{Mode, OFlags, open};

use super::{own_path, subpath};
use crate::limits::ENV_FILE_BYTES_MAX;
use crate::model::DesiredPod;

/// One such file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFile {
    /// The volume's name.
    pub volume: Box<str>,
    /// Relative to the volume.
    pub path: Box<str>,
    /// The volume's path.
    pub directory: PathBuf,
}

/// The files that the variables refer to. A volume that the pod does not have gives none.
pub fn of(pod: &DesiredPod, variables: &[EnvVar], pod_dir: &str) -> Vec<EnvFile> {
    let named = variables.iter().filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref());
    let found = named.filter_map(|file| {
        let volume = pod.spec().volumes.iter().flatten().find(|volume| volume.name == file.volume_name)?;
        Some(EnvFile {
            volume: file.volume_name.as_str().into(),
            path: file.path.as_str().into(),
            directory: own_path(pod_dir, volume).into(),
        })
    });
    found.collect()
}

impl EnvFile {
    /// Reads the file's text.
    ///
    /// # Errors
    /// In the kubelet's wording; the cause goes to the log.
    pub fn read(&self) -> Result<String, String> {
        self.text().map_err(|error| {
            log::warn!("{}: {}: {error}", self.directory.display(), self.path);
            "couldn't parse env file".to_owned()
        })
    }

    fn text(&self) -> io::Result<String> {
        let handle = subpath::open_real(&self.directory.canonicalize()?, Path::new(&*self.path))?;
        let is_file = File::from(handle.try_clone()?).metadata()?.is_file();
        if !is_file {
            return Err(io::Error::other("is not a file"));
        }
        // The O_PATH handle cannot be read; the path through it cannot become another file.
        let opened = open(subpath::handle_path(&handle), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        let mut file = File::from(opened).take(ENV_FILE_BYTES_MAX as u64 + 1);
        file.read_to_string(&mut text)?;
        if text.len() > ENV_FILE_BYTES_MAX {
            return Err(io::Error::other(format!("has more than {ENV_FILE_BYTES_MAX} bytes")));
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_are_read_from_their_volume_only() {
        let root = std::env::temp_dir().join(format!("smolet-env-file-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let volume = root.join("volumes/kubernetes.io~empty-dir/v");
        std::fs::create_dir_all(volume.join("dir")).unwrap();
        std::fs::write(volume.join("dir/env"), "A='1'").unwrap();
        std::fs::write(volume.join("big"), vec![b'#'; ENV_FILE_BYTES_MAX + 1]).unwrap();
        std::os::unix::fs::symlink("dir/env", volume.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", volume.join("out")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, volume.join("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]}});
        let pod = DesiredPod::new(serde_json::from_value(pod).unwrap());
        for (path, wanted) in [
            ("dir/env", Ok("A='1'")),
            ("link", Ok("A='1'")),
            ("no", Err(())),
            ("out", Err(())),
            ("dir", Err(())),
            ("big", Err(())),
            ("fifo", Err(())),
        ] {
            let variable = |volume: &str| {
                json!({"name": "A", "valueFrom": {"fileKeyRef":
                {"volumeName": volume, "path": path, "key": "A"}}})
            };
            let variables: Vec<EnvVar> =
                serde_json::from_value(json!([variable("v"), variable("other")])).unwrap();
            let files = of(&pod, &variables, root.to_str().unwrap());
            assert_eq!(files.len(), 1);
            let text = files[0].read();
            assert_eq!(text.as_deref().map_err(|_| ()), wanted, "{path}");
            assert!(text.is_ok() || text == Err("couldn't parse env file".into()));
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
