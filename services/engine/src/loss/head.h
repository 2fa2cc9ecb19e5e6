// How a dense head's raw outputs are read, and how boxes overlap: what decoding, assigning and the loss share.
#pragma once
#include "numbers.h"

KS_FN u32 level_of(const Head& head, u32 anchor) {
    return anchor >= head.levels[2].first ? 2 : anchor >= head.levels[1].first ? 1 : 0;
}

// Where an anchor lies.
struct Place {
    u32 level, image, cell;
    // Its row of the level's maps.
    u64 pixel;
    // Its centre in cells.
    float x, y;
};
KS_FN Place place_of(const Head& head, u32 row) {
    Place at;
    at.image = ks_quotient(row, head.by_anchors);
    u32 anchor = row - at.image * head.anchors;
    at.level = level_of(head, anchor);
    const HeadLevel& level = head.levels[at.level];
    at.cell = anchor - level.first;
    at.pixel = (u64)at.image * level.cells + at.cell;
    u32 line = ks_quotient(at.cell, level.by_width);
    at.x = (float)(at.cell - line * level.width) + 0.5f;
    at.y = (float)line + 0.5f;
    return at;
}

// What eight threads know of an anchor's sides: each has half of a side's bins, all have the four distances.
struct Sides {
    float mean[4];
    Eight logits, share;
    float log_sum;
};
KS_FN Sides sides_of(const Head& head, const Place& at) {
    u32 lane = ks_thread() % 8;
    const HeadLevel& level = head.levels[at.level];
    const bf16* row = ks_pointer<const bf16>(level.boxes.pointer) + at.pixel * level.boxes.pitch;
    Sides sides = {};
    if (head.bins == 1) {
        sides.logits = ks_unpack8(ks_ld16(row));
        KS_UNROLL
        for (int i = 0; i < 4; i++) sides.mean[i] = sides.logits.v[i];
        return sides;
    }
    sides.logits = ks_unpack8(ks_ld16(row + 8 * lane));
    float largest = sides.logits.v[0];
    KS_UNROLL
    for (int i = 1; i < 8; i++) largest = ks_max(largest, sides.logits.v[i]);
    largest = ks_max(largest, ks_shuffle_xor(largest, 1));
    float sum = 0.0f, moment = 0.0f, first = (float)(lane % 2 * 8);
    KS_UNROLL
    for (int i = 0; i < 8; i++) {
        sides.share.v[i] = ks_exp(sides.logits.v[i] - largest);
        sum += sides.share.v[i];
        moment = ks_fma(sides.share.v[i], first + (float)i, moment);
    }
    sum += ks_shuffle_xor(sum, 1);
    moment += ks_shuffle_xor(moment, 1);
    float mean = ks_divide(moment, sum), inverse = ks_divide(1.0f, sum);
    KS_UNROLL
    for (int i = 0; i < 8; i++) sides.share.v[i] *= inverse;
    sides.log_sum = ks_log(sum) + largest;
    u32 group = ks_thread() % 32 - lane;
    KS_UNROLL
    for (int i = 0; i < 4; i++) sides.mean[i] = ks_shuffle_from(mean, group + 2 * i);
    return sides;
}

struct Box {
    float x1, y1, x2, y2;
};
KS_FN Box read_box(u64 boxes, u64 row) {
    V4 v = ks_ld16(ks_pointer<const float>(boxes) + 4 * row);
    return Box{ks_float(v.x), ks_float(v.y), ks_float(v.z), ks_float(v.w)};
}

// The parts of a complete IoU that value and slope share; see loss/ciou.rs.
struct Ciou {
    float width, height, inner_width, inner_height, shared, joined, outer_width, outer_height, diagonal;
    float shift_x, shift_y, distance, turn, alpha, value;
};
KS_FN Ciou ciou_of(const Box& p, const Box& t) {
    const float epsilon = 1e-7f, aspect_scale = 0.4052847346f;
    Ciou c;
    c.width = p.x2 - p.x1;
    c.height = p.y2 - p.y1 + epsilon;
    float width = t.x2 - t.x1, height = t.y2 - t.y1 + epsilon;
    c.inner_width = ks_max(ks_min(p.x2, t.x2) - ks_max(p.x1, t.x1), 0.0f);
    c.inner_height = ks_max(ks_min(p.y2, t.y2) - ks_max(p.y1, t.y1), 0.0f);
    c.shared = c.inner_width * c.inner_height;
    c.joined = c.width * c.height + width * height - c.shared + epsilon;
    float iou = ks_divide(c.shared, c.joined);
    c.outer_width = ks_max(p.x2, t.x2) - ks_min(p.x1, t.x1);
    c.outer_height = ks_max(p.y2, t.y2) - ks_min(p.y1, t.y1);
    c.diagonal = c.outer_width * c.outer_width + c.outer_height * c.outer_height + epsilon;
    c.shift_x = p.x1 + p.x2 - t.x1 - t.x2;
    c.shift_y = p.y1 + p.y2 - t.y1 - t.y2;
    c.distance = (c.shift_x * c.shift_x + c.shift_y * c.shift_y) * 0.25f;
    // A predicted width may be negative: atan is odd.
    float own = ks_divide(c.width, c.height), flat = ks_atan(ks_abs(own));
    c.turn = ks_atan(ks_divide(width, height)) - (own < 0.0f ? -flat : flat);
    float aspect = aspect_scale * c.turn * c.turn;
    c.alpha = ks_divide(aspect, 1.0f - iou + aspect + epsilon);
    c.value = iou - (ks_divide(c.distance, c.diagonal) + aspect * c.alpha);
    return c;
}
// How much of max(a, b) follows a: half where they are equal.
KS_FN float share_of(float a, float b) { return a > b ? 1.0f : a < b ? 0.0f : 0.5f; }
// The slope of the CIoU by one corner of the prediction; the weight of the aspect counts as a constant.
KS_FN float ciou_slope(const Ciou& c, float chosen, bool is_x, bool is_low) {
    float sign = is_low ? -1.0f : 1.0f;
    float side = is_x ? c.inner_height : c.inner_width, own = is_x ? c.height : c.width;
    float d_shared = c.shared > 0.0f ? sign * chosen * side : 0.0f;
    float d_joined = sign * own - d_shared;
    float d_iou = ks_divide(d_shared * c.joined - c.shared * d_joined, c.joined * c.joined);
    float d_diagonal = 2.0f * (is_x ? c.outer_width : c.outer_height) * sign * (1.0f - chosen);
    float d_distance = (is_x ? c.shift_x : c.shift_y) * 0.5f;
    float d_centre = ks_divide(d_distance * c.diagonal - c.distance * d_diagonal, c.diagonal * c.diagonal);
    float d_angle = ks_divide(sign * (is_x ? c.height : -c.width), c.width * c.width + c.height * c.height);
    return d_iou - d_centre + c.alpha * 2.0f * 0.4052847346f * c.turn * d_angle;
}

// How well a prediction fits an object: the overlap, from zero, and the alignment.
struct Fit {
    float overlap, alignment;
};
KS_FN Fit fit_of(const Head& head, const Box& truth, u32 type, const Box& box, u32 level_index, u64 pixel) {
    bool apart = truth.x2 <= box.x1 || box.x2 <= truth.x1 || truth.y2 <= box.y1 || box.y2 <= truth.y1;
    if (apart) return Fit{0.0f, 0.0f};
    float overlap = ks_max(ciou_of(box, truth).value, 0.0f);
    const HeadLevel& level = head.levels[level_index];
    bf16 logit = ks_pointer<const bf16>(level.scores.pointer)[pixel * level.scores.pitch + type];
    float square = overlap * overlap;
    return Fit{overlap, ks_root(ks_logistic(ks_widen(logit))) * (square * square * square)};
}

// A number that isn't negative and an index, in one key that is largest for the largest number and, of equals, the
// first index.
KS_FN u64 key_of(float value, u32 index) { return (u64)ks_bits(value) << 32 | ~index; }
KS_FN u32 index_of(u64 key) { return ~(u32)key; }
