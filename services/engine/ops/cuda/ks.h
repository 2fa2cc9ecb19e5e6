// What kernels are written in: one small surface with two back ends. NVRTC sees inline PTX and needs no CUDA
// header; a host compiler sees the emulator (services/engine/emulator/native/emu.h). README.md says how to use it.
#pragma once

#ifdef __CUDACC_RTC__
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
#define KS_FN __device__ __forceinline__
// Sixteen bytes, the widest access of memory.
struct alignas(16) V4 {
    u32 x, y, z, w;
};
#else
#include "emu.h"
#endif

// A bf16 as its bits: the upper half of a float.
struct bf16 {
    u16 bits;
};

#include "params.h"

#ifdef __CUDACC_RTC__

#define KS_KERNEL(name, Params, threads, min_blocks)                                                      \
    extern "C" __global__ void __launch_bounds__(threads, min_blocks) name(const __grid_constant__ Params p)
#define KS_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#define KS_DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
#define KS_UNROLL _Pragma("unroll")
#define KS_NO_UNROLL _Pragma("unroll 1")

KS_FN u32 ks_thread() { return threadIdx.x; }
KS_FN u32 ks_threads() { return blockDim.x; }
KS_FN u32 ks_block_x() { return blockIdx.x; }
KS_FN u32 ks_block_y() { return blockIdx.y; }
KS_FN u32 ks_block_z() { return blockIdx.z; }
KS_FN u32 ks_blocks_x() { return gridDim.x; }
KS_FN u32 ks_blocks_y() { return gridDim.y; }
KS_FN u32 ks_blocks_z() { return gridDim.z; }

KS_FN void ks_sync() { __syncthreads(); }
KS_FN void ks_syncwarp() { __syncwarp(); }
// Makes this thread's writes visible to other blocks before what it writes next.
KS_FN void ks_fence() { __threadfence(); }

KS_FN u32 ks_bits(float v) { return __float_as_uint(v); }
KS_FN float ks_float(u32 v) { return __uint_as_float(v); }

KS_FN float ks_exp2(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
KS_FN float ks_log2(float v) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
KS_FN float ks_rcp(float v) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
KS_FN float ks_rsqrt(float v) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
KS_FN float ks_sqrt(float v) {
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
KS_FN float ks_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KS_FN float ks_min(float a, float b) { return fminf(a, b); }
KS_FN float ks_max(float a, float b) { return fmaxf(a, b); }
KS_FN float ks_abs(float a) { return fabsf(a); }
KS_FN float ks_floor(float a) { return floorf(a); }
KS_FN u32 ks_mulhi(u32 a, u32 b) { return __umulhi(a, b); }
KS_FN u32 ks_popc(u32 a) { return __popc(a); }
// Position of the lowest set bit plus one, 0 for none.
KS_FN u32 ks_ffs(u32 a) { return __ffs(a); }
KS_FN u32 ks_clz(u32 a) { return __clz(a); }

KS_FN V4 ks_ld16(const void* from) { return *(const V4*)from; }
KS_FN void ks_st16(void* to, V4 v) { *(V4*)to = v; }
// Reads what nobody writes during the launch.
KS_FN V4 ks_ld16_nc(const void* from) {
    V4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

KS_FN u32 ks_shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Copies 16 bytes to shared memory without waiting; writes zeros where `valid` is false and then reads nothing.
KS_FN void ks_copy16(void* shared, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ks_shared_address(shared)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
KS_FN void ks_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's groups are under way.
template <int N> KS_FN void ks_copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Four 8x8 matrices of bf16: lane l gives the address of a row of 16 bytes, receives two elements of each.
KS_FN V4 ks_ldsm4(const void* row) {
    V4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(ks_shared_address(row))
                 : "memory");
    return v;
}
KS_FN V4 ks_ldsm4t(const void* row) {
    V4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(ks_shared_address(row))
                 : "memory");
    return v;
}
// c += a (16x16) * b (16x8), bf16 operands, float sums.
KS_FN void ks_mma(float (&c)[4], V4 a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

KS_FN u32 ks_shuffle_xor(u32 v, u32 mask) { return __shfl_xor_sync(~0u, v, mask); }
KS_FN float ks_shuffle_xor(float v, u32 mask) { return __shfl_xor_sync(~0u, v, mask); }
KS_FN u32 ks_shuffle_down(u32 v, u32 by) { return __shfl_down_sync(~0u, v, by); }
KS_FN float ks_shuffle_down(float v, u32 by) { return __shfl_down_sync(~0u, v, by); }
KS_FN u32 ks_shuffle_from(u32 v, u32 lane) { return __shfl_sync(~0u, v, lane); }
KS_FN float ks_shuffle_from(float v, u32 lane) { return __shfl_sync(~0u, v, lane); }
KS_FN u32 ks_ballot(bool v) { return __ballot_sync(~0u, v); }

// Atomics return what was there. There is none for floats: their order would show in the result.
KS_FN u32 ks_atomic_add(u32* at, u32 v) { return atomicAdd(at, v); }
KS_FN u32 ks_atomic_max(u32* at, u32 v) { return atomicMax(at, v); }
KS_FN u32 ks_atomic_or(u32* at, u32 v) { return atomicOr(at, v); }
KS_FN u32 ks_atomic_cas(u32* at, u32 was, u32 v) { return atomicCAS(at, was, v); }
KS_FN u64 ks_atomic_add(u64* at, u64 v) { return atomicAdd(at, v); }
KS_FN u64 ks_atomic_max(u64* at, u64 v) { return atomicMax(at, v); }

#endif

// From here on the same text for both compilers.

template <typename T> KS_FN T* ks_pointer(u64 address) { return (T*)address; }

KS_FN float ks_widen(bf16 v) { return ks_float((u32)v.bits << 16); }
// Rounds to nearest, ties to even; what is no number stays none.
KS_FN bf16 ks_round(float v) {
    u32 bits = ks_bits(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bf16{(u16)((bits >> 16) | 0x40u)};
    return bf16{(u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
// Two bf16 as they lie in memory, the first in the lower half.
KS_FN u32 ks_pack(float low, float high) { return (u32)ks_round(low).bits | (u32)ks_round(high).bits << 16; }
KS_FN float ks_low(u32 pair) { return ks_float(pair << 16); }
KS_FN float ks_high(u32 pair) { return ks_float(pair & 0xffff0000u); }

// Eight channels: what a thread reads and writes at once.
struct Eight {
    float v[8];
};
KS_FN Eight ks_unpack8(V4 m) {
    return Eight{{ks_low(m.x), ks_high(m.x), ks_low(m.y), ks_high(m.y), ks_low(m.z), ks_high(m.z), ks_low(m.w),
                  ks_high(m.w)}};
}
KS_FN V4 ks_pack8(const Eight& e) {
    return V4{ks_pack(e.v[0], e.v[1]), ks_pack(e.v[2], e.v[3]), ks_pack(e.v[4], e.v[5]), ks_pack(e.v[6], e.v[7])};
}
KS_FN Eight ks_floats8(const float* from) {
    V4 a = ks_ld16(from), b = ks_ld16(from + 4);
    return Eight{{ks_float(a.x), ks_float(a.y), ks_float(a.z), ks_float(a.w), ks_float(b.x), ks_float(b.y),
                  ks_float(b.z), ks_float(b.w)}};
}

// Quotient and remainder by a number the host has prepared; see `FastDiv` in ops/src/cuda/params.rs.
KS_FN u32 ks_quotient(u32 n, const FastDiv& by) { return (ks_mulhi(n, by.magic) + n) >> by.shift; }

KS_FN float ks_sigmoid(float v) { return ks_rcp(1.0f + ks_exp2(-1.442695041f * v)); }
KS_FN float ks_silu(float v) { return v * ks_sigmoid(v); }

// A count with its mean and its sum of squared deviations; empty is all zeros.
struct Moments {
    float n, mean, m2;
};
KS_FN Moments ks_join(const Moments& a, const Moments& b) {
    float n = a.n + b.n;
    if (n == 0.0f) return Moments{0.0f, 0.0f, 0.0f};
    float delta = b.mean - a.mean;
    float share = b.n * ks_rcp(n);
    return Moments{n, a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.n * share};
}
