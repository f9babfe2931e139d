//! RoCE v2 headers, opcodes and the ICRC: views over bytes, no allocation, no clock, no panic on any input.
