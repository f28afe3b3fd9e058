//! Sample quantiles, and those of Student's t.

/// The index of the least of `len` sorted values that at least `share` (above 0, at most 1) of all
/// do not exceed: the nearest rank. `None` without values.
pub fn nearest_rank(len: usize, share: f64) -> Option<usize> {
    let rank = (share * len as f64 - RANK_SLACK).ceil().max(1.0) as usize;
    (len > 0).then(|| rank.min(len) - 1)
}

/// The middle value, or the mean of the two in the middle. `None` without values. Reorders.
pub fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    if values.is_empty() {
        return None;
    }
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp);
    Some(match lower.filter(|_| is_even) {
        Some(lower) => f64::midpoint(lower, upper),
        None => upper,
    })
}

/// The value below which Student's t lies with `probability`, from one half up to below one, at
/// `degrees` of freedom, above zero.
///
/// Exact to about 1e-10 of itself: the distribution function is inverted by bisection.
pub fn student_t(probability: f64, degrees: f64) -> f64 {
    let mut above = 1.0;
    while student_t_probability(above, degrees) < probability && above < T_MAX {
        above *= 2.0;
    }
    let mut below = 0.0;
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(below, above);
        match student_t_probability(middle, degrees) < probability {
            true => below = middle,
            false => above = middle,
        }
    }
    f64::midpoint(below, above)
}

/// Keeps a product such as 0.07 · 100 = 7.000000000000001 from being rounded up to the next rank.
const RANK_SLACK: f64 = 1e-9;

/// Larger quantiles are cut off here. One degree of freedom reaches it at 1 − 3e-13.
const T_MAX: f64 = 1e12;
/// Halves [`T_MAX`] until it is below the precision of a number.
const BISECTIONS: u32 = 100;
/// Terms of the continued fraction. With degrees up to a billion fewer than a hundred are needed
/// where it is used.
const FRACTION_TERMS_MAX: u32 = 10_000;

/// With which probability Student's t is below `t`, which is not negative: 1 − I(x; ν/2, 1/2) / 2
/// with x = ν/(ν + t²) (Abramowitz and Stegun 26.7.1, 26.5.27).
fn student_t_probability(t: f64, degrees: f64) -> f64 {
    let square = t * t;
    let (x, rest) = (degrees / (degrees + square), square / (degrees + square));
    1.0 - 0.5 * incomplete_beta(x, rest, degrees / 2.0, 0.5)
}

/// The regularized incomplete beta function I(x; a, b), with `rest` = 1 − x given separately so
/// that it keeps its precision near x = 1.
fn incomplete_beta(x: f64, rest: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if rest <= 0.0 {
        return 1.0;
    }
    let front = (a * x.ln() + b * rest.ln() - ln_beta(a, b)).exp();
    // The fraction converges quickly on the side of the mean where x lies.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(x, a, b) / a
    } else {
        1.0 - front * beta_fraction(rest, b, a) / b
    }
}

/// The continued fraction of the incomplete beta function (Abramowitz and Stegun 26.5.8), by
/// Lentz's method.
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    let nonzero = |value: f64| match value.abs() < f64::MIN_POSITIVE {
        true => f64::MIN_POSITIVE,
        false => value,
    };
    let mut c = 1.0;
    let mut d = 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    for term in 1..=FRACTION_TERMS_MAX {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = value;
        for coefficient in [even, odd] {
            d = 1.0 / nonzero(1.0 + coefficient * d);
            c = nonzero(1.0 + coefficient / c);
            value *= d * c;
        }
        if (value / before - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

/// ln B(a, b). For a large a the gamma functions nearly cancel, so their quotient is expanded.
fn ln_beta(a: f64, b: f64) -> f64 {
    if a > 1e6 {
        // Γ(a)/Γ(a + b) = a^(−b) · (1 − b(b − 1)/(2a) + …), Abramowitz and Stegun 6.1.47.
        return ln_gamma(b) - b * a.ln() + (-b * (b - 1.0) / (2.0 * a)).ln_1p();
    }
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
}

/// ln Γ(x) for x above zero: Stirling's series (Abramowitz and Stegun 6.1.41), after x has been
/// raised to where it is exact.
fn ln_gamma(x: f64) -> f64 {
    const RAISED: f64 = 15.0;
    let (mut raised, mut product) = (x, 1.0_f64);
    while raised < RAISED {
        product *= raised;
        raised += 1.0;
    }
    let square = 1.0 / (raised * raised);
    let series = 1.0 / 12.0
        - square
            * (1.0 / 360.0 - square * (1.0 / 1260.0 - square * (1.0 / 1680.0 - square / 1188.0)));
    (raised - 0.5) * raised.ln() - raised + 0.5 * std::f64::consts::TAU.ln() + series / raised
        - product.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_t_agrees_with_the_printed_tables() {
        for (probability, degrees, printed) in [
            (0.975, 1.0, 12.7062),
            (0.975, 2.0, 4.3027),
            (0.975, 3.0, 3.1824),
            (0.975, 5.0, 2.5706),
            (0.99, 10.0, 2.7638),
            (0.9995, 10.0, 4.5869),
            (0.995, 20.0, 2.8453),
            (0.999, 20.0, 3.5518),
            (0.9995, 30.0, 3.6460),
            (0.95, 60.0, 1.6706),
            (0.9995, 1e9, 3.2905),
            (0.975, 1e9, 1.9600),
        ] {
            let found = student_t(probability, degrees);
            assert!(
                (found - printed).abs() < 6e-5,
                "t({probability}, {degrees}) is {found}, printed {printed}"
            );
        }
        assert!(student_t(0.5, 10.0).abs() < 1e-9);
    }

    /// With one and two degrees of freedom the quantile has a closed form.
    #[test]
    fn student_t_agrees_with_its_closed_forms() {
        for probability in [0.6, 0.9, 0.975, 0.9995, 0.999_999] {
            let cauchy = (std::f64::consts::PI * (probability - 0.5)).tan();
            let off = (student_t(probability, 1.0) / cauchy - 1.0).abs();
            assert!(off < 1e-9, "{probability}: {off}");
            let twice = 2.0 * probability - 1.0;
            let two = twice * (2.0 / (1.0 - twice * twice)).sqrt();
            let off = (student_t(probability, 2.0) / two - 1.0).abs();
            assert!(off < 1e-9, "{probability}: {off}");
        }
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&mut [9.0, 1.0, 4.0, 5.0]), Some(4.5));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn a_rank_is_not_rounded_up_by_the_error_of_a_product() {
        assert_eq!(nearest_rank(100, 0.07), Some(6));
        assert_eq!(nearest_rank(100, 0.99), Some(98));
        assert_eq!(nearest_rank(3, 0.5), Some(1));
        assert_eq!(nearest_rank(3, 1.0), Some(2));
        assert_eq!(nearest_rank(0, 0.5), None);
    }
}
