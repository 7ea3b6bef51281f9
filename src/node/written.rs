//! What pods and the runtime have written to disks, for `/metrics` and `smolet top --self`: counted on request only.

use std::path::PathBuf;

use super::pods::Pods;
use crate::cri::Runtime;
use crate::limits::WRITTEN_PATIENCE;
use crate::metrics::{Written, written_by_server};
use crate::model::{PodKey, PodUid};
use crate::render::NodeSettings;
use crate::server::{Answer, Later};

/// Answers with `page`, to which `add` appends what was written. `socket`: the runtime's, if it is containerd. The connection's
/// task waits for the counts, not the loop.
pub(super) fn with_written<R: Runtime + 'static>(
    pods: &Pods<R>,
    socket: Option<PathBuf>,
    mut page: String,
    add: fn(&mut String, &Written),
) -> Answer {
    let keys: Vec<PodKey> = pods.sorted(None).iter().map(|record| record.worker().key().clone()).collect();
    let (cgroups, node) = (pods.cgroups().clone(), NodeSettings::clone(&pods.ctx().node));
    let blocking = pods.manager().blocking.clone();
    let clock = pods.manager().clock.clone();
    Answer::Later(Later(Box::pin(async move {
        let counted = async {
            let uids: Vec<PodUid> = keys.iter().map(|key| key.uid.clone()).collect();
            let counted = cgroups.written(&blocking, node, &uids).await;
            let pods = keys.into_iter().zip(counted).filter_map(|(key, bytes)| Some((key, bytes?))).collect();
            let runtime = match socket {
                Some(socket) => {
                    let theirs = socket.clone();
                    blocking.run_outside(&socket, move || written_by_server(&theirs)).await.ok().flatten()
                }
                None => None,
            };
            Written { pods, runtime }
        };
        // Threads that hang hide no other metric.
        let patience = async {
            clock.sleep(WRITTEN_PATIENCE).await;
            Written::default()
        };
        add(&mut page, &smol::future::or(counted, patience).await);
        Answer::Found(page)
    })))
}
