// A user's picture into the frame of a model: two-tap resize with the CPU's integer weights, grey borders.
#include "ks.h"

#define WEIGHT_BITS 11

// A thread is a pixel of the frame; the picture is packed RGB, the frame RGBX.
KS_KERNEL(letterbox_in, LetterboxIn, 256, 4) {
    u32 pixel = ks_block_x() * 256 + ks_thread();
    if (pixel >= p.by_width.divisor * p.height) return;
    u32 line = ks_quotient(pixel, p.by_width), y = line - p.top, x = pixel - line * p.by_width.divisor - p.left;
    u32 colour = 114u | 114u << 8 | 114u << 16;
    // What lies before the border wraps round and is outside, too.
    if (x < p.inside_width && y < p.inside_height) {
        const u32* across = ks_pointer<const u32>(p.columns) + 2 * x;
        const u32* down = ks_pointer<const u32>(p.rows) + 2 * y;
        u32 left = across[0], right = left + 1 < p.source_width ? left + 1 : p.source_width - 1;
        u32 upper = down[0], lower = upper + 1 < p.source_height ? upper + 1 : p.source_height - 1;
        u32 weight_x = across[1], weight_y = down[1], one = 1u << WEIGHT_BITS;
        const u8* above = ks_pointer<const u8>(p.source) + (u64)upper * p.source_pitch;
        const u8* below = ks_pointer<const u8>(p.source) + (u64)lower * p.source_pitch;
        colour = 0;
        KS_UNROLL
        for (u32 channel = 0; channel < 3; channel++) {
            u32 top = above[3 * left + channel] * (one - weight_x) + above[3 * right + channel] * weight_x;
            u32 bottom = below[3 * left + channel] * (one - weight_x) + below[3 * right + channel] * weight_x;
            u32 sum = top * (one - weight_y) + bottom * weight_y;
            colour |= (sum + (1u << (2 * WEIGHT_BITS - 1))) >> (2 * WEIGHT_BITS) << (8 * channel);
        }
    }
    ks_pointer<u32>(p.frame)[pixel] = colour;
}
