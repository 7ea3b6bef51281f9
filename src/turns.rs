//! Turns of what may take long, divided by whom they are for, so that no pod's trouble holds up another pod.
//!
//! ```text
//!     take(party) ─► within its share? ──yes──► Turn ──dropped──► the next: who holds fewest, of these who waits longest
//!                          └──no──► waits ──dropped──► leaves nothing behind
//! ```
//!
//! A turn that is held is not taken back: a container that ignores SIGTERM has its whole grace period. So [`Share`], which is
//! PURE, leaves some of them to whoever comes later.
//!
//! The kubelet has no such bounds: it has a goroutine for each probe (`prober.worker`) and for each container that it stops
//! (`killContainersWithSyncResult`).

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::limits::{Share, TURNS_WAITING_MAX};
use crate::model::PodUid;

/// Whom a turn is for: a pod, or the agent itself. A number: turns are given back by other threads too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Party(u64);

impl From<&PodUid> for Party {
    // Two pods whose UIDs had one hash would share a share, and nothing else.
    fn from(uid: &PodUid) -> Self {
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Turns of one kind. Clones share them.
#[derive(Clone, Debug)]
pub struct Turns(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    share: Share,
    /// The parties that hold turns, and how many each. At most [`Share::most`].
    holders: Vec<(Party, usize)>,
    /// In the order in which they came. At most [`TURNS_WAITING_MAX`].
    waiting: VecDeque<Waiting>,
    came: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    party: Party,
    waker: Waker,
    /// It holds a turn, and has not seen it yet.
    has_turn: bool,
}

/// More wait than may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyWait;

impl fmt::Display for TooManyWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TURNS_WAITING_MAX} others wait for their turn")
    }
}

impl Turns {
    /// Turns that are divided so.
    pub fn new(share: Share) -> Self {
        let state = State { share, holders: Vec::new(), waiting: VecDeque::new(), came: 0 };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Waits for a turn; it is held until what comes is dropped.
    ///
    /// # Errors
    /// Too many wait already.
    pub fn take(&self, party: Party) -> Wait {
        Wait { turns: self.clone(), party, number: None }
    }

    /// How many are held.
    pub fn held(&self) -> usize {
        self.state().held()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, party: Party) {
        let mut state = self.state();
        state.release(party);
        let woken = state.pass_on();
        // What is woken may want the lock.
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn held(&self) -> usize {
        self.holders.iter().map(|(_, held)| held).sum()
    }

    fn of(&self, party: Party) -> usize {
        self.holders.iter().find(|(holder, _)| *holder == party).map_or(0, |(_, held)| *held)
    }

    /// One more turn for it, if it may have one.
    fn hold(&mut self, party: Party) -> bool {
        let may = self.share.may_begin(self.of(party), self.holders.len(), self.held());
        if may {
            match self.holders.iter_mut().find(|(holder, _)| *holder == party) {
                Some((_, held)) => *held += 1,
                None => self.holders.push((party, 1)),
            }
        }
        may
    }

    fn release(&mut self, party: Party) {
        let Some(at) = self.holders.iter().position(|(holder, _)| *holder == party) else { return };
        self.holders[at].1 -= 1;
        if self.holders[at].1 == 0 {
            self.holders.swap_remove(at);
            self.holders.shrink_to(2 * self.holders.len());
        }
    }

    /// Gives free turns to those that wait. Whoever holds fewest goes first: if that one may not begin, nobody may.
    fn pass_on(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        loop {
            let waits = self.waiting.iter().enumerate().filter(|(_, waiting)| !waiting.has_turn);
            let Some((at, party)) = waits
                .min_by_key(|(_, waiting)| self.of(waiting.party))
                .map(|(at, waiting)| (at, waiting.party))
            else {
                return woken;
            };
            if !self.hold(party) {
                return woken;
            }
            self.waiting[at].has_turn = true;
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

/// The wait for a turn. Dropping it ends the wait.
#[derive(Debug)]
pub struct Wait {
    turns: Turns,
    party: Party,
    /// While it stands in the queue.
    number: Option<u64>,
}

impl Future for Wait {
    type Output = Result<Turn, TooManyWait>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let turns = self.turns.clone();
        let mut state = turns.state();
        let turn = || Poll::Ready(Ok(Turn { turns: turns.clone(), party: self.party }));
        let Some(number) = self.number else {
            // Nobody who waits is passed by: who might begin does not wait.
            if state.hold(self.party) {
                return turn();
            }
            if state.waiting.len() >= TURNS_WAITING_MAX {
                return Poll::Ready(Err(TooManyWait));
            }
            let (number, party, waker) = (state.came, self.party, cx.waker().clone());
            state.came += 1;
            state.waiting.push_back(Waiting { number, party, waker, has_turn: false });
            self.number = Some(number);
            return Poll::Pending;
        };
        let Some(at) = state.find(number) else { return Poll::Pending };
        if !state.waiting[at].has_turn {
            state.waiting[at].waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        state.leave(at);
        let turn = turn();
        self.number = None;
        turn
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.turns.state();
        let Some(at) = state.find(number) else { return };
        let has_turn = state.waiting[at].has_turn;
        state.leave(at);
        drop(state);
        if has_turn {
            self.turns.give_back(self.party);
        }
    }
}

/// A turn that is held.
#[derive(Debug)]
pub struct Turn {
    turns: Turns,
    party: Party,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.give_back(self.party);
    }
}

#[cfg(test)]
mod tests;
