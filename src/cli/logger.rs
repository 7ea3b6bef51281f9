//! The sink of `log`: one line for each event on standard error, with a timestamp unless the journal adds it.

use std::io::Write as _;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::clock::{Clock as _, SystemClock};

/// Environment variable of the log level; the flag takes precedence.
pub(super) const LEVEL_VARIABLE: &str = "SMOLET_LOG";

struct Stderr {
    /// systemd's journal adds the time itself (`JOURNAL_STREAM` is set then) and parses `<N>` priorities.
    journal: bool,
}

/// Installs the sink. `flag` is the value of `--log-level`, validated by clap; else the environment's, else info.
pub(super) fn install(flag: Option<&str>) {
    let word = flag.map(str::to_owned).or_else(|| std::env::var(LEVEL_VARIABLE).ok());
    let level = word.as_deref().map(str::parse);
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    if log::set_boxed_logger(Box::new(Stderr { journal })).is_ok() {
        log::set_max_level(match level {
            Some(Ok(level)) => level,
            Some(Err(_)) | None => LevelFilter::Info,
        });
    }
    if let (Some(word), Some(Err(_))) = (word, level) {
        log::warn!("{LEVEL_VARIABLE}={word}: no such level; one of error, warn, info, debug, trace, off");
    }
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("smolet")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let message = record.args().to_string();
        let message = crate::printers::text::harmless(&message);
        let line = if self.journal {
            let priority = match record.level() {
                Level::Error => 3,
                Level::Warn => 4,
                Level::Info => 6,
                Level::Debug | Level::Trace => 7,
            };
            format!("<{priority}>{message}\n")
        } else {
            format!("{} {:5} {message}\n", SystemClock.now().wall, record.level())
        };
        // A closed standard error must not stop the agent.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}
