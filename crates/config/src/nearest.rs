//! The name that was probably meant.

/// The candidate that `written` was probably meant to be; `None` if none is near.
///
/// Near are candidates within one edit per three of their characters, and at least one. Upper and
/// lower case count as equal.
pub fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if written.len() > WRITTEN_BYTES_MAX {
        return None;
    }
    let lower = written.to_lowercase();
    candidates
        .into_iter()
        .take(CANDIDATES_MAX)
        .map(|c| (strsim::damerau_levenshtein(&lower, &c.to_lowercase()), c))
        .filter(|(distance, c)| *distance <= (c.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

/// `; did you mean ...?` for the end of a message, or nothing where no candidate is near.
pub fn did_you_mean<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(written, candidates)
        .map(|near| format!("; did you mean `{near}`?"))
        .unwrap_or_default()
}

/// Longer texts have no nearest name. Ours: the distance takes time and memory by both lengths.
const WRITTEN_BYTES_MAX: usize = 64;
/// Candidates that are compared. Ours: a report of a hundred unknown names stays under a second.
const CANDIDATES_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = ["rate", "delay", "latency_target"];
        assert_eq!(nearest("dealy", known), Some("delay"));
        assert_eq!(nearest("RATE", known), Some("rate"));
        assert_eq!(nearest("latencytarget", known), Some("latency_target"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest(&"x".repeat(65), known), None);
        assert_eq!(did_you_mean("dalay", known), "; did you mean `delay`?");
        assert_eq!(did_you_mean("colour", known), "");
    }
}
