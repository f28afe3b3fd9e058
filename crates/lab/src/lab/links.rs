//! Changes of links while the laboratory runs, and the emulator's reports.

use std::sync::Mutex;

use keiro_link::{LinkConfig, Trace};
use keiro_units::Instant;

use super::{
    Lab, LabError,
    children::lock,
    iproute::Batch,
    make::{Side, outer_device},
    namespace_name,
};
use crate::{
    emulator::{Direction, Queueing, Report},
    topology::{Emulation, LinkPlan, WIRE},
};

/// A link of a running laboratory.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    lab: &'a Lab,
    name: &'a str,
    plan: &'a LinkPlan,
    /// The configuration in force; `None` for a plain link.
    current: Option<&'a Mutex<Emulation>>,
}

impl Lab {
    /// The link called `name`.
    ///
    /// # Errors
    /// [`LabError::Unknown`], with the nearest existing name.
    pub fn link(&self, name: &str) -> Result<Link<'_>, LabError> {
        let (name, plan) = self
            .topology
            .links
            .get_key_value(name)
            .ok_or_else(|| LabError::unknown("link", name, self.topology.links.keys()))?;
        Ok(Link {
            lab: self,
            name,
            plan,
            current: self.emulations.get(name),
        })
    }

    /// The emulator's report; `None` if no link is emulated.
    ///
    /// # Errors
    /// The emulator or the laboratory has ended.
    pub fn emulator_report(&self) -> Result<Option<Report>, LabError> {
        self.teardown.step(|made| {
            let report = made.emulator.as_ref().map(|emulator| emulator.report());
            Ok(report.transpose()?)
        })
    }

    /// Resets the emulator's recorded lateness, so that the set-up of an experiment does not count. Does
    /// nothing if no link is emulated.
    ///
    /// # Errors
    /// The emulator or the laboratory has ended.
    pub fn measure_from_now(&self) -> Result<(), LabError> {
        self.teardown.step(|made| {
            let measured = made
                .emulator
                .as_ref()
                .map(|emulator| emulator.measure_from_now());
            Ok(measured.unwrap_or(Ok(()))?)
        })
    }
}

impl Link<'_> {
    /// Its name, which its devices in the hosts have too.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Its definition in the topology.
    pub fn plan(&self) -> &LinkPlan {
        self.plan
    }

    /// The configuration in force; `None` for a plain link.
    pub fn current(&self) -> Option<Emulation> {
        self.current.map(|current| lock(current).clone())
    }

    /// Changes one direction, and returns the time on the machine's monotonic clock.
    /// [`keiro_link::Link::apply`] describes what happens to packets in transit.
    ///
    /// # Errors
    /// [`LabError::NotEmulated`] for a plain link; the emulator or the laboratory has ended.
    pub fn set(&self, direction: Direction, config: LinkConfig) -> Result<Instant, LabError> {
        let mut current = lock(self.emulation()?);
        let at = self.apply(direction, &config)?;
        match direction {
            Direction::AToB => current.a_to_b = config,
            Direction::BToA => current.b_to_a = config,
        }
        Ok(at)
    }

    /// Applies `change` to both directions, one after the other; returns the time of the second change.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn change(&self, change: impl Fn(&mut LinkConfig)) -> Result<Instant, LabError> {
        let mut current = lock(self.emulation()?);
        change(&mut current.a_to_b);
        change(&mut current.b_to_a);
        self.apply(Direction::AToB, &current.a_to_b)?;
        self.apply(Direction::BToA, &current.b_to_a)
    }

    /// Lets one direction replay a recording from its beginning, instead of a rate; `None` returns to the
    /// rate. Returns the time of the beginning on the machine's monotonic clock.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn replay(&self, direction: Direction, trace: Option<Trace>) -> Result<Instant, LabError> {
        let mut current = lock(self.emulation()?);
        let at = self.lab.teardown.step(|made| match &made.emulator {
            Some(emulator) => Ok(emulator.replay(self.name, direction, trace.clone())?),
            None => Err(LabError::NotEmulated(self.name.to_owned())),
        })?;
        current.recordings[usize::from(direction == Direction::BToA)] = trace;
        Ok(at)
    }

    /// Begins to measure how long packets of one direction wait for others. Returns what was measured since
    /// the last call; `None` for the first.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn measure_queueing(&self, direction: Direction) -> Result<Option<Queueing>, LabError> {
        self.lab.teardown.step(|made| match &made.emulator {
            Some(emulator) => Ok(emulator.measure_queueing(self.name, direction)?),
            None => Err(LabError::NotEmulated(self.name.to_owned())),
        })
    }

    /// Cuts the path: all packets are lost, and both ends keep their carrier.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn cut(&self) -> Result<Instant, LabError> {
        self.change(|config| config.down = true)
    }

    /// Undoes [`cut`](Self::cut).
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn mend(&self) -> Result<Instant, LabError> {
        self.change(|config| config.down = false)
    }

    /// Unplugs both ends: the hosts lose the carrier and keep addresses and routes.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn unplug(&self) -> Result<(), LabError> {
        self.set_carrier("down")
    }

    /// Undoes [`unplug`](Self::unplug).
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn plug(&self) -> Result<(), LabError> {
        self.set_carrier("up")
    }

    fn set_carrier(&self, state: &str) -> Result<(), LabError> {
        self.emulation()?;
        let wire = namespace_name(&self.lab.name, WIRE);
        let mut batch = Batch::new(&wire);
        for side in Side::BOTH {
            batch.add(format!(
                "link set dev {} {state}",
                outer_device(self.name, side)
            ));
        }
        self.lab.teardown.step(|_| batch.run())
    }

    fn emulation(&self) -> Result<&Mutex<Emulation>, LabError> {
        self.current
            .ok_or_else(|| LabError::NotEmulated(self.name.to_owned()))
    }

    fn apply(&self, direction: Direction, config: &LinkConfig) -> Result<Instant, LabError> {
        self.lab.teardown.step(|made| match &made.emulator {
            Some(emulator) => Ok(emulator.apply(self.name, direction, *config)?),
            None => Err(LabError::NotEmulated(self.name.to_owned())),
        })
    }
}
