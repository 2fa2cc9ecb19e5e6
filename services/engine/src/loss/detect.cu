// Boxes from a head's raw outputs, which anchors answer for which object, and the loss of boxes and classes with its
// gradient. The rules are those of loss/assign, loss/branch and loss/ciou.rs.
#include "head.h"

#define CLAIMS_MAX 13

// Corners in pixels, and probabilities where they are wanted. Eight threads an anchor.
KS_KERNEL(head_decode, HeadDecode, 256, 4) {
    u32 rows = p.head.images * p.head.anchors, row = ks_block_x() * 32 + ks_thread() / 8, lane = ks_thread() % 8;
    bool is_row = row < rows;
    Place at = place_of(p.head, is_row ? row : rows - 1);
    Sides sides = sides_of(p.head, at);
    if (!is_row) return;
    const HeadLevel& level = p.head.levels[at.level];
    if (lane == 0) {
        float* to = ks_pointer<float>(p.boxes) + 4 * (u64)row;
        ks_st16(to, V4{ks_bits((at.x - sides.mean[0]) * level.stride), ks_bits((at.y - sides.mean[1]) * level.stride),
                       ks_bits((at.x + sides.mean[2]) * level.stride), ks_bits((at.y + sides.mean[3]) * level.stride)});
    }
    if (!p.scores) return;
    const bf16* logits = ks_pointer<const bf16>(level.scores.pointer) + at.pixel * level.scores.pitch;
    float* scores = ks_pointer<float>(p.scores) + (u64)row * p.head.classes;
    KS_NO_UNROLL
    for (u32 first = 8 * lane; first < p.head.classes; first += 64) {
        Eight v = ks_unpack8(ks_ld16(logits + first));
        KS_UNROLL
        for (int i = 0; i < 8; i++)
            if (first + i < p.head.classes) scores[first + i] = ks_logistic(v.v[i]);
    }
}

// The cells along one axis whose centres lie between two edges.
KS_FN void cells_inside(float low, float high, float stride, u32 count, u32& start, u32& end) {
    float inverse = ks_rcp(stride);
    start = (u32)ks_max(low * inverse - 1.5f, 0.0f);
    while (start < count && ((float)start + 0.5f) * stride - low <= 1e-9f) start++;
    end = (u32)ks_max(high * inverse - 1.5f, 0.0f);
    end = end > count ? count : end;
    end = end < start ? start : end;
    while (end < count && high - ((float)end + 0.5f) * stride > 1e-9f) end++;
}

// Every object claims its best anchors; a block is an object. An anchor learns how many claim it, one of them, and the
// object it overlaps most of all whose candidate it is.
KS_KERNEL(tal_metric_topk, TalAssign, 128, 4) {
    u32 row = ks_block_x();
    if (row >= *ks_pointer<const u32>(p.truths.count)) return;
    u64* peaks = ks_pointer<u64>(p.peaks) + 2 * (u64)row;
    if (ks_thread() == 0) {
        peaks[0] = 0;
        peaks[1] = 0;
    }
    const u32* meta = ks_pointer<const u32>(p.truths.meta) + 4 * (u64)row;
    u32 image = meta[0], type = meta[1];
    Box truth = read_box(p.truths.boxes, row);
    if (truth.x1 + truth.y1 + truth.x2 + truth.y2 <= 0.0f) return;
    // Small objects take candidates of a larger neighbourhood.
    float half_width = ks_max(truth.x2 - truth.x1, 16.0f) * 0.5f, half_height = ks_max(truth.y2 - truth.y1, 16.0f) * 0.5f;
    float x = (truth.x1 + truth.x2) * 0.5f, y = (truth.y1 + truth.y2) * 0.5f;
    u64 best[CLAIMS_MAX] = {};
    KS_NO_UNROLL
    for (u32 index = 0; index < 3; index++) {
        const HeadLevel& level = p.head.levels[index];
        u32 left, right, top, bottom;
        cells_inside(x - half_width, x + half_width, level.stride, level.width, left, right);
        cells_inside(y - half_height, y + half_height, level.stride, level.height, top, bottom);
        u32 wide = right - left, count = wide * (bottom - top);
        KS_NO_UNROLL
        for (u32 item = ks_thread(); item < count; item += 128) {
            u32 cell = (top + item / wide) * level.width + left + item % wide, anchor = level.first + cell;
            u64 at = (u64)image * p.head.anchors + anchor;
            Fit fit = fit_of(p.head, truth, type, read_box(p.boxes, at), index, (u64)image * level.cells + cell);
            if (!(fit.alignment > 0.0f)) continue;
            ks_atomic_max(ks_pointer<u64>(p.nearest) + at, key_of(fit.overlap, row));
            u64 key = key_of(fit.alignment, anchor);
            KS_UNROLL
            for (int i = 0; i < CLAIMS_MAX; i++) {
                u64 lower = key < best[i] ? key : best[i];
                best[i] = key < best[i] ? best[i] : key;
                key = lower;
            }
        }
    }
    KS_NO_UNROLL
    for (u32 claim = 0; claim < p.per_object; claim++) {
        u64 key = block_max(best[0]);
        if (key == 0) break;
        if (best[0] != key) continue;
        ks_atomic_add(ks_pointer<u64>(p.claims) + (u64)image * p.head.anchors + index_of(key), (1ull << 32) + row + 1);
        KS_UNROLL
        for (int i = 0; i + 1 < CLAIMS_MAX; i++) best[i] = best[i + 1];
        best[CLAIMS_MAX - 1] = 0;
    }
}

// The object an anchor answers for, plus one; 0 for none.
KS_FN u32 owner_of(const TalAssign& p, u32 item) {
    u64 claims = ks_pointer<const u64>(p.claims)[item];
    if (claims >> 32 == 0) return 0;
    if (claims >> 32 == 1) return (u32)claims;
    return index_of(ks_pointer<const u64>(p.nearest)[item]) + 1;
}
KS_FN Fit fit_of_owner(const TalAssign& p, u32 item, u32 row) {
    Place at = place_of(p.head, item);
    u32 type = ks_pointer<const u32>(p.truths.meta)[4 * (u64)row + 1];
    return fit_of(p.head, read_box(p.truths.boxes, row), type, read_box(p.boxes, item), at.level, at.pixel);
}

// The best alignment and overlap of every object among the anchors it was left with.
KS_KERNEL(tal_peaks, TalAssign, 256, 4) {
    u32 item = ks_block_x() * 256 + ks_thread();
    if (item >= p.head.images * p.head.anchors) return;
    u32 owner = owner_of(p, item);
    if (owner == 0) return;
    Fit fit = fit_of_owner(p, item, owner - 1);
    u64* peaks = ks_pointer<u64>(p.peaks) + 2 * (u64)(owner - 1);
    u32 anchor = item - ks_quotient(item, p.head.by_anchors) * p.head.anchors;
    if (fit.alignment > 0.0f) ks_atomic_max(peaks, key_of(fit.alignment, anchor));
    if (!p.one_kept) ks_atomic_max(peaks + 1, (u64)ks_bits(fit.overlap));
}

// What every anchor should say, and the sum of it. What was noted for the anchors is zero again afterwards.
KS_KERNEL(tal_targets, TalAssign, 256, 4) {
    float score_sum = 0.0f, count = 0.0f;
    u32 items = p.head.images * p.head.anchors;
    KS_NO_UNROLL
    for (u32 item = ks_block_x() * 256 + ks_thread(); item < items; item += ks_blocks_x() * 256) {
        u32 owner = owner_of(p, item);
        float score = 0.0f;
        if (owner) {
            Fit fit = fit_of_owner(p, item, owner - 1);
            const u64* peaks = ks_pointer<const u64>(p.peaks) + 2 * (u64)(owner - 1);
            u32 anchor = item - ks_quotient(item, p.head.by_anchors) * p.head.anchors;
            float overlap = p.one_kept ? fit.overlap : ks_float((u32)peaks[1]);
            score = ks_divide(fit.alignment * overlap, ks_float((u32)(peaks[0] >> 32)) + 1e-9f);
            if (p.one_kept && (peaks[0] == 0 || index_of(peaks[0]) != anchor)) owner = 0;
        }
        ks_pointer<u32>(p.owners)[item] = owner;
        ks_pointer<float>(p.targets)[item] = owner ? score : 0.0f;
#ifndef MUT_CLAIMS_KEPT
        ks_pointer<u64>(p.claims)[item] = 0;
#endif
        ks_pointer<u64>(p.nearest)[item] = 0;
        score_sum += owner ? score : 0.0f;
        count += owner ? 1.0f : 0.0f;
    }
    score_sum = block_sum(score_sum);
    count = block_sum(count);
    volatile float* partials = ks_pointer<volatile float>(p.partials);
    if (ks_thread() == 0) {
        partials[2 * ks_block_x()] = score_sum;
        partials[2 * ks_block_x() + 1] = count;
    }
    if (!is_last_to_come(ks_pointer<u32>(p.counter), ks_blocks_x())) return;
    score_sum = 0.0f, count = 0.0f;
    KS_NO_UNROLL
    for (u32 block = ks_thread(); block < ks_blocks_x(); block += 256) {
        score_sum += partials[2 * block];
        count += partials[2 * block + 1];
    }
    score_sum = block_sum(score_sum);
    count = block_sum(count);
    if (ks_thread() != 0) return;
    ks_pointer<float>(p.totals)[0] = score_sum;
    ks_pointer<float>(p.totals)[1] = count;
}

// Adds a block's sum to those of the others; the last block returns true and the whole sum.
KS_FN bool sum_of_blocks(u64 partials, u64 counter, float& sum) {
    volatile float* parts = ks_pointer<volatile float>(partials);
    sum = block_sum(sum);
    if (ks_thread() == 0) parts[ks_block_x()] = sum;
    if (!is_last_to_come(ks_pointer<u32>(counter), ks_blocks_x())) return false;
    sum = 0.0f;
    KS_NO_UNROLL
    for (u32 block = ks_thread(); block < ks_blocks_x(); block += ks_threads()) sum += parts[block];
    sum = block_sum(sum);
    return true;
}

// Binary cross-entropy of all anchors and classes; a thread takes eight classes.
KS_KERNEL(det_loss_classes, DetLoss, 256, 4) {
    float norm = ks_divide(p.gain_classes, ks_max(ks_pointer<const float>(p.totals)[0], 1.0f)), scale = norm * p.factor;
    u32 pieces = p.by_pieces.divisor, items = p.head.images * p.head.anchors * pieces;
    const float* weights = ks_pointer<const float>(p.class_weights);
    float sum = 0.0f;
    KS_NO_UNROLL
    for (u32 item = ks_block_x() * 256 + ks_thread(); item < items; item += ks_blocks_x() * 256) {
        u32 row = ks_quotient(item, p.by_pieces), first = (item - row * pieces) * 8;
        Place at = place_of(p.head, row);
        const View& view = p.head.levels[at.level].scores;
        Eight x = ks_unpack8(ks_ld16(ks_pointer<const bf16>(view.pointer) + at.pixel * view.pitch + first));
        u32 owner = ks_pointer<const u32>(p.owners)[row];
        u32 type = owner ? ks_pointer<const u32>(p.truths.meta)[4 * (u64)(owner - 1) + 1] : ~0u;
        float target = ks_pointer<const float>(p.targets)[row];
        Eight slope;
        KS_UNROLL
        for (int i = 0; i < 8; i++) {
            u32 own = first + i;
            float wanted = own == type ? target : 0.0f;
            float weight = own >= p.head.classes ? 0.0f : weights ? weights[own] : 1.0f;
            // The padding's logits are zero, so nothing there is infinite.
            sum += weight * (ks_softplus(x.v[i]) - x.v[i] * wanted);
            slope.v[i] = weight * scale * (ks_logistic(x.v[i]) - wanted);
        }
        const View& to = p.gradients[at.level].scores;
        ks_st16(ks_pointer<bf16>(to.pointer) + at.pixel * to.pitch + first, ks_pack8(slope));
    }
    if (sum_of_blocks(p.partials, p.counter, sum) && ks_thread() == 0)
        ks_pointer<float>(p.items)[1] = sum * norm;
}

// Overlap and distances of the assigned anchors; eight threads an anchor.
KS_KERNEL(det_loss_boxes, DetLoss, 256, 2) {
    float by_score = ks_divide(1.0f, ks_max(ks_pointer<const float>(p.totals)[0], 1.0f));
    u32 rows = p.head.images * p.head.anchors, lane = ks_thread() % 8;
    float overlaps = 0.0f, distances = 0.0f;
    KS_NO_UNROLL
    for (u32 base = ks_block_x() * 32; base < rows; base += ks_blocks_x() * 32) {
        u32 row = base + ks_thread() / 8;
        bool is_row = row < rows;
        u32 mine = is_row ? row : rows - 1, owner = is_row ? ks_pointer<const u32>(p.owners)[mine] : 0;
        Place at = place_of(p.head, mine);
        Eight slope = {};
        // All of a warp or none: the sides are read together.
        if (ks_ballot(owner != 0)) {
            ks_syncwarp();
            Sides sides = sides_of(p.head, at);
            float stride = p.head.levels[at.level].stride, inverse = ks_divide(1.0f, stride);
            float weight = ks_pointer<const float>(p.targets)[mine];
            Box truth = read_box(p.truths.boxes, owner ? owner - 1 : 0);
            Box target = {truth.x1 * inverse, truth.y1 * inverse, truth.x2 * inverse, truth.y2 * inverse};
            Box box = {at.x - sides.mean[0], at.y - sides.mean[1], at.x + sides.mean[2], at.y + sides.mean[3]};
            Ciou c = ciou_of(box, target);
            float factor = weight * p.gain_boxes * by_score * p.factor;
            // Left and top move their corners the other way; the loss falls with the overlap.
            float by_side[4] = {ciou_slope(c, share_of(box.x1, target.x1), true, true) * factor,
                                ciou_slope(c, share_of(box.y1, target.y1), false, true) * factor,
                                -ciou_slope(c, 1.0f - share_of(box.x2, target.x2), true, false) * factor,
                                -ciou_slope(c, 1.0f - share_of(box.y2, target.y2), false, false) * factor};
            float wanted[4] = {at.x - target.x1, at.y - target.y1, target.x2 - at.x, target.y2 - at.y};
            float pull = weight * p.gain_distances * by_score * p.factor * 0.25f, loss = 0.0f;
            if (p.head.bins == 1) {
                KS_UNROLL
                for (int i = 0; i < 4; i++) {
                    float unit = ks_divide(stride, i % 2 ? p.image_height : p.image_width), off = sides.mean[i] - wanted[i];
                    loss += ks_abs(off) * unit;
                    float sign = off > 0.0f ? 1.0f : off < 0.0f ? -1.0f : 0.0f;
                    slope.v[i] = lane == 0 ? by_side[i] + pull * sign * unit : 0.0f;
                }
                loss = lane == 0 ? loss : 0.0f;
            } else {
                u32 side = lane / 2;
                float first = (float)(lane % 2 * 8);
                // Picked without an index, so that the four stay in registers.
                float aim = side == 0 ? wanted[0] : side == 1 ? wanted[1] : side == 2 ? wanted[2] : wanted[3];
                float push = side == 0 ? by_side[0] : side == 1 ? by_side[1] : side == 2 ? by_side[2] : by_side[3];
                float mean = side == 0 ? sides.mean[0] : side == 1 ? sides.mean[1] : side == 2 ? sides.mean[2] : sides.mean[3];
                aim = ks_min(ks_max(aim, 0.0f), 14.99f);
                float low = ks_floor(aim), high = aim - low;
                KS_UNROLL
                for (int i = 0; i < 8; i++) {
                    float bin = first + (float)i, share = bin == low ? 1.0f - high : bin == low + 1.0f ? high : 0.0f;
                    loss += share * (sides.log_sum - sides.logits.v[i]);
                    slope.v[i] = push * sides.share.v[i] * (bin - mean) + pull * (sides.share.v[i] - share);
                }
            }
            if (owner) {
                distances += weight * loss * 0.25f;
                if (lane == 0) overlaps += weight * (1.0f - c.value);
            } else {
                slope = Eight{};
            }
        }
        const View& to = p.gradients[at.level].boxes;
        if (is_row && 8 * lane < to.channels)
            ks_st16(ks_pointer<bf16>(to.pointer) + at.pixel * to.pitch + 8 * lane, ks_pack8(slope));
    }
    // Written before the block is counted, so that the last one finds both sums.
    overlaps = block_sum(overlaps);
    volatile float* parts = ks_pointer<volatile float>(p.partials) + ks_blocks_x();
    if (ks_thread() == 0) parts[ks_block_x()] = overlaps;
    if (!sum_of_blocks(p.partials, p.counter, distances)) return;
    overlaps = 0.0f;
    KS_NO_UNROLL
    for (u32 block = ks_thread(); block < ks_blocks_x(); block += 256) overlaps += parts[block];
    overlaps = block_sum(overlaps);
    if (ks_thread() != 0) return;
    ks_pointer<float>(p.items)[0] = overlaps * p.gain_boxes * by_score;
    ks_pointer<float>(p.items)[2] = distances * p.gain_distances * by_score;
}
