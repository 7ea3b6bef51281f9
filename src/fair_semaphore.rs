//! A semaphore for long operations that is fair between owners, so that no pod's slow calls delay another pod.
//!
//! ```text
//!     acquire(owner) ─► within its share? ──yes──► FairPermit ──dropped──► next waiter: fewest permits, then longest wait
//!                            └──no──► waits ──dropped──► the wait ends
//! ```
//!
//! A permit is never revoked: a container that ignores SIGTERM has its whole grace period. So [`Share`], which is PURE, leaves
//! some of them for later owners.
//!
//! The kubelet has no such bounds: it has a goroutine for each probe (`prober.worker`) and for each container that it stops
//! (`killContainersWithSyncResult`).

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::limits::{PERMIT_WAITERS_MAX, Share};
use crate::model::PodUid;

/// The owner of permits: a pod, or the agent itself. A number, because other threads release permits too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermitOwner(u64);

impl From<&PodUid> for PermitOwner {
    // Two pods whose UIDs had the same hash would share their permits, and nothing else.
    fn from(uid: &PodUid) -> Self {
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Permits divided among owners. Clones share them.
#[derive(Clone, Debug)]
pub struct FairSemaphore(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    share: Share,
    /// The owners that hold permits, and how many each. At most [`Share::most`].
    holders: Vec<(PermitOwner, usize)>,
    /// In order of arrival. At most [`PERMIT_WAITERS_MAX`].
    waiting: VecDeque<Waiting>,
    arrivals: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    owner: PermitOwner,
    waker: Waker,
    /// It was granted a permit and has not been polled since.
    has_permit: bool,
}

/// The limit on waiters is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyWaiters;

impl fmt::Display for TooManyWaiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PERMIT_WAITERS_MAX} others wait for their turn")
    }
}

impl FairSemaphore {
    /// A semaphore with these permits.
    pub fn new(share: Share) -> Self {
        let state = State { share, holders: Vec::new(), waiting: VecDeque::new(), arrivals: 0 };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Waits for a permit, which is released when it is dropped.
    ///
    /// # Errors
    /// [`PERMIT_WAITERS_MAX`] wait already.
    pub fn acquire(&self, owner: PermitOwner) -> Acquire {
        Acquire { semaphore: self.clone(), owner, number: None }
    }

    /// Number of permits that are held.
    pub fn held(&self) -> usize {
        self.state().held()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_permit(&self, owner: PermitOwner) {
        let mut state = self.state();
        state.release(owner);
        let woken = state.grant_free();
        // The woken task may take the lock.
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn held(&self) -> usize {
        self.holders.iter().map(|(_, held)| held).sum()
    }

    fn of(&self, owner: PermitOwner) -> usize {
        self.holders.iter().find(|(holder, _)| *holder == owner).map_or(0, |(_, held)| *held)
    }

    /// Takes a permit for this owner, if its share allows it.
    fn hold(&mut self, owner: PermitOwner) -> bool {
        let may = self.share.may_begin(self.of(owner), self.holders.len(), self.held());
        if may {
            match self.holders.iter_mut().find(|(holder, _)| *holder == owner) {
                Some((_, held)) => *held += 1,
                None => self.holders.push((owner, 1)),
            }
        }
        may
    }

    fn release(&mut self, owner: PermitOwner) {
        let Some(at) = self.holders.iter().position(|(holder, _)| *holder == owner) else { return };
        self.holders[at].1 -= 1;
        if self.holders[at].1 == 0 {
            self.holders.swap_remove(at);
            self.holders.shrink_to(2 * self.holders.len());
        }
    }

    /// Grants free permits to waiters. The owner that holds fewest comes first: if its share does not allow it, nobody's does.
    fn grant_free(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        loop {
            let waits = self.waiting.iter().enumerate().filter(|(_, waiting)| !waiting.has_permit);
            let Some((at, owner)) = waits
                .min_by_key(|(_, waiting)| self.of(waiting.owner))
                .map(|(at, waiting)| (at, waiting.owner))
            else {
                return woken;
            };
            if !self.hold(owner) {
                return woken;
            }
            self.waiting[at].has_permit = true;
            woken.push(self.waiting[at].waker.clone());
        }
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&number, |waiting| waiting.number).ok()
    }

    fn leave(&mut self, at: usize) {
        self.waiting.remove(at);
        self.waiting.shrink_to(2 * self.waiting.len());
    }
}

/// The wait for a permit. Dropping it ends the wait.
#[derive(Debug)]
pub struct Acquire {
    semaphore: FairSemaphore,
    owner: PermitOwner,
    /// While it is queued.
    number: Option<u64>,
}

impl Future for Acquire {
    type Output = Result<FairPermit, TooManyWaiters>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let semaphore = self.semaphore.clone();
        let mut state = semaphore.state();
        let permit = || Poll::Ready(Ok(FairPermit { semaphore: semaphore.clone(), owner: self.owner }));
        let Some(number) = self.number else {
            // This overtakes no waiter: a waiter whose share allows it was granted its permit already.
            if state.hold(self.owner) {
                return permit();
            }
            if state.waiting.len() >= PERMIT_WAITERS_MAX {
                return Poll::Ready(Err(TooManyWaiters));
            }
            let (number, owner, waker) = (state.arrivals, self.owner, cx.waker().clone());
            state.arrivals += 1;
            state.waiting.push_back(Waiting { number, owner, waker, has_permit: false });
            self.number = Some(number);
            return Poll::Pending;
        };
        let Some(at) = state.find(number) else { return Poll::Pending };
        if !state.waiting[at].has_permit {
            state.waiting[at].waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        state.leave(at);
        let permit = permit();
        self.number = None;
        permit
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.semaphore.state();
        let Some(at) = state.find(number) else { return };
        let has_permit = state.waiting[at].has_permit;
        state.leave(at);
        drop(state);
        if has_permit {
            self.semaphore.release_permit(self.owner);
        }
    }
}

/// A permit, released when it is dropped.
#[derive(Debug)]
pub struct FairPermit {
    semaphore: FairSemaphore,
    owner: PermitOwner,
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        self.semaphore.release_permit(self.owner);
    }
}

#[cfg(test)]
mod tests;
