// What is drawn for each picture of a training batch: the same streams of numbers, in the same order, as
// data/batches/training.rs and data/augment draw. Decisions and choices are integers and equal the CPU's to the bit.
#include "numbers.h"

#define EPOCH_ORDER 2
#define MOSAIC 3
#define AFFINE 4
#define COLOUR 5
#define FLIP 6

struct Words {
    u32 v[4];
};
// Philox4x32-10; see random.rs.
KS_FN Words philox(Words c, u32 key0, u32 key1) {
    KS_NO_UNROLL
    for (int round = 0; round < 10; round++) {
        u32 high0 = ks_mulhi(0xD2511F53u, c.v[0]), low0 = 0xD2511F53u * c.v[0];
        u32 high1 = ks_mulhi(0xCD9E8D57u, c.v[2]), low1 = 0xCD9E8D57u * c.v[2];
        c = Words{{high1 ^ c.v[1] ^ key0, low1, high0 ^ c.v[3] ^ key1, low0}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}
// A stream of numbers; `word` counts those handed out.
struct Stream {
    u32 key0, key1, use, sample, epoch, word;
};
KS_FN u32 next_word(Stream& s) {
    Words block = philox(Words{{s.word / 4, s.use, s.sample, s.epoch}}, s.key0, s.key1);
    u32 at = s.word++ % 4;
    return at == 0 ? block.v[0] : at == 1 ? block.v[1] : at == 2 ? block.v[2] : block.v[3];
}
// The 53 bits that a number in [0, 1) is made of.
KS_FN u64 next_53(Stream& s) {
    u64 low = next_word(s);
    return ((u64)next_word(s) << 32 | low) >> 11;
}
// A number in [-limit, limit).
KS_FN float next_signed(Stream& s, float limit) {
    return (float)((i64)next_53(s) - (1ll << 52)) * 2.220446049250313e-16f * limit;
}
KS_FN u32 next_below(Stream& s, u32 limit, u32 reject_under) {
    while (true) {
        u64 wide = (u64)next_word(s) * limit;
        if ((u32)wide >= reject_under) return (u32)(wide >> 32);
    }
}

// What stands at a place of an epoch's order.
KS_FN u32 sample_at(const AugRecipe& p, u32 epoch, u32 place) {
    u64 mask = (1ull << p.half_bits) - 1, value = place;
    do {
        u64 left = value >> p.half_bits, right = value & mask;
        KS_NO_UNROLL
        for (u32 round = 0; round < 6; round++) {
            u64 mixed = philox(Words{{(u32)right, EPOCH_ORDER, round, epoch}}, p.seed_low, p.seed_high).v[0] & mask;
            u64 next = left ^ mixed;
            left = right;
            right = next;
        }
        value = left << p.half_bits | right;
    } while (value >= p.samples);
    return (u32)value;
}

// Sine and cosine of an angle of at most a turn (Cephes' single-precision coefficients).
KS_FN void sine_cosine(float angle, float& sine, float& cosine) {
    float n = ks_floor(angle * 0.6366197724f + 0.5f);
    float r = ks_fma(n, -1.5707962513f, angle);
    r = ks_fma(n, -7.5497894159e-8f, r);
    float z = r * r;
    float s = ks_fma(ks_fma(ks_fma(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f) * z, r, r);
    float c = ks_fma(ks_fma(ks_fma(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f) * z, z,
                     ks_fma(-0.5f, z, 1.0f));
    u32 quarter = (u32)((i32)n & 3);
    sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
}

struct Map {
    float v[9];
};
KS_FN Map after(const Map& second, const Map& first) {
    Map m;
    KS_UNROLL
    for (int row = 0; row < 3; row++) {
        KS_UNROLL
        for (int column = 0; column < 3; column++)
            m.v[3 * row + column] = second.v[3 * row] * first.v[column] + second.v[3 * row + 1] * first.v[3 + column] +
                                    second.v[3 * row + 2] * first.v[6 + column];
    }
    return m;
}
KS_FN Map shift_by(float x, float y) { return Map{{1, 0, x, 0, 1, y, 0, 0, 1}}; }

// A thread a picture of the batch.
KS_KERNEL(aug_recipe, AugRecipe, 64, 1) {
    u32 output = ks_block_x() * 64 + ks_thread();
    if (output >= p.batch) return;
    const u32* cursor = ks_pointer<const u32>(p.cursor);
    u32 epoch = cursor[0], sample = sample_at(p, epoch, cursor[1] + output);
    u32* to = ks_pointer<u32>(p.recipes) + 24 * (u64)output;
    to[0] = sample;

    Stream s = {p.seed_low, p.seed_high, MOSAIC, sample, epoch, 0};
    bool is_mosaic = next_53(s) < p.mosaic_below;
    float width = (float)(2 * p.size), height = width;
    to[1] = is_mosaic;
    if (is_mosaic) {
        // The centre is a whole number: size / 2 and the part of the size that was drawn.
        to[2] = p.size / 2 + (u32)(p.size * next_53(s) >> 53);
        to[3] = p.size / 2 + (u32)(p.size * next_53(s) >> 53);
        KS_NO_UNROLL
        for (u32 partner = 0; partner < 3; partner++) to[4 + partner] = next_below(s, p.samples, p.reject_under);
    } else {
        const u32* size = ks_pointer<const u32>(p.sizes) + 2 * (u64)sample;
        width = (float)size[0];
        height = (float)size[1];
        KS_NO_UNROLL
        for (u32 word = 2; word < 7; word++) to[word] = 0;
    }

    s = Stream{p.seed_low, p.seed_high, AFFINE, sample, epoch, 0};
    float tilt_x = next_signed(s, p.perspective), tilt_y = next_signed(s, p.perspective);
    float angle = next_signed(s, p.radians), scale = 1.0f + next_signed(s, p.scale);
    float shear_x = next_signed(s, p.shear), shear_y = next_signed(s, p.shear);
    float move_x = 0.5f + next_signed(s, p.translate), move_y = 0.5f + next_signed(s, p.translate);
    float sine, cosine;
    sine_cosine(shear_x, sine, cosine);
    float tangent_x = ks_divide(sine, cosine);
    sine_cosine(shear_y, sine, cosine);
    float tangent_y = ks_divide(sine, cosine);
    sine_cosine(angle, sine, cosine);
    Map turned = {{cosine * scale, sine * scale, 0, -sine * scale, cosine * scale, 0, 0, 0, 1}};
    Map sheared = {{1, tangent_x, 0, tangent_y, 1, 0, 0, 0, 1}}, tilted = {{1, 0, 0, 0, 1, 0, tilt_x, tilt_y, 1}};
    Map map = after(tilted, shift_by(width * -0.5f, height * -0.5f));
    map = after(sheared, after(turned, map));
    map = after(shift_by(move_x * (float)p.size, move_y * (float)p.size), map);
    KS_UNROLL
    for (int i = 0; i < 9; i++) to[7 + i] = ks_bits(map.v[i]);
    to[16] = ks_bits(scale);

    s = Stream{p.seed_low, p.seed_high, COLOUR, sample, epoch, 0};
    to[17] = ks_bits(next_signed(s, p.hue));
    to[18] = ks_bits(next_signed(s, p.saturation));
    to[19] = ks_bits(next_signed(s, p.value));
    s = Stream{p.seed_low, p.seed_high, FLIP, sample, epoch, 0};
    u32 flags = next_53(s) < p.upset_below ? 1 : 0;
    flags |= next_53(s) < p.mirror_below ? 2 : 0;
    flags |= next_53(s) < p.swap_below ? 4 : 0;
    to[20] = flags;
}
