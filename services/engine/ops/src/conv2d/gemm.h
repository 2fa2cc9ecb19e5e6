// Convolution as a product of matrices on tensor cores: rows are output pixels, columns are output channels, depth
// is taps by input channels. Depth goes in pieces of 8 channels, so a narrow input wastes nothing. A ring of stages
// in shared memory is filled by asynchronous copies while the stage before is multiplied.
#pragma once
#include "finalize.h"

// 32 elements of depth a stage: rows of 64 bytes. The 16-byte pieces of a row are swapped by its number, so that
// eight rows of a matrix load lie in eight different banks.
KS_FN u32 swizzled(u32 row, u32 piece) {
#ifdef MUT_SWIZZLE_ONE_SIDE
    return row * 32 + piece * 8;
#else
    return row * 32 + (piece ^ ((row >> 1) & 3)) * 8;
#endif
}
KS_FN u32 swizzled_write(u32 row, u32 piece) { return row * 32 + (piece ^ ((row >> 1) & 3)) * 8; }

// How a block of THREADS threads multiplies BM rows by BN columns: warps side by side, each WM by WN.
template <int BM_, int BN_, int WARPS_M, int WARPS_N> struct Tile {
    static constexpr int BM = BM_, BN = BN_, STAGES = 3;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, ROWS = WM / 16, PAIRS = WN / 16;
    static constexpr int STAGE = (BM + BN) * 32;
    // The output on its way to memory: rows are padded by 8 elements against bank conflicts.
    static constexpr int PITCH = BN + 8;
};

// Where a row of the tile reads: its pixel of the first tap may lie outside the input.
struct RowSource {
    u32 image;
    i32 y, x;
};

struct Tap {
    i32 y, x;
    u32 weight;
};
// A tap packed by the host: row + 8, column + 8, place among the weights.
KS_FN Tap unpack_tap(u32 packed) {
    return Tap{(i32)(packed & 15) - 8, (i32)(packed >> 4 & 15) - 8, packed >> 8};
}

KS_FN RowSource row_source(const ConvGeometry& g, u32 m) {
    if (m >= g.rows) return RowSource{0, -0x4000, -0x4000};
    u32 line = ks_quotient(m, g.by_width), x = m - line * g.by_width.divisor;
    u32 image = ks_quotient(line, g.by_height), y = line - image * g.by_height.divisor;
    return RowSource{image * g.in_height * g.in_width, (i32)(y * g.stride), (i32)(x * g.stride)};
}

// Copies one stage of both operands; `piece` counts depth in eighths.
template <typename T>
KS_FN void fill_stage(const ConvGeometry& g, const RowSource* rows, bf16* stage, u32 stage_index, u32 column) {
    constexpr int A = T::BM * 4 / T::THREADS, B = (T::BN * 4 + T::THREADS - 1) / T::THREADS;
    u32 piece = ks_thread() & 3, first = ks_thread() >> 2;
    u32 depth = stage_index * 4 + piece;
    u32 tap_index = ks_quotient(depth, g.by_pieces), channel = (depth - tap_index * g.by_pieces.divisor) * 8;
    bool in_depth = tap_index < g.taps_count;
    Tap tap = unpack_tap(g.taps[in_depth ? tap_index : 0]);
    const bf16* x = ks_pointer<const bf16>(g.x.pointer) + channel;
    KS_UNROLL
    for (int i = 0; i < A; i++) {
        u32 row = first + i * (T::THREADS / 4);
        i32 py = rows[i].y + tap.y, px = rows[i].x + tap.x;
#ifdef MUT_NO_PADDING_TEST
        bool valid = in_depth && rows[i].y >= 0 && py >= 0 && py < (i32)g.in_height;
#else
        bool valid = in_depth && (u32)py < g.in_height && (u32)px < g.in_width;
#endif
        u64 at = valid ? (u64)(rows[i].image + (u32)py * g.in_width + (u32)px) * g.x.pitch : 0;
        ks_copy16(stage + swizzled_write(row, piece), x + at, valid);
    }
    const bf16* w = ks_pointer<const bf16>(g.w) + channel + (u64)tap.weight * g.x.channels;
    KS_UNROLL
    for (int i = 0; i < B; i++) {
        u32 row = first + i * (T::THREADS / 4), k = column + row;
        if (row >= T::BN) break;
        bool valid = in_depth && k < g.y.channels;
        u64 at = valid ? (u64)k * g.weight_row : 0;
        ks_copy16(stage + T::BM * 32 + swizzled_write(row, piece), w + at, valid);
    }
}

// Multiplies one stage: two steps of 16 in depth.
template <typename T>
KS_FN void multiply_stage(const bf16* stage, float (&sums)[T::ROWS][T::PAIRS * 2][4], u32 warp_m, u32 warp_n) {
    u32 lane = ks_thread() & 31;
    const bf16* b_stage = stage + T::BM * 32;
    KS_UNROLL
    for (int step = 0; step < 2; step++) {
        V4 b[T::PAIRS];
        KS_UNROLL
        for (int pair = 0; pair < T::PAIRS; pair++) {
            // Matrices: columns 0-7 and 8-15, each with depth 0-7 and 8-15.
            u32 row = warp_n * T::WN + pair * 16 + (lane & 7) + (lane >> 4) * 8;
            b[pair] = ks_ldsm4(b_stage + swizzled(row, step * 2 + (lane >> 3 & 1)));
        }
        KS_UNROLL
        for (int i = 0; i < T::ROWS; i++) {
            u32 row = warp_m * T::WM + i * 16 + (lane & 15);
            V4 a = ks_ldsm4(stage + swizzled(row, step * 2 + (lane >> 4)));
            KS_UNROLL
            for (int pair = 0; pair < T::PAIRS; pair++) {
#ifdef MUT_B_ROWS_SWAPPED
                ks_mma(sums[i][pair * 2], a, b[pair].y, b[pair].x);
#else
                ks_mma(sums[i][pair * 2], a, b[pair].x, b[pair].y);
#endif
                ks_mma(sums[i][pair * 2 + 1], a, b[pair].z, b[pair].w);
            }
        }
    }
}

// The whole product for one tile; ends with all copies done and all threads past their reads.
template <typename T>
KS_FN void multiply_tile(const ConvGeometry& g, bf16* stages, u32 row, u32 column,
                         float (&sums)[T::ROWS][T::PAIRS * 2][4], u32 warp_m, u32 warp_n) {
    constexpr int A = T::BM * 4 / T::THREADS;
    RowSource rows[A];
    KS_UNROLL
    for (int i = 0; i < A; i++) rows[i] = row_source(g, row + (ks_thread() >> 2) + i * (T::THREADS / 4));
    KS_UNROLL
    for (int i = 0; i < T::ROWS; i++)
        for (int j = 0; j < T::PAIRS * 2; j++)
            for (int part = 0; part < 4; part++) sums[i][j][part] = 0.0f;
    u32 count = (g.taps_count * g.by_pieces.divisor + 3) / 4;
    KS_UNROLL
    for (int ahead = 0; ahead < T::STAGES - 1; ahead++) {
        if (ahead < (int)count) fill_stage<T>(g, rows, stages + ahead * T::STAGE, ahead, column);
        ks_copy_commit();
    }
    u32 reading = 0, writing = T::STAGES - 1;
    KS_NO_UNROLL
    for (u32 k = 0; k < count; k++) {
#ifdef MUT_WAIT_TOO_WEAK
        ks_copy_wait<T::STAGES - 1>();
#else
        ks_copy_wait<T::STAGES - 2>();
#endif
#ifndef MUT_NO_BARRIER_MAIN
        ks_sync();
#endif
        if (k + T::STAGES - 1 < count)
            fill_stage<T>(g, rows, stages + writing * T::STAGE, k + T::STAGES - 1, column);
        ks_copy_commit();
        multiply_stage<T>(stages + reading * T::STAGE, sums, warp_m, warp_n);
        reading = reading == T::STAGES - 1 ? 0 : reading + 1;
        writing = writing == T::STAGES - 1 ? 0 : writing + 1;
    }
    ks_copy_wait<0>();
    ks_sync();
}
