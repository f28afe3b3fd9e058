//! The macro that declares a set of counters and gauges.

/// Declares a struct of counters and gauges with its [`Stat`](crate::Stat) table.
///
/// ```
/// keiro_stats::stats! {
///     /// One path to one peer.
///     pub struct LinkStats: "link" ["link", "peer"] {
///         counter sent_packets: packets, "IP packets sent";
///         gauge srtt: [seconds], "Smoothed round-trip time";
///     }
/// }
/// use keiro_stats::{Kind, StatSet, Value};
///
/// let stats = LinkStats { sent_packets: 3, srtt: None };
/// assert_eq!(stats.value(0), Some(Value::Integer(3)));
/// assert_eq!(stats.value(1), None);
/// assert_eq!(LinkStats::STATS[0].metric, "keiro_link_sent_packets_total");
/// assert_eq!(LinkStats::STATS[1].name, "srtt_seconds");
/// ```
///
/// A unit in brackets may be absent, and its type is an `Option`. `seconds`, `bits_per_second` and
/// `ratio` have types of their own (`Duration`, `Bandwidth`, `Probability`), so the field's name is
/// without the unit and JSON and metrics add it. Whole things are `u64`, and the field's name ends in
/// what they are (`sent_packets`).
#[macro_export]
macro_rules! stats {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident: $object:literal [$($label:literal),*] {
            $($kind:ident $field:ident: $unit:tt, $help:literal;)+
        }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $name {
            $(#[doc = concat!($help, ".")] pub $field: $crate::stats!(@type $unit),)+
        }

        impl $crate::StatSet for $name {
            const OBJECT: &'static str = $object;
            const LABELS: &'static [&'static str] = &[$($label),*];
            const STATS: &'static [$crate::Stat] = &[$($crate::Stat {
                name: concat!(stringify!($field), $crate::stats!(@suffix $unit)),
                metric: concat!(
                    "keiro_", $object, "_", stringify!($field),
                    $crate::stats!(@suffix $unit), $crate::stats!(@total $kind)
                ),
                kind: $crate::stats!(@kind $kind),
                unit: $crate::stats!(@unit $unit),
                optional: $crate::stats!(@optional $unit),
                help: $help,
            }),+];

            fn value(&self, index: usize) -> Option<$crate::Value> {
                let values = [$($crate::Quantity::to_value(&self.$field)),+];
                values[index]
            }

            fn set(&mut self, index: usize, value: $crate::Value) -> bool {
                let mut at = 0..;
                $(
                    if at.next() == Some(index) {
                        return match $crate::Quantity::from_value(value) {
                            Some(value) => {
                                self.$field = value;
                                true
                            }
                            None => false,
                        };
                    }
                )+
                panic!("no figure {index}");
            }
        }
    )+};

    (@type [$unit:ident]) => { Option<$crate::stats!(@type $unit)> };
    (@type seconds) => { ::std::time::Duration };
    (@type bits_per_second) => { $crate::units::Bandwidth };
    (@type ratio) => { $crate::units::Probability };
    (@type number) => { f64 };
    (@type flag) => { bool };
    (@type $count:ident) => { u64 };

    (@suffix [$unit:ident]) => { $crate::stats!(@suffix $unit) };
    (@suffix seconds) => { "_seconds" };
    (@suffix bits_per_second) => { "_bits_per_second" };
    (@suffix ratio) => { "_ratio" };
    (@suffix $other:ident) => { "" };

    (@unit [$unit:ident]) => { $crate::stats!(@unit $unit) };
    (@unit seconds) => { $crate::Unit::Seconds };
    (@unit bits_per_second) => { $crate::Unit::BitsPerSecond };
    (@unit ratio) => { $crate::Unit::Ratio };
    (@unit number) => { $crate::Unit::Number };
    (@unit flag) => { $crate::Unit::Flag };
    (@unit bytes) => { $crate::Unit::Bytes };
    (@unit $count:ident) => { $crate::Unit::Count(stringify!($count)) };

    (@optional [$unit:ident]) => { true };
    (@optional $unit:ident) => { false };

    (@kind counter) => { $crate::Kind::Counter };
    (@kind gauge) => { $crate::Kind::Gauge };

    (@total counter) => { "_total" };
    (@total gauge) => { "" };
}

/// Declares a struct of counters that count one thing by reason, for a metric with the label
/// `reason`. Each reason's documentation is also its line in the tables of the documentation.
///
/// ```
/// keiro_stats::reasons! {
///     /// Datagrams ignored.
///     pub struct Drops {
///         /// Cut off.
///         truncated,
///         /// Received before.
///         replayed,
///     }
/// }
/// let drops = Drops { truncated: 2, replayed: 0 };
/// assert_eq!(drops.by_reason(), [("truncated", 2), ("replayed", 0)]);
/// assert_eq!(Drops::REASONS[0].help(), "Cut off.");
/// ```
#[macro_export]
macro_rules! reasons {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[doc = $help:literal])+ $reason:ident,)+ }
    )+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $help])+ pub $reason: u64,)+
        }

        impl $name {
            /// Every reason, in the order of declaration.
            pub const REASONS: [$crate::Reason; [$(stringify!($reason)),+].len()] = [
                $($crate::Reason { name: stringify!($reason), doc: concat!($($help),+) }),+
            ];

            /// Every counter with its reason, in the order of declaration.
            pub fn by_reason(&self) -> [(&'static str, u64); Self::REASONS.len()] {
                [$((stringify!($reason), self.$reason)),+]
            }
        }
    )+};
}
