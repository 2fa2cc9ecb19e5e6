// Three max-pools of 5x5 one after the other, as the pyramid block has them. A block takes eight channels of an image
// and keeps the map in shared memory between the pools; of each maximum it keeps where it was, 0 to 24.
#include "ks.h"

// The place of the first maximum in reading order, and the maximum; what lies outside doesn't take part.
KS_FN void largest(const V4* map, u32 x, u32 y, u32 width, u32 height, Eight& best, u32 (&place)[8]) {
    bool is_first = true;
    KS_NO_UNROLL
    for (u32 step = 0; step < 25; step++) {
        u32 row = y + step / 5, column = x + step % 5;
        // Both are two too large; what wraps round is outside, too.
        if (row - 2 >= height || column - 2 >= width) continue;
        Eight v = ks_unpack8(map[(row - 2) * width + column - 2]);
        KS_UNROLL
        for (int i = 0; i < 8; i++) {
            if (is_first || v.v[i] > best.v[i]) {
                best.v[i] = v.v[i];
                place[i] = step;
            }
        }
        is_first = false;
    }
}

KS_KERNEL(sppf_fwd, Sppf, 256, 1) {
    KS_DYNAMIC_SHARED(memory);
    V4* map = (V4*)memory;
    V4* next = map + p.pixels;
    u32 channel = ks_block_x() * 8, width = p.by_width.divisor;
    u64 first = (u64)ks_block_y() * p.pixels;
    const bf16* input = ks_pointer<const bf16>(p.input.pointer) + channel;
    KS_NO_UNROLL
    for (u32 pixel = ks_thread(); pixel < p.pixels; pixel += 256)
        map[pixel] = ks_ld16(input + (first + pixel) * p.input.pitch);
    KS_NO_UNROLL
    for (u32 pool = 0; pool < 3; pool++) {
        ks_sync();
        bf16* output = ks_pointer<bf16>(p.outputs[pool].pointer) + channel;
        u32* places = ks_pointer<u32>(p.places) + ((pool * (u64)p.images * p.pixels + first) * p.input.channels + channel) / 4;
        KS_NO_UNROLL
        for (u32 pixel = ks_thread(); pixel < p.pixels; pixel += 256) {
            u32 y = ks_quotient(pixel, p.by_width), x = pixel - y * width;
            Eight best = {};
            u32 place[8] = {};
            largest(map, x, y, width, p.height, best, place);
            V4 packed = ks_pack8(best);
            next[pixel] = packed;
            ks_st16(output + (first + pixel) * p.outputs[pool].pitch, packed);
            u32* to = places + (u64)pixel * p.input.channels / 4;
            to[0] = place[0] | place[1] << 8 | place[2] << 16 | place[3] << 24;
            to[1] = place[4] | place[5] << 8 | place[6] << 16 | place[7] << 24;
        }
        V4* now = map;
        map = next;
        next = now;
    }
}

// Backward: block x is four channels. Each pixel gathers from the windows it was the maximum of, so that the order of
// the sums is fixed; sums stay in single precision from pool to pool.
KS_KERNEL(sppf_bwd, Sppf, 256, 1) {
    KS_DYNAMIC_SHARED(memory);
    float* gradient = (float*)memory;
    float* next = gradient + 4 * p.pixels;
    u32 channel = ks_block_x() * 4, width = p.by_width.divisor;
    u64 first = (u64)ks_block_y() * p.pixels;
    const bf16* last = ks_pointer<const bf16>(p.outputs[2].pointer) + channel;
    KS_NO_UNROLL
    for (u32 item = ks_thread(); item < 4 * p.pixels; item += 256)
        gradient[item] = ks_widen(last[(first + item / 4) * p.outputs[2].pitch + item % 4]);
    KS_NO_UNROLL
    for (u32 pool = 3; pool-- > 0;) {
#ifndef MUT_NO_BARRIER_SPPF
        ks_sync();
#endif
        // What the pool read: the output of the one before, or the input.
        View own = pool ? p.outputs[pool - 1] : p.input;
        bf16* target = ks_pointer<bf16>(own.pointer) + channel;
        const u8* places = ks_pointer<const u8>(p.places) + (pool * (u64)p.images * p.pixels + first) * p.input.channels + channel;
        KS_NO_UNROLL
        for (u32 item = ks_thread(); item < 4 * p.pixels; item += 256) {
            u32 pixel = item / 4, lane = item % 4, y = ks_quotient(pixel, p.by_width), x = pixel - y * width;
            float sum = 0.0f;
            KS_NO_UNROLL
            for (u32 step = 0; step < 25; step++) {
                u32 row = y + step / 5, column = x + step % 5;
                if (row - 2 >= p.height || column - 2 >= width) continue;
                u32 from = (row - 2) * width + column - 2;
                // Seen from there, this pixel lies at the opposite step.
                if (places[(u64)from * p.input.channels + lane] == 24 - step) sum += gradient[4 * from + lane];
            }
            bf16* at = target + (first + pixel) * own.pitch + lane;
            sum += pool || p.accumulate ? ks_widen(*at) : 0.0f;
            next[item] = sum;
            if (pool == 0) *at = ks_round(sum);
        }
        float* now = gradient;
        gradient = next;
        next = now;
    }
}
