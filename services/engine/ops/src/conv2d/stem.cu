// The first convolution: images of four bytes a pixel, 3x3, stride two. Bytes are whole numbers up to 255, which bf16
// holds exactly, so the product is made of them and divided by 255 at its end; padding is zero either way.
#include "epilogue.h"

// Depth is 9 taps of 4 bytes, padded to 48. Rows are 56 elements apart: an odd number of 16-byte pieces.
constexpr u32 STEM_DEPTH = 48, STEM_PITCH = 56;

KS_FN u32 byte_of(u32 word, u32 index) { return word >> (8 * index) & 255; }

// A thread gathers one row of the tile.
KS_FN void gather_row(const ConvGeometry& g, bf16* row, u32 m) {
    RowSource from = row_source(g, m);
    const u32* image = ks_pointer<const u32>(g.x.pointer);
    KS_UNROLL
    for (int tap = 0; tap < 12; tap++) {
        u32 word = 0;
        if (tap < 9) {
            i32 y = from.y + tap / 3 - 1, x = from.x + tap % 3 - 1;
#ifdef MUT_STEM_WRAPS
            bool valid = (u32)y < g.in_height;
#else
            bool valid = (u32)y < g.in_height && (u32)x < g.in_width;
#endif
            if (valid) word = image[from.image + (u32)y * g.in_width + (u32)x];
        }
        // The fourth byte is no channel.
        u32 low = ks_pack((float)byte_of(word, 0), (float)byte_of(word, 1));
        u32 high = ks_pack((float)byte_of(word, 2), 0.0f);
        *(u32*)(row + tap * 4) = low;
        *(u32*)(row + tap * 4 + 2) = high;
    }
}

template <typename T> KS_FN void stem_fprop(const ConvFprop& p) {
    KS_DYNAMIC_SHARED(shared);
    const ConvGeometry& g = p.geometry;
    bf16* a_rows = (bf16*)shared;
    bf16* b_rows = a_rows + T::BM * STEM_PITCH;
    float* scratch = (float*)(shared + T::BM * T::PITCH * 2);
    u32 lane = ks_thread() & 31, warp = ks_thread() / 32;
    u32 column = ks_block_y() * T::BN, tiles = (g.rows + T::BM - 1) / T::BM;
    Moments running = {0.0f, 0.0f, 0.0f};
    KS_NO_UNROLL
    for (u32 tile = ks_block_x(); tile < tiles; tile += ks_blocks_x()) {
        u32 row = tile * T::BM;
        gather_row(g, a_rows + ks_thread() * STEM_PITCH, row + ks_thread());
        KS_NO_UNROLL
        for (u32 index = ks_thread(); index < T::BN * 6; index += T::THREADS) {
            u32 k = index / 6, piece = index % 6;
            V4 w = {0, 0, 0, 0};
            if (column + k < g.y.channels)
                w = ks_ld16_nc(ks_pointer<const bf16>(g.w) + (column + k) * STEM_DEPTH + piece * 8);
            ks_st16(b_rows + k * STEM_PITCH + piece * 8, w);
        }
        ks_sync();
        float sums[T::ROWS][T::PAIRS * 2][4] = {};
        KS_UNROLL
        for (int step = 0; step < 3; step++) {
            V4 b[T::PAIRS];
            KS_UNROLL
            for (int pair = 0; pair < T::PAIRS; pair++) {
                u32 at = pair * 16 + (lane & 7) + (lane >> 4) * 8;
                b[pair] = ks_ldsm4(b_rows + at * STEM_PITCH + step * 16 + (lane >> 3 & 1) * 8);
            }
            KS_UNROLL
            for (int i = 0; i < T::ROWS; i++) {
                u32 at = warp * T::WM + i * 16 + (lane & 15);
                V4 a = ks_ldsm4(a_rows + at * STEM_PITCH + step * 16 + (lane >> 4) * 8);
                KS_UNROLL
                for (int pair = 0; pair < T::PAIRS; pair++) {
                    ks_mma(sums[i][pair * 2], a, b[pair].x, b[pair].y);
                    ks_mma(sums[i][pair * 2 + 1], a, b[pair].z, b[pair].w);
                }
            }
        }
        // The staged output takes the place of the rows.
        ks_sync();
        write_output<T>(p, a_rows, scratch, sums, 1.0f / 255.0f, row, column, running);
        ks_sync();
    }
    finish_statistics<T>(p, column, running, (float*)shared);
}

KS_KERNEL(stem_fprop_128x16, ConvFprop, 128, 4) { stem_fprop<Tile<128, 16, 4, 1>>(p); }
KS_KERNEL(stem_fprop_128x32, ConvFprop, 128, 4) { stem_fprop<Tile<128, 32, 4, 1>>(p); }
