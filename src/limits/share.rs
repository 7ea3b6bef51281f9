//! How a `fair_semaphore` divides its permits. PURE.

/// Permits of a fair semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of owners that have one permit of their own each, whatever other owners hold.
    pub own: usize,
    /// Further permits, common to all. An owner never holds more of these than stay free: alone it has half of them, the next one
    /// half of the rest, and an owner without any may always have the last one.
    pub common: usize,
}

impl Share {
    /// Greatest number of permits that are held at once.
    pub const fn most(self) -> usize {
        self.own + self.common
    }

    /// Whether an owner with `of_owner` permits may have one more, while `owners` owners hold `held` in all.
    pub fn may_begin(self, of_owner: usize, owners: usize, held: usize) -> bool {
        if of_owner == 0 && owners < self.own {
            return true;
        }
        let left = (self.common + owners.min(self.own)).saturating_sub(held);
        of_owner.saturating_sub(self.own.min(1)) < left
    }
}
