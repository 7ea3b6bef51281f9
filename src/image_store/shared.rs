//! State that threads change as well, right after the disk: a call that is dropped leaves memory as the disk is. PURE.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clones are one state. A guard is held for a few statements without a system call, and never across an await.
pub(super) struct Shared<T>(Arc<Mutex<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Shared<T> {
    pub(super) fn new(state: T) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn borrow(&self) -> MutexGuard<'_, T> {
        // After a panic, which ends the agent but in tests, the state is that of the last statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn borrow_mut(&self) -> MutexGuard<'_, T> {
        self.borrow()
    }
}
