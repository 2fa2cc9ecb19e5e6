// Attention over the pixels of an image, head by head: 32 channels of queries, 32 of keys, 64 of values. Two threads
// take a row, each half of its channels; rows of the other side pass through shared memory in tiles. Probabilities are
// never stored: the logarithm of each row's sum makes them again.
#include "numbers.h"

#define TILE 32
#define HEAD 128
#define LOG2E 1.442695041f

// Copies `COUNT` channels of a tile's pixels to shared memory as floats, zero beyond the last.
template <int COUNT> KS_FN void stage(float* to, const bf16* from, u32 pitch, u32 start, u32 pixels) {
    KS_NO_UNROLL
    for (u32 item = ks_thread(); item < TILE * COUNT / 8; item += 128) {
        u32 row = item / (COUNT / 8), channel = item % (COUNT / 8) * 8;
        Eight v = {};
        if (start + row < pixels) v = ks_unpack8(ks_ld16(from + (u64)(start + row) * pitch + channel));
        KS_UNROLL
        for (int i = 0; i < 8; i++) to[row * COUNT + channel + i] = v.v[i];
    }
}
// Reads `COUNT` channels of one pixel.
template <int COUNT> KS_FN void read_row(float (&row)[COUNT], const bf16* from) {
    KS_UNROLL
    for (int piece = 0; piece < COUNT / 8; piece++) {
        Eight v = ks_unpack8(ks_ld16(from + 8 * piece));
        KS_UNROLL
        for (int i = 0; i < 8; i++) row[8 * piece + i] = v.v[i];
    }
}
template <int COUNT> KS_FN void write_row(bf16* to, const float (&row)[COUNT], float factor) {
    KS_UNROLL
    for (int piece = 0; piece < COUNT / 8; piece++) {
        Eight v;
        KS_UNROLL
        for (int i = 0; i < 8; i++) v.v[i] = row[8 * piece + i] * factor;
        ks_st16(to + 8 * piece, ks_pack8(v));
    }
}
template <int COUNT> KS_FN float dot(const float (&a)[COUNT], const float* b) {
    float sum = 0.0f;
    KS_UNROLL
    for (int i = 0; i < COUNT; i++) sum = ks_fma(a[i], b[i], sum);
    return sum + ks_shuffle_xor(sum, 1);
}
template <int COUNT> KS_FN void add_scaled(float (&a)[COUNT], float factor, const float* b) {
    KS_UNROLL
    for (int i = 0; i < COUNT; i++) a[i] = ks_fma(factor, b[i], a[i]);
}
// The image's first pixel of a view, at the channels of the block's head.
KS_FN bf16* head_of(const View& view, u32 pixels, u32 channels) {
    return ks_pointer<bf16>(view.pointer) + (u64)ks_block_z() * pixels * view.pitch + ks_block_y() * channels;
}

KS_KERNEL(attn_fwd, Attention, 128, 4) {
    KS_SHARED(float, keys, TILE * 32);
    KS_SHARED(float, values, TILE * 64);
    u32 row = ks_block_x() * 64 + ks_thread() / 2, half = ks_thread() % 2;
    bool is_row = row < p.pixels;
    const bf16* qkv = head_of(p.qkv, p.pixels, HEAD);
    // Rows past the last work along on the last one, so that no thread is missing from a shuffle.
    const bf16* own = qkv + (u64)(is_row ? row : p.pixels - 1) * p.qkv.pitch;
    float query[16], output[32] = {};
    read_row(query, own + 16 * half);
    float largest = -3e38f, sum = 0.0f;
    KS_NO_UNROLL
    for (u32 start = 0; start < p.pixels; start += TILE) {
        ks_sync();
        stage<32>(keys, qkv + 32, p.qkv.pitch, start, p.pixels);
        stage<64>(values, qkv + 64, p.qkv.pitch, start, p.pixels);
#ifndef MUT_NO_BARRIER_ATTENTION
        ks_sync();
#endif
        u32 count = p.pixels - start < TILE ? p.pixels - start : TILE;
        KS_NO_UNROLL
        for (u32 key = 0; key < count; key++) {
            float logit = dot(query, keys + key * 32 + 16 * half) * (p.scale * LOG2E);
            if (logit > largest) {
                float shrink = ks_exp2(largest - logit);
                largest = logit;
                sum *= shrink;
                KS_UNROLL
                for (int i = 0; i < 32; i++) output[i] *= shrink;
            }
            float weight = ks_exp2(logit - largest);
            sum += weight;
            add_scaled(output, weight, values + key * 64 + 32 * half);
        }
    }
    if (!is_row) return;
    write_row(head_of(p.attended, p.pixels, 64) + (u64)row * p.attended.pitch + 32 * half, output, ks_rcp(sum));
    // The values once more, as an image.
    const bf16* value = own + 64 + 32 * half;
    bf16* image = head_of(p.values, p.pixels, 64) + (u64)row * p.values.pitch + 32 * half;
    KS_UNROLL
    for (int i = 0; i < 32; i += 8) ks_st16(image + i, ks_ld16(value + i));
    if (p.normalisers && half == 0) {
        u64 at = ((u64)ks_block_z() * ks_blocks_y() + ks_block_y()) * p.pixels + row;
        // To the base of two, which is what the way back needs.
        ks_pointer<float>(p.normalisers)[at] = largest + ks_log2(sum);
    }
}

// The gradient of the queries; it also leaves each row's mean slope for the kernel below.
KS_KERNEL(attn_bwd_query, AttentionBackward, 128, 2) {
    KS_SHARED(float, keys, TILE * 32);
    KS_SHARED(float, values, TILE * 64);
    u32 row = ks_block_x() * 64 + ks_thread() / 2, half = ks_thread() % 2;
    bool is_row = row < p.pixels;
    u32 mine = is_row ? row : p.pixels - 1;
    const bf16* qkv = head_of(p.qkv, p.pixels, HEAD);
    float query[16], slope[32], gradient[16] = {};
    read_row(query, qkv + (u64)mine * p.qkv.pitch + 16 * half);
    read_row(slope, head_of(p.attended_gradient, p.pixels, 64) + (u64)mine * p.attended_gradient.pitch + 32 * half);
    float mean;
    {
        float attended[32];
        read_row(attended, head_of(p.attended, p.pixels, 64) + (u64)mine * p.attended.pitch + 32 * half);
        mean = dot(slope, attended);
    }
    u64 at = ((u64)ks_block_z() * ks_blocks_y() + ks_block_y()) * p.pixels + mine;
    float normaliser = ks_pointer<const float>(p.normalisers)[at];
    if (is_row && half == 0) ks_pointer<float>(p.means)[at] = mean;
    KS_NO_UNROLL
    for (u32 start = 0; start < p.pixels; start += TILE) {
        ks_sync();
        stage<32>(keys, qkv + 32, p.qkv.pitch, start, p.pixels);
        stage<64>(values, qkv + 64, p.qkv.pitch, start, p.pixels);
        ks_sync();
        u32 count = p.pixels - start < TILE ? p.pixels - start : TILE;
        KS_NO_UNROLL
        for (u32 key = 0; key < count; key++) {
            float logit = dot(query, keys + key * 32 + 16 * half) * (p.scale * LOG2E);
            float weight = ks_exp2(logit - normaliser);
            float part = weight * (dot(slope, values + key * 64 + 32 * half) - mean);
            add_scaled(gradient, part, keys + key * 32 + 16 * half);
        }
    }
    if (!is_row) return;
    write_row(head_of(p.qkv_gradient, p.pixels, HEAD) + (u64)row * p.qkv_gradient.pitch + 16 * half, gradient, p.scale);
}

// The gradients of keys and values; here a row is a key, and queries pass by.
KS_KERNEL(attn_bwd_key, AttentionBackward, 128, 2) {
    KS_SHARED(float, queries, TILE * 32);
    KS_SHARED(float, slopes, TILE * 64);
    KS_SHARED(float, normalisers, TILE);
    KS_SHARED(float, means, TILE);
    u32 row = ks_block_x() * 64 + ks_thread() / 2, half = ks_thread() % 2;
    bool is_row = row < p.pixels;
    const bf16* qkv = head_of(p.qkv, p.pixels, HEAD);
    const bf16* own = qkv + (u64)(is_row ? row : p.pixels - 1) * p.qkv.pitch;
    const bf16* slope_of = head_of(p.attended_gradient, p.pixels, 64);
    float key[16], value[32], key_gradient[16] = {}, value_gradient[32];
    read_row(key, own + 32 + 16 * half);
    read_row(value, own + 64 + 32 * half);
    read_row(value_gradient, head_of(p.values_gradient, p.pixels, 64) +
                                 (u64)(is_row ? row : p.pixels - 1) * p.values_gradient.pitch + 32 * half);
    u64 first = ((u64)ks_block_z() * ks_blocks_y() + ks_block_y()) * p.pixels;
    KS_NO_UNROLL
    for (u32 start = 0; start < p.pixels; start += TILE) {
        ks_sync();
        stage<32>(queries, qkv, p.qkv.pitch, start, p.pixels);
        stage<64>(slopes, slope_of, p.attended_gradient.pitch, start, p.pixels);
        if (ks_thread() < TILE && start + ks_thread() < p.pixels) {
            normalisers[ks_thread()] = ks_pointer<const float>(p.normalisers)[first + start + ks_thread()];
            means[ks_thread()] = ks_pointer<const float>(p.means)[first + start + ks_thread()];
        }
        ks_sync();
        u32 count = p.pixels - start < TILE ? p.pixels - start : TILE;
        KS_NO_UNROLL
        for (u32 query = 0; query < count; query++) {
            float logit = dot(key, queries + query * 32 + 16 * half) * (p.scale * LOG2E);
            float weight = ks_exp2(logit - normalisers[query]);
            float part = weight * (dot(value, slopes + query * 64 + 32 * half) - means[query]);
            add_scaled(key_gradient, part, queries + query * 32 + 16 * half);
            add_scaled(value_gradient, weight, slopes + query * 64 + 32 * half);
        }
    }
    if (!is_row) return;
    bf16* target = head_of(p.qkv_gradient, p.pixels, HEAD) + (u64)row * p.qkv_gradient.pitch;
    write_row(target + 32 + 16 * half, key_gradient, p.scale);
    write_row(target + 64 + 32 * half, value_gradient, 1.0f);
}
