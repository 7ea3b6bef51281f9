//! The sink of `log`: one line an event on standard error, with the time where nobody else adds it.

use std::io::Write as _;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::clock::{Clock as _, SystemClock};

/// Level by environment; a flag beats it.
pub(super) const LEVEL_VARIABLE: &str = "SMOLET_LOG";

struct Stderr {
    /// systemd's journal stamps lines itself (`JOURNAL_STREAM` is set then) and reads `<N>` priorities.
    journal: bool,
}

/// Installs the sink. `flag` is `--log-level`'s word, checked by clap; else the environment's, else info.
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
        // A closed standard error is no reason to stop keeping pods.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}
