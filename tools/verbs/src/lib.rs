//! `libibverbs.so.1` over uroce: the C ABI of rdma-core's libibverbs, with its symbol versions, over [`uroce::verbs`].
//!
//! Unmodified programs run on it: `uroce run` puts it where the loader looks first. What is not offered returns
//! EOPNOTSUPP; a pointer that is not one of ours is EINVAL, whatever it points to ([`slab`]).
//!
//! | file | verbs |
//! |---|---|
//! | `device`, `context` | lists, opening, queries |
//! | `domain`, `thread_domain`, `region`, `buffer`, `window`, `address` | protection domains, memory, address handles |
//! | `completion_channel`, `completion_queue`, `async_event` | completions, and events by descriptors |
//! | `queue_pair`, `srq`, `post`, `work_builder` | queues, and requests in both forms |
//! | `provider`, `kernel`, `strings` | what other libraries import |
//! | `cm` | `librdmacm.so.1`, in the same file |
//! | `redirect` | the files in `/dev` and sysfs that programs look for |
//! | `live`, `marks` | what others can see of the program: its counters, and whether any traffic came here |
//! | `signals` | what would let memory vanish unnoticed |
//! | `abi`, `slab`, `queue`, `lock`, `sync`, `error`, `lifetime`, `options` | below them |

#![allow(clippy::missing_safety_doc, reason = "slots of the operation tables: called by the header's inline functions")]

mod abi;
mod address;
mod async_event;
mod buffer;
mod cm;
mod completion_channel;
mod completion_queue;
mod context;
mod device;
mod domain;
mod error;
mod kernel;
mod lifetime;
mod live;
mod lock;
mod marks;
mod name;
mod options;
mod post;
mod provider;
mod queue;
mod queue_pair;
mod redirect;
mod region;
mod signals;
mod slab;
mod srq;
mod strings;
mod sync;
mod thread_domain;
mod ucx;
mod window;
mod work_builder;
