//! Objects of other clients in the same runtime: thousands of items that exist only in list responses and are generated while
//! they are sent, so that a list of hundreds of megabytes takes one item's memory.

use std::collections::BTreeMap;

use hyper::body::Bytes;
use prost::Message;
use smolet::proto::runtime::v1 as cri;

/// Number of foreign sandboxes, containers and images in an unfiltered list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crowd {
    pub sandboxes: usize,
    pub containers: usize,
    /// Bytes of a label of each item.
    pub label_bytes: usize,
    /// Each container belongs to its own sandbox, listed or not.
    pub images: usize,
}

impl Crowd {
    fn count(&self, method: &str) -> usize {
        match method {
            "ListPodSandbox" => self.sandboxes,
            "ListContainers" | "ListContainerStats" => self.containers,
            "ListImages" => self.images,
            _ => 0,
        }
    }

    /// A name of the greatest length.
    fn image(number: usize) -> String {
        format!("registry.example/{}/{number}:1", "x".repeat(220))
    }

    /// The items of the response to `method`, each as field 1, in consecutive pieces.
    pub(super) fn items(&self, method: &str) -> Vec<[Bytes; 2]> {
        let noise = BTreeMap::from([("noise".to_owned(), "x".repeat(self.label_bytes))]);
        let (sandboxes, stats) = (method == "ListPodSandbox", method == "ListContainerStats");
        let images = method == "ListImages";
        let stats_of = |attributes: cri::ContainerAttributes| {
            cri::ContainerStats { attributes: Some(attributes), ..Default::default() }.encode_to_vec()
        };
        // A message's fields may be in any order, and parts of one message are merged, so the label, which all items share,
        // follows the individual fields.
        let shared = Bytes::from(if sandboxes {
            cri::PodSandbox { labels: noise, ..Default::default() }.encode_to_vec()
        } else if stats {
            stats_of(cri::ContainerAttributes { labels: noise, ..Default::default() })
        } else if images {
            Vec::new()
        } else {
            cri::Container { labels: noise, ..Default::default() }.encode_to_vec()
        });
        let item = |number| {
            let own = if stats {
                let id = format!("foreign-container-{number}");
                stats_of(cri::ContainerAttributes { id, ..Default::default() })
            } else if sandboxes {
                let metadata = cri::PodSandboxMetadata {
                    name: format!("foreign-{number}"),
                    uid: format!("foreign-uid-{number}"),
                    namespace: "elsewhere".into(),
                    attempt: 0,
                };
                let id = format!("foreign-sandbox-{number}");
                cri::PodSandbox { id, metadata: Some(metadata), ..Default::default() }.encode_to_vec()
            } else if images {
                let (id, repo_tags) = (format!("sha256:{number:064}"), vec![Self::image(number)]);
                cri::Image { id, repo_tags, size: 1 << 20, ..Default::default() }.encode_to_vec()
            } else {
                cri::Container {
                    id: format!("foreign-container-{number}"),
                    pod_sandbox_id: format!("foreign-sandbox-{number}"),
                    metadata: Some(cri::ContainerMetadata { name: "noise".into(), attempt: 0 }),
                    state: cri::ContainerState::ContainerRunning.into(),
                    image_ref: Self::image(number),
                    ..Default::default()
                }
                .encode_to_vec()
            };
            let mut head = vec![0x0a];
            prost::encoding::encode_varint((own.len() + shared.len()) as u64, &mut head);
            head.extend(own);
            [head.into(), shared.clone()]
        };
        (0..self.count(method)).map(item).collect()
    }
}
