//! The ROCKETMQ binary header (serialize type 1). Source: wire-protocol sheet 1.3.
