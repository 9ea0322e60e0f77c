//! The numbers of requests and responses, and nothing else. Source: wire-protocol sheet 2 and 3.
