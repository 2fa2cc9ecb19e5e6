// The last step of a batch's statistics, done by the last block of those that made partial ones. Partials are
// joined in the order of their rows whoever is last, so the bits don't depend on it.
#pragma once
#include "ks.h"
#include "numbers.h"

KS_FN void write_norm(const NormVectors& norm, u32 channel, const Moments& all) {
    float variance = ks_max(all.m2 * ks_rcp(all.n), 0.0f);
    float inverse = ks_rsqrt(variance + norm.epsilon);
    float scale = ks_pointer<const float>(norm.gamma)[channel] * inverse;
    ks_pointer<float>(norm.mean)[channel] = all.mean;
    ks_pointer<float>(norm.inverse_deviation)[channel] = inverse;
    ks_pointer<float>(norm.scale)[channel] = scale;
    ks_pointer<float>(norm.shift)[channel] = ks_pointer<const float>(norm.beta)[channel] - all.mean * scale;
    float* mean = ks_pointer<float>(norm.running_mean) + channel;
    float* deviation = ks_pointer<float>(norm.running_variance) + channel;
    // The running variance is the unbiased one.
    float unbiased = all.m2 * ks_rcp(ks_max(all.n - 1.0f, 1.0f));
    *mean += norm.momentum * (all.mean - *mean);
    *deviation += norm.momentum * (unbiased - *deviation);
}

// Joins `rows` partials of the channels from `first` to `first + COUNT`; `scratch` holds 3 floats a thread.
template <int THREADS, int COUNT>
KS_FN void finalize(const NormVectors& norm, u64 partials, u32 rows, u32 channels, u32 first, float* scratch) {
    constexpr u32 SHARES = THREADS / COUNT;
    u32 column = ks_thread() % COUNT, share = ks_thread() / COUNT, channel = first + column;
    const volatile float* from = ks_pointer<const volatile float>(partials);
    Moments all = {0.0f, 0.0f, 0.0f};
    if (channel < channels) {
        KS_NO_UNROLL
        for (u32 row = share; row < rows; row += SHARES) {
            u64 at = (u64)row * 3 * channels + channel;
            all = ks_join(all, Moments{from[at], from[at + channels], from[at + 2 * channels]});
        }
    }
    scratch[ks_thread()] = all.n;
    scratch[THREADS + ks_thread()] = all.mean;
    scratch[2 * THREADS + ks_thread()] = all.m2;
    ks_sync();
    if (share != 0 || channel >= channels) return;
    KS_NO_UNROLL
    for (u32 other = 1; other < SHARES; other++) {
        u32 at = other * COUNT + column;
        all = ks_join(all, Moments{scratch[at], scratch[THREADS + at], scratch[2 * THREADS + at]});
    }
    write_norm(norm, channel, all);
}

// The statistics of what a block of 256 threads has seen: 8 threads across 64 channels from `first`, 32 down, each with
// the moments of 8 channels. Leaves them as partials, and the norm if this is the last block of its channels.
KS_FN void finish_moments(const NormVectors& norm, u64 partials_at, u64 counters, u32 channels, u32 first, float n,
                          const float (&mean)[8], const float (&m2)[8]) {
    KS_SHARED(float, scratch, 3 * 32 * 64);
    u32 across = ks_thread() % 8, down = ks_thread() / 8;
    KS_UNROLL
    for (int i = 0; i < 8; i++) {
        u32 at = down * 64 + across * 8 + i;
        scratch[at] = n;
        scratch[2048 + at] = mean[i];
        scratch[4096 + at] = m2[i];
    }
#ifndef MUT_NO_BARRIER_STATS
    ks_sync();
#endif
    u32 column = ks_thread(), mine = first + column;
    if (column < 64 && mine < channels) {
        Moments all = {0.0f, 0.0f, 0.0f};
        KS_NO_UNROLL
        for (u32 row = 0; row < 32; row++) {
            u32 at = row * 64 + column;
            all = ks_join(all, Moments{scratch[at], scratch[2048 + at], scratch[4096 + at]});
        }
        float* partials = ks_pointer<float>(partials_at) + (u64)ks_block_x() * 3 * channels + mine;
        partials[0] = all.n;
        partials[channels] = all.mean;
        partials[2 * channels] = all.m2;
    }
    if (!is_last_to_come(ks_pointer<u32>(counters) + ks_block_y(), ks_blocks_x())) return;
    finalize<256, 64>(norm, partials_at, ks_blocks_x(), channels, first, scratch);
}

// Adds a value to eight means and sums of squared deviations.
KS_FN void add_moments(const Eight& values, float& n, float (&mean)[8], float (&m2)[8]) {
    n += 1.0f;
    float share = ks_rcp(n);
    KS_UNROLL
    for (int i = 0; i < 8; i++) {
        float delta = values.v[i] - mean[i];
        mean[i] += delta * share;
        m2[i] += delta * (values.v[i] - mean[i]);
    }
}
