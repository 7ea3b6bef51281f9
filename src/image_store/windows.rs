//! Memory of zstd windows, which the layers of a node have together.
//!
//! ```text
//!     a frame says its window ──► one waits, others queue behind it ──► its pieces ──► decoded ──► given back
//!                                                                          ▲               └─► parked: let go, the oldest first,
//!                                                                          └─ parked parts ◄─┘ when others need the room
//! ```
//!
//! Nobody waits while it has pieces, but for the one that is first in the queue and takes them as they are given back: there is no
//! deadlock, and a large window is not passed by small ones for ever. A window is known from the first bytes of its frame: what was read
//! until then, at most `limits::LAYER_FEED_BYTES`, is in the writer's buffer.

use std::sync::Arc;

use smol::lock::{Mutex as AsyncMutex, Semaphore, SemaphoreGuardArc};

use super::State;
use super::shared::Shared;
use crate::limits::{ZSTD_WINDOW_PIECE_BYTES, ZSTD_WINDOWS_BYTES_MAX};

/// The right to a window in memory: a guard for each piece, none for a layer without a window.
pub type Window = Vec<SemaphoreGuardArc>;

/// All windows: [`ZSTD_WINDOWS_BYTES_MAX`] bytes.
pub(super) struct Windows {
    /// Held by the one that takes pieces.
    turn: AsyncMutex<()>,
    /// Those that nobody has. Parked parts have none: what is free holds them, or they are let go.
    free: Arc<Semaphore>,
}

impl Default for Windows {
    fn default() -> Self {
        Self { turn: AsyncMutex::default(), free: Arc::new(Semaphore::new(pieces(ZSTD_WINDOWS_BYTES_MAX))) }
    }
}

/// Pieces of a window: what a decoder takes for it, which is a power of two, or all there are.
fn pieces(bytes: u64) -> usize {
    if bytes == 0 {
        return 0;
    }
    let taken = bytes.next_power_of_two().min(ZSTD_WINDOWS_BYTES_MAX);
    usize::try_from(taken.div_ceil(ZSTD_WINDOW_PIECE_BYTES)).unwrap_or(usize::MAX)
}

impl Windows {
    /// Waits for the right to a window of that many bytes. Parked parts for which there is no room then are let go, the oldest first. The
    /// caller has no other window.
    pub(super) async fn take(&self, state: &Shared<State>, bytes: u64) -> Window {
        let _turn = self.turn.lock().await;
        let mut window = Window::new();
        while window.len() < pieces(bytes) {
            window.push(self.free.acquire_arc().await);
        }
        let free: Vec<_> = std::iter::from_fn(|| self.free.try_acquire()).collect();
        let dropped = {
            let mut state = state.borrow_mut();
            let of = |parked: &super::Parked| pieces(parked.ingest.window_bytes());
            let mut parked: usize = state.parked.iter().map(of).sum();
            state.take_parked(|part| {
                let goes = parked > free.len() && of(part) > 0;
                parked -= if goes { of(part) } else { 0 };
                goes
            })
        };
        drop(dropped);
        window
    }

    /// The right to the window of a part that was parked; `None` when others take it just now.
    pub(super) fn take_back(&self, bytes: u64) -> Option<Window> {
        (0..pieces(bytes)).map(|_| self.free.try_acquire_arc()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_takes_what_a_decoder_does() {
        const MIB: u64 = 1 << 20;
        for (bytes, taken) in [
            (0, 0),
            (1024, 1),
            (MIB, 1),
            (MIB + 1, 2),
            (5 * MIB, 8),
            (8 * MIB, 8),
            // Alone.
            (9 * MIB, 8),
            (32 * MIB, 8),
        ] {
            assert_eq!(pieces(bytes), taken, "{bytes}");
        }
    }
}
