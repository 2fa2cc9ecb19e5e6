// Convolutions of views, forward and for the input's gradient; see gemm.h.
#include "gemm.h"

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

// A block takes one range of columns and every so many tiles of rows, so that it leaves one row of statistics.
template <typename T> KS_FN void conv_fprop(const ConvFprop& p) {
    KS_DYNAMIC_SHARED(shared);
    bf16* stages = (bf16*)shared;
    const ConvGeometry& g = p.geometry;
    u32 warp = ks_thread() / 32, warp_m = warp % (T::BM / T::WM), warp_n = warp / (T::BM / T::WM);
    u32 column = ks_block_y() * T::BN, tiles = (g.rows + T::BM - 1) / T::BM;
    float* scratch = (float*)(shared + T::BM * T::PITCH * 2);
    Moments running = {0.0f, 0.0f, 0.0f};
    KS_NO_UNROLL
    for (u32 tile = ks_block_x(); tile < tiles; tile += ks_blocks_x()) {
        u32 row = tile * T::BM;
        float sums[T::ROWS][T::PAIRS * 2][4];
        multiply_tile<T>(g, stages, row, column, sums, warp_m, warp_n);
        const float* bias = ks_pointer<const float>(p.bias);
        stage_output<T>(stages, sums, warp_m, warp_n, [&](float v, u32 at) {
            if (bias) v += column + at < g.y.channels ? bias[column + at] : 0.0f;
            return p.silu ? ks_silu(v) : v;
        });
        ks_sync();
        write_tile<T>(g, stages, row, column, [&](V4 values, u64 pixel, u32 channel) {
            if (!p.residual.pointer) return values;
            Eight a = ks_unpack8(values);
            Eight b = ks_unpack8(
                ks_ld16_nc(ks_pointer<const bf16>(p.residual.pointer) + pixel * p.residual.pitch + channel));
            KS_UNROLL
            for (int i = 0; i < 8; i++) a.v[i] += b.v[i];
            return ks_pack8(a);
        });
        if (p.partials) {
            u32 left = g.rows - row;
            tile_moments<T>(stages, scratch, left < T::BM ? left : T::BM, running);
        }
#ifndef MUT_NO_BARRIER_TILES
        ks_sync();
#endif
    }
    if (!p.partials) return;
    u32 mine = column + ks_thread(), channels = g.y.channels;
    if (ks_thread() < T::BN && mine < channels) {
        float* partials = ks_pointer<float>(p.partials) + (u64)ks_block_x() * 3 * channels + mine;
        partials[0] = running.n;
        partials[channels] = running.mean;
        partials[2 * channels] = running.m2;
    }
    if (!is_last_block(ks_pointer<u32>(p.counters) + ks_block_y(), ks_blocks_x())) return;
    finalize<T::THREADS, T::BN>(p.norm, p.partials, ks_blocks_x(), channels, column, (float*)shared);
}

// The gradient of the input: the same product over the output's gradient. A stride of two is four launches, one for
// each parity of row and column, so no pixel is written twice.
template <typename T> KS_FN void conv_dgrad(const ConvDgrad& p) {
    KS_DYNAMIC_SHARED(shared);
    bf16* stages = (bf16*)shared;
    const ConvGeometry& g = p.geometry;
    u32 warp = ks_thread() / 32, warp_m = warp % (T::BM / T::WM), warp_n = warp / (T::BM / T::WM);
    u32 column = ks_block_y() * T::BN, row = ks_block_x() * T::BM;
    float sums[T::ROWS][T::PAIRS * 2][4];
    multiply_tile<T>(g, stages, row, column, sums, warp_m, warp_n);
    stage_output<T>(stages, sums, warp_m, warp_n, [&](float v, u32) { return v; });
    ks_sync();
    write_tile<T>(g, stages, row, column, [&](V4 values, u64 pixel, u32 channel) {
        if (!p.accumulate) return values;
        Eight a = ks_unpack8(values);
        Eight b = ks_unpack8(ks_ld16(ks_pointer<const bf16>(g.y.pointer) + pixel * g.y.pitch + channel));
        KS_UNROLL
        for (int i = 0; i < 8; i++) a.v[i] += b.v[i];
        return ks_pack8(a);
    });
}

KS_KERNEL(conv_fprop_128x16, ConvFprop, 128, 4) { conv_fprop<Tile<128, 16, 4, 1>>(p); }
KS_KERNEL(conv_fprop_128x32, ConvFprop, 128, 4) { conv_fprop<Tile<128, 32, 4, 1>>(p); }
KS_KERNEL(conv_fprop_128x64, ConvFprop, 128, 3) { conv_fprop<Tile<128, 64, 2, 2>>(p); }
KS_KERNEL(conv_fprop_64x64, ConvFprop, 128, 4) { conv_fprop<Tile<64, 64, 2, 2>>(p); }
KS_KERNEL(conv_fprop_128x128, ConvFprop, 256, 2) { conv_fprop<Tile<128, 128, 2, 4>>(p); }
KS_KERNEL(conv_dgrad_128x16, ConvDgrad, 128, 4) { conv_dgrad<Tile<128, 16, 4, 1>>(p); }
KS_KERNEL(conv_dgrad_128x32, ConvDgrad, 128, 4) { conv_dgrad<Tile<128, 32, 4, 1>>(p); }
KS_KERNEL(conv_dgrad_128x64, ConvDgrad, 128, 3) { conv_dgrad<Tile<128, 64, 2, 2>>(p); }
KS_KERNEL(conv_dgrad_64x64, ConvDgrad, 128, 4) { conv_dgrad<Tile<64, 64, 2, 2>>(p); }
KS_KERNEL(conv_dgrad_128x128, ConvDgrad, 256, 2) { conv_dgrad<Tile<128, 128, 2, 4>>(p); }
