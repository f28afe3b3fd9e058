//! An erasure code for few short packets: parity from data, and data from enough of both.
//!
//! Systematic Reed–Solomon over GF(2⁸) with the polynomial x⁸ + x⁴ + x³ + x² + 1 and a Cauchy
//! matrix: byte t of parity i is Σⱼ `dⱼ[t]` / ((128 + i) ⊕ j), shorter data being taken for longer
//! with zeros. Any k of the k data and r parity packets give the k data packets (J. Bloemer et al.,
//! *An XOR-Based Erasure-Resilient Coding Scheme*, ICSI TR-95-048, 1995, §3).
//!
//! It is for groups that are bounded and protected as they pass; codes for large files are made for
//! other sizes: with a field of 2¹⁶ elements a decoder
//! transforms all of them, however few packets there are.

/// Data packets of a group at most.
pub const DATA_MAX: usize = 32;
/// Parity packets of a group at most.
pub const PARITY_MAX: usize = 64;

/// First point of the parity rows; below are those of the data.
const PARITY_POINT: usize = 128;
/// x⁸ + x⁴ + x³ + x² + 1.
const POLYNOMIAL: u16 = 0x11d;

/// Powers of 2, twice over, so that sums of two logarithms need no remainder; and logarithms.
const TABLES: ([u8; 512], [u8; 256]) = tables();

const fn tables() -> ([u8; 512], [u8; 256]) {
    let (mut exp, mut log) = ([0; 512], [0; 256]);
    let (mut power, mut exponent) = (1u16, 0);
    while exponent < 255 {
        exp[exponent] = power as u8;
        exp[exponent + 255] = power as u8;
        log[power as usize] = exponent as u8;
        power <<= 1;
        if power > 255 {
            power ^= POLYNOMIAL;
        }
        exponent += 1;
    }
    (exp, log)
}

/// `parity` packets for `data`, as long as the longest of it.
///
/// # Panics
/// If there are more of either than [`DATA_MAX`] and [`PARITY_MAX`].
pub fn encode(data: &[Vec<u8>], parity: usize) -> Vec<Vec<u8>> {
    assert!(
        data.len() <= DATA_MAX && parity <= PARITY_MAX,
        "groups are bounded"
    );
    let len = data.iter().map(Vec::len).max().unwrap_or(0);
    let one = |row: usize| {
        let mut out = vec![0; len];
        for (column, packet) in data.iter().enumerate() {
            add_multiple(&mut out, packet, coefficient(row, column));
        }
        out
    };
    (0..parity).map(one).collect()
}

/// The missing ones of `data`, by place, each as long as the parity packets; `None` if there is
/// less parity than is missing, or it is no group.
///
/// `parity`: place and packet, all of one length, no place twice.
pub fn recover(data: &[Option<&[u8]>], parity: &[(usize, &[u8])]) -> Option<Vec<(usize, Vec<u8>)>> {
    let places = 0..data.len();
    let missing: Vec<usize> = places.filter(|place| data[*place].is_none()).collect();
    let rows = parity.get(..missing.len())?;
    let Some((_, first)) = rows.first() else {
        return Some(Vec::new());
    };
    let len = first.len();
    let bounded = data.len() <= DATA_MAX && rows.iter().all(|(row, _)| *row < PARITY_MAX);
    let fits = |packet: &&[u8]| packet.len() <= len;
    if !bounded
        || rows.iter().any(|(_, packet)| packet.len() != len)
        || !data.iter().flatten().all(fits)
    {
        return None;
    }
    // What is left of the parity without the data that is there is made of the missing only.
    let mut matrix = Vec::with_capacity(rows.len());
    let mut packets = Vec::with_capacity(rows.len());
    for (row, packet) in rows {
        let mut left = packet.to_vec();
        for (column, known) in data.iter().enumerate() {
            if let Some(known) = known {
                add_multiple(&mut left, known, coefficient(*row, column));
            }
        }
        let of_missing = missing.iter().map(|column| coefficient(*row, *column));
        matrix.push(of_missing.collect::<Vec<u8>>());
        packets.push(left);
    }
    solve(&mut matrix, &mut packets)?;
    Some(missing.into_iter().zip(packets).collect())
}

/// Turns `matrix` into the identity, and `packets` into what they are sums of.
fn solve(matrix: &mut [Vec<u8>], packets: &mut [Vec<u8>]) -> Option<()> {
    for step in 0..matrix.len() {
        let pivot = (step..matrix.len()).find(|row| matrix[*row][step] != 0)?;
        matrix.swap(step, pivot);
        packets.swap(step, pivot);
        let factor = inverse(matrix[step][step]);
        scale(&mut matrix[step], factor);
        scale(&mut packets[step], factor);
        let (row, packet) = (matrix[step].clone(), packets[step].clone());
        for other in (0..matrix.len()).filter(|other| *other != step) {
            let factor = matrix[other][step];
            add_multiple(&mut matrix[other], &row, factor);
            add_multiple(&mut packets[other], &packet, factor);
        }
    }
    Some(())
}

/// Of data `column` in parity `row`; never zero.
fn coefficient(row: usize, column: usize) -> u8 {
    inverse(((PARITY_POINT + row) ^ column) as u8)
}

fn inverse(value: u8) -> u8 {
    let (exp, log) = &TABLES;
    exp[255 - usize::from(log[usize::from(value)])]
}

fn product(a: u8, b: u8) -> u8 {
    let (exp, log) = &TABLES;
    if a == 0 || b == 0 {
        return 0;
    }
    exp[usize::from(log[usize::from(a)]) + usize::from(log[usize::from(b)])]
}

fn scale(bytes: &mut [u8], factor: u8) {
    for byte in bytes {
        *byte = product(*byte, factor);
    }
}

/// Adds `factor` times `of` to the beginning of `to`, which is as long at least.
fn add_multiple(to: &mut [u8], of: &[u8], factor: u8) {
    if factor == 0 {
        return;
    }
    if of.len() < 256 {
        for (to, of) in to.iter_mut().zip(of) {
            *to ^= product(*of, factor);
        }
        return;
    }
    // One line of the multiplication table: the packet is longer.
    let mut line = [0; 256];
    for (value, entry) in (0..=255).zip(&mut line) {
        *entry = product(value, factor);
    }
    for (to, of) in to.iter_mut().zip(of) {
        *to ^= line[usize::from(*of)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gf_256_satisfies_the_field_axioms() {
        for a in 1..=255 {
            assert_eq!(product(a, inverse(a)), 1, "{a}");
            assert_eq!(product(a, 1), a);
        }
        // 2⁸ = x⁴ + x³ + x² + 1.
        assert_eq!(product(128, 2), 0x1d);
    }

    #[test]
    fn any_k_of_a_group_recover_all_of_it() {
        for (k, r) in [(1, 1), (2, 2), (3, 2), (4, 2), (4, 4), (5, 3)] {
            let data: Vec<Vec<u8>> = (0..k)
                .map(|i| (0..7 + i).map(|t| (i * 31 + t * 7 + 1) as u8).collect())
                .collect();
            let parity = encode(&data, r);
            for lost in 0u32..1 << (k + r) {
                let came = |place: usize| lost >> place & 1 == 0;
                let known: Vec<Option<&[u8]>> =
                    (0..k).map(|i| came(i).then_some(&data[i][..])).collect();
                let rows: Vec<(usize, &[u8])> = (0..r)
                    .filter(|i| came(k + i))
                    .map(|i| (i, &parity[i][..]))
                    .collect();
                let missing = known.iter().filter(|packet| packet.is_none()).count();
                let found = recover(&known, &rows);
                if rows.len() < missing {
                    assert_eq!(found, None, "{k} {r} {lost:b}");
                    continue;
                }
                for (place, packet) in found.expect("as many as are missing") {
                    let own = &data[place];
                    assert_eq!(&packet[..own.len()], own, "{k} {r} {lost:b}");
                    assert!(packet[own.len()..].iter().all(|byte| *byte == 0));
                }
            }
        }
    }

    proptest! {
        #[test]
        fn large_groups_come_back(
            data in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 1..400), 1..=DATA_MAX),
            parity in 1usize..=PARITY_MAX,
            order in any::<u64>(),
        ) {
            let rows = encode(&data, parity);
            // Loses as many as there is parity for, scattered.
            let k = data.len();
            let lost: Vec<bool> = (0..k)
                .map(|i| order.rotate_left(i as u32 * 7) & 1 == 1)
                .scan(parity, |left, lost| {
                    let lost = lost && *left > 0;
                    *left -= usize::from(lost);
                    Some(lost)
                })
                .collect();
            let known: Vec<Option<&[u8]>> = (0..k).map(|i| (!lost[i]).then_some(&data[i][..])).collect();
            let last: Vec<(usize, &[u8])> =
                rows.iter().enumerate().rev().map(|(i, p)| (i, &p[..])).collect();
            for (place, packet) in recover(&known, &last).expect("enough parity") {
                prop_assert_eq!(&packet[..data[place].len()], &data[place][..]);
            }
        }

        #[test]
        fn invalid_groups_are_refused(
            data in proptest::collection::vec(any::<Option<Vec<u8>>>(), 0..40),
            parity in proptest::collection::vec((0usize..80, any::<Vec<u8>>()), 0..40),
        ) {
            let data: Vec<Option<&[u8]>> = data.iter().map(Option::as_deref).collect();
            let parity: Vec<(usize, &[u8])> = parity.iter().map(|(i, p)| (*i, &p[..])).collect();
            let _ = recover(&data, &parity);
        }
    }
}
