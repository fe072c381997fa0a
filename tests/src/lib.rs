//! The harness of the tests against real servers.
//!
//! - [`Server`] is one server process with the module loaded, on its own port and in its own directory.
//! - [`Client`] speaks RESP2 or RESP3 and shows each [`Reply`] exactly as it was on the wire.
//! - [`ReplicationStream`] and [`appended_commands`] show what replicas and the AOF are sent.
//! - [`Link`] is a replication link that breaks as networks do.
//! - [`Proxy`] stands between clients and a server, and loses requests and replies.
//! - [`Cluster`] is three primaries and their replicas, whose slots can be moved.
//! - [`Crowd`] is connections by the thousand.
//! - [`Sentinels`] watch a primary, and promote a replica when it is gone.
//! - [`eventually`] waits for a condition. It is the only place that lets time go by: a test never sleeps.
//!
//! The environment chooses what is tested: `LOCKWARD_SERVER` the server program (`redis-server`), `LOCKWARD_MODULE` the
//! module (`target/release/liblockward.so`), `LOCKWARD_PANIC_MODULE` the module built with the feature `panic-probe`
//! (`target/panic-probe/release/liblockward.so`), `LOCKWARD_EMPTY_MODULE` a module that does nothing but give commands
//! (`target/release/libempty_module.so`). `LOCKWARD_CHECKED=1` says that the servers run under a checker of their memory:
//! they are then asked to end in order, so that it tells of leaks.
//!
//! `LOCKWARD_LONG=1` chooses how much: tests that try their luck many times then take the larger number of [`rounds`].
//! They claim the same in both forms; the long one is for nights, releases, and the hunt for a rare fault. What they do
//! at random follows from a seed that they print; `LOCKWARD_SEED` gives them the seed.

mod client;
mod clock;
mod cluster;
mod crowd;
mod disk;
mod link;
mod locks;
mod process;
mod proxy;
mod random;
mod reply;
mod resp;
mod rounds;
mod sentinel;
mod server;
mod shim;
mod stream;
mod wait;

pub use client::{Client, Command, Silence};
pub use clock::WallClock;
pub use cluster::{Cluster, ClusterClient, Redirection, SlotMove, slot_of};
pub use crowd::Crowd;
pub use disk::{Disk, appended_files};
pub use link::Link;
pub use locks::{Grant, Holder, Info, Waiter};
pub use process::{Directory, ProcessGroup, built_file, free_port, repository, server_program};
pub use proxy::{Fate, Losses, Proxy};
pub use random::Random;
pub use reply::Reply;
pub use resp::{NoReply, decode, encode};
pub use rounds::rounds;
pub use sentinel::Sentinels;
pub use server::{Refusal, Server, Setup};
pub use shim::compiled;
pub use stream::{ReplicationStream, Sent, appended_commands, commands_in};
pub use wait::{DEADLINE, eventually, soon};
