//! x
pub mod elect;
pub mod raft;
pub mod state;
#[cfg(test)]
mod test_dir;
