//! What tests of the running binary share: a server process of their own, a blocking client that speaks frames, and the requests that
//! most tests need. Knows nothing of what the server is made of.
#![allow(dead_code, unused_imports)] // each test binary uses its part
mod client;
mod messages;
mod pair;
mod pop;
mod server;

pub use client::{Client, binary_frame, frame_of_parts, json_frame};
pub use messages::{Message, Pull, Pulled, Sent, batch_of, props, send_ext};
pub use pair::{Node, Pair};
pub use pop::{Pop, PopAnswer, Popped, now_ms};
pub use server::{BINARY, Lease, Process, Server, Shared, free_port, test_dir};
