use std::net::IpAddr;

use crate::link::device::{Device, Gid};
use crate::link::udp::UdpLink;
use crate::link::xdp::{XdpLink, XdpOpenError};
use crate::link::{Capture, Link, Loopback, Rail, Rails, Tapped};

use super::{LinkKind, OpenError, OpenOptions};

impl OpenOptions {
    /// Opens the link of a device that is made of these interfaces: all over AF_XDP, or all over UDP sockets.
    ///
    /// Returns also why it is not over AF_XDP, unless UDP sockets were requested.
    pub(super) fn open_link(&self, devices: &[Device]) -> Result<(Box<dyn Link>, Option<String>), OpenError> {
        let is_unnamed = self.device.is_none() || self.is_picked;
        let unnamed = devices.iter().find(|device| is_unnamed && device.has_default_route);
        let unnamed = unnamed.map(|device| OpenError::Unnamed { device: device.name.clone() });
        let opened = match (self.link, unnamed) {
            (LinkKind::Udp, _) => return Ok((self.open_udp(devices)?, None)),
            (_, Some(error)) => Err(error),
            (_, None) => self.open_xdp(devices),
        };
        match (self.link, opened) {
            (_, Ok(link)) => Ok((link, None)),
            // Falls back when the kernel or the host refuses, but not when the options or the capture are wrong.
            (LinkKind::Auto, Err(error))
                if !matches!(error, OpenError::Xdp(XdpOpenError::Option { .. }) | OpenError::Capture { .. }) =>
            {
                Ok((self.open_udp(devices)?, Some(error.to_string())))
            }
            (_, Err(error)) => Err(error),
        }
    }

    fn open_xdp(&self, devices: &[Device]) -> Result<Box<dyn Link>, OpenError> {
        let open = |device: &Device| XdpLink::open(&device.name, &self.xdp);
        match devices {
            [device] => self.tap(Loopback::new(open(device)?, device.mac, addresses(device))),
            _ => {
                let own = devices.iter().flat_map(addresses).collect();
                self.tap(Loopback::new(rails(devices, open)?, devices[0].mac, own))
            }
        }
    }

    fn open_udp(&self, devices: &[Device]) -> Result<Box<dyn Link>, OpenError> {
        if let Some(paths) = self.paths.filter(|paths| usize::from(*paths) > devices.len()) {
            return Err(OpenError::UdpPaths { paths, interfaces: devices.len() });
        }
        match (devices, &self.arbiter) {
            ([device], Some(arbiter)) => self.tap(UdpLink::open_shared(&device.name, arbiter)?),
            ([device], None) => self.tap(UdpLink::open(&device.name)?),
            _ => self.tap(rails(devices, |device| UdpLink::open(&device.name))?),
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

/// One link that combines several; `open` opens each of them.
fn rails<L: Link + 'static, E>(devices: &[Device], open: impl Fn(&Device) -> Result<L, E>) -> Result<Rails, E> {
    let rail = |device| Ok(Rail { link: Box::new(open(device)?), addresses: addresses(device) });
    devices.iter().map(rail).collect::<Result<_, E>>().map(Rails::new)
}
