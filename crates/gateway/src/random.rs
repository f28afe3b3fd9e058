//! Random numbers of the system, for keys and for numbers that no other machine may guess.

use anyhow::Context;

pub(crate) fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).context("the system gives no random numbers")?;
    Ok(bytes)
}
