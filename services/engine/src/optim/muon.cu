// The orthogonalised half of a MuSGD step for all matrices at once: smoothed gradients, scaled to length one, five
// rounds of a quintic polynomial on tensor cores, and the step. A matrix is taken the way that has fewer rows.
#include "numbers.h"

#define PITCH 40

// A row of the table of matrices.
struct Matrix {
    u32 offset, rows, columns, x, gram, first_piece, pieces;
    float scale;
};
KS_FN Matrix matrix_of(const Muon& p, u32 index) {
    const u32* row = ks_pointer<const u32>(p.matrices) + 8 * (u64)index;
    return Matrix{row[0], row[1], row[2], row[3], row[4], row[5], row[6], ks_float(row[7])};
}
// Where an element of the tensor lies in the working copy.
KS_FN u32 place_in_copy(const Matrix& m, u32 element) {
    if (m.rows <= m.columns) return element;
    u32 row = element / m.columns, column = element - row * m.columns;
    return column * m.rows + row;
}

KS_KERNEL(muon_momentum, Muon, 256, 4) {
    const u32* piece = ks_pointer<const u32>(p.pieces) + 4 * (u64)ks_block_x();
    Matrix m = matrix_of(p, piece[0]);
    float momentum = ks_pointer<const float>(p.control)[3], fresh = 1.0f - momentum;
    const float* clip = ks_pointer<const float>(p.clip);
    bool is_finite = (ks_bits(clip[0]) & 0x7f800000u) != 0x7f800000u;
    float sum = 0.0f;
    KS_NO_UNROLL
    for (u32 item = piece[1] + ks_thread(); item < piece[1] + piece[2]; item += 256) {
        float update = 0.0f;
        if (is_finite) {
            float slope = ks_pointer<const float>(p.gradient)[m.offset + item] * clip[1];
            float* memory = ks_pointer<float>(p.memory) + m.offset + item;
            float smoothed = momentum * *memory + fresh * slope;
            *memory = smoothed;
            update = momentum * smoothed + fresh * slope;
        }
        ks_pointer<float>(p.x)[m.x + place_in_copy(m, item)] = update;
        sum = ks_fma(update, update, sum);
    }
    sum = block_sum(sum);
    if (ks_thread() == 0) ks_pointer<float>(p.partials)[ks_block_x()] = sum;
}

KS_KERNEL(muon_normalise, Muon, 256, 4) {
    const u32* piece = ks_pointer<const u32>(p.pieces) + 4 * (u64)ks_block_x();
    Matrix m = matrix_of(p, piece[0]);
    float sum = 0.0f;
    KS_NO_UNROLL
    for (u32 other = ks_thread(); other < m.pieces; other += 256)
        sum += ks_pointer<const float>(p.partials)[m.first_piece + other];
    float inverse = ks_divide(1.0f, ks_root(block_sum(sum)) + 1e-7f);
    KS_NO_UNROLL
    for (u32 item = piece[1] + ks_thread(); item < piece[1] + piece[2]; item += 256)
        ks_pointer<float>(p.x)[m.x + item] *= inverse;
}

// A tile of 64 x 64 of one product of the round: gram = x x', square = b gram + c gram gram, y = a x + square x.
KS_KERNEL(muon_product, Muon, 128, 3) {
    KS_SHARED(bf16, left, 64 * PITCH);
    KS_SHARED(bf16, right, 64 * PITCH);
    const u32* tile = ks_pointer<const u32>(p.tiles) + 4 * (u64)ks_block_x();
    Matrix m = matrix_of(p, tile[0]);
    u32 rows = m.rows < m.columns ? m.rows : m.columns, columns = m.rows < m.columns ? m.columns : m.rows;
    const float* x = ks_pointer<const float>(p.x) + m.x;
    const float* gram = ks_pointer<const float>(p.gram) + m.gram;
    const float* square = ks_pointer<const float>(p.square) + m.gram;
    const float* a = p.stage == 0 ? x : p.stage == 1 ? gram : square;
    const float* b = p.stage == 1 ? gram : x;
    u32 depth = p.stage == 0 ? columns : rows, width = p.stage == 2 ? columns : rows;
    u32 thread = ks_thread(), lane = thread % 32, warp_row = thread / 64 * 32, warp_column = thread / 32 % 2 * 32;
    float sums[2][4][4] = {};
    KS_NO_UNROLL
    for (u32 start = 0; start < depth; start += 32) {
        ks_sync();
        KS_NO_UNROLL
        for (u32 item = thread; item < 64 * 32; item += 128) {
            u32 row = tile[1] + item / 32, k = start + item % 32;
            left[item / 32 * PITCH + item % 32] = ks_round(row < rows && k < depth ? a[(u64)row * depth + k] : 0.0f);
            if (p.stage == 2) {
                u32 column = tile[2] + item % 64, line = start + item / 64;
                right[item % 64 * PITCH + item / 64] =
                    ks_round(column < width && line < depth ? b[(u64)line * width + column] : 0.0f);
            } else {
                u32 column = tile[2] + item / 32;
                right[item / 32 * PITCH + item % 32] = ks_round(column < width && k < depth ? b[(u64)column * depth + k] : 0.0f);
            }
        }
#ifndef MUT_NO_BARRIER_MUON
        ks_sync();
#endif
        KS_UNROLL
        for (u32 k = 0; k < 32; k += 16) {
            V4 high[2], wide[2];
            KS_UNROLL
            for (u32 i = 0; i < 2; i++) {
                u32 row = warp_row + 16 * i + lane % 8 + lane / 8 % 2 * 8, column = warp_column + 16 * i + lane % 8 + lane / 16 * 8;
                high[i] = ks_ldsm4(left + row * PITCH + k + lane / 16 * 8);
                wide[i] = ks_ldsm4(right + column * PITCH + k + lane / 8 % 2 * 8);
            }
            KS_UNROLL
            for (u32 i = 0; i < 2; i++) {
                KS_UNROLL
                for (u32 j = 0; j < 2; j++) {
                    ks_mma(sums[i][2 * j], high[i], wide[j].x, wide[j].y);
                    ks_mma(sums[i][2 * j + 1], high[i], wide[j].z, wide[j].w);
                }
            }
        }
    }
    float* to = p.stage == 0 ? ks_pointer<float>(p.gram) + m.gram
                : p.stage == 1 ? ks_pointer<float>(p.square) + m.gram
                               : ks_pointer<float>(p.y) + m.x;
    const float* before = p.stage == 1 ? gram : x;
    float keep = p.stage == 0 ? 0.0f : p.stage == 1 ? -4.775f : 3.4445f, factor = p.stage == 1 ? 2.0315f : 1.0f;
    KS_UNROLL
    for (u32 i = 0; i < 2; i++) {
        KS_UNROLL
        for (u32 j = 0; j < 4; j++) {
            KS_UNROLL
            for (u32 part = 0; part < 4; part++) {
                u32 row = tile[1] + warp_row + 16 * i + lane / 4 + part / 2 * 8;
                u32 column = tile[2] + warp_column + 8 * j + lane % 4 * 2 + part % 2;
                if (row >= rows || column >= width) continue;
                u64 at = (u64)row * width + column;
                to[at] = p.stage == 0 ? sums[i][j][part] : keep * before[at] + factor * sums[i][j][part];
            }
        }
    }
}

KS_KERNEL(muon_apply, Muon, 256, 4) {
    const u32* piece = ks_pointer<const u32>(p.pieces) + 4 * (u64)ks_block_x();
    Matrix m = matrix_of(p, piece[0]);
    float rate = ks_pointer<const float>(p.control)[0] * m.scale;
    KS_NO_UNROLL
    for (u32 item = piece[1] + ks_thread(); item < piece[1] + piece[2]; item += 256)
        ks_pointer<float>(p.master)[m.offset + item] -= rate * ks_pointer<const float>(p.x)[m.x + place_in_copy(m, item)];
}
