// What follows a product: the tile is rounded into shared memory, written from there 16 bytes at a time, and its
// statistics are taken.
#pragma once
#include "gemm.h"

// Writes a warp's sums to the staging rows, rounded.
template <typename T, typename F>
KS_FN void stage_output(bf16* staging, const float (&sums)[T::ROWS][T::PAIRS * 2][4], u32 warp_m, u32 warp_n,
                        F&& change) {
    u32 lane = ks_thread() & 31;
    KS_UNROLL
    for (int i = 0; i < T::ROWS; i++) {
        KS_UNROLL
        for (int j = 0; j < T::PAIRS * 2; j++) {
            u32 row = warp_m * T::WM + i * 16 + lane / 4, column = warp_n * T::WN + j * 8 + lane % 4 * 2;
            KS_UNROLL
            for (int half = 0; half < 2; half++) {
                u32 pair = ks_pack(change(sums[i][j][half * 2], column), change(sums[i][j][half * 2 + 1], column + 1));
                *(u32*)(staging + (row + half * 8) * T::PITCH + column) = pair;
            }
        }
    }
}

// The place of a row in the output, which a phase of a strided gradient visits at every other pixel.
KS_FN u64 output_pixel(const ConvGeometry& g, u32 m) {
    if (g.out_step == 1) return m;
    u32 line = ks_quotient(m, g.by_width), x = m - line * g.by_width.divisor;
    u32 image = ks_quotient(line, g.by_height), y = line - image * g.by_height.divisor;
    return ((u64)image * g.out_height + y * g.out_step + g.out_y) * g.out_width + x * g.out_step + g.out_x;
}

// Mean and squared deviations of each column of the staged tile, joined to what the block had. Two passes over the
// rounded values; groups of rows are joined in order.
template <typename T>
KS_FN void tile_moments(const bf16* staging, float* scratch, u32 valid_rows, Moments& running) {
    constexpr u32 EIGHTHS = T::BN / 8, GROUPS = T::THREADS / EIGHTHS, HEIGHT = (T::BM + GROUPS - 1) / GROUPS;
    u32 eighth = ks_thread() % EIGHTHS, group = ks_thread() / EIGHTHS;
    u32 start = group * HEIGHT, end = start + HEIGHT < valid_rows ? start + HEIGHT : valid_rows;
    u32 count = end > start ? end - start : 0;
    float mean[8] = {}, m2[8] = {};
    const bf16* from = staging + start * T::PITCH + eighth * 8;
    KS_NO_UNROLL
    for (u32 row = 0; row < count; row++) {
        Eight v = ks_unpack8(ks_ld16(from + row * T::PITCH));
        KS_UNROLL
        for (int i = 0; i < 8; i++) mean[i] += v.v[i];
    }
    float share = count ? ks_rcp((float)count) : 0.0f;
    KS_UNROLL
    for (int i = 0; i < 8; i++) mean[i] *= share;
    KS_NO_UNROLL
    for (u32 row = 0; row < count; row++) {
        Eight v = ks_unpack8(ks_ld16(from + row * T::PITCH));
        KS_UNROLL
        for (int i = 0; i < 8; i++) m2[i] += (v.v[i] - mean[i]) * (v.v[i] - mean[i]);
    }
    KS_UNROLL
    for (int i = 0; i < 8; i++) {
        scratch[group * T::BN + eighth * 8 + i] = mean[i];
        scratch[GROUPS * T::BN + group * T::BN + eighth * 8 + i] = m2[i];
    }
#ifndef MUT_NO_BARRIER_MOMENTS
    ks_sync();
#endif
    u32 column = ks_thread();
    if (column >= T::BN) return;
    KS_NO_UNROLL
    for (u32 other = 0; other < GROUPS; other++) {
        u32 from_row = other * HEIGHT;
        u32 rows = valid_rows > from_row ? valid_rows - from_row : 0;
        float n = (float)(rows < HEIGHT ? rows : HEIGHT);
        running = ks_join(running, Moments{n, scratch[other * T::BN + column],
                                           scratch[(GROUPS + other) * T::BN + column]});
    }
}

// Writes the staged tile, 16 bytes at a time.
template <typename T, typename F>
KS_FN void write_tile(const ConvGeometry& g, const bf16* staging, u32 row, u32 column, F&& change) {
    constexpr u32 EIGHTHS = T::BN / 8;
    bf16* y = ks_pointer<bf16>(g.y.pointer);
    KS_NO_UNROLL
    for (u32 index = ks_thread(); index < T::BM * EIGHTHS; index += T::THREADS) {
        u32 at_row = index / EIGHTHS, at_column = index % EIGHTHS * 8;
        if (row + at_row >= g.rows || column + at_column >= g.y.channels) continue;
        u64 pixel = output_pixel(g, row + at_row);
        V4 values = ks_ld16(staging + at_row * T::PITCH + at_column);
        ks_st16(y + pixel * g.y.pitch + column + at_column, change(values, pixel, column + at_column));
    }
}

// Rounds, activates and writes a tile, and adds its statistics to the block's. All threads have read their stages.
template <typename T>
KS_FN void write_output(const ConvFprop& p, bf16* staging, float* scratch,
                        const float (&sums)[T::ROWS][T::PAIRS * 2][4], float factor, u32 row, u32 column,
                        Moments& running) {
    const ConvGeometry& g = p.geometry;
    u32 warp = ks_thread() / 32, warp_m = warp % (T::BM / T::WM), warp_n = warp / (T::BM / T::WM);
    const float* bias = ks_pointer<const float>(p.bias);
    stage_output<T>(staging, sums, warp_m, warp_n, [&](float v, u32 at) {
        v *= factor;
        if (bias) v += column + at < g.y.channels ? bias[column + at] : 0.0f;
        return p.silu ? ks_silu(v) : v;
    });
    ks_sync();
    write_tile<T>(g, staging, row, column, [&](V4 values, u64 pixel, u32 channel) {
        if (!p.residual.pointer) return values;
        Eight a = ks_unpack8(values);
        Eight b = ks_unpack8(
            ks_ld16_nc(ks_pointer<const bf16>(p.residual.pointer) + pixel * p.residual.pitch + channel));
        KS_UNROLL
        for (int i = 0; i < 8; i++) a.v[i] += b.v[i];
        return ks_pack8(a);
    });
    if (!p.partials) return;
    u32 left = g.rows - row;
    tile_moments<T>(staging, scratch, left < T::BM ? left : T::BM, running);
}

// Leaves the block's statistics, and the norm if this is the last block of its columns.
template <typename T>
KS_FN void finish_statistics(const ConvFprop& p, u32 column, const Moments& running, float* scratch) {
    if (!p.partials) return;
    u32 mine = column + ks_thread(), channels = p.geometry.y.channels;
    if (ks_thread() < T::BN && mine < channels) {
        float* partials = ks_pointer<float>(p.partials) + (u64)ks_block_x() * 3 * channels + mine;
        partials[0] = running.n;
        partials[channels] = running.mean;
        partials[2 * channels] = running.m2;
    }
    if (!is_last_to_come(ks_pointer<u32>(p.counters) + ks_block_y(), ks_blocks_x())) return;
    finalize<T::THREADS, T::BN>(p.norm, p.partials, ks_blocks_x(), channels, column, scratch);
}
