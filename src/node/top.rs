//! Usage of the pods, for `smolet top`: two samples of the runtime's stats, on request only.

use super::pods::Pods;
use crate::clock::SharedClock;
use crate::cri::{ContainerStats, CpuSample, Runtime, RuntimeResult};
use crate::limits::{STATS_CONTAINERS_MAX, STATS_SAMPLE_TIME};
use crate::model::SortedMap;
use crate::model::{ContainerId, PodKey, PodUid};
use crate::printers::top::{self as printer, PodUse};
use crate::render::NodeSettings;
use crate::server::{Answer, Later, PodCursor, TopQuestion};

/// The pods to show.
type PodKeys = SortedMap<PodUid, PodKey>;

/// Answers `smolet top`. The connection's task waits for the samples, not the loop.
pub(super) fn top_pods<R: Runtime + 'static>(pods: &Pods<R>, question: &TopQuestion) -> Answer {
    let namespace = question.namespace.as_deref();
    let mut keys = PodKeys::new();
    for given in &question.names {
        let (of, name) =
            given.split_once('/').map_or((namespace, given.as_str()), |(of, name)| (Some(of), name));
        match pods.find_record(name, of) {
            Ok(record) => keys.insert(record.worker().key().uid.clone(), record.worker().key().clone()),
            Err(why) => return Answer::NotFound(why),
        };
    }
    if question.names.is_empty() {
        let all = pods.sorted(namespace).into_iter().map(|record| record.worker().key().clone());
        keys.extend(all.map(|key| (key.uid.clone(), key)));
    }
    let namespaces = namespace.is_none() && question.names.is_empty();
    let (manager, style) = (pods.manager(), question.style);
    let (runtime, clock, blocking) =
        (manager.runtime.clone(), manager.clock.clone(), manager.blocking.clone());
    let (cgroups, node) = (pods.cgroups().clone(), NodeSettings::clone(&pods.ctx().node));
    Answer::Later(Later(Box::pin(async move {
        match measure(&*runtime, &clock, &keys).await {
            Ok(Some(mut pods)) => {
                let uids: Vec<PodUid> = pods.iter().map(|of| of.pod.uid.clone()).collect();
                for (pod, written) in pods.iter_mut().zip(cgroups.written(&blocking, node, &uids).await) {
                    pod.written_bytes = written;
                }
                Answer::Found(printer::top(&pods, namespaces, style))
            }
            Ok(None) => Answer::NotFound(format!(
                "these pods have more than {STATS_CONTAINERS_MAX} containers; name some of them\n"
            )),
            Err(error) => Answer::NotFound(format!("the runtime reports no container stats: {error}\n")),
        }
    })))
}

/// Usage of each pod, in the order of the output; `None` = too many containers.
async fn measure<R: Runtime>(
    runtime: &R,
    clock: &SharedClock,
    keys: &PodKeys,
) -> RuntimeResult<Option<Vec<PodUse>>> {
    let mut before: SortedMap<ContainerId, CpuSample> = SortedMap::new();
    let mut too_many = false;
    runtime
        .list_container_stats(&mut |stats: ContainerStats| {
            let is_wanted = stats.pod.is_some_and(|pod| keys.contains_key(&pod.uid));
            let Some(cpu) = stats.cpu.filter(|_| is_wanted) else { return };
            too_many |= before.len() >= STATS_CONTAINERS_MAX;
            if !too_many {
                before.insert(stats.id, cpu);
            }
        })
        .await?;
    if too_many {
        return Ok(None);
    }
    clock.sleep(STATS_SAMPLE_TIME).await;
    let mut pods: SortedMap<&PodUid, PodUse> =
        keys.iter().map(|(uid, key)| (uid, PodUse::nothing(key.clone()))).collect();
    runtime
        .list_container_stats(&mut |stats: ContainerStats| {
            let Some(pod) = stats.pod.as_ref().and_then(|pod| pods.get_mut(&pod.uid)) else { return };
            // containerd lists ended containers too, without stats (`removeTerminatedContainers`).
            if stats.cpu.is_none() && stats.memory_bytes.is_none() {
                return;
            }
            let between = before.get(&stats.id).zip(stats.cpu);
            let cores = between.and_then(|(before, after)| printer::nano_cores(*before, after));
            // Of a new container, or with unchanged counters, only the runtime may have a rate.
            pod.add(cores.or(stats.nano_cores), stats.memory_bytes);
        })
        .await?;
    let mut pods: Vec<PodUse> = pods.into_values().collect();
    pods.sort_by_key(|pod| PodCursor::of(&pod.pod));
    Ok(Some(pods))
}
