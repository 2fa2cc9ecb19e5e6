// The host back end of ks.h: one fiber per CUDA thread, one block at a time. It is strict where a GPU is merely
// undefined: shared memory starts as NaN in every block, an asynchronous copy arrives only when it is waited for,
// collectives need their whole warp, barriers their whole block, 16-byte accesses their alignment. What it cannot
// see: caches, real reordering of memory, timing, register pressure.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__x86_64__)
#error "the emulator switches stacks with x86-64 instructions"
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

#define KS_FN static inline __attribute__((always_inline))
#define KS_UNROLL
#define KS_NO_UNROLL

namespace emu {

struct Dim {
    u32 x, y, z;
};

// How the threads of a block take turns.
enum Schedule { FORWARD = 0, REVERSE = 1, RANDOM = 2 };

using Entry = void (*)(const void* params);

// A kernel as its source declares it.
struct Kernel {
    const char* name;
    const char* file;
    Entry entry;
    u32 params_size, threads, min_blocks;
    Kernel* next;
};
void add(Kernel* kernel);

struct Run {
    const Kernel* kernel;
    const void* params;
    Dim grid;
    u32 threads, shared_size;
    Schedule schedule;
    u64 seed;
};
// Runs a grid; returns null, or what the kernel did wrong.
const char* run(const Run& run);

// What a thread sees; the fields are read by the accessors below.
struct Here {
    u32 thread, threads;
    Dim block, grid;
    u8* dynamic_shared;
};
Here& here();

[[noreturn]] void fail(const char* what);
void barrier();
// One of 32 threads of a warp arrives with its operands; the last one has `compute` work for all.
void collective(void (*compute)(void** operands), void* operands);
void* shared(const void* key, size_t size);
void copy_later(void* to, const void* from, bool valid);
void commit();
void wait_for_copies(u32 left);

inline void check16(const void* p) {
    if ((uintptr_t)p & 15) fail("a 16-byte access is not aligned");
}

} // namespace emu

#define KS_KERNEL(kernel_name, Params, thread_count, min_block_count)                                         \
    static void kernel_name(const Params& p);                                                                 \
    static void kernel_name##_entry(const void* p) { kernel_name(*(const Params*)p); }                        \
    static struct kernel_name##_registration {                                                                \
        emu::Kernel kernel{#kernel_name,     __FILE__,     kernel_name##_entry, (u32)sizeof(Params),           \
                           (u32)thread_count, (u32)min_block_count, nullptr};                                  \
        kernel_name##_registration() { emu::add(&kernel); }                                                   \
    } kernel_name##_registered;                                                                               \
    static void kernel_name(const Params& p)
#define KS_SHARED(T, name, count)                                                                             \
    static char name##_key;                                                                                   \
    T(&name)[count] = *(T(*)[count])emu::shared(&name##_key, sizeof(T[count]))
#define KS_DYNAMIC_SHARED(name) u8* name = emu::here().dynamic_shared

KS_FN u32 ks_thread() { return emu::here().thread; }
KS_FN u32 ks_threads() { return emu::here().threads; }
KS_FN u32 ks_block_x() { return emu::here().block.x; }
KS_FN u32 ks_block_y() { return emu::here().block.y; }
KS_FN u32 ks_block_z() { return emu::here().block.z; }
KS_FN u32 ks_blocks_x() { return emu::here().grid.x; }
KS_FN u32 ks_blocks_y() { return emu::here().grid.y; }
KS_FN u32 ks_blocks_z() { return emu::here().grid.z; }

KS_FN void ks_sync() { emu::barrier(); }
KS_FN void ks_fence() { __sync_synchronize(); }

KS_FN u32 ks_bits(float v) {
    u32 r;
    memcpy(&r, &v, 4);
    return r;
}
KS_FN float ks_float(u32 v) {
    float r;
    memcpy(&r, &v, 4);
    return r;
}
KS_FN float ks_exp2(float v) { return exp2f(v); }
KS_FN float ks_log2(float v) { return log2f(v); }
KS_FN float ks_rcp(float v) { return 1.0f / v; }
KS_FN float ks_rsqrt(float v) { return 1.0f / sqrtf(v); }
KS_FN float ks_sqrt(float v) { return sqrtf(v); }
KS_FN float ks_fma(float a, float b, float c) { return fmaf(a, b, c); }
KS_FN float ks_min(float a, float b) { return fminf(a, b); }
KS_FN float ks_max(float a, float b) { return fmaxf(a, b); }
KS_FN float ks_abs(float a) { return fabsf(a); }
KS_FN float ks_floor(float a) { return floorf(a); }
KS_FN u32 ks_mulhi(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
KS_FN u32 ks_popc(u32 a) { return (u32)__builtin_popcount(a); }
KS_FN u32 ks_ffs(u32 a) { return (u32)__builtin_ffs((int)a); }
KS_FN u32 ks_clz(u32 a) { return a ? (u32)__builtin_clz(a) : 32; }

KS_FN void ks_copy16(void* shared, const void* from, bool valid) { emu::copy_later(shared, from, valid); }
KS_FN void ks_copy_commit() { emu::commit(); }
template <int N> KS_FN void ks_copy_wait() { emu::wait_for_copies(N); }

KS_FN u32 ks_atomic_add(u32* at, u32 v) { return __atomic_fetch_add(at, v, __ATOMIC_SEQ_CST); }
KS_FN u64 ks_atomic_add(u64* at, u64 v) { return __atomic_fetch_add(at, v, __ATOMIC_SEQ_CST); }
KS_FN u32 ks_atomic_or(u32* at, u32 v) { return __atomic_fetch_or(at, v, __ATOMIC_SEQ_CST); }
KS_FN u32 ks_atomic_cas(u32* at, u32 was, u32 v) {
    __atomic_compare_exchange_n(at, &was, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return was;
}
// Blocks of one launch run on one thread here, so this needs no loop.
KS_FN u32 ks_atomic_max(u32* at, u32 v) {
    u32 was = *at;
    if (v > was) *at = v;
    return was;
}
KS_FN u64 ks_atomic_max(u64* at, u64 v) {
    u64 was = *at;
    if (v > was) *at = v;
    return was;
}

#include "warp.h"
