//! Batch reads of BPF hash maps (`bpf(2)`, Linux 5.6), at a hundredth of the cost of single look-ups. Does
//! not load programs.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// Reads maps with keys of `K` and values of `V` bytes, in memory layout.
#[derive(Debug)]
pub struct MapReader<const K: usize, const V: usize> {
    keys: Vec<[u8; K]>,
    values: Vec<[u8; V]>,
}

/// Entries per batch: more than any hash bucket has.
const BATCH: usize = 2048;

// `enum bpf_cmd` of `include/uapi/linux/bpf.h`
const LOOKUP_AND_DELETE_ELEM: libc::c_int = 21;
const LOOKUP_BATCH: libc::c_int = 24;

/// The `batch` member of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct BatchArguments {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// The member of `union bpf_attr` for single elements.
#[repr(C)]
#[derive(Default)]
struct ElementArguments {
    map_fd: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl<const K: usize, const V: usize> Default for MapReader<K, V> {
    fn default() -> Self {
        Self {
            keys: vec![[0; K]; BATCH],
            values: vec![[0; V]; BATCH],
        }
    }
}

impl<const K: usize, const V: usize> MapReader<K, V> {
    /// Passes every entry of a hash map to `each`. Entries that are added or removed meanwhile may be missed
    /// or passed twice.
    ///
    /// # Errors
    /// The descriptor is not a hash map with keys and values of these sizes, or the process may not read it
    /// (CAP_BPF).
    pub fn read(
        &mut self,
        map: &impl AsFd,
        mut each: impl FnMut(&[u8; K], &[u8; V]),
    ) -> io::Result<()> {
        check::<K, V>(map)?;
        // Position of the next batch; hash maps use four bytes, other maps may need more.
        let mut place = [0_u64; 2];
        let mut begun = false;
        loop {
            let mut arguments = BatchArguments {
                in_batch: if begun { place.as_ptr() as u64 } else { 0 },
                out_batch: place.as_mut_ptr() as u64,
                keys: self.keys.as_mut_ptr() as u64,
                values: self.values.as_mut_ptr() as u64,
                count: BATCH as u32,
                map_fd: map.as_fd().as_raw_fd() as u32,
                ..BatchArguments::default()
            };
            // SAFETY: the map's keys and values have K and V bytes, which was checked, so that the
            // kernel writes at most BATCH of each, for which both vectors have room; any bytes are
            // valid there. All pointers are to live memory of this call.
            let result = unsafe { call(LOOKUP_BATCH, &mut arguments) };
            let done = match result {
                Ok(()) => false,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                Err(error) => return Err(error),
            };
            let count = BATCH.min(arguments.count as usize);
            for (key, value) in self.keys.iter().zip(&self.values).take(count) {
                each(key, value);
            }
            if done || count == 0 {
                return Ok(());
            }
            begun = true;
        }
    }

    /// Removes an entry of a hash map and returns its last value (Linux 5.14); `None` if it did not exist.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn take(&self, map: &impl AsFd, key: &[u8; K]) -> io::Result<Option<[u8; V]>> {
        check::<K, V>(map)?;
        let mut value = [0; V];
        let mut arguments = ElementArguments {
            map_fd: map.as_fd().as_raw_fd() as u32,
            key: key.as_ptr() as u64,
            value: value.as_mut_ptr() as u64,
            ..ElementArguments::default()
        };
        // SAFETY: the map's keys and values have K and V bytes, which was checked; the kernel reads
        // one key and writes one value.
        match unsafe { call(LOOKUP_AND_DELETE_ELEM, &mut arguments) } {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The memory safety of reads depends on the sizes of the map's keys and values.
fn check<const K: usize, const V: usize>(map: &impl AsFd) -> io::Result<()> {
    let (mut keys, mut values) = (None, None);
    let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
    for line in std::fs::read_to_string(path)?.lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let number = || value.trim().parse::<usize>().ok();
        match name {
            "key_size" => keys = number(),
            "value_size" => values = number(),
            _ => {}
        }
    }
    match (keys, values) == (Some(K), Some(V)) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("not a BPF map with keys of {K} and values of {V} bytes"),
        )),
    }
}

/// # Safety
/// `T` is the member of `union bpf_attr` that `command` takes, and its pointers are to memory that
/// the command may read and write.
unsafe fn call<T>(command: libc::c_int, arguments: &mut T) -> io::Result<()> {
    // SAFETY: the caller's promise; the kernel takes as much of the union as is said.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(arguments),
            size_of::<T>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_another_size_are_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut reader = MapReader::<8, 8>::default();
        let error = reader.read(&file, |_, _| {}).unwrap_err();
        assert!(error.to_string().contains("keys of 8"), "{error}");
        assert!(reader.take(&file, &[0; 8]).is_err());
    }
}
