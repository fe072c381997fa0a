//! Starts servers, clusters, Sentinels and proxies, for the tests, the proofs and the benchmarks.
//!
//! - [`Server`] is one server process with the module loaded, on its own port and in its own directory.
//! - [`Client`] speaks RESP2 or RESP3 and shows each [`Reply`] exactly as on the wire. [`encode`] and [`decode`] work
//!   without a connection.
//! - [`ReplicationStream`] and [`appended_commands`] show the commands that the server writes to replicas and to the
//!   AOF.
//! - [`Link`] is a proxy for replication links that cuts connections or drops data.
//! - [`Proxy`] is a proxy between clients and a server that loses requests and replies.
//! - [`Cluster`] is several primaries, with or without replicas, and can move slots.
//! - [`Sentinels`] monitor a primary, and promote a replica when the primary is down.
//! - [`Listener`] accepts connections, for a test that plays a server.
//! - [`Certificates`] are for servers with TLS.
//! - [`Crowd`] opens thousands of connections.
//! - [`ProcessGroup`], [`Directory`] and [`free_port`] are for processes that are not servers.
//! - [`eventually`] waits for a condition. Tests call it instead of sleeping for a fixed time.
//!
//! Environment variables, with the default values in brackets:
//!
//! - `LOCKWARD_SERVER`: the server program (`redis-server`).
//! - `LOCKWARD_MODULE`: the module (`target/release/liblockward.so`).
//! - `LOCKWARD_PANIC_MODULE`: the module built with the feature `panic-probe`
//!   (`target/panic-probe/release/liblockward.so`).
//! - `LOCKWARD_EMPTY_MODULE`: a module that has a few test commands (`target/release/libempty_module.so`).
//! - `LOCKWARD_CHECKED=1`: the servers run under a memory checker. The tests then shut the servers down normally, so
//!   that the checker reports leaks.
//! - `LOCKWARD_SHIM_OPTIONS`: additional options with which rustc compiles the preloaded libraries, if the server is
//!   for another processor.
//! - `LOCKWARD_SLOWNESS`, read at compile time: all time limits are multiplied by this factor, for slow
//!   servers.
//! - `LOCKWARD_LONG=1`: randomized tests run the larger number of [`rounds`](fn@rounds). With the smaller number, the
//!   tests check the same claims. Set this variable at night, for releases, and in the search for a rare fault.
//! - `LOCKWARD_SEED`: the seed of all random choices. Each randomized test prints its seed.

mod client;
mod clock;
mod cluster;
mod crowd;
mod disk;
mod limits;
mod link;
mod listener;
mod locks;
mod mutex;
mod paths;
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
mod tls;
mod wait;

pub use client::{Client, Command, Silence};
pub use clock::WallClock;
pub use cluster::{Cluster, ClusterClient, Redirection, SlotMove, slot_of};
pub use crowd::Crowd;
pub use disk::{Disk, appended_files};
pub use limits::{own_files, raise_open_files};
pub use link::Link;
pub use listener::Listener;
pub use locks::{Grant, Holder, Info, Waiter};
pub use mutex::locked;
pub use paths::{built_file, repository, server_program};
pub use process::{Directory, ProcessGroup, free_port};
pub use proxy::{Fate, Losses, Proxy};
pub use random::Random;
pub use reply::Reply;
pub use resp::{NoReply, decode, encode};
pub use rounds::rounds;
pub use sentinel::Sentinels;
pub use server::{Refusal, Server, Setup, print_no_logs};
pub use shim::compiled;
pub use stream::{ReplicationStream, Sent, appended_commands, commands_in};
pub use tls::Certificates;
pub use wait::{DEADLINE, eventually, soon};
