//! The terminal in raw mode for as long as it belongs to a container.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::streaming::command::Size;

/// Raw mode, until dropped.
#[derive(Debug)]
pub(super) struct Raw(Termios);

impl Raw {
    /// Standard input passes every key on and shows none.
    ///
    /// # Errors
    /// The system's: it is no terminal.
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
        // A terminal that has hung up cannot be put right.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Says, as kubectl does, when `-t` is asked for and standard input is no terminal: true when it can be had.
pub(super) fn is_usable(quiet: bool) -> bool {
    let usable = io::stdin().is_terminal();
    if !usable && !quiet {
        super::say("Unable to use a TTY - input is not a terminal or the right kind of file");
    }
    usable
}

/// The size of the terminal: that of standard output, whose it is to be shown on, else that of standard input.
pub(super) fn size() -> Option<Size> {
    let of = |stream: &dyn AsFd| tcgetwinsize(stream.as_fd()).ok();
    let size = of(&io::stdout()).or_else(|| of(&io::stdin()))?;
    // A serial line knows none.
    (size.ws_col > 0 && size.ws_row > 0).then_some(Size { width: size.ws_col, height: size.ws_row })
}
