//! Waits for the container runtime; meanwhile the local socket says why there are no pods yet.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use smol::channel::Receiver;

use super::Stop;
use crate::clock::SharedClock;
use crate::config::Config;
use crate::cri::endpoint::EndpointError;
use crate::cri::{GrpcRuntime, Runtime as _, RuntimeHandler, RuntimeVersion, endpoint};
use crate::executor::Executor;
use crate::limits::RELIST_RETRY_MAX;
use crate::render::CgroupDriver;
use crate::server::{Answer, Query, Question};
use crate::systemd::notify::Notify;

/// The runtime once it is ready; `None` if the agent is stopped before. Meanwhile requests on the local socket are answered.
pub(super) async fn wait_for_runtime(
    config: &Config,
    once: bool,
    executor: &Rc<Executor>,
    clock: &SharedClock,
    asked: &Receiver<Query>,
    stopped: &Receiver<Stop>,
    notify: &Notify,
) -> Result<Option<FoundRuntime>, String> {
    let why = RefCell::new("the agent looks for its container runtime".to_owned());
    let found = async { find_runtime(config, once, executor, clock, &why, notify).await.map(Some) };
    let stop = async {
        loop {
            match stopped.recv().await {
                Ok(Stop::Agent | Stop::Pods) | Err(_) => break,
                // There is no known pod to terminate.
                Ok(Stop::Prepare(_) | Stop::Cancelled) => {}
            }
        }
        notify.stopping();
        Ok(None)
    };
    let meanwhile = smol::future::or(answer_meanwhile(asked, &why), notify.keep(clock));
    smol::future::or(stop, smol::future::or(found, meanwhile)).await
}

/// Answers a request on the local socket while there is no runtime: with the reason, since no pods are known.
async fn answer_meanwhile<T>(asked: &Receiver<Query>, why: &RefCell<String>) -> T {
    while let Ok(query) = asked.recv().await {
        let answer = match query.question {
            Question::Health => Answer::Found("ok".to_owned()),
            Question::Pods(_)
            | Question::Describe { .. }
            | Question::Logs { .. }
            | Question::Metrics
            | Question::Top
            | Question::TopPods(_)
            | Question::Events(_)
            | Question::EventAfter(_)
            | Question::Stream(_)
            | Question::Debug(_) => Answer::NotFound(format!("{}\n", why.borrow())),
            // The node API's ports are open only while the loop runs.
            #[cfg(feature = "tls")]
            Question::Node(_) => Answer::NotFound(format!("{}\n", why.borrow())),
        };
        // Full or closed: the client disconnected.
        let _ = query.answer.try_send(answer);
    }
    std::future::pending().await
}

/// A runtime that is ready.
pub(super) struct FoundRuntime {
    pub(super) runtime: GrpcRuntime,
    pub(super) version: RuntimeVersion,
    pub(super) handlers: Vec<RuntimeHandler>,
    /// The cgroup driver that it uses.
    pub(super) cgroup_driver: CgroupDriver,
}

/// Waits until the runtime answers and is ready; logs each reason once. With `once` the first failure ends the wait.
///
/// The cgroup driver is the runtime's (KEP-4033, `getCgroupDriverFromCRI`); the configured one is used if the runtime does not
/// have that call.
async fn find_runtime(
    config: &Config,
    once: bool,
    executor: &Rc<Executor>,
    clock: &SharedClock,
    said: &RefCell<String>,
    notify: &Notify,
) -> Result<FoundRuntime, String> {
    let candidates =
        endpoint::candidates_here(config.runtime_endpoint.as_deref()).map_err(|error| error.to_string())?;
    let mut wait = Duration::from_secs(1);
    loop {
        let tried = async {
            let found = endpoint::find(&candidates, executor, clock).await?;
            match endpoint::ready(&found.runtime).await {
                // As in the kubelet: pods with hostNetwork run without it, the others show the reason in their status.
                Err(error) if error.is_network() => {
                    log::warn!("{error}; pods with hostNetwork still run");
                }
                other => other?,
            }
            let driver = found.runtime.cgroup_driver().await;
            let driver = driver.map_err(|error| {
                EndpointError::Failed(found.runtime.socket().to_path_buf(), error.to_string())
            })?;
            Ok::<_, EndpointError>((found, driver))
        };
        match tried.await {
            Ok((found, driver)) => {
                let cgroup_driver = driver.unwrap_or(config.cgroup_driver);
                if cgroup_driver != config.cgroup_driver {
                    log::warn!(
                        "using cgroup driver {} of the runtime; the configured {} is ignored",
                        cgroup_driver.as_str(),
                        config.cgroup_driver.as_str()
                    );
                }
                log::info!(
                    "runtime {} {} at {}",
                    found.version.runtime_name,
                    found.version.runtime_version,
                    found.runtime.socket().display()
                );
                // A failed call counts as unsupported: the runtime was ready a moment ago.
                let handlers = found.runtime.status().await.map(|status| status.handlers).unwrap_or_default();
                notify.status("");
                let runtime = found.runtime.with_timeout(config.runtime_request_timeout);
                return Ok(FoundRuntime { runtime, version: found.version, handlers, cgroup_driver });
            }
            Err(error) if once => return Err(error.to_string()),
            Err(error) => {
                let why = error.to_string();
                if *said.borrow() != why {
                    log::warn!("{why}; retrying");
                    notify.status(&why);
                    said.replace(why);
                }
            }
        }
        clock.sleep(wait).await;
        wait = (wait * 2).min(RELIST_RETRY_MAX);
    }
}
