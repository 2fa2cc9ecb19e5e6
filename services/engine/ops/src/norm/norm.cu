// Batch normalisation with SiLU. Eight channels a thread, so that each access is 16 bytes.
#include "finalize.h"

// The statistics of a tensor: a block takes 64 channels of a range of pixels, 8 threads across, 32 down. Means are
// of few values first and joined pairwise, so nothing is lost where the mean is far from zero.
KS_KERNEL(bn_stats, BnStats, 256, 2) {
    u32 across = ks_thread() % 8, down = ks_thread() / 8;
    u32 channels = p.y.channels, channel = ks_block_y() * 64 + across * 8;
    u32 start = ks_block_x() * p.pixels_per_block;
    u32 end = start + p.pixels_per_block < p.pixels ? start + p.pixels_per_block : p.pixels;
    float n = 0.0f, mean[8] = {}, m2[8] = {};
    if (channel < channels) {
        const bf16* y = ks_pointer<const bf16>(p.y.pointer) + channel;
        KS_NO_UNROLL
        for (u32 pixel = start + down; pixel < end; pixel += 32)
            add_moments(ks_unpack8(ks_ld16_nc(y + (u64)pixel * p.y.pitch)), n, mean, m2);
    }
    finish_moments(p.norm, p.partials, p.counters, channels, ks_block_y() * 64, n, mean, m2);
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

// The gradient of the activation: what up to three readers of it have left.
KS_FN Eight gradient_of(const View (&views)[3], u32 count, u32 pixel, u32 channel) {
    Eight sum = {};
    KS_UNROLL
    for (u32 view = 0; view < 3; view++) {
        if (view >= count) break;
        const View& from = views[view];
        Eight one = ks_unpack8(ks_ld16(ks_pointer<const bf16>(from.pointer) + (u64)pixel * from.pitch + channel));
        KS_UNROLL
        for (int i = 0; i < 8; i++) sum.v[i] += one.v[i];
    }
    return sum;
}

// Through the activation: da * f'(z).
KS_FN float through_silu(float da, float z) {
    float s = ks_sigmoid(z);
    return da * s * (1.0f + z * (1.0f - s));
}

// The two sums that the norm's gradient needs, in the layout of `bn_stats`. Without y it is the sum of the gradient
// alone, which is that of a bias.
KS_KERNEL(bn_silu_bwd_reduce, BnSiluBwdReduce, 256, 2) {
    KS_SHARED(float, scratch, 2 * 32 * 64);
    u32 across = ks_thread() % 8, down = ks_thread() / 8, first = ks_block_y() * 64;
    u32 channels = p.gradients[0].channels, channel = first + across * 8;
    u32 start = ks_block_x() * p.pixels_per_block;
    u32 end = start + p.pixels_per_block < p.pixels ? start + p.pixels_per_block : p.pixels;
    float plain[8] = {}, scaled[8] = {};
    if (channel < channels) {
        bool has_norm = p.y.pointer != 0;
        Eight scale = {}, shift = {}, mean = {}, inverse = {};
        if (has_norm) {
            scale = ks_floats8(ks_pointer<const float>(p.scale) + channel);
            shift = ks_floats8(ks_pointer<const float>(p.shift) + channel);
            mean = ks_floats8(ks_pointer<const float>(p.mean) + channel);
            inverse = ks_floats8(ks_pointer<const float>(p.inverse_deviation) + channel);
        }
        KS_NO_UNROLL
        for (u32 pixel = start + down; pixel < end; pixel += 32) {
            Eight da = gradient_of(p.gradients, p.gradients_count, pixel, channel), y = {};
            if (has_norm)
                y = ks_unpack8(ks_ld16_nc(ks_pointer<const bf16>(p.y.pointer) + (u64)pixel * p.y.pitch + channel));
            KS_UNROLL
            for (int i = 0; i < 8; i++) {
                float dz = da.v[i];
                if (p.silu) dz = through_silu(dz, ks_fma(y.v[i], scale.v[i], shift.v[i]));
                plain[i] += dz;
                scaled[i] += dz * (y.v[i] - mean.v[i]) * inverse.v[i];
            }
        }
    }
    KS_UNROLL
    for (int i = 0; i < 8; i++) {
        scratch[down * 64 + across * 8 + i] = plain[i];
        scratch[2048 + down * 64 + across * 8 + i] = scaled[i];
    }
#ifndef MUT_NO_BARRIER_REDUCE
    ks_sync();
#endif
    // Half of the threads take each sum.
    u32 which = ks_thread() / 64, column = ks_thread() % 64, mine = first + column;
    float* partials = ks_pointer<float>(p.partials);
    if (which < 2 && mine < channels) {
        float sum = 0.0f;
        KS_NO_UNROLL
        for (u32 row = 0; row < 32; row++) sum += scratch[which * 2048 + row * 64 + column];
        partials[((u64)ks_block_x() * 2 + which) * channels + mine] = sum;
    }
    if (!is_last_to_come(ks_pointer<u32>(p.counters) + ks_block_y(), ks_blocks_x())) return;
    if (which >= 2 || mine >= channels) return;
    const volatile float* all = ks_pointer<const volatile float>(p.partials);
    float sum = 0.0f;
    KS_NO_UNROLL
    for (u32 block = 0; block < ks_blocks_x(); block++) sum += all[((u64)block * 2 + which) * channels + mine];
    if (p.sums) ks_pointer<float>(p.sums)[which * channels + mine] = sum;
    float* gradient = ks_pointer<float>(which ? p.gamma_gradient : p.beta_gradient);
    if (gradient) gradient[mine] += sum;
}

// Through the norm: what `y` gets, and what the shortcut gets. May write over one of the gradients it reads.
KS_KERNEL(bn_silu_bwd_apply, BnSiluBwdApply, 256, 2) {
    u32 eighths = p.y.channels / 8, lanes = 256 / eighths;
    u32 eighth = ks_thread() % eighths, lane = ks_thread() / eighths, channel = eighth * 8;
    if (lane >= lanes) return;
    Eight scale = ks_floats8(ks_pointer<const float>(p.scale) + channel);
    Eight shift = ks_floats8(ks_pointer<const float>(p.shift) + channel);
    Eight mean = ks_floats8(ks_pointer<const float>(p.mean) + channel);
    Eight inverse = ks_floats8(ks_pointer<const float>(p.inverse_deviation) + channel);
    Eight plain = ks_floats8(ks_pointer<const float>(p.sums) + channel);
    Eight scaled = ks_floats8(ks_pointer<const float>(p.sums) + p.y.channels + channel);
    float share = ks_rcp((float)p.pixels);
    KS_NO_UNROLL
    for (u32 pixel = ks_block_x() * lanes + lane; pixel < p.pixels; pixel += ks_blocks_x() * lanes) {
        Eight y = ks_unpack8(ks_ld16_nc(ks_pointer<const bf16>(p.y.pointer) + (u64)pixel * p.y.pitch + channel));
        Eight da = gradient_of(p.gradients, p.gradients_count, pixel, channel), dy;
        KS_UNROLL
        for (int i = 0; i < 8; i++) {
            float dz = da.v[i];
            if (p.silu) dz = through_silu(dz, ks_fma(y.v[i], scale.v[i], shift.v[i]));
            float normal = (y.v[i] - mean.v[i]) * inverse.v[i];
#ifdef MUT_NO_MEAN_TERM
            dy.v[i] = scale.v[i] * (dz - normal * scaled.v[i] * share);
#else
            dy.v[i] = scale.v[i] * (dz - (plain.v[i] + normal * scaled.v[i]) * share);
#endif
        }
        if (p.shortcut.pointer) {
            bf16* shortcut = ks_pointer<bf16>(p.shortcut.pointer) + (u64)pixel * p.shortcut.pitch + channel;
            if (p.shortcut_accumulate) {
                Eight kept = ks_unpack8(ks_ld16(shortcut));
                KS_UNROLL
                for (int i = 0; i < 8; i++) da.v[i] += kept.v[i];
            }
            ks_st16(shortcut, ks_pack8(da));
        }
        ks_st16(ks_pointer<bf16>(p.dy.pointer) + (u64)pixel * p.dy.pitch + channel, ks_pack8(dy));
    }
}
