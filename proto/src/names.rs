//! Topic and group names: legal characters, lengths, the built-in ones. Source: wire-protocol sheet 14.
