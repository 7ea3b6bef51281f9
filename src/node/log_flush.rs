//! Flushes container logs that are in memory to the disk: their newest lines, every `--pod-logs-flush-period` and when the agent ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::agent::Event;
use super::effects::Effects;
use super::pods::Pods;
use crate::config::Config;
use crate::cri::Runtime;
use crate::limits::CHECKPOINT_END_PATIENCE;
use crate::logs::memory::{keep_all, restore_all};
use crate::model::Mono;
use crate::sync::act::RuntimeManager;

/// Makes the directories of logs, and brings back what is kept of logs in memory. Blocking, before the loop.
///
/// # Errors
/// A directory cannot be made; names it.
pub(super) fn log_directories(config: &Config) -> Result<(), String> {
    for (what, directory) in
        [("pod logs", &config.pod_logs_dir), ("container logs", &config.container_logs_dir)]
    {
        std::fs::create_dir_all(directory)
            .map_err(|e| format!("{what} directory {}: {e}", directory.display()))?;
    }
    restore_all(&config.pod_logs_dir, &config.root_dir.join("pods"));
    Ok(())
}

/// The schedule of the flushes.
pub(super) struct LogFlush {
    logs: PathBuf,
    pods: PathBuf,
    period: Option<Duration>,
    at: Mono,
    in_flight: bool,
}

impl LogFlush {
    pub(super) fn new(config: &Config, now: Mono) -> Self {
        let period = config.log_memory.flush_period;
        let (logs, pods) = (config.pod_logs_dir.clone(), config.root_dir.join("pods"));
        Self { logs, pods, period, at: now + period.unwrap_or_default(), in_flight: false }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        (self.period.is_some() && !self.in_flight).then_some(self.at)
    }

    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &Effects) {
        let Some(period) = self.period.filter(|_| !self.in_flight && self.at <= now) else { return };
        self.at = now + period;
        self.in_flight = true;
        let (ctx, keep) = (pods.ctx().clone(), self.keep());
        out.start("log flush", async move {
            let kept = ctx.manager.blocking.run_alone(keep).await;
            Event::LogsKept(kept.map_err(|error| error.to_string()).and_then(|kept| kept))
        });
    }

    fn keep(&self) -> impl FnOnce() -> Result<(), String> + Send + 'static {
        let (logs, pods) = (self.logs.clone(), self.pods.clone());
        move || keep_all(Path::new(&logs), Path::new(&pods))
    }

    /// A flush has ended.
    pub(super) fn take(&mut self, kept: &Result<(), String>) {
        self.in_flight = false;
        if let Err(error) = kept {
            log::warn!("{error}");
        }
    }

    /// The last flush, when the agent ends.
    pub(super) async fn keep_at_end<R: Runtime + 'static>(&self, manager: &RuntimeManager<R>) {
        let kept =
            async { manager.blocking.run_alone(self.keep()).await.map_err(|error| error.to_string())? };
        let patience = async {
            manager.clock.sleep(CHECKPOINT_END_PATIENCE).await;
            Err("logs in memory: the disk does not respond".to_owned())
        };
        if let Err(error) = smol::future::or(kept, patience).await {
            log::warn!("{error}");
        }
    }
}
