//! The aligned buffer being filled and the tail block carried to the next batch.
