//! Lists of images to pull before pods need them, as k3s has them beside its archives: one image a line.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use smol::channel::{Receiver, Sender};

use crate::filesystem::read_linked;
use crate::limits::{IMAGE_LIST_BYTES_MAX, IMAGE_LISTED_MAX};

/// The images of all lists, between whoever reads the lists and whoever pulls them. Clones share them.
#[derive(Clone)]
pub struct ListedImages {
    images: Rc<RefCell<Vec<String>>>,
    changed: Sender<()>,
}

impl ListedImages {
    /// None yet, and the channel that tells of changes; several may be one message.
    pub fn new() -> (Self, Receiver<()>) {
        let (changed, changes) = smol::channel::bounded(1);
        (Self { images: Rc::default(), changed }, changes)
    }

    /// At most `limits::IMAGE_LISTED_MAX`.
    pub fn now(&self) -> Vec<String> {
        self.images.borrow().clone()
    }

    pub(super) fn set(&self, images: Vec<String>) {
        if *self.images.borrow() != images {
            self.images.replace(images);
            // Full: a change is told already.
            let _ = self.changed.try_send(());
        }
    }
}

/// By its name.
pub(super) fn is_list(name: &str) -> bool {
    !name.starts_with('.') && Path::new(name).extension().is_some_and(|ending| ending == "txt")
}

/// The images of these lists, each once. What cannot be read is logged. Blocks.
pub(super) fn read(lists: &[PathBuf]) -> Vec<String> {
    let mut images: Vec<String> = Vec::new();
    for path in lists {
        let shown = path.display();
        let text = match read_linked(path, IMAGE_LIST_BYTES_MAX) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                log::warn!("{shown}: {error}; the images of this list are not pulled");
                continue;
            }
        };
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if images.iter().any(|image| image == line) {
                continue;
            }
            if images.len() == IMAGE_LISTED_MAX {
                log::warn!(
                    "{shown}: {line:?} and what follows is not pulled: at most {IMAGE_LISTED_MAX} images are listed"
                );
                return images;
            }
            images.push(line.to_owned());
        }
    }
    images
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_lists_are_read_line_by_line_and_each_once() {
        let root = std::env::temp_dir().join(format!("smolet-lists-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let put = |name: &str, text: &str| {
            std::fs::write(root.join(name), text).unwrap();
            root.join(name)
        };
        let lists = [
            put("a.txt", "# of the site\ndocker.io/rancher/klipper-lb:v0.4.13\r\n\n  r.io/x  \n"),
            root.join("none.txt"),
            put("long.txt", &"x\n".repeat(IMAGE_LIST_BYTES_MAX)),
            put("b.txt", "r.io/x\nr.io/y"),
        ];
        assert_eq!(read(&lists), ["docker.io/rancher/klipper-lb:v0.4.13", "r.io/x", "r.io/y"]);
        let many: Vec<String> = (0..2 * IMAGE_LISTED_MAX).map(|n| format!("r.io/{n}")).collect();
        assert_eq!(read(&[put("many.txt", &many.join("\n"))]).len(), IMAGE_LISTED_MAX);
        for (name, is) in
            [("a.txt", true), (".txt", false), (".a.txt", false), ("a.txt.part", false), ("a.tar", false)]
        {
            assert_eq!(is_list(name), is, "{name}");
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}
