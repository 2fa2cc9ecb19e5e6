// The loss of instance masks: an anchor's coefficients times the image's prototypes, compared pixel by pixel inside the
// true box. The rules are those of loss/segment.
#include "head.h"

#define MASKS 32

// Lists the assigned anchors of an image by number, and clears the gradients of the others' coefficients.
KS_KERNEL(mask_list, MaskLoss, 256, 4) {
    KS_SHARED(u32, scratch, 8);
    u32 image = ks_block_x(), listed = 0;
    KS_NO_UNROLL
    for (u32 base = 0; base < p.head.anchors; base += 256) {
        u32 anchor = base + ks_thread(), total, row = image * p.head.anchors + anchor;
        bool is_anchor = anchor < p.head.anchors;
        bool is_owned = is_anchor && ks_pointer<const u32>(p.owners)[row] != 0;
        u32 rank = listed + block_rank(is_owned, scratch, total);
        if (is_owned && rank < p.capacity) ks_pointer<u32>(p.list)[image * p.capacity + rank] = anchor;
        if (is_anchor) {
            Place at = place_of(p.head, row);
            const View& to = p.coefficient_gradients[at.level];
            bf16* target = ks_pointer<bf16>(to.pointer) + at.pixel * to.pitch;
            KS_NO_UNROLL
            for (u32 channel = 0; channel < to.channels; channel += 8) ks_st16(target + channel, V4{0, 0, 0, 0});
        }
        listed += total;
    }
    // What doesn't fit is counted: the host reports it.
    if (ks_thread() == 0) ks_pointer<u32>(p.counts)[image] = listed;
}

// A listed anchor with its object.
struct Mask {
    Place at;
    u32 instance, left, top, right, bottom;
    // One over the object's share of the prototypes, times one over the pixels.
    float share;
};
KS_FN u32 first_pixel(float edge, u32 size) {
    // The smallest whole number that isn't below the edge.
    float whole = ks_floor(edge - 1e-4f), up = whole < edge - 1e-4f ? whole + 1.0f : whole;
    u32 first = (u32)ks_max(up, 0.0f);
    return first < size ? first : size;
}
KS_FN Mask mask_of(const MaskLoss& p, u32 image, u32 slot) {
    u32 row = image * p.head.anchors + ks_pointer<const u32>(p.list)[image * p.capacity + slot];
    u32 owner = ks_pointer<const u32>(p.owners)[row] - 1;
    Mask mask;
    mask.at = place_of(p.head, row);
    mask.instance = ks_pointer<const u32>(p.truths.meta)[4 * (u64)owner + 2];
    Box box = read_box(p.truths.boxes, owner);
    mask.left = first_pixel(box.x1 * p.scale_x, p.width);
    mask.right = first_pixel(box.x2 * p.scale_x, p.width);
    mask.top = first_pixel(box.y1 * p.scale_y, p.height);
    mask.bottom = first_pixel(box.y2 * p.scale_y, p.height);
    float area = (box.x2 - box.x1) * (box.y2 - box.y1) * p.scale_x * p.scale_y;
    mask.share = area > 0.0f ? ks_divide(1.0f, area) : 0.0f;
    return mask;
}
KS_FN float norm_of(const MaskLoss& p) {
    return ks_divide(p.gain, ks_max(ks_pointer<const float>(p.totals)[1], 1.0f));
}
KS_FN void read_masks(float (&values)[MASKS], const bf16* from) {
    KS_UNROLL
    for (int piece = 0; piece < MASKS / 8; piece++) {
        Eight v = ks_unpack8(ks_ld16(from + 8 * piece));
        KS_UNROLL
        for (int i = 0; i < 8; i++) values[8 * piece + i] = v.v[i];
    }
}
KS_FN float dot_masks(const float (&a)[MASKS], const float* b) {
    float sum = 0.0f;
    KS_UNROLL
    for (int i = 0; i < MASKS; i++) sum = ks_fma(a[i], b[i], sum);
    return sum;
}

// The value, and the gradient of the coefficients. Blocks along x take the listed anchors of image y in turn.
KS_KERNEL(mask_loss, MaskLoss, 128, 3) {
    KS_SHARED(float, coefficients, MASKS);
    KS_SHARED(float, rows, 128 * (MASKS + 1));
    KS_SHARED(float, sums, 4 * MASKS);
    u32 image = ks_block_y(), listed = ks_pointer<const u32>(p.counts)[image];
    listed = listed < p.capacity ? listed : p.capacity;
    float norm = norm_of(p);
    float total = 0.0f;
    KS_NO_UNROLL
    for (u32 slot = ks_block_x(); slot < listed; slot += ks_blocks_x()) {
        Mask mask = mask_of(p, image, slot);
        const View& own = p.coefficients[mask.at.level];
        ks_sync();
        if (ks_thread() < MASKS)
            coefficients[ks_thread()] =
                ks_widen(ks_pointer<const bf16>(own.pointer)[mask.at.pixel * own.pitch + ks_thread()]);
        ks_sync();
        u32 wide = mask.right > mask.left ? mask.right - mask.left : 0;
        u32 high = mask.bottom > mask.top ? mask.bottom - mask.top : 0;
        float gradient[MASKS] = {}, loss = 0.0f;
        KS_NO_UNROLL
        for (u32 item = ks_thread(); item < wide * high; item += 128) {
            u32 pixel = (mask.top + item / wide) * p.width + mask.left + item % wide;
            u64 at = (u64)image * p.width * p.height + pixel;
            float prototype[MASKS];
            read_masks(prototype, ks_pointer<const bf16>(p.prototypes.pointer) + at * p.prototypes.pitch);
            float logit = dot_masks(prototype, coefficients);
            float target = ks_pointer<const u16>(p.instances)[at] == mask.instance ? 1.0f : 0.0f;
            loss += ks_softplus(logit) - logit * target;
            float slope = ks_logistic(logit) - target;
            KS_UNROLL
            for (int i = 0; i < MASKS; i++) gradient[i] = ks_fma(slope, prototype[i], gradient[i]);
        }
        total += block_sum(loss) * mask.share;
        KS_UNROLL
        for (int i = 0; i < MASKS; i++) rows[ks_thread() * (MASKS + 1) + i] = gradient[i];
        ks_sync();
        float quarter = 0.0f;
        KS_NO_UNROLL
        for (u32 row = ks_thread() / MASKS * 32; row < ks_thread() / MASKS * 32 + 32; row++)
            quarter += rows[row * (MASKS + 1) + ks_thread() % MASKS];
        sums[ks_thread()] = quarter;
        ks_sync();
        if (ks_thread() < MASKS) {
            float sum = 0.0f;
            KS_UNROLL
            for (int warp = 0; warp < 4; warp++) sum += sums[warp * MASKS + ks_thread()];
            const View& to = p.coefficient_gradients[mask.at.level];
            ks_pointer<bf16>(to.pointer)[mask.at.pixel * to.pitch + ks_thread()] =
                ks_round(sum * mask.share * norm * p.factor);
        }
    }
    volatile float* parts = ks_pointer<volatile float>(p.partials);
    u32 blocks = ks_blocks_x() * ks_blocks_y();
    if (ks_thread() == 0) parts[image * ks_blocks_x() + ks_block_x()] = total;
    if (!is_last_to_come(ks_pointer<u32>(p.counter), blocks)) return;
    float loss = 0.0f;
    KS_NO_UNROLL
    for (u32 block = ks_thread(); block < blocks; block += 128) loss += parts[block];
    loss = block_sum(loss);
    if (ks_thread() == 0) *ks_pointer<float>(p.loss) = loss * norm;
}

// The gradient of the prototypes: a thread a pixel, over all anchors of its image in their order.
KS_KERNEL(mask_loss_prototypes, MaskLoss, 128, 4) {
    u32 image = ks_block_y(), pixel = ks_block_x() * 128 + ks_thread();
    if (pixel >= p.width * p.height) return;
    u32 listed = ks_pointer<const u32>(p.counts)[image], y = ks_quotient(pixel, p.by_width), x = pixel - y * p.width;
    listed = listed < p.capacity ? listed : p.capacity;
    u64 at = (u64)image * p.width * p.height + pixel;
    float scale = norm_of(p) * p.factor;
    float prototype[MASKS], gradient[MASKS] = {};
    read_masks(prototype, ks_pointer<const bf16>(p.prototypes.pointer) + at * p.prototypes.pitch);
    u32 instance = ks_pointer<const u16>(p.instances)[at];
    KS_NO_UNROLL
    for (u32 slot = 0; slot < listed; slot++) {
        Mask mask = mask_of(p, image, slot);
        if (x < mask.left || x >= mask.right || y < mask.top || y >= mask.bottom) continue;
        const View& own = p.coefficients[mask.at.level];
        float coefficients[MASKS];
        read_masks(coefficients, ks_pointer<const bf16>(own.pointer) + mask.at.pixel * own.pitch);
        float target = instance == mask.instance ? 1.0f : 0.0f;
        float slope = (ks_logistic(dot_masks(prototype, coefficients)) - target) * mask.share * scale;
        KS_UNROLL
        for (int i = 0; i < MASKS; i++) gradient[i] = ks_fma(slope, coefficients[i], gradient[i]);
    }
    bf16* to = ks_pointer<bf16>(p.prototype_gradient.pointer) + at * p.prototype_gradient.pitch;
    KS_UNROLL
    for (int piece = 0; piece < MASKS / 8; piece++) {
        Eight v;
        KS_UNROLL
        for (int i = 0; i < 8; i++) v.v[i] = gradient[8 * piece + i];
        ks_st16(to + 8 * piece, ks_pack8(v));
    }
}
