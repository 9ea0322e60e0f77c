//! One fixed-length file of the log: name, preallocation, warming, removal.
