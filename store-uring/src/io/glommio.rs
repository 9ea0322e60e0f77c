//! The production io: glommio files, O_DIRECT for the log.
