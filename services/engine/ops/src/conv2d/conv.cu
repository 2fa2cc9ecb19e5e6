// Convolutions of views, forward and for the input's gradient; see gemm.h.
#include "epilogue.h"
#include "gemm.h"

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
        write_output<T>(p, stages, scratch, sums, 1.0f, row, column, running);
#ifndef MUT_NO_BARRIER_TILES
        ks_sync();
#endif
    }
    finish_statistics<T>(p, column, running, (float*)shared);
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
