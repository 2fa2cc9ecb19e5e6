// Copies, sums, enlargements and means of views: eight channels a thread, 16 bytes an access.
#include "ks.h"

KS_FN V4 sum8(V4 a, V4 b) {
    Eight left = ks_unpack8(a), right = ks_unpack8(b);
    KS_UNROLL
    for (int i = 0; i < 8; i++) left.v[i] += right.v[i];
    return ks_pack8(left);
}

// Copies a view, adds it to the output, or writes its sum with another.
KS_KERNEL(map_copy, MapCopy, 256, 4) {
    u32 item = ks_block_x() * 256 + ks_thread();
    if (item >= p.items) return;
    u32 pixel = ks_quotient(item, p.by_pieces), channel = (item - pixel * p.by_pieces.divisor) * 8;
    V4 value = ks_ld16(ks_pointer<const bf16>(p.input.pointer) + (u64)pixel * p.input.pitch + channel);
    if (p.other.pointer)
        value = sum8(value, ks_ld16(ks_pointer<const bf16>(p.other.pointer) + (u64)pixel * p.other.pitch + channel));
    bf16* to = ks_pointer<bf16>(p.output.pointer) + (u64)pixel * p.output.pitch + channel;
    ks_st16(to, p.accumulate ? sum8(ks_ld16(to), value) : value);
}

// Repeats every pixel twice each way; an item is a pixel of the small map.
KS_KERNEL(upsample_fwd, Upsample, 256, 4) {
    u32 item = ks_block_x() * 256 + ks_thread();
    if (item >= p.items) return;
    u32 pixel = ks_quotient(item, p.by_pieces), channel = (item - pixel * p.by_pieces.divisor) * 8;
    u32 line = ks_quotient(pixel, p.by_width), x = pixel - line * p.by_width.divisor, width = p.by_width.divisor;
    V4 value = ks_ld16(ks_pointer<const bf16>(p.small.pointer) + (u64)pixel * p.small.pitch + channel);
    bf16* to = ks_pointer<bf16>(p.large.pointer) + channel;
    u64 first = (u64)line * 4 * width + 2 * x;
    ks_st16(to + first * p.large.pitch, value);
    ks_st16(to + (first + 1) * p.large.pitch, value);
    ks_st16(to + (first + 2 * width) * p.large.pitch, value);
    ks_st16(to + (first + 2 * width + 1) * p.large.pitch, value);
}

// Sums the gradients of the four pixels that one became.
KS_KERNEL(upsample_bwd, Upsample, 256, 4) {
    u32 item = ks_block_x() * 256 + ks_thread();
    if (item >= p.items) return;
    u32 pixel = ks_quotient(item, p.by_pieces), channel = (item - pixel * p.by_pieces.divisor) * 8;
    u32 line = ks_quotient(pixel, p.by_width), x = pixel - line * p.by_width.divisor, width = p.by_width.divisor;
    const bf16* from = ks_pointer<const bf16>(p.large.pointer) + channel;
    u64 first = (u64)line * 4 * width + 2 * x;
    Eight a = ks_unpack8(ks_ld16(from + first * p.large.pitch));
    Eight b = ks_unpack8(ks_ld16(from + (first + 1) * p.large.pitch));
    Eight c = ks_unpack8(ks_ld16(from + (first + 2 * width) * p.large.pitch));
    Eight d = ks_unpack8(ks_ld16(from + (first + 2 * width + 1) * p.large.pitch));
    bf16* to = ks_pointer<bf16>(p.small.pointer) + (u64)pixel * p.small.pitch + channel;
    Eight sum = {};
    if (p.accumulate) sum = ks_unpack8(ks_ld16(to));
    KS_UNROLL
    for (int i = 0; i < 8; i++) sum.v[i] += (a.v[i] + b.v[i]) + (c.v[i] + d.v[i]);
    ks_st16(to, ks_pack8(sum));
}

// The mean over an image's pixels: a block takes 64 channels of an image, 8 threads across, 32 down.
KS_KERNEL(pool_fwd, GlobalPool, 256, 4) {
    KS_SHARED(float, scratch, 32 * 64);
    u32 across = ks_thread() % 8, down = ks_thread() / 8, channel = ks_block_x() * 64 + across * 8;
    Eight sum = {};
    if (channel < p.map.channels) {
        const bf16* from = ks_pointer<const bf16>(p.map.pointer) + channel;
        KS_NO_UNROLL
        for (u32 pixel = down; pixel < p.pixels; pixel += 32) {
            Eight v = ks_unpack8(ks_ld16(from + ((u64)ks_block_y() * p.pixels + pixel) * p.map.pitch));
            KS_UNROLL
            for (int i = 0; i < 8; i++) sum.v[i] += v.v[i];
        }
    }
    KS_UNROLL
    for (int i = 0; i < 8; i++) scratch[down * 64 + across * 8 + i] = sum.v[i];
    ks_sync();
    u32 mine = ks_block_x() * 64 + ks_thread();
    if (ks_thread() >= 64 || mine >= p.map.channels) return;
    float all = 0.0f;
    KS_NO_UNROLL
    for (u32 row = 0; row < 32; row++) all += scratch[row * 64 + ks_thread()];
    ks_pointer<bf16>(p.mean.pointer)[(u64)ks_block_y() * p.mean.pitch + mine] = ks_round(all * p.share);
}

// Spreads each mean's gradient over its pixels; block y is the image.
KS_KERNEL(pool_bwd, GlobalPool, 256, 4) {
    u32 pieces = p.map.channels / 8, item = ks_block_x() * 256 + ks_thread();
    u32 pixel = ks_quotient(item, p.by_pieces), channel = (item - pixel * pieces) * 8;
    if (pixel >= p.pixels) return;
    Eight v = ks_unpack8(ks_ld16(ks_pointer<const bf16>(p.mean.pointer) + (u64)ks_block_y() * p.mean.pitch + channel));
    bf16* to = ks_pointer<bf16>(p.map.pointer) + ((u64)ks_block_y() * p.pixels + pixel) * p.map.pitch + channel;
    Eight sum = {};
    if (p.accumulate) sum = ks_unpack8(ks_ld16(to));
    KS_UNROLL
    for (int i = 0; i < 8; i++) sum.v[i] = ks_fma(v.v[i], p.share, sum.v[i]);
    ks_st16(to, ks_pack8(sum));
}
