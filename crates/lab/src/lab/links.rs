//! Changing links while the laboratory runs, and what the emulator says about them.

use std::sync::Mutex;

use keiro_link::LinkConfig;
use keiro_units::Instant;

use super::{
    Lab, LabError,
    children::lock,
    iproute::Batch,
    make::{Side, outer_device},
    namespace_name,
};
use crate::{
    emulator::{Direction, Report},
    lab::WIRE,
    topology::{Emulation, LinkPlan},
};

/// A link of a running laboratory.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    lab: &'a Lab,
    name: &'a str,
    plan: &'a LinkPlan,
    /// What is in force; `None` for a plain link.
    current: Option<&'a Mutex<Emulation>>,
}

impl Lab {
    /// The link called `name`.
    ///
    /// # Errors
    /// [`LabError::Unknown`], with the nearest name that there is.
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

    /// What the emulator has done and how late it was; `None` if no link is emulated.
    ///
    /// # Errors
    /// Where the emulator or the laboratory has ended.
    pub fn emulator_report(&self) -> Result<Option<Report>, LabError> {
        self.teardown.step(|made| {
            let report = made.emulator.as_ref().map(|emulator| emulator.report());
            Ok(report.transpose()?)
        })
    }

    /// Forgets how late the emulator was so far, so that the set-up of an experiment does not
    /// count. Nothing happens where no link is emulated.
    ///
    /// # Errors
    /// Where the emulator or the laboratory has ended.
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

    /// What the topology says about it.
    pub fn plan(&self) -> &LinkPlan {
        self.plan
    }

    /// What is emulated now; `None` for a plain link.
    pub fn current(&self) -> Option<Emulation> {
        self.current.map(|current| lock(current).clone())
    }

    /// Changes one direction, and says when on the machine's monotonic clock. Packets under way
    /// are treated as [`keiro_link::Link::apply`] says.
    ///
    /// # Errors
    /// [`LabError::NotEmulated`] for a plain link; where the emulator or the laboratory has ended.
    pub fn set(&self, direction: Direction, config: LinkConfig) -> Result<Instant, LabError> {
        let mut current = lock(self.emulation()?);
        let at = self.apply(direction, &config)?;
        match direction {
            Direction::AToB => current.a_to_b = config,
            Direction::BToA => current.b_to_a = config,
        }
        Ok(at)
    }

    /// Changes both directions by what `change` makes of them, one after the other; says when the
    /// second was changed.
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

    /// Cuts it somewhere along the path: all packets are lost, and both ends keep their carrier.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn cut(&self) -> Result<Instant, LabError> {
        self.change(|config| config.down = true)
    }

    /// Mends what [`cut`](Self::cut) has cut.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn mend(&self) -> Result<Instant, LabError> {
        self.change(|config| config.down = false)
    }

    /// Pulls the plug at both ends: the hosts lose the carrier and keep addresses and routes.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    pub fn unplug(&self) -> Result<(), LabError> {
        self.set_carrier("down")
    }

    /// Puts in the plug that [`unplug`](Self::unplug) has pulled.
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
