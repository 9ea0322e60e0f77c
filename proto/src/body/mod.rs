//! JSON bodies, a file per family. Shapes: wire-protocol sheet 4, 5.6, 7, 9.
