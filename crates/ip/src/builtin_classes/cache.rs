//! A bounded table by keyed hash, which forgets the entry that was used longest ago.

/// Entries that share a place. Ours: with eight, a table is more than nine tenths full before one in use is displaced.
const WAYS: usize = 8;

/// An entry that can be displaced.
pub(super) trait Aged {
    /// The smallest is displaced first.
    fn age_rank(&self) -> u64;
}

/// A set-associative table. Keys are keyed hashes, so that no sender can choose which entries share a place.
pub(super) struct Cache<V> {
    sets: Vec<Vec<(u64, V)>>,
}

impl<V: Aged> Cache<V> {
    /// At most `entries_max` entries, a power of two; memory is taken as they come.
    pub(super) fn new(entries_max: usize) -> Self {
        debug_assert!(entries_max.is_power_of_two() && entries_max >= WAYS);
        let mut sets = Vec::new();
        sets.resize_with(entries_max / WAYS, Vec::new);
        Self { sets }
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        let set = self.set_of(key);
        let mut found = self.sets[set].iter_mut();
        found.find(|(of, _)| *of == key).map(|(_, value)| value)
    }

    /// Puts `value` in the place of the one with this key, or of the oldest where there is no room.
    pub(super) fn insert(&mut self, key: u64, value: V) -> &mut V {
        let index = self.set_of(key);
        let set = &mut self.sets[index];
        let place = set.iter().position(|(of, _)| *of == key).or_else(|| {
            let oldest = set
                .iter()
                .enumerate()
                .min_by_key(|(_, (_, v))| v.age_rank());
            oldest.filter(|_| set.len() == WAYS).map(|(place, _)| place)
        });
        let place = match place {
            Some(place) => {
                set[place] = (key, value);
                place
            }
            None => {
                set.push((key, value));
                set.len() - 1
            }
        };
        &mut set[place].1
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<V> {
        let set = self.set_of(key);
        let set = &mut self.sets[set];
        let place = set.iter().position(|(of, _)| *of == key)?;
        Some(set.swap_remove(place).1)
    }

    pub(super) fn clear(&mut self) {
        self.sets.iter_mut().for_each(Vec::clear);
    }

    /// Drops values that `keep` refuses; it may change the others.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut V) -> bool) {
        for set in &mut self.sets {
            set.retain_mut(|(_, value)| keep(value));
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.sets.iter().flatten().map(|(_, value)| value)
    }

    fn set_of(&self, key: u64) -> usize {
        (key % self.sets.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Aged for u64 {
        fn age_rank(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn full_bucket_evicts_its_oldest_entry() {
        let mut cache = Cache::new(2 * WAYS);
        for age in 1..=WAYS as u64 {
            // Even keys share a place.
            cache.insert(2 * age, age);
        }
        cache.insert(100, 50);
        assert_eq!(cache.get_mut(2), None);
        assert_eq!(cache.get_mut(4), Some(&mut 2));
        assert_eq!(cache.values().count(), WAYS);
        assert_eq!(cache.remove(100), Some(50));
        cache.insert(4, 9);
        assert_eq!(cache.get_mut(4), Some(&mut 9));
        assert_eq!(cache.values().count(), WAYS - 1);
    }
}
