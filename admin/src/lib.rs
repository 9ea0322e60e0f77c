//! The operators' commands. Now: `uringmq store`, for a store that no broker has open.
pub mod store;
