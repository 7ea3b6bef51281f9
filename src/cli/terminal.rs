//! Raw mode of the terminal while it is attached to a container.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::streaming::command::Size;

/// Raw mode, until dropped.
#[derive(Debug)]
pub(super) struct Raw(Termios);

impl Raw {
    /// Disables line editing, echo and signal keys of standard input.
    ///
    /// # Errors
    /// The system's: it is not a terminal.
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that has hung up cannot be restored.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Whether `-t` can be satisfied; as kubectl, prints a message when standard input is not a terminal.
pub(super) fn is_usable(quiet: bool) -> bool {
    let usable = io::stdin().is_terminal();
    if !usable && !quiet {
        super::say("Unable to use a TTY - input is not a terminal or the right kind of file");
    }
    usable
}

/// The terminal's size: that of standard output, else that of standard input.
pub(super) fn size() -> Option<Size> {
    let of = |stream: &dyn AsFd| tcgetwinsize(stream.as_fd()).ok();
    let size = of(&io::stdout()).or_else(|| of(&io::stdin()))?;
    // A serial line has no size.
    (size.ws_col > 0 && size.ws_row > 0).then_some(Size { width: size.ws_col, height: size.ws_row })
}
