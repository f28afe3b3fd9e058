//! A map for few keys that are looked up with every packet: a sorted vector, which for the paths of a peer is searched
//! in a fraction of the time of a tree and keeps its memory. Adding or removing a key moves those behind it.

/// Values by key, in the order of keys.
#[derive(Clone, Debug)]
pub(crate) struct Table<K, V>(Vec<(K, V)>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + Ord, V> Table<K, V> {
    /// Where a key is, or where it would be.
    fn place(&self, key: K) -> Result<usize, usize> {
        match &self.0[..] {
            [(only, _)] if *only == key => Ok(0),
            entries => entries.binary_search_by(|(other, _)| other.cmp(&key)),
        }
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        let place = self.place(key).ok()?;
        Some(&self.0[place].1)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let place = self.place(key).ok()?;
        Some(&mut self.0[place].1)
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.place(key).is_ok()
    }

    /// The value of a key, which is added if there is none.
    pub(crate) fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        let place = self.place(key).unwrap_or_else(|place| {
            self.0.insert(place, (key, value()));
            place
        });
        &mut self.0[place].1
    }

    pub(crate) fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.get_or_insert_with(key, V::default)
    }

    /// Sets the value of a key; the one that it had.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(key) {
            Ok(place) => Some(std::mem::replace(&mut self.0[place].1, value)),
            Err(place) => {
                self.0.insert(place, (key, value));
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let place = self.place(key).ok()?;
        Some(self.0.remove(place).1)
    }

    /// The first key that is not below `key`.
    pub(crate) fn first_from(&self, key: K) -> Option<K> {
        let place = self.place(key).unwrap_or_else(|place| place);
        self.0.get(place).map(|(key, _)| *key)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keep(*key, value));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (*key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.0.iter().map(|(key, _)| *key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Copy + Ord, V> Extend<(K, V)> for Table<K, V> {
    fn extend<T: IntoIterator<Item = (K, V)>>(&mut self, entries: T) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn table_behaves_like_a_map(steps in proptest::collection::vec((0u8..5, 0u8..8, any::<u16>()), 0..60)) {
            let mut table = Table::default();
            let mut map = BTreeMap::new();
            for (what, key, value) in steps {
                match what {
                    0 => prop_assert_eq!(table.insert(key, value), map.insert(key, value)),
                    1 => prop_assert_eq!(table.remove(key), map.remove(&key)),
                    2 => {
                        let added = *table.get_or_insert_with(key, || value);
                        prop_assert_eq!(added, *map.entry(key).or_insert(value));
                    }
                    3 => {
                        table.retain(|other, _| other != key);
                        map.retain(|other, _| *other != key);
                    }
                    _ => prop_assert_eq!(table.get(key), map.get(&key)),
                }
                prop_assert_eq!(table.first_from(key), map.range(key..).next().map(|(key, _)| *key));
                prop_assert_eq!(table.len(), map.len());
                prop_assert!(table.iter().eq(map.iter().map(|(key, value)| (*key, value))));
            }
        }
    }
}
