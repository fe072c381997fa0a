//! The claims of Lockward, tested on real servers: one test a claim, each on its own server.

mod server {
    mod harness;
}
