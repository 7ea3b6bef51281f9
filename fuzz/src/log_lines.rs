//! The end of a container's log → a termination message: within its limits, and nothing that the log does not say.

use smolet::cri::termination::last_words;
use smolet::limits;

pub fn run(data: &[u8]) {
    let Some((&first, log)) = data.split_first() else { return };
    let said = last_words(log, first & 1 == 1);
    assert!(said.len() <= limits::TERMINATION_LOG_BYTES_MAX);
    assert!(said.split_inclusive('\n').count() <= limits::TERMINATION_LOG_LINES_MAX);
    let replaced = said.chars().filter(|char| *char == char::REPLACEMENT_CHARACTER).count();
    assert!(said.len() <= log.len() + 2 * replaced);
}
