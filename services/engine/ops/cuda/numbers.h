// Arithmetic that several kernels need, and reductions over a block in a fixed order.
#pragma once
#include "ks.h"

// A quotient to about one unit in the last place, without the compiler's slow path.
KS_FN float ks_divide(float a, float b) {
    float r = ks_rcp(b);
    float q = a * r;
    float better = ks_fma(ks_fma(-q, b, a), r, q);
    // Where the remainder is no number (an infinite divisor, a zero) the plain product is what is meant.
    return better == better ? better : q;
}
// The approximate root, made exact to about one unit in the last place.
KS_FN float ks_root(float v) {
    if (!(v > 0.0f)) return v == 0.0f ? 0.0f : v - v + ks_sqrt(v);
    float r = ks_sqrt(v);
    return ks_fma(ks_fma(-r, r, v), 0.5f * ks_rcp(r), r);
}
KS_FN float ks_exp(float v) {
    // The product is split: its rounding alone would cost several units where v is large.
    float n = ks_floor(v * 1.442695041f + 0.5f);
    float r = ks_fma(n, -0.693359375f, v);
    r = ks_fma(n, 2.12194440e-4f, r);
    return ks_exp2(r * 1.442695041f) * ks_exp2(n);
}
KS_FN float ks_log(float v) { return ks_log2(v) * 0.6931471806f; }
// ln(1 + x) for 0 <= x <= 1, with a small relative error also where x is tiny: 2 artanh(x / (2 + x)).
KS_FN float ks_log1p(float x) {
    float s = ks_divide(x, 2.0f + x), q = s * s;
    float sum = 1.0f / 15.0f;
    sum = ks_fma(sum, q, 1.0f / 13.0f);
    sum = ks_fma(sum, q, 1.0f / 11.0f);
    sum = ks_fma(sum, q, 1.0f / 9.0f);
    sum = ks_fma(sum, q, 1.0f / 7.0f);
    sum = ks_fma(sum, q, 1.0f / 5.0f);
    sum = ks_fma(sum, q, 1.0f / 3.0f);
    sum = ks_fma(sum, q, 1.0f);
    return 2.0f * s * sum;
}
// The logistic function without loss where v is far below zero.
KS_FN float ks_logistic(float v) {
    float decay = ks_exp(-ks_abs(v));
    return ks_divide(v >= 0.0f ? 1.0f : decay, 1.0f + decay);
}
// ln(1 + e^v).
KS_FN float ks_softplus(float v) { return (v < 0.0f ? 0.0f : v) + ks_log1p(ks_exp(-ks_abs(v))); }

// atan(v) for v >= 0: a polynomial on [0, tan(pi/8)] after reduction (Cephes' single-precision coefficients).
KS_FN float ks_atan(float v) {
    float base = 0.0f, x = v;
    if (v > 2.414213562f) {
        base = 1.570796327f;
        x = -ks_rcp(v);
    } else if (v > 0.4142135624f) {
        base = 0.7853981634f;
        x = ks_divide(v - 1.0f, v + 1.0f);
    }
    float z = x * x;
    float sum = 8.05374449538e-2f;
    sum = ks_fma(sum, z, -1.38776856032e-1f);
    sum = ks_fma(sum, z, 1.99777106478e-1f);
    sum = ks_fma(sum, z, -3.33329491539e-1f);
    return base + ks_fma(sum * z, x, x);
}

// The sum over a block of 2^n, at most 256 threads, in the same order for every schedule; every thread gets it. Without
// shuffles: after a `return` that only whole blocks take, older GPUs would check at each whether a thread is missing.
KS_FN float block_sum(float v) {
    KS_SHARED(float, sums, 256);
    ks_sync();
    sums[ks_thread()] = v;
    KS_NO_UNROLL
    for (u32 half = ks_threads() / 2; half > 0; half /= 2) {
#ifndef MUT_NO_BARRIER_SUM
        ks_sync();
#endif
        if (ks_thread() < half) sums[ks_thread()] += sums[ks_thread() + half];
    }
    ks_sync();
    return sums[0];
}
// The same for the largest of 64-bit keys.
KS_FN u64 block_max(u64 v) {
    KS_SHARED(u64, keys, 256);
    ks_sync();
    keys[ks_thread()] = v;
    KS_NO_UNROLL
    for (u32 half = ks_threads() / 2; half > 0; half /= 2) {
        ks_sync();
        if (ks_thread() >= half) continue;
        u64 other = keys[ks_thread() + half];
        if (other > keys[ks_thread()]) keys[ks_thread()] = other;
    }
    ks_sync();
    return keys[0];
}
// How many true values threads before this one have, and in `total` how many there are; `scratch` holds a count a
// warp.
KS_FN u32 block_rank(bool v, u32* scratch, u32& total) {
    u32 lane = ks_thread() % 32, warp = ks_thread() / 32, warps = ks_threads() / 32;
    ks_sync();
    u32 bits = ks_ballot(v);
    if (lane == 0) scratch[warp] = ks_popc(bits);
    ks_sync();
    u32 before = 0;
    total = 0;
    KS_NO_UNROLL
    for (u32 other = 0; other < warps; other++) {
        if (other < warp) before += scratch[other];
        total += scratch[other];
    }
    return before + ks_popc(bits & ((1u << lane) - 1u));
}
// Tells whether this block is the last of `blocks` to come here; the counter is zero again for the next launch.
KS_FN bool is_last_to_come(u32* counter, u32 blocks) {
    KS_SHARED(u32, last, 1);
    ks_fence();
    ks_sync();
    if (ks_thread() == 0) {
        last[0] = ks_atomic_add(counter, 1) == blocks - 1;
#ifndef MUT_LAST_COUNTER_KEPT
        if (last[0]) *counter = 0;
#endif
    }
    ks_sync();
    ks_fence();
    return last[0] != 0;
}
