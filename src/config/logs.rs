//! Rotation of container logs (`containerLogMaxSize`, `containerLogMaxFiles`, `containerLogMonitorInterval`), and logs in memory.

use std::time::Duration;

use super::{ConfigError, FileSettings, Flags, parse_go_duration};
use crate::limits::{
    LOG_BYTES, LOG_BYTES_MIN, LOG_CHECK_MAX, LOG_FILES, LOG_FILES_RANGE, LOG_FLUSH_PERIOD, LOG_FLUSH_RANGE,
};
use crate::logs::memory::LogMemory;
use crate::logs::rotate::Rotation;
use crate::model::quantity::Quantity;
use crate::render::log_memory::bytes_of;

/// When logs are rotated (`NewContainerLogManager`, `ValidateKubeletConfiguration`): never with a negative size.
pub(super) fn log_rotation(flags: &Flags, file: &FileSettings) -> Result<Option<Rotation>, ConfigError> {
    let size = flags.container_log_max_size.as_deref().or(file.text("containerLogMaxSize"));
    let files = flags.container_log_max_files.or(file.int("containerLogMaxFiles"));
    let check_max = file.time("containerLogMonitorInterval").map_or(LOG_CHECK_MAX, |duration| duration.0);
    let (least, most) = LOG_FILES_RANGE;
    let files_max = match files.map(|given| (given, usize::try_from(given).unwrap_or_default())) {
        None => LOG_FILES,
        Some((_, files)) if (least..=most).contains(&files) => files,
        Some((given, _)) => {
            let message = format!("containerLogMaxFiles: {given}: must be between {least} and {most}");
            return Err(ConfigError(message));
        }
    };
    let (interval, shortest, longest) =
        (check_max.as_secs_f64(), Duration::from_secs(3), Duration::from_hours(24));
    if !(shortest..=longest).contains(&check_max) {
        return Err(ConfigError(format!(
            "containerLogMonitorInterval: {interval} s: must be between {} s and {} s",
            shortest.as_secs(),
            longest.as_secs()
        )));
    }
    let Some(text) = size else {
        return Ok(Some(Rotation { size_max: LOG_BYTES, files_max, check_max }));
    };
    let wrong = |why: &str| ConfigError(format!("containerLogMaxSize: {text:?}: {why}"));
    let bytes = Quantity::parse(text).map_err(|_| wrong("must be a quantity such as 10Mi"))?.value();
    match u64::try_from(bytes) {
        Err(_) => Ok(None),
        Ok(size_max) if size_max >= LOG_BYTES_MIN => Ok(Some(Rotation { size_max, files_max, check_max })),
        Ok(_) => Err(wrong(&format!("must be {LOG_BYTES_MIN} bytes or more, or negative: never rotated"))),
    }
}

/// Logs in memory (`--pod-logs-memory`, `--pod-logs-flush-period`): they need rotation.
pub(super) fn log_memory(flags: &Flags, file: &FileSettings) -> Result<LogMemory, ConfigError> {
    let wrong = |flag: &str, text: &str, why: &str| Err(ConfigError(format!("--{flag}: {text:?}: {why}")));
    let bytes = match &flags.pod_logs_memory {
        None => None,
        Some(text) => match bytes_of(text) {
            Ok(Some(_)) if log_rotation(flags, file)?.is_none() => {
                return wrong(
                    "pod-logs-memory",
                    text,
                    "logs in memory are rotated; set containerLogMaxSize to a positive value",
                );
            }
            Ok(bytes) => bytes,
            Err(why) => return wrong("pod-logs-memory", text, &why),
        },
    };
    let (least, most) = LOG_FLUSH_RANGE;
    let flush_period = match &flags.pod_logs_flush_period {
        None => Some(LOG_FLUSH_PERIOD),
        Some(text) => match parse_go_duration(text) {
            Some(Duration::ZERO) => None,
            Some(period) if (least..=most).contains(&period) => Some(period),
            Some(_) | None => {
                let (minutes, hours) = (least.as_secs() / 60, most.as_secs() / 3600);
                let why = format!("must be 0, or a duration between {minutes}m and {hours}h");
                return wrong("pod-logs-flush-period", text, &why);
            }
        },
    };
    Ok(LogMemory { bytes, flush_period })
}
