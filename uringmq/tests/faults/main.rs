//! Known faults of brokers of this kind, each tried from outside on the running binary. The cases and their right outcomes are those of
//! the sheet `known-faults.md`; a test names its cases. After each case [`Server::check_healthy`] makes the two checks that every case
//! has: the process is up, and a healthy client on another connection still sends and pulls.
//!
//! [`Server::check_healthy`]: common::Server::check_healthy
mod admin;
mod clock;
#[path = "../common/mod.rs"]
mod common;
mod durability;
mod extension;
mod fields;
mod filter;
mod full_disk;
mod inner_batch;
mod late_writes;
mod lmq;
mod namesrv;
mod offsets;
mod pop;
mod protocol;
mod query;
mod restart;
mod retry;
mod state;
mod static_topic;
mod store;
mod timers;
mod transactions;
