//! Flushes container logs that are in memory to the disk: their newest lines, every `--pod-logs-flush-period` and when the agent ends.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::agent::Event;
use super::effects::Effects;
use super::pods::Pods;
use crate::config::Config;
use crate::cri::Runtime;
use crate::limits::LOG_FLUSH_END_PATIENCE;
use crate::logs::memory::{flush_all, restore_all};
use crate::model::Mono;
use crate::sync::act::RuntimeManager;

/// Makes the directories of logs, and copies what was flushed of logs in memory. Blocking, before the loop.
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
    /// One flush at a time writes.
    turn: Arc<Mutex<()>>,
    period: Option<Duration>,
    at: Mono,
    in_flight: bool,
}

impl LogFlush {
    pub(super) fn new(config: &Config, now: Mono) -> Self {
        let period = config.log_memory.flush_period;
        let (logs, pods) = (config.pod_logs_dir.clone(), config.root_dir.join("pods"));
        Self {
            logs,
            pods,
            turn: Arc::default(),
            period,
            at: now + period.unwrap_or_default(),
            in_flight: false,
        }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        (self.period.is_some() && !self.in_flight).then_some(self.at)
    }

    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &Effects) {
        let Some(period) = self.period.filter(|_| !self.in_flight && self.at <= now) else { return };
        self.at = now + period;
        self.in_flight = true;
        let (ctx, flush) = (pods.ctx().clone(), self.flush());
        out.start("log flush", async move {
            let flushed = ctx.manager.blocking.run_alone(flush).await;
            Event::LogsFlushed(flushed.map_err(|error| error.to_string()).and_then(|flushed| flushed))
        });
    }

    fn flush(&self) -> impl FnOnce() -> Result<(), String> + Send + 'static {
        let (logs, pods, turn) = (self.logs.clone(), self.pods.clone(), self.turn.clone());
        move || {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            flush_all(&logs, &pods)
        }
    }

    /// A flush has ended.
    pub(super) fn take(&mut self, flushed: &Result<(), String>) {
        self.in_flight = false;
        if let Err(error) = flushed {
            log::warn!("{error}");
        }
    }

    /// The last flush, when the agent ends.
    pub(super) async fn flush_at_end<R: Runtime + 'static>(&self, manager: &RuntimeManager<R>) {
        let flushed =
            async { manager.blocking.run_alone(self.flush()).await.map_err(|error| error.to_string())? };
        let patience = async {
            manager.clock.sleep(LOG_FLUSH_END_PATIENCE).await;
            Err(format!(
                "logs in memory: not all were flushed to the disk within {} s; a boot has those of the last flush",
                LOG_FLUSH_END_PATIENCE.as_secs()
            ))
        };
        if let Err(error) = smol::future::or(flushed, patience).await {
            log::warn!("{error}");
        }
    }
}
