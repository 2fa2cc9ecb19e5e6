// What the 32 threads of a warp do together. Each deposits its operands; the last to come computes for all, with
// the layouts of fragments that the PTX manual gives for ldmatrix and mma.m16n8k16.
#pragma once

struct alignas(16) V4 {
    u32 x, y, z, w;
};

KS_FN V4 ks_ld16(const void* from) {
    emu::check16(from);
    return *(const V4*)from;
}
KS_FN void ks_st16(void* to, V4 v) {
    emu::check16(to);
    *(V4*)to = v;
}
KS_FN V4 ks_ld16_nc(const void* from) { return ks_ld16(from); }

namespace emu {

struct Pick {
    u32 value, lane, result;
};
static void pick_all(void** operands) {
    for (int lane = 0; lane < 32; lane++) {
        Pick* mine = (Pick*)operands[lane];
        mine->result = ((Pick*)operands[mine->lane & 31])->value;
    }
}
KS_FN u32 pick(u32 value, u32 lane) {
    Pick mine{value, lane, 0};
    collective(pick_all, &mine);
    return mine.result;
}

static void ballot_all(void** operands) {
    u32 bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= (((Pick*)operands[lane])->value != 0 ? 1u : 0u) << lane;
    for (int lane = 0; lane < 32; lane++) ((Pick*)operands[lane])->result = bits;
}
static void nothing(void**) {}

struct Load {
    const void* row;
    V4 result;
};
static inline u32 pair_of(u16 low, u16 high) { return (u32)low | (u32)high << 16; }
template <bool TRANSPOSED> static void load_all(void** operands) {
    const u16* rows[32];
    for (int lane = 0; lane < 32; lane++) rows[lane] = (const u16*)((Load*)operands[lane])->row;
    for (int lane = 0; lane < 32; lane++) {
        u32 got[4];
        for (int matrix = 0; matrix < 4; matrix++) {
            const u16** m = rows + 8 * matrix;
            int across = lane / 4, along = lane % 4 * 2;
            got[matrix] = TRANSPOSED ? pair_of(m[along][across], m[along + 1][across])
                                     : pair_of(m[across][along], m[across][along + 1]);
        }
        ((Load*)operands[lane])->result = V4{got[0], got[1], got[2], got[3]};
    }
}

struct Product {
    float* c;
    u32 a[4], b[2];
};
static inline float low_of(u32 pair) { return ks_float(pair << 16); }
static inline float high_of(u32 pair) { return ks_float(pair & 0xffff0000u); }
static void multiply_all(void** operands) {
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const Product& p = *(Product*)operands[lane];
        int g = lane / 4, t = lane % 4 * 2;
        for (int part = 0; part < 4; part++) {
            int row = g + part % 2 * 8, column = t + part / 2 * 8;
            a[row][column] = low_of(p.a[part]);
            a[row][column + 1] = high_of(p.a[part]);
        }
        for (int part = 0; part < 2; part++) {
            b[t + 8 * part][g] = low_of(p.b[part]);
            b[t + 8 * part + 1][g] = high_of(p.b[part]);
        }
        for (int part = 0; part < 2; part++) {
            c[g + 8 * part][t] = p.c[2 * part];
            c[g + 8 * part][t + 1] = p.c[2 * part + 1];
        }
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; lane++) {
        const Product& p = *(Product*)operands[lane];
        int g = lane / 4, t = lane % 4 * 2;
        for (int part = 0; part < 4; part++) p.c[part] = c[g + part / 2 * 8][t + part % 2];
    }
}

} // namespace emu

KS_FN void ks_syncwarp() {
    char none;
    emu::collective(emu::nothing, &none);
}
KS_FN u32 ks_lane_here() { return ks_thread() & 31; }
KS_FN u32 ks_shuffle_from(u32 v, u32 lane) { return emu::pick(v, lane); }
KS_FN u32 ks_shuffle_xor(u32 v, u32 mask) { return emu::pick(v, ks_lane_here() ^ mask); }
// Past the end of the warp a lane keeps its own value.
KS_FN u32 ks_shuffle_down(u32 v, u32 by) {
    u32 lane = ks_lane_here();
    return emu::pick(v, lane + by > 31 ? lane : lane + by);
}
KS_FN float ks_shuffle_from(float v, u32 lane) { return ks_float(ks_shuffle_from(ks_bits(v), lane)); }
KS_FN float ks_shuffle_xor(float v, u32 mask) { return ks_float(ks_shuffle_xor(ks_bits(v), mask)); }
KS_FN float ks_shuffle_down(float v, u32 by) { return ks_float(ks_shuffle_down(ks_bits(v), by)); }
KS_FN u32 ks_ballot(bool v) {
    emu::Pick mine{v, 0, 0};
    emu::collective(emu::ballot_all, &mine);
    return mine.result;
}
KS_FN V4 ks_ldsm4(const void* row) {
    emu::check16(row);
    emu::Load mine{row, {}};
    emu::collective(emu::load_all<false>, &mine);
    return mine.result;
}
KS_FN V4 ks_ldsm4t(const void* row) {
    emu::check16(row);
    emu::Load mine{row, {}};
    emu::collective(emu::load_all<true>, &mine);
    return mine.result;
}
KS_FN void ks_mma(float (&c)[4], V4 a, u32 b0, u32 b1) {
    emu::Product mine{c, {a.x, a.y, a.z, a.w}, {b0, b1}};
    emu::collective(emu::multiply_all, &mine);
}
