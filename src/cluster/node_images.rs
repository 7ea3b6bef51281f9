//! The images of a Node's status, by which the scheduler prefers nodes that have a pod's images (`nodestatus.Images`). PURE.

use std::rc::Rc;

use serde_json::{Value, json};

use crate::limits::{NODE_IMAGE_NAME_BYTES_MAX, NODE_IMAGE_NAMES_MAX, NODE_IMAGES_MAX};
use crate::model::runtime::Image;

/// One image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeImage {
    /// Names with digests first.
    names: Vec<Box<str>>,
    size_bytes: u64,
}

impl NodeImage {
    /// Bytes of its names.
    pub fn bytes(&self) -> usize {
        self.names.iter().map(|name| name.len()).sum()
    }

    /// Its entry in `status.images`.
    pub fn value(&self) -> Value {
        json!({"names": self.names, "sizeBytes": self.size_bytes})
    }
}

/// The largest of the added images.
#[derive(Debug, Default)]
pub struct NodeImages(Vec<NodeImage>);

impl NodeImages {
    /// Adds an image.
    pub fn add(&mut self, image: Image) {
        let names = image.repo_digests.into_iter().chain(image.repo_tags);
        let names = names.filter(|name| name.len() <= NODE_IMAGE_NAME_BYTES_MAX).take(NODE_IMAGE_NAMES_MAX);
        let image = NodeImage { names: names.collect(), size_bytes: image.size_bytes };
        // Images of the same size are sorted by name, so that the order is stable.
        let place = self
            .0
            .partition_point(|other| (other.size_bytes, &image.names) > (image.size_bytes, &other.names));
        if place < NODE_IMAGES_MAX {
            self.0.truncate(NODE_IMAGES_MAX - 1);
            self.0.insert(place, image);
        }
    }

    /// The largest first.
    pub fn largest(self) -> Rc<[NodeImage]> {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, size_bytes: u64) -> Image {
        Image {
            id: name.into(),
            repo_tags: vec![format!("{name}:1").into()],
            repo_digests: vec![format!("{name}@sha256:0").into()],
            size_bytes,
            uid: None,
            username: "".into(),
            pinned: false,
        }
    }

    fn shown(images: impl IntoIterator<Item = Image>) -> Vec<Value> {
        let mut all = NodeImages::default();
        images.into_iter().for_each(|image| all.add(image));
        all.largest().iter().map(NodeImage::value).collect()
    }

    #[test]
    fn the_largest_come_first_in_an_order_that_stays() {
        let three = [image("b", 5), image("a", 5), image("c", 7)];
        let all = shown(three.clone());
        assert_eq!(all[0], json!({"names": ["c@sha256:0", "c:1"], "sizeBytes": 7}));
        assert_eq!((&all[1]["names"][1], &all[2]["names"][1]), (&json!("a:1"), &json!("b:1")));
        assert_eq!(shown(three.into_iter().rev()), all);
    }

    #[test]
    fn there_are_no_more_than_are_told_with_no_more_names() {
        let count = NODE_IMAGES_MAX as u64;
        let all = shown((0..2 * count).map(|size| image("a", size)));
        assert_eq!((all.len() as u64, &all[0]["sizeBytes"]), (count, &json!(2 * count - 1)));
        assert_eq!(all.last().unwrap()["sizeBytes"], json!(count));
        let mut many = image("a", 1);
        many.repo_tags = (0..100).map(|tag| format!("a:{tag}").into()).collect();
        many.repo_digests = vec!["x".repeat(NODE_IMAGE_NAME_BYTES_MAX + 1).into()];
        let all = shown([many]);
        assert_eq!(all[0]["names"], json!(["a:0", "a:1", "a:2", "a:3", "a:4"]));
    }
}
