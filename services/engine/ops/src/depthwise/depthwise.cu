// Depthwise convolutions of 3x3: no sum over channels, so no tensor cores. Eight channels a thread; a pixel's
// neighbours come from the caches.
#include "finalize.h"

struct Pixel {
    u32 index;
    i32 y, x;
};
template <typename P> KS_FN Pixel pixel_at(const P& p, u32 index) {
    u32 line = ks_quotient(index, p.by_width);
    u32 y = line - ks_quotient(line, p.by_height) * p.by_height.divisor;
    return Pixel{index, (i32)y, (i32)(index - line * p.by_width.divisor)};
}

// Reads a neighbour; zeros lie around the image.
template <typename P>
KS_FN bool neighbour(const P& p, const View& view, const Pixel& pixel, i32 dy, i32 dx, u32 channel, Eight& values) {
    i32 y = pixel.y + dy, x = pixel.x + dx;
#ifdef MUT_DEPTHWISE_WRAPS
    if ((u32)y >= p.height) return false;
#else
    if ((u32)y >= p.height || (u32)x >= p.width) return false;
#endif
    u64 at = (u64)(pixel.index + (u32)(dy * (i32)p.width + dx)) * view.pitch + channel;
    values = ks_unpack8(ks_ld16_nc(ks_pointer<const bf16>(view.pointer) + at));
    return true;
}

KS_KERNEL(dwconv_fprop, DwconvFprop, 256, 2) {
    u32 across = ks_thread() % 8, down = ks_thread() / 8;
    u32 channels = p.y.channels, channel = ks_block_y() * 64 + across * 8;
    u32 start = ks_block_x() * p.pixels_per_block;
    u32 end = start + p.pixels_per_block < p.pixels ? start + p.pixels_per_block : p.pixels;
    float n = 0.0f, mean[8] = {}, m2[8] = {};
    if (channel < channels) {
        V4 w[9];
        KS_UNROLL
        for (u32 tap = 0; tap < 9; tap++)
            w[tap] = ks_ld16_nc(ks_pointer<const bf16>(p.w) + tap * channels + channel);
        Eight bias = {};
        if (p.bias) bias = ks_floats8(ks_pointer<const float>(p.bias) + channel);
        KS_NO_UNROLL
        for (u32 index = start + down; index < end; index += 32) {
            Pixel pixel = pixel_at(p, index);
            Eight sum = bias, x;
            KS_UNROLL
            for (i32 tap = 0; tap < 9; tap++) {
                if (!neighbour(p, p.x, pixel, tap / 3 - 1, tap % 3 - 1, channel, x)) continue;
                Eight weight = ks_unpack8(w[tap]);
                KS_UNROLL
                for (int i = 0; i < 8; i++) sum.v[i] = ks_fma(x.v[i], weight.v[i], sum.v[i]);
            }
            KS_UNROLL
            for (int i = 0; i < 8; i++)
                if (p.silu) sum.v[i] = ks_silu(sum.v[i]);
            V4 rounded = ks_pack8(sum);
            ks_st16(ks_pointer<bf16>(p.y.pointer) + (u64)index * p.y.pitch + channel, rounded);
            if (p.partials) add_moments(ks_unpack8(rounded), n, mean, m2);
        }
    }
    if (!p.partials) return;
    finish_moments(p.norm, p.partials, p.counters, channels, ks_block_y() * 64, n, mean, m2);
}

// The input's gradient at a pixel and its share of the weights' need the same nine gradients of outputs.
KS_KERNEL(dwconv_bwd, DwconvBwd, 128, 2) {
    KS_SHARED(float, scratch, 16 * 64);
    u32 across = ks_thread() % 8, down = ks_thread() / 8;
    u32 channels = p.x.channels, first = ks_block_y() * 64, channel = first + across * 8;
    u32 start = ks_block_x() * p.pixels_per_block;
    u32 end = start + p.pixels_per_block < p.pixels ? start + p.pixels_per_block : p.pixels;
    float dw[9][8] = {};
    if (channel < channels) {
        V4 w[9];
        KS_UNROLL
        for (u32 tap = 0; tap < 9; tap++)
            w[tap] = ks_ld16_nc(ks_pointer<const bf16>(p.w) + tap * channels + channel);
        KS_NO_UNROLL
        for (u32 index = start + down; index < end; index += 16) {
            Pixel pixel = pixel_at(p, index);
            Eight x = ks_unpack8(ks_ld16_nc(ks_pointer<const bf16>(p.x.pointer) + (u64)index * p.x.pitch + channel));
            bf16* to = ks_pointer<bf16>(p.dx.pointer) + (u64)index * p.dx.pitch + channel;
            Eight dx = {}, dy;
            if (p.accumulate) dx = ks_unpack8(ks_ld16(to));
            KS_UNROLL
            for (i32 tap = 0; tap < 9; tap++) {
                // The output that saw this pixel through the tap lies on the other side.
                if (!neighbour(p, p.dy, pixel, 1 - tap / 3, 1 - tap % 3, channel, dy)) continue;
                Eight weight = ks_unpack8(w[tap]);
                KS_UNROLL
                for (int i = 0; i < 8; i++) {
                    dx.v[i] = ks_fma(dy.v[i], weight.v[i], dx.v[i]);
                    dw[tap][i] = ks_fma(dy.v[i], x.v[i], dw[tap][i]);
                }
            }
            ks_st16(to, ks_pack8(dx));
        }
    }
    float* partials = ks_pointer<float>(p.partials) + (u64)ks_block_x() * 9 * channels;
    KS_UNROLL
    for (u32 tap = 0; tap < 9; tap++) {
#ifndef MUT_NO_BARRIER_DEPTHWISE
        // Those of the tap before have been read.
        ks_sync();
#endif
        KS_UNROLL
        for (int i = 0; i < 8; i++) scratch[down * 64 + across * 8 + i] = dw[tap][i];
        ks_sync();
        u32 column = ks_thread();
        if (column < 64 && first + column < channels) {
            float sum = 0.0f;
            KS_NO_UNROLL
            for (u32 row = 0; row < 16; row++) sum += scratch[row * 64 + column];
            partials[tap * channels + first + column] = sum;
        }
    }
}
