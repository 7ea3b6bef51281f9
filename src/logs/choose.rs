//! Selects the container, current or previous, whose log `smolet logs` shows. PURE.

use k8s_openapi::api::core::v1::ContainerStatus;

/// The container id, with the runtime's name as prefix, of the requested log (`validateContainerLogStatus`).
///
/// # Errors
/// The kubelet's message.
pub fn container_id<'s>(pod: &str, status: &'s ContainerStatus, previous: bool) -> Result<&'s str, String> {
    let name = &status.name;
    let state = status.state.as_ref();
    let ended = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let ended_id = ended.and_then(|ended| ended.container_id.as_deref()).filter(|id| !id.is_empty());
    let terminated = || format!("container {name:?} in pod {pod:?} is terminated");
    if previous {
        return ended_id
            .ok_or_else(|| format!("previous terminated container {name:?} in pod {pod:?} not found"));
    }
    if state.is_some_and(|state| state.running.is_some()) {
        return Ok(status.container_id.as_deref().unwrap_or_default());
    }
    if let Some(now) = state.and_then(|state| state.terminated.as_ref()) {
        let id = now.container_id.as_deref().filter(|id| !id.is_empty());
        return id.or(ended_id).ok_or_else(terminated);
    }
    if ended.is_some() {
        return ended_id.ok_or_else(terminated);
    }
    let waiting = format!("container {name:?} in pod {pod:?} is waiting to start");
    Err(match state.and_then(|state| state.waiting.as_ref()) {
        None => format!("{waiting} - no logs yet"),
        Some(why) => match why.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => format!("{waiting}: image can't be pulled"),
            "ImagePullBackOff" => format!("{waiting}: trying and failing to pull image"),
            reason => format!("{waiting}: {reason}"),
        },
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    };

    use super::*;

    fn running() -> ContainerState {
        ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() }
    }

    fn ended(id: &str) -> ContainerState {
        let container_id = (!id.is_empty()).then(|| id.to_owned());
        let terminated = ContainerStateTerminated { container_id, ..ContainerStateTerminated::default() };
        ContainerState { terminated: Some(terminated), ..ContainerState::default() }
    }

    fn waiting(reason: &str) -> ContainerState {
        let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message: None };
        ContainerState { waiting: Some(waiting), ..ContainerState::default() }
    }

    #[test]
    fn the_life_that_is_asked_for_is_found_or_it_is_said_why_not() {
        const NO_OTHER: &str = "previous terminated container \"app\" in pod \"web\" not found";
        const ENDED: &str = "container \"app\" in pod \"web\" is terminated";
        const WAITS: &str = "container \"app\" in pod \"web\" is waiting to start";
        let none = ContainerState::default;
        let waits = |why: &str| Err(format!("{WAITS}{why}"));
        let (found, why) = (|id| Ok::<_, String>(id), |why: &str| Err::<&str, _>(why.to_owned()));
        for (state, last, now, before) in [
            (running(), none(), found("c://now"), why(NO_OTHER)),
            (running(), ended("c://old"), found("c://now"), found("c://old")),
            (ended("c://end"), ended("c://old"), found("c://end"), found("c://old")),
            // The next container did not start.
            (ended(""), ended("c://old"), found("c://old"), found("c://old")),
            (ended(""), none(), why(ENDED), why(NO_OTHER)),
            (waiting("CrashLoopBackOff"), ended("c://old"), found("c://old"), found("c://old")),
            (waiting("CrashLoopBackOff"), ended(""), why(ENDED), why(NO_OTHER)),
            (waiting("ContainerCreating"), none(), waits(": ContainerCreating"), why(NO_OTHER)),
            (waiting("ErrImagePull"), none(), waits(": image can't be pulled"), why(NO_OTHER)),
            (waiting("ImagePullBackOff"), none(), waits(": trying and failing to pull image"), why(NO_OTHER)),
            (none(), none(), waits(" - no logs yet"), why(NO_OTHER)),
        ] {
            let status = ContainerStatus {
                name: "app".to_owned(),
                container_id: Some("c://now".to_owned()),
                state: Some(state),
                last_state: Some(last),
                ..ContainerStatus::default()
            };
            assert_eq!(container_id("web", &status, false), now, "{status:?}");
            assert_eq!(container_id("web", &status, true), before, "{status:?}");
        }
    }
}
