//! `librdmacm.so.1`: the RDMA connection manager of rdma-core, over [`uroce::verbs::ConnectionManager`].
//!
//! Both libraries are one file: programs that use one use the other, and the objects of one are the other's.
//!
//! | file | functions |
//! |---|---|
//! | `channel`, `event` | event channels; events, and what happens when a program takes one |
//! | `id` | identifiers, their options, and their end |
//! | `resolve` | from addresses to devices and routes |
//! | `connect` | listening, connecting, accepting, disconnecting |
//! | `queue_pair` | queue pairs of identifiers, and their attributes |
//! | `endpoint` | identifiers that wait by themselves |
//! | `names` | `rdma_getaddrinfo` |
//! | `multicast` | groups |
//! | `host` | a device with its connection manager, and whose events are whose |
//! | `address` | `struct sockaddr` |
//! | `rsockets` | what is not offered |

mod address;
mod channel;
mod connect;
mod endpoint;
mod event;
mod host;
mod id;
mod multicast;
mod names;
mod queue_pair;
mod resolve;
mod rsockets;

pub(crate) use channel::Channel;
pub(crate) use event::Given;
pub(crate) use host::{after_fork, before_fork, close_all};
pub(crate) use id::CmId;
