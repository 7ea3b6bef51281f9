//! How turns (`turns`) are divided among parties. PURE.

/// How turns are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of parties that have a turn of their own each, whatever other parties hold.
    pub own: usize,
    /// Further turns, common to all. A party never holds more of these than stay free: alone it has half of them, the next one
    /// half of the rest, and a party without any may always have the last one.
    pub common: usize,
}

impl Share {
    /// Greatest number of turns that are held at once.
    pub const fn most(self) -> usize {
        self.own + self.common
    }

    /// Whether a party with `of_party` turns may have one more, while `parties` parties hold `held` in all.
    pub fn may_begin(self, of_party: usize, parties: usize, held: usize) -> bool {
        if of_party == 0 && parties < self.own {
            return true;
        }
        let left = (self.common + parties.min(self.own)).saturating_sub(held);
        of_party.saturating_sub(self.own.min(1)) < left
    }
}
