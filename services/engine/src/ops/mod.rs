//! The operations, one folder each: shape rule, reference, fast kernels and the tests that they agree.

pub mod attention;
pub mod conv2d;
pub mod decode;
pub mod depthwise;
pub mod elementwise;
pub mod max_pool;
pub mod norm;
pub mod simd;
pub mod upsample;
pub mod view;
