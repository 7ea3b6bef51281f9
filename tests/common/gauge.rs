//! Detects whether a thread is idle.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// Runs a future and shows whether it is pending.
#[derive(Default)]
pub struct Gauge {
    state: Mutex<GaugeState>,
    woken: Condvar,
}

#[derive(Default)]
struct GaugeState {
    woken: bool,
    idle: bool,
    turns: u64,
}

impl Gauge {
    pub fn block_on<T>(self: &Arc<Self>, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let waker = Waker::from(self.clone());
        let mut cx = Context::from_waker(&waker);
        loop {
            {
                let mut state = self.state.lock().unwrap();
                state.woken = false;
                state.idle = false;
                state.turns += 1;
            }
            if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                return value;
            }
            let mut state = self.state.lock().unwrap();
            while !state.woken {
                state.idle = true;
                state = self.woken.wait(state).unwrap();
            }
            state.idle = false;
        }
    }

    /// The future is pending.
    pub fn idle(&self) -> bool {
        self.state.lock().unwrap().idle
    }

    /// Number of wakes.
    pub fn turns(&self) -> u64 {
        self.state.lock().unwrap().turns
    }
}

impl Wake for Gauge {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock().unwrap();
        state.woken = true;
        state.idle = false;
        drop(state);
        self.woken.notify_one();
    }
}
