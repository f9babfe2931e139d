use std::net::IpAddr;
use std::path::Path;

use crate::congestion::Rate;
use crate::link::device::{Device, Gid};
use crate::link::udp::UdpLink;
use crate::link::xdp::{XdpLink, XdpOpenError};
use crate::link::{Capture, Link, Loopback, Rail, Rails, SharedLink, Tapped};

use super::{LinkKind, OpenError, OpenOptions};

impl OpenOptions {
    /// Opens the link of a device that is made of these interfaces: all over AF_XDP, or all over UDP sockets.
    ///
    /// Returns also why it is not over AF_XDP, unless UDP sockets were requested, or a single address, which has no other
    /// link.
    pub(super) fn open_link(&self, devices: &[Device]) -> Result<(Box<dyn Link>, Option<String>), OpenError> {
        let is_unnamed = self.device.is_none() || self.is_picked;
        let unnamed = devices.iter().find(|device| is_unnamed && device.has_default_route);
        let unnamed = unnamed.map(|device| OpenError::Unnamed { device: device.interface.clone() });
        let single = devices.iter().find_map(|device| Some((device, device.address?)));
        if let Some((device, address)) = single {
            return match self.link {
                LinkKind::Xdp => Err(OpenError::OneAddress { address, interface: device.interface.clone() }),
                LinkKind::Auto | LinkKind::Udp => Ok((self.open_udp(devices)?, None)),
            };
        }
        match (self.link, unnamed) {
            (LinkKind::Udp, _) => Ok((self.open_udp(devices)?, None)),
            (_, Some(error)) => self.or_over_sockets(error, || self.open_udp(devices)),
            (_, None) => self.open_xdp(devices),
        }
    }

    /// UDP sockets in place of AF_XDP, which failed with `error`, where the options allow it: when the kernel or the host
    /// refuses, but not when the options or the capture are wrong.
    fn or_over_sockets(
        &self,
        error: OpenError,
        open: impl FnOnce() -> Result<Box<dyn Link>, OpenError>,
    ) -> Result<(Box<dyn Link>, Option<String>), OpenError> {
        match (self.link, &error) {
            (_, OpenError::Xdp(XdpOpenError::Option { .. }) | OpenError::Capture { .. }) => Err(error),
            // Another program has it, and leaves this one its packets.
            (LinkKind::Auto, _) | (_, OpenError::Xdp(XdpOpenError::Shared { .. })) => {
                Ok((open()?, Some(error.to_string())))
            }
            _ => Err(error),
        }
    }

    fn open_xdp(&self, devices: &[Device]) -> Result<(Box<dyn Link>, Option<String>), OpenError> {
        let open = |device: &Device| XdpLink::open(&device.interface, &self.xdp);
        let opened = match (devices, &self.arbiter) {
            ([device], Some(arbiter)) => return self.open_beside_others(device, arbiter),
            ([device], None) => open(device).map_err(OpenError::from).and_then(|link| self.tap(loopback(link, device))),
            _ => {
                let own = devices.iter().flat_map(addresses).collect();
                let rails = rails(devices, open).map_err(OpenError::from);
                rails.and_then(|rails| self.tap(Loopback::new(rails, devices[0].mac, own)))
            }
        };
        match opened {
            Ok(link) => Ok((link, None)),
            Err(error) => self.or_over_sockets(error, || self.open_udp(devices)),
        }
    }

    /// AF_XDP for this program, and sockets beside it, so that programs with sockets can come and go.
    fn open_beside_others(
        &self,
        device: &Device,
        arbiter: &Path,
    ) -> Result<(Box<dyn Link>, Option<String>), OpenError> {
        let alone = || OpenOptions { arbiter: None, ..self.clone() }.open_xdp(std::slice::from_ref(device));
        // Whoever cannot have sockets there cannot share, and is told why if it cannot have the interface alone either.
        let shared = UdpLink::open_shared(&device.place(), self.udp_offload, arbiter)
            .ok()
            .and_then(|kernel| Some((kernel.slot()?, kernel)));
        let Some((slot, kernel)) = shared else { return alone() };
        match XdpLink::open_shared(&device.interface, &self.xdp, slot) {
            Ok(network) => {
                let link = SharedLink::new(loopback(network, device), kernel, addresses(device));
                Ok((self.tap(link.expect("it has a slot, and the kernel writes its headers"))?, None))
            }
            Err(error) => self.or_over_sockets(error.into(), || {
                self.check_paths(1)?;
                self.tap(kernel)
            }),
        }
    }

    fn check_paths(&self, interfaces: usize) -> Result<(), OpenError> {
        match self.paths.filter(|paths| usize::from(*paths) > interfaces) {
            Some(paths) => Err(OpenError::UdpPaths { paths, interfaces }),
            None => Ok(()),
        }
    }

    fn open_udp(&self, devices: &[Device]) -> Result<Box<dyn Link>, OpenError> {
        self.check_paths(devices.len())?;
        match (devices, &self.arbiter) {
            ([device], Some(arbiter)) => self.tap(UdpLink::open_shared(&device.place(), self.udp_offload, arbiter)?),
            ([device], None) => self.tap(UdpLink::open_with(&device.place(), self.udp_offload)?),
            _ => self.tap(rails(devices, |device| UdpLink::open_with(&device.place(), self.udp_offload))?),
        }
    }

    /// Puts the requested capture and faults around a link.
    fn tap(&self, link: impl Link + 'static) -> Result<Box<dyn Link>, OpenError> {
        let capture = self
            .capture
            .as_deref()
            .map(|file| Capture::create(file).map_err(|source| OpenError::Capture { file: file.to_owned(), source }));
        Ok(match (capture.transpose()?, &self.faults) {
            (None, None) => Box::new(link),
            (capture, faults) => Box::new(Tapped::new(link, capture, *faults)),
        })
    }
}

/// The addresses of a device, in the order of its GID table.
pub(super) fn addresses(device: &Device) -> Vec<IpAddr> {
    device.gids.iter().map(Gid::ip).collect()
}

/// The rate of the interfaces of a device together; `None` when one of them does not report its own.
pub(super) fn line_rate(devices: &[Device]) -> Option<Rate> {
    let speeds = devices.iter().map(|device| device.speed_mbps.map(|speed| u64::from(speed) * 1_000_000));
    speeds.sum::<Option<u64>>().map(Rate::from_bits)
}

/// A link on which the device also reaches itself.
fn loopback<L: Link>(link: L, device: &Device) -> Loopback<L> {
    Loopback::new(link, device.mac, addresses(device))
}

/// One link that combines several; `open` opens each of them.
fn rails<L: Link + 'static, E>(devices: &[Device], open: impl Fn(&Device) -> Result<L, E>) -> Result<Rails, E> {
    let rail = |device| Ok(Rail { link: Box::new(open(device)?), addresses: addresses(device) });
    devices.iter().map(rail).collect::<Result<_, E>>().map(Rails::new)
}
