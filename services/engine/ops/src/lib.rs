//! The operations of the engine, one folder each: shape rule, reference, fast kernels and the tests that they
//! agree; beside them what kernels stand on: views of shared buffers, SIMD, threads. A crate of its own because
//! its kernels, unrolled for each instruction set, take longer to compile than the rest of the engine together.

pub mod attention;
pub mod clock;
pub mod conv2d;
pub mod cuda;
pub mod depthwise;
pub mod elementwise;
pub mod global_pool;
pub mod max_pool;
pub mod norm;
pub mod parallel;
pub mod simd;
pub mod transposed;
pub mod upsample;
pub mod view;
