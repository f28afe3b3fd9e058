//! The types that a figure may have, and their common form.

use std::time::Duration;

use keiro_units::{Bandwidth, Probability};

/// A figure's value in base units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Integer(u64),
    Real(f64),
    Flag(bool),
}

impl Value {
    /// As a number: flags are 1 or 0.
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Real(value) => value,
            Self::Flag(value) => f64::from(value),
        }
    }

    /// As a whole number, rounded down; negative numbers are 0.
    pub fn as_u64(self) -> u64 {
        match self {
            Self::Integer(value) => value,
            Self::Real(value) => value as u64,
            Self::Flag(value) => u64::from(value),
        }
    }
}

/// A type that a figure may have.
pub trait Quantity: Sized {
    /// In base units; `None` if absent.
    fn to_value(&self) -> Option<Value>;
    /// `None` if the value does not fit.
    fn from_value(value: Value) -> Option<Self>;
}

impl Quantity for u64 {
    fn to_value(&self) -> Option<Value> {
        Some(Value::Integer(*self))
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Integer(value) => Some(value),
            Value::Real(_) | Value::Flag(_) => None,
        }
    }
}

impl Quantity for f64 {
    fn to_value(&self) -> Option<Value> {
        Some(Value::Real(*self))
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Integer(_) | Value::Real(_) => Some(value.as_f64()),
            Value::Flag(_) => None,
        }
    }
}

impl Quantity for bool {
    fn to_value(&self) -> Option<Value> {
        Some(Value::Flag(*self))
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Flag(value) => Some(value),
            Value::Integer(_) | Value::Real(_) => None,
        }
    }
}

/// Seconds.
impl Quantity for Duration {
    fn to_value(&self) -> Option<Value> {
        Some(Value::Real(self.as_secs_f64()))
    }

    fn from_value(value: Value) -> Option<Self> {
        Self::try_from_secs_f64(f64::from_value(value)?).ok()
    }
}

/// Bit/s.
impl Quantity for Bandwidth {
    fn to_value(&self) -> Option<Value> {
        Some(Value::Integer(self.as_bits_per_second()))
    }

    fn from_value(value: Value) -> Option<Self> {
        u64::from_value(value).map(Self::from_bits_per_second)
    }
}

/// From 0 to 1.
impl Quantity for Probability {
    fn to_value(&self) -> Option<Value> {
        Some(Value::Real(self.get()))
    }

    fn from_value(value: Value) -> Option<Self> {
        Self::new(f64::from_value(value)?)
    }
}

impl<T: Quantity> Quantity for Option<T> {
    fn to_value(&self) -> Option<Value> {
        self.as_ref().and_then(T::to_value)
    }

    fn from_value(value: Value) -> Option<Self> {
        T::from_value(value).map(Some)
    }
}
