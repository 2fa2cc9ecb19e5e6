// The gradient of a convolution's weights: a product whose depth is output pixels. Both operands lie in memory with
// depth as rows, so matrices are loaded transposed. A block makes one tap of a tile for a range of pixels; a second
// kernel adds the ranges in their order.
#include "gemm.h"

// A stage is 32 pixels of both operands.
template <int BM_, int BN_, int WARPS_M, int WARPS_N> struct WeightTile {
    static constexpr int BM = BM_, BN = BN_, STAGES = 3, THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, ROWS = WM / 16, PAIRS = WN / 16;
    static constexpr int STAGE = 32 * (BM + BN);
};

// The 16-byte pieces of a pixel's channels, swapped so that eight pixels of a load lie in different banks.
template <int WIDTH> KS_FN u32 place(u32 pixel, u32 piece) {
    constexpr u32 PIECES = WIDTH / 8;
    return pixel * WIDTH + (piece ^ (pixel / (8 / PIECES) & (PIECES - 1))) * 8;
}

template <typename T>
KS_FN void fill(const ConvWgrad& p, bf16* stage, u32 start, u32 end, u32 k, u32 c, const Tap& tap) {
    const ConvGeometry& g = p.geometry;
    constexpr u32 A = T::BM / 8, B = T::BN / 8;
    KS_UNROLL
    for (u32 index = ks_thread(); index < 32 * A; index += T::THREADS) {
        u32 pixel = index / A, piece = index % A, m = start + pixel, channel = k + piece * 8;
        bool valid = m < end && channel < g.y.channels;
        const bf16* dy = ks_pointer<const bf16>(g.y.pointer) + (valid ? (u64)m * g.y.pitch + channel : 0);
        ks_copy16(stage + place<T::BM>(pixel, piece), dy, valid);
    }
    KS_UNROLL
    for (u32 index = ks_thread(); index < 32 * B; index += T::THREADS) {
        u32 pixel = index / B, piece = index % B, m = start + pixel, channel = c + piece * 8;
        RowSource from = row_source(g, m);
        i32 y = from.y + tap.y, x = from.x + tap.x;
        bool valid = m < end && channel < g.x.channels && (u32)y < g.in_height && (u32)x < g.in_width;
        u64 at = valid ? (u64)(from.image + (u32)y * g.in_width + (u32)x) * g.x.pitch + channel : 0;
        ks_copy16(stage + 32 * T::BM + place<T::BN>(pixel, piece), ks_pointer<const bf16>(g.x.pointer) + at, valid);
    }
}

template <typename T>
KS_FN void multiply(const bf16* stage, float (&sums)[T::ROWS][T::PAIRS * 2][4], u32 warp_m, u32 warp_n) {
    u32 lane = ks_thread() & 31, low = lane & 7, middle = lane >> 3 & 1, high = lane >> 4;
    KS_UNROLL
    for (int step = 0; step < 2; step++) {
        V4 b[T::PAIRS];
        KS_UNROLL
        for (int pair = 0; pair < T::PAIRS; pair++) {
            u32 pixel = step * 16 + low + middle * 8, piece = (warp_n * T::WN + pair * 16) / 8 + high;
            b[pair] = ks_ldsm4t(stage + 32 * T::BM + place<T::BN>(pixel, piece));
        }
        KS_UNROLL
        for (int i = 0; i < T::ROWS; i++) {
            u32 pixel = step * 16 + low + high * 8, piece = (warp_m * T::WM + i * 16) / 8 + middle;
            V4 a = ks_ldsm4t(stage + place<T::BM>(pixel, piece));
            KS_UNROLL
            for (int pair = 0; pair < T::PAIRS; pair++) {
                ks_mma(sums[i][pair * 2], a, b[pair].x, b[pair].y);
                ks_mma(sums[i][pair * 2 + 1], a, b[pair].z, b[pair].w);
            }
        }
    }
}

// Grid: ranges of pixels, tiles of both kinds of channels, taps.
template <typename T> KS_FN void conv_wgrad(const ConvWgrad& p) {
    KS_DYNAMIC_SHARED(shared);
    bf16* stages = (bf16*)shared;
    const ConvGeometry& g = p.geometry;
    u32 warp = ks_thread() / 32, warp_m = warp % (T::BM / T::WM), warp_n = warp / (T::BM / T::WM);
    u32 c_tiles = (g.x.channels + T::BN - 1) / T::BN;
    u32 k = ks_block_y() / c_tiles * T::BM, c = ks_block_y() % c_tiles * T::BN;
    Tap tap = unpack_tap(g.taps[ks_block_z()]);
    u32 start = ks_block_x() * p.rows_per_range;
    u32 end = start + p.rows_per_range < g.rows ? start + p.rows_per_range : g.rows;
    u32 count = end > start ? (end - start + 31) / 32 : 0;
    float sums[T::ROWS][T::PAIRS * 2][4] = {};
    KS_UNROLL
    for (int ahead = 0; ahead < T::STAGES - 1; ahead++) {
        if (ahead < (int)count) fill<T>(p, stages + ahead * T::STAGE, start + ahead * 32, end, k, c, tap);
        ks_copy_commit();
    }
    u32 reading = 0, writing = T::STAGES - 1;
    KS_NO_UNROLL
    for (u32 stage = 0; stage < count; stage++) {
        ks_copy_wait<T::STAGES - 2>();
#ifndef MUT_NO_BARRIER_WGRAD
        ks_sync();
#endif
        u32 next = stage + T::STAGES - 1;
        if (next < count) fill<T>(p, stages + writing * T::STAGE, start + next * 32, end, k, c, tap);
        ks_copy_commit();
        multiply<T>(stages + reading * T::STAGE, sums, warp_m, warp_n);
        reading = reading == T::STAGES - 1 ? 0 : reading + 1;
        writing = writing == T::STAGES - 1 ? 0 : writing + 1;
    }
    float* partials = ks_pointer<float>(p.partials) + (u64)ks_block_x() * g.y.channels * g.weight_row;
    u32 lane = ks_thread() & 31;
    KS_UNROLL
    for (int i = 0; i < T::ROWS; i++) {
        KS_UNROLL
        for (int j = 0; j < T::PAIRS * 2; j++) {
            KS_UNROLL
            for (int half = 0; half < 2; half++) {
                u32 at_k = k + warp_m * T::WM + i * 16 + half * 8 + lane / 4;
                u32 at_c = c + warp_n * T::WN + j * 8 + lane % 4 * 2;
                if (at_k >= g.y.channels || at_c >= g.x.channels) continue;
                float* to = partials + (u64)at_k * g.weight_row + tap.weight * g.x.channels + at_c;
                to[0] = sums[i][j][half * 2];
                to[1] = sums[i][j][half * 2 + 1];
            }
        }
    }
}

KS_KERNEL(conv_wgrad_64x16, ConvWgrad, 128, 4) { conv_wgrad<WeightTile<64, 16, 4, 1>>(p); }
KS_KERNEL(conv_wgrad_64x32, ConvWgrad, 128, 4) { conv_wgrad<WeightTile<64, 32, 4, 1>>(p); }
KS_KERNEL(conv_wgrad_64x64, ConvWgrad, 128, 4) { conv_wgrad<WeightTile<64, 64, 2, 2>>(p); }

// The weights of the first convolution: few, so a block makes one range of all of them without tensor cores. A
// thread holds some (output, tap) pairs of the range's pixels, which the block reads together.
KS_KERNEL(stem_wgrad, ConvWgrad, 256, 2) {
    constexpr u32 PIXELS = 32;
    KS_SHARED(u32, words, PIXELS * 9);
    KS_SHARED(float, dys, PIXELS * 16);
    const ConvGeometry& g = p.geometry;
    u32 start = ks_block_x() * p.rows_per_range;
    u32 end = start + p.rows_per_range < g.rows ? start + p.rows_per_range : g.rows;
    u32 k0 = ks_block_y() * 16, k = ks_thread() / 16, tap = ks_thread() % 16;
    float sums[3] = {};
    KS_NO_UNROLL
    for (u32 first = start; first < end; first += PIXELS) {
        KS_NO_UNROLL
        for (u32 index = ks_thread(); index < PIXELS * 9; index += 256) {
            u32 m = first + index / 9, at = index % 9, word = 0;
            RowSource from = row_source(g, m);
            i32 y = from.y + (i32)(at / 3) - 1, x = from.x + (i32)(at % 3) - 1;
            if (m < end && (u32)y < g.in_height && (u32)x < g.in_width)
                word = ks_pointer<const u32>(g.x.pointer)[from.image + (u32)y * g.in_width + (u32)x];
            words[index] = word;
        }
        KS_NO_UNROLL
        for (u32 index = ks_thread(); index < PIXELS * 16; index += 256) {
            u32 m = first + index / 16, at = k0 + index % 16;
            bool valid = m < end && at < g.y.channels;
            dys[index] = valid ? ks_widen(ks_pointer<const bf16>(g.y.pointer)[(u64)m * g.y.pitch + at]) : 0.0f;
        }
        ks_sync();
        if (tap < 9) {
            KS_NO_UNROLL
            for (u32 pixel = 0; pixel < PIXELS; pixel++) {
                float dy = dys[pixel * 16 + k];
                u32 word = words[pixel * 9 + tap];
                KS_UNROLL
                for (int i = 0; i < 3; i++) sums[i] = ks_fma(dy, (float)(word >> (8 * i) & 255), sums[i]);
            }
        }
        ks_sync();
    }
    if (k0 + k >= g.y.channels) return;
    float* to = ks_pointer<float>(p.partials) + ((u64)ks_block_x() * g.y.channels + k0 + k) * g.weight_row;
    // Depth is padded; what pads it has no gradient.
    if (tap >= 12) return;
    KS_UNROLL
    for (int i = 0; i < 4; i++) to[tap * 4 + i] = tap < 9 && i < 3 ? sums[i < 3 ? i : 0] * (1.0f / 255.0f) : 0.0f;
}

// Adds the ranges in their order, four values a thread.
KS_KERNEL(sum_ranges, SumRanges, 256, 4) {
    u32 at = (ks_block_x() * 256 + ks_thread()) * 4;
    if (at >= p.count) return;
    float* target = ks_pointer<float>(p.target) + at;
    V4 kept = {0, 0, 0, 0};
    if (p.accumulate) kept = ks_ld16(target);
    float sums[4] = {ks_float(kept.x), ks_float(kept.y), ks_float(kept.z), ks_float(kept.w)};
    KS_NO_UNROLL
    for (u32 range = 0; range < p.ranges; range++) {
        V4 v = ks_ld16_nc(ks_pointer<const float>(p.partials) + (u64)range * p.count + at);
        sums[0] += ks_float(v.x);
        sums[1] += ks_float(v.y);
        sums[2] += ks_float(v.z);
        sums[3] += ks_float(v.w);
    }
    ks_st16(target, V4{ks_bits(sums[0]), ks_bits(sums[1]), ks_bits(sums[2]), ks_bits(sums[3])});
}
