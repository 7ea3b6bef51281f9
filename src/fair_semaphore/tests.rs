use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;

/// Counts how often it was woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll(wait: &mut Acquire, bell: &Arc<Bell>) -> Poll<Result<FairPermit, TooManyWaiters>> {
    let waker = Waker::from(bell.clone());
    Pin::new(wait).poll(&mut Context::from_waker(&waker))
}

fn take(semaphore: &FairSemaphore, owner: u64) -> Option<FairPermit> {
    match poll(&mut semaphore.acquire(PermitOwner(owner)), &Arc::default()) {
        Poll::Ready(permit) => Some(permit.expect("few wait")),
        Poll::Pending => None,
    }
}

#[test]
fn an_owner_has_its_own_permit_and_a_share_of_the_common_ones() {
    let halves = Share { own: 0, common: 16 };
    let own = Share { own: 3, common: 8 };
    // Permits that each owner wants, one owner after the other, without a release: permits that they get.
    for (share, wanted, expected) in [
        (halves, &[40][..], &[8][..]),
        (halves, &[3, 40], &[3, 7]),
        (halves, &[40, 40], &[8, 4]),
        (halves, &[40, 40, 40, 1, 1], &[8, 4, 2, 1, 1]),
        (halves, &[40; 8], &[8, 4, 2, 1, 1, 0, 0, 0]),
        (halves, &[1; 18], &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]),
        (own, &[40], &[5]),
        (own, &[40, 40, 40], &[5, 3, 2]),
        // The owners after the third have no permit of their own.
        (own, &[40, 40, 40, 40, 40], &[5, 3, 2, 1, 0]),
        (own, &[1; 12], &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]),
        (Share { own: 4, common: 0 }, &[2; 5], &[1, 1, 1, 1, 0]),
        (Share { own: 0, common: 1 }, &[2, 2], &[1, 0]),
    ] {
        let semaphore = FairSemaphore::new(share);
        let mut held = Vec::new();
        let mut got = Vec::new();
        for (owner, wanted) in (1..).zip(wanted) {
            let mine: Vec<FairPermit> = (0..*wanted).map_while(|_| take(&semaphore, owner)).collect();
            got.push(mine.len());
            held.push(mine);
        }
        assert_eq!(got, expected, "{share:?} {wanted:?}");
        assert!(semaphore.held() <= share.most());
        drop(held);
        assert_eq!(semaphore.held(), 0);
    }
}

#[test]
fn the_owner_with_fewest_permits_is_next_and_among_equals_the_longest_wait() {
    let semaphore = FairSemaphore::new(Share { own: 0, common: 4 });
    let mut held = vec![take(&semaphore, 1).unwrap(), take(&semaphore, 1).unwrap()];
    held.extend([take(&semaphore, 2).unwrap(), take(&semaphore, 3).unwrap()]);
    let bells: Vec<Arc<Bell>> = (0..4).map(|_| Arc::default()).collect();
    let mut waits: Vec<Acquire> = [1, 2, 4, 5].map(|owner| semaphore.acquire(PermitOwner(owner))).into();
    for (wait, bell) in waits.iter_mut().zip(&bells) {
        assert!(poll(wait, bell).is_pending());
    }
    let rung = || bells.iter().map(|bell| bell.0.load(Ordering::Relaxed)).collect::<Vec<_>>();
    // The first owner's goes to the fourth, which has none and arrived before the fifth.
    held.remove(0);
    assert_eq!(rung(), [0, 0, 1, 0]);
    // The fourth dropped its wait: the fifth gets it.
    drop(waits.remove(2));
    assert_eq!(rung(), [0, 0, 1, 1]);
    let fifth = match poll(&mut waits[2], &bells[3]) {
        Poll::Ready(permit) => permit.unwrap(),
        Poll::Pending => panic!("it has its permit"),
    };
    // The third owner's: the first and the second have one each, and may not take the last one.
    drop(held.pop());
    assert_eq!(rung(), [0, 0, 1, 1]);
    drop(fifth);
    assert_eq!(rung(), [1, 0, 1, 1], "the first came before the second");
    drop((waits, held));
    let state = semaphore.state();
    assert!(state.holders.is_empty() && state.waiting.is_empty());
    assert_eq!((state.holders.capacity(), state.waiting.capacity()), (0, 0), "memory is given back");
}

#[test]
fn waiters_beyond_the_limit_are_refused() {
    let semaphore = FairSemaphore::new(Share { own: 0, common: 1 });
    let permit = take(&semaphore, 1);
    let bell = Arc::default();
    let mut waits: Vec<Acquire> =
        (0..=PERMIT_WAITERS_MAX).map(|_| semaphore.acquire(PermitOwner(2))).collect();
    let mut last = waits.pop().unwrap();
    assert!(waits.iter_mut().all(|wait| poll(wait, &bell).is_pending()));
    assert!(matches!(poll(&mut last, &bell), Poll::Ready(Err(TooManyWaiters))));
    drop(waits);
    assert!(poll(&mut last, &bell).is_pending(), "there is room again");
    drop((permit, last));
    assert_eq!(semaphore.held(), 0);
}

/// In any order: never more permits than the share has, none lost, and an owner without one is next.
#[test]
fn permits_are_acquired_and_released_in_any_order() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let share = Share { own: random.usize(0..4), common: random.usize(1..9) };
        let semaphore = FairSemaphore::new(share);
        let mut held: Vec<FairPermit> = Vec::new();
        let mut waits: Vec<(Acquire, Arc<Bell>)> = Vec::new();
        for step in 0..200 {
            let what = format!("seed {seed}, step {step}, {share:?}");
            match random.u8(0..4) {
                0 | 1 => {
                    let mut wait = semaphore.acquire(PermitOwner(random.u64(0..8)));
                    let bell = Arc::<Bell>::default();
                    match poll(&mut wait, &bell) {
                        Poll::Ready(permit) => held.push(permit.unwrap()),
                        Poll::Pending => waits.push((wait, bell)),
                    }
                }
                2 if !held.is_empty() => drop(held.swap_remove(random.usize(0..held.len()))),
                3 if !waits.is_empty() => drop(waits.swap_remove(random.usize(0..waits.len()))),
                _ => {}
            }
            // Some of the woken waiters poll at once, others later.
            let mut index = 0;
            while index < waits.len() {
                let rung = waits[index].1.0.load(Ordering::Relaxed) > 0;
                let (wait, bell) = &mut waits[index];
                if !random.bool() {
                    index += 1;
                } else if let Poll::Ready(permit) = poll(wait, bell) {
                    assert!(rung, "{what}: granted without a wake");
                    held.push(permit.unwrap());
                    waits.swap_remove(index);
                } else {
                    assert!(!rung, "{what}: woken without a permit");
                    index += 1;
                }
            }
            let state = semaphore.state();
            assert!(state.held() <= share.most(), "{what}: {}", state.held());
            let given = state.waiting.iter().filter(|waiting| waiting.has_permit).count();
            assert_eq!(state.held(), held.len() + given, "{what}");
            assert_eq!(state.waiting.len(), waits.len(), "{what}");
            for waiting in state.waiting.iter().filter(|waiting| !waiting.has_permit) {
                let of = state.of(waiting.owner);
                assert!(
                    !share.may_begin(of, state.holders.len(), state.held()),
                    "{what}: a permit is free, and a waiter may have it"
                );
                assert!(of > 0 || state.held() == share.most(), "{what}: an owner without a permit waits");
            }
        }
        drop((held, waits));
        assert_eq!(semaphore.held(), 0, "seed {seed}");
    }
}
