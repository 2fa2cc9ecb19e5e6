// Batch normalisation with SiLU. Eight channels a thread, so that each access is 16 bytes.
#include "finalize.h"

// The statistics of a tensor: a block takes 64 channels of a range of pixels, 8 threads across, 32 down. Means are
// of few values first and joined pairwise, so nothing is lost where the mean is far from zero.
KS_KERNEL(bn_stats, BnStats, 256, 2) {
    KS_SHARED(float, scratch, 3 * 32 * 64);
    u32 across = ks_thread() % 8, down = ks_thread() / 8;
    u32 channels = p.y.channels, channel = ks_block_y() * 64 + across * 8;
    u32 start = ks_block_x() * p.pixels_per_block;
    u32 end = start + p.pixels_per_block < p.pixels ? start + p.pixels_per_block : p.pixels;
    float n = 0.0f, mean[8] = {}, m2[8] = {};
    if (channel < channels) {
        const bf16* y = ks_pointer<const bf16>(p.y.pointer) + channel;
        KS_NO_UNROLL
        for (u32 pixel = start + down; pixel < end; pixel += 32) {
            Eight values = ks_unpack8(ks_ld16_nc(y + (u64)pixel * p.y.pitch));
            n += 1.0f;
            float share = ks_rcp(n);
            KS_UNROLL
            for (int i = 0; i < 8; i++) {
                float delta = values.v[i] - mean[i];
                mean[i] += delta * share;
                m2[i] += delta * (values.v[i] - mean[i]);
            }
        }
    }
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
    u32 column = ks_thread(), mine = ks_block_y() * 64 + column;
    if (column < 64 && mine < channels) {
        Moments all = {0.0f, 0.0f, 0.0f};
        KS_NO_UNROLL
        for (u32 row = 0; row < 32; row++) {
            u32 at = row * 64 + column;
            all = ks_join(all, Moments{scratch[at], scratch[2048 + at], scratch[4096 + at]});
        }
        float* partials = ks_pointer<float>(p.partials) + (u64)ks_block_x() * 3 * channels + mine;
        partials[0] = all.n;
        partials[channels] = all.mean;
        partials[2 * channels] = all.m2;
    }
    if (!is_last_block(ks_pointer<u32>(p.counters) + ks_block_y(), ks_blocks_x())) return;
    finalize<256, 64>(p.norm, p.partials, ks_blocks_x(), channels, ks_block_y() * 64, scratch);
}

// Normalises, activates, adds; a thread takes 8 channels of a pixel and then as many again, a grid away.
KS_KERNEL(bn_silu_apply, BnSiluApply, 256, 4) {
    u32 eighths = p.y.channels / 8, lanes = 256 / eighths;
    // Threads of a block take whole pixels where a pixel has at most 256 eighths; any over are idle.
    u32 eighth = ks_thread() % eighths, lane = ks_thread() / eighths;
    if (lane >= lanes) return;
    Eight scale = ks_floats8(ks_pointer<const float>(p.scale) + eighth * 8);
    Eight shift = ks_floats8(ks_pointer<const float>(p.shift) + eighth * 8);
    const bf16* y = ks_pointer<const bf16>(p.y.pointer) + eighth * 8;
    const bf16* residual = ks_pointer<const bf16>(p.residual.pointer) + eighth * 8;
    bf16* output = ks_pointer<bf16>(p.output.pointer) + eighth * 8;
    KS_NO_UNROLL
    for (u32 pixel = ks_block_x() * lanes + lane; pixel < p.pixels; pixel += ks_blocks_x() * lanes) {
        Eight v = ks_unpack8(ks_ld16_nc(y + (u64)pixel * p.y.pitch));
        KS_UNROLL
        for (int i = 0; i < 8; i++) {
            v.v[i] = ks_fma(v.v[i], scale.v[i], shift.v[i]);
            if (p.silu) v.v[i] = ks_silu(v.v[i]);
        }
        if (p.residual.pointer) {
            Eight r = ks_unpack8(ks_ld16_nc(residual + (u64)pixel * p.residual.pitch));
            KS_UNROLL
            for (int i = 0; i < 8; i++) v.v[i] += r.v[i];
        }
        ks_st16(output + (u64)pixel * p.output.pitch, ks_pack8(v));
    }
}
