//! The operations, one folder each: shape rule, reference, fast kernels and the tests that they agree.

pub mod conv2d;
pub mod depthwise;
pub mod simd;
pub mod view;
