//! Maps and sets as sorted vectors, with the API of the standard library's B-trees. PURE.
//!
//! The code of a B-tree is generated for each pair of types, some 3 KiB each in the release binary; a vector's is a tenth of
//! that. Collections here are bounded to some hundreds of entries (`limits`): a lookup is a binary search, and an insertion
//! moves the later entries. A collection with many thousands of random insertions stays a B-tree.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Bound, RangeBounds};

/// A map in the order of its unique keys.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SortedMap<K, V> {
    entries: Vec<(K, V)>,
}

/// A set of unique values in order.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SortedSet<T> {
    map: SortedMap<T, ()>,
}

impl<K, V> SortedMap<K, V> {
    /// An empty map; allocates nothing.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.shrink();
    }

    /// The entries by key.
    pub fn iter(&self) -> Iter<'_, K, V> {
        self.into_iter()
    }

    /// The entries by key, with mutable values.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&K, &mut V)> + DoubleEndedIterator {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// The keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> + DoubleEndedIterator + Clone {
        self.entries.iter().map(|(key, _)| key)
    }

    /// The values by key.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> + DoubleEndedIterator + Clone {
        self.entries.iter().map(|(_, value)| value)
    }

    /// The mutable values by key.
    pub fn values_mut(&mut self) -> impl ExactSizeIterator<Item = &mut V> + DoubleEndedIterator {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// The keys in order.
    pub fn into_keys(self) -> impl ExactSizeIterator<Item = K> {
        self.entries.into_iter().map(|(key, _)| key)
    }

    /// The values by key.
    pub fn into_values(self) -> impl ExactSizeIterator<Item = V> {
        self.entries.into_iter().map(|(_, value)| value)
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
        self.shrink();
    }

    /// The entry with the lowest key.
    pub fn first_key_value(&self) -> Option<(&K, &V)> {
        self.entries.first().map(|(key, value)| (key, value))
    }

    /// The entry with the greatest key.
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.entries.last().map(|(key, value)| (key, value))
    }

    /// Removes and returns the entry with the lowest key.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        (!self.entries.is_empty()).then(|| self.take_out(0))
    }

    /// Removes and returns the entry with the greatest key.
    pub fn pop_last(&mut self) -> Option<(K, V)> {
        let last = self.entries.pop();
        self.shrink();
        last
    }

    fn take_out(&mut self, place: usize) -> (K, V) {
        let entry = self.entries.remove(place);
        self.shrink();
        entry
    }

    /// Gives back what a burst has left: three quarters of it are free then. What is kept of it is as much as is in use, so that
    /// the next entries cost nothing, and as many go before it is looked at again.
    fn shrink(&mut self) {
        if self.entries.capacity() > CAPACITY_MIN && self.entries.len() <= self.entries.capacity() / 4 {
            self.entries.shrink_to((2 * self.entries.len()).max(CAPACITY_MIN));
        }
    }
}

/// As few entries keep their room: it is less than what the next page has left.
const CAPACITY_MIN: usize = 8;

impl<K: Ord, V> SortedMap<K, V> {
    /// Index of the key, or the index at which to insert it.
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        // Insertions are often in order.
        match self.entries.last() {
            Some((last, _)) if last.borrow() < key => Err(self.entries.len()),
            Some(_) => self.entries.binary_search_by(|(known, _)| known.borrow().cmp(key)),
            None => Err(0),
        }
    }

    /// The value of the key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// The entry of the key.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (key, value) = self.entries.get(self.place(key).ok()?)?;
        Some((key, value))
    }

    /// The mutable value of the key.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        self.entries.get_mut(place).map(|(_, value)| value)
    }

    /// True when there is an entry of the key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(key).is_ok()
    }

    /// Inserts the entry; returns the former value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(place) => self.entries.get_mut(place).map(|(_, known)| std::mem::replace(known, value)),
            Err(place) => {
                self.entries.insert(place, (key, value));
                None
            }
        }
    }

    /// Removes the entry; returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    /// Removes and returns the entry.
    pub fn remove_entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let place = self.place(key).ok()?;
        Some(self.take_out(place))
    }

    /// The entry of the key, occupied or vacant.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        let place = self.place(&key);
        Entry { map: self, key, place }
    }

    /// The entries with keys in the range.
    pub fn range<Q: Ord + ?Sized>(&self, range: impl RangeBounds<Q>) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let before = |key: &Q, included: bool| {
            self.entries
                .partition_point(|(known, _)| known.borrow() < key || included && known.borrow() == key)
        };
        let from = match range.start_bound() {
            Bound::Included(key) => before(key, false),
            Bound::Excluded(key) => before(key, true),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(key) => before(key, true),
            Bound::Excluded(key) => before(key, false),
            Bound::Unbounded => self.entries.len(),
        };
        Iter { entries: self.entries.get(from..to).unwrap_or_default().iter() }
    }
}

/// An occupied or vacant entry of [`SortedMap::entry`].
pub struct Entry<'a, K, V> {
    map: &'a mut SortedMap<K, V>,
    key: K,
    place: Result<usize, usize>,
}

impl<'a, K, V> Entry<'a, K, V> {
    /// The present value, or else this one.
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }

    /// The present value, or else that of `make`.
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'a mut V {
        let entries = &mut self.map.entries;
        let place = match self.place {
            Ok(place) => place,
            Err(place) => {
                entries.insert(place, (self.key, make()));
                place
            }
        };
        &mut entries[place].1
    }

    /// The present value, or else the type's default.
    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    /// Changes the present value.
    #[must_use]
    pub fn and_modify(self, change: impl FnOnce(&mut V)) -> Self {
        if let Ok(place) = self.place
            && let Some((_, value)) = self.map.entries.get_mut(place)
        {
            change(value);
        }
        self
    }
}

/// Entries by key.
pub struct Iter<'a, K, V> {
    entries: std::slice::Iter<'a, (K, V)>,
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone() }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.entries.next().map(|(key, value)| (key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.entries.next_back().map(|(key, value)| (key, value))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

impl<'a, K, V> IntoIterator for &'a SortedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        Iter { entries: self.entries.iter() }
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a mut SortedMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = std::iter::Map<std::slice::IterMut<'a, (K, V)>, fn(&'a mut (K, V)) -> (&'a K, &'a mut V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter_mut().map(|(key, value)| (key, value))
    }
}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SortedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        Self::from_iter(entries)
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: PartialOrd, V: PartialOrd> PartialOrd for SortedMap<K, V> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.entries.partial_cmp(&other.entries)
    }
}

impl<K: Ord, V: Ord> Ord for SortedMap<K, V> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.entries.cmp(&other.entries)
    }
}

impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> std::ops::Index<&Q> for SortedMap<K, V> {
    type Output = V;

    /// Panics for a missing key, as the standard library's.
    #[expect(clippy::expect_used, reason = "the contract of Index")]
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the key is there")
    }
}

impl<T> SortedSet<T> {
    /// An empty set; allocates nothing.
    pub const fn new() -> Self {
        Self { map: SortedMap::new() }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// True without values.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.map.clear();
    }

    /// The values in order.
    pub fn iter(&self) -> SetIter<'_, T> {
        self.into_iter()
    }

    /// Keeps the values for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.map.retain(|value, ()| keep(value));
    }

    /// The lowest value.
    pub fn first(&self) -> Option<&T> {
        self.map.first_key_value().map(|(value, ())| value)
    }

    /// The greatest value.
    pub fn last(&self) -> Option<&T> {
        self.map.last_key_value().map(|(value, ())| value)
    }

    /// Removes and returns the lowest value.
    pub fn pop_first(&mut self) -> Option<T> {
        self.map.pop_first().map(|(value, ())| value)
    }
}

impl<T: Ord> SortedSet<T> {
    /// True when the set has the value.
    pub fn contains<Q: Ord + ?Sized>(&self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.map.contains_key(value)
    }

    /// The equal value in the set.
    pub fn get<Q: Ord + ?Sized>(&self, value: &Q) -> Option<&T>
    where
        T: Borrow<Q>,
    {
        self.map.get_key_value(value).map(|(value, ())| value)
    }

    /// Inserts the value; true when it is new.
    pub fn insert(&mut self, value: T) -> bool {
        match self.map.place(&value) {
            Ok(_) => false,
            Err(place) => {
                self.map.entries.insert(place, (value, ()));
                true
            }
        }
    }

    /// Removes the value; true when it was present.
    pub fn remove<Q: Ord + ?Sized>(&mut self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.map.remove_entry(value).is_some()
    }

    /// Removes and returns the value.
    pub fn take<Q: Ord + ?Sized>(&mut self, value: &Q) -> Option<T>
    where
        T: Borrow<Q>,
    {
        self.map.remove_entry(value).map(|(value, ())| value)
    }

    /// True when the sets have no common value.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.iter().all(|value| !other.contains(value))
    }

    /// True when `other` has all values.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|value| other.contains(value))
    }

    /// The values that `other` does not have.
    pub fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> + Clone {
        self.iter().filter(|value| !other.contains(*value))
    }

    /// The values in both sets.
    pub fn intersection<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> + Clone {
        self.iter().filter(|value| other.contains(*value))
    }

    /// The values in the range.
    pub fn range<Q: Ord + ?Sized>(&self, range: impl RangeBounds<Q>) -> SetIter<'_, T>
    where
        T: Borrow<Q>,
    {
        SetIter { entries: self.map.range(range) }
    }
}

/// Values in order.
pub struct SetIter<'a, T> {
    entries: Iter<'a, T, ()>,
}

impl<T> Clone for SetIter<'_, T> {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone() }
    }
}

impl<'a, T> Iterator for SetIter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        self.entries.next().map(|(value, ())| value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl<T> DoubleEndedIterator for SetIter<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.entries.next_back().map(|(value, ())| value)
    }
}

impl<T> ExactSizeIterator for SetIter<'_, T> {}

impl<'a, T> IntoIterator for &'a SortedSet<T> {
    type Item = &'a T;
    type IntoIter = SetIter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        SetIter { entries: self.map.iter() }
    }
}

impl<T> IntoIterator for SortedSet<T> {
    type Item = T;
    type IntoIter = std::iter::Map<std::vec::IntoIter<(T, ())>, fn((T, ())) -> T>;

    fn into_iter(self) -> Self::IntoIter {
        self.map.into_iter().map(|(value, ())| value)
    }
}

impl<T: Ord> Extend<T> for SortedSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        for value in values {
            self.insert(value);
        }
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut set = Self::new();
        set.extend(values);
        set
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SortedSet<T> {
    fn from(values: [T; N]) -> Self {
        Self::from_iter(values)
    }
}

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: PartialOrd> PartialOrd for SortedSet<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.map.partial_cmp(&other.map)
    }
}

impl<T: Ord> Ord for SortedSet<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.map.cmp(&other.map)
    }
}

impl<T: fmt::Debug> fmt::Debug for SortedSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Random operations on a map and on the standard library's: both return the same each time.
    #[test]
    fn a_sorted_map_behaves_as_a_b_tree() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..crate::cases(400) {
            let (mut ours, mut std): (SortedMap<u8, u32>, BTreeMap<u8, u32>) = Default::default();
            for step in 0..200 {
                let key = random.u8(0..24);
                match random.u8(0..9) {
                    0..3 => assert_eq!(ours.insert(key, step), std.insert(key, step)),
                    3 => assert_eq!(ours.remove(&key), std.remove(&key)),
                    4 => assert_eq!(*ours.entry(key).or_insert(step), *std.entry(key).or_insert(step)),
                    5 => {
                        *ours.entry(key).and_modify(|value| *value += 1).or_default() += 1;
                        *std.entry(key).and_modify(|value| *value += 1).or_default() += 1;
                    }
                    6 => {
                        ours.retain(|of, _| of % 5 != key % 5);
                        std.retain(|of, _| of % 5 != key % 5);
                    }
                    7 => {
                        let to = key.saturating_add(6);
                        assert!(ours.range(key..to).eq(std.range(key..to)));
                        assert!(ours.range(..=key).eq(std.range(..=key)));
                        let beyond = (Bound::Excluded(key), Bound::Unbounded);
                        assert!(ours.range(beyond).rev().eq(std.range(beyond).rev()));
                    }
                    _ => assert_eq!(ours.pop_first(), std.pop_first()),
                }
                assert!(ours.iter().eq(&std), "{ours:?} {std:?}");
                assert_eq!(
                    (ours.get(&key), ours.contains_key(&key)),
                    (std.get(&key), std.contains_key(&key))
                );
                assert_eq!(ours.last_key_value(), std.last_key_value());
            }
        }
    }

    #[test]
    fn what_a_burst_has_needed_is_given_back() {
        let full = || (0..1000).map(|key| (key, [key; 4])).collect::<SortedMap<u32, [u32; 4]>>();
        type Way = fn(&mut SortedMap<u32, [u32; 4]>);
        let ways: [Way; 5] = [
            |map| map.retain(|key, _| *key < 10),
            |map| assert!((10..1000).all(|key| map.remove(&key).is_some())),
            |map| assert!((10..1000).all(|_| map.pop_first().is_some())),
            |map| assert!((10..1000).all(|_| map.pop_last().is_some())),
            SortedMap::clear,
        ];
        for way in ways {
            let mut map = full();
            way(&mut map);
            let capacity = map.entries.capacity();
            assert!(map.len() <= 10 && capacity <= 40, "{} of {capacity}", map.len());
        }
    }

    #[test]
    fn a_few_that_come_and_go_cost_no_allocation() {
        let mut map: SortedMap<u32, u32> = (0..1000).map(|key| (key, key)).collect();
        map.retain(|key, _| *key < 100);
        let capacity = map.entries.capacity();
        for key in 100..180 {
            map.insert(key, key);
        }
        map.retain(|key, _| *key < 60);
        assert_eq!(map.entries.capacity(), capacity);
    }

    #[test]
    fn a_sorted_set_is_as_a_b_tree() {
        let mut random = fastrand::Rng::with_seed(8);
        let mut drawn = || (0..12).map(|_| random.u8(0..16)).collect::<Vec<u8>>();
        let ours = |of: &[u8]| of.iter().copied().collect::<SortedSet<u8>>();
        let std = |of: &[u8]| of.iter().copied().collect::<BTreeSet<u8>>();
        for _ in 0..crate::cases(400) {
            let drawn = [drawn(), drawn()];
            let [one, two] = [ours(&drawn[0]), ours(&drawn[1])];
            let [first, second] = [std(&drawn[0]), std(&drawn[1])];
            assert!(one.iter().eq(&first) && one.difference(&two).eq(first.difference(&second)));
            assert!(one.intersection(&two).eq(first.intersection(&second)));
            assert_eq!(
                (one.is_disjoint(&two), one.is_subset(&two)),
                (first.is_disjoint(&second), first.is_subset(&second))
            );
            assert_eq!(
                (one.first(), one.last(), one.cmp(&two)),
                (first.first(), first.last(), first.cmp(&second))
            );
        }
    }
}
