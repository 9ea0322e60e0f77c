//! The JSON header (serialize type 0), both ways. A one-pass parser of its own: the header of every message passes here.
